"""What is open in a conversation: inputs that wait, the run, the calls of its last answer, approvals, what was cut off.

A runner decides from this what to do next, and recovery what has to be repaired. Pure: the same events always say the
same, whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from tenax import events
from tenax.config.rules import Rule, exactly
from tenax.parts import ToolCall
from tenax.views import steps_of

if TYPE_CHECKING:
    from tenax.journal.base import Recorded

__all__ = ["OpenCall", "OpenRun", "Step", "Turns"]

T = TypeVar("T")


class OpenCall(msgspec.Struct):
    """A call of the last answer that has no outcome yet."""

    call: ToolCall
    asked: events.ApprovalAsked | None = None
    answered: events.ApprovalAnswered | None = None
    started: events.ToolStarted | None = None
    handed: events.ToolHanded | None = None
    """It goes on in another conversation."""
    handed_at: int = 0
    finished: bool = False


class Step(msgspec.Struct):
    """An answer and its calls."""

    message: int
    calls: dict[str, OpenCall]

    @property
    def open(self) -> list[OpenCall]:
        return [each for each in self.calls.values() if not each.finished]


class OpenRun(msgspec.Struct):
    """A run, while it is open and after."""

    id: str
    seq: int
    started: events.RunStarted
    inputs: list[int]
    request: int = 0
    """The request that has no answer yet, or 0."""
    said: str = ""
    """What of its answer is stored as partials."""
    requests: int = 0
    delegated: int = 0
    """How many of its calls went to other conversations."""
    answered: bool = False
    """The last answer asks for no tool: the run is done but for saying so."""
    step: Step | None = None
    stop: bool = False
    finished: Literal["", "completed", "failed", "cancelled", "interrupted"] = ""
    finished_at: int = 0
    planned: bool = False
    ended: int = 0
    """The seq of its end."""

    @property
    def open(self) -> list[OpenCall]:
        """Calls of its last answer that have no outcome yet."""
        return self.step.open if self.step is not None else []

    @property
    def waits(self) -> list[OpenCall]:
        """Calls that wait for a person."""
        return [each for each in self.open if each.asked and not each.answered]

    @property
    def handed(self) -> list[OpenCall]:
        """Calls that go on in other conversations."""
        return [each for each in self.open if each.handed]

    @property
    def at_rest(self) -> bool:
        """Nothing of it is under way here: no request, and no call but those that go on elsewhere."""
        return not self.request and not any(
            each.started and not each.handed for each in self.open
        )


class Turns:
    """The fold."""

    def __init__(self) -> None:
        self.waiting: dict[int, events.MessageUser] = {}
        self.run: OpenRun | None = None
        self.last: OpenRun | None = None
        """The run that finished last."""
        self.runs: dict[str, OpenRun] = {}
        self.newest_person = 0
        """The last input of a person."""
        self._allowed: dict[int, Rule] = {}
        self._killed: dict[
            int, tuple[dict[int, events.MessageUser], dict[int, Rule]]
        ] = {}

    def apply(self, recorded: Recorded) -> None:
        step = _STEPS.get(recorded.kind)
        if step is None:
            return
        event = recorded.event
        if not isinstance(event, events.Unknown):
            step(self, recorded, event)
        elif recorded.kind in _OF_A_STEP and (run := self._of(recorded)) is not None:
            # erased: which call it was is not known, and none of them is made a second time
            run.step = None

    @property
    def allowed(self) -> list[Rule]:
        """What the person allowed for this conversation, and did not undo."""
        return list(self._allowed.values())

    @property
    def steers(self) -> list[int]:
        """Inputs that want to stand in the next request of the open run."""
        return [seq for seq, event in self.waiting.items() if event.how == "steer"]

    @property
    def stopped(self) -> bool:
        """Whether the open run is asked to stop."""
        return self.run is not None and (
            self.run.stop
            or any(
                event.how == "interrupt" and seq > self.run.seq
                for seq, event in self.waiting.items()
            )
        )

    @property
    def resumable(self) -> OpenRun | None:
        """The interrupted run that one could go on with: nothing has come after it."""
        return (
            self.last
            if self.run is None and self.last and self.last.finished == "interrupted"
            else None
        )

    def _message_user(self, recorded: Recorded, event: events.MessageUser) -> None:
        if event.ask:
            self.waiting[recorded.seq] = event
            if not event.system:
                self.newest_person = recorded.seq

    def _run_started(self, recorded: Recorded, event: events.RunStarted) -> None:
        run = OpenRun(recorded.run or "", recorded.seq, event, list(event.inputs))
        before = self.runs.get(event.resumes or "")
        if before is not None:
            run.step, run.inputs = before.step, [*before.inputs, *run.inputs]
            run.requests, run.delegated = before.requests, before.delegated
        self.run = self.runs[run.id] = run
        self._take(event.inputs)

    def _take(self, inputs: list[int]) -> None:
        for seq in inputs:
            self.waiting.pop(seq, None)

    def _of(self, recorded: Recorded) -> OpenRun | None:
        return self.runs.get(recorded.run or "")

    def _model_requested(
        self, recorded: Recorded, event: events.ModelRequested
    ) -> None:
        self._take(event.inputs)
        if (run := self._of(recorded)) is not None:
            run.request, run.said = recorded.seq, ""
            run.requests += 1
            run.answered = False
            run.inputs += event.inputs

    def _reply_delta(self, recorded: Recorded, event: events.ReplyDelta) -> None:
        run = self._of(recorded) or self.run
        if (
            run is not None
            and run.request == event.request
            and event.offset == len(run.said)
        ):
            run.said += event.text

    def _model_failed(
        self, recorded: Recorded, event: events.ModelFailed | events.MessagePartial
    ) -> None:
        if (run := self._of(recorded)) is not None and run.request == event.request:
            run.request = 0

    _message_partial = _model_failed

    def _message_assistant(
        self, recorded: Recorded, event: events.MessageAssistant
    ) -> None:
        run = self._of(recorded)
        if run is None:
            return
        calls = [part for part in event.parts if isinstance(part, ToolCall)]
        run.request = 0
        run.answered = not calls
        run.step = (
            Step(recorded.seq, {call.id: OpenCall(call) for call in calls})
            if calls
            else None
        )

    def _call(self, recorded: Recorded, message: int, call: str) -> OpenCall | None:
        run = self._of(recorded) or self.run
        step = run.step if run is not None else None
        return (
            step.calls.get(call)
            if step is not None and step.message == message
            else None
        )

    def _approval_asked(self, recorded: Recorded, event: events.ApprovalAsked) -> None:
        if (call := self._call(recorded, event.message, event.call)) is not None:
            call.asked = event

    def _approval_answered(
        self, recorded: Recorded, event: events.ApprovalAnswered
    ) -> None:
        call = self._call(recorded, event.message, event.call)
        if call is not None and call.answered is None:
            call.answered = event
            # Earlier versions stored no pattern. Such an answer is good for its own call only.
            if event.answer == "conversation" and event.pattern:
                self._allowed[recorded.seq] = Rule(
                    "allow", exactly(call.call.name), event.pattern
                )

    def _content_erased(self, _recorded: Recorded, event: events.ContentErased) -> None:
        for allowed in (
            self._allowed,
            *(allowed for _, allowed in self._killed.values()),
        ):
            for seq in event.seqs:
                allowed.pop(seq, None)

    def _tool_started(self, recorded: Recorded, event: events.ToolStarted) -> None:
        if (call := self._call(recorded, event.message, event.call)) is not None:
            call.started = event

    def _tool_handed(self, recorded: Recorded, event: events.ToolHanded) -> None:
        call, run = self._call(recorded, event.message, event.call), self._of(recorded)
        if call is not None and run is not None:
            run.delegated += call.handed is None
            call.handed, call.handed_at = event, recorded.at

    def _tool_finished(
        self, recorded: Recorded, event: events.ToolFinished | events.ToolLate
    ) -> None:
        if (call := self._call(recorded, event.message, event.call)) is not None:
            call.finished = True

    _tool_late = _tool_finished

    def _run_stop(self, recorded: Recorded, _event: events.RunStop) -> None:
        if self.run is not None and recorded.run in {None, self.run.id}:
            self.run.stop = True

    def _run_finished(self, recorded: Recorded, event: events.RunFinished) -> None:
        run = self._of(recorded)
        if run is not None:
            run.finished, run.finished_at, run.ended = (
                event.outcome,
                recorded.at,
                recorded.seq,
            )
            run.planned = event.planned
            self.last = run
            if self.run is run:
                self.run = None

    def _context_compacted(
        self, _recorded: Recorded, event: events.ContextCompacted
    ) -> None:
        if self.last is not None and self.last.ended <= event.covers_to:
            self.last = None

    def _conversation_rewound(
        self, recorded: Recorded, event: events.ConversationRewound
    ) -> None:
        self._kill(recorded.seq, event.to)

    def _conversation_cleared(
        self, recorded: Recorded, _event: events.ConversationCleared
    ) -> None:
        self._kill(recorded.seq, 0)

    def _kill(self, by: int, after: int) -> None:
        """After an edit no run is gone on with: what it stood on may be another."""
        self.waiting, waiting = _parted(self.waiting, after)
        self._allowed, allowed = _parted(self._allowed, after)
        self._killed[by] = waiting, allowed
        self.last = None

    def _conversation_restored(
        self, _recorded: Recorded, event: events.ConversationRestored
    ) -> None:
        waiting, allowed = self._killed.pop(event.of, ({}, {}))
        self.waiting = dict(sorted({**self.waiting, **waiting}.items()))
        self._allowed |= allowed
        self.last = None


def _parted(by_seq: dict[int, T], after: int) -> tuple[dict[int, T], dict[int, T]]:
    """What stands up to a seq, and what stands after it."""
    kept = {seq: each for seq, each in by_seq.items() if seq <= after}
    return kept, {seq: each for seq, each in by_seq.items() if seq > after}


_OF_A_STEP = frozenset(
    {events.MessageAssistant.kind, events.ToolFinished.kind, events.ToolLate.kind}
)
_STEPS = steps_of(Turns)
