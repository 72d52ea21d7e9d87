"""Every message that was acknowledged is in the page, once, at the place where it was answered."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import tenax
from tenax.events import (
    Event,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
)
from tenax.journal import LOCAL_USER
from tenax.models import Reply, ScriptedCall
from tenax.parts import Text
from tests.support.browser import Pace, Serve, Tab, Window, client, expect
from tests.support.turns import new_conversation

EARLIER = 450
QUEUED = 4
STEPS = 50


def earlier_talk(home: Path) -> str:
    """A conversation with many messages. Every tenth came while the one before it was being answered."""
    url = f"sqlite:///{home / 'tenax.db'}"
    name = new_conversation(url)
    with tenax.open(url, user=LOCAL_USER) as journal:

        def add(*events: Event, run: str | None = None) -> int:
            return journal.append(name, events, run=run)[0].seq

        def say(number: int) -> int:
            return add(MessageUser([Text(f"message {number}")], ask=True))

        stored = 0
        for n in range(EARLIER):
            stored = stored if n % 10 == 9 else say(n)
            run = f"r_{n}"
            add(RunStarted([stored]), run=run)
            request = add(ModelRequested(1, "", "m", 1.0, []), run=run)
            stored = say(n + 1) if n % 10 == 8 else 0
            add(
                MessageAssistant([Text(f"answer {n}")], request),
                RunFinished("completed"),
                run=run,
            )
    return name


def messages(tab: Tab) -> list[tuple[str, str]]:
    """The messages of the person and their states, with all pages above loaded."""
    return [(text, state) for kind, text, state in tab.read_all() if kind == "user"]


@pytest.mark.timeout(300)
def test_every_acknowledged_message_is_shown_once_where_it_was_answered(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """455 messages, four of them queued during a run of fifty steps: a reload shows those that wait, later each has its place."""
    name = earlier_talk(tmp_path)
    # The script counts the assistant's messages: the earlier ones have their replies in it too.
    before = [Reply("-")] * EARLIER
    call = ScriptedCall("read_file", {"path": "nothing.txt"})
    first, step = Reply("first " * 10, calls=[call]), Reply("A step.", calls=[call])
    pace = Pace(tmp_path, 5)
    served = serve(
        *before,
        first,
        *[step] * (STEPS - 2),
        Reply("last " * 20),
        "An answer.",
        env=pace.env,
    )
    page = client(served)
    page.say(name, f"message {EARLIER}")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    tab.shows("first first")
    for n in range(1, QUEUED + 1):
        page.say(name, f"message {EARLIER + n}")
    pace.say(15)
    tab.shows("last last")
    expected = [f"message {n}" for n in range(EARLIER + QUEUED + 1)]

    # the last rows are all of the run; what waits was stored far above them
    tab.page.reload()
    expect(tab.rows("user", "queued")).to_have_count(QUEUED)
    assert [text for text, _ in messages(tab)] == expected
    pace.say()
    expect(tab.rows("assistant").filter(has_text="An answer.")).to_have_count(QUEUED)
    expect(tab.rows("user", "queued")).to_have_count(0)
    assert messages(tab) == [(text, "") for text in expected]
    tab.page.reload()
    expect(tab.rows("assistant").filter(has_text="An answer.")).to_have_count(QUEUED)
    assert messages(tab) == [(text, "") for text in expected]
    kinds = [kind for kind, _, _ in tab.read_all()]
    assert ("user", "user") not in pairwise(kinds), (
        "each message stands above its answer"
    )
