"""The part shared by all engines: committing a group, retrying, and applying index changes.

An engine provides connections, transactions, a clock and the classification of errors. This module and `plan` decide
what is written, so the engines cannot differ.

An engine error (a full disk, a failed read) ends the whole transaction, even with an open savepoint. So the store rolls
a failed group back and retries the appends one by one.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tenax.concurrency import Backoff, count_forks, refuse_after_fork
from tenax.errors import (
    InvalidInput,
    LeaseLost,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreIncomplete,
    StoreMisused,
    TenaxError,
)
from tenax.events import (
    PARTIALS,
    ConversationOpened,
    Event,
    MessageWithdrawn,
    ToolFinished,
    ToolLate,
    ToolOutput,
    Unknown,
    decode,
)
from tenax.journal.base import Lease, Recorded
from tenax.journal.group import GroupCommit, Waiter
from tenax.journal.plan import Append, Batch, Key, Loaded, Stored, inner_hash, plan
from tenax.journal.row_index import (
    INDEX_VERSION,
    MESSAGE_ROLES,
    AddAuthor,
    Change,
    CloseRun,
    EndSegment,
    EraseBodies,
    HeadState,
    KillRows,
    LateOutput,
    Lookup,
    OpenRun,
    OpenSegment,
    PutRoute,
    PutRow,
    Recount,
    ReviveRows,
    SealRun,
    SetList,
    Spend,
    TakeInputs,
)
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.verify.derive import Derived
from tenax.journal.verify.rebuild import rebuild
from tenax.journal.wakeups import ANY, Wakeups
from tenax.journal.witness import CONVERSATIONS_MAX, Missing, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tenax.clock import Clock, Ids, Timing

__all__ = [
    "DAY_US",
    "SqlRow",
    "Store",
    "Trouble",
    "Tx",
    "drop_mentions",
    "drop_replaced_partials",
    "forget_learned",
    "head_row",
    "lease_key",
    "recorded",
    "too_new",
]

T = TypeVar("T")
SqlRow = tuple[Any, ...]
NUMS_MAX = 50_000
DAY_US = 86_400_000_000
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_IDS_PAGE = 200
_CLOCK_SLACK_US = 86_400_000_000


class Trouble(Exception):
    """A classified engine error. The caller gets `error` if the store gives up.

    `unknown`: the commit may have happened. `lasting`: a retry soon is useless.
    """

    def __init__(
        self, error: StoreError, *, unknown: bool = False, lasting: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.unknown = unknown
        self.lasting = lasting


class Tx(Protocol):
    """A connection inside a transaction. Statements are called by name."""

    def run(
        self, name: str, params: Mapping[str, Any] | tuple[Any, ...] = ()
    ) -> list[SqlRow]:
        """Run a statement and fetch every row."""

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for every row."""


class Store(abc.ABC):
    """An open store: the engine behind every user's `Journal`."""

    one_host = False
    """Whether all users of the store are on one host.

    A lease then need not be flushed, because a crash of the host ends them all.
    """

    def __init__(self, clock: Clock, ids: Ids, patience: float, timing: Timing) -> None:
        self.clock = clock
        self.timing = timing
        self.ids = ids
        self.patience = patience
        self.wakeups = Wakeups()
        self.queue = GroupCommit(self._commit, "tenax")
        self.incarnation = ""
        self.witness: Witness | None = None
        self._missing: list[Missing] = []
        self.put_back_to = 0
        """The time of the last write to an incomplete store, in microseconds; 0 if the store is empty."""
        self._last_facts: dict[int, int] = {}
        """The last fact seen by the witness or the process, by conversation."""
        self.proved: dict[int, list[tuple[int, int]]] = {}
        """The disjoint ranges of checked events (after a seq, up to a seq), by conversation."""
        self._nums: dict[Key, int] = {}
        """The numbers of conversations. A restored store may give a number to a different conversation, so every
        statement with a cached number also checks the owner and the id."""
        self._segment_names: dict[int, str] = {}
        self.life = ""
        """The name of the period in which the store's clock runs and unflushed writes survive."""
        self.boot = ""
        """The present value for the column `life` of the store's row."""
        self.connected_since = 0.0
        """When the process last connected, on the store's clock."""
        self.instance: str | None = None
        """The instance of the process, once the instance is locked."""
        self._forks = count_forks()
        self._closed = threading.Event()
        self._unflushed_since: float | None = None
        """The time of the first unflushed partial."""
        self.reach: Callable[[str], None] | None = None
        """Named failure points of a commit, for tests: begin, load, write, commit, committed."""

    # -- provided by an engine -------------------------------------------------------------------------------

    @abc.abstractmethod
    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Tx]:
        """Open a write transaction. The transaction commits at the end and rolls back on an error. Raises `Trouble`."""

    @abc.abstractmethod
    def reading(self) -> AbstractContextManager[Tx]:
        """Open a read connection, for a page at most. Raises `Trouble`."""

    @abc.abstractmethod
    def heads(self, tx: Tx, keys: Collection[Key]) -> dict[Key, HeadState]:
        """Return the heads of the conversations, locked until the transaction ends. Check the schema version."""

    def keep(self, states: dict[Key, HeadState], recounted: Collection[Key]) -> None:  # noqa: B027
        """Offer the stored heads of the transaction for caching.

        An engine able to notice foreign writes may cache the heads after the commit, except the recounted heads.
        """

    @abc.abstractmethod
    def as_list(self, numbers: Sequence[int]) -> object:
        """Return numbers as a parameter of a statement that takes a list."""

    @abc.abstractmethod
    def now(self, tx: Tx) -> float:
        """Return the store's clock in seconds. All users of the store share it."""

    @abc.abstractmethod
    def alive(self, tx: Tx, instance: str) -> bool:
        """Return whether the instance still holds its lock."""

    @abc.abstractmethod
    def live(self) -> str:
        """Return the id of the process's instance. The first call registers and locks the instance."""

    @abc.abstractmethod
    def recover(self, trouble: Trouble) -> None:
        """Prepare a retry: reopen the file or reconnect."""

    @abc.abstractmethod
    def announce(self, nums: Sequence[int]) -> None:
        """Hint to other processes that the conversations have new events."""

    @abc.abstractmethod
    def scrub(self) -> bool:
        """Remove deleted text from every file. Return `False` if some text has to wait."""

    def lock_all(self, tx: Tx) -> None:  # noqa: B027  (SQLite has a single writer anyway)
        """Block all other writers until the transaction ends."""

    @abc.abstractmethod
    def close_engine(self) -> None:
        """Mark the store as closed, stop its threads and close its connections."""

    # -- opening and closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit waiting appends and close the store."""
        if self._closed.is_set() or count_forks() != self._forks:
            return
        self.queue.close()
        if self.witness is not None:
            self.witness.close()
        if self.instance is not None:
            ended = {"id": self.instance, "at": self.clock.now_us()}
            with contextlib.suppress(StoreError):
                self.change(lambda tx: tx.run("end_instance", ended))
        self.close_engine()

    def _check_use(self) -> None:
        if self._closed.is_set():
            raise StoreMisused("The store was closed.")
        refuse_after_fork(self._forks)

    # -- lost events -----------------------------------------------------------------------------------------

    @property
    def missing(self) -> list[Missing]:
        """The lost events of the store. The store is read-only until the loss is accepted."""
        if self._missing and self.witness is not None and self.witness.accepted():
            self.look_again()
        return self._missing

    def _refuse_incomplete(self) -> None:
        """Raise `Trouble` for a loss not yet accepted.

        Call the method inside a transaction: opening the transaction may have connected to a lagging server.
        """
        missing = self._missing and self.missing
        if missing:
            error = StoreIncomplete(
                f"The store has lost events in {_conversations(len(missing))}: an older copy was restored, or the file "
                "is damaged. The store is read-only until you decide what to do.",
                hint="restore a newer copy, or see what is missing with: tenax doctor; "
                "to go on without it: tenax doctor --accept",
            )
            raise Trouble(error, lasting=True)

    def failover(self) -> str:
        """Return a sentence about possible losses after a failover of the server, or an empty string."""
        return ""

    def accept_loss(self) -> None:
        """Accept the loss and continue with the remaining events."""
        if not self._missing or self.witness is None:
            return
        incarnation = self.incarnation

        def once() -> None:
            with self.transaction() as tx:
                tx.run(
                    "set_incarnation", {"incarnation": incarnation, "life": self.boot}
                )

        self._persist(once, self.patience)
        heads = self.witness.heads_of(
            self.query("witness_heads", limit=CONVERSATIONS_MAX)
        )
        try:
            self.witness.accept(heads, self.inode())
        except OSError as error:
            raise StoreError(
                f"The witness of the store cannot be written: {error.strerror}.",
                hint="give yourself the right to write in its folder",
            ) from error
        # A connection opened in the meantime has found the same loss under the new incarnation.
        self._missing, self.incarnation = [], incarnation
        self._forget_numbers()
        self._last_facts = {num: head.facts for num, head in heads.items()}

    def _examine(
        self, incarnation: str, ask: Callable[..., list[SqlRow]]
    ) -> tuple[str, bool]:
        """Compare the store with the witness. Return the incarnation to use, and whether the file is the known file.

        An incomplete store gets a new incarnation, so no reader confuses new seqs with earlier seqs. The new
        incarnation is not stored: every process computes the same value.
        """
        self._forget_numbers()
        if self.witness is None:
            return incarnation, True
        missing, inode, facts = self.witness.examine(
            ask, functools.partial(self.digests, ask)
        )
        self._missing = missing
        if not missing:
            self._last_facts = facts
        else:
            self.put_back_to = int(ask("last_moved")[0][0])
            lost = repr((incarnation, self.inode(), missing)).encode()
            return hashlib.sha256(lost).hexdigest()[:32], True
        return incarnation, inode == self.inode()

    def look_again(self) -> None:
        """Compare the store with the witness again. Change nothing if the store cannot be read."""
        with contextlib.suppress(StoreError, Trouble), self.reading() as tx:
            self._look_again(tx)

    def read_digests(self, row_keys: list[int]) -> list[SqlRow]:
        """Return row key and digest of the events at the row keys. Raises `StoreError` at the first failure."""
        try:
            with self.reading() as tx:
                return self.digests(
                    lambda name, **params: tx.run(name, params), row_keys
                )
        except Trouble as trouble:
            raise trouble.error from trouble

    def _look_again(self, tx: Tx) -> None:
        """Compare the store with the witness again, under the present incarnation of the store."""
        ((_, incarnation, _),) = tx.run("store")
        self.incarnation, _ = self._examine(
            str(incarnation), lambda name, **params: tx.run(name, params)
        )

    def _forget_numbers(self) -> None:
        """Drop all cached numbers, because a restored store may reuse them.

        The dicts are replaced, not cleared, because other threads may be reading them.
        """
        self._nums = {}
        self._segment_names = {}
        self.proved = {}
        self._last_facts = {}

    def digests(
        self, ask: Callable[..., list[SqlRow]], row_keys: list[int]
    ) -> list[SqlRow]:
        """Return row key and digest of the events at the row keys."""
        return ask("digests", places=self.as_list(row_keys))

    def inode(self) -> int:
        """Return the inode of the store's file, or 0."""
        return 0

    # -- transactions with retries ---------------------------------------------------------------------------

    def change(
        self,
        work: Callable[[Tx], T],
        *,
        durable: bool = True,
        even_incomplete: bool = False,
    ) -> T:
        """Run `work` in a transaction. A retry runs `work` again, so `work` must recognise its own earlier success.

        `even_incomplete` allows the change in a store with lost events. Only sign-ins use it, never conversations.
        """

        def once() -> T:
            with self.transaction(durable=durable) as tx:
                if not even_incomplete:
                    self._refuse_incomplete()
                return work(tx)

        return self._persist(once, self.patience)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on a read connection. A failed read is retried for a short time."""

        def once() -> T:
            with self.reading() as tx:
                return work(tx)

        return self._persist(once, min(self.patience, self.timing.read_seconds))

    def num(self, user: str, conversation: str) -> int:
        """Return the conversation's number in the store, or 0 if the user has no such conversation."""
        rows = self.query("conversation", owner=user, id=conversation)
        if not rows:
            self.unknow((user, conversation))
            return 0
        return self.know((user, conversation), rows[0][0])

    def num_before(self, user: str, conversation: str) -> int:
        """Return the cached number, or look it up. Only for statements that check the owner."""
        return self._nums.get((user, conversation)) or self.num(user, conversation)

    def segment_names(self, tx: Tx, nums: Collection[int]) -> Mapping[int, str]:
        """Return a cache of segment names by number, containing at least the given numbers. Names never change."""
        names = self._segment_names
        missing = [num for num in nums if num and num not in names]
        if missing:
            if len(names) + len(missing) > NUMS_MAX:
                names = self._segment_names = {}
                missing = [num for num in nums if num]
            names.update(self.read_names(tx, missing))
        return names

    def read_names(self, tx: Tx, nums: Sequence[int]) -> Iterable[SqlRow]:
        """Return numbers and names of the segments."""
        return [
            (num, name) for num in nums for (name,) in tx.run("stretch_name", (num,))
        ]

    def segment_name(self, tx: Tx, num: int) -> str | None:
        """Return the name of the segment with the given number."""
        names = self.segment_names(tx, (num,))
        if num and num not in names:
            raise StoreDamaged(
                "A conversation has lost its open segment.", hint="run: tenax doctor"
            )
        return names.get(num)

    def index(self, key: Key, num: int) -> None:
        """Rebuild the index of a conversation if an older version of Tenax wrote it."""

        def rebuild_stale(tx: Tx) -> None:
            state = self.heads(tx, [key]).get(key)
            if state is not None and state.version != INDEX_VERSION:
                rebuild(tx, state)

        if self.query("stale", num=num, version=INDEX_VERSION):
            self.change(rebuild_stale)

    def forget(self, key: Key) -> None:
        """Drop the cached state of a deleted conversation."""
        num = self._nums.pop(key, None)
        self.proved.pop(num or 0, None)
        if num is not None and self.witness is not None:
            self.witness.forget(num)

    def know(self, key: Key, num: int) -> int:
        """Cache the number of a conversation. The number changes only if an older copy of the store is restored."""
        if self._nums.get(key, num) != num:
            self.unknow(key)
        if len(self._nums) >= NUMS_MAX:
            self._nums.clear()
        self._nums[key] = num
        return num

    def unknow(self, key: Key) -> None:
        """Drop the cached number of a conversation."""
        num = self._nums.pop(key, None)
        self.proved.pop(num or 0, None)

    def query(self, name: str, /, **params: Any) -> list[SqlRow]:  # noqa: ANN401  (the parameters of the statement)
        """Run a read statement."""
        return self.read(lambda tx: tx.run(name, params))

    def _persist(self, attempt: Callable[[], T], patience: float) -> T:
        """Repeat an attempt until it succeeds, for at most `patience` seconds."""
        deadline = self.clock.monotonic() + patience
        backoff: Backoff | None = None
        while True:
            try:
                return attempt()
            except (UnicodeEncodeError, OverflowError) as error:
                raise InvalidInput(
                    "The store cannot hold a number of more than 64 bits or an unpaired surrogate."
                ) from error
            except Trouble as trouble:
                # The backoff is created only here, because nearly every attempt succeeds.
                backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                pause = backoff.next_pause()
                if trouble.lasting or self.clock.monotonic() + pause > deadline:
                    raise trouble.error from trouble
                self.clock.sleep(pause)
                self.recover(trouble)

    def announce_rows(self) -> None:
        """Wake every follower of rows outside the journals, in this process and in others."""
        self.wakeups.notify([])
        self.announce([ANY])

    # -- group commit ----------------------------------------------------------------------------------------

    def waiter(self, append: Append, future: Any = None) -> Waiter:  # noqa: ANN401  (asyncio.Future or None)
        return Waiter(append, self.clock.monotonic() + self.patience, future)

    def _commit(self, group: list[Waiter]) -> None:
        """Settle every waiter of the group. Only one thread at a time may call the method."""
        try:
            trouble = self._tried(group)
        except Exception:
            if len(group) == 1:
                raise
            trouble = None
            # One append is at fault and fails again below. The others are looked up before they are stored.
            for waiter in group:
                waiter.append.repeated = True
        else:
            if trouble is None:
                return
        if len(group) > 1 and trouble is not None:
            self._note(group, trouble)
            self._recover(trouble)
            trouble = None
        for waiter in group:
            try:
                self._try_again(waiter, trouble)
            except Exception as error:  # noqa: BLE001  (an unexpected error goes to the caller of the append)
                if not waiter.done:
                    waiter.settle(error)

    def _tried(self, group: list[Waiter]) -> Trouble | None:
        try:
            self._attempt(group)
        except Trouble as trouble:
            return trouble
        return None

    def _try_again(self, waiter: Waiter, trouble: Trouble | None) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        looked_up = False
        while not waiter.done:
            if trouble is not None:
                # After an unknown outcome, the next attempt first looks the append up. The store makes one such attempt
                # even if a retry cannot succeed (a full disk), because the append may be stored.
                retry = not trouble.lasting or (
                    not looked_up and (waiter.append.maybe_stored or trouble.unknown)
                )
                looked_up = waiter.append.maybe_stored
                self._note([waiter], trouble)
                pause = backoff.next_pause()
                if not retry or self.clock.monotonic() + pause > waiter.deadline:
                    waiter.settle(self._given_up(waiter.append, trouble))
                    return
                self.clock.sleep(pause)
                self._recover(trouble)
            trouble = self._tried([waiter])

    def _recover(self, trouble: Trouble) -> None:
        try:
            self.recover(trouble)
        except Trouble:
            # The store is still unavailable. The next attempt reports the error, and retries end at the deadline.
            return

    @staticmethod
    def _note(group: list[Waiter], trouble: Trouble) -> None:
        for waiter in group:
            waiter.append.repeated = waiter.append.repeated or trouble.unknown
            waiter.append.maybe_stored = waiter.append.maybe_stored or trouble.unknown

    @staticmethod
    def _given_up(append: Append, trouble: Trouble) -> TenaxError:
        if not append.maybe_stored:
            return trouble.error
        return OutcomeUnknown(
            f"The store failed during the commit, and it is unknown whether the append was stored: {trouble.error}",
            append_id=append.append_id,
        )

    def _flush_is_due(self) -> bool:
        """Return whether partials have been unflushed for so long that the commit must flush them."""
        now = self.clock.monotonic()
        if self._unflushed_since is None:
            self._unflushed_since = now
        return now - self._unflushed_since >= self.timing.flush_seconds

    def _attempt(self, group: list[Waiter]) -> None:
        """Store the group in a single transaction. Settle the waiters only after the commit has returned."""
        appends = list(map(_append_of, group))
        batch = Batch()
        reach = self.reach
        if reach:
            reach("begin")
        durable = not all(map(_is_partial, appends)) or self._flush_is_due()
        with self.transaction(durable=durable) as tx:
            self._refuse_incomplete()
            if reach:
                reach("load")
            loaded = self._load(tx, appends)
            self._refuse_older(
                tx, [state for state in loaded.heads.values() if self._is_older(state)]
            )
            outcomes: list[list[Recorded] | TenaxError] = []
            for append in appends:
                try:
                    outcomes.append(self._plan(tx, append, loaded, batch))
                except TenaxError as error:
                    outcomes.append(error)
            self._refuse_older(
                tx,
                [
                    batch.states[key]
                    for key in batch.opened
                    if batch.states[key].num in self._last_facts
                ],
            )
            if reach:
                reach("write")
            self.keep(batch.states, self._store(tx, batch))
            _release_leases(tx, appends, outcomes, batch)
            if reach:
                reach("commit")
        # A flush also writes the earlier partials to the disk.
        self._unflushed_since = None if durable else self._unflushed_since
        if reach:
            reach("committed")
        for waiter, outcome in zip(group, outcomes, strict=True):
            waiter.settle(outcome)
        if batch.states:
            self._moved(batch, appends, outcomes)

    def _is_older(self, state: HeadState) -> bool:
        return state.facts < self._last_facts.get(state.num, 0)

    def _refuse_older(self, tx: Tx, signs: list[HeadState]) -> None:
        """Compare the store with the witness again if an older copy seems to have been restored. Raises `Trouble`.

        Signs are a conversation with fewer facts than before, and a new conversation with a number that was in use.
        """
        if signs:
            self._look_again(tx)
            self._refuse_incomplete()
            # Nothing is missing any more. Retry, because this attempt may have used cached state.
            raise Trouble(StoreBusy("An older copy of the store was restored."))

    def _moved(
        self,
        batch: Batch,
        appends: Sequence[Append],
        outcomes: Sequence[list[Recorded] | TenaxError],
    ) -> None:
        """Give the committed events to the readers, and the new heads to the witness."""
        if len(self._last_facts) > NUMS_MAX:
            self._last_facts.clear()
        for key in batch.moved:
            state = batch.states[key]
            self._last_facts[state.num] = state.facts
        for key in batch.opened:
            self.know(key, batch.states[key].num)
        stored: dict[int, list[Recorded]] = {
            state.num: [] for state in batch.states.values()
        }
        if self.wakeups.followed:
            for append, outcome in zip(appends, outcomes, strict=True):
                moved = batch.states.get(append.key)
                if moved is not None and isinstance(outcome, list):
                    stored[moved.num] += outcome
        self.wakeups.deliver(stored)
        self.announce(list(stored))
        if batch.moved and self.witness is not None:
            self.witness.note(map(batch.states.__getitem__, batch.moved))

    def _plan(
        self, tx: Tx, append: Append, loaded: Loaded, batch: Batch
    ) -> list[Recorded]:
        state = loaded.heads.get(append.key)
        if state is not None and state.version != INDEX_VERSION:
            state = loaded.heads[append.key] = rebuild(tx, state)
        look = _lookup(tx, append, state) if append.solo else _NOTHING
        opener = functools.partial(_open_conversation, tx) if append.opens else None
        stored = plan(append, state, loaded, batch, look, opener, self.clock, self.ids)
        if append.release and append.lease is not None:
            # A later append of the group cannot use the lease any more.
            loaded.terms[append.user, append.lease.name] = (append.lease.term, None)
        return stored

    # -- loading the state for a group -----------------------------------------------------------------------

    def _load(self, tx: Tx, appends: list[Append]) -> Loaded:
        loaded = Loaded()
        keys = dict.fromkeys(map(_key_of, appends))
        loaded.heads = self.heads(tx, keys)
        if len(loaded.heads) < len(keys):
            for key in keys:
                if key not in loaded.heads and tx.run(
                    "tombstone", {"owner": key[0], "id": key[1]}
                ):
                    loaded.gone.add(key)
        for append in appends:
            if append.asks or append.repeated:
                self._load_asked(tx, append, loaded)
        return loaded

    def _load_asked(self, tx: Tx, append: Append, loaded: Loaded) -> None:
        """Load the state that the append needs beyond the head."""
        user = append.user
        if append.lease is not None and (user, append.lease.name) not in loaded.terms:
            where = {"owner": user, "name": append.lease.name}
            for term, token in tx.run("fence", where):
                loaded.terms[user, append.lease.name] = (term, token)
        for name in append.names:
            if tx.run("stretch_taken", {"owner": user, "name": name}):
                loaded.taken.add((user, name))
        if append.repeated:
            self._load_appended(tx, append, loaded)
        if append.dedup is not None:
            self._load_received(tx, append, loaded)

    def _load_appended(self, tx: Tx, append: Append, loaded: Loaded) -> None:
        """Look for an append by id. The id contains the creation time, which bounds the search."""
        state = loaded.heads.get(append.key)
        if state is None:
            return
        low, high = bounds(state.num)
        name = "append_ids_of_partials" if append.partial else "append_ids"
        ahead = (
            0
            if append.partial
            else next(n for n, item in enumerate(append.items) if not item.code)
        )
        made_at = int.from_bytes(append.append_id[:6], "big") * 1000
        while rows := tx.run(name, {"low": low, "high": high, "limit": _IDS_PAGE}):
            for row_key, _, append_id in rows:
                if append_id == append.append_id:
                    loaded.appended[append.append_id] = _stored(
                        tx, state.id, row_key - ahead, len(append.items)
                    )
                    return
            high, at, _ = rows[-1]
            if at < made_at - _CLOCK_SLACK_US:
                return

    @staticmethod
    def _load_received(tx: Tx, append: Append, loaded: Loaded) -> None:
        dedup = append.dedup
        assert dedup is not None
        where = {"owner": append.user, "source": dedup.source, "id": dedup.id}
        for row_key, count in tx.run("received", where):
            # No events: the conversation was deleted.
            stored = Stored([])
            for (name,) in tx.run("conversation_of", {"num": row_key >> SEQ_BITS}):
                stored = _stored(tx, name, row_key, count)
            loaded.received[append.user, dedup.source, dedup.id] = stored

    # -- writing a group -------------------------------------------------------------------------------------

    def _store(self, tx: Tx, batch: Batch) -> Collection[Key]:
        """Write the batch. Return the conversations with recounted messages."""
        for name, rows in batch.rows.items():
            tx.many(name, rows)
        recount = self._apply(tx, batch) if batch.changes else {}
        if batch.moved:
            tx.many(
                "put_head",
                list(map(head_row, map(batch.states.__getitem__, batch.moved))),
            )
        if len(batch.states) > len(batch.moved):
            heads = [
                (state.head, state.num)
                for key, state in batch.states.items()
                if key not in batch.moved
            ]
            tx.many("set_head_seq", heads)
        for key, stretch_from in recount.items():
            _recount(tx, batch.states[key], stretch_from)
        for follows, nums in batch.woken.items():
            tx.run("wake_readers", {"nums": self.as_list(nums), "follows": follows})
        for key, skips in batch.opened.items():
            self._place_cursors(tx, batch.states[key], skips=skips)
        return recount

    @staticmethod
    def _place_cursors(tx: Tx, state: HeadState, *, skips: bool) -> None:
        """Place every reader's cursor in a new conversation. With `skips`, readers from now on skip the events."""
        follows = {"facts": state.facts, "turns": state.turns, "due": state.due}
        tx.run(
            "new_cursors",
            {"num": state.num, "now": state.head if skips else 0, **follows},
        )
        state.woken = not skips

    @staticmethod
    def _apply(tx: Tx, batch: Batch) -> dict[Key, int]:
        """Apply the rare index changes in order.

        Return the conversations with messages to recount, and the first seq that counts for the open segment.
        """
        for key, change in batch.changes:
            if not isinstance(change, Recount):
                _apply_one(tx, batch.states[key], change)
        recount: dict[Key, int] = {}
        for key, change in batch.changes:
            if isinstance(change, EndSegment) and key in recount:
                state = batch.states[key]
                if state.segment_name is None:
                    recount[key] = state.head + 1
            elif isinstance(change, Recount):
                state = batch.states[key]
                if state.segment_name is None or change.after < state.stretch_from:
                    recount[key] = state.stretch_from
                else:
                    # The changes of the open segment are counted already.
                    state.unanswered = _StoreLookup(tx, state.num).first_waiting(())
        return recount


def _open_conversation(tx: Tx, key: Key, at: int, opened: ConversationOpened) -> int:
    origin = opened.origin.conversation if opened.origin else None
    where = {
        "owner": key[0],
        "id": key[1],
        "source": opened.source,
        "origin": origin,
        "at": at,
    }
    return int(tx.run("open_conversation", where)[0][0])


_append_of: Callable[[Waiter], Append] = attrgetter("append")
_key_of: Callable[[Append], Key] = attrgetter("key")
_RESULTS = frozenset({ToolFinished.kind, ToolLate.kind})
_is_partial: Callable[[Append], bool] = attrgetter("partial")
head_row: Callable[[HeadState], tuple[Any, ...]] = attrgetter(
    "num", "head", "facts", "turns", "due", "revision", "epoch", "digest", "run", "stretch", "context_from",
    "unanswered", "messages", "stretch_messages", "stretch_from", "stretch_covers", "listed_at", "version",
    "asks", "failed", "answered",
)  # fmt: skip


def _conversations(count: int) -> str:
    return "1 conversation" if count == 1 else f"{count:,} conversations"


def too_new(schema: int) -> SchemaTooNew:
    """Return the error for a store changed by a newer version of Tenax."""
    return SchemaTooNew(
        f"The store has schema {schema}, and this Tenax knows {SCHEMA_VERSION}: a newer Tenax has changed it.",
        hint="restart with the newer version; or, to go back to the backup from before the upgrade, find it with `tenax backup --list`, "
        "move the store away, and run: tenax restore FOLDER --at BACKUP",
    )


def _recount(tx: Tx, state: HeadState, stretch_from: int) -> None:
    low, high = bounds(state.num)
    where = {"num": state.num, "low": low, "high": high, "roles": MESSAGE_ROLES}
    tx.run("recount", {**where, "stretch_from": stretch_from})
    tx.run("recount_stretches", {"num": state.num, "low": low, "roles": MESSAGE_ROLES})


def _count(tx: Tx, state: HeadState, sign: int, where: dict[str, int]) -> None:
    """Adjust the message counts after an undo (sign -1) or a restore (sign 1)."""
    [(count,)] = tx.run("count_rows", {**where, "roles": MESSAGE_ROLES})
    state.messages += sign * int(count)
    state.stretch_messages += sign * int(count)


_STATEMENTS: dict[type, str] = {
    EndSegment: "end_stretch",
    OpenRun: "open_run",
    CloseRun: "close_run",
    LateOutput: "late_output",
    SealRun: "seal_run",
    AddAuthor: "put_author",
}
"""The statements of the changes whose fields are the parameters of the statement."""


def _apply_one(tx: Tx, state: HeadState, change: Change) -> None:  # noqa: C901  (one case per change)
    low, _ = bounds(state.num)
    own: dict[str, Any] = {"owner": state.user, "num": state.num}
    match change:
        case KillRows(after, upto, by):
            where = {"after": low + after, "high": low + upto, "by": by, "dead": by}
            tx.run("kill_rows", where)
            _count(tx, state, -1, where)
        case ReviveRows(after, by):
            where = {"after": low + after, "high": low + by, "by": by, "dead": 0}
            tx.run("revive_rows", where)
            _count(tx, state, 1, where)
        case TakeInputs(seqs):
            if seqs:
                tx.many("take_input", [(low + seq,) for seq in seqs])
        case OpenSegment():
            [(opened,)] = tx.run("open_stretch", {**own, **change._asdict()})
            if state.segment_name == change.name:
                state.stretch = opened
        case (
            EndSegment()
            | OpenRun()
            | CloseRun()
            | LateOutput()
            | SealRun()
            | AddAuthor()
        ):
            tx.run(_STATEMENTS[type(change)], {**own, **change._asdict()})
        case SetList(column, value):
            tx.run(f"set_{column}", {**own, "value": value})
        case PutRoute():
            route = {"num": state.num, **change._asdict()}
            tx.run("put_route", route)
            tx.run("put_route_cursor", route)
        case Spend(at, model, usage):
            cost = 0 if usage.cost is None else round(usage.cost * 1e6)
            took = {
                "model": model,
                "input": usage.input,
                "output": usage.output,
                "cost": cost,
                "unpriced": int(usage.cost is None),
            }
            tx.run("spend", {**own, "day": at // DAY_US, **took})
        case EraseBodies(seqs):
            for seq in seqs:
                _erase_body(tx, state.user, low + seq)
                forget_learned(tx, state.user, low + seq, low + seq)


def _erase_body(tx: Tx, user: str, row_key: int) -> None:
    """Erase a body, the partials replaced by the body, and the blobs named by no remaining event."""
    for kind, body, salt, first in tx.run("body", {"place": row_key}):
        if body is None:
            return
        tx.run("erase_body", {"place": row_key, "body_hash": inner_hash(salt, body)})
        # Text of an answer names its request, and output of a tool names its message and call.
        of: list[Any] = [first]
        if kind in _RESULTS:
            of = list(_call_of(body))
        if of[0] is not None:
            between = tx.run(
                "partials_of",
                {"low": row_key >> SEQ_BITS << SEQ_BITS | of[0], "high": row_key},
            )
            own = [
                (partial_key,)
                for partial_key, _, partial_body in between
                if msgspec.json.decode(partial_body)[: len(of)] == of
            ]
            if own:
                tx.many("drop_partial", own)
        drop_mentions(tx, user, row_key, row_key)


def _release_leases(
    tx: Tx,
    appends: Sequence[Append],
    outcomes: Sequence[list[Recorded] | TenaxError],
    batch: Batch,
) -> None:
    """Release the leases of runs ending in the group, and drop the partials replaced by facts of the runs."""
    for append, outcome in zip(appends, outcomes, strict=True):
        if not append.release or not isinstance(outcome, list):
            continue
        state = batch.states.get(append.key)
        if append.lease is not None:
            tx.run("release_lease", lease_key(append.user, append.lease))
        if state is not None:
            drop_replaced_partials(tx, state.num)


def check_lease(tx: Tx, user: str, lease: Lease) -> None:
    """Raise `LeaseLost` unless the lease is still held."""
    rows = tx.run("fence", {"owner": user, "name": lease.name})
    if not rows or tuple(rows[0]) != (lease.term, lease.token):
        raise LeaseLost(f"{lease.name} is no longer held by {lease.holder}.")


def lease_key(user: str, lease: Lease) -> dict[str, Any]:
    """Return the parameters of a statement on a lease that is still held."""
    return {
        "owner": user,
        "name": lease.name,
        "fence": lease.term,
        "token": lease.token,
    }


def drop_replaced_partials(tx: Tx, num: int) -> int:
    """Drop the partials of a conversation replaced by a later fact. Return the number of dropped partials."""
    low, high = bounds(num)
    replaced_at: dict[int | tuple[int, str], int] = {}
    dropped: list[tuple[int]] = []
    for row_key, code, body in tx.run("partials_of", {"low": low, "high": high}):
        first, call = msgspec.json.decode(body)[:2]
        if code == ToolOutput.code:
            of: int | tuple[int, str] = (first, call)
        else:
            of = first
        if of not in replaced_at:
            replaced_at[of] = _replaced_at(tx, low, high, of)
        if row_key < replaced_at[of]:
            dropped.append((row_key,))
    if dropped:
        tx.many("drop_partial", dropped)
    return len(dropped)


def _replaced_at(tx: Tx, low: int, high: int, of: int | tuple[int, str]) -> int:
    """Return the row key of the answer to a request, or of the result of a call; 0 if there is none."""
    if isinstance(of, int):
        where = {"low": low + of, "high": high, "first": of}
        [(last_key,)] = tx.run("replaced", where)
        return int(last_key or 0)
    results = tx.run("results_after", {"low": low + of[0], "high": high})
    # An erased result does not name its call any more. The output of the call must not outlive the result.
    keys = [key for key, body in results if body is None or _call_of(body) == of]
    return max(keys, default=0)


def _call_of(body: bytes) -> tuple[int, str]:
    """Return the message and the call of a `tool.finished` or `tool.late`."""
    result = msgspec.json.decode(body)
    return result["message"], result["call"]


def drop_mentions(tx: Tx, user: str, low: int, high: int) -> None:
    """Remove the records of the blobs named by the events. Drop blobs named by no remaining event."""
    mentions = tx.run("mentions_at", {"low": low, "high": high})
    tx.run("delete_mentions", {"low": low, "high": high})
    for (blob_hash,) in mentions:
        where = {"owner": user, "hash": blob_hash}
        if not tx.run("mentioned", where):
            tx.run("drop_chunks", where)
            tx.run("drop_blob", where)


def forget_learned(tx: Tx, user: str, low: int, high: int) -> None:
    """Delete all versions of the memories from the events, and the schedules created by the events."""
    tx.run("change_memory", {"owner": user})
    tx.run("forget_learned", {"owner": user, "low": low, "high": high})
    tx.run("forget_schedules", {"owner": user, "low": low, "high": high})


def _stored(tx: Tx, conversation: str, row_key: int, count: int) -> Stored:
    """Return the events of a stored append. Some partials may have been pruned."""
    rows = tx.run(
        "read", {"low": row_key - 1, "high": row_key + count - 1, "limit": count}
    )
    return Stored([recorded(conversation, row) for row in rows])


def recorded(conversation: str, row: SqlRow) -> Recorded:
    """Return a row of the statement `read` as an event."""
    row_key, kind, at, run, body, digest, code = row
    kind = PARTIALS[code].kind if code else kind
    return Recorded(
        conversation, row_key & ALL_SEQS, kind, at, run, body, digest or b""
    )


def _lookup(tx: Tx, append: Append, state: HeadState | None) -> Lookup:
    """Return the lookup for planning the append."""
    if append.imported:
        return Derived(append.user, append.conversation)
    return _StoreLookup(tx, state.num if state is not None else 0)


class _StoreLookup:
    """Answer the lookups of rare events from the store."""

    def __init__(self, tx: Tx, num: int) -> None:
        self._tx = tx
        self._low, self._high = bounds(num)
        self._noted: list[int] = []
        self._taken: set[int] = set()
        """The inputs taken by the same append."""
        self._withdrawn: set[int] = set()
        """The inputs withdrawn by the same append."""
        self._killed_after = self._high
        """The last row not removed by an undo of the same append."""

    def kind_at(self, seq: int) -> str | None:
        found = self._tx.run("kind_at", {"place": self._low + seq})
        return found[0][0] if found else None

    def standing_after(self, seq: int) -> int:
        where = {"low": self._low + seq, "high": self._killed_after}
        standing = int(self._tx.run("standing_between", where)[0][0])
        withdrawn = [
            of for of in self._withdrawn if seq < of and not self._is_undone(of)
        ]
        return standing - len(withdrawn)

    def killed_by(self, seq: int) -> bool:
        where = {"low": self._low, "high": self._low + seq, "by": seq}
        return bool(self._tx.run("killed_by", where)[0][0])

    def title_at(self) -> int:
        return (
            int(
                self._tx.run("last_title", {"low": self._low, "high": self._high})[0][0]
            )
            & ALL_SEQS
        )

    def first_waiting(self, taken: Sequence[int]) -> int:
        gone = self._taken.union(taken)
        where = {"low": self._low, "high": self._high, "limit": len(gone) + 1}
        waiting = [
            row_key & ALL_SEQS for (row_key,) in self._tx.run("waiting", where)
        ] + self._noted
        return next((seq for seq in waiting if seq not in gone), 0)

    def is_waiting(self, seq: int) -> bool:
        if seq in self._taken | self._withdrawn or self._is_undone(seq):
            return False
        where = {"low": self._low + seq - 1, "high": self._low + seq, "limit": 1}
        return bool(self._tx.run("waiting", where))

    def is_withdrawn(self, seq: int) -> bool:
        where = {"low": self._low, "place": self._low + seq}
        return seq in self._withdrawn or bool(self._tx.run("is_withdrawn", where)[0][0])

    def _is_undone(self, seq: int) -> bool:
        """Return whether an undo of the same append removes a row."""
        return self._low + seq > self._killed_after

    def edits_since(self, since: int) -> list[Event | Unknown]:
        found = self._tx.run(
            "edits_since", {"low": self._low + since, "high": self._high}
        )
        return [decode(kind, body) for kind, body in found]

    def note(
        self, _seq: int, _kind: str, event: Event | Unknown, changes: Sequence[Change]
    ) -> None:
        """Remember the inputs and the removals of the same append, because they are not in the store yet."""
        if isinstance(event, MessageWithdrawn):
            self._withdrawn.add(event.of)
            return
        for change in changes:
            if isinstance(change, PutRow) and change.waiting:
                self._noted.append(change.seq)
            elif isinstance(change, TakeInputs):
                self._taken.update(change.seqs)
            elif isinstance(change, KillRows):
                self._killed_after = self._low + change.after


_NOTHING: Lookup = Derived("", "")
"""The lookup of appends sharing a transaction. Such appends look nothing up."""
