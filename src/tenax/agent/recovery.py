"""Recovery of a run after its owner died: the interruption marker and output stored late.

`interruption` returns the events that end a dead run. The result depends only on the journal, so every process repairs
the run with the same events, at any time. `store_late_output` stores output that the owner held but could
not store in time. Late output belongs to its own run and changes nothing that a model was sent.

An interrupted run leaves a marker with the name of the run. The marker is *pending* while output may still arrive, that
is, until the owner's process has ended or has been swept. Each opening of the conversation looks for output again. If
output is found, the marker becomes *recovered*. If no output can arrive any more, the marker becomes *neutral*. Each
transition is an event and happens once. The number of looks is counted in the run's row, not in the journal. A failed
write during recovery never makes a read fail or wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from tenax.clock import Timing
from tenax.concurrency import start_thread
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
    ReplyThought,
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
from tenax.journal.journal import events_after
from tenax.journal.plan import ID_CHARS_MAX
from tenax.parts import ToolCall, text_of
from tenax.views.open_work import OpenCall, OpenRun, Turns
from tenax.views.pages import Page, first_key, fold_page
from tenax.views.transcript import Key, Row, Transcript

__all__ = [
    "ATTEMPTS_MAX",
    "GIVE_UP_SECONDS",
    "GONE",
    "PAGE_MAX",
    "UNKNOWN_OUTCOME",
    "WORDING",
    "end_orphaned_run",
    "ended_above",
    "find_output",
    "interruption",
    "open_page",
    "open_rows",
    "replay_spool",
    "store_late_output",
    "unknown_outcome",
    "with_output",
]

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 12
GIVE_UP_SECONDS = 24 * 3600.0
_LOOK_SECONDS = 30.0
GONE = "The process that ran it is gone."
_TRIES = 20
_DYING = 4
"""Number of tries before a repair trusts that the lease holder is alive. A server notices the end of a process a moment
later.
"""
PAGE_MAX = 10_000
"""Largest number of rows that a journal returns at once."""

UNKNOWN_OUTCOME = "It was begun when Tenax was interrupted, and nobody knows whether it was done. It was not tried again."


def unknown_outcome(message: int, call: OpenCall) -> ToolFinished:
    """Return the outcome of a call that was running when its process died, with the output so far."""
    text = with_output(UNKNOWN_OUTCOME, call.output)
    return ToolFinished(message, call.call.id, "unknown", text)


def with_output(told: str, output: str) -> str:
    """Return a sentence about a call, followed by the output of the call so far."""
    return f"{told} Its output so far:\n{output}" if output else told


def interruption(run: OpenRun, reason: str, *, planned: bool = False) -> list[Event]:
    """Return the events that end a run after its owner died.

    Text of a cut-off answer is sealed. A started call with the effect "once" gets an unknown outcome, because the call
    may have been made and must not be made twice. A run that was answered but not finished counts as completed.
    """
    events: list[Event] = []
    if run.request and run.partial_parts:
        events.append(MessagePartial(run.partial_parts, run.request))
    for call in run.open:
        if call.started is not None and call.started.effect == "once":
            assert run.step is not None
            events.append(unknown_outcome(run.step.message, call))
    if run.answered:
        return [*events, RunFinished("completed")]
    events.append(RunFinished("interrupted", reason, planned))
    if run.partial_parts or run.step is not None:
        events.append(RunRecovered("recovered"))
    return events


def store_late_output(
    journal: Journal, conversation: str, run: str, events: Sequence[Event]
) -> None:
    """Store the output of a run that no longer owns the conversation, once, and seal the run.

    Output already stored in the journal is skipped. Raises `HeadMoved` if other writers win every try.
    """
    for _ in range(_TRIES):
        head = journal.head(conversation).head
        state = journal.run(conversation, run)
        stored = _Stored(journal, conversation, run, state)
        first = state.late if state is not None else 0
        words = [
            RunLate(n, kind, payload)
            for n, (kind, payload) in enumerate(stored.late(events), first)
        ]
        results = [
            ToolLate(event.message, event.call, event.outcome, event.text, event.cut)
            for event in events
            if isinstance(event, ToolFinished) and stored.lacks(event)
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


def replay_spool(
    journal: Journal,
    conversation: str,
    run: str,
    events: Sequence[Event],
    instance: str,
) -> None:
    """Store the output that a dead instance held for a run, once.

    While the run is open, the events are appended as they are. After the run, `store_late_output` stores them as late
    output. Raises `RunConflict` if the run stays open and its lease stays taken.
    """
    name = f"run:{conversation}"
    for _ in range(_TRIES):
        head = journal.head(conversation)
        if head.run != run:
            store_late_output(journal, conversation, run, events)
            return
        lease = journal.claim(name, f"sweep {run}", _LOOK_SECONDS)
        # The caller holds the lock on the spool of the instance, so the instance is known to be dead.
        if lease is None and journal.holder(name) == instance:
            lease = journal.claim(name, f"sweep {run}", _LOOK_SECONDS, take_over=True)
        # Another process is ending the run right now.
        if lease is None:
            journal.wait(conversation, head.head, seconds=0.25)
            continue
        try:
            # The run may have ended before this process got the lease.
            if journal.head(conversation).run != run:
                continue
            missing = _Stored(
                journal, conversation, run, journal.run(conversation, run)
            ).missing(events)
            if missing:
                journal.append(conversation, missing, run=run, lease=lease)
        except (LeaseLost, RunConflict):
            continue
        finally:
            journal.release(lease)
        return
    raise RunConflict(f"Run {run} is neither ended nor free.")


class _Stored:
    """The part of a run's output stored in the journal."""

    def __init__(
        self, journal: Journal, conversation: str, run: str, state: RunState | None
    ) -> None:
        self._texts: dict[int, str] = {}
        self._thoughts: dict[int, str] = {}
        self._answered: set[int] = set()
        self._sealed: set[int] = set()
        self._finished: set[tuple[int, str]] = set()
        self._last = 0
        after = (
            state.started - 1
            if state is not None and state.started
            else journal.head(conversation).head
        )
        for recorded in events_after(journal, conversation, after):
            if recorded.run in {run, None}:
                self._fold_event(recorded)

    def _fold_event(self, recorded: Recorded) -> None:
        match recorded.event:
            case ModelRequested():
                self._last = recorded.seq
            case ReplyDelta(request, offset, text) if offset == len(
                self._texts.get(request, "")
            ):
                self._texts[request] = self._texts.get(request, "") + text
            case ReplyThought(request, offset, text) if offset == len(
                self._thoughts.get(request, "")
            ):
                self._thoughts[request] = self._thoughts.get(request, "") + text
            case MessagePartial(parts, request):
                self._sealed.add(request)
                self._texts[request] = text_of(parts)
            case MessageAssistant(request=request):
                self._answered.add(request)
            case ToolFinished(message, call, outcome) | ToolLate(
                message, call, outcome
            ):
                # An unknown outcome does not count: the result in the spool says what was done.
                if outcome != "unknown":
                    self._finished.add((message, call))

    def lacks(self, event: ToolFinished) -> bool:
        """Return whether the result is missing in the journal."""
        return (event.message, event.call) not in self._finished

    def missing(self, events: Sequence[Event]) -> list[Event]:
        """Return the missing events in a form that can be appended to the open run."""
        complete = {
            event.request
            for event in events
            if isinstance(event, MessageAssistant | MessagePartial)
        }
        closed = self._answered | self._sealed
        grown = {
            ReplyDelta: _Grown(self._texts),
            ReplyThought: _Grown(self._thoughts),
        }
        missing_events: list[Event] = []
        for event in events:
            match event:
                case ReplyDelta(request) | ReplyThought(request) if (
                    request not in closed | complete
                ):
                    missing_events += grown[type(event)].missing(event)
                case (
                    MessageAssistant(request=request) | MessagePartial(request=request)
                ):
                    if request not in closed:
                        missing_events.append(event)
                        closed = closed | {request}
                case ToolFinished() if (
                    self.lacks(event) and event not in missing_events
                ):
                    missing_events.append(event)
        return missing_events

    def late(
        self, events: Sequence[Event]
    ) -> list[tuple[Literal["token", "tool"], dict[str, Any]]]:
        """Return the missing text and the tool calls of unstored answers. No text is returned twice."""
        seen_chars = {request: len(text) for request, text in self._texts.items()}
        answered = set(self._answered)
        output: list[tuple[Literal["token", "tool"], dict[str, Any]]] = []

        def add_text(request: int, offset: int, text: str) -> None:
            if new_text := _take_new_text(seen_chars, request, offset, text):
                output.append(("token", {"text": new_text}))

        for event in events:
            request = getattr(event, "request", 0) or self._last
            match event:
                case ReplyDelta(offset=offset, text=text) if request not in answered:
                    add_text(request, offset, text)
                case MessagePartial(parts=parts) if request not in answered:
                    add_text(request, 0, text_of(parts))
                case MessageAssistant(parts=parts) if request not in answered:
                    add_text(request, 0, text_of(parts))
                    calls = [part for part in parts if isinstance(part, ToolCall)]
                    output += [
                        ("tool", {"name": call.name, "args": call.arguments})
                        for call in calls
                    ]
                    answered.add(request)
        return output


class _Grown:
    """Streamed texts by request, of which the journal has the beginnings."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._ends = {request: len(text) for request, text in texts.items()}
        self._seen_chars = dict(self._ends)

    def missing(self, event: ReplyDelta | ReplyThought) -> list[Event]:
        """Return the missing part of a partial.

        The part is appended at the end of the stored text: a crashed server may have lost the last partials.
        """
        request, end = event.request, self._ends.get(event.request, 0)
        text = _take_new_text(self._seen_chars, request, event.offset, event.text)
        self._ends[request] = end + len(text)
        return [type(event)(request, end, text)] if text else []


def _take_new_text(
    seen_chars: dict[int, int], request: int, offset: int, text: str
) -> str:
    """Return the part of `text` beyond the text seen so far, and advance `seen_chars` to the end of `text`."""
    before = seen_chars.get(request, 0)
    seen_chars[request] = max(before, offset + len(text))
    return text[max(0, before - offset) :]


def end_orphaned_run(journal: Journal, conversation: str, run_id: str) -> None:
    """End a run after its owner died. A finished run stays unchanged.

    Raises `RunConflict` if the owner is alive.
    """
    name = f"run:{conversation}"
    for tries in range(_TRIES):
        state = journal.run(conversation, run_id)
        if state is not None and state.finished is not None:
            return
        lease = journal.claim(name, f"repair {run_id}"[:ID_CHARS_MAX], _LOOK_SECONDS)
        if lease is not None:
            try:
                _end_run(journal, conversation, run_id, lease)
            except HeadMoved:
                # The person withdrew a message that the run would have taken.
                continue
            finally:
                journal.release(lease)
            return
        if tries >= _DYING and not (journal.holder(name) or "repair").startswith(
            "repair"
        ):
            break
        # Another process is repairing the run.
        journal.wait(conversation, journal.head(conversation).head, seconds=0.25)
    raise RunConflict(f"Run {run_id} has an owner that is alive.", hint="take it over")


def _end_run(journal: Journal, conversation: str, run_id: str, lease: Lease) -> None:
    turns, head, state = (
        Turns(),
        journal.head(conversation),
        journal.run(conversation, run_id),
    )
    if state is not None and state.finished is not None:
        return
    after = (
        state.started - 1
        if state is not None and state.started
        else max(0, head.unanswered - 1)
    )
    for recorded in events_after(journal, conversation, after):
        turns.apply(recorded)
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
    else:
        # The run died before its `RunStarted` was stored. The waiting inputs were the inputs of the run.
        events = [RunStarted(list(turns.waiting)), RunFinished("interrupted", GONE)]
    journal.append(conversation, events, run=run_id, lease=lease)


WORDING: Mapping[str, str] = {
    "pending": "The answer was interrupted. Recovering it.",
    "recovered": "The answer was interrupted. The text above was recovered.",
    "neutral": "The answer was interrupted. No further text was recovered.",
    "resumed": "The answer was interrupted. It is regenerated below.",
    "failed": "Something went wrong.",
    "stopped": "Stopped.",
}


def open_rows(
    journal: Journal,
    conversation: str,
    *,
    before: int | None = None,
    limit: int = 50,
    timing: Timing = Timing(),
) -> list[Row]:
    """Look for late output, then return the last rows and the waiting inputs, or the last rows before a seq."""
    key = None if before is None else first_key(before)
    page = open_page(journal, conversation, key, limit, timing)
    return [*page.rows, *page.waiting]


def open_page(
    journal: Journal,
    conversation: str,
    before: Key | None,
    limit: int,
    timing: Timing = Timing(),
) -> Page:
    """Look for late output, then return the last rows, or the last rows before a key."""
    folded = fold_page(journal, conversation, before, limit)
    page = folded.page(limit)
    if any(row.state == "pending" for row in page.rows) and _retry_recovery(
        journal, conversation, page, folded.transcript, timing.recovery_seconds
    ):
        return fold_page(journal, conversation, before, limit).page(limit)
    return page


def ended_above(
    journal: Journal, conversation: str, run: str | None, first: int
) -> bool:
    """Return whether a run ended above the page that starts at `first`. Late output of the run does not appear on the
    page.
    """
    state = journal.run(conversation, run or "")
    return state is not None and state.finished is not None and state.finished < first


def _retry_recovery(
    journal: Journal,
    conversation: str,
    page: Page,
    transcript: Transcript,
    seconds: float,
) -> bool:
    """Look again for the output of runs with a pending marker. Return `True` if the page has to be read again.

    The call returns after at most `seconds`, even if the store does not accept writes.
    """
    key = (journal.incarnation, journal.user, conversation)
    pending = [
        row for row in page.rows if row.kind == "marker" and row.state == "pending"
    ]
    changes: list[bool] = []

    def look() -> None:
        try:
            changes.extend(
                [
                    find_output(journal, conversation, row, row.run or "", transcript)
                    for row in pending
                ]
            )
        except TenaxError as error:
            # The read shows the stored rows, even if recovery fails.
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
    thread = start_thread(look, "tenax-recovery")
    # No thread could be started. The next read looks again.
    if thread is None:
        with _lock:
            _looking.discard(key)
        return False
    thread.join(seconds)
    return any(changes)


_looking: set[tuple[str, str | None, str]] = set()
"""Conversations in which a thread of this process is looking for output."""
_lock = threading.Lock()


def find_output(
    journal: Journal, conversation: str, row: Row, run: str, transcript: Transcript
) -> bool:
    """Look once for the output of a run. A lease lets only one reader look at a time."""
    name = f"recover:{conversation}:{run}"[:ID_CHARS_MAX]
    reader = f"reader {run}"[:ID_CHARS_MAX]
    lease = journal.claim(name, reader, _LOOK_SECONDS)
    if lease is None:
        return False
    try:
        state = _decide_state(journal, conversation, row, run, transcript)
        if state is None:
            return False
        with suppress(DedupReused, LeaseLost):
            once = Dedup(f"recovered:{conversation}", run)
            journal.append(conversation, [RunRecovered(state)], run=run, dedup=once)
        return True
    finally:
        journal.release(lease)


def _decide_state(
    journal: Journal, conversation: str, row: Row, run: str, transcript: Transcript
) -> Literal["recovered", "neutral"] | None:
    if (journal.clock.now_us() - row.at) / 1e6 > GIVE_UP_SECONDS:
        return "neutral"
    state = journal.run(conversation, run)
    if state is None:
        return None
    if state.late or any(
        row.run == run and row.kind in {"assistant", "tool"} for row in transcript.rows
    ):
        return "recovered"
    if state.sealed is None and not _is_swept(journal, conversation, state):
        return None
    if state.attempts + 1 >= ATTEMPTS_MAX:
        return "neutral"
    journal.use_attempt(conversation, run, was=state.attempts)
    return None


def _is_swept(journal: Journal, conversation: str, state: RunState) -> bool:
    """Return whether no more output can arrive: the owner's process has ended, or its host has shipped all spooled
    output.
    """
    started = (
        journal.fact(conversation, state.started) if state.started is not None else None
    )
    event = started.event if started is not None else None
    owner = event.instance if isinstance(event, RunStarted) else ""
    ended_ids = {
        instance.id
        for instance in journal.instances()
        if instance.ended_at is not None or instance.swept_at is not None
    }
    return owner in ended_ids
