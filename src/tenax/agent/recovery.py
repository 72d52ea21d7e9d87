"""What happens to a run whose owner is gone, as far as a person sees it: the marker, and output that comes late.

`interruption` is what is appended for such a run: a function of what the journal says of it, so whoever repairs it, and
whenever, appends the same. `ship` stores what its owner had and could not store in time: as late output, which stands
with its own run and changes nothing that a model was sent.

A run that was interrupted leaves a marker that names it. While its output may still arrive (its owner's process has
neither ended nor been swept) the marker is pending, and opening the conversation looks again. Output makes it
*recovered*; none, for good, makes it *neutral*: each is an event, once. Looks are counted in the run's row, not in the
journal. A read never fails and never waits because this cannot write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from tenax.concurrency import started
from tenax.errors import (
    DedupReused,
    HeadMoved,
    LeaseLost,
    RunConflict,
    TenaxError,
)
from tenax.events import (
    Event,
    MessageAssistant,
    MessagePartial,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    RunLate,
    RunRecovered,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolLate,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, Expect, Lease, Recorded, RunState
from tenax.journal.place import ALL_SEQS
from tenax.journal.plan import ID_CHARS_MAX
from tenax.parts import Text, ToolCall, text_of
from tenax.views.open_work import OpenRun, Turns
from tenax.views.pages import Page, first_key, fold_page
from tenax.views.transcript import Key, Row, Transcript

__all__ = [
    "ATTEMPTS_MAX",
    "GIVE_UP_SECONDS",
    "GONE",
    "PAGE_MAX",
    "UNKNOWN_OUTCOME",
    "WORDING",
    "ended_above",
    "events_after",
    "hand_in",
    "interruption",
    "mend",
    "open_page",
    "open_rows",
    "ship",
]

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 12
GIVE_UP_SECONDS = 24 * 3600.0
_LOOK_SECONDS = 30.0
GONE = "The process that ran it is gone."
_TRIES = 20
_DYING = 4
"""So often a repair looks again at an owner that seems to live: a server hears of the end of a process a moment later."""
_WAIT_SECONDS = 0.5
"""How long a read waits for recovery, at most."""
PAGE_MAX = 10_000
"""As many rows as a journal gives at once."""

UNKNOWN_OUTCOME = "It was begun when Tenax was interrupted, and nobody knows whether it was done. It was not tried again."


def interruption(run: OpenRun, why: str, *, planned: bool = False) -> list[Event]:
    """The end of a run whose owner is gone. Text that was cut off is sealed; a call that may have been made and must
    not be made twice has an unknown outcome. A run that only failed to say that it was done is done.
    """
    events: list[Event] = []
    if run.request and run.said:
        events.append(MessagePartial([Text(run.said)], run.request))
    for each in run.open:
        if each.started is not None and each.started.effect == "once":
            assert run.step is not None
            events.append(
                ToolFinished(run.step.message, each.call.id, "unknown", UNKNOWN_OUTCOME)
            )
    if run.answered:
        return [*events, RunFinished("completed")]
    events.append(RunFinished("interrupted", why, planned))
    if run.said or run.step is not None:
        events.append(RunRecovered("recovered"))
    return events


def ship(
    journal: Journal, conversation: str, run: str, events: Sequence[Event]
) -> None:
    """Store output of a run that no longer has the conversation, once, and seal the run.

    What of it the journal has already is left out.
    """
    for _ in range(_TRIES):
        head = journal.head(conversation).head
        state = journal.run(conversation, run)
        stored = _Stored(journal, conversation, run, state)
        first = state.late if state is not None else 0
        words = [
            RunLate(n, what, payload)
            for n, (what, payload) in enumerate(stored.late(events), first)
        ]
        results = [
            ToolLate(each.message, each.call, each.outcome, each.text, each.cut)
            for each in events
            if isinstance(each, ToolFinished) and stored.lacks(each)
        ]
        if (
            not words
            and not results
            and state is not None
            and state.outcome == "completed"
        ):
            return
        try:
            journal.append(
                conversation,
                [*words, *results, RunSealed()],
                run=run,
                dedup=Dedup(f"late:{conversation}", run),
                expect=Expect(head=head),
            )
        except HeadMoved:
            continue
        except DedupReused:
            return
        return
    raise HeadMoved(
        "The conversation moves too fast for this run's output to find its place."
    )


def hand_in(
    journal: Journal,
    conversation: str,
    run: str,
    events: Sequence[Event],
    instance: str,
) -> None:
    """Store what a dead instance held of a run, once: as what it is while its run is open, as late output after."""
    name = f"run:{conversation}"
    for _ in range(_TRIES):
        head = journal.head(conversation)
        if head.run != run:
            ship(journal, conversation, run, events)
            return
        lease = journal.claim(name, f"sweep {run}", _LOOK_SECONDS)
        # who has its spool knows that it is dead
        if lease is None and journal.holder(name) == instance:
            lease = journal.claim(name, f"sweep {run}", _LOOK_SECONDS, take_over=True)
        if lease is None:  # somebody ends the run just now
            journal.wait(conversation, head.head, seconds=0.25)
            continue
        try:
            # it was ended before the lease was ours
            if journal.head(conversation).run != run:
                continue
            held = _Stored(
                journal, conversation, run, journal.run(conversation, run)
            ).missing(events)
            if held:
                journal.append(conversation, held, run=run, lease=lease)
        except (LeaseLost, RunConflict):
            continue
        finally:
            journal.release(lease)
        return
    raise RunConflict(f"Run {run} is neither ended nor free.")


class _Stored:
    """What the journal has of a run's output."""

    def __init__(
        self, journal: Journal, conversation: str, run: str, state: RunState | None
    ) -> None:
        self._said: dict[int, str] = {}
        self._answered: set[int] = set()
        self._sealed: set[int] = set()
        self._finished: set[tuple[int, str]] = set()
        self._last = 0
        after = (
            state.started - 1
            if state is not None and state.started
            else journal.head(conversation).head
        )
        for each in events_after(journal, conversation, after):
            if each.run in {run, None}:
                self._take(each)

    def _take(self, recorded: Recorded) -> None:
        match recorded.event:
            case ModelRequested():
                self._last = recorded.seq
            case ReplyDelta(request, offset, text) if offset == len(
                self._said.get(request, "")
            ):
                self._said[request] = self._said.get(request, "") + text
            case MessagePartial(parts, request):
                self._sealed.add(request)
                self._said[request] = text_of(parts)
            case MessageAssistant(request=request):
                self._answered.add(request)
            case ToolFinished(message, call, outcome) | ToolLate(
                message, call, outcome
            ):
                # nobody knew; what is handed in is what was done
                if outcome != "unknown":
                    self._finished.add((message, call))

    def lacks(self, event: ToolFinished) -> bool:
        """Whether this result is not there."""
        return (event.message, event.call) not in self._finished

    def missing(self, events: Sequence[Event]) -> list[Event]:
        """Of these, what can be appended as it is to a run that is open."""
        whole = {
            each.request
            for each in events
            if isinstance(each, MessageAssistant | MessagePartial)
        }
        closed = self._answered | self._sealed
        ends = {request: len(text) for request, text in self._said.items()}
        told = dict(ends)
        found: list[Event] = []
        for event in events:
            match event:
                case ReplyDelta(request, offset, text) if request not in closed | whole:
                    rest, end = _rest(told, request, offset, text), ends.get(request, 0)
                    # at the end of what is there: a crashed server may have lost the last of it
                    if rest:
                        found.append(ReplyDelta(request, end, rest))
                        ends[request] = end + len(rest)
                case (
                    MessageAssistant(request=request) | MessagePartial(request=request)
                ):
                    if request not in closed:
                        found.append(event)
                        closed = closed | {request}
                case ToolFinished() if self.lacks(event) and event not in found:
                    found.append(event)
        return found

    def late(
        self, events: Sequence[Event]
    ) -> list[tuple[Literal["token", "tool"], dict[str, Any]]]:
        """The words that are not there, and the calls that were asked for. Nothing is said twice."""
        told = {request: len(text) for request, text in self._said.items()}
        answered = set(self._answered)
        found: list[tuple[Literal["token", "tool"], dict[str, Any]]] = []

        def say(request: int, offset: int, text: str) -> None:
            if rest := _rest(told, request, offset, text):
                found.append(("token", {"text": rest}))

        for event in events:
            request = getattr(event, "request", 0) or self._last
            match event:
                case ReplyDelta(offset=offset, text=text) if request not in answered:
                    say(request, offset, text)
                case MessagePartial(parts=parts) if request not in answered:
                    say(request, 0, text_of(parts))
                case MessageAssistant(parts=parts) if request not in answered:
                    say(request, 0, text_of(parts))
                    calls = [part for part in parts if isinstance(part, ToolCall)]
                    found += [
                        ("tool", {"name": call.name, "args": call.arguments})
                        for call in calls
                    ]
                    answered.add(request)
        return found


def _rest(told: dict[int, int], request: int, offset: int, text: str) -> str:
    """What of this was not told yet; from now on it was."""
    before = told.get(request, 0)
    told[request] = max(before, offset + len(text))
    return text[max(0, before - offset) :]


def events_after(
    journal: Journal, conversation: str, after: int, upto: int = ALL_SEQS
) -> Iterator[Recorded]:
    while page := journal.read(conversation, after=after, upto=upto):
        yield from page
        after = page[-1].seq


def mend(journal: Journal, conversation: str, run_id: str) -> None:
    """End a run whose owner is gone. One that has ended is left as it is."""
    name = f"run:{conversation}"
    for tries in range(_TRIES):
        known = journal.run(conversation, run_id)
        if known is not None and known.finished is not None:
            return
        lease = journal.claim(name, f"repair {run_id}"[:ID_CHARS_MAX], _LOOK_SECONDS)
        if lease is not None:
            try:
                _end(journal, conversation, run_id, lease)
            finally:
                journal.release(lease)
            return
        if tries >= _DYING and not (journal.holder(name) or "repair").startswith(
            "repair"
        ):
            break
        # another repairs it
        journal.wait(conversation, journal.head(conversation).head, seconds=0.25)
    raise RunConflict(f"Run {run_id} has an owner that is alive.", hint="take it over")


def _end(journal: Journal, conversation: str, run_id: str, lease: Lease) -> None:
    turns, head, known = (
        Turns(),
        journal.head(conversation),
        journal.run(conversation, run_id),
    )
    if known is not None and known.finished is not None:
        return
    after = (
        known.started - 1
        if known is not None and known.started
        else max(0, head.unanswered - 1)
    )
    for each in events_after(journal, conversation, after):
        turns.apply(each)
    run = turns.run
    if run is not None and run.id == run_id:
        step = run.step
        if step and (run.waits or run.handed) and run.at_rest:
            raise RunConflict(
                f"Run {run_id} waits for an answer, or for a sub-agent.",
                hint="answer it",
            )
        events = interruption(run, GONE)
    elif head.run is not None:
        raise RunConflict(f"Another run than {run_id} is open.")
    else:  # it died before it could say that it had begun: what waited for it was its input
        events = [RunStarted(list(turns.waiting)), RunFinished("interrupted", GONE)]
    journal.append(conversation, events, run=run_id, lease=lease)


WORDING: Mapping[str, str] = {
    "pending": "The answer was interrupted. Looking for what was written of it.",
    "recovered": "The answer was interrupted. What was written of it stands above.",
    "neutral": "The answer was interrupted. No more of it is expected.",
    "resumed": "The answer was interrupted, and went on below.",
    "failed": "The answer failed.",
    "stopped": "Stopped.",
}


def open_rows(
    journal: Journal, conversation: str, *, before: int | None = None, limit: int = 50
) -> list[Row]:
    """The last rows and the inputs that wait, or the last rows before a seq, after a look for output that came late."""
    page = open_page(
        journal, conversation, None if before is None else first_key(before), limit
    )
    return [*page.rows, *page.waiting]


def open_page(
    journal: Journal, conversation: str, before: Key | None, limit: int
) -> Page:
    """The last rows, or the last before a key, after a look for output that came late."""
    folded = fold_page(journal, conversation, before, limit)
    page = folded.page(limit)
    if any(row.state == "pending" for row in page.rows) and _retry(
        journal, conversation, page, folded.shown
    ):
        return fold_page(journal, conversation, before, limit).page(limit)
    return page


def ended_above(
    journal: Journal, conversation: str, run: str | None, first: int
) -> bool:
    """Whether a run ended above the page that begins here: what comes late of it is not shown on this one."""
    state = journal.run(conversation, run or "")
    return state is not None and state.finished is not None and state.finished < first


def _retry(journal: Journal, conversation: str, page: Page, shown: Transcript) -> bool:
    """Look again for the output of runs whose marker is pending. True if something is shown otherwise now.

    It comes back soon: a store that does not take writes is not waited for.
    """
    key = (journal.incarnation, journal.user, conversation)
    pending = [
        row for row in page.rows if row.kind == "marker" and row.state == "pending"
    ]
    changed: list[bool] = []

    def look() -> None:
        try:
            changed.extend(
                [
                    _look(journal, conversation, row, row.run or "", shown)
                    for row in pending
                ]
            )
        except (
            TenaxError
        ) as error:  # a read shows what there is, whatever recovery cannot do
            log.warning(
                "Recovery has to wait: %s", error, extra={"action": "recovery_waits"}
            )
        finally:
            with _lock:
                _looking.discard(key)

    with _lock:
        if not pending or key in _looking:
            return False
        _looking.add(key)
    thread = started(look, "tenax-recovery")
    if thread is None:  # the next read looks
        with _lock:
            _looking.discard(key)
        return False
    thread.join(_WAIT_SECONDS)
    return any(changed)


_looking: set[tuple[str, str | None, str]] = set()
"""Conversations in which this process is looking now."""
_lock = threading.Lock()


def _look(
    journal: Journal, conversation: str, row: Row, run: str, shown: Transcript
) -> bool:
    """One look at one run, by one reader at a time."""
    name, reader = (
        f"recover:{conversation}:{run}"[:ID_CHARS_MAX],
        f"reader {run}"[:ID_CHARS_MAX],
    )
    lease = journal.claim(name, reader, _LOOK_SECONDS)
    if lease is None:
        return False
    try:
        state = _verdict(journal, conversation, row, run, shown)
        if state is None:
            return False
        with suppress(DedupReused, LeaseLost):
            once = Dedup(f"recovered:{conversation}", run)
            journal.append(conversation, [RunRecovered(state)], run=run, dedup=once)
        return True
    finally:
        journal.release(lease)


def _verdict(
    journal: Journal, conversation: str, row: Row, run: str, shown: Transcript
) -> Literal["recovered", "neutral"] | None:
    if (journal.clock.now_us() - row.at) / 1e6 > GIVE_UP_SECONDS:
        return "neutral"
    state = journal.run(conversation, run)
    if state is None:
        return None
    if state.late or any(
        each.run == run and each.kind in {"assistant", "tool"} for each in shown.rows
    ):
        return "recovered"
    if state.sealed is None and not _swept(journal, conversation, state):
        return None
    if state.attempts + 1 >= ATTEMPTS_MAX:
        return "neutral"
    journal.use_attempt(conversation, run, was=state.attempts)
    return None


def _swept(journal: Journal, conversation: str, state: RunState) -> bool:
    """Whether no more output can come: the process that ran it has ended, or its host has shipped all it left."""
    started = (
        journal.fact(conversation, state.started) if state.started is not None else None
    )
    event = started.event if started is not None else None
    owner = event.instance if isinstance(event, RunStarted) else ""
    gone = {
        each.id
        for each in journal.instances()
        if each.ended_at is not None or each.swept_at is not None
    }
    return owner in gone
