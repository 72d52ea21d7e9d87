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
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tenax.errors import (
    DedupReused,
    HeadMoved,
    InvalidInput,
    LeaseLost,
    NoSuchConversation,
    RunConflict,
    TenaxError,
)
from tenax.events import (
    Event,
    MessageAssistant,
    MessagePartial,
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
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Expect, Instance, RunState
from tenax.parts import Text, ToolCall, text_of
from tenax.views.transcript import Row, Transcript
from tenax.views.turns import OpenRun, Turns

__all__ = [
    "ATTEMPTS_MAX",
    "GIVE_UP_SECONDS",
    "UNKNOWN_OUTCOME",
    "WORDING",
    "interruption",
    "marker_of",
    "repair",
    "retry",
    "retry_now",
    "rows_of",
    "ship",
]

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 12
GIVE_UP_SECONDS = 24 * 3600.0
_LOOK_SECONDS = 30.0
_GONE = "The process that ran it is gone."
_TRIES = 20


UNKNOWN_OUTCOME = (
    "It was begun when Tenax was interrupted, and nobody knows whether it was done. It was not tried again."
)


def interruption(run: OpenRun, why: str) -> list[Event]:
    """The end of a run whose owner is gone. Text that was cut off is sealed; a call that may have been made and must
    not be made twice has an unknown outcome. A run that only failed to say that it was done is done.
    """
    events: list[Event] = []
    if run.request and run.said:
        events.append(MessagePartial([Text(run.said)], run.request))
    for each in run.step.open if run.step is not None else ():
        if each.started is not None and each.started.effect == "once":
            assert run.step is not None
            events.append(ToolFinished(run.step.message, each.call.id, "unknown", UNKNOWN_OUTCOME))
    if run.answered:
        return [*events, RunFinished("completed")]
    events.append(RunFinished("interrupted", why))
    if run.said or run.step is not None:
        events.append(RunRecovered("recovered"))
    return events


async def ship(
    journal: AsyncJournal, conversation: str, run: str, events: Sequence[Event], *, source: str, said: int = 0
) -> None:
    """Store output of a run that no longer has the conversation, once for each source, and seal the run.

    `said` characters of the answer that it was writing are stored already.
    """
    results = [_result(each) for each in events if isinstance(each, ToolFinished)]
    lates = _late(events, said)
    for _ in range(_TRIES):
        state = await journal.run(conversation, run)
        first = state.late if state is not None else 0
        words = [RunLate(n, what, payload) for n, (what, payload) in enumerate(lates, first)]
        head = (await journal.head(conversation)).head
        try:
            await journal.append(
                conversation,
                [*words, *results, RunSealed()],
                run=run,
                dedup=Dedup(f"late:{conversation}", source),
                expect=Expect(head=head),
            )
        except HeadMoved:
            continue
        except DedupReused:
            return
        return
    raise HeadMoved("The conversation moves too fast for this run's output to find its place.")


def _late(events: Sequence[Event], said: int) -> list[tuple[Literal["token", "tool"], dict[str, Any]]]:
    """The words, and the calls that were asked for. A delta says where its text begins, so nothing is said twice."""
    found: list[tuple[Literal["token", "tool"], dict[str, Any]]] = []
    for event in events:
        match event:
            case ReplyDelta(offset=offset, text=text):
                rest = text[max(0, said - offset) :]
                said = max(said, offset + len(text))
                if rest:
                    found.append(("token", {"text": rest}))
            case MessageAssistant(parts=parts) | MessagePartial(parts=parts):
                rest = text_of(parts)[said:]
                if rest:
                    found.append(("token", {"text": rest}))
                found += [
                    ("tool", {"name": part.name, "args": part.arguments})
                    for part in parts
                    if isinstance(part, ToolCall)
                ]
                said = 0
    return found


def _result(event: ToolFinished) -> ToolLate:
    return ToolLate(event.message, event.call, event.outcome, event.text, event.cut)


def repair(db: Any, session_id: str, run_id: str) -> dict[str, Any]:  # noqa: ANN401  (a SessionDB)
    """End a run whose owner is gone, and say what its marker says. Repairing it again changes nothing.

    A run that is still open somewhere alive is not touched: that is a RunConflict.
    """
    journal: Journal = db.journal
    stretch = journal.stretch(session_id)
    if stretch is None:
        raise NoSuchConversation(f"There is no session {session_id}.")
    conversation = stretch.conversation
    known = journal.run(conversation, run_id)
    if known is None or known.finished is None:
        _end(journal, conversation, run_id, known)
    shown = _shown(journal, conversation)
    found = next((row for row in shown.rows if row.kind == "marker" and row.run == run_id), None)
    if found is None:
        raise InvalidInput(f"Run {run_id} was not interrupted; it has no marker.")
    return marker_of(journal, conversation, found)


def _end(journal: Journal, conversation: str, run_id: str, known: RunState | None) -> None:
    lease = journal.claim(f"run:{conversation}", f"repair {run_id}", _LOOK_SECONDS)
    if lease is None:
        raise RunConflict(f"Run {run_id} has an owner that is alive.", hint="take it over")
    try:
        turns = Turns()
        head = journal.head(conversation)
        after = known.started - 1 if known is not None and known.started else max(0, head.unanswered - 1)
        while page := journal.read(conversation, after=after):
            for each in page:
                turns.apply(each)
            after = page[-1].seq
        open_run: OpenRun | None = turns.run
        if open_run is not None and open_run.id == run_id:
            events: list[Any] = interruption(open_run, _GONE)
        elif head.run is not None:
            raise RunConflict(f"Another run than {run_id} is open.")
        else:  # it died before it could say that it had begun: what waited for it was its input
            events = [RunStarted(list(turns.waiting)), RunFinished("interrupted", _GONE)]
        journal.append(conversation, events, run=run_id, lease=lease)
    finally:
        journal.release(lease)


def marker_of(journal: Journal, conversation: str, row: Row) -> dict[str, Any]:
    """A marker as a mapping. Only a pending one says how often it was looked at, and since when."""
    marker = msgspec.to_builtins(row)
    if row.state == "pending" and row.run is not None:
        state = journal.run(conversation, row.run)
        marker["attempts"] = state.attempts if state is not None else 0
        marker["first_seen"] = row.at / 1e6
    return {**marker, "run_id": row.run, "content": WORDING[row.state]}


WORDING: Mapping[str, str] = {
    "pending": "The answer was interrupted. Looking for what was written of it.",
    "recovered": "The answer was interrupted. What was written of it stands above.",
    "neutral": "The answer was interrupted. Nothing of it was found.",
    "resumed": "The answer was interrupted, and went on below.",
    "failed": "The answer failed.",
    "stopped": "Stopped.",
}


def rows_of(journal: Journal, conversation: str, *, limit: int = 200) -> list[dict[str, Any]]:
    """The rows of a conversation as mappings, after a look for output that came late."""
    shown = _shown(journal, conversation, limit)
    if any(row.state == "pending" for row in shown.rows) and retry_now(journal, conversation, shown):
        shown = _shown(journal, conversation, limit)
    return [
        marker_of(journal, conversation, row) if row.kind == "marker" else msgspec.to_builtins(row)
        for row in shown.rows
    ]


def _shown(journal: Journal, conversation: str, limit: int = 200) -> Transcript:
    shown = Transcript()
    for each in journal.open(conversation, limit=limit):
        shown.apply(each)
    return shown


async def retry(journal: AsyncJournal, conversation: str, shown: Transcript) -> bool:
    """Look again for the output of runs whose marker is pending. True if something is shown otherwise now."""
    return await journal.apart(lambda: retry_now(journal.journal, conversation, shown))


def retry_now(journal: Journal, conversation: str, shown: Transcript) -> bool:
    """The same, for a caller without a loop."""
    changed = False
    for row in shown.rows:
        if row.kind == "marker" and row.state == "pending" and row.run is not None:
            try:
                changed = _look(journal, conversation, row, row.run, shown) or changed
            except TenaxError as error:  # a read shows what there is, whatever recovery cannot do
                log.warning("Recovery has to wait: %s", error, extra={"action": "recovery_waits"})
    return changed


def _look(journal: Journal, conversation: str, row: Row, run: str, shown: Transcript) -> bool:
    """One look at one run, by one reader at a time."""
    lease = journal.claim(f"recover:{conversation}:{run}", f"reader {run}", _LOOK_SECONDS)
    if lease is None:
        return False
    try:
        state = _verdict(journal, conversation, row, run, shown)
        if state is None:
            return False
        once = Dedup(f"recovered:{conversation}", run)
        try:
            journal.append(conversation, [RunRecovered(state)], run=run, dedup=once)
        except (DedupReused, LeaseLost):
            return True
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
    if state.late or any(each.run == run and each.kind in {"assistant", "tool"} for each in shown.rows):
        return "recovered"
    if state.sealed is None and not _swept(journal, conversation, state):
        return None
    if state.attempts + 1 >= ATTEMPTS_MAX:
        return "neutral"
    journal.use_attempt(conversation, run, was=state.attempts)
    return None


def _swept(journal: Journal, conversation: str, state: RunState) -> bool:
    """Whether no more output can come: the process that ran it has ended, or its host has shipped all it left."""
    started = journal.fact(conversation, state.started) if state.started is not None else None
    event = started.event if started is not None else None
    owner = event.instance if isinstance(event, RunStarted) else ""
    found: Instance | None = next((each for each in journal.instances() if each.id == owner), None)
    return found is not None and (found.ended_at is not None or found.swept_at is not None)
