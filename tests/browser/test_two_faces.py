"""A browser and a terminal on one conversation: each sees what the other does, as it is done, and nothing is done twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenax.models import Reply, ScriptedCall
from tests.cli.test_talk import Terminal
from tests.support.browser import SECONDS, Pace, Serve, Window, expect
from tests.support.served import Served

WRITE = ScriptedCall("write_file", {"path": "note.txt", "content": "held"})
Open = Callable[[Served, str], Terminal]
ASKING = (Reply("May I?", calls=[WRITE]), Reply("Thank you."))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """`tenax -c ID` in a terminal, beside a server."""
    opened: list[Terminal] = []

    def start(served: Served, conversation: str) -> Terminal:
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        opened.append(Terminal("-c", conversation))
        opened[-1].until("script")
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_what_a_command_says_is_on_the_page_as_it_is_said(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """`tenax -p` in another process: its words and the answer stream in."""
    answer = " ".join(f"word{n:02}" for n in range(40))
    pace = Pace(tmp_path, 1)
    served = serve("Yes.", Reply(answer, pause=0.04), env=pace.env)
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    command = [
        sys.executable,
        "-m",
        "tenax",
        "-p",
        "From a terminal",
        "-c",
        tab.conversation,
    ]
    with subprocess.Popen(
        command, env=served.env, stdout=subprocess.PIPE, text=True
    ) as asked:
        for n in range(15):  # each word is on the page before the next is said
            pace.say(n + 1)
            tab.shows(f"word{n:02}")
        pace.say()
        said, _ = asked.communicate(timeout=SECONDS)
    assert (asked.returncode, said.strip()) == (0, answer)
    tab.answered(answer, count=2)
    assert tab.texts("user") == ["Hello", "From a terminal"]
    grown = [each for each in tab.seen if "|" in each]
    assert len(grown) > 10, "it did not stream"
    assert all(f"Yes.|{answer}".startswith(each) for each in grown)


def test_a_question_on_the_page_is_answered_in_the_terminal(
    serve: Serve, window: Window, terminal: Open
) -> None:
    """Once: the card on the page is settled, and the file is written."""
    served = serve(*ASKING)
    tab = window.enter(served)
    tab.say("Write it down")
    expect(tab.rows("tool", "asks")).to_contain_text("note.txt")
    talk = terminal(served, tab.conversation)
    talk.until("Allow write_file note.txt?")
    talk.send("y")
    expect(tab.rows("tool", "done")).to_contain_text("Wrote note.txt")
    tab.answered("Thank you.")
    assert tab.rows("tool").count() == 1
    expect(tab.button("Allow once")).to_have_count(0)
    assert (served.home / "work" / "note.txt").read_text() == "held"


def test_a_question_in_the_terminal_is_answered_on_the_page(
    serve: Serve, window: Window, terminal: Open
) -> None:
    """And who answers it a second time, in the terminal, is told plainly."""
    served = serve("Yes.", *ASKING)
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    talk = terminal(served, tab.conversation)
    talk.send("write it down")
    talk.until("Allow write_file note.txt?")
    tab.button("Allow once").click()
    talk.until("Thank you.")
    tab.answered("Thank you.")
    assert tab.rows("tool").count() == 1
    assert (served.home / "work" / "note.txt").read_text() == "held"
    assert tab.texts("user") == ["Hello", "write it down"]


def test_two_tabs_answer_a_question_and_one_of_them_is_heard(
    serve: Serve, window: Window
) -> None:
    """The other one's card goes."""
    served = serve(*ASKING)
    tab = window.enter(served)
    tab.say("Write it down")
    other = window.tab(f"{served.url}/c/{tab.conversation}")
    expect(other.button("Deny")).to_be_visible()
    tab.button("Allow once").click()
    expect(other.button("Deny")).to_have_count(0)
    for each in (tab, other):
        each.answered("Thank you.")
        assert each.rows("tool", "done").count() == 1
