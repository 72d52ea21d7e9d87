"""Keys of the page: Esc stops, Up edits the last message, / searches, ? lists the shortcuts."""

from __future__ import annotations

from pathlib import Path

from tenax.models import Reply
from tests.support.browser import Pace, Serve, Window, expect


def test_escape_stops_the_answer(serve: Serve, window: Window, tmp_path: Path) -> None:
    slow = " ".join(f"word{n:03}" for n in range(60))
    tab = window.enter(serve(Reply(slow, pause=0.05), env=Pace(tmp_path, 20).env))
    tab.say("First")
    tab.shows("word005")
    tab.box.press("Escape")
    expect(tab.rows("marker", "stopped")).to_be_visible()


def test_up_edits_the_last_message(serve: Serve, window: Window) -> None:
    """Only in an empty composer. Esc goes back to the composer."""
    tab = window.enter(serve("One."))
    tab.say("First")
    tab.answered("One.")
    tab.box.fill("half a line")
    expect(tab.button("Send")).to_be_visible()  # the answer has ended
    tab.box.press("ArrowUp")
    expect(tab.page.get_by_label("Edited message")).to_have_count(0)
    tab.box.fill("")
    tab.box.press("ArrowUp")
    box = tab.page.get_by_label("Edited message")
    expect(box).to_be_focused()
    box.press("Escape")
    expect(tab.box).to_be_focused()
    tab.box.press("ArrowUp")
    box.fill("Better")
    box.press("Enter")
    expect(tab.rows("user").locator(".versions")).to_have_text("2/2")
    tab.answered("One.", count=1)
    expect(tab.box).to_be_focused()


def test_a_question_mark_lists_the_shortcuts(serve: Serve, window: Window) -> None:
    """Not while somebody types."""
    tab = window.enter(serve("One."))
    tab.box.press("?")
    expect(tab.box).to_have_value("?")
    tab.box.press("Escape")
    tab.page.keyboard.press("?")
    shortcuts = tab.page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(shortcuts).to_contain_text("edit your last message")
    expect(shortcuts).to_contain_text("commands, conversations and settings")
    tab.page.keyboard.press("Escape")
    expect(shortcuts).to_have_count(0)


def test_a_slash_goes_to_the_search(serve: Serve, window: Window) -> None:
    """Not while somebody types, and also if the sidebar is hidden."""
    tab = window.enter(serve("One."))
    tab.box.press("Escape")
    tab.button("Hide the sidebar").click()
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("/")
    search = tab.page.get_by_label("Search all conversations")
    expect(search).to_be_focused()
    expect(search).to_have_value("")
    search.press("/")
    expect(search).to_have_value("/")
