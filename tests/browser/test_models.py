"""The connected models: switching between them in the header and in Settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenax.models import Reply, Script
from tests.support.browser import Serve, Tab, Window, expect

MODELS = {"large": "From the large one.", "small": "From the small one."}


def set_up_two(home: Path) -> None:
    """Write settings with two models; `large` is active."""
    settings = 'model = "large"\n'
    for label, text in MODELS.items():
        script = home / f"{label}.json"
        script.write_bytes(msgspec.json.encode(Script([Reply(text)], repeat=True)))
        settings += (
            f'[models.{label}]\napi = "script"\nurl = "{script}"\nname = "script"\n'
        )
    (home / "config.toml").write_text(settings)


def pick(tab: Tab, name: str) -> None:
    """Choose a model in the header."""
    tab.page.locator("header").get_by_role("button", name="Model: ").click()
    tab.page.get_by_role("menuitem", name=name).click()


def test_a_connected_model_is_chosen_again_without_typing_it_in(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """In the header, for this conversation; a new conversation has the default."""
    set_up_two(tmp_path)
    served = serve()
    tab = window.enter(served)
    tab.say("Who is it?")
    tab.answered(MODELS["large"])
    pick(tab, "small")
    picker = tab.page.locator("header").get_by_role("button", name="Model: small")
    expect(picker).to_be_visible()
    tab.say("And now?")
    tab.answered(MODELS["small"], count=2)
    other = window.tab(f"{served.url}/")
    expect(
        other.page.locator("header").get_by_role("button", name="Model: large")
    ).to_be_visible()
    assert 'model = "large"' in (tmp_path / "config.toml").read_text()


def test_the_practice_model_replaces_a_real_one_only_after_a_question(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Cancel leaves the active model as it is."""
    set_up_two(tmp_path)
    served = serve()
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/settings/models")
    tab.page.get_by_role("button", name="practice model").click()
    question = tab.page.get_by_role("dialog", name="Use the practice model?")
    expect(question).to_contain_text("instead of large")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_have_count(0)
    assert 'model = "large"' in (tmp_path / "config.toml").read_text()
    expect(tab.page.get_by_text("Active model: large")).to_be_visible()
