"""Delivery: gives a provider every finished turn and every end of a session, in order, from the journal.

Two cursors of the store hold the progress of the provider: `memory:<provider>:sync` over turns and
`memory:<provider>:commit` over `memory.due`. A turn is stored before the call of the provider. So nobody waits for a
provider, and a killed process leaves the same work behind. A single process at a time delivers (the lease
`memory:<provider>`), one call at a time. A call that never returns blocks this delivery and nothing else. The end of a
session follows every earlier turn.

Every turn, undo and end is delivered once, with a single exception. A call in flight when the process is killed, or
when the process ends and cannot wait any longer, is repeated with the same key. Turns restored by the same event are in
flight together.

A failed call is retried after 1 second, and the pause doubles with every retry, up to 5 minutes. A call becomes a dead
letter after five failures, if the provider accepted another call since the first failure; then the delivery continues
with the next call. If every call fails, the provider is away: no call becomes a dead letter, the delivery rests, and
then tries a single call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import Any

import msgspec

from tenax.concurrency import Backoff
from tenax.errors import (
    CursorMoved,
    Gone,
    LeaseLost,
    NoSuchConversation,
    StoreDamaged,
    StoreMisused,
    StoreUnavailable,
)
from tenax.events import MemoryDue, RunFinished
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Behind, DeadLetter, Lease, Reader
from tenax.memory.providers.handle import ProviderHandle
from tenax.memory.providers.turn_history import Due, Step, Turn, TurnHistory

__all__ = ["Delivery", "Status"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LEASE_SECONDS = 60.0
RETRY_SECONDS = 60.0
PAUSE_SECONDS_MAX = 300.0
TRIES_MAX = 5
_STORE_RETRY_SECONDS = 1.0
_HISTORIES_MAX = 64
_ROWS_MAX = 1000
_FOR_EVER_US = 1 << 62


class Status(msgspec.Struct, frozen=True):
    """The progress of a provider."""

    provider: str
    problem: str = ""
    """Why the provider is not used."""
    behind: int = 0
    """The number of undelivered turns."""
    owed: int = 0
    """The number of undelivered ends of sessions."""
    busy_seconds: float = 0.0
    error: str = ""
    """The last error."""
    rests_seconds: float = 0.0
    """Seconds until the next try after failures."""
    letters: list[DeadLetter] = []


class _Refused(Exception):
    """The provider takes no calls, because of its shutdown or too many waiting calls."""


class Delivery:
    """The delivery to a provider. The delivery runs on an event loop, the provider on a separate thread."""

    def __init__(
        self,
        journal: AsyncJournal,
        handle: ProviderHandle,
        *,
        leave_out: Collection[str] = (),
        home: str = "",
        profile: str = "",
    ) -> None:
        self.name = handle.name
        self._journal = journal
        self._handle = handle
        self._owner = profile
        self._leave_out = frozenset(leave_out)
        self._init_options = {
            "hermes_home": home,
            "platform": "tenax",
            "user_id": journal.user,
            "agent_identity": profile,
            "agent_context": "primary",
        }
        self._turns = Reader(f"memory:{handle.name}:sync", "turns", "now")
        self._ends = Reader(f"memory:{handle.name}:commit", "due", "now")
        self._histories: OrderedDict[str, TurnHistory] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closing = False
        self._lease: Lease | None = None
        self._renewed_at = 0.0
        self._call_in_flight: Future[str] | None = None
        self._initialized: Future[str] | None = None
        self._session = ""
        """The last session announced to the provider."""
        self._retry_requests: list[asyncio.Future[int]] = []
        self._retry_errors: dict[tuple[str, str, int], str] = {}
        """By reader, conversation and seq of a dead letter, the error of the last retry."""
        self._waiting_ends: dict[str, float] = {}
        """By conversation with an end not ready for delivery, the time of the next check."""
        self._accepted = 0
        """The number of calls accepted by the provider."""
        self._first_failures: dict[tuple[str, str], tuple[int, int]] = {}
        """By reader and conversation: the failing seq, and `_accepted` at the first failure."""
        self._failing: set[tuple[str, str]] = set()
        """Readers and conversations with a failure since the last accepted call."""
        self._rests = Backoff(1.0, PAUSE_SECONDS_MAX)
        self._is_away = False
        """Calls failed in two places at once, and the provider accepted no call since."""
        self._rests_until = self._retry_at = 0.0
        self._error = ""

    # -- from outside ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the delivery. Needs a running event loop."""
        self._task = asyncio.create_task(self._run(), name=f"memory {self.name}")

    def wake(self) -> None:
        """Look for work now instead of within two seconds. Call only on the thread of the event loop."""
        self._woken.set()

    def initialize(self, session: str) -> Future[str] | None:
        """Initialize the provider, once per process, and again after a failure.

        Return the call at once, or `None` if the provider refuses calls.
        """
        call = self._initialized
        if call is None or call.cancelled() or (call.done() and call.result()):
            self._initialized = self._handle.deliver(
                "initialize", session, **self._init_options
            )
            self._session = session
        return self._initialized

    async def status(self) -> Status:
        """Return the progress of the provider from the store, also if another process delivers."""
        turns = await self._find_behind(self._turns)
        ends = await self._find_behind(self._ends)
        letters = []
        for reader in (self._turns, self._ends):
            for letter in await self._journal.letters(reader.name):
                key = (reader.name, letter.conversation, letter.seq)
                error = self._retry_errors.get(key, letter.error)
                letters.append(msgspec.structs.replace(letter, error=error))
        errors = [row.error for row in (*turns, *ends) if row.error]
        return Status(
            provider=self.name,
            behind=await self._count(turns, RunFinished),
            owed=await self._count(ends, MemoryDue),
            busy_seconds=self._handle.deliveries.busy_seconds,
            error=self._error or (errors[0] if errors else ""),
            rests_seconds=max(0.0, self._retry_at - self._now()),
            letters=letters,
        )

    async def retry(self) -> int:
        """Deliver the dead letters again, with the same keys. Return the number of letters accepted within a minute."""
        request: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._retry_requests.append(request)
        self.wake()
        await asyncio.wait({request}, timeout=RETRY_SECONDS)
        if request in self._retry_requests:
            self._retry_requests.remove(request)
        return request.result() if request.done() else 0

    async def close(self, seconds: float) -> None:
        """Stop the delivery, and wait at most `seconds` for the call in flight.

        The next process continues from the cursors.
        """
        self._closing = True
        self.wake()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LOOK_SECONDS)
        while self._retry_requests:
            self._retry_requests.pop().set_result(0)

    # -- the loop --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closing:
            self._woken.clear()
            more = False
            try:
                more = await self._deliver_round()
            except StoreMisused:
                # The store was closed.
                return
            except (_Refused, LeaseLost, CursorMoved) as error:
                log.info("Nothing is delivered to memory %s now. %s", self.name, error)
            except StoreUnavailable as error:
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
            except Exception:
                log.exception(
                    "The delivery to memory %s failed unexpectedly.",
                    self.name,
                    extra={"action": "memory_surprise"},
                )
            if not more and not self._closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()

    async def _deliver_round(self) -> bool:
        """Go once through the owed deliveries. Return whether any call was delivered."""
        if self._is_resting and not self._retry_requests:
            return False
        turns = {row.conversation: row for row in await self._journal.behind(self._turns)}  # fmt: skip
        ends = {row.conversation: row for row in await self._journal.behind(self._ends)}
        self._forget_past_waits()
        names = sorted(turns, key=lambda name: turns[name].tries)
        for name in ends:
            if name not in turns and name not in self._waiting_ends:
                names.append(name)
        if not (names or self._retry_requests) or not await self._acquire_lease():
            return False
        try:
            delivered = await self._retry_letters()
            for name in names:
                if self._closing or self._is_resting:
                    break
                delivered |= await self._serve(name, turns.get(name), ends.get(name))
            return delivered
        finally:
            await self._release_lease()

    def _forget_past_waits(self) -> None:
        now = self._now()
        waits = self._waiting_ends.items()
        self._waiting_ends = {name: until for name, until in waits if until > now}

    async def _serve(
        self, name: str, turns: Behind | None, ends: Behind | None
    ) -> bool:
        """Serve a conversation.

        A deleted conversation owes nothing. A damaged conversation does not stop the other deliveries.
        """
        try:
            return await self._deliver(self._history_of(name), turns, ends)
        except (Gone, NoSuchConversation):
            self._histories.pop(name, None)
        except StoreDamaged as error:
            self._error = str(error)
            for reader in (self._turns, self._ends):
                await self._store(
                    self._journal.defer,
                    reader,
                    name,
                    seconds=PAUSE_SECONDS_MAX,
                    error=self._error,
                )
        return False

    async def _deliver(
        self, history: TurnHistory, turns: Behind | None, ends: Behind | None
    ) -> bool:
        """Deliver the debt of a conversation, in order, until nothing is left or a call fails."""
        name = history.conversation
        delivered = False
        last_turn = None
        turns_at = await self._journal.cursor(self._turns, name)
        ends_at = await self._journal.cursor(self._ends, name)
        await history.catch_up()
        began = history.seq
        while not self._closing and not self._is_resting:
            steps, dues = history.owed(turns_at), history.dues(ends_at)
            due = dues[0] if dues else None
            if due is not None and ends is None and due.seq <= began:
                due = None
            if due is not None and self._is_ready(due, steps):
                if ends is None:
                    # The boundary is new. Return, so that the next round delivers the boundary before later turns.
                    return True
                if await self._deliver_end(history, due, ends_at, ends):
                    ends_at = due.seq
                    delivered = True
                    ends = msgspec.structs.replace(ends, tries=0)
                else:
                    ends = None
            elif steps and turns is not None:
                step = steps[0]
                done, last_turn = await self._deliver_step(history, step, turns_at, turns)  # fmt: skip
                if not done:
                    break
                turns_at = step.at
                delivered = True
                turns = msgspec.structs.replace(turns, tries=0)
            else:
                await self._skip(self._turns, history, turns_at, turns)
                if due is None:
                    await self._skip(self._ends, history, ends_at, ends)
                else:
                    self._waiting_ends[name] = self._now() + LEASE_SECONDS / 2
                break
            await history.catch_up()
        if last_turn is not None and not self._closing:
            await self._call_provider(
                "queue_prefetch", last_turn.user, session_id=last_turn.session
            )
        return delivered

    async def _skip(
        self, reader: Reader, history: TurnHistory, at: int, behind: Behind | None
    ) -> None:
        """Advance a cursor over events without a delivery."""
        if behind is not None and at < behind.to:
            await self._advance(reader, history, history.seq, at)

    def _is_ready(self, due: Due, steps: list[Step]) -> bool:
        """Return whether an end belongs to the owner of the provider, and every turn before the end is delivered."""
        is_ours = due.event.owner in {"", self._owner}
        return is_ours and not any(step.at <= due.event.upto for step in steps)

    # -- one turn, undo or end -------------------------------------------------------------------------------

    async def _deliver_step(
        self, history: TurnHistory, step: Step, at: int, behind: Behind
    ) -> tuple[bool, Turn | None]:
        error, last_turn = await self._send_step(history, step)
        if error:
            done = await self._note_failure(self._turns, behind, step.at, at, error)
            return done, None
        await self._advance(self._turns, history, step.at, at)
        return True, last_turn

    async def _deliver_end(
        self, history: TurnHistory, due: Due, at: int, behind: Behind
    ) -> bool:
        error = ""
        if not history.is_covered(due, self._owner):
            error = await self._send_end(history, due)
        if error:
            return await self._note_failure(self._ends, behind, due.seq, at, error)
        await self._advance(self._ends, history, due.seq, at)
        return True

    async def _send_step(
        self, history: TurnHistory, step: Step
    ) -> tuple[str, Turn | None]:
        """Send turns, or the undo of turns. Return the error and the last sent turn."""
        if step.undone:
            return await self._send_undo(history, step), None
        sent: Turn | None = None
        for finished in step.turns:
            turn = await history.turn(finished)
            # The turn was erased, or ran outside of Tenax without its text in the store.
            if turn is None or not turn.messages:
                continue
            error = await self._call_in_session(
                history,
                turn.session,
                "sync_turn",
                turn.user,
                turn.assistant,
                session_id=turn.session,
                messages=turn.messages,
                key=turn.key,
            )
            if error:
                return error, sent
            sent = turn
        return "", sent

    async def _send_undo(self, history: TurnHistory, step: Step) -> str:
        session = step.turns[0].session
        keys = [f"{history.conversation}:{turn.seq}" for turn in step.turns]
        parent = history.parents.get(session, "")
        return await self._call_in_session(
            history, session, "on_session_switch", session,
            parent_session_id=parent, reset=False, rewound=True, keys=keys,
        )  # fmt: skip

    async def _send_end(self, history: TurnHistory, due: Due) -> str:
        messages = await history.messages_until(due, self._owner)
        if not messages:
            return ""
        return await self._call_in_session(
            history, due.event.session, "on_session_end", messages
        )

    async def _call_in_session(
        self,
        history: TurnHistory,
        session: str,
        method: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """Call the provider about a session. Return the error, or ""."""
        error = await self._switch_session(history, session)
        if not error:
            error = await self._call_provider(method, *args, **kwargs)
        if not error:
            self._note_success()
        return error

    async def _switch_session(self, history: TurnHistory, session: str) -> str:
        """Initialize the provider, and announce the session if another session came before. Return the error, or ""."""
        error = await self._wait_for(self.initialize(session))
        if error:
            self._rest()
            return error
        if session == self._session:
            return ""
        parent = history.parents.get(session, "")
        error = await self._call_provider(
            "on_session_switch",
            session,
            parent_session_id=parent,
            reset=not parent or parent != self._session,
            rewound=False,
        )
        if not error:
            self._session = session
        return error

    # -- dead letters ----------------------------------------------------------------------------------------

    async def _retry_letters(self) -> bool:
        """Deliver the dead letters again, if requested. Return whether the provider accepted any letter."""
        requests = list(self._retry_requests)
        if not requests:
            return False
        accepted = 0
        for reader in (self._turns, self._ends):
            for letter in await self._journal.letters(reader.name):
                with contextlib.suppress(Gone, NoSuchConversation):
                    accepted += await self._retry_letter(reader, letter)
        for request in requests:
            request.set_result(accepted)
            self._retry_requests.remove(request)
        return bool(accepted)

    async def _retry_letter(self, reader: Reader, letter: DeadLetter) -> bool:
        name, seq = letter.conversation, letter.seq
        history = self._history_of(name)
        error = ""
        await history.catch_up()
        if reader is self._turns:
            step = history.step_at(seq)
            if step is not None:
                error, _ = await self._send_step(history, step)
        else:
            dues = history.dues(seq - 1)
            if dues:
                error = await self._send_end(history, dues[0])
        key = (reader.name, name, seq)
        if error:
            self._retry_errors[key] = self._error = error
            return False
        await self._store(self._journal.unbury, reader, name, seq)
        self._retry_errors.pop(key, None)
        return True

    # -- success and failure ---------------------------------------------------------------------------------

    def _note_success(self) -> None:
        """Note an accepted call: the provider is not away."""
        if self._is_away:
            # While the provider was away, every call failed. Do not count these failures against single calls.
            self._first_failures.clear()
        self._accepted += 1
        self._failing.clear()
        self._is_away = False
        self._rests.reset()
        self._rests_until = self._retry_at = 0.0

    async def _note_failure(
        self, reader: Reader, behind: Behind, seq: int, was: int, error: str
    ) -> bool:
        """Postpone a call, or make the call a dead letter. Return whether the delivery continues with the next call."""
        name = behind.conversation
        key = (reader.name, name)
        self._error = error
        if self._first_failures.get(key, (0, 0))[0] != seq:
            self._first_failures[key] = (seq, self._accepted)
        others_succeed = self._accepted > self._first_failures[key][1]
        if behind.tries + 1 >= TRIES_MAX and others_succeed:
            await self._store(
                self._journal.bury, reader, name, seq, was=was, error=error
            )
            self._failing.discard(key)
            log.warning(
                "Memory %s gave up on %s at %d.",
                self.name,
                name,
                seq,
                extra={"action": "memory_buried"},
            )
            return True
        pause = min(2.0**behind.tries, PAUSE_SECONDS_MAX)
        await self._store(self._journal.defer, reader, name, seconds=pause, error=error)
        self._failing.add(key)
        self._retry_at = max(self._retry_at, self._now() + pause)
        if len(self._failing) > 1:
            self._rest()
        return False

    def _rest(self) -> None:
        """Stop every call for a while, because the provider seems to be away."""
        self._is_away = True
        self._rests_until = self._retry_at = self._now() + self._rests.next_pause()

    @property
    def _is_resting(self) -> bool:
        return self._now() < self._rests_until

    # -- calls and the lease ---------------------------------------------------------------------------------

    async def _call_provider(self, method: str, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401
        return await self._wait_for(self._handle.deliver(method, *args, **kwargs))

    async def _wait_for(self, call: Future[str] | None) -> str:
        """Wait for a call without a timeout, and renew the lease meanwhile. Return the error of the call, or ""."""
        if call is None:
            raise _Refused
        self._call_in_flight = call
        done = asyncio.wrap_future(call)
        try:
            while not (await asyncio.wait({done}, timeout=LEASE_SECONDS / 3))[0]:
                with contextlib.suppress(LeaseLost, StoreUnavailable):
                    await self._renew_lease()
        except asyncio.CancelledError:
            done.cancel()
            raise
        if done.cancelled():
            raise _Refused
        if self._now() - self._renewed_at > LEASE_SECONDS / 3:
            with contextlib.suppress(StoreUnavailable):
                await self._renew_lease()
        return done.result()

    async def _acquire_lease(self) -> bool:
        """Acquire or renew the lease. Return whether the current process delivers."""
        if self._lease is not None:
            # An earlier release failed, because the store was away.
            with contextlib.suppress(LeaseLost):
                await self._renew_lease()
                return True
        holder = await self._journal.instance()
        self._lease = await self._journal.claim(
            f"memory:{self.name}", holder, LEASE_SECONDS
        )
        self._renewed_at = self._now()
        return self._lease is not None

    async def _renew_lease(self) -> None:
        if self._lease is not None:
            self._lease = await self._journal.renew(self._lease)
            self._renewed_at = self._now()

    async def _release_lease(self) -> None:
        """Release the lease, unless a call is in flight: no second process must make the same call."""
        call = self._call_in_flight
        if self._lease is not None and (call is None or call.done()):
            with contextlib.suppress(StoreUnavailable):
                await self._journal.release(self._lease)
                self._lease = None

    # -- the store -------------------------------------------------------------------------------------------

    async def _advance(
        self, reader: Reader, history: TurnHistory, to: int, was: int
    ) -> None:
        name = history.conversation
        await self._store(self._journal.advance, reader, name, to, was=was)
        self._first_failures.pop((reader.name, name), None)

    async def _store(
        self,
        verb: Callable[..., Awaitable[Any]],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store an outcome, and retry while the store is away, so that no accepted call is made twice."""
        while True:
            try:
                await verb(*args, **kwargs, lease=self._lease)
            except StoreUnavailable as error:
                if self._closing:
                    raise
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
                await asyncio.sleep(_STORE_RETRY_SECONDS)
            else:
                return

    def _history_of(self, name: str) -> TurnHistory:
        history = self._histories.pop(name, None)
        if history is None:
            history = TurnHistory(self._journal, name, self._leave_out)
        self._histories[name] = history
        if len(self._histories) > _HISTORIES_MAX:
            self._histories.popitem(last=False)
        return history

    async def _find_behind(self, reader: Reader) -> list[Behind]:
        """Return the conversations with work for a reader, including postponed conversations."""
        await self._journal.behind(reader, _ROWS_MAX)
        where = {
            "reader": reader.name,
            "now": _FOR_EVER_US,
            "owner": self._journal.user,
            "limit": _ROWS_MAX,
        }
        store = self._journal.store
        rows = await self._journal.threads.run(
            lambda: store.query("behind", **where, past=0)
        )
        return [Behind(*columns) for *columns, _num in rows]

    async def _count(
        self, rows: list[Behind], kind: type[RunFinished | MemoryDue]
    ) -> int:
        """Return the number of undelivered turns or ends."""
        count = 0
        for row in rows:
            with contextlib.suppress(Gone, NoSuchConversation):
                page = await self._journal.read(
                    row.conversation, after=row.at, upto=row.to, limit=_ROWS_MAX
                )
                for recorded in page:
                    if recorded.kind == kind.kind:
                        outcome = getattr(recorded.event, "outcome", "completed")
                        count += outcome == "completed"
        return count

    def _now(self) -> float:
        return self._journal.clock.monotonic()
