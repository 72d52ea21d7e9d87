"""Serves an account of a chat app: receives, delivers, and connects again by itself.

On several hosts a lease decides which process serves the account. The other processes wait for the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from tenax.assembly import Runtime
from tenax.channels.base import Batch, Channel, Received, RequestChannel, Update
from tenax.channels.budget import Budget
from tenax.channels.delivering import Deliverer
from tenax.channels.files import IncomingFiles, Transcribe
from tenax.channels.ledger import Ledger
from tenax.channels.people import People
from tenax.channels.receiving import Receiver
from tenax.channels.rows import AsyncChannelRows
from tenax.channels.states import STATE, State, StoredState
from tenax.clock import Timing
from tenax.concurrency import Backoff
from tenax.config.schema import ChannelSettings
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ConfigError,
    FloodWait,
    InvalidInput,
    LeaseLost,
    NotAuthorized,
    OutcomeUnknown,
    ReceivedElsewhere,
    StoreError,
    StoreUnavailable,
    TenaxError,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease

__all__ = ["Account"]

log = logging.getLogger(__name__)

_CLAIM_SECONDS: Final = 2.0
_PAUSE_LONGEST: Final = 60.0
_DEAF_SECONDS: Final = 30.0
"""How much longer than the platform's own limit a request for updates may take."""
_STORE_SECONDS: Final = 1.0
"""The shortest time between two stored states."""
_REFRESH_SECONDS: Final = 30.0
_LATE_FILES_SECONDS: Final = 5.0
_TAKE_TRIES_MAX: Final = 3
_TIDY_SECONDS: Final = 3600.0


class Account:
    """An account, served while `run` runs."""

    def __init__(
        self,
        settings: ChannelSettings,
        connect: Callable[[ChannelSettings], Channel],
        journal: AsyncJournal,
        rows: AsyncChannelRows,
        runtime_of: Callable[[str], Awaitable[Runtime]],
        transcribe: Transcribe | None,
        timing: Timing,
    ) -> None:
        self.settings = settings
        self._timing = timing
        self._connect = connect
        self._journal = journal
        self._rows = rows
        self._runtime_of = runtime_of
        self._transcribe = transcribe
        self._deliverer: Deliverer | None = None
        self._channel: Channel | None = None
        """The channel that was created last. It reads requests, also between two sessions."""
        self._session: _Session | None = None

    async def take_request(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Store the message of a request. Return `False` if the sender may not talk. Needs no lease.

        Raises `NotAuthorized`, `InvalidInput` or `StoreError`. After an error nothing is known to be stored.
        """
        channel, away = self._channel, f"{self.settings.label} is not served just now."
        if channel is None:
            # The account starts, or its settings are broken. A sender that tries again loses nothing.
            raise StoreUnavailable(away)
        if not isinstance(channel, RequestChannel):
            raise NotAuthorized("The account takes no requests.")
        message = channel.read_request(headers, body)
        if self._session is None:
            raise StoreUnavailable(away)
        return await self._session.take_request(message)

    def wake(self) -> None:
        """Look for something to deliver."""
        if self._deliverer is not None:
            self._deliverer.wake()

    async def run(self) -> None:
        """Serve the account until the task is cancelled. Every failure is followed by another try."""
        backoff = _backoff(self._timing)
        while True:
            try:
                await self._run_once(backoff)
            except* LeaseLost:
                log.info("%s: another process serves the account.", self.settings.label)
            except* TenaxError as errors:
                log.warning(
                    "%s: %s",
                    self.settings.label,
                    _first_of(errors),
                    extra={"action": "channel"},
                )
            except* Exception as errors:
                log.exception(
                    "%s failed unexpectedly.",
                    self.settings.label,
                    exc_info=_first_of(errors),
                )
            await backoff.sleep()

    async def _run_once(self, backoff: Backoff) -> None:
        label = self.settings.label
        try:
            channel = self._connect(self.settings)
        except (ConfigError, InvalidInput) as error:
            state = StoredState(
                "broken", f"{error} {error.hint}".strip(), at=self._rows.now_us()
            )
            await self._rows.put_value(f"label:{label}", "account", f"label:{label}")
            await _store_state(self._rows, f"label:{label}", state)
            raise
        self._channel = channel
        await self._rows.put_value(f"label:{label}", "account", channel.account)
        session = _Session(
            self.settings,
            channel,
            self._journal,
            self._rows,
            self._runtime_of,
            self._transcribe,
            self._timing,
        )
        self._session = session
        try:
            await session.claim()
            self._deliverer = session.deliverer
            backoff.reset()
            await session.run()
        finally:
            self._deliverer = self._session = None
            await session.close()


class _Session:
    """The service of an account by this process, from the claim of the lease to the first failure."""

    def __init__(
        self,
        settings: ChannelSettings,
        channel: Channel,
        journal: AsyncJournal,
        rows: AsyncChannelRows,
        runtime_of: Callable[[str], Awaitable[Runtime]],
        transcribe: Transcribe | None,
        timing: Timing,
    ) -> None:
        self._timing = timing
        self._channel = channel
        self._account = channel.account
        self._journal = journal
        self._rows = rows
        self._runtime_of = runtime_of
        self._lease: Lease | None = None
        self._state = _StateKeeper(rows, channel.account)
        self._budget = Budget(channel.traits, journal.clock, self._store_wait)
        ledger = Ledger(
            channel, rows, self._budget, self._held_lease, self._state.note_sent
        )
        self.deliverer = Deliverer(
            channel,
            journal,
            rows,
            ledger,
            runtime_of,
            self._held_lease,
            self._state.note_delivery,
            self._timing,
        )
        self._people = People(channel.account, rows, settings.allow)
        self._files = IncomingFiles(channel, rows, transcribe, timing)
        self._receiver = Receiver(
            channel, rows, self._people, self._files, runtime_of, self.deliverer.wake
        )
        self._failures: dict[str, int] = {}
        """By id of an update, how often storing the update failed unexpectedly."""
        self._chat_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By chat. The requests of a chat are stored one after the other."""

    async def claim(self) -> None:
        """Wait for the lease of the account."""
        name = f"gateway:{self._account}"
        while self._lease is None:
            holder = await self._journal.instance()
            seconds = self._timing.channel_lease_seconds
            self._lease = await self._journal.claim(name, holder, seconds)
            if self._lease is None:
                await asyncio.sleep(_CLAIM_SECONDS)

    async def run(self) -> None:
        """Receive and deliver until something fails for good."""
        try:
            for name, value in (await self._rows.values(self._account)).items():
                if name.startswith("wait:"):
                    await self._restore_wait(name, value)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew())
                tasks.create_task(self._state.run(self._held_lease))
                tasks.create_task(self._receive())
                tasks.create_task(self.deliverer.run())
                tasks.create_task(self._fetch_late_files())
        except* NotAuthorized as errors:
            self._state.set("refused", str(_first_of(errors)))
            raise
        finally:
            self._state.end()
            with contextlib.suppress(TenaxError):
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._state.store(self._held_lease())

    async def close(self) -> None:
        await self._receiver.close()
        await self._channel.close()
        if self._lease is not None:
            with contextlib.suppress(TenaxError, TimeoutError):
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._journal.release(self._lease)

    def _held_lease(self) -> Lease:
        if self._lease is None:
            raise LeaseLost(f"{self._account} is not served by this process.")
        return self._lease

    async def _renew(self) -> None:
        """Keep the lease. While the store is away, nothing can be received or delivered anyway."""
        while True:
            await asyncio.sleep(self._timing.channel_lease_seconds / 3)
            with contextlib.suppress(StoreError):
                self._lease = await self._journal.renew(self._held_lease())

    # -- waits ---------------------------------------------------------------------------

    async def _store_wait(self, chat: str, until_us: int) -> None:
        await self._rows.put_value(
            self._account, f"wait:{chat}", str(until_us), self._held_lease()
        )

    async def _restore_wait(self, name: str, value: str) -> None:
        if value.isdecimal() and int(value) > self._rows.now_us():
            self._budget.restore(name.removeprefix("wait:"), int(value))
        else:
            await self._rows.put_value(self._account, name, "")

    # -- receiving -----------------------------------------------------------------------

    async def _receive(self) -> None:
        """Receive until the token is refused. Every other failure is followed by another try."""
        backoff = _backoff(self._timing)
        opened = False
        while True:
            pause = 0.0
            try:
                if not opened:
                    await self._channel.open()
                    self._state.name = self._channel.name
                    self._state.note_heard(received=False)
                    opened = True
                await self._receive_batches(backoff)
            except NotAuthorized:
                raise
            except TimeoutError:
                self._state.set("deaf", "The request for new messages got no answer.")
            except FloodWait as error:
                pause = error.seconds
                self._state.set("away", str(error))
            except ReceivedElsewhere as error:
                self._state.set("elsewhere", str(error))
            except ChannelAway as error:
                self._state.set(
                    "deaf" if self._state.can_send() else "away", str(error)
                )
            except ChannelError as error:
                self._state.set("away", str(error))
            except (StoreError, OutcomeUnknown) as error:
                # The update was not confirmed, so it comes again.
                log.info("%s: receiving has to wait: %s", self._account, error)
            await asyncio.sleep(max(pause, backoff.next_pause()))

    async def _receive_batches(self, backoff: Backoff) -> None:
        cursor = await self._rows.value(self._account, "cursor")
        seconds = self._channel.idle_seconds + _DEAF_SECONDS
        async with contextlib.aclosing(self._channel.receive(cursor)) as batches:
            while True:
                async with asyncio.timeout(seconds):
                    batch = await anext(batches)
                await self._take_batch(batch)
                if batch.cursor != cursor:
                    cursor = batch.cursor
                    await self._rows.put_value(
                        self._account, "cursor", cursor, self._held_lease()
                    )
                self._state.note_heard(received=bool(batch.updates))
                backoff.reset()

    async def _take_batch(self, batch: Batch) -> None:
        """Store the updates: those of a chat in order, the chats side by side."""
        chats: dict[tuple[str, str], list[Update]] = {}
        for update in batch.updates:
            chats.setdefault((update.chat.id, update.chat.thread), []).append(update)
        if len(chats) == 1:
            await self._take_all(batch.updates)
        elif chats:
            results = await asyncio.gather(
                *map(self._take_all, chats.values()), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _take_all(self, updates: Iterable[Update]) -> None:
        for update in updates:
            try:
                await self._receiver.take(update)
            except (StoreError, OutcomeUnknown, LeaseLost):
                raise
            except Exception as error:
                if not self._gives_up(update, error):
                    raise StoreError(
                        f"Update {update.id} could not be stored."
                    ) from error

    def _gives_up(self, update: Update, error: Exception) -> bool:
        """Return whether to leave an update out, because storing it failed several times."""
        failures = self._failures.pop(update.id, 0) + 1
        log.error(
            "%s: update %s could not be stored (try %d): %s",
            self._account,
            update.id,
            failures,
            error,
            exc_info=None if isinstance(error, TenaxError) else error,
        )
        if failures >= _TAKE_TRIES_MAX:
            return True
        self._failures[update.id] = failures
        return False

    async def take_request(self, message: Received) -> bool:
        """Store the message of a request, also without the lease. Return `False` if the sender may not talk."""
        lock = self._chat_locks.setdefault(message.chat.id, asyncio.Lock())
        async with lock:
            await self._receiver.take(message)
        self._state.note_heard(received=True)
        return await self._people.user_of(message.sender) is not None

    async def _fetch_late_files(self) -> None:
        """Fetch the files that took too long, and drop rows that nobody needs any more."""
        tidied = self._journal.clock.monotonic()
        while True:
            await asyncio.sleep(_LATE_FILES_SECONDS)
            try:
                for late in await self._rows.late_files(self._account):
                    runtime = await self._runtime_of(late.user)
                    await self._files.fetch_late(late, runtime)
                if self._journal.clock.monotonic() - tidied > _TIDY_SECONDS:
                    tidied = self._journal.clock.monotonic()
                    await self._rows.drop_old()
            except LeaseLost:
                raise
            except TenaxError as error:
                log.info("%s: files wait: %s", self._account, error)


class _StateKeeper:
    """The state of the account, stored after a change and every half a minute."""

    def __init__(self, rows: AsyncChannelRows, account: str) -> None:
        self.name = ""
        self._rows = rows
        self._account = account
        self._kept = StoredState("starting")
        self._delivery_error = ""
        self._changed = asyncio.Event()
        self._ended = False

    def set(self, state: State, error: str = "") -> None:
        self._change(state=state, error=error)

    def can_send(self) -> bool:
        """Return whether something went out without a failure since."""
        return bool(self._kept.sent_at) and not self._delivery_error

    def note_heard(self, *, received: bool) -> None:
        now = self._rows.now_us()
        self._kept = msgspec.structs.replace(self._kept, heard_at=now)
        if received:
            self._change(received_at=now)
        if self._kept.state != "connected":
            self._change(state="connected", error=self._delivery_error)

    def note_sent(self) -> None:
        self._change(sent_at=self._rows.now_us())

    def note_delivery(self, error: str) -> None:
        """Note a failed delivery, or with "" a success."""
        if error == self._delivery_error:
            return
        self._delivery_error = error
        if self._kept.state == "connected":
            self._change(error=error)

    def end(self) -> None:
        """Say that this process does not serve the account any more, unless the token was refused."""
        if self._kept.state != "refused":
            self._change(state="off")

    def _change(self, **fields: object) -> None:
        self._kept = msgspec.structs.replace(self._kept, **fields)
        self._changed.set()

    async def run(self, lease: Callable[[], Lease]) -> None:
        before = await self._rows.value(self._account, STATE)
        if before:
            with contextlib.suppress(msgspec.MsgspecError):
                known = msgspec.json.decode(before, type=StoredState)
                self._change(
                    received_at=self._kept.received_at or known.received_at,
                    sent_at=self._kept.sent_at or known.sent_at,
                    heard_at=self._kept.heard_at or known.heard_at,
                )
        while True:
            with contextlib.suppress(StoreError):
                await self.store(lease())
            await asyncio.sleep(_STORE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await self._changed.wait()

    async def store(self, lease: Lease) -> None:
        self._changed.clear()
        state = msgspec.structs.replace(
            self._kept, name=self.name or self._kept.name, at=self._rows.now_us()
        )
        await _store_state(self._rows, self._account, state, lease)


async def _store_state(
    rows: AsyncChannelRows,
    account: str,
    state: StoredState,
    lease: Lease | None = None,
) -> None:
    await rows.put_value(account, STATE, msgspec.json.encode(state).decode(), lease)


def _backoff(timing: Timing) -> Backoff:
    return Backoff(timing.channel_retry_seconds, _PAUSE_LONGEST, jitter=0.2)


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
