"""Checks a whole store.

`verify` derives all data beside the events again (digests, heads, index rows, the list, cursor flags, counts), checks the
invariants, and reports each problem with its place. `verify` works on a store in use and reads in pages, so no
transaction is longer than the read of a page. The memory holds the index of a single conversation at a time.

    report = verify(journal)
    report.ok, report.problems

`conversation.py` checks a conversation; this module checks the rest of the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenax.errors import StoreDamaged
from tenax.journal.memory import EphemeralStore
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.sqlite import APPLICATION_ID, PAGE_SIZE, SqliteStore
from tenax.journal.verify.conversation import Proof
from tenax.text import count_noun

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import SqlRow, Store

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
"""Largest number of problems in a report. Nobody repairs more problems individually."""
WHOLE_FILE_BYTES_MAX = 256 * 1024 * 1024
"""`verify` checks a larger SQLite file table by table, to keep the transactions short."""
UNREADABLE = (StoreDamaged, TypeError, ValueError)
"""The errors of reading a damaged row. A column may hold a value of another type."""
_PAGE = 500
_INCREMENTAL = 2
_DIGEST_BYTES = 32


class Problem(msgspec.Struct, frozen=True):
    """A problem: the place, if known, and a sentence for a person."""

    user: str | None
    conversation: str | None
    seq: int | None
    what: str

    def __str__(self) -> str:
        where = self.conversation or "the store"
        return f"{where}{'' if self.seq is None else f', seq {self.seq}'}: {self.what}"


class Progress(NamedTuple):
    """The progress of `verify`: checked seqs, and the approximate number of all seqs, including pruned partials."""

    conversations: int
    done: int
    of: int


class Report(msgspec.Struct, frozen=True):
    """The result of `verify`: the numbers of checked things, and the problems."""

    conversations: int
    facts: int
    partials: int
    blobs: int
    stale: int
    """The number of conversations with an index of another version. The next append rebuilds such an index."""
    problems: list[Problem]
    complete: bool
    """Whether `problems` holds all problems."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """Return a line for each problem, and a last line with the numbers of checked things."""
        counts = [
            count_noun(self.conversations, "conversation"),
            count_noun(self.facts + self.partials, "event"),
            count_noun(self.blobs, "blob"),
        ]
        checked = ", ".join(counts)
        if self.stale:
            checked += f" ({self.stale:,} conversations are indexed anew when they are next written)"
        verdict = count_noun(len(self.problems), "problem")
        if not self.complete:
            verdict = f"{len(self.problems):,} and more problems"
        if self.ok:
            verdict = "ok"
        return [*map(str, self.problems), f"{checked}: {verdict}"]


def verify(
    journal: Journal,
    *,
    progress: Callable[[Progress], None] | None = None,
    problems_max: int = PROBLEMS_MAX,
    user: str | None = None,
) -> Report:
    """Check the whole store, with the data of all users. Report at most `problems_max` problems.

    With `user`, check only the conversations of the user.
    """
    check = _Check(journal.store, progress, user)
    found = check.run() if user is None else check.run_for_user()
    kept = list(islice(found, problems_max))
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
    """Return the name and the version of the engine of a journal."""
    name = "SQLite" if isinstance(journal.store, SqliteStore) else "PostgreSQL"
    return f"{name} {journal.store.query('engine_version')[0][0]}"


class _Check:
    """A single check of the store."""

    def __init__(
        self,
        store: Store,
        progress: Callable[[Progress], None] | None,
        user: str | None = None,
    ) -> None:
        self._store = store
        self._user = user
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
            self._every_blob, self._memory, self._schedules, self._read_marks, self._preferences, self._devices,
        ]  # fmt: skip
        for part in parts:
            try:
                yield from part()
            except UNREADABLE as error:
                yield _of_store(unreadable(error))

    def run_for_user(self) -> Iterator[Problem]:
        """Check the conversations of a single user."""
        for num, owner, name in self._pages("prove_conversations", ("after",), (0,)):
            if owner == self._user:
                yield from self._conversation(num, owner, name)

    def _step(self, further: int) -> None:
        self._done += further
        if self._progress is not None:
            self._progress(
                Progress(self.conversations, self._done, max(self._of, self._done))
            )

    def _pages(
        self, name: str, keys: tuple[str, ...], start: tuple[object, ...]
    ) -> Iterator[SqlRow]:
        """Yield rows in the order of the columns `keys`, the first columns of a row."""
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
        """Yield the tables with rows of missing conversations. No conversation has a number between the two numbers."""
        if before <= after + 1:
            return
        row_keys = {"low": after + 1 << SEQ_BITS, "high": before << SEQ_BITS}
        for table, num in self._store.query(
            "prove_no_orphans", **row_keys, after=after, before=before
        ):
            owner, name = None, None
            why = f"There is no conversation with number {num}"
            tombstones = self._store.query("tombstone_of", num=num)
            if tombstones:
                owner, name = tombstones[0]
                why = "It was deleted"
            yield Problem(owner, name, None, f"{why}, and it still has {table}.")

    def _received(self) -> Iterator[Problem]:
        rows = self._pages("prove_received", ("owner", "source", "id"), ("", "", ""))
        for owner, source, key, row_key, count, user, name, fact, partial in rows:
            num, seq = row_key >> SEQ_BITS, row_key & ALL_SEQS
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
                fact is None and partial is None and not self._was_partial(row_key)
            ):
                yield Problem(
                    owner, name, seq, f"{what} should stand here, and nothing does."
                )

    def _was_partial(self, row_key: int) -> bool:
        where = {
            "place": row_key,
            "high": row_key | ALL_SEQS,
            "seq": row_key & ALL_SEQS,
        }
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
        """Check that the versions of a memory have no gap, and that the source belongs to the user and exists."""
        rows = self._pages("prove_memory", ("owner", "id", "version"), ("", "", 0))
        for (
            owner,
            fact,
            version,
            state,
            before,
            row_key,
            user,
            name,
            there,
            scope,
            scoped,
            revision,
        ) in rows:
            seq = None if row_key is None else row_key & ALL_SEQS
            if (before or 0) + 1 != version:
                yield Problem(
                    owner,
                    name,
                    seq,
                    f"Version {version} of memory {fact} follows none.",
                )
            if revision is None or state not in {"standing", "removed"}:
                yield Problem(
                    owner,
                    name,
                    seq,
                    f"Memory {fact} is {state}, at revision {revision}.",
                )
            if (row_key is not None and user != owner) or (
                scope is not None and scoped != owner
            ):
                yield Problem(
                    owner,
                    None,
                    None,
                    f"Memory {fact} is of a conversation that {owner} does not have.",
                )
            elif row_key is not None and state == "standing" and not there:
                yield Problem(
                    owner,
                    name,
                    seq,
                    f"Memory {fact} was learned from this, and nothing stands here.",
                )

    def _schedules(self) -> Iterator[Problem]:
        """Yield the schedules outside the conversations of their users."""
        for owner, schedule, name in self._pages(
            "prove_schedules", ("owner", "id"), ("", "")
        ):
            yield Problem(
                owner,
                name,
                None,
                f"Schedule {schedule} is not of this conversation or its user.",
            )

    def _read_marks(self) -> Iterator[Problem]:
        """Yield the read marks of other users, and marks outside their conversation."""
        rows = self._pages("prove_read_marks", ("conversation", "owner"), (0, ""))
        for _, owner, name, user, seq, head in rows:
            what = f"{owner!r:.60} has read it up to {seq}, and it ends at {head}."
            if owner != user:
                what = f"There is a read mark of {owner!r:.60}, who does not have it."
            yield Problem(user, name, None, what)

    def _preferences(self) -> Iterator[Problem]:
        """Yield the preferences that are not JSON."""
        rows = self._pages("prove_preferences", ("owner", "name"), ("", ""))
        for owner, name, value in rows:
            try:
                msgspec.json.decode(value)
            except msgspec.DecodeError:
                what = f"The preference {name!r:.60} is not JSON. Set it again."
                yield Problem(owner, None, None, what)

    def _devices(self) -> Iterator[Problem]:
        """Read the rows of all signed-in browsers. The report names the id of a damaged row, for signing out."""
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
        """Return whether the chunks of a blob have the size and the hash of the blob. Reads chunk by chunk."""
        digest = hashlib.sha256()
        length = 0
        expected = 0
        while rows := self._store.query(
            "prove_chunk", owner=owner, hash=name, after=expected - 1
        ):
            number, data = rows[0]
            if number != expected:
                return False
            digest.update(data)
            length += len(data)
            expected += 1
        return length == size and digest.hexdigest() == name


def unreadable(error: Exception) -> str:
    """Describe an error of `UNREADABLE` in a sentence."""
    if isinstance(error, StoreDamaged):
        return str(error)
    return f"A row holds what it cannot hold: {error}."


def _of_store(what: str) -> Problem:
    return Problem(None, None, None, what)


def _sqlite_file(store: SqliteStore) -> Iterator[Problem]:
    """Check the pages and the settings of the file, and compare the schema with the migrations."""
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
            problem = "is not what the migrations make"
            if name not in schema:
                problem = "is missing"
            yield _of_store(f"In the schema, the {name} {problem}.")
    large = page_size * page_count > WHOLE_FILE_BYTES_MAX
    tables = sorted({row[2] for row in store.query("prove_schema")})
    for (message,) in _integrity(store, tables if large else []):
        if message != "ok":
            yield _of_store(f"SQLite finds the file damaged: {message}.")


def _schema(store: SqliteStore) -> dict[str, str]:
    return {f"{kind} {name}": sql for kind, name, _, sql in store.query("prove_schema")}


def _integrity(store: SqliteStore, tables: list[str]) -> Iterator[SqlRow]:
    if not tables:
        yield from store.query("prove_whole_file")
    for table in tables:
        yield from store.query("prove_table", name=table)
