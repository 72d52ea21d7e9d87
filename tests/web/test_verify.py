"""`/api/verify`: the data is verified on request, and the result is remembered."""

from __future__ import annotations

from pathlib import Path

from tenax.models import Reply
from tests.support.damage import break_events
from tests.support.served import Page, Served
from tests.support.turns import set_up
from tests.web.test_conversations import answered


def begun(page: Page, words: str) -> str:
    name = page.new()
    page.say(name, words)
    answered(page, name)
    return name


def test_a_result_is_remembered_over_a_restart_and_damage_is_found(
    tmp_path: Path,
) -> None:
    """The owner verifies everything, another user the own conversations."""
    set_up(tmp_path, [Reply("Done.")])
    with Served(tmp_path) as served:
        page = served.browser()
        berta = served.browser(served.tenax("link", "--user", "berta").stdout.strip())
        assert page.get("/verify") == {"last": None, "running": False}
        name = begun(page, "Hello")
        begun(berta, "Hers")
        found = page.post("/verify")
        assert (found["ok"], found["problems"]) == (True, [])
        assert found["conversations"] == 2
        assert found["events"] > 4
        hers = berta.post("/verify")
        assert (hers["ok"], hers["conversations"]) == (True, 1)
        assert page.get("/verify")["last"] == found
        assert berta.get("/verify")["last"] == hers
        served.stop()
        break_events(f"sqlite:///{tmp_path}/tenax.db", name, "message.user")
        served.start()
        assert page.get("/verify")["last"] == found
        found = page.post("/verify")
        assert found["ok"] is False
        assert name in found["problems"][0]
        assert page.get("/verify")["last"] == found
        assert berta.post("/verify")["ok"] is True


def test_presets_are_offered_to_the_owner(shared: Served, page: Page) -> None:
    """Addresses to choose from; nobody is asked for them."""
    presets = {preset["id"]: preset for preset in page.get("/setup")["presets"]}
    assert len(presets) == 10
    assert presets["gemini"]["url"].startswith("https://generativelanguage.")
    assert presets["ollama"]["keys"] == ""
    assert all(preset["url"].startswith("http") for preset in presets.values())
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    assert berta.get("/setup")["presets"] == []


def test_the_owner_sees_what_is_wrong_and_what_solves_it(
    shared: Served, page: Page
) -> None:
    """The servers of models are asked only on request; other users see nothing."""
    found = page.get("/findings")
    assert found["models"] == []
    assert found["engine"].startswith("SQLite ")
    commands = [issue["command"] for issue in found["issues"]]
    assert any(command.endswith("tenax backup") for command in commands)
    assert page.get("/findings", models="true")["owed"]["failed"] == 0
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    refused = berta.http.get("/api/findings")
    assert refused.status_code == 409
    assert "Only the owner" in refused.text
