"""The transcript: the rows for a person, in reading order, and the changes of the rows by each event.

A row is a message, an answer (also during streaming), a tool call, a marker of a run with a bad end, a notice, a summary,
a memory or a list of changed files. The `id` of a row never changes; the `key` is the position of the row. A waiting
input is at the end, and moves to the run taking the input. Late output of a run is above the marker of this run.

`apply` returns changes. A page with `rows[id] = row`, sorted by key, shows the same rows as a new fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from tenax import events
from tenax.journal.standing import Standing, Versions
from tenax.parts import Reasoning, ToolCall, ToolResult, text_of
from tenax.views import steps_of

if TYPE_CHECKING:
    from tenax.journal.base import Recorded

__all__ = [
    "WAITING",
    "Change",
    "Drop",
    "Grow",
    "Key",
    "Put",
    "Row",
    "Transcript",
    "call_id",
]

Key = tuple[int, int, int]
WAITING = 1 << 62
"""Replaces the seq in the key of a waiting input, so that waiting inputs follow all other rows."""
_LONG_SECONDS = 90.0
"""Tenax never chooses a longer pause. The provider asked for a longer pause."""
_UNDER_WAY = frozenset({"waiting", "asks", "approved", "running"})
_OPEN = frozenset({"waiting", "asks", "approved", "running", "streaming", "retrying"})
_ROLES = {
    "message.user": "user",
    "message.assistant": "assistant",
    "message.system": "system",
}


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the transcript.

    The values of `state` by kind:

    - user: "", queued, steering
    - assistant: "", streaming, cut, full (the answer reached the length limit), earlier
    - tool: waiting, asks, approved, running, the outcome, or skipped (the run ended before the call started)
    - marker: stopped, failed, pending, recovered, neutral, resumed
    - notice: retrying or ""
    - memory: "" or undone
    - files: open (the turn continues), "" or undone
    """

    id: str
    key: Key
    kind: Literal[
        "user",
        "assistant",
        "system",
        "tool",
        "marker",
        "notice",
        "summary",
        "memory",
        "files",
    ]
    at: int
    text: str = ""
    state: str = ""
    run: str | None = None
    author: str = ""
    thought: str = ""
    """The reasoning of the model. It grows while the model streams."""
    thought_seconds: float = 0.0
    """The duration of the reasoning; 0 while it grows, and for answers of earlier versions."""
    name: str = ""
    arguments: str = ""
    touches: str = ""
    late: bool = False
    erased: bool = False
    parts: tuple[Any, ...] = ()
    """Images and files."""
    model: str = ""
    """The model of an answer."""
    action: str = ""
    """The change of a memory: added, replaced or removed."""
    by: str = ""
    fact: str = ""
    version: int = 0
    of: str = ""
    """The id of the turn with changed files, as putting back expects the id."""
    child: str = ""
    """The conversation of a delegated call."""
    child_asks: bool = False
    """Whether the conversation of the call waits for a person."""
    started: int = 0
    """The time of the request of an answer, or of the start of a tool call, in microseconds; 0 if not known.

    A turn took the time from the `started` of its first row to the `at` of its last answer. All rows of a turn have the
    same `run`, except after an interruption.
    """
    seconds: float | None = None
    """The duration of a tool call. None while the call runs, and for a call with an unknown outcome."""
    wait: float = 0.0
    """The seconds from `at` to the next attempt of a failed call."""
    attempt: int = 0
    """The number of failed attempts so far."""
    versions: tuple[int, ...] = ()
    """The seqs of all versions of a message, oldest first; empty for a message with one version."""


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Add or replace a row."""

    row: Row


class Grow(msgspec.Struct, frozen=True, omit_defaults=True, tag="grow"):
    """Append text to a field of a row, from character `offset` on."""

    id: str
    offset: int
    text: str
    field: Literal["text", "thought"] = "text"


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Remove a row."""

    id: str


Change = Put | Grow | Drop


class _Request(NamedTuple):
    """The run, the model and the time of a request."""

    run: str | None
    model: str
    at: int


_NO_REQUEST = _Request(None, "", 0)


class Transcript:
    """The transcript, folded event by event.

    The fold may start at any event, and ignores changes of earlier rows.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        """All rows by id, including rows removed by an edit."""
        self._standing = Standing()
        self._run: str | None = None
        self._started: set[str] = set()
        self._open_request = 0
        """The seq of the request without an answer, or 0."""
        self._requests: dict[int, _Request] = {}
        self._thought_at: dict[int, int] = {}
        """The time of the first reasoning for each request."""
        self._finished: dict[str, int] = {}
        self._resumes: dict[str, str] = {}
        self._undoes: dict[str, str] = {}
        """The reverted turn of each turn with reverted files."""
        self._runs_rows: dict[str, dict[str, None]] = {}
        """The ids of the rows of each run, in order."""
        self._seqs: dict[str, int] = {}
        """The source event of each row."""
        self._adds: dict[int, str] = {}
        """The row of each event with text in the row of another event."""
        self._answered_for: set[str] = set()
        """Interrupted runs with an answer by a resuming run."""
        self._left_open: dict[str, str] = {}
        """The state of each call left open by the end of a run. A resuming run may continue the calls."""
        self._versions = Versions()
        self._changes: list[Change] = []

    @property
    def rows(self) -> list[Row]:
        """The standing rows, in order."""
        rows = [row for name, row in self._rows.items() if self._stands(name)]
        return sorted(rows, key=lambda row: row.key)

    @property
    def run(self) -> str | None:
        """The open run."""
        return self._run

    @property
    def is_settled(self) -> bool:
        """Whether no later event of the open run can change a present row of the run or of the resumed runs."""
        if self._run is None:
            return True
        rows = [*self._rows_of(self._run), *self._calls_of(self._run)]
        return not (self._open_request or any(row.state in _OPEN for row in rows))

    def find_open_calls(self, run: str) -> set[str]:
        """Return the calls of a run left open for a resuming run."""
        return {row.id for row in self._calls_of(run) if row.id in self._left_open}

    def knows_run(self, run: str) -> bool:
        """Return whether the fold contains the start of a run."""
        return run in self._started

    def apply(self, recorded: Recorded) -> list[Change]:
        """Fold an event and return the changes of the rows."""
        self._changes = []
        event = recorded.event
        if isinstance(event, events.Unknown):
            role = _ROLES.get(recorded.kind)
            if recorded.erased and role is not None:
                self._put_row(recorded, kind=role, erased=True)
            return self._changes
        step = _STEPS.get(recorded.kind)
        if step is not None:
            step(self, recorded, event)
        return self._changes

    def know_versions(self, versions: Versions) -> None:
        """Use the versions of messages from a fold of all edits. The fold itself may start below some of the edits."""
        self._versions = versions

    # -- finding and changing rows ---------------------------------------------------------------------------

    def _stands(self, name: str) -> bool:
        """Return whether no edit removed a row."""
        return self._standing.stands(self._seqs[name])

    def _row(self, name: str) -> Row | None:
        """Return a standing row, or None."""
        row = self._rows.get(name)
        return row if row is not None and self._stands(name) else None

    def _rows_of(self, run: str | None) -> list[Row]:
        """Return the standing rows of a run."""
        rows = [self._row(name) for name in self._runs_rows.get(run or "", ())]
        return [row for row in rows if row is not None]

    def _put_row(self, recorded: Recorded, name: str = "", /, **fields: Any) -> None:  # noqa: ANN401  (fields of a row)
        """Add or replace a row. By default the row has the seq of the event as its id and as its position."""
        name = name or str(recorded.seq)
        fields.setdefault("key", (recorded.seq, 0, 0))
        row = Row(name, at=recorded.at, **fields)
        self._seqs[name] = recorded.seq
        if row.run is not None:
            self._runs_rows.setdefault(row.run, {})[name] = None
        self._set(row)

    def _set(self, row: Row) -> None:
        self._rows[row.id] = row
        self._changes.append(Put(row))

    def _alter(self, name: str, /, **fields: Any) -> None:  # noqa: ANN401  (fields of a row)
        row = self._row(name)
        if row is not None:
            self._set(msgspec.structs.replace(row, **fields))

    def _drop(self, name: str) -> None:
        if self._row(name) is not None:
            del self._rows[name]
            self._changes.append(Drop(name))

    # -- messages --------------------------------------------------------------------------------------------

    def _message_user(self, recorded: Recorded, event: events.MessageUser) -> None:
        key, state = (recorded.seq, 0, 0), ""
        if event.ask:
            key = (WAITING, 0, recorded.seq)
            state = "steering" if event.how == "steer" else "queued"
        author = event.author or ("system" if event.system else "")
        self._put_row(
            recorded,
            kind="user",
            key=key,
            text=text_of(event.parts),
            state=state,
            author=author,
            parts=_attachments(event.parts),
            versions=self._versions.of(recorded.seq),
        )

    def _message_system(self, recorded: Recorded, event: events.MessageSystem) -> None:
        self._put_row(recorded, kind="system", text=text_of(event.parts))

    def _message_tool(self, recorded: Recorded, event: events.MessageTool) -> None:
        names = [part.name for part in event.parts if isinstance(part, ToolResult)]
        name = names[0] if names else ""
        text = text_of(event.parts)
        self._put_row(recorded, kind="tool", text=text, state="done", name=name)

    def _take_inputs(self, taker: int, seqs: list[int]) -> None:
        """Move inputs to the run or the request at seq `taker`."""
        for n, seq in enumerate(seqs):
            self._alter(str(seq), key=(taker, -1, n), state="")

    def _model_requested(
        self, recorded: Recorded, event: events.ModelRequested
    ) -> None:
        self._requests[recorded.seq] = _Request(recorded.run, event.model, recorded.at)
        self._open_request = recorded.seq
        self._take_inputs(recorded.seq, event.inputs)
        for row in self._rows_of(recorded.run):
            if row.state == "retrying":
                self._drop(row.id)

    def _reply_delta(self, recorded: Recorded, event: events.ReplyDelta) -> None:
        name = str(event.request)
        row = self._row(name)
        if row is None:
            self._start_answer(recorded, event, text=event.text)
        elif row.state == "streaming" and event.offset == len(row.text):
            if not row.text and row.thought:
                # The reasoning has ended.
                since = self._thought_at.get(event.request, recorded.at)
                seconds = max(0, recorded.at - since) / 1e6
                self._alter(name, text=event.text, thought_seconds=seconds)
                return
            self._rows[name] = msgspec.structs.replace(row, text=row.text + event.text)
            self._changes.append(Grow(name, event.offset, event.text))

    def _reply_thought(self, recorded: Recorded, event: events.ReplyThought) -> None:
        name = str(event.request)
        self._thought_at.setdefault(event.request, recorded.at)
        row = self._row(name)
        if row is None:
            self._start_answer(recorded, event, thought=event.text)
        elif row.state == "streaming" and event.offset == len(row.thought):
            thought = row.thought + event.text
            self._rows[name] = msgspec.structs.replace(row, thought=thought)
            self._changes.append(Grow(name, event.offset, event.text, "thought"))

    def _start_answer(
        self,
        recorded: Recorded,
        event: events.ReplyDelta | events.ReplyThought,
        **fields: str,
    ) -> None:
        """Add the row of an answer, unless the beginning of its text lies before the fold."""
        if event.offset:
            return
        request = self._requests.get(event.request, _NO_REQUEST)
        self._put_row(
            recorded,
            str(event.request),
            kind="assistant",
            key=(event.request, 0, 0),
            state="streaming",
            run=request.run,
            model=request.model,
            started=request.at,
            **fields,
        )

    def _message_assistant(
        self, recorded: Recorded, event: events.MessageAssistant
    ) -> None:
        self._end_request(event.request)
        first = event.request or recorded.seq
        state = "full" if event.finish in events.CUT_SHORT else ""
        self._put_row(
            recorded,
            str(first),
            kind="assistant",
            key=(first, 0, 0),
            text=text_of(event.parts),
            state=state,
            run=recorded.run,
            **_thought_of(event.parts),
            parts=_attachments(event.parts),
            model=event.model,
            started=self._requests.get(event.request, _NO_REQUEST).at,
        )
        for n, part in enumerate(event.parts):
            if isinstance(part, ToolCall):
                name = call_id(recorded.seq, part.id)
                self._put_row(
                    recorded,
                    name,
                    kind="tool",
                    key=(first, 1, n),
                    state="waiting",
                    run=recorded.run,
                    name=part.name,
                    arguments=part.arguments,
                )

    def _end_request(self, request: int) -> None:
        if request == self._open_request:
            self._open_request = 0

    def _message_partial(
        self, recorded: Recorded, event: events.MessagePartial
    ) -> None:
        self._end_request(event.request)
        request = self._requests.get(event.request, _NO_REQUEST)
        # In a fork, the text belongs to no request.
        first = event.request or recorded.seq
        self._put_row(
            recorded,
            str(first),
            kind="assistant",
            key=(first, 0, 0),
            state="cut",
            run=recorded.run,
            text=text_of(event.parts),
            **_thought_of(event.parts),
            model=request.model,
            started=request.at,
        )

    def _context_summarised(
        self, recorded: Recorded, event: events.ContextSummarised
    ) -> None:
        text = text_of(event.parts)
        self._put_row(recorded, kind="summary", text=text)

    # -- tools -----------------------------------------------------------------------------------------------

    def _approval_asked(self, _recorded: Recorded, event: events.ApprovalAsked) -> None:
        name = call_id(event.message, event.call)
        self._alter(name, state="asks", touches=event.touches)

    def _approval_answered(
        self, _recorded: Recorded, event: events.ApprovalAnswered
    ) -> None:
        name = call_id(event.message, event.call)
        row = self._row(name)
        if row is not None and row.state == "asks":
            self._alter(name, state="denied" if event.answer == "no" else "approved")

    def _tool_started(self, recorded: Recorded, event: events.ToolStarted) -> None:
        name = call_id(event.message, event.call)
        self._alter(name, state="running", text="", started=recorded.at)

    def _tool_output(self, _recorded: Recorded, event: events.ToolOutput) -> None:
        name = call_id(event.message, event.call)
        row = self._row(name)
        if row is None or row.state != "running" or event.offset > len(row.text):
            return
        grown = msgspec.structs.replace(row, text=row.text[: event.offset] + event.text)
        if event.offset < len(row.text):
            self._set(grown)
        else:
            self._rows[name] = grown
            self._changes.append(Grow(name, event.offset, event.text))

    def _tool_handed(self, _recorded: Recorded, event: events.ToolHanded) -> None:
        name = call_id(event.message, event.call)
        self._alter(name, child=event.conversation, child_asks=event.asks)

    def _tool_finished(self, recorded: Recorded, event: events.ToolFinished) -> None:
        name = call_id(event.message, event.call)
        self._adds[recorded.seq] = name
        row = self._rows.get(name)
        seconds = None
        if row is not None and row.started and event.outcome != "unknown":
            seconds = max(0, recorded.at - row.started) / 1e6
        self._alter(
            name,
            state=event.outcome,
            text=event.text,
            child_asks=False,
            seconds=seconds,
        )

    def _tool_late(self, recorded: Recorded, event: events.ToolLate) -> None:
        name = call_id(event.message, event.call)
        self._adds[recorded.seq] = name
        self._alter(name, state=event.outcome, text=event.text, late=True)

    # -- runs ------------------------------------------------------------------------------------------------

    def _run_started(self, recorded: Recorded, event: events.RunStarted) -> None:
        self._run = recorded.run
        self._started.add(recorded.run or "")
        self._take_inputs(recorded.seq, event.inputs)
        if event.resumes is not None and recorded.run is not None:
            self._resumes[recorded.run] = event.resumes
            self._reopen_calls(recorded.run)
            self._alter(_marker(event.resumes), state="resumed")

    def _calls_of(self, run: str) -> list[Row]:
        """Return the rows of the tool calls of a run and of the runs resumed by this run."""
        rows: list[Row] = []
        for _ in range(len(self._resumes) + 1):
            rows += self._rows_of(run)
            run = self._resumes.get(run, "")
        return [row for row in rows if row.kind == "tool"]

    def _close_calls(self, run: str) -> None:
        """Mark the open calls at the end of a run. The outcome of a started call is unknown."""
        for row in self._calls_of(run):
            if row.state in _UNDER_WAY:
                self._left_open[row.id] = row.state
                state = "unknown" if row.state == "running" else "skipped"
                self._alter(row.id, state=state)

    def _reopen_calls(self, run: str) -> None:
        """Give the calls left open by the resumed run their states back."""
        for row in self._calls_of(run):
            before = self._left_open.pop(row.id, "")
            if before and row.state in {"skipped", "unknown"}:
                self._alter(row.id, state=before)

    def _model_failed(self, recorded: Recorded, event: events.ModelFailed) -> None:
        self._end_request(event.request)
        if event.wait is None:
            return
        text = event.message
        if event.wait > _LONG_SECONDS:
            text += f" It asks to wait for {event.wait / 60:.0f} minutes."
        self._put_row(
            recorded,
            kind="notice",
            text=text,
            state="retrying",
            run=recorded.run,
            wait=event.wait,
            attempt=event.attempt,
        )

    def _run_finished(self, recorded: Recorded, event: events.RunFinished) -> None:
        run = recorded.run or ""
        self._finished[run] = recorded.seq
        # Late output stored before the end of the run is above the marker, too.
        for row in self._rows_of(run):
            if row.late and row.key[1] < 0:
                self._alter(row.id, key=(recorded.seq, -1, row.key[2]))
        if self._run == run:
            self._run = None
            self._open_request = 0
        self._close_calls(run)
        self._alter(_files(self._turn_of(run)), key=(recorded.seq, 2, 0), state="")
        state = _MARKERS.get(event.outcome)
        if state is None:
            self._fold_attempts(run)
        else:
            self._put_row(
                recorded,
                _marker(run),
                kind="marker",
                state=state,
                text=event.why,
                run=run,
            )

    def _fold_attempts(self, run: str) -> None:
        """Mark the interrupted answers of the earlier attempts after a run has answered."""
        run = self._resumes.get(run, "")
        while run:
            self._answered_for.add(run)
            for row in self._rows_of(run):
                if row.kind == "assistant" and row.state == "cut":
                    self._alter(row.id, state="earlier")
            run = self._resumes.get(run, "")

    def _run_late(self, recorded: Recorded, event: events.RunLate) -> None:
        run = recorded.run or ""
        key = (self._finished.get(run, recorded.seq), -1, event.index)
        name = f"{run}:{event.index}"
        tool = str(event.payload.get("name", ""))
        match event.what:
            case "token":
                self._add_late_text(recorded, name, key, event)
            case "tool":
                arguments = msgspec.json.encode(event.payload.get("args", {})).decode()
                touches = str(event.payload.get("preview", ""))
                self._put_row(
                    recorded,
                    name,
                    kind="tool",
                    key=key,
                    state="running",
                    run=run,
                    late=True,
                    name=tool,
                    arguments=arguments,
                    touches=touches,
                )
            case "tool_complete":
                self._finish_late_call(recorded, tool, event)

    def _late_rows(self, recorded: Recorded) -> list[Row]:
        return [row for row in self._rows_of(recorded.run) if row.late]

    def _add_late_text(
        self, recorded: Recorded, name: str, key: Key, event: events.RunLate
    ) -> None:
        """Append late text to the last late row of the run, or start a new row."""
        text = str(event.payload.get("text", ""))
        rows = self._late_rows(recorded)
        if rows and rows[-1].kind == "assistant":
            self._adds[recorded.seq] = rows[-1].id
            self._alter(rows[-1].id, text=rows[-1].text + text)
            return
        run = recorded.run or ""
        state = "earlier" if run in self._answered_for else "cut"
        self._put_row(
            recorded,
            name,
            kind="assistant",
            key=key,
            text=text,
            state=state,
            run=run,
            late=True,
        )

    def _finish_late_call(
        self, recorded: Recorded, tool: str, event: events.RunLate
    ) -> None:
        """Store the result of the last late call without a result."""
        text = str(event.payload.get("text", ""))
        state = "failed" if event.payload.get("is_error") else "done"
        for row in reversed(self._late_rows(recorded)):
            is_open = row.kind == "tool" and row.state in {"running", "unknown"}
            if is_open and tool in {row.name, ""}:
                self._adds[recorded.seq] = row.id
                self._alter(row.id, state=state, text=text)
                return

    def _run_sealed(self, recorded: Recorded, _event: events.RunSealed) -> None:
        """Give up the late calls of a run: no more output follows."""
        for row in self._calls_of(recorded.run or ""):
            if row.late and row.state == "running":
                self._alter(row.id, state="unknown")

    def _run_recovered(self, recorded: Recorded, event: events.RunRecovered) -> None:
        self._alter(_marker(recorded.run or ""), state=event.state)

    def _context_kept(self, recorded: Recorded, event: events.ContextKept) -> None:
        self._put_row(recorded, kind="notice", text=event.why)

    def _memory_noted(self, recorded: Recorded, event: events.MemoryNoted) -> None:
        if event.action == "undone":
            self._alter(str(event.of), state="undone")
            return
        self._put_row(
            recorded,
            kind="memory",
            text=event.text,
            action=event.action,
            by=event.by,
            fact=event.fact,
            version=event.version,
        )

    def _files_changed(self, recorded: Recorded, event: events.FilesChanged) -> None:
        """Show the changed files of a turn in a single row.

        Reverting the changes of a turn has a row of its own, so that a person can revert the revert.
        """
        run = recorded.run or ""
        turn = str(recorded.seq) if event.undoes else self._turn_of(run)
        text = _describe_files(event)
        if text:
            key = (self._finished.get(run, recorded.seq), 2, 0)
            state = "open" if run == self._run and run else ""
            self._put_row(
                recorded,
                _files(turn),
                kind="files",
                key=key,
                text=text,
                state=state,
                run=recorded.run,
                of=turn,
            )
        else:
            # The turn itself reverted all its changes.
            self._drop(_files(turn))
        if event.undoes:
            self._undoes[turn] = event.undoes
        # The reverted turn is undone, the turn reverted by that turn is in effect again, and so on.
        state = ""
        for _ in range(len(self._undoes)):
            turn = self._undoes.get(turn, "")
            state = "" if state else "undone"
            self._alter(_files(turn), state=state)

    def _turn_of(self, run: str) -> str:
        """Return the first run of a turn: the run at the start of the chain of resumed runs."""
        for _ in range(len(self._resumes)):
            run = self._resumes.get(run, run)
        return run

    # -- edits -----------------------------------------------------------------------------------------------

    def _edit(self, recorded: Recorded, event: events.Event) -> None:
        """Apply an undo, a clear, a restore or a withdrawal."""
        stood = {name for name in self._rows if self._stands(name)}
        self._standing.apply(recorded.seq, event)
        for name, row in self._rows.items():
            if self._stands(name) and name not in stood:
                self._changes.append(Put(row))
            elif name in stood and not self._stands(name):
                self._changes.append(Drop(name))
        self._versions.apply(recorded.seq, event)
        for seq in self._versions.of(recorded.seq + 1):
            self._set_versions(str(seq))

    def _set_versions(self, name: str) -> None:
        """Set the versions of a message. A removed row gets the versions too, because a restore may bring the row back."""
        row = self._rows.get(name)
        if row is None:
            return
        versions = self._versions.of(self._seqs[name])
        row = msgspec.structs.replace(row, versions=versions)
        self._rows[name] = row
        if self._stands(name):
            self._changes.append(Put(row))

    _conversation_rewound = _conversation_cleared = _conversation_restored = _edit
    _message_withdrawn = _edit

    def _content_erased(self, _recorded: Recorded, event: events.ContentErased) -> None:
        seqs = set(event.seqs)
        names = {name for name, seq in self._seqs.items() if seq in seqs}
        names |= {name for seq, name in self._adds.items() if seq in seqs}
        # A removed row loses its text, too, because a restore may bring the row back.
        for name in sorted(names & self._rows.keys()):
            row = msgspec.structs.replace(self._rows[name], **_BLANK)
            self._rows[name] = row
            if self._stands(name):
                self._changes.append(Put(row))


_BLANK: dict[str, Any] = {
    "text": "",
    "thought": "",
    "arguments": "",
    "touches": "",
    "parts": (),
    "erased": True,
}


_MARKERS = {"failed": "failed", "cancelled": "stopped", "interrupted": "pending"}
"""The state of the marker for each bad outcome of a run."""


def _describe_files(event: events.FilesChanged) -> str:
    parts: list[str] = []
    if event.total > 0:
        verb = "Put back" if event.undoes else "Changed"
        noun = "file" if event.total == 1 else "files"
        parts.append(f"{verb} {event.total:,} {noun}.")
    parts.append(event.missed)
    return " ".join(parts).strip()


def call_id(message: int, call: str) -> str:
    """Return the id of the row of a tool call."""
    return f"{message}:{call}"


def _files(turn: str) -> str:
    """Return the id of the row with the changed files of a turn."""
    return f"files:{turn}"


def _marker(run: str) -> str:
    """Return the id of the marker of a run."""
    return f"marker:{run}"


def _thought_of(parts: list[Any]) -> dict[str, Any]:
    """Return the reasoning among the parts of a message, as fields of a row."""
    found = [part for part in parts if isinstance(part, Reasoning)]
    return {
        "thought": "\n".join(part.text for part in found),
        "thought_seconds": sum(part.seconds for part in found),
    }


def _attachments(parts: list[Any]) -> tuple[Any, ...]:
    """Return the images and files among the parts of a message."""
    return tuple(part for part in parts if hasattr(part, "blob"))


_STEPS = steps_of(Transcript)
