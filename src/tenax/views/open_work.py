"""The open work of a conversation: waiting inputs, the run, the calls of the last answer, approvals, interrupted runs.

A worker decides from this view what to do next, and recovery decides what to repair. The view is pure: the same events
give the same open work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from tenax import events
from tenax.config.rules import Rule, escape_pattern
from tenax.journal.standing import Standing
from tenax.parts import Part, Reasoning, Text, ToolCall
from tenax.views import steps_of

if TYPE_CHECKING:
    from tenax.journal.base import Recorded

__all__ = ["OpenCall", "OpenRun", "Step", "Turns", "partial_parts"]


class OpenCall(msgspec.Struct):
    """A tool call of the last answer, with the events about the call."""

    call: ToolCall
    approval: events.ApprovalAsked | None = None
    answered: events.ApprovalAnswered | None = None
    started: events.ToolStarted | None = None
    handed: events.ToolHanded | None = None
    """Set if the call continues in another conversation."""
    handed_at: int = 0
    output: str = ""
    """The output so far of a running call."""
    finished: bool = False


class Step(msgspec.Struct):
    """An answer and the tool calls of the answer."""

    message: int
    calls: dict[str, OpenCall]

    @property
    def open(self) -> list[OpenCall]:
        """The calls without an outcome."""
        return [call for call in self.calls.values() if not call.finished]


class OpenRun(msgspec.Struct):
    """A run, during the run and after the end of the run."""

    id: str
    seq: int
    started: events.RunStarted
    inputs: list[int]
    request: int = 0
    """The seq of the request without an answer, or 0."""
    partial_text: str = ""
    """The part of the answer in the stored partials."""
    partial_thought: str = ""
    """The reasoning in the stored partials."""
    thought_at: tuple[int, int] = (0, 0)
    """The times of the first and the last reasoning. The first text ends the reasoning."""
    requests: int = 0
    delegated: int = 0
    """The number of calls handed to other conversations."""
    answered: bool = False
    """The last answer has no tool call: only `run.finished` is missing."""
    step: Step | None = None
    stop: bool = False
    finished: Literal["", "completed", "failed", "cancelled", "interrupted"] = ""
    finished_at: int = 0
    planned: bool = False
    ended: int = 0
    """The seq of `run.finished`."""

    @property
    def partial_parts(self) -> list[Part]:
        """The unfinished answer, as the parts of a message."""
        first, last = self.thought_at
        seconds = max(0, last - first) / 1e6
        return partial_parts(self.partial_text, self.partial_thought, seconds)

    @property
    def open(self) -> list[OpenCall]:
        """The calls of the last answer without an outcome."""
        return self.step.open if self.step is not None else []

    @property
    def waits(self) -> list[OpenCall]:
        """The calls waiting for an approval."""
        return [call for call in self.open if call.approval and not call.answered]

    @property
    def handed(self) -> list[OpenCall]:
        """The calls continuing in other conversations."""
        return [call for call in self.open if call.handed]

    @property
    def at_rest(self) -> bool:
        """Whether this process has no request and no call in progress. Calls in other conversations do not count."""
        started = any(call.started and not call.handed for call in self.open)
        return not self.request and not started


def partial_parts(text: str, thought: str, seconds: float) -> list[Part]:
    """Return an unfinished answer as the parts of a message."""
    parts: list[Part] = [Reasoning(thought, seconds=seconds)] if thought else []
    return [*parts, Text(text)] if text else parts


class Turns:
    """The open work of one conversation, folded event by event."""

    def __init__(self) -> None:
        self._inputs: dict[int, events.MessageUser] = {}
        """The inputs not taken by a run, including inputs removed by an edit."""
        self.run: OpenRun | None = None
        self.last: OpenRun | None = None
        """The last finished run."""
        self.runs: dict[str, OpenRun] = {}
        self._from_persons: list[int] = []
        """The seqs of the inputs of persons, without withdrawn inputs."""
        self._allowed_rules: dict[int, Rule] = {}
        """The rules by the seqs of their approvals, including rules removed by an edit."""
        self._standing = Standing()

    def apply(self, recorded: Recorded) -> None:
        """Fold one event."""
        step = _STEPS.get(recorded.kind)
        if step is None:
            return
        event = recorded.event
        if not isinstance(event, events.Unknown):
            step(self, recorded, event)
            return
        run = self._run_of(recorded)
        if run is not None and recorded.kind in _OF_A_STEP:
            # The event is erased and does not name its call. Forget all calls of the step, so that no call runs twice.
            run.step = None

    @property
    def newest_person(self) -> int:
        """The seq of the last input of a person, or 0."""
        return self._from_persons[-1] if self._from_persons else 0

    @property
    def waiting(self) -> dict[int, events.MessageUser]:
        """The inputs waiting for a run, by seq."""
        inputs = self._inputs.items()
        return {seq: event for seq, event in inputs if self._standing.stands(seq)}

    def add_waiting(self, seq: int, event: events.MessageUser) -> None:
        """Add a waiting input. Inputs keep the order of their seqs."""
        self._inputs[seq] = event
        self._inputs = dict(sorted(self._inputs.items()))

    @property
    def allowed_rules(self) -> list[Rule]:
        """The rules of the approvals for this conversation, without undone approvals."""
        rules = self._allowed_rules.items()
        return [rule for seq, rule in rules if self._standing.stands(seq)]

    @property
    def steers(self) -> list[int]:
        """The seqs of the inputs for the next request of the open run."""
        return [seq for seq, event in self.waiting.items() if event.how == "steer"]

    @property
    def stopped(self) -> bool:
        """Whether a person asked the open run to stop."""
        run = self.run
        if run is None:
            return False
        interrupts = [
            seq for seq, event in self.waiting.items() if event.how == "interrupt"
        ]
        return run.stop or any(seq > run.seq for seq in interrupts)

    @property
    def resumable(self) -> OpenRun | None:
        """The interrupted run, if no other run and no edit followed."""
        if self.run is None and self.last and self.last.finished == "interrupted":
            return self.last
        return None

    def _run_of(self, recorded: Recorded) -> OpenRun | None:
        return self.runs.get(recorded.run or "")

    # -- messages and requests -------------------------------------------------------------------------------

    def _message_user(self, recorded: Recorded, event: events.MessageUser) -> None:
        if event.ask:
            self._inputs[recorded.seq] = event
            if not event.system:
                self._from_persons.append(recorded.seq)

    def _run_started(self, recorded: Recorded, event: events.RunStarted) -> None:
        run = OpenRun(recorded.run or "", recorded.seq, event, list(event.inputs))
        before = self.runs.get(event.resumes or "")
        if before is not None:
            run.step = before.step
            run.inputs = [*before.inputs, *run.inputs]
            run.requests = before.requests
            run.delegated = before.delegated
        self.run = self.runs[run.id] = run
        self._take_inputs(event.inputs)

    def _take_inputs(self, seqs: list[int]) -> None:
        for seq in seqs:
            self._inputs.pop(seq, None)

    def _model_requested(
        self, recorded: Recorded, event: events.ModelRequested
    ) -> None:
        self._take_inputs(event.inputs)
        run = self._run_of(recorded)
        if run is not None:
            run.request = recorded.seq
            run.partial_text = run.partial_thought = ""
            run.thought_at = (0, 0)
            run.requests += 1
            run.answered = False
            run.inputs += event.inputs

    def _reply_delta(self, recorded: Recorded, event: events.ReplyDelta) -> None:
        run = self._run_of(recorded) or self.run
        if run is None or run.request != event.request:
            return
        if event.offset == len(run.partial_text):
            if not run.partial_text and run.partial_thought:
                run.thought_at = (run.thought_at[0], recorded.at)
            run.partial_text += event.text

    def _reply_thought(self, recorded: Recorded, event: events.ReplyThought) -> None:
        run = self._run_of(recorded) or self.run
        if run is None or run.request != event.request:
            return
        if event.offset == len(run.partial_thought):
            first = run.thought_at[0] if run.partial_thought else recorded.at
            run.thought_at = (first, recorded.at)
            run.partial_thought += event.text

    def _model_failed(
        self, recorded: Recorded, event: events.ModelFailed | events.MessagePartial
    ) -> None:
        run = self._run_of(recorded)
        if run is not None and run.request == event.request:
            run.request = 0

    _message_partial = _model_failed

    def _message_assistant(
        self, recorded: Recorded, event: events.MessageAssistant
    ) -> None:
        run = self._run_of(recorded)
        if run is None:
            return
        calls = [part for part in event.parts if isinstance(part, ToolCall)]
        run.request = 0
        run.answered = not calls
        run.step = None
        if calls:
            run.step = Step(recorded.seq, {call.id: OpenCall(call) for call in calls})

    # -- tool calls ------------------------------------------------------------------------------------------

    def _find_call(
        self, recorded: Recorded, message: int, call: str
    ) -> OpenCall | None:
        run = self._run_of(recorded) or self.run
        step = run.step if run is not None else None
        if step is None or step.message != message:
            return None
        return step.calls.get(call)

    def _approval_asked(self, recorded: Recorded, event: events.ApprovalAsked) -> None:
        call = self._find_call(recorded, event.message, event.call)
        if call is not None:
            call.approval = event

    def _approval_answered(
        self, recorded: Recorded, event: events.ApprovalAnswered
    ) -> None:
        call = self._find_call(recorded, event.message, event.call)
        if call is None or call.answered is not None:
            return
        call.answered = event
        # Earlier versions stored no pattern. Their answers allow a single call.
        if event.answer == "conversation" and event.pattern:
            name = escape_pattern(call.call.name)
            self._allowed_rules[recorded.seq] = Rule("allow", name, event.pattern)

    def _content_erased(self, _recorded: Recorded, event: events.ContentErased) -> None:
        for seq in event.seqs:
            self._allowed_rules.pop(seq, None)

    def _tool_started(self, recorded: Recorded, event: events.ToolStarted) -> None:
        call = self._find_call(recorded, event.message, event.call)
        if call is not None:
            call.started = event
            call.output = ""

    def _tool_output(self, recorded: Recorded, event: events.ToolOutput) -> None:
        call = self._find_call(recorded, event.message, event.call)
        if call is not None and event.offset <= len(call.output):
            call.output = call.output[: event.offset] + event.text

    def _tool_handed(self, recorded: Recorded, event: events.ToolHanded) -> None:
        call = self._find_call(recorded, event.message, event.call)
        run = self._run_of(recorded)
        if call is not None and run is not None:
            run.delegated += call.handed is None
            call.handed = event
            call.handed_at = recorded.at

    def _tool_finished(
        self, recorded: Recorded, event: events.ToolFinished | events.ToolLate
    ) -> None:
        call = self._find_call(recorded, event.message, event.call)
        if call is not None:
            call.finished = True

    _tool_late = _tool_finished

    # -- the end of a run ------------------------------------------------------------------------------------

    def _run_stop(self, recorded: Recorded, _event: events.RunStop) -> None:
        if self.run is not None and recorded.run in {None, self.run.id}:
            self.run.stop = True

    def _run_finished(self, recorded: Recorded, event: events.RunFinished) -> None:
        run = self._run_of(recorded)
        if run is None:
            return
        run.finished = event.outcome
        run.finished_at = recorded.at
        run.ended = recorded.seq
        run.planned = event.planned
        self.last = run
        if self.run is run:
            self.run = None

    def _context_compacted(
        self, _recorded: Recorded, event: events.ContextCompacted
    ) -> None:
        if self.last is not None and self.last.ended <= event.covers_to:
            self.last = None

    def _edit(self, recorded: Recorded, event: events.Event) -> None:
        """Apply an undo, a clear or a restore. No later run resumes the last run, because the context may differ."""
        self._standing.apply(recorded.seq, event)
        self.last = None

    _conversation_rewound = _conversation_cleared = _conversation_restored = _edit

    def _message_withdrawn(
        self, _recorded: Recorded, event: events.MessageWithdrawn
    ) -> None:
        message = self._inputs.pop(event.of, None)
        if event.of in self._from_persons:
            self._from_persons.remove(event.of)
        interrupts = message is not None and message.how == "interrupt"
        if interrupts and self.run is not None and event.of > self.run.seq:
            # The run may have seen the interruption already, and must not continue half stopped.
            self.run.stop = True


_OF_A_STEP = frozenset(
    {events.MessageAssistant.kind, events.ToolFinished.kind, events.ToolLate.kind}
)
_STEPS = steps_of(Turns)
