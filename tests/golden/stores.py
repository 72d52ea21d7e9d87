"""The golden stores: how a test gets a copy of one, and what the public API says about it.

`write.py` wrote the stores with the code of commit 6e95d48, and wrote down what this module said about them then. Every later
commit must say the same. Only public names are used here, never tables, so that a migration changes nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
import pytest

import tenax
from tenax.agent.history import History
from tenax.assembly import Runtime
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.errors import Gone
from tenax.events import ModelRequested
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Reader, Recorded
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.models import Reply, Script, ScriptedModel
from tenax.schedules.rows import Schedules
from tenax.sessions import SessionDB
from tenax.views.transcript import Row, Transcript
from tests.support.runs import config_of, with_timing

HERE: Final = Path(__file__).parent
ENGINES: Final = ("sqlite", "postgresql")
HOST: Final = "golden"
"""The host that wrote the stores. A test plays this host, so that it may sweep what dead processes left."""
BOB: Final = "bob"
PROVIDER: Final = (
    Reader("memory:ledger:sync", "turns", "now"),
    Reader("memory:ledger:commit", "due", "now"),
)
SEARCHES: Final = ("harbour", "cat", "lighthouse", "forgotten")
QUESTION: Final = "And what do we do now?"
SECONDS: Final = 60.0


@contextmanager
def on_the_same_host() -> Iterator[None]:
    """Play the host that wrote the stores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.node", lambda: HOST)
        yield


class StillClock(SystemClock):
    """The wall clock stands still, so that nothing gets too old and every repair has the same time."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us


class Expected(msgspec.Struct):
    """What the stored results are, in `expected.json`."""

    written_at: str
    now_us: int
    """The time at which the store is opened."""
    names: dict[str, tuple[str, str]]
    """The user and the id of each conversation, by a name for the reader of this file."""
    facts: dict[str, Any]
    """What `describe` says."""
    opened: dict[str, Any]
    """What `repaired` says."""


class Requests(msgspec.Struct):
    """Bodies of model requests, in `requests.json`, each under its SHA-256. A body is its pieces joined; pieces are stored once.

    `sent` are those that the model got when the store was written: they never change. `seen` are those that `Runtime.seen`
    renders again, by conversation and seq, and `next` those of runs that go on in the store. A commit that rewords prompts
    or tool descriptions refreshes these two.
    """

    pieces: dict[str, str] = {}
    bodies: dict[str, list[str]] = {}
    sent: list[str] = []
    seen: dict[str, dict[str, str]] = {}
    next: dict[str, list[str]] = {}

    def put(self, body: bytes) -> str:
        """Store a body; its name. Most bodies share their prompt and their tools."""
        name = _sha256(body)
        if name not in self.bodies:
            pieces = re.split('(?=,"(?:tools|messages)":)', body.decode())
            self.bodies[name] = [_sha256(piece.encode())[:12] for piece in pieces]
            self.pieces.update(zip(self.bodies[name], pieces, strict=True))
        return name

    def body(self, name: str) -> bytes:
        return "".join(self.pieces[piece] for piece in self.bodies[name]).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_expected(engine: str) -> Expected:
    return msgspec.json.decode(
        (HERE / engine / "expected.json").read_bytes(), type=Expected
    )


def read_requests(engine: str) -> Requests:
    return msgspec.json.decode(
        (HERE / engine / "requests.json").read_bytes(), type=Requests
    )


def write_json(file: Path, value: object) -> None:
    """Readable, and the same bytes for the same value."""
    file.write_text(_lines(plain(value), 5) + "\n")


def _lines(value: Any, depth: int, margin: str = "") -> str:
    """JSON with a line for each value down to this depth; what lies deeper stands in one line."""
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    inner = f"{margin} "
    if isinstance(value, dict):
        open_, close = "{}"
        found = [
            f"{json.dumps(key)}: {_lines(each, depth - 1, inner)}"
            for key, each in sorted(value.items())
        ]
    else:
        open_, close = "[]"
        found = [_lines(each, depth - 1, inner) for each in value]
    return f"{open_}\n{inner}" + f",\n{inner}".join(found) + f"\n{margin}{close}"


def plain(value: object) -> Any:
    """A value as it comes back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Where two values of JSON differ, a line for each place."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = sorted({*found, *expected})
        return [
            line
            for name in names
            for line in differences(
                found.get(name), expected.get(name), f"{where}/{name}"
            )
        ]
    if (
        isinstance(found, list)
        and isinstance(expected, list)
        and len(found) == len(expected)
    ):
        pairs = enumerate(zip(found, expected, strict=True))
        return [
            line
            for number, pair in pairs
            for line in differences(*pair, f"{where}/{number}")
        ]
    return (
        []
        if found == expected
        else [f"{where}: {found!r} where {expected!r} was expected"]
    )


# -- a copy ----------------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """A copy of a golden store: its address, and the home beside which spools and files lie."""

    url: str
    home: Path

    @property
    def config(self) -> Config:
        config = config_of(self.url, self.home, TZ="UTC")
        return with_timing(config, recovery_seconds=SECONDS)

    def open(self, now_us: int, user: str | None = LOCAL_USER) -> Journal:
        return tenax.open(self.url, user=user, clock=StillClock(now_us))


def copy_of(engine: str, to: Path, empty_database: str) -> Place:
    """Copy a golden store, to a folder and, for PostgreSQL, to this empty database."""
    home = to / "home"
    shutil.copytree(HERE / engine / "home", home)
    if engine == "sqlite":
        for packed in home.glob("*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
            packed.unlink()
        return Place(f"sqlite:///{home / 'tenax.db'}", home)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(
            gzip.decompress((HERE / engine / "store.sql.gz").read_bytes())
        )
    return Place(empty_database, home)


# -- what a store says -----------------------------------------------------------------------------------------


async def describe(
    place: Place, now_us: int, names: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Everything that can be read without a repair: nothing is written to the store."""
    everybody = place.open(now_us, user=None)
    try:
        report = verify(everybody)
        found: dict[str, Any] = {
            "verify": {
                **msgspec.to_builtins(report),
                "stale": "not compared: a new version derives anew",
            },
            "users": {
                user: await _user(everybody.of(user)) for user in (LOCAL_USER, BOB)
            },
            "conversations": {
                name: await _conversation(everybody.of(user), its_id)
                for name, (user, its_id) in names.items()
            },
        }
    finally:
        everybody.close()
    return plain(found)  # type: ignore[no-any-return]


async def _user(journal: Journal) -> dict[str, Any]:
    facts, schedules = MemoryEntries(journal), Schedules(journal)
    listed = [
        each
        for archived in (False, True)
        for each in journal.conversations(archived=archived)
    ]
    return {
        "conversations": [each.conversation for each in listed],
        "facts": [facts.versions(each.id) for each in facts.standing()],
        "schedules": schedules.all(),
        "behind": {
            reader.name: [
                msgspec.structs.asdict(each) for each in journal.behind(reader)
            ]
            for reader in PROVIDER
        },
        "letters": {reader.name: journal.letters(reader.name) for reader in PROVIDER},
        "search": {
            words: [[hit.conversation, hit.seq] for hit in journal.search(words).hits]
            for words in SEARCHES
        },
        "unfinished": journal.unfinished(),
    }


async def _conversation(journal: Journal, name: str) -> dict[str, Any]:
    try:
        head = journal.head(name)
    except Gone as error:
        return {"gone": type(error).__name__}
    events = journal.read(name, limit=10_000)
    history = History(AsyncJournal(journal), name)
    await history.catch_up()
    summary = msgspec.to_builtins(journal.summary(name))
    del summary["place"]
    summary["stretch"] = summary.pop("segment")
    # It stands with the head, too; older expectations have it only there.
    del summary["revision"]
    # Older expectations have no choices, no read marks and no state.
    for later in ("state", "model", "mode", "project", "read", "unread"):
        del summary[later]
    # The frozen expectations name a segment by its stored name.
    described = {**msgspec.structs.asdict(head), "digest": head.digest.hex()}
    described["stretch"] = described.pop("segment")
    run = history.turns.run
    return {
        "summary": summary,
        "head": described,
        "events": [_event(each) for each in events],
        "stretches": _segments(journal, head.segment),
        "sub-agents": journal.delegated(name),
        "spent": journal.spent(name),
        "cursors": {reader.name: journal.cursor(reader, name) for reader in PROVIDER},
        "rows": rows_of(events),
        "context": [
            msgspec.to_builtins(each)
            for each in history.context.request(sorted(history.context.waiting))
        ],
        "open": {
            "run": run.id if run is not None else None,
            "asks": [each.call.id for each in run.waits] if run is not None else [],
            "waiting": sorted(history.turns.waiting),
        },
    }


def _event(recorded: Recorded) -> str:
    """The last word is the digest of the chain. A partial has none, so each body is named by a hash of its own."""
    body = _sha256(recorded.body)[:12] if recorded.body is not None else "erased"
    return f"{recorded.seq} {recorded.kind} {recorded.at} {recorded.run} {body} {recorded.digest.hex()[:32]}"


def _segments(journal: Journal, name: str | None) -> list[Any]:
    found = []
    while name is not None and (segment := journal.segment(name)) is not None:
        found.append(segment)
        name = segment.parent
    return found


def rows_of(events: list[Recorded]) -> list[dict[str, Any]]:
    """The transcript as the view folds it."""
    shown = Transcript()
    for each in events:
        shown.apply(each)
    return [_row(each) for each in shown.rows]


def _row(row: Row) -> dict[str, Any]:
    """A row without its key, because its order counts and not the numbers that make it, and without durations, which the
    versions that wrote the expectations did not have.
    """
    found: dict[str, Any] = msgspec.to_builtins(row)
    later = ("key", "started", "seconds", "thought_seconds")
    return {name: value for name, value in found.items() if name not in later}


# -- a store that is used --------------------------------------------------------------------------------------


class Recording(ScriptedModel):
    """Answers everything with the same words, and keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(Script([Reply(words="Noted.")], repeat=True))


@asynccontextmanager
async def runtime_of(
    place: Place,
    now_us: int,
    user: str = LOCAL_USER,
    model: ScriptedModel | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime that answers what is submitted to it, and repairs what is opened."""
    with pytest.MonkeyPatch.context() as patch, place.open(now_us, user) as journal:
        patch.setenv("HOME", str(place.home))  # instruction files above it are not read
        models = [model or Recording()]
        async with Runtime(
            place.config, user=user, journal=journal, models=models, serves=False
        ) as runtime:
            yield runtime


async def repaired(
    place: Place, now_us: int, names: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """What is shown when a person opens the conversations: spools are handed in, dead runs are ended."""
    found: dict[str, Any] = {}
    for user in (LOCAL_USER, BOB):
        async with runtime_of(place, now_us, user) as runtime:
            for name, (owner, its_id) in names.items():
                if owner == user:
                    found[name] = await _opened(runtime, its_id)
    with place.open(now_us, user=None) as everybody:
        found["verify"] = [str(each) for each in verify(everybody).problems]
    return plain(found)  # type: ignore[no-any-return]


async def _opened(runtime: Runtime, name: str) -> dict[str, Any]:
    try:
        await runtime.transcript(name, limit=1000)
    except Gone as error:
        return {"gone": type(error).__name__}
    # what the first one repaired is shown
    rows = await runtime.transcript(name, limit=1000)
    segment = (await runtime.journal.head(name)).segment
    db = SessionDB(journal=runtime.journal.journal)
    messages = (
        await runtime.journal.threads.run(lambda: db.get_messages(segment))
        if segment is not None
        else []
    )
    return {
        "rows": [_row(each) for each in rows],
        "messages": messages,
        "changes": await runtime.changes(name),
        "questions": [
            (each.message, each.call) for each in await runtime.questions(name)
        ],
    }


async def seen_requests(
    place: Place, now_us: int, names: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, bytes]]:
    """Every request of the past, rendered again: by conversation and seq."""
    found: dict[str, dict[str, bytes]] = {}
    for user in (LOCAL_USER, BOB):
        async with runtime_of(place, now_us, user) as runtime:
            for name, (owner, its_id) in names.items():
                if owner == user:
                    asked = await _facts(runtime, its_id, ModelRequested)
                    found[name] = {
                        str(each.seq): await runtime.seen(its_id, each.seq)
                        for each in asked
                    }
    return found


async def digests(
    place: Place, now_us: int, names: Mapping[str, tuple[str, str]]
) -> set[str]:
    """The digests of all requests that the journal names."""
    found: set[str] = set()
    for user, its_id in names.values():
        async with runtime_of(place, now_us, user) as runtime:
            found |= {
                each.event.digest
                for each in await _facts(runtime, its_id, ModelRequested)
            }
    return found


async def _facts(runtime: Runtime, name: str, kind: type[Any]) -> list[Any]:
    try:
        events = await runtime.journal.read(name, limit=10_000)
    except Gone:
        return []
    return [each for each in events if isinstance(each.event, kind)]


async def next_requests(
    place: Place, now_us: int, names: Mapping[str, tuple[str, str]]
) -> dict[str, list[bytes]]:
    """What the model is sent when the person goes on in each conversation, and in a new one of each user."""
    found: dict[str, list[bytes]] = {}
    for user in (LOCAL_USER, BOB):
        model = Recording()
        async with runtime_of(place, now_us, user, model) as runtime:
            mine = {
                name: its_id for name, (owner, its_id) in names.items() if owner == user
            }
            mine[f"a new one of {user}"] = await runtime.new()
            for name, its_id in mine.items():
                model.bodies.clear()
                if await _go_on(runtime, its_id):
                    # Where the copy lies is all that may differ.
                    found[name] = [
                        body.replace(str(place.home).encode(), b"/golden")
                        for body in model.bodies
                    ]
    return found


async def _go_on(runtime: Runtime, name: str) -> bool:
    """Answer what is asked there, say something, and wait until everything is answered. False where nobody can."""
    try:
        await runtime.transcript(name)
        if (await runtime.journal.head(name)).segment is None:
            return False
        for question in await runtime.questions(name):
            await runtime.answer(name, question.message, question.call, "no")
        stored = await runtime.submit(name, QUESTION)
    except Gone:
        return False
    async with asyncio.timeout(SECONDS):
        await runtime.finished(name, stored.seq)
        await runtime.workers.idle(name)
    return True


async def refresh(engine: str, for_seen: Place, for_next: Place) -> None:
    """Write down what requests look like now, from two copies. Nothing else is touched: not the store, not `sent`."""
    expected, old = read_expected(engine), read_requests(engine)
    new = Requests()
    new.sent = [new.put(old.body(name)) for name in old.sent]
    seen = await seen_requests(for_seen, expected.now_us, expected.names)
    new.seen = {
        name: {seq: new.put(body) for seq, body in requests.items()}
        for name, requests in seen.items()
    }
    going_on = await next_requests(for_next, expected.now_us, expected.names)
    new.next = {
        name: [new.put(body) for body in bodies] for name, bodies in going_on.items()
    }
    write_json(HERE / engine / "requests.json", new)
