"""The store proves itself.

`verify` derives everything again that the store keeps beside its events (digests, heads, index rows, the list, cursor
flags, counts), checks what must always hold, and says what is wrong and where. It works on a store in use, in pages:
no read holds a snapshot for longer than one. What is kept in memory is one conversation's index at a time.

    report = verify(journal)
    report.ok, report.problems

One conversation is proved in `proof.py`; what concerns the store as a whole stands here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenax.errors import StoreDamaged
from tenax.journal.memory import EphemeralStore
from tenax.journal.place import ALL_SEQS, SEQ_BITS
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.sqlite import APPLICATION_ID, PAGE_SIZE, SqliteStore
from tenax.journal.verify.conversation import Proof

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Row, Store

__all__ = [
    "PROBLEMS_MAX",
    "UNREADABLE",
    "Problem",
    "Progress",
    "Report",
    "engine_of",
    "unreadable",
    "verify",
]

PROBLEMS_MAX = 1000
"""`verify` stops here: a store with more is not mended one by one."""
WHOLE_FILE_BYTES_MAX = 256 * 1024 * 1024
"""A larger SQLite file is checked table by table, so that no snapshot is held for as long as all of it takes."""
UNREADABLE = (StoreDamaged, TypeError, ValueError)
"""What reading a damaged row may raise: a column may hold a value of another type."""
_PAGE = 500
_INCREMENTAL = 2
_DIGEST_BYTES = 32


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong: where, as far as it has a place, and a sentence for a person."""

    user: str | None
    conversation: str | None
    seq: int | None
    what: str

    def __str__(self) -> str:
        where = self.conversation or "the store"
        return f"{where}{'' if self.seq is None else f', seq {self.seq}'}: {self.what}"


class Progress(NamedTuple):
    """How far `verify` is, in numbers of events, of about how many. Pruned partials had numbers too."""

    conversations: int
    done: int
    of: int


class Report(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong with it."""

    conversations: int
    facts: int
    partials: int
    blobs: int
    stale: int
    """Conversations whose index another version made. It is made anew when they are next written."""
    problems: list[Problem]
    complete: bool
    """False when there was more wrong than `problems` holds."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """What is wrong, a line each, and what was looked at."""
        counts = {
            "conversation": self.conversations,
            "event": self.facts + self.partials,
            "blob": self.blobs,
        }
        what = ", ".join(
            f"{count:,} {name}{'' if count == 1 else 's'}"
            for name, count in counts.items()
        )
        if self.stale:
            what += f" ({self.stale:,} conversations are indexed anew when they are next written)"
        count = f"{len(self.problems):,}{'' if self.complete else ' and more'}"
        verdict = "ok" if self.ok else f"{count} problem{'' if count == '1' else 's'}"
        return [*map(str, self.problems), f"{what}: {verdict}"]


def verify(
    journal: Journal, *, progress: Callable[[Progress], None] | None = None
) -> Report:
    """Prove the whole store, of every user."""
    check = _Check(journal.store, progress)
    found = check.run()
    kept = list(islice(found, PROBLEMS_MAX))
    complete = next(found, None) is None
    return Report(
        check.conversations,
        check.facts,
        check.partials,
        check.blobs,
        check.stale,
        kept,
        complete,
    )


def engine_of(journal: Journal) -> str:
    """The engine behind a journal, and its version."""
    name = "SQLite" if isinstance(journal.store, SqliteStore) else "PostgreSQL"
    return f"{name} {journal.store.query('engine_version')[0][0]}"


class _Check:
    """One walk through the store."""

    def __init__(
        self, store: Store, progress: Callable[[Progress], None] | None
    ) -> None:
        self._store = store
        self._progress = progress
        self._done = 0
        self._of = 0
        self._gone: set[int] = set()
        self.conversations = 0
        self.facts = 0
        self.partials = 0
        self.blobs = 0
        self.stale = 0

    def run(self) -> Iterator[Problem]:
        parts: list[Callable[[], Iterator[Problem]]] = [
            self._engine, self._row_of_store, self._tombstones, self._every_conversation, self._received, self._leases,
            self._every_blob, self._memory, self._schedules, self._devices,
        ]  # fmt: skip
        for part in parts:
            try:
                yield from part()
            except UNREADABLE as error:
                yield _of_store(unreadable(error))

    def _step(self, further: int) -> None:
        self._done += further
        if self._progress is not None:
            self._progress(
                Progress(self.conversations, self._done, max(self._of, self._done))
            )

    def _pages(
        self, name: str, keys: tuple[str, ...], start: tuple[object, ...]
    ) -> Iterator[Row]:
        """Rows in the order of their first columns, which are these keys."""
        while page := self._store.query(
            name, **dict(zip(keys, start, strict=True)), limit=_PAGE
        ):
            yield from page
            start = page[-1][: len(keys)]

    # -- the engine ------------------------------------------------------------------------------------------

    def _engine(self) -> Iterator[Problem]:
        if isinstance(self._store, SqliteStore):
            yield from _sqlite_file(self._store)

    def _row_of_store(self) -> Iterator[Problem]:
        rows = self._store.query("store")
        if (
            len(rows) != 1
            or rows[0][0] != SCHEMA_VERSION
            or not rows[0][1]
            or not rows[0][2]
        ):
            yield _of_store(
                f"Its own row does not name schema {SCHEMA_VERSION}, an incarnation and a life: {rows!r}."
            )

    # -- conversations ---------------------------------------------------------------------------------------

    def _tombstones(self) -> Iterator[Problem]:
        for owner, name, num, digest, there in self._pages(
            "prove_tombstones", ("owner", "id"), ("", "")
        ):
            self._gone.add(num)
            if there is not None:
                yield Problem(owner, name, None, "It was deleted, and is still there.")
            if len(digest) != _DIGEST_BYTES:
                yield Problem(
                    owner, name, None, "Its tombstone does not hold its last digest."
                )

    def _every_conversation(self) -> Iterator[Problem]:
        self._of = self._store.query("prove_size")[0][1]
        before = 0
        for num, owner, name in self._pages("prove_conversations", ("after",), (0,)):
            yield from self._orphans(before, num)
            yield from self._conversation(num, owner, name)
            before = num
        yield from self._orphans(before, ALL_SEQS >> 1)

    def _conversation(self, num: int, owner: str, name: str) -> Iterator[Problem]:
        proof = Proof(self._store, num, owner, name, self._step)
        try:
            findings = proof.run()
        except UNREADABLE as error:
            findings = [(None, unreadable(error))]
        self.conversations += 1
        self.facts += proof.facts
        self.partials += proof.partials
        self.stale += proof.stale
        self._step(0)
        for seq, what in findings:
            yield Problem(owner, name, seq, what)

    def _orphans(self, after: int, before: int) -> Iterator[Problem]:
        """Rows of conversations between two numbers that are there. There are none between."""
        if before <= after + 1:
            return
        places = {"low": after + 1 << SEQ_BITS, "high": before << SEQ_BITS}
        for table, num in self._store.query(
            "prove_no_orphans", **places, after=after, before=before
        ):
            dead = self._store.query("tombstone_of", num=num)
            owner, name = dead[0] if dead else (None, None)
            why = (
                "It was deleted"
                if dead
                else f"There is no conversation with number {num}"
            )
            yield Problem(owner, name, None, f"{why}, and it still has {table}.")

    def _received(self) -> Iterator[Problem]:
        rows = self._pages("prove_received", ("owner", "source", "id"), ("", "", ""))
        for owner, source, key, place, count, user, name, fact, partial in rows:
            num, seq = place >> SEQ_BITS, place & ALL_SEQS
            what = f"What {source} sent as {key}"
            if name is None:
                if num not in self._gone and not self._store.query(
                    "tombstone_of", num=num
                ):
                    yield Problem(
                        owner,
                        None,
                        None,
                        f"{what} stands in no conversation, nor in a deleted one.",
                    )
            elif user != owner:
                yield Problem(
                    owner,
                    name,
                    seq,
                    f"{what} stands in a conversation of another user.",
                )
            elif count < 1 or (
                fact is None and partial is None and not self._was_partial(place)
            ):
                yield Problem(
                    owner, name, seq, f"{what} should stand here, and nothing does."
                )

    def _was_partial(self, place: int) -> bool:
        where = {"place": place, "high": place | ALL_SEQS, "seq": place & ALL_SEQS}
        return bool(self._store.query("prove_replaced", **where))

    def _leases(self) -> Iterator[Problem]:
        rows = self._pages("prove_leases", ("owner", "name"), ("", ""))
        for owner, name, holder, fence, seconds, token in rows:
            if fence < 1 or seconds <= 0:
                yield Problem(
                    owner,
                    None,
                    None,
                    f"The lease {name} has fence {fence} for {seconds} seconds.",
                )
            if (holder is None) != (token is None):
                yield Problem(
                    owner,
                    None,
                    None,
                    f"The lease {name} has only one of holder and token.",
                )

    def _memory(self) -> Iterator[Problem]:
        """Versions without a hole, learned from messages of the user's own that are there, and under a revision."""
        rows = self._pages("prove_memory", ("owner", "id", "version"), ("", "", 0))
        for (
            owner,
            fact,
            version,
            state,
            before,
            place,
            user,
            name,
            there,
            scope,
            scoped,
            revision,
        ) in rows:
            seq = None if place is None else place & ALL_SEQS
            if (before or 0) + 1 != version:
                yield Problem(
                    owner, name, seq, f"Version {version} of fact {fact} follows none."
                )
            if revision is None or state not in {"standing", "removed"}:
                yield Problem(
                    owner, name, seq, f"Fact {fact} is {state}, at revision {revision}."
                )
            if (place is not None and user != owner) or (
                scope is not None and scoped != owner
            ):
                yield Problem(
                    owner,
                    None,
                    None,
                    f"Fact {fact} is of a conversation that {owner} does not have.",
                )
            elif place is not None and state == "standing" and not there:
                yield Problem(
                    owner,
                    name,
                    seq,
                    f"Fact {fact} was learned from this, and nothing stands here.",
                )

    def _schedules(self) -> Iterator[Problem]:
        """Each stands in a conversation of its own user, and was asked for there."""
        for owner, schedule, name in self._pages(
            "prove_schedules", ("owner", "id"), ("", "")
        ):
            yield Problem(
                owner,
                name,
                None,
                f"Schedule {schedule} is not of this conversation or its user.",
            )

    def _devices(self) -> Iterator[Problem]:
        """Read every row. A damaged row is reported by its id, so that its browser can be signed out."""
        try:
            for (device,) in self._pages("prove_devices", ("id",), ("",)):
                yield from self._device(device)
        except UNREADABLE as error:
            what = (
                f"The browsers that are signed in cannot be listed: {unreadable(error)}"
            )
            yield _of_store(
                f"{what} Sign all of them out with: tenax link --revoke all"
            )

    def _device(self, device: str) -> Iterator[Problem]:
        try:
            self._store.query("device", id=device)
        except UNREADABLE as error:
            what = f"The row of the signed-in browser {device} cannot be read: {unreadable(error)}"
            yield _of_store(f"{what} Sign it out with: tenax link --revoke {device}")

    # -- blobs -----------------------------------------------------------------------------------------------

    def _every_blob(self) -> Iterator[Problem]:
        for owner, name, size in self._pages(
            "prove_blobs", ("owner", "hash"), ("", "")
        ):
            self.blobs += 1
            if not self._whole(owner, name, size) and self._store.query(
                "blob", owner=owner, hash=name
            ):
                what = f"Blob {name} does not hold the {size:,} bytes that it is named after."
                yield Problem(owner, None, None, what)
        for owner, name in self._store.query("prove_chunks", limit=_PAGE):
            yield Problem(
                owner, None, None, f"There are pieces of blob {name}, and no such blob."
            )

    def _whole(self, owner: str, name: str, size: int) -> bool:
        """Whether the pieces of a blob make what it is named after. One piece is held at a time."""
        digest, length, n = hashlib.sha256(), 0, -1
        while rows := self._store.query("prove_chunk", owner=owner, hash=name, after=n):
            n, data = n + 1, rows[0][1]
            if rows[0][0] != n:
                return False
            digest.update(data)
            length += len(data)
        return length == size and digest.hexdigest() == name


def unreadable(error: Exception) -> str:
    """Say in a sentence what one of `UNREADABLE` means."""
    return (
        str(error)
        if isinstance(error, StoreDamaged)
        else f"A row holds what it cannot hold: {error}."
    )


def _of_store(what: str) -> Problem:
    return Problem(None, None, None, what)


def _sqlite_file(store: SqliteStore) -> Iterator[Problem]:
    """The file: its pages, its settings, and that its schema is the sum of the migrations."""
    application_id, auto_vacuum, page_size, page_count = store.query("prove_file")[0]
    if application_id != APPLICATION_ID:
        yield _of_store(
            f"The file's application id is {application_id:#x}, not {APPLICATION_ID:#x}."
        )
    if auto_vacuum != _INCREMENTAL or page_size != PAGE_SIZE:
        yield _of_store(
            f"The file has auto_vacuum {auto_vacuum} and pages of {page_size} bytes."
        )
    schema = _schema(store)
    fresh = EphemeralStore(store.clock, store.ids)
    try:
        wanted = _schema(fresh)
    finally:
        fresh.close()
    for name in sorted(schema.keys() | wanted.keys()):
        if schema.get(name) != wanted.get(name):
            missing = (
                "is missing"
                if name not in schema
                else "is not what the migrations make"
            )
            yield _of_store(f"In the schema, the {name} {missing}.")
    large = page_size * page_count > WHOLE_FILE_BYTES_MAX
    tables = sorted({row[2] for row in store.query("prove_schema")})
    for (said,) in _integrity(store, tables if large else []):
        if said != "ok":
            yield _of_store(f"SQLite finds the file damaged: {said}.")


def _schema(store: SqliteStore) -> dict[str, str]:
    return {f"{kind} {name}": sql for kind, name, _, sql in store.query("prove_schema")}


def _integrity(store: SqliteStore, tables: list[str]) -> Iterator[Row]:
    if not tables:
        yield from store.query("prove_whole_file")
    for table in tables:
        yield from store.query("prove_table", name=table)
