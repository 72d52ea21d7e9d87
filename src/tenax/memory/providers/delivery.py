"""Follower: gives one provider every finished turn and every end of a stretch, in order, from the journal.

What it owes is two cursors of the store: `memory:<provider>:sync` over turns and `memory:<provider>:commit` over
`memory.due`. A turn is stored before the provider hears of it, because it is read from there; so nobody waits for a
provider, and a killed process owes what it owed. One process at a time gives (the lease `memory:<provider>`), and one thing
at a time, on the provider's own lane; a call that never comes back holds this line and nothing else. The end of a stretch
is told once no turn before it is left to tell.

How often: every turn, undo and end once. Only what was in flight when a process was killed, or when it ended and could not
wait any longer, comes twice, with the same key. Turns that come back together by a restoration are in flight together.

What fails is tried again, after 1 second and at most 5 minutes. What has failed five times, while the provider took something
else since, is buried: it stays as a letter, and the line goes on. When all fails it is the provider: nothing is buried, the
follower rests as long, and then tries one thing.
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
from tenax.journal.base import Behind, Lease, Letter, Reader
from tenax.memory.manager import Seat
from tenax.memory.providers.finished_turns import Course, Due, Step, Turn

__all__ = ["Follower", "Status"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LEASE_SECONDS = 60.0
RETRY_SECONDS = 60.0
PAUSE_SECONDS_MAX = 300.0
TRIES_MAX = 5
_COURSES_MAX = 64
_ROWS_MAX = 1000
_FOR_EVER_US = 1 << 62


class Status(msgspec.Struct, frozen=True):
    """How far a provider is."""

    provider: str
    problem: str = ""
    """Why it is not used."""
    behind: int = 0
    """Turns that it was not given yet."""
    owed: int = 0
    """Ends of conversations that it was not given yet."""
    busy_seconds: float = 0.0
    error: str = ""
    """The last one."""
    rests_seconds: float = 0.0
    """Until it is tried again after failures."""
    letters: list[Letter] = []


class _NotTaken(Exception):
    """The provider's line takes nothing: it is shut down, or full."""


class Follower:
    """One provider. All of it runs on one event loop; the provider on its lane."""

    def __init__(
        self,
        journal: AsyncJournal,
        seat: Seat,
        *,
        leave_out: Collection[str] = (),
        home: str = "",
        profile: str = "",
    ) -> None:
        self.name = seat.name
        self._journal = journal
        self._seat = seat
        self._owner = profile
        self._leave_out = frozenset(leave_out)
        self._about = {
            "hermes_home": home,
            "platform": "tenax",
            "user_id": journal.user,
            "agent_identity": profile,
            "agent_context": "primary",
        }
        self._sync = Reader(f"memory:{seat.name}:sync", "turns", "now")
        self._commit = Reader(f"memory:{seat.name}:commit", "due", "now")
        self._courses: OrderedDict[str, Course] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closing = False
        self._lease: Lease | None = None
        self._renewed_at = 0.0
        self._call: Future[str] | None = None
        self._initialized: Future[str] | None = None
        self._session = ""
        self._asked: list[asyncio.Future[int]] = []
        self._unlucky: dict[tuple[str, str, int], str] = {}
        """Letters that failed again, and how."""
        self._waits: dict[str, float] = {}
        """Ends that cannot be told yet, and when to look again."""
        self._taken = 0
        """How much the provider took."""
        self._first_failures: dict[tuple[str, str], tuple[int, int]] = {}
        """By reader and conversation: what fails there, and how much had been taken when it first did."""
        self._failing: set[tuple[str, str]] = set()
        """What failed since the provider took anything."""
        self._rest = self._rests_until = self._again_at = 0.0
        self._error = ""

    # -- from outside ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to give. Needs a running loop."""
        self._task = asyncio.create_task(self._run(), name=f"memory {self.name}")

    def wake(self) -> None:
        """There may be something to give. Without this it looks every two seconds. For the loop's own thread."""
        self._woken.set()

    def ready(self, session: str) -> Future[str] | None:
        """Let the provider get ready, if it is not: once in a process, unless that failed. Returns at once, with the call."""
        call = self._initialized
        if call is None or call.cancelled() or (call.done() and call.result()):
            self._initialized = self._seat.hand("initialize", session, **self._about)
            self._session = session
        return self._initialized

    async def standing(self) -> Status:
        """How far it is, as the store says; also where another process gives."""
        turns, ends = await self._late(self._sync), await self._late(self._commit)
        letters = [
            msgspec.structs.replace(
                each,
                error=self._unlucky.get(
                    (name, each.conversation, each.seq), each.error
                ),
            )
            for name in (self._sync.name, self._commit.name)
            for each in await self._journal.letters(name)
        ]
        return Status(
            provider=self.name,
            behind=await self._count(turns, RunFinished),
            owed=await self._count(ends, MemoryDue),
            busy_seconds=self._seat.told.busy_seconds,
            error=self._error
            or next((each.error for each in (*turns, *ends) if each.error), ""),
            rests_seconds=max(0.0, self._again_at - self._now()),
            letters=letters,
        )

    async def retry(self) -> int:
        """Give the buried ones again, with the same keys, out of line. How many were taken, within a minute."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self.wake()
        await asyncio.wait({asked}, timeout=RETRY_SECONDS)
        if asked in self._asked:
            self._asked.remove(asked)
        return asked.result() if asked.done() else 0

    async def close(self, seconds: float) -> None:
        """Stop giving; wait for the call in hand at most so long. Whoever comes next goes on from there."""
        self._closing = True
        self.wake()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LOOK_SECONDS)
        while self._asked:
            self._asked.pop().set_result(0)

    # -- the loop --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closing:
            self._woken.clear()
            more = False
            try:
                more = await self._look()
            except StoreMisused:  # closed
                return
            except (_NotTaken, LeaseLost, CursorMoved) as error:
                log.info("Memory %s is given nothing now. %s", self.name, error)
            except StoreUnavailable as error:
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
            except Exception:
                log.exception(
                    "Memory %s: a surprise.",
                    self.name,
                    extra={"action": "memory_surprise"},
                )
            if not more and not self._closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()

    async def _look(self) -> bool:
        """One round over all that is owed. Whether anything was given."""
        if self._resting and not self._asked:
            return False
        turns = {
            each.conversation: each for each in await self._journal.behind(self._sync)
        }
        ends = {
            each.conversation: each for each in await self._journal.behind(self._commit)
        }
        now = self._now()
        self._waits = {
            name: until for name, until in self._waits.items() if until > now
        }
        names = sorted(turns, key=lambda name: turns[name].tries)
        names += [
            name for name in ends if name not in turns and name not in self._waits
        ]
        if not (names or self._asked) or not await self._hold():
            return False
        try:
            given = await self._give_letters()
            for name in names:
                if self._closing or self._resting:
                    break
                given |= await self._serve(name, turns.get(name), ends.get(name))
            return given
        finally:
            await self._let_go()

    async def _serve(
        self, name: str, turns: Behind | None, ends: Behind | None
    ) -> bool:
        """One conversation. A deleted one owes nothing; one that cannot be read holds up no other."""
        try:
            return await self._give(self._course(name), turns, ends)
        except (Gone, NoSuchConversation):
            self._courses.pop(name, None)
        except StoreDamaged as error:
            self._error = str(error)
            for reader in (self._sync, self._commit):
                await self._noted(
                    self._journal.defer,
                    reader,
                    name,
                    seconds=PAUSE_SECONDS_MAX,
                    error=self._error,
                )
        return False

    async def _give(
        self, course: Course, turns: Behind | None, ends: Behind | None
    ) -> bool:
        """Give what is owed of a conversation, in order, until nothing is left or something fails."""
        name, given, last = course.conversation, False, None
        at = await self._journal.cursor(self._sync, name)
        met = await self._journal.cursor(self._commit, name)
        await course.catch_up()
        began = course.seq
        while not self._closing and not self._resting:
            steps, dues = course.owed(at), course.dues(met)
            due = (
                dues[0] if dues and (ends is not None or dues[0].seq > began) else None
            )
            if due is not None and self._ripe(due, steps):
                # it came meanwhile: look again, and give it before what follows it
                if ends is None:
                    return True
                if await self._end(course, due, met, ends):
                    met, given, ends = (
                        due.seq,
                        True,
                        msgspec.structs.replace(ends, tries=0),
                    )
                else:
                    ends = None
            elif steps and turns is not None:
                done, last = await self._tell(course, steps[0], at, turns)
                if not done:
                    break
                at, given, turns = (
                    steps[0].at,
                    True,
                    msgspec.structs.replace(turns, tries=0),
                )
            else:
                await self._pass(self._sync, course, at, turns)
                await self._pass(
                    self._commit, course, met, ends if due is None else None
                )
                if due is not None:
                    self._waits[name] = self._now() + LEASE_SECONDS / 2
                break
            await course.catch_up()
        if last is not None and not self._closing:
            await self._hand("queue_prefetch", last.user, session_id=last.session)
        return given

    async def _pass(
        self, reader: Reader, course: Course, at: int, behind: Behind | None
    ) -> None:
        """There is nothing to give in what the cursor is behind of."""
        if behind is not None and at < behind.to:
            await self._advance(reader, course, course.seq, at)

    def _ripe(self, due: Due, steps: list[Step]) -> bool:
        """Whether an end is ours to tell, and no turn before it is left to tell. Another owner's waits for that one."""
        ours = due.event.owner in {"", self._owner}
        return ours and not any(each.at <= due.event.upto for each in steps)

    # -- one thing -------------------------------------------------------------------------------------------

    async def _tell(
        self, course: Course, step: Step, at: int, behind: Behind
    ) -> tuple[bool, Turn | None]:
        error, last = await self._say(course, step)
        if error:
            return await self._failed(self._sync, behind, step.at, at, error), None
        await self._advance(self._sync, course, step.at, at)
        return True, last

    async def _end(self, course: Course, due: Due, met: int, behind: Behind) -> bool:
        error = "" if course.met(due, self._owner) else await self._say_end(course, due)
        if error:
            return await self._failed(self._commit, behind, due.seq, met, error)
        await self._advance(self._commit, course, due.seq, met)
        return True

    async def _say(self, course: Course, step: Step) -> tuple[str, Turn | None]:
        """Tell turns, or that they were taken back. The error, and the last turn that was told."""
        told: Turn | None = None
        if step.taken:
            return await self._say_taken(course, step), None
        for each in step.turns:
            turn = await course.turn(each)
            # erased, or its words are with whoever marked it
            if turn is None or not turn.messages:
                continue
            words = {
                "session_id": turn.session,
                "messages": turn.messages,
                "key": turn.key,
            }
            error = await self._call_in(
                course, turn.session, "sync_turn", turn.user, turn.assistant, **words
            )
            if error:
                return error, told
            told = turn
        return "", told

    async def _say_taken(self, course: Course, step: Step) -> str:
        session = step.turns[0].session
        keys = [f"{course.conversation}:{each.seq}" for each in step.turns]
        parent = course.parents.get(session, "")
        return await self._call_in(
            course, session, "on_session_switch", session,
            parent_session_id=parent, reset=False, rewound=True, keys=keys,
        )  # fmt: skip

    async def _say_end(self, course: Course, due: Due) -> str:
        messages = await course.ended(due, self._owner)
        if not messages:
            return ""
        return await self._call_in(
            course, due.event.session, "on_session_end", messages
        )

    async def _call_in(
        self,
        course: Course,
        session: str,
        method: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """Tell the provider something of a stretch. The error, or ""."""
        error = await self._switch(course, session) or await self._hand(
            method, *args, **kwargs
        )
        if not error:
            self._took()
        return error

    async def _switch(self, course: Course, session: str) -> str:
        """Let the provider get ready, and say which stretch the next thing belongs to, if it is another one."""
        self.ready(session)
        if error := await self._done(self._initialized):
            self._break()
            return error
        if session == self._session:
            return ""
        parent = course.parents.get(session, "")
        reset = not parent or parent != self._session
        error = await self._hand(
            "on_session_switch",
            session,
            parent_session_id=parent,
            reset=reset,
            rewound=False,
        )
        self._session = self._session if error else session
        return error

    async def _give_letters(self) -> bool:
        """What was buried, once more, for those who asked for it."""
        asked, taken = list(self._asked), 0
        for reader in (self._sync, self._commit) if asked else ():
            for letter in await self._journal.letters(reader.name):
                with contextlib.suppress(Gone, NoSuchConversation):
                    taken += await self._give_letter(reader, letter)
        for each in asked:
            each.set_result(taken)
        self._asked = [each for each in self._asked if each not in asked]
        return bool(taken)

    async def _give_letter(self, reader: Reader, letter: Letter) -> bool:
        name, seq = letter.conversation, letter.seq
        course, error = self._course(name), ""
        await course.catch_up()
        if reader is self._sync:
            step = course.at(seq)
            error = (await self._say(course, step))[0] if step is not None else ""
        elif (due := next(iter(course.dues(seq - 1)), None)) is not None:
            error = await self._say_end(course, due)
        if error:
            self._unlucky[reader.name, name, seq] = self._error = error
            return False
        await self._noted(self._journal.unbury, reader, name, seq)
        self._unlucky.pop((reader.name, name, seq), None)
        return True

    # -- how it went -----------------------------------------------------------------------------------------

    def _took(self) -> None:
        """The provider took something: it is there."""
        if self._rest:  # it was away, and what failed meanwhile says nothing of its own
            self._first_failures.clear()
        self._taken += 1
        self._failing.clear()
        self._rest = self._rests_until = self._again_at = 0.0

    async def _failed(
        self, reader: Reader, behind: Behind, seq: int, was: int, error: str
    ) -> bool:
        """Put it off, or bury it. Whether the line goes on."""
        name, key = behind.conversation, (reader.name, behind.conversation)
        self._error = error
        if self._first_failures.get(key, (0, 0))[0] != seq:
            self._first_failures[key] = (seq, self._taken)
        if behind.tries + 1 >= TRIES_MAX and self._taken > self._first_failures[key][1]:
            await self._noted(
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
        await self._noted(self._journal.defer, reader, name, seconds=pause, error=error)
        self._failing.add(key)
        self._again_at = max(self._again_at, self._now() + pause)
        if len(self._failing) > 1:
            self._break()
        return False

    def _break(self) -> None:
        """It is the provider: rest."""
        self._rest = min(self._rest * 2 or 1.0, PAUSE_SECONDS_MAX)
        self._rests_until = self._again_at = self._now() + self._rest

    @property
    def _resting(self) -> bool:
        return self._now() < self._rests_until

    # -- small things ----------------------------------------------------------------------------------------

    async def _hand(self, method: str, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401
        return await self._done(self._seat.hand(method, *args, **kwargs))

    async def _done(self, call: Future[str] | None) -> str:
        """Wait for a call, however long it takes, and keep the lease meanwhile. Its error, or ""."""
        if call is None:
            raise _NotTaken
        self._call, done = call, asyncio.wrap_future(call)
        try:
            while not (await asyncio.wait({done}, timeout=LEASE_SECONDS / 3))[0]:
                with contextlib.suppress(LeaseLost, StoreUnavailable):
                    await self._renew()
        except asyncio.CancelledError:
            done.cancel()
            raise
        if done.cancelled():
            raise _NotTaken
        if self._now() - self._renewed_at > LEASE_SECONDS / 3:
            with contextlib.suppress(StoreUnavailable):
                await self._renew()
        return done.result()

    async def _hold(self) -> bool:
        """Whether this process is the one that gives."""
        if self._lease is not None:  # the store was away when it was to be given back
            with contextlib.suppress(LeaseLost):
                await self._renew()
                return True
        holder = await self._journal.instance()
        self._lease = await self._journal.claim(
            f"memory:{self.name}", holder, LEASE_SECONDS
        )
        self._renewed_at = self._now()
        return self._lease is not None

    async def _renew(self) -> None:
        if self._lease is not None:
            self._lease = await self._journal.renew(self._lease)
            self._renewed_at = self._now()

    async def _let_go(self) -> None:
        """Give the lease back, unless a call is still out: nobody else shall make the same one."""
        if self._lease is not None and (self._call is None or self._call.done()):
            with contextlib.suppress(StoreUnavailable):
                await self._journal.release(self._lease)
                self._lease = None

    async def _advance(self, reader: Reader, course: Course, to: int, was: int) -> None:
        await self._noted(
            self._journal.advance, reader, course.conversation, to, was=was
        )
        self._first_failures.pop((reader.name, course.conversation), None)

    async def _noted(
        self,
        verb: Callable[..., Awaitable[Any]],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Say so in the store, however long it is away: what the provider has taken is not given twice for that."""
        while True:
            try:
                await verb(*args, **kwargs, lease=self._lease)
            except StoreUnavailable as error:
                if self._closing:
                    raise
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
                await asyncio.sleep(1.0)
            else:
                return

    def _course(self, name: str) -> Course:
        course = self._courses.pop(name, None) or Course(
            self._journal, name, self._leave_out
        )
        self._courses[name] = course
        if len(self._courses) > _COURSES_MAX:
            self._courses.popitem(last=False)
        return course

    async def _late(self, reader: Reader) -> list[Behind]:
        """Where it has work, also where it is left alone for now."""
        await self._journal.behind(reader, _ROWS_MAX)
        where = {
            "reader": reader.name,
            "now": _FOR_EVER_US,
            "owner": self._journal.user,
            "limit": _ROWS_MAX,
        }
        store = self._journal.store
        rows = await self._journal.apart(lambda: store.query("behind", **where, past=0))
        return [Behind(*row[:6]) for row in rows]

    async def _count(
        self, late: list[Behind], kind: type[RunFinished | MemoryDue]
    ) -> int:
        """How many turns or ends there are to give."""
        count = 0
        for row in late:
            with contextlib.suppress(Gone, NoSuchConversation):
                page = await self._journal.read(
                    row.conversation, after=row.at, upto=row.to, limit=_ROWS_MAX
                )
                events = [each.event for each in page if each.kind == kind.kind]
                count += sum(
                    getattr(each, "outcome", "completed") == "completed"
                    for each in events
                )
        return count

    def _now(self) -> float:
        return self._journal.clock.monotonic()
