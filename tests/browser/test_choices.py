"""Model, mode and project of a conversation, chosen in the composer and stored with the conversation."""

from __future__ import annotations

from pathlib import Path

from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.browser.test_models import MODELS, pick, set_up_two
from tests.support.browser import Serve, Tab, Window, client, expect

WRITE = ScriptedCall("write_file", {"path": "note.txt", "content": "held"})


def choose_mode(tab: Tab, name: str) -> None:
    tab.page.get_by_role("button", name="Mode: ").click()
    tab.page.get_by_role("menuitem", name=name).click()
    expect(tab.page.get_by_role("button", name=f"Mode: {name}")).to_be_visible()


def test_a_mode_is_chosen_before_the_first_message_and_kept(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """With accepted edits nothing asks; other tabs and a reload show the mode; plan only changes nothing."""
    served = serve(Reply(calls=[WRITE]), "Written.", Reply(calls=[WRITE]), "A plan.")
    tab = window.enter(served)
    tab.page.get_by_role("button", name="Mode: Ask").click()
    nothing_is_wrong(tab, "modes")
    tab.page.keyboard.press("Escape")
    choose_mode(tab, "Accept edits")
    tab.say("Write it down")
    tab.answered("Written.")
    assert (tmp_path / "work" / "note.txt").read_text() == "held"
    other = window.tab(tab.page.url)
    expect(other.page.get_by_role("button", name="Mode: Accept edits")).to_be_visible()
    choose_mode(other, "Plan only")
    expect(tab.page.get_by_role("button", name="Mode: Plan only")).to_be_visible()
    (tmp_path / "work" / "note.txt").unlink()
    tab.say("Again")
    tab.answered("A plan.")
    assert not (tmp_path / "work" / "note.txt").exists()
    tab.page.reload()
    expect(tab.page.get_by_role("button", name="Mode: Plan only")).to_be_visible()


def test_an_answer_is_given_again_by_another_model(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The other model stays the model of this conversation, and both versions of the answer stay."""
    set_up_two(tmp_path)
    served = serve()
    tab = window.enter(served)
    tab.say("Who is it?")
    tab.answered(MODELS["large"])
    tab.button("Retry with another model").click()
    tab.page.get_by_role("menuitem", name="small").click()
    tab.answered(MODELS["small"])
    expect(tab.page.get_by_text("2/2")).to_be_visible()
    header = tab.page.locator("header")
    expect(header.get_by_role("button", name="Model: small")).to_be_visible()
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(header.get_by_role("button", name="Model: large")).to_be_visible()
    pick(tab, "small")
    tab.say("And here?")
    tab.answered(MODELS["small"])


def test_a_project_gives_its_folder_to_a_new_conversation(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The tools work in the folder of the project, and the panel shows it."""
    served = serve(Reply(calls=[WRITE]), "Written.")
    folder = tmp_path / "work" / "garden"
    folder.mkdir(parents=True)
    garden = {"name": "Garden", "folder": str(folder)}
    key = {"Idempotency-Key": "garden"}
    client(served).http.post("/api/projects", json=garden, headers=key)
    tab = window.enter(served)
    tab.page.get_by_role("button", name="Project: No project").click()
    tab.page.get_by_role("menuitem", name="Garden").click()
    choose_mode(tab, "Accept edits")
    tab.say("Write it down")
    tab.answered("Written.")
    assert (folder / "note.txt").read_text() == "held"
    tab.button("Files").click()
    panel = tab.page.get_by_role("complementary", name="Files")
    expect(panel.get_by_role("button", name="note.txt")).to_be_visible()
    expect(panel.get_by_role("button", name="Project: Garden")).to_be_visible()
