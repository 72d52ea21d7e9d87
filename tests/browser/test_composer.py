"""The composer offers commands after / and files after @."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator

from tenax.models import Reply
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Pace, Serve, Tab, Window, expect


def options(tab: Tab) -> Locator:
    return tab.page.get_by_role("listbox").get_by_role("option")


def test_a_slash_offers_commands(serve: Serve, window: Window) -> None:
    """Only those that are possible now. Enter runs the chosen one, and the composer is empty again."""
    tab = window.enter(serve("Yes."))
    tab.box.fill("/")
    expect(options(tab).filter(has_text="/new")).to_be_visible()
    expect(options(tab).filter(has_text="/undo")).to_have_count(0)
    tab.say("Hello")
    tab.answered("Yes.")
    tab.box.fill("/")
    expect(options(tab).filter(has_text="/undo")).to_be_visible()
    nothing_is_wrong(tab, "commands in the composer")
    tab.box.fill("/u")
    expect(options(tab)).to_have_count(1)
    tab.box.press("Enter")
    expect(tab.rows("user")).to_have_count(0)
    expect(tab.box).to_have_value("")
    tab.box.fill("/he")
    tab.box.press("Tab")
    expect(tab.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_a_text_that_only_begins_like_a_command_is_sent(
    serve: Serve, window: Window
) -> None:
    """Escape closes the list, and a path is no command."""
    tab = window.enter(serve("Yes."))
    tab.say("/etc/hosts")
    tab.answered("Yes.")
    tab.box.fill("/new")
    expect(options(tab)).to_have_count(1)
    tab.box.press("Escape")
    expect(options(tab)).to_have_count(0)
    tab.box.press("Enter")
    expect(tab.rows("user", "")).to_have_count(2)
    assert tab.texts("user") == ["/etc/hosts", "/new"]


def test_escape_closes_only_the_list(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The answer goes on; the second Escape stops it."""
    slow = " ".join(f"word{n:03}" for n in range(60))
    tab = window.enter(serve(Reply(slow, pause=0.05), env=Pace(tmp_path, 20).env))
    tab.say("First")
    tab.shows("word005")
    tab.box.fill("/")
    expect(options(tab).first).to_be_visible()
    tab.box.press("Escape")
    expect(options(tab)).to_have_count(0)
    expect(tab.rows("assistant", "streaming")).to_have_count(1)
    tab.box.press("Escape")
    expect(tab.rows("marker", "stopped")).to_be_visible()


def test_an_at_sign_names_files(serve: Serve, window: Window, tmp_path: Path) -> None:
    """Arrows choose, Enter inserts the path. Nothing is offered inside an e-mail address."""
    served = serve("Yes.")
    folder = tmp_path / "work"
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    (folder / "notes" / "garden plan.md").write_text("Beans")
    (folder / "notes" / "garden.csv").write_text("1")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    tab.box.press_sequentially("Read @gard")
    expect(options(tab)).to_have_count(2)
    second = options(tab).nth(1)
    name = second.inner_text()
    tab.box.press("ArrowDown")
    expect(second).to_have_attribute("aria-selected", "true")
    tab.box.press("Enter")
    expect(tab.box).to_have_value(f"Read `{name}` ")
    expect(options(tab)).to_have_count(0)
    tab.box.press_sequentially("and me@gard")
    expect(options(tab)).to_have_count(0)
