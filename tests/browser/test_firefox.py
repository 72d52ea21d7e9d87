"""The core journeys in Debian's Firefox. tests/support/firefox.py says how it is driven."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Playwright

from tenax.models import Reply, ScriptedCall
from tests.support.browser import AnyBrowser, Pace, Serve, Window, expect
from tests.support.firefox import launched_firefox

ANSWER = " ".join(f"word{n:03}" for n in range(90))
SLOW = Reply(ANSWER, pause=0.05)
WRITE = ScriptedCall("write_file", {"path": "hello.txt", "content": "hi\n"})

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def firefox(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AnyBrowser]:
    with launched_firefox(playwright, tmp_path_factory.mktemp("firefox")) as firefox:
        yield firefox


@pytest.fixture
def window(firefox: AnyBrowser) -> Iterator[Window]:
    """A new person's Firefox. It fails the test at the end if something went wrong in it."""
    with firefox.window() as window:
        yield window


def test_an_answer_streams_and_a_reload_continues_it(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """A link signs the person in. Each text that was shown is a beginning of the answer."""
    pace = Pace(tmp_path, 1)
    tab = window.enter(serve(SLOW, env=pace.env))
    expect(tab.box).to_be_visible()
    tab.say("Count.")
    for count in range(1, 6):
        pace.say(count)
        tab.shows(f"word{count - 1:03}")
    pace.say(30)
    tab.shows("word020")
    before = tab.seen
    assert len(before) >= 5, "it did not stream"
    tab.page.reload()
    pace.say()
    tab.answered(ANSWER, count=1)
    for text in [*before, *tab.seen]:
        assert ANSWER.startswith(text)
    assert len(tab.seen[0]) >= len(before[-1])
    assert tab.texts("user") == ["Count."]


def test_an_answer_can_be_stopped(serve: Serve, window: Window, tmp_path: Path) -> None:
    """What was shown stays, and the next message is answered."""
    pace = Pace(tmp_path, 20)
    tab = window.enter(serve(SLOW, "On we go.", env=pace.env))
    tab.say("Count.")
    tab.shows("word005")
    tab.button("Stop").click()
    expect(tab.rows("marker", "stopped")).to_have_text(re.compile("^Stopped."))
    kept = tab.texts("assistant")[0]
    assert ANSWER.startswith(kept)
    assert kept.startswith(tab.seen[-1])
    pace.say()
    tab.say("Go on.")
    tab.answered("On we go.")


@pytest.mark.parametrize(("key", "state"), [("1", "done"), ("3", "denied")])
def test_a_key_answers_an_approval(
    serve: Serve, window: Window, key: str, state: str
) -> None:
    """The card takes the focus, and the composer gets it back."""
    tab = window.enter(serve(Reply(calls=[WRITE]), "Done."))
    tab.say("Write it")
    expect(tab.button("Allow once")).to_be_visible()
    expect(tab.button("Allow once")).not_to_have_attribute("aria-disabled", "true")
    expect(tab.page.get_by_role("region", name="Approval needed")).to_be_focused()
    tab.page.keyboard.press(key)
    tab.answered("Done.")
    expect(tab.rows("tool", state)).to_have_count(1)
    expect(tab.box).to_be_focused()


def test_an_answer_continues_after_a_kill_in_two_tabs(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """`kill -9` of the server in the middle of an answer: both tabs say so, and every word that was shown stays."""
    pace = Pace(tmp_path, 30)
    served = serve(SLOW, env=pace.env)
    tabs = [window.enter(served)]
    tabs[0].say("Count.")
    tabs.append(window.tab(f"{served.url}/c/{tabs[0].conversation}"))
    for tab in tabs:
        tab.shows("word020")
    shown = [tab.seen[-1] for tab in tabs]
    served.kill_server()
    pace.say()
    for tab, before in zip(tabs, shown, strict=True):
        tab.hears("Reconnected.")
        expect(tab.rows("marker", "resumed")).to_have_count(1)
        tab.answered(ANSWER)
        assert tab.texts("assistant")[0].startswith(before)


def test_two_tabs_show_the_same_conversation(serve: Serve, window: Window) -> None:
    served = serve("First answer.", "Second answer.")
    first = window.enter(served)
    first.say("One")
    first.answered("First answer.")
    second = window.tab(f"{served.url}/c/{first.conversation}")
    second.answered("First answer.")
    second.say("Two")
    for tab in (first, second):
        tab.answered("Second answer.", count=2)
        assert tab.texts("user") == ["One", "Two"]


def test_a_theme_holds_in_every_tab_and_after_a_reload(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    other = window.tab(f"{served.url}/settings/appearance")
    for name, theme, colour in (
        ("Dark", "dark", "rgb(28, 28, 31)"),
        ("Light", "light", "rgb(255, 255, 255)"),
    ):
        other.page.get_by_role("radio", name=name).check()
        for page in (tab.page, other.page):
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            expect(page.locator("body")).to_have_css("background-color", colour)
    tab.page.reload()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "light")
