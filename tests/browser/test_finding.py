"""Finding a message in a long conversation: the find bar, the outline, the days, and the printed page."""

from __future__ import annotations

import re
from pathlib import Path

import tenax
from tenax.clock import SystemClock
from tenax.events import (
    Event,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
)
from tenax.journal import LOCAL_USER
from tenax.parts import Text
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.contract.engine.base import begin
from tests.support.browser import Serve, Tab, Window, expect
from tests.support.served import Served
from tests.support.turns import new_conversation

TURNS = 120


def talk(home: Path) -> str:
    """A conversation of several pages. Every fortieth answer has the word "needle"."""
    url = f"sqlite:///{home / 'tenax.db'}"
    name = new_conversation(url)
    with tenax.open(url, user=LOCAL_USER) as journal:
        for n in range(TURNS):
            asked = journal.append(
                name, [MessageUser([Text(f"question {n}\nmore")], ask=True)]
            )[0].seq
            words = "a needle here" if n % 40 == 5 else "only hay"
            events: list[Event] = [
                RunStarted([asked]),
                ModelRequested(1, "", "m", 1.0, []),
                MessageAssistant([Text(f"answer {n}: {words}")], asked + 2),
                RunFinished("completed"),
            ]
            journal.append(name, events, run=f"r_{n}")
    return name


def opened(served: Served, window: Window, name: str) -> Tab:
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    tab.shows(f"answer {TURNS - 1}")
    return tab


def test_the_find_bar_finds_messages_that_are_not_loaded(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    name = talk(tmp_path)
    tab = opened(serve("Yes."), window, name)
    tab.page.keyboard.press("Control+Shift+F")
    box = tab.page.get_by_label("Find in conversation")
    box.fill("needle")
    count = tab.page.locator(".find").get_by_role("status")
    expect(count).to_have_text("3 of 3")
    expect(tab.rows("assistant").filter(has_text="answer 85")).to_be_in_viewport()
    nothing_is_wrong(tab, "find")
    box.press("Enter")
    expect(count).to_have_text("1 of 3")
    expect(tab.rows("assistant").filter(has_text="answer 5:")).to_be_in_viewport()
    box.press("Enter")
    expect(count).to_have_text("2 of 3")
    expect(tab.rows("assistant").filter(has_text="answer 45:")).to_be_in_viewport()
    box.press("Shift+Enter")
    expect(tab.rows("assistant").filter(has_text="answer 5:")).to_be_in_viewport()
    assert tab.page.evaluate("CSS.highlights.get('hit').size") == 1
    box.fill("nothing like this")
    expect(count).to_have_text("No results")
    box.press("Escape")
    expect(box).to_have_count(0)


def test_the_outline_goes_to_a_message_of_the_person(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    name = talk(tmp_path)
    tab = opened(serve("Yes."), window, name)
    tab.menu("Outline")
    outline = tab.page.get_by_role("dialog", name="Outline")
    line = re.compile(rf"^question {TURNS - 1}\D")
    expect(outline.get_by_role("button", name=line)).to_be_focused()
    nothing_is_wrong(tab, "outline")
    outline.get_by_role("button", name="Show earlier messages").click()
    outline.get_by_role("button", name=re.compile(r"^question 3\D")).click()
    expect(outline).to_have_count(0)
    row = tab.rows("user").filter(has_text=re.compile(r"question 3\b"))
    expect(row).to_be_in_viewport()


class Yesterday(SystemClock):
    """The clock of a day ago."""

    def now_us(self) -> int:
        return super().now_us() - 86_400_000_000


def test_each_day_has_a_line(serve: Serve, window: Window, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenax.db'}"
    with tenax.open(url, user=LOCAL_USER, clock=Yesterday()) as journal:
        name = begin(journal, MessageUser([Text("Hello")], ask=False))
    served = serve("Yes.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    expect(tab.page.locator(".day")).to_have_text(["Yesterday"])
    tab.say("Hello again")
    tab.answered("Yes.")
    expect(tab.page.locator(".day")).to_have_text(["Yesterday", "Today"])
    nothing_is_wrong(tab, "days")


def test_all_loaded_rows_are_printed_and_nothing_else(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    name = talk(tmp_path)
    tab = opened(serve("Yes."), window, name)
    loaded = len(tab.read_all())
    assert tab.rows().count() < loaded
    tab.page.emulate_media(media="print")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.rows().count() == loaded
    expect(tab.page.locator(".sidebar")).to_be_hidden()
    expect(tab.page.locator(".composer")).to_be_hidden()
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.page.emulate_media(media="screen")
    expect(tab.page.locator(".gap")).not_to_have_count(0)
