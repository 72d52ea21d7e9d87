"""Two processes on one conversation: queueing, taking over, hanging, and output that comes late."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import tenax
from tenax.assembly import Runtime
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolLate,
    ToolStarted,
)
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.verify.store import verify
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel
from tests.crash.test_restart import until_free
from tests.support.children import Child, Teller, finish_all
from tests.support.runs import Hands, Note, brief, config_of, lines
from tests.support.turns import (
    approve,
    ask,
    limited,
    new_conversation,
    park,
    rows_of,
    set_up,
    wait_for,
)

pytestmark = pytest.mark.crash

SLOW = "and so it went on and on until somebody came along " * 4
ENDLESS = Reply(words=SLOW, pause=0.1, hang=True)
"""An answer that is still under way when somebody kills its process or takes it over, however late that comes."""


@pytest.fixture
def journal(store_url: str) -> Iterator[Journal]:
    """The test's own look at the store."""
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        yield journal
        assert verify(journal).problems == []


def outcomes(journal: Journal, name: str) -> list[str]:
    events = [event.event for event in journal.read(name, limit=10_000)]
    return [event.outcome for event in events if isinstance(event, RunFinished)]


def said(home: Path, out: str) -> str:
    return (home / out).read_text()


def test_a_queued_message_of_another_process_is_answered_and_each_prints_its_own_answer(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """One run at a time: the second waits behind the first; nobody's answer is printed by the other."""
    set_up(
        tmp_path,
        [
            Reply(words="the first of two", pause=0.1),
            Reply(words="the second", pause=0.02),
        ],
    )
    name = new_conversation(store_url)
    first = Child(
        ask, store_url, str(tmp_path), ["-p", "one", "-c", name], "", 1, "a.txt"
    )
    wait_for(journal, name, "reply.delta")
    second = Child(
        ask, store_url, str(tmp_path), ["-p", "two", "-c", name], "", 1, "b.txt"
    )
    assert (first.finish(), second.finish()) == (0, 0)
    assert said(tmp_path, "a.txt") == "the first of two\n"
    assert said(tmp_path, "b.txt") == "the second\n"
    rows = rows_of(journal.read(name, limit=1000)).rows
    assert [row.text for row in rows] == [
        "one",
        "the first of two",
        "two",
        "the second",
    ]


def test_a_queued_message_is_answered_by_the_one_that_lives(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """The process that was busy is killed; the one that waits repairs its run and answers its own message."""
    set_up(tmp_path, [ENDLESS, Reply(words="here")])
    name = new_conversation(store_url)
    first = Child(
        ask, store_url, str(tmp_path), ["-p", "one", "-c", name], "", 1, "a.txt"
    )
    wait_for(journal, name, "reply.delta")
    second = Child(
        ask, store_url, str(tmp_path), ["-p", "two", "-c", name], "", 1, "b.txt"
    )
    wait_for(journal, name, "message.user", 2)
    first.kill()
    assert (first.finish(), second.finish()) == (-9, 0)
    assert said(tmp_path, "b.txt") == "here\n"
    assert outcomes(journal, name) == ["interrupted", "completed"]
    rows = rows_of(journal.read(name, limit=1000)).rows
    assert [row.kind for row in rows] == [
        "user",
        "assistant",
        "marker",
        "user",
        "assistant",
    ]
    assert rows[1].text.startswith(said(tmp_path, "a.txt").strip("\n"))


def test_a_process_that_waits_and_is_stopped_leaves_the_other_alone(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """Ctrl-C in the one that waits: its message stays, and the run of the other goes on and answers both."""
    set_up(
        tmp_path,
        [Reply(words="the first of two", pause=0.4), Reply(words="the second")],
    )
    name = new_conversation(store_url)
    first = Child(
        ask, store_url, str(tmp_path), ["-p", "one", "-c", name], "", 1, "a.txt"
    )
    wait_for(journal, name, "reply.delta")
    assert first.process.pid is not None
    # its run is under way until the other has ended
    stop_at_rest(first.process.pid, journal, store_url)
    second = Child(
        ask, store_url, str(tmp_path), ["-p", "two", "-c", name], "", 1, "b.txt"
    )
    wait_for(journal, name, "message.user", 2)
    while "conversation" not in said(tmp_path, "b.txt.err"):  # from then on it waits
        time.sleep(0.01)
    assert second.process.pid is not None
    os.kill(second.process.pid, signal.SIGINT)
    assert second.finish() == 130
    os.kill(first.process.pid, signal.SIGCONT)
    assert first.finish() == 0
    assert said(tmp_path, "a.txt") == "the first of two\n"
    assert outcomes(journal, name) == ["completed", "completed"]


def test_an_approval_is_answered_from_another_process_and_exactly_one_goes_on(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """The process that asked is gone. Three answer at once: the call is made once."""
    set_up(
        tmp_path,
        [Reply(calls=[ScriptedCall("note", {"text": "x"})]), Reply(words="done")],
    )
    name = new_conversation(store_url)
    assert Child(park, store_url, str(tmp_path), name).finish() == 0
    asked = wait_for(journal, name, "approval.asked").event
    assert isinstance(asked, ApprovalAsked)
    answers = [
        Child(approve, store_url, str(tmp_path), name, asked.message, asked.call)
        for _ in range(3)
    ]
    assert finish_all(answers) == [0] * 3
    assert len(lines(tmp_path / "notes.txt")) == 1
    events = [event.event for event in journal.read(name, limit=1000)]
    assert sum(isinstance(event, ApprovalAnswered) for event in events) == 1
    assert sum(isinstance(event, ToolStarted) for event in events) == 1
    assert outcomes(journal, name) == ["completed"]


def test_taking_over_ends_the_other_with_a_line_and_keeps_what_it_wrote(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """It ends with exit code 1; its text stands with its own run, above its marker."""
    set_up(tmp_path, [ENDLESS, Reply(words="mine now")])
    name = new_conversation(store_url)
    env = {**os.environ, "TENAX_HOME": str(tmp_path), "TENAX_STORE": store_url}
    args = [sys.executable, "-m", "tenax", "-p", "one", "-c", name]
    first = subprocess.Popen(
        args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(journal, name, "reply.delta", 3)
    taker = ["-p", "two", "-c", name, "--how", "take over"]
    second = Child(ask, store_url, str(tmp_path), taker, "", 1, "b.txt")
    assert second.finish() == 0
    out, err = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "tenax: Somebody else took over.\n" in err
    assert "Traceback" not in err
    assert said(tmp_path, "b.txt") == "mine now\n"
    rows = rows_of(journal.read(name, limit=1000)).rows
    kinds = [row.kind for row in rows]
    assert kinds[0] == "user"
    at = kinds.index("marker")
    assert set(kinds[1:at]) == {"assistant"}
    written = "".join(row.text for row in rows[1:at])
    assert {row.run for row in rows[1 : at + 1]} == {rows[1].run}
    assert SLOW.startswith(written), brief(rows)
    assert written.startswith(out.strip("\n"))
    assert [row.text for row in rows[at + 1 :]] == ["two", "mine now"]
    assert outcomes(journal, name) == ["interrupted", "completed"]


def note_late(_: Teller, url: str, home: str, conversation: str) -> None:
    """Ask with a tool that comes back once there is a file `taken`."""

    async def taken() -> None:
        while not (Path(home) / "taken").exists():  # noqa: ASYNC110  (it is another process that makes it)
            await asyncio.sleep(0.01)

    async def work() -> None:
        note = Note(Path(home) / "notes.txt", wait=taken)
        models = [ScriptedModel(Script.read(Path(home) / "script.json"))]
        async with Hands(config_of(url, Path(home)), models=models).with_tools(
            note
        ) as runtime:
            stored = await runtime.submit(conversation, "one")
            await runtime.finished(conversation, stored.seq)
            await runtime.workers.idle(conversation)

    asyncio.run(work())


def test_the_late_result_of_a_tool_is_kept_and_changes_nothing_that_was_sent(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """The call is made once. Its result stands with its own call, starts no run, and is told with the next request."""
    set_up(
        tmp_path,
        [
            Reply(calls=[ScriptedCall("note", {"text": "milk"})]),
            Reply(words="taken"),
            Reply(words="and next"),
        ],
    )
    name = new_conversation(store_url)
    first = Child(note_late, store_url, str(tmp_path), name)
    wait_for(journal, name, "tool.started")
    second = Child(limited, store_url, str(tmp_path), name, "two", "take over", 60.0)
    assert second.finish() == 0
    (tmp_path / "taken").touch()
    assert first.finish() == 0
    events = [event.event for event in journal.read(name, limit=1000)]
    assert [event.outcome for event in events if isinstance(event, ToolFinished)] == [
        "unknown"
    ]
    assert [event.text for event in events if isinstance(event, ToolLate)] == [
        "noted milk"
    ]
    assert sum(isinstance(event, RunStarted) for event in events) == 2
    assert len(lines(tmp_path / "notes.txt")) == 1
    (tool,) = [
        row
        for row in rows_of(journal.read(name, limit=1000)).rows
        if row.kind == "tool"
    ]
    assert (tool.state, tool.text, tool.late) == ("done", "noted milk", True)
    third = Child(limited, store_url, str(tmp_path), name, "three", "queue", 60.0)
    assert third.finish() == 0
    bodies = requests(store_url, journal, name, tmp_path)
    assert [b"answered after all" in body for body in bodies] == [False, False, True]


def requests(url: str, journal: Journal, name: str, home: Path) -> list[bytes]:
    """What the model was sent, rendered again; each is what the digest of its time says."""

    async def work() -> list[bytes]:
        note = Note(home / "notes.txt")
        runtime: Runtime = Hands(
            config_of(url, home), models=[ScriptedModel([])]
        ).with_tools(note)
        found = []
        for each in journal.read(name, limit=1000):
            if isinstance(event := each.event, ModelRequested):
                found.append(await runtime.seen(name, each.seq))
                assert hashlib.sha256(found[-1]).hexdigest() == event.digest
        await runtime.close()
        return found

    return asyncio.run(work())


def halt(pid: int) -> None:
    """SIGSTOP, and wait until all its threads stand: one that waits for a lock would still get it meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    for path in Path(f"/proc/{pid}/task").iterdir():
        # that thread had just ended
        with suppress(FileNotFoundError, ProcessLookupError):
            while (path / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)


def stop_at_rest(pid: int, journal: Journal, url: str) -> None:
    """SIGSTOP, but not in the middle of a transaction: a server gives up on such a one only after half a minute."""
    with journal.store.transaction():
        halt(pid)
    # SQLite has no such server. A test that never finds the process at rest ends at its own time limit.
    while url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and xact_start is not null and pid <> pg_backend_pid()"
            ).fetchone()
        if row == (0,):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
        halt(pid)


def test_a_hung_process_loses_its_lease_and_learns_it_when_it_wakes_up(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """SIGSTOP: the next message is answered by another once the lease has run out; what wakes up writes nothing more."""
    set_up(tmp_path, [Reply(words=SLOW, pause=0.1), Reply(words="here")])
    name = new_conversation(store_url)
    first = Child(limited, store_url, str(tmp_path), name, "one", "queue", 3.0)
    wait_for(journal, name, "reply.delta", 3)
    pid = first.process.pid
    assert pid is not None
    stop_at_rest(pid, journal, store_url)
    second = Child(limited, store_url, str(tmp_path), name, "two", "queue", 3.0)
    assert second.finish() == 0
    assert outcomes(journal, name) == ["interrupted", "completed"]
    facts = [event.body for event in journal.read(name, limit=1000) if event.digest]
    os.kill(pid, signal.SIGCONT)
    assert first.finish() == 0
    assert first.lines[-1] == ["idle"]
    after = [event for event in journal.read(name, limit=1000) if event.digest]
    assert [each.body for each in after][: len(facts)] == facts
    assert {each.kind for each in after[len(facts) :]} <= {
        "run.late",
        "run.sealed",
        "run.recovered",
    }
    rows = rows_of(after).rows
    assert [row.text for row in rows if row.kind == "user"] == ["one", "two"]
    assert SLOW.startswith(
        "".join(
            row.text
            for row in rows
            if row.run == rows[1].run and row.kind == "assistant"
        )
    )
    assert rows[-1].text == "here"


def test_a_short_question_elsewhere_repairs_an_interrupted_run_and_does_not_use_up_its_attempts(
    store_url: str, journal: Journal, tmp_path: Path
) -> None:
    """Who asks once answers once: what others left is shown as interrupted, and left for a process that stays."""
    set_up(tmp_path, [Reply(words=SLOW, pause=0.1)])
    name = new_conversation(store_url)
    Child(
        ask, store_url, str(tmp_path), ["-p", "long", "-c", name], "reply.delta", 2
    ).finish()
    set_up(tmp_path, [Reply(words="quick")])
    for _ in range(3):
        assert (
            Child(ask, store_url, str(tmp_path), ["-p", "hi"], "", 1, "x.txt").finish()
            == 0
        )
    assert outcomes(journal, name) == ["interrupted"]
    attempts = [
        event.event
        for event in journal.read(name, limit=1000)
        if event.kind == RunStarted.kind
    ]
    assert [
        attempt.attempt for attempt in attempts if isinstance(attempt, RunStarted)
    ] == [0]


def test_a_conversation_whose_process_was_killed_is_shown_as_interrupted(
    store_url: str, tmp_path: Path
) -> None:
    """Opening it is enough: nobody has to ask anything first."""
    set_up(tmp_path, [Reply(words=SLOW, pause=0.1)])
    name = new_conversation(store_url)
    Child(
        ask, store_url, str(tmp_path), ["-p", "long", "-c", name], "reply.delta", 2
    ).finish()
    until_free(store_url, name)

    async def opened() -> list[tuple[str, str]]:
        runtime = Runtime(config_of(store_url, tmp_path))
        try:
            return [(row.kind, row.state) for row in await runtime.transcript(name)]
        finally:
            await runtime.close()

    assert asyncio.run(opened()) == [
        ("user", ""),
        ("assistant", "cut"),
        ("marker", "recovered"),
    ]
