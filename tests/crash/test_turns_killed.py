"""`kill -9` in the middle of a turn: what was stored stays, what was shown stays, and the next process goes on."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import tenax
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.events import (
    MessageAssistant,
    MessageUser,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from tenax.journal.base import Recorded
from tenax.models import Reply, ScriptedCall
from tenax.parts import Text
from tests.support.children import Child, finish_all
from tests.support.counts import repeat
from tests.support.postgres import PostgresServer
from tests.support.runs import brief, lines
from tests.support.turns import (
    ask,
    go_on,
    journal_of,
    new_conversation,
    resumed,
    rows_of,
    set_up,
    use_tools,
)
from tests.support.world import copy

pytestmark = pytest.mark.crash

LOOK = "let me look that up first and think about it"
ANSWER = "the file says nothing of the kind"
THOUGHT = "where would that be said? perhaps in the file"
SCRIPT = [
    Reply(
        words=LOOK,
        thoughts=THOUGHT,
        pause=0.015,
        calls=[ScriptedCall("read_file", {"path": "a.txt"})],
    ),
    Reply(words=ANSWER, pause=0.015),
]
PHASES = [
    ("message.user", 1),
    ("run.started", 1),
    ("context.opened", 1),
    ("model.requested", 1),
    ("reply.thought", 1),
    ("reply.thought", 2),
    ("reply.delta", 1),
    ("reply.delta", 3),
    ("message.assistant", 1),
    ("tool.started", 1),
    ("tool.finished", 1),
    ("model.requested", 2),
    ("run.finished", 1),
]
KILLS_AT_RANDOM, KILLS_MAX = repeat(4, 100), repeat(40, 200)


def started(events: Sequence[Recorded], outcome: str = "") -> Counter[tuple[int, str]]:
    """How often each call was begun, or ended."""
    found = [event.event for event in events]
    kinds = ToolFinished if outcome else ToolStarted
    return Counter(
        (each.message, each.call) for each in found if isinstance(each, kinds)
    )


def check(
    before: Sequence[Recorded],
    after: Sequence[Recorded],
    shown: str,
    answer: str = ANSWER,
) -> None:
    """What must hold after a kill and a resumption."""
    now = {each.seq: (each.kind, each.body) for each in after}
    for each in before:
        if each.digest:
            assert now.get(each.seq) == (each.kind, each.body), (
                f"seq {each.seq} is missing or another"
            )
    rows = rows_of(after).rows
    texts = [row.text for row in rows if row.kind == "assistant"]
    for row in rows_of(before).rows:
        if row.kind == "assistant":
            (same,) = [each for each in rows if each.id == row.id]
            assert same.text.startswith(row.text)
            assert same.thought.startswith(row.thought)
            assert same.state in {"", "cut", "earlier"}
    for line in filter(None, shown.splitlines()):
        assert any(text.startswith(line) for text in texts), (
            f"{line!r} was shown, and is not in the transcript"
        )
    ended = started(before, "ended")
    assert all(started(after)[call] == started(before)[call] for call in ended), (
        "a finished call was repeated"
    )
    assert all(count == 1 for count in started(after, "ended").values())
    final = [
        row
        for row in rows
        if row.kind == "assistant" and row.state == "" and row.text == answer
    ]
    assert len(final) == 1, brief(rows)
    assert rows[-1] == final[0]
    assert not {row.state for row in rows} & {
        "streaming",
        "queued",
        "running",
        "waiting",
    }


def doctor(
    url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`tenax doctor` says ok."""
    monkeypatch.setenv("TENAX_HOME", str(home))
    monkeypatch.setenv("TENAX_STORE", url)
    capsys.readouterr()
    assert run(command, ["doctor"]) == 0
    assert capsys.readouterr().out.endswith(": ok\n")


@pytest.mark.parametrize(("kind", "nth"), PHASES)
def test_a_turn_killed_when_something_was_just_stored_goes_on_from_there(
    store_url: str,
    tmp_path: Path,
    kind: str,
    nth: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing stored is missing, nothing shown is lost, nothing finished is repeated, and the answer is there once."""
    set_up(tmp_path, SCRIPT)
    name = new_conversation(store_url)
    victim = Child(ask, store_url, str(tmp_path), ["-p", "go", "-c", name], kind, nth)
    assert victim.finish() == -9, (tmp_path / "shown.txt.err").read_text()
    before = journal_of(store_url, name)
    assert before[-1].kind == kind, "the kill was to come in another phase"
    after = resumed(store_url, tmp_path, name)
    check(before, after, (tmp_path / "shown.txt").read_text())
    runs = [each.event for each in after if isinstance(each.event, RunStarted)]
    ended = kind == "run.finished" or (kind, nth) == ("message.user", 1)
    assert len(runs) == (1 if ended else 2)
    doctor(store_url, tmp_path, monkeypatch, capsys)


def test_turns_killed_at_random_instants_lose_nothing(
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From outside, at any instant: one conversation after the other in the same store, until two phases were met."""
    set_up(tmp_path, SCRIPT)
    chance = random.Random(8)
    phases: Counter[str] = Counter()
    while phases.total() < KILLS_AT_RANDOM or (
        len(phases) == 1 and phases.total() < KILLS_MAX
    ):
        name = new_conversation(store_url)
        victim = Child(ask, store_url, str(tmp_path), ["-p", "go", "-c", name])
        victim.read_until(1)
        with tenax.open(store_url) as journal:
            journal.wait(name, 1, seconds=10.0)
        time.sleep(chance.uniform(0, 0.4))  # any instant will do
        victim.kill()
        victim.finish()
        before = journal_of(store_url, name)
        phases[before[-1].kind] += 1
        check(
            before,
            resumed(store_url, tmp_path, name),
            (tmp_path / "shown.txt").read_text(),
        )
    assert len(phases) > 1, phases
    doctor(store_url, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("kind", ["model.used", "context.compacted"])
def test_a_turn_killed_while_the_context_is_made_shorter_goes_on(
    store_url: str,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the summary is stored, and right after: the answer comes, and there is one child at most."""
    set_up(tmp_path, [Reply(words=ANSWER, pause=0.01)], context=1500)
    talk: list[MessageUser | MessageAssistant] = []
    for n in range(12):
        talk += [
            MessageUser([Text(f"question {n} " + "word " * 60)]),
            MessageAssistant([Text("so " * 60)]),
        ]
    name = new_conversation(store_url, *talk)
    victim = Child(ask, store_url, str(tmp_path), ["-p", "go", "-c", name], kind, 1)
    assert victim.finish() == -9, (tmp_path / "shown.txt.err").read_text()
    before = journal_of(store_url, name)
    assert before[-1].kind == kind
    after = resumed(store_url, tmp_path, name)
    check(before, after, (tmp_path / "shown.txt").read_text())
    counts = Counter(each.kind for each in after)
    assert counts["context.compacted"] == counts["context.summarised"] == 1
    doctor(store_url, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("effect", "point"),
    [
        ("once", "tool.started"),
        ("once", "in the tool"),
        ("once", "tool.finished"),
        ("idempotent", "in the tool"),
        ("pure", "in the tool"),
    ],
)
def test_an_effect_is_not_repeated_unless_it_may_be(
    store_url: str, tmp_path: Path, effect: str, point: str
) -> None:
    """A finished call never; one without outcome again with the same key, or `unknown` if it may be made only once."""
    set_up(
        tmp_path,
        [Reply(calls=[ScriptedCall("note", {"text": "x"})]), Reply(words="done")],
    )
    name = new_conversation(store_url)
    victim = Child(use_tools, store_url, str(tmp_path), name, "go", effect, point)
    assert victim.finish() == -9
    before = lines(tmp_path / "notes.txt")
    assert len(before) == (0 if point == "tool.started" else 1)
    heir = Child(use_tools, store_url, str(tmp_path), name, "", effect, "")
    assert heir.finish() == 0
    noted = lines(tmp_path / "notes.txt")
    again = point != "tool.finished" and effect != "once"
    assert len(noted) == len(before) + again
    assert len(set(noted)) <= 1, "another key"
    events = [each.event for each in journal_of(store_url, name)]
    ends = [event.outcome for event in events if isinstance(event, ToolFinished)]
    assert ends == [
        "unknown" if effect == "once" and point != "tool.finished" else "done"
    ]
    assert rows_of(journal_of(store_url, name)).rows[-1].text == "done"


def plain(events: Sequence[Recorded]) -> list[tuple[str, str]]:
    """Events without ids and times; of what the resumed run itself wrote, whose seqs depend on its partials, the kinds."""
    names: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"{found[0][0]}_{len(names)}")

    bodies = [
        (each.kind, f"{each.run} {(each.body or b'').decode()}")
        for each in events
        if each.digest
    ]
    told = [
        (kind, re.sub(r"\b[a-z]_[0-9a-f-]{36}\b", number, body))
        for kind, body in bodies
    ]
    resumes = [kind for kind, _ in told].index(
        "run.started", [kind for kind, _ in told].index("run.finished")
    )
    return told[: resumes + 1] + [(kind, "") for kind, _ in told[resumes + 1 :]]


@pytest.mark.parametrize(("kind", "nth"), [("reply.delta", 2), ("tool.started", 1)])
def test_the_same_journal_gives_the_same_recovery(
    request: pytest.FixtureRequest, store_url: str, tmp_path: Path, kind: str, nth: int
) -> None:
    """Two copies of what a dead process left are gone on with in the same way."""
    set_up(tmp_path, SCRIPT)
    name = new_conversation(store_url)
    assert (
        Child(
            ask, store_url, str(tmp_path), ["-p", "go", "-c", name], kind, nth
        ).finish()
        == -9
    )
    found = []
    for n in range(2):
        to = f"sqlite:///{tmp_path}/copy{n}.db"
        if not store_url.startswith("sqlite:"):
            server: PostgresServer = request.getfixturevalue("postgres_server")
            to = server.create_database()
        copy(store_url, to)
        found.append(plain(resumed(to, tmp_path, name)))
    assert found[0] == found[1]
    assert sum(kind == "run.finished" for kind, _ in found[0]) == 2


def test_of_several_processes_that_go_on_after_a_kill_exactly_one_does(
    store_url: str, tmp_path: Path
) -> None:
    """Four start at the same moment; there is one resumed run, and its tool calls are made once."""
    set_up(tmp_path, SCRIPT)
    name = new_conversation(store_url)
    victim = Child(
        ask, store_url, str(tmp_path), ["-p", "go", "-c", name], "reply.delta", 2
    )
    assert victim.finish() == -9
    before = journal_of(store_url, name)
    heirs = [Child(go_on, store_url, str(tmp_path), name) for _ in range(4)]
    assert finish_all(heirs) == [0] * 4
    after = journal_of(store_url, name)
    check(before, after, (tmp_path / "shown.txt").read_text())
    runs = [each.event for each in after if isinstance(each.event, RunStarted)]
    assert [each.resumes is not None for each in runs] == [False, True]
    assert set(started(after).values()) == {1}
    assert msgspec.to_builtins(runs[1])["attempt"] == 1
