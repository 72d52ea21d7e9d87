"""`tenax list`: what a person and a program see of the conversations."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

import tenax
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.cli.lines import fit, short_time
from tenax.clock import rfc3339
from tenax.events import (
    ConversationArchived,
    ConversationCleared,
    ConversationOpened,
    ConversationPinned,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageUser,
    RunStarted,
)
from tenax.journal import Journal
from tenax.parts import Text
from tenax.testing import SimClock
from tenax.text import to_one_line

pytestmark = pytest.mark.usefixtures("home")

Begin = Callable[..., str]


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def journal(home: Path, clock: SimClock) -> Iterator[Journal]:
    with tenax.open(f"sqlite:///{home}/tenax.db", clock=clock) as journal:
        yield journal


@pytest.fixture
def begin(journal: Journal, clock: SimClock) -> Begin:
    """A new conversation, a minute after the last, with these events in it."""

    def begin(name: str, *events: Event, run: str | None = None) -> str:
        clock.advance(60)
        journal.append(
            name, [ConversationOpened("local", f"s_{name}"), *events], run=run
        )
        return name

    return begin


def said(text: str) -> MessageUser:
    return MessageUser([Text(text)])


def test_nothing_is_said_kindly_and_nothing_is_made(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a new machine there is no store, and looking makes none."""
    assert run(command, ["list"]) == 0
    assert capsys.readouterr() == ("", "No conversations yet.\n")
    assert run(command, ["list", "--json"]) == 0
    assert capsys.readouterr() == ("[]\n", "")
    assert list(home.iterdir()) == []


def test_pinned_first_then_newest_first(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a conversation: id, title or first words, messages, when, and what is special about it."""
    begin(
        "c_1",
        ConversationTitled("Oldest"),
        ConversationPinned(pinned=True),
        said("a"),
        said("b"),
    )
    begin("c_2", said("what is\na fence?"), RunStarted(), run="r_1")
    begin("c_3", MessageAssistant([Text("Hello!")]))
    begin("c_4")
    assert run(command, ["list"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["c_1", "c_4", "c_3", "c_2"]
    assert [" ".join(line[1].split()[:-3]) for line in lines[:1]] == ["Oldest"]
    assert lines[0][1].endswith("pinned")
    assert lines[1][1].startswith("(no messages yet)")
    assert lines[2][1].startswith("Hello!")
    assert lines[3][1].startswith("what is a fence?")
    assert lines[3][1].endswith("running")


def test_archived_ones_are_shown_when_asked_for(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their place among the others."""
    begin("c_1", said("one"), ConversationArchived(archived=True))
    assert run(command, ["list"]) == 0
    assert capsys.readouterr() == (
        "",
        "All conversations are archived. --all lists them.\n",
    )
    begin("c_2", said("two"))
    begin(
        "c_3",
        said("three"),
        ConversationArchived(archived=True),
        ConversationPinned(pinned=True),
    )
    assert run(command, ["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["c_2"]
    assert run(command, ["list", "--all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["c_3", "c_2", "c_1"]
    assert shown[0].endswith("pinned archived")


def test_a_limit_is_kept_and_told(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was left out is told on stderr, so that a program reads only conversations."""
    for n in range(5):
        begin(f"c_{n}", said("x"))
    assert run(command, ["list", "--limit", "3"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err == "These are the first 3. --limit shows more.\n"
    assert run(command, ["list", "--limit", "1000000"]) == 0
    assert run(command, ["list", "--limit", "9" * 30]) == 2
    assert "is not in the range" in capsys.readouterr().err
    assert run(command, ["list", "-n", "5"]) == 0
    assert capsys.readouterr().err == ""
    assert run(command, ["list", "-n", "0"]) == 2


def test_a_long_list_takes_no_longer_for_each_than_a_short_one(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its columns are measured once: a thousand conversations are a second's work, not ten."""
    for n in range(1000):
        begin(f"c_{n:036}", ConversationTitled(f"The talk that has the number {n}"))
    began = time.process_time()
    assert run(command, ["list", "-n", "1000"]) == 0
    assert time.process_time() - began < 4
    assert len(capsys.readouterr().out.splitlines()) == 1000


def test_json_is_for_programs(
    begin: Begin, clock: SimClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole and in UTC."""
    begin("c_1", ConversationTitled("A\ttitle"), said("x"))
    begin("c_2", said("first words"))
    assert run(command, ["list", "--json"]) == 0
    two, one = msgspec.json.decode(capsys.readouterr().out)
    assert (one["id"], one["title"], one["words"], one["messages"]) == (
        "c_1",
        "A\ttitle",
        None,
        1,
    )
    assert (two["title"], two["words"]) == (None, "first words")
    assert two["updated_at"] == rfc3339(clock.now_us())
    assert {"pinned": False, "archived": False, "running": False}.items() <= two.items()


def test_words_that_were_cleared_are_not_shown(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last words that stand are."""
    begin(
        "c_1",
        *[said(f"gone {n}") for n in range(70)],
        ConversationCleared(),
        said("still here"),
    )
    begin("c_2", said("gone"), ConversationCleared())
    assert run(command, ["list"]) == 0
    out = capsys.readouterr().out
    assert "still here" in out
    assert "gone" not in out


def test_a_title_cannot_give_orders_to_a_terminal(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """What does not print is shown as that."""
    begin("c_1", ConversationTitled("red \x1b[31m and\nlines \u202e"))
    assert run(command, ["list"]) == 0
    assert "red \ufffd[31m and lines \ufffd" in capsys.readouterr().out


def test_an_old_habit_finds_it(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tenax sessions` is `tenax list`."""
    begin("c_1", said("x"))
    assert run(command, ["sessions"]) == 0
    assert capsys.readouterr().out.startswith("c_1 ")


@pytest.mark.parametrize(("columns", "lines"), [(120, 1), (70, 1), (34, 3)])
def test_it_fits_the_terminal(
    begin: Begin, home: Path, columns: int, lines: int
) -> None:
    """On a narrow one a conversation takes three lines; no title is longer than the terminal is wide."""
    begin(
        "c_" + "1" * 24,
        ConversationTitled("きょうは" * 30),
        ConversationPinned(pinned=True),
    )
    shown = on_a_terminal(["list"], columns)
    assert len(shown) == lines
    assert max(map(cell_len, shown)) <= columns


def on_a_terminal(arguments: list[str], columns: int) -> list[str]:
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(columns),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    call: list[Any] = [sys.executable, "-m", "tenax", *arguments]
    with subprocess.Popen(call, stdout=theirs, env=environment) as process:
        os.close(theirs)
        read = b""
        while chunk := _read(ours):
            read += chunk
        assert process.wait() == 0
    os.close(ours)
    return read.decode().splitlines()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


def test_times_are_as_people_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today the hour, this year the day, before that the date."""

    def us(*when: int) -> int:
        return int(datetime(*when, tzinfo=UTC).astimezone().timestamp()) * 1_000_000  # type: ignore[arg-type]

    now = us(2026, 11, 15, 12)
    assert (
        short_time(now, now)
        == f"{datetime(2026, 11, 15, 12, tzinfo=UTC).astimezone():%H:%M}"
    )
    assert short_time(us(2026, 11, 3, 12), now) == "3 Nov"
    assert short_time(us(2024, 11, 3, 12), now) == "2024-11-03"
    assert rfc3339(us(2024, 11, 3, 12) + 5) == "2024-11-03T12:00:00.000005Z"


def test_a_line_is_cut_by_what_it_takes_on_the_screen() -> None:
    """Wide characters take two columns, accents none."""
    assert fit("abcdef", 6) == "abcdef"
    assert fit("abcdefg", 6) == "abcde…"
    assert fit("日本語日本語", 6) == "日本…"
    assert fit("e\u0301", 1) == "e\u0301"
    assert fit("\U0001f44d\U0001f3fd ok", 5) == "\U0001f44d\U0001f3fd ok"
    assert fit("abc", 0) == "…"
    assert to_one_line("  a \n\t b  ") == "a b"
