"""What the engines share: one way to commit a group, one way to try again, one way to apply changes.

An engine gives connections, transactions, its clock and its verdict on an error. Everything that decides what is
written stands here and in `plan`, so the engines cannot differ in it.

After any engine error the transaction is gone as a whole (a full disk or a failed read ends it, whatever savepoint
was open), so a group that fails is undone, those already planned included, and tried again one by one.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tenax.errors import (
    InvalidInput,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreIncomplete,
    TenaxError,
)
from tenax.events import PARTIALS, ConversationOpened, Event, Unknown, decode
from tenax.journal.base import Recorded
from tenax.journal.group import GroupCommit, Waiter
from tenax.journal.hub import Hub
from tenax.journal.place import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.plan import Append, Batch, Key, Loaded, Stored, inner_hash, plan
from tenax.journal.row_index import (
    INDEX_VERSION,
    MESSAGE_ROLES,
    AddAuthor,
    Change,
    CloseRun,
    EndStretch,
    EraseBodies,
    HeadState,
    KillRows,
    LateOutput,
    Lookup,
    OpenRun,
    OpenStretch,
    PutRow,
    Recount,
    ReviveRows,
    SealRun,
    SetList,
    Spend,
    TakeInputs,
)
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.verify.derive import Derived
from tenax.journal.verify.rebuild import rebuild
from tenax.journal.witness import CONVERSATIONS_MAX, Missing, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tenax.clock import Clock, Ids

__all__ = [
    "DAY_US",
    "FLUSH_SECONDS",
    "Row",
    "Store",
    "Trouble",
    "Tx",
    "drop_mentions",
    "forget_learned",
    "head_row",
    "recorded",
    "too_new",
]

T = TypeVar("T")
Row = tuple[Any, ...]
NUMS_MAX = 50_000
DAY_US = 86_400_000_000
FLUSH_SECONDS = 0.75
"""How long partials may be written and not flushed to the disk. With the pause between two appends it stays below a second."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_IDS_PAGE = 200
_CLOCK_SLACK_US = 86_400_000_000


class Trouble(Exception):
    """An engine error, judged. `error` is what a caller is told if it is given up.

    `unknown`: the commit may have happened. `lasting`: trying again soon is of no use.
    """

    def __init__(
        self, error: StoreError, *, unknown: bool = False, lasting: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.unknown = unknown
        self.lasting = lasting


class Tx(Protocol):
    """A connection inside a transaction, speaking statements by name."""

    def run(
        self, name: str, params: Mapping[str, Any] | tuple[Any, ...] = ()
    ) -> list[Row]:
        """Run one statement and fetch all its rows."""

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run one statement for each of the rows."""


class Store(abc.ABC):
    """One open store: the engine behind every user's `Journal`."""

    one_host = False
    """Whoever uses it dies with its host, so a lease need not be flushed: nobody is left to miss it."""

    def __init__(self, clock: Clock, ids: Ids, patience: float) -> None:
        self.clock = clock
        self.ids = ids
        self.patience = patience
        self.hub = Hub()
        self.queue = GroupCommit(self._commit, "tenax")
        self.incarnation = ""
        self.witness: Witness | None = None
        self._missing: list[Missing] = []
        self.put_back_to = 0
        """When an incomplete store was last written to, in microseconds; 0 if it is empty."""
        self._last_facts: dict[int, int] = {}
        """The last fact that the store is known to have had, by conversation: from its witness, and from this process."""
        self.proved: dict[int, list[tuple[int, int]]] = {}
        """By conversation: the ranges of events, after a seq up to a seq, that this process has proved. None touches another."""
        self._nums: dict[Key, int] = {}
        """The numbers of conversations. A store that is put back gives the numbers of lost ones to others, so whoever reads by
        a number from here asks the store whether it is still of that conversation."""
        self._stretches: dict[int, str] = {}
        self._unflushed_since: float | None = None
        """When the first partial was written that no flush has taken to the disk yet."""
        self.reach: Callable[[str], None] | None = None
        """Named failure points of a commit, for tests: begin, load, write, commit, committed."""

    # -- what an engine gives --------------------------------------------------------------------------------

    @abc.abstractmethod
    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Tx]:
        """A write transaction. Leaving it commits; an error in it undoes it. Raises Trouble."""

    @abc.abstractmethod
    def reading(self) -> AbstractContextManager[Tx]:
        """A connection to read from, for no longer than a page. Raises Trouble."""

    @abc.abstractmethod
    def heads(self, tx: Tx, keys: Collection[Key]) -> dict[Key, HeadState]:
        """The heads of these conversations, locked until the transaction ends. Checks the schema's version."""

    def keep(self, states: dict[Key, HeadState], recounted: Sequence[Key]) -> None:  # noqa: B027
        """The transaction that ends now stores these heads. An engine that can tell when somebody else writes may
        keep them once it has committed, but for those that were counted again in the store.
        """

    @abc.abstractmethod
    def wake_readers(self, tx: Tx, nums: list[int], follows: str) -> None:
        """Mark the readers that follow this in these conversations as behind."""

    @abc.abstractmethod
    def now(self, tx: Tx) -> float:
        """The store's clock, in seconds: the same for everybody who uses this store."""

    @abc.abstractmethod
    def alive(self, tx: Tx, instance: str) -> bool:
        """Whether this instance still holds its lock."""

    @abc.abstractmethod
    def live(self) -> str:
        """Hold the lock of an instance of our own; its id. Made when first needed."""

    @abc.abstractmethod
    def recover(self, trouble: Trouble) -> None:
        """Get ready to try again after trouble: reopen, reconnect."""

    @abc.abstractmethod
    def announce(self, nums: Sequence[int]) -> None:
        """Tell other processes that these conversations have moved. A hint."""

    @abc.abstractmethod
    def scrub(self) -> bool:
        """Make sure that nothing deleted is left in any file. False if something still has to be waited for."""

    @abc.abstractmethod
    def connected_since(self) -> float:
        """When this process was last (re)connected, on the store's clock."""

    def lock_all(self, tx: Tx) -> None:  # noqa: B027  (SQLite has one writer as it is)
        """Keep every other writer out until the transaction ends."""

    @abc.abstractmethod
    def life(self) -> str:
        """Names the stretch of time in which the store's clock and its unflushed writes live on."""

    @abc.abstractmethod
    def close(self) -> None:
        """Commit what waits, and let go."""

    # -- what is missing -------------------------------------------------------------------------------------

    @property
    def missing(self) -> list[Missing]:
        """What the store lacks of what it had stored. While there is something, it is read-only."""
        if self._missing and self.witness is not None and self.witness.accepted():
            self.look_again()
        return self._missing

    def _refuse_incomplete(self) -> None:
        """Raise Trouble if something is missing that nobody has accepted yet.

        It is asked inside of a transaction: beginning one may have connected to a server that lagged behind.
        """
        missing = self._missing and self.missing
        if missing:
            error = StoreIncomplete(
                f"The store lacks events that it had stored, in {_conversations(len(missing))}: an older copy was put "
                "back, or it is damaged. It takes nothing new until somebody has looked at it.",
                hint="restore a newer copy, or see what is missing with: tenax doctor; "
                "to go on without it: tenax doctor --accept",
            )
            raise Trouble(error, lasting=True)

    def failover(self) -> str:
        """What a failover of the server could lose, in a sentence; empty where there is no server."""
        return ""

    def accept_loss(self) -> None:
        """Go on with the store as it is: what is missing is no longer missed."""
        if not self._missing or self.witness is None:
            return
        incarnation = self.incarnation

        def once() -> None:
            with self.transaction() as tx:
                tx.run(
                    "set_incarnation", {"incarnation": incarnation, "life": self.boot()}
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
        # A connection that was made meanwhile has found the same loss under the new incarnation.
        self._missing, self.incarnation = [], incarnation
        self._forget_numbers()
        self._last_facts = {num: head.facts for num, head in heads.items()}

    def _examine(
        self, incarnation: str, ask: Callable[..., list[Row]]
    ) -> tuple[str, bool]:
        """Compare the store with its witness. The incarnation to read it under, and whether its file is the known one.

        One that lacks something gets another incarnation, so that nobody takes its numbers for those they had. Nothing is
        written to it: every process works out the same one.
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
        """Compare the store with its witness once more. Where the store cannot be read, all stays as it is."""
        with contextlib.suppress(StoreError, Trouble), self.reading() as tx:
            self._look_again(tx)

    def read_digests(self, places: list[int]) -> list[Row]:
        """Place and digest of the events at these places, asked once. Raises StoreError."""
        try:
            with self.reading() as tx:
                return self.digests(lambda name, **params: tx.run(name, params), places)
        except Trouble as trouble:
            raise trouble.error from trouble

    def _look_again(self, tx: Tx) -> None:
        """Compare the store with its witness once more, under the incarnation that the store has now."""
        ((_, incarnation, _),) = tx.run("store")
        self.incarnation, _ = self._examine(
            str(incarnation), lambda name, **params: tx.run(name, params)
        )

    def _forget_numbers(self) -> None:
        """Forget what numbers mean: the store may have gone back, and they may come to mean something else.

        The dicts are replaced, not emptied: other threads may be reading from them.
        """
        self._nums = {}
        self._stretches = {}
        self.proved = {}
        self._last_facts = {}

    @abc.abstractmethod
    def digests(self, ask: Callable[..., list[Row]], places: list[int]) -> list[Row]:
        """Place and digest of the events at these places."""

    @abc.abstractmethod
    def boot(self) -> str:
        """What `life` in the store's row names now."""

    def inode(self) -> int:
        """Names the file of the store, where it is one."""
        return 0

    # -- transactions that try again -------------------------------------------------------------------------

    def change(
        self,
        work: Callable[[Tx], T],
        *,
        durable: bool = True,
        even_incomplete: bool = False,
    ) -> T:
        """Run `work` in a transaction. It may be run again, so it has to find its own earlier success.

        `even_incomplete`: also in a store that lacks something. For who may sign in, never for what was said.
        """

        def once() -> T:
            with self.transaction(durable=durable) as tx:
                if not even_incomplete:
                    self._refuse_incomplete()
                return work(tx)

        return self._persist(once, self.patience)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on a connection for reading. A read that fails is tried again for a short while."""

        def once() -> T:
            with self.reading() as tx:
                return work(tx)

        return self._persist(once, min(self.patience, 3.0))

    def num(self, user: str, conversation: str) -> int:
        """The conversation's number in the store, or 0 if this user has none of that id."""
        rows = self.query("conversation", owner=user, id=conversation)
        if not rows:
            self.unknow((user, conversation))
            return 0
        return self.know((user, conversation), rows[0][0])

    def num_before(self, user: str, conversation: str) -> int:
        """The same, as it was when it was last looked up: for a statement that asks itself whose number it is."""
        return self._nums.get((user, conversation)) or self.num(user, conversation)

    def stretch_names(self, tx: Tx, nums: Collection[int]) -> Mapping[int, str]:
        """Names of stretches by their numbers, of these and maybe of others. They never change, so they are kept."""
        names = self._stretches
        missing = [num for num in nums if num and num not in names]
        if missing:
            if len(names) + len(missing) > NUMS_MAX:
                names = self._stretches = {}
                missing = [num for num in nums if num]
            names.update(self.read_names(tx, missing))
        return names

    def read_names(self, tx: Tx, nums: Sequence[int]) -> Iterable[Row]:
        """Numbers and names of these stretches."""
        return [
            (num, name) for num in nums for (name,) in tx.run("stretch_name", (num,))
        ]

    def stretch_name(self, tx: Tx, num: int) -> str | None:
        """The name of a stretch by its number."""
        names = self.stretch_names(tx, (num,))
        if num and num not in names:
            raise StoreDamaged(
                "A conversation has lost its open stretch.", hint="run: tenax doctor"
            )
        return names.get(num)

    def index(self, key: Key, num: int) -> None:
        """Index a conversation anew that an older version has indexed, and nobody has written to since."""

        def work(tx: Tx) -> None:
            state = self.heads(tx, [key]).get(key)
            if state is not None and state.version != INDEX_VERSION:
                rebuild(tx, state)

        if self.query("stale", num=num, version=INDEX_VERSION):
            self.change(work)

    def forget(self, key: Key) -> None:
        """The conversation is deleted."""
        num = self._nums.pop(key, None)
        self.proved.pop(num or 0, None)
        if num is not None and self.witness is not None:
            self.witness.forget(num)

    def know(self, key: Key, num: int) -> int:
        """Keep the number of a conversation. It changes only if the store is put back."""
        if self._nums.get(key, num) != num:
            self.unknow(key)
        if len(self._nums) >= NUMS_MAX:
            self._nums.clear()
        self._nums[key] = num
        return num

    def unknow(self, key: Key) -> None:
        """The conversation has this number no longer."""
        num = self._nums.pop(key, None)
        self.proved.pop(num or 0, None)

    def query(self, name: str, /, **params: Any) -> list[Row]:  # noqa: ANN401  (whatever the statement takes)
        """One statement, read."""
        return self.read(lambda tx: tx.run(name, params))

    def _persist(self, attempt: Callable[[], T], patience: float) -> T:
        deadline = self.clock.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except (UnicodeEncodeError, OverflowError) as error:
                raise InvalidInput(
                    "The store cannot hold a number of more than 64 bits, or half of a surrogate pair."
                ) from error
            except Trouble as trouble:
                if trouble.lasting or self.clock.monotonic() + pause > deadline:
                    raise trouble.error from trouble
                self.clock.sleep(pause)
                self.recover(trouble)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # -- group commit ----------------------------------------------------------------------------------------

    def waiter(self, append: Append, future: Any = None) -> Waiter:  # noqa: ANN401  (asyncio.Future or None)
        return Waiter(append, self.clock.monotonic() + self.patience, future)

    def _commit(self, group: list[Waiter]) -> None:
        """Settle every waiter of the group. Called by one thread at a time."""
        trouble: Trouble | None = None
        try:
            self._attempt(group)
        except Trouble as error:
            trouble = error
        except Exception:
            if len(group) == 1:
                raise
            # One append was at fault, and its own attempt says so. The others are looked up before they are stored.
            for waiter in group:
                waiter.append.repeated = True
        else:
            return
        if len(group) > 1 and trouble is not None:
            self._note(group, trouble)
            self._recover(trouble)
            trouble = None
        for waiter in group:
            try:
                self._try_again(waiter, trouble)
            except Exception as error:  # noqa: BLE001  (a surprise ends one append, and its caller is told)
                if not waiter.done:
                    waiter.settle(error)

    def _tried(self, group: list[Waiter]) -> Trouble | None:
        try:
            self._attempt(group)
        except Trouble as trouble:
            return trouble
        return None

    def _try_again(self, waiter: Waiter, trouble: Trouble | None) -> None:
        pause = _FIRST_PAUSE
        looked_up = False
        while not waiter.done:
            if trouble is not None:
                # An attempt after an unknown outcome begins by looking the append up; one such attempt is made even
                # where waiting is of no use (a disk that is full), because it may find it stored.
                use = not trouble.lasting or (
                    not looked_up and (waiter.append.maybe_stored or trouble.unknown)
                )
                looked_up = waiter.append.maybe_stored
                self._note([waiter], trouble)
                if not use or self.clock.monotonic() + pause > waiter.deadline:
                    waiter.settle(self._given_up(waiter.append, trouble))
                    return
                self.clock.sleep(pause)
                self._recover(trouble)
                pause = min(pause * 2, _LONGEST_PAUSE)
            trouble = self._tried([waiter])

    def _recover(self, trouble: Trouble) -> None:
        try:
            self.recover(trouble)
        except Trouble:
            return  # still away: the next attempt says so, and is bounded

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
            f"The store went away while it stored this, and it is not known whether it did: {trouble.error}",
            append_id=append.append_id,
        )

    def _flush_is_due(self) -> bool:
        """Whether partials were written and not flushed for so long that this commit has to flush them."""
        now = self.clock.monotonic()
        if self._unflushed_since is None:
            self._unflushed_since = now
        return now - self._unflushed_since >= FLUSH_SECONDS

    def _attempt(self, group: list[Waiter]) -> None:
        """One transaction for all of them. Outcomes are told only once the commit has returned."""
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
            if reach:
                reach("commit")
        # A flush takes all that was written before it to the disk.
        self._unflushed_since = None if durable else self._unflushed_since
        if reach:
            reach("committed")
        for waiter, outcome in zip(group, outcomes, strict=True):
            waiter.settle(outcome)
        if batch.states:
            self._moved(batch)

    def _is_older(self, state: HeadState) -> bool:
        return state.facts < self._last_facts.get(state.num, 0)

    def _refuse_older(self, tx: Tx, signs: list[HeadState]) -> None:
        """Compare the store with its witness again if it went back under this process. Raises Trouble if it did.

        Signs of that are a conversation that lacks facts which it had, and a new one with the number of another.
        """
        if signs:
            self._look_again(tx)
            self._refuse_incomplete()
            # Nothing is missed (any more). What was loaded for this attempt may have come from what was known before.
            raise Trouble(StoreBusy("The store was put back."))

    def _moved(self, batch: Batch) -> None:
        """Tell everybody who should know of what was committed."""
        if len(self._last_facts) > NUMS_MAX:
            self._last_facts.clear()
        for key in batch.moved:
            state = batch.states[key]
            self._last_facts[state.num] = state.facts
        nums = list(map(_num_of, batch.states.values()))
        self.hub.notify(nums)
        self.announce(nums)
        if batch.moved and self.witness is not None:
            self.witness.note(map(batch.states.__getitem__, batch.moved))

    def _plan(
        self, tx: Tx, append: Append, loaded: Loaded, batch: Batch
    ) -> list[Recorded]:
        state = loaded.heads.get(append.key)
        if state is not None and state.version != INDEX_VERSION:
            state = loaded.heads[append.key] = rebuild(tx, state)
        look = _look(tx, append, state) if append.solo else _NOTHING
        opener = functools.partial(_open_conversation, tx) if append.opens else None
        return plan(append, state, loaded, batch, look, opener, self.clock, self.ids)

    # -- what a group has to know ----------------------------------------------------------------------------

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
        """What this append has to know beyond the head."""
        user = append.user
        if append.lease is not None and (user, append.lease.name) not in loaded.fences:
            for row in tx.run("fence", {"owner": user, "name": append.lease.name}):
                loaded.fences[user, append.lease.name] = (row[0], row[1])
        for name in append.names:
            if tx.run("stretch_taken", {"owner": user, "name": name}):
                loaded.taken.add((user, name))
        if append.repeated:
            self._load_appended(tx, append, loaded)
        if append.dedup is not None:
            self._load_received(tx, append, loaded)

    def _load_appended(self, tx: Tx, append: Append, loaded: Loaded) -> None:
        """Look for an append by its id. An id holds the time it was made, so there is no need to look far back."""
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
            for place, _, append_id in rows:
                if append_id == append.append_id:
                    loaded.appended[append.append_id] = _stored(
                        tx, state.id, place - ahead, len(append.items)
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
        for place, count in tx.run("received", where):
            conversation = tx.run("conversation_of", {"num": place >> SEQ_BITS})
            found = (
                _stored(tx, conversation[0][0], place, count)
                if conversation
                else Stored([])
            )
            loaded.received[append.user, dedup.source, dedup.id] = found

    # -- what a group writes ---------------------------------------------------------------------------------

    def _store(self, tx: Tx, batch: Batch) -> Sequence[Key]:
        """Write it all. Says whose messages had to be counted again."""
        for name, rows in batch.rows.items():
            tx.many(name, rows)
        recount = self._apply(tx, batch) if batch.changes else ()
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
        for key in recount:
            _recount(tx, batch.states[key])
        for follows, nums in batch.woken.items():
            self.wake_readers(tx, nums, follows)
        for key, imported in batch.opened.items():
            self._place_cursors(tx, batch.states[key], imported=imported)
        return recount

    @staticmethod
    def _place_cursors(tx: Tx, state: HeadState, *, imported: bool) -> None:
        """Every reader has its place in a new conversation: at its beginning, or after what was imported."""
        follows = {"facts": state.facts, "turns": state.turns, "due": state.due}
        tx.run(
            "new_cursors",
            {"num": state.num, "now": state.head if imported else 0, **follows},
        )
        state.woken = not imported

    @staticmethod
    def _apply(tx: Tx, batch: Batch) -> list[Key]:
        """Apply the rarer changes of index rows in order, and say where all messages have to be counted again."""
        for key, change in batch.changes:
            if not isinstance(change, Recount):
                _apply_one(tx, batch.states[key], change)
        recount: list[Key] = []
        for key, change in batch.changes:
            if isinstance(change, Recount):
                state = batch.states[key]
                if state.stretch_name is None or change.after < state.stretch_from:
                    recount.append(key)
                else:  # what the open stretch lost or got back is counted already
                    state.unanswered = _Look(tx, state.num).first_waiting(())
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
_is_partial: Callable[[Append], bool] = attrgetter("partial")
_num_of: Callable[[HeadState], int] = attrgetter("num")
head_row: Callable[[HeadState], tuple[Any, ...]] = attrgetter(
    "num", "head", "facts", "turns", "due", "revision", "epoch", "digest", "run", "stretch", "context_from",
    "unanswered", "messages", "stretch_messages", "stretch_from", "stretch_covers", "listed_at", "version",
)  # fmt: skip


def _conversations(count: int) -> str:
    return "1 conversation" if count == 1 else f"{count:,} conversations"


def too_new(schema: int) -> SchemaTooNew:
    """The sentence for a store that a newer Tenax has changed."""
    return SchemaTooNew(
        f"The store has schema {schema}, and this Tenax knows {SCHEMA_VERSION}: a newer Tenax has changed it.",
        hint="restart with the newer version",
    )


def _recount(tx: Tx, state: HeadState) -> None:
    low, high = bounds(state.num)
    where = {"num": state.num, "low": low, "high": high, "roles": MESSAGE_ROLES}
    tx.run("recount", {**where, "stretch_from": state.stretch_from})
    tx.run("recount_stretches", {"num": state.num, "low": low, "roles": MESSAGE_ROLES})


def _count(tx: Tx, state: HeadState, sign: int, where: dict[str, int]) -> None:
    """Take what an undo has just taken out of the transcript, or has brought back, into account."""
    found = sign * int(tx.run("count_rows", {**where, "roles": MESSAGE_ROLES})[0][0])
    state.messages += found
    state.stretch_messages += found


def _apply_one(tx: Tx, state: HeadState, change: Change) -> None:  # noqa: C901, PLR0912  (one case a change)
    num = state.num
    low, _ = bounds(num)
    match change:
        case KillRows(after, by):
            tx.run("kill_rows", {"after": low + after, "high": low + by, "by": by})
            _count(tx, state, -1, {"after": low + after, "high": low + by, "dead": by})
        case ReviveRows(after, by):
            tx.run("revive_rows", {"after": low + after, "high": low + by, "by": by})
            _count(tx, state, 1, {"after": low + after, "high": low + by, "dead": 0})
        case TakeInputs(seqs):
            if seqs:
                tx.many("take_input", [(low + seq,) for seq in seqs])
        case OpenStretch(name, parent, seq, at, covers_to):
            where = {
                "owner": state.user,
                "name": name,
                "conversation": num,
                "parent": parent,
            }
            opened = tx.run(
                "open_stretch", {**where, "at": at, "seq": seq, "covers_to": covers_to}
            )[0][0]
            if state.stretch_name == name:
                state.stretch = opened
        case EndStretch(name, seq, at, reason, messages):
            where = {"owner": state.user, "name": name, "reason": reason}
            tx.run("end_stretch", {**where, "at": at, "seq": seq, "messages": messages})
        case OpenRun(run, seq):
            tx.run("open_run", {"num": num, "run": run, "seq": seq})
        case CloseRun(run, seq, outcome):
            tx.run(
                "close_run", {"num": num, "run": run, "seq": seq, "outcome": outcome}
            )
        case LateOutput(run):
            tx.run("late_output", {"num": num, "run": run})
        case SealRun(run, seq):
            tx.run("seal_run", {"num": num, "run": run, "seq": seq})
        case SetList(column, value):
            tx.run(f"set_{column}", {"num": num, "value": value})
        case Spend(at, usage):
            cost = 0 if usage.cost is None else round(usage.cost * 1e6)
            took = {
                "input": usage.input,
                "output": usage.output,
                "cost": cost,
                "unpriced": int(usage.cost is None),
            }
            tx.run(
                "spend", {"owner": state.user, "num": num, "day": at // DAY_US, **took}
            )
        case AddAuthor(author):
            tx.run("put_author", {"num": num, "author": author})
        case EraseBodies(seqs):
            for seq in seqs:
                _erase_body(tx, state.user, low + seq)
                forget_learned(tx, state.user, low + seq, low + seq)


def _erase_body(tx: Tx, user: str, place: int) -> None:
    """Take a body away, and with it the partials it replaced and the blobs that nothing else names."""
    for _, body, salt, first in tx.run("body", {"place": place}):
        if body is None:
            return
        tx.run("erase_body", {"place": place, "body_hash": inner_hash(salt, body)})
        if first is not None:
            between = tx.run(
                "partials_of",
                {"low": place >> SEQ_BITS << SEQ_BITS | first, "high": place},
            )
            own = [
                (each,)
                for each, _, piece in between
                if msgspec.json.decode(piece)[0] == first
            ]
            if own:
                tx.many("drop_partial", own)
        drop_mentions(tx, user, place, place)


def drop_mentions(tx: Tx, user: str, low: int, high: int) -> None:
    """Forget which blobs these events name, and drop those that no other event names."""
    hashes = [row[0] for row in tx.run("mentions_at", {"low": low, "high": high})]
    tx.run("delete_mentions", {"low": low, "high": high})
    for each in hashes:
        where = {"owner": user, "hash": each}
        if not tx.run("mentioned", where):
            tx.run("drop_chunks", where)
            tx.run("drop_blob", where)


def forget_learned(tx: Tx, user: str, low: int, high: int) -> None:
    """Take away what was remembered from these events, every version of it, and the schedules that they asked for."""
    tx.run("change_memory", {"owner": user})
    tx.run("forget_learned", {"owner": user, "low": low, "high": high})
    tx.run("forget_schedules", {"owner": user, "low": low, "high": high})


def _stored(tx: Tx, conversation: str, place: int, count: int) -> Stored:
    """The events of an append that is in the store already. Its partials may have been pruned since."""
    rows = tx.run("read", {"low": place - 1, "high": place + count - 1, "limit": count})
    return Stored([recorded(conversation, row) for row in rows])


def recorded(conversation: str, row: Row) -> Recorded:
    """A row of `read` as a value."""
    place, kind, at, run, body, digest, code = row
    kind = PARTIALS[code].kind if code else kind
    return Recorded(conversation, place & ALL_SEQS, kind, at, run, body, digest or b"")


def _look(tx: Tx, append: Append, state: HeadState | None) -> Lookup:
    """What `apply` may ask while it plans this append."""
    if append.imported:
        return Derived(append.user, append.conversation)
    return _Look(tx, state.num if state is not None else 0)


class _Look:
    """What a rare event asks, from the store."""

    def __init__(self, tx: Tx, num: int) -> None:
        self._tx = tx
        self._low, self._high = bounds(num)
        self._noted: list[int] = []

    def kind_at(self, seq: int) -> str | None:
        found = self._tx.run("kind_at", {"place": self._low + seq})
        return found[0][0] if found else None

    def standing_after(self, seq: int) -> int:
        return int(
            self._tx.run(
                "standing_between", {"low": self._low + seq, "high": self._high}
            )[0][0]
        )

    def killed_by(self, seq: int) -> int:
        return int(
            self._tx.run(
                "killed_by", {"low": self._low, "high": self._low + seq, "by": seq}
            )[0][0]
        )

    def title_at(self) -> int:
        return (
            int(
                self._tx.run("last_title", {"low": self._low, "high": self._high})[0][0]
            )
            & ALL_SEQS
        )

    def first_waiting(self, taken: Sequence[int]) -> int:
        where = {"low": self._low, "high": self._high, "limit": len(taken) + 1}
        waiting = [
            place & ALL_SEQS for (place,) in self._tx.run("waiting", where)
        ] + self._noted
        return next((seq for seq in waiting if seq not in taken), 0)

    def edits_since(self, since: int) -> list[Event | Unknown]:
        found = self._tx.run(
            "edits_since", {"low": self._low + since, "high": self._high}
        )
        return [decode(kind, body) for kind, body in found]

    def note(
        self, _seq: int, _kind: str, _event: Event | Unknown, changes: Sequence[Change]
    ) -> None:
        """Only inputs of the same append are not in the store yet."""
        self._noted += [
            change.seq
            for change in changes
            if isinstance(change, PutRow) and change.waiting
        ]


_NOTHING: Lookup = Derived("", "")
"""An append that shares its transaction asks nothing."""
