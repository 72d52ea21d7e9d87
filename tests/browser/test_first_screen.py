"""Somebody without a model opens the page: what is there is one click away, and what does not work is not kept."""

from __future__ import annotations

import pytest

from tenax.models import Reply, Script, Trouble
from tenax.testing import Provider
from tests.support.browser import Beside, Serve, Window, expect

KEY = "sk-hunter2-hunter2-hunter2"
PRACTICE_SECONDS = 180
"""Bounds a wait for a real model: many times what it takes where other programs use the processors too."""
TAGS = {"models": [{"name": "qwen3:8b", "size": 5_000_000_000}]}


def test_what_ollama_has_is_one_click_away(
    serve: Serve, window: Window, beside: Beside
) -> None:
    """It is tried, it is kept, and the answer comes from it."""
    provider = beside.enter(
        Provider(
            Script([Reply("I run on this machine.")], repeat=True),
            pages={"/api/tags": TAGS},
        )
    )
    served = serve(env={"OLLAMA_HOST": provider.url})
    tab = window.enter(served)
    tab.page.get_by_role("button", name="Use qwen3:8b from Ollama").click()
    tab.say("Who are you?")
    tab.answered("I run on this machine.")
    asked = [body for body in provider.bodies if b"Who are you?" in body]
    assert asked
    assert b'"qwen3:8b"' in asked[0]
    tab.page.reload()
    tab.answered("I run on this machine.")
    assert 'name = "qwen3:8b"' in (served.home / "config.toml").read_text()


@pytest.mark.parametrize("where", ["its models are listed", "one is tried"])
def test_a_wrong_key_is_told_and_not_kept(
    serve: Serve, window: Window, beside: Beside, where: str
) -> None:
    """In our words, without the key; the form stays as it was filled in."""
    window.expects("status of 400")
    models = 401 if where == "its models are listed" else {"data": [{"id": "large-1"}]}
    provider = beside.enter(
        Provider(
            [Reply(trouble=Trouble("key", f"bad key {KEY}"))],
            pages={"/v1/models": models},
        )
    )
    served = serve()
    tab = window.enter(served)
    tab.page.get_by_role("button", name="Connect a model").click()
    tab.page.get_by_label("URL").fill(f"{provider.url}/v1")
    tab.page.get_by_label("API key").fill(KEY)
    tab.button("Load models").click()
    if where == "one is tried":
        expect(tab.page.get_by_role("radio", name="large-1")).to_be_checked()
        tab.button("Connect").click()
    told = tab.page.get_by_role("alert").filter(has_text="key")
    expect(told).to_contain_text("rejected the API key.")
    expect(tab.page.get_by_label("URL")).to_have_value(f"{provider.url}/v1")
    assert "hunter2" not in tab.page.inner_text("body")
    for file in served.home.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), file
    assert not (served.home / "config.toml").exists()


@pytest.mark.timeout(3 * PRACTICE_SECONDS)
def test_the_practice_model_answers_with_a_line_that_says_what_it_is(
    serve: Serve, window: Window
) -> None:
    """The real one, on this machine."""
    tab = window.enter(serve())
    tab.page.get_by_role("button", name="Use the practice model").click()
    expect(tab.box).to_be_visible(timeout=PRACTICE_SECONDS * 1000)
    tab.say("What is the capital of France?")
    answer = tab.answer_whole_or_cut(timeout=PRACTICE_SECONDS * 1000)
    expect(answer.locator(".label")).to_contain_text(
        "Practice model (135 M parameters, runs on this machine)."
    )
    expect(answer.locator(".text")).not_to_be_empty()
