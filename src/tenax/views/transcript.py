"""What a person sees: rows, in the order in which they are read, and what each event changes of them.

A row is a message, an answer (also while it streams), a tool's card, a marker of a run that did not end well, a notice or
a summary. Its `id` never changes; `key` says where it stands. An input that waits stands at the end, and then where a run
took it. What a run wrote late stands above the marker of that run, whatever was written below meanwhile.

`apply` gives the changes: a page that keeps `rows[id] = row` and sorts by key shows the same as one that folds anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenax import events
from tenax.parts import Reasoning, ToolCall, ToolResult, text_of
from tenax.views import steps_of

if TYPE_CHECKING:
    from tenax.journal.base import Recorded

__all__ = ["WAITING", "Change", "Drop", "Grow", "Key", "Put", "Row", "Transcript"]

Key = tuple[int, int, int]
WAITING = 1 << 62
"""Stands in place of a seq in the key of an input that waits: it has no place yet, and is shown after everything."""
_LONG_SECONDS = 90.0
"""Our own waits are shorter: a longer one is the provider's wish."""
_UNDER_WAY = frozenset({"waiting", "asks", "approved", "running"})
_OPEN = frozenset({"waiting", "asks", "approved", "running", "streaming", "retrying"})
_ROLES = {
    "message.user": "user",
    "message.assistant": "assistant",
    "message.system": "system",
}


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing in the transcript.

    `state`, by kind: user: "", queued, steering; assistant: "", streaming, cut, full (it may be no longer), earlier;
    tool: waiting, asks, approved, running, its outcome, or skipped (its run ended before it was made); marker: stopped, failed, pending, recovered, neutral,
    resumed; notice: retrying or ""; memory: "" or undone; files: open (the turn goes on), "" or undone.
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
    name: str = ""
    arguments: str = ""
    touches: str = ""
    late: bool = False
    erased: bool = False
    parts: tuple[Any, ...] = ()
    """What is not words: pictures and files."""
    model: str = ""
    """Who answered."""
    action: str = ""
    """What was done with a fact: added, replaced or removed."""
    by: str = ""
    fact: str = ""
    version: int = 0
    of: str = ""
    """The turn that changed files, as putting back takes it."""
    child: str = ""
    """The conversation in which a call goes on, or went on."""
    child_asks: bool = False
    """A person is asked something there."""


class Put(msgspec.Struct, frozen=True, tag="put"):
    """A row is new, or another than it was."""

    row: Row


class Grow(msgspec.Struct, frozen=True, tag="grow"):
    """A row's text goes on, from character `offset`."""

    id: str
    offset: int
    text: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """A row is gone."""

    id: str


Change = Put | Grow | Drop


class Transcript:
    """The fold. It may start anywhere: what belongs to rows before its first event is passed over."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._run: str | None = None
        self._started: set[str] = set()
        self._asked = 0
        """The request that has no answer yet."""
        self._requests: dict[int, tuple[str | None, str]] = {}
        """The run and the model of each request."""
        self._finished: dict[str, int] = {}
        self._resumes: dict[str, str] = {}
        self._undoes: dict[str, str] = {}
        """What was put back, by the name of what did it."""
        self._runs_rows: dict[str, list[str]] = {}
        self._seqs: dict[str, int] = {}
        self._adds: dict[int, str] = {}
        """Events that gave their text to a row of another: its name."""
        self._answered_for: set[str] = set()
        """Runs that another went on with, and answered."""
        self._left_open: dict[str, str] = {}
        """Calls that were open when their run ended, and their states then: another run may go on with them."""
        self._killed: dict[int, dict[str, Row]] = {}
        self._changes: list[Change] = []

    @property
    def rows(self) -> list[Row]:
        """All rows, in order."""
        return sorted(self._rows.values(), key=lambda row: row.key)

    @property
    def run(self) -> str | None:
        """The run that is open."""
        return self._run

    @property
    def settled(self) -> bool:
        """Whether no later event of the open run changes a row that it has now, or a call that it goes on with."""
        if self._run is None:
            return True
        rows = [self._rows.get(name) for name in self._runs_rows.get(self._run, ())]
        rows += self._calls_of(self._run)
        return not (self._asked or any(row.state in _OPEN for row in rows if row))

    def left_open(self, run: str) -> set[str]:
        """The calls that a run which goes on with this one makes."""
        return {row.id for row in self._calls_of(run) if row.id in self._left_open}

    def knows_run(self, run: str) -> bool:
        """Whether the start of a run was folded."""
        return run in self._started

    def apply(self, recorded: Recorded) -> list[Change]:
        """Take one event in, and say what changes."""
        self._changes = []
        event = recorded.event
        if isinstance(event, events.Unknown):
            if recorded.erased and (role := _ROLES.get(recorded.kind)):
                self._put(recorded, str(recorded.seq), kind=role, erased=True)
            return self._changes
        step = _STEPS.get(recorded.kind)
        if step is not None:
            step(self, recorded, event)
        return self._changes

    # -- changing rows ---------------------------------------------------------------------------------------

    def _put(self, recorded: Recorded, name: str, /, **fields: Any) -> None:  # noqa: ANN401  (fields of a row)
        fields.setdefault("key", (recorded.seq, 0, 0))
        row = Row(name, at=recorded.at, **fields)
        self._seqs[name] = recorded.seq
        if row.run is not None:
            self._runs_rows.setdefault(row.run, []).append(name)
        self._set(row)

    def _set(self, row: Row) -> None:
        self._rows[row.id] = row
        self._changes.append(Put(row))

    def _alter(self, name: str, /, **fields: Any) -> None:  # noqa: ANN401  (fields of a row)
        row = self._rows.get(name)
        if row is not None:
            self._set(msgspec.structs.replace(row, **fields))

    def _drop(self, name: str) -> None:
        if self._rows.pop(name, None) is not None:
            self._changes.append(Drop(name))

    # -- messages --------------------------------------------------------------------------------------------

    def _message_user(self, recorded: Recorded, event: events.MessageUser) -> None:
        seq = recorded.seq
        state = ("steering" if event.how == "steer" else "queued") if event.ask else ""
        key = (WAITING, 0, seq) if event.ask else (seq, 0, 0)
        self._put(recorded, str(seq), kind="user", key=key, text=text_of(event.parts), state=state,
                  author=event.author or ("system" if event.system else ""), parts=_others(event.parts))  # fmt: skip

    def _message_system(self, recorded: Recorded, event: events.MessageSystem) -> None:
        self._put(recorded, str(recorded.seq), kind="system", text=text_of(event.parts))

    def _message_tool(self, recorded: Recorded, event: events.MessageTool) -> None:
        names = [part.name for part in event.parts if isinstance(part, ToolResult)]
        self._put(recorded, str(recorded.seq), kind="tool", text=text_of(event.parts), state="done",
                  name=names[0] if names else "")  # fmt: skip

    def _take(self, place: int, inputs: list[int]) -> None:
        for n, seq in enumerate(inputs):
            self._alter(str(seq), key=(place, -1, n), state="")

    def _model_requested(
        self, recorded: Recorded, event: events.ModelRequested
    ) -> None:
        self._requests[recorded.seq] = (recorded.run, event.model)
        self._asked = recorded.seq
        self._take(recorded.seq, event.inputs)
        for name in self._runs_rows.get(recorded.run or "", ()):
            row = self._rows.get(name)
            if row is not None and row.state == "retrying":
                self._drop(name)

    def _reply_delta(self, recorded: Recorded, event: events.ReplyDelta) -> None:
        name = str(event.request)
        row = self._rows.get(name)
        run, model = self._requests.get(event.request, (None, ""))
        if row is None:
            if event.offset == 0:
                self._put(recorded, name, kind="assistant", key=(event.request, 0, 0), text=event.text,
                          state="streaming", run=run, model=model)  # fmt: skip
        elif row.state == "streaming" and event.offset == len(row.text):
            self._rows[name] = msgspec.structs.replace(row, text=row.text + event.text)
            self._changes.append(Grow(name, event.offset, event.text))

    def _message_assistant(
        self, recorded: Recorded, event: events.MessageAssistant
    ) -> None:
        self._answered(event.request)
        place = event.request or recorded.seq
        thought = "\n".join(
            part.text for part in event.parts if isinstance(part, Reasoning)
        )
        self._put(recorded, str(place), kind="assistant", key=(place, 0, 0), text=text_of(event.parts),
                  state="full" if event.finish in events.CUT_SHORT else "", run=recorded.run, thought=thought,
                  parts=_others(event.parts), model=event.model)  # fmt: skip
        for n, part in enumerate(event.parts):
            if isinstance(part, ToolCall):
                self._put(recorded, f"{recorded.seq}:{part.id}", kind="tool", key=(place, 1, n), state="waiting",
                          run=recorded.run, name=part.name, arguments=part.arguments)  # fmt: skip

    def _answered(self, request: int) -> None:
        if request == self._asked:
            self._asked = 0

    def _message_partial(
        self, recorded: Recorded, event: events.MessagePartial
    ) -> None:
        self._answered(event.request)
        place = event.request or recorded.seq  # in a fork it belongs to no request
        self._put(recorded, str(place), kind="assistant", key=(place, 0, 0), state="cut",
                  run=recorded.run, text=text_of(event.parts),
                  model=self._requests.get(event.request, (None, ""))[1])  # fmt: skip

    def _context_summarised(
        self, recorded: Recorded, event: events.ContextSummarised
    ) -> None:
        self._put(
            recorded, str(recorded.seq), kind="summary", text=text_of(event.parts)
        )

    # -- tools -----------------------------------------------------------------------------------------------

    def _approval_asked(self, _recorded: Recorded, event: events.ApprovalAsked) -> None:
        self._alter(
            f"{event.message}:{event.call}", state="asks", touches=event.touches
        )

    def _approval_answered(
        self, _recorded: Recorded, event: events.ApprovalAnswered
    ) -> None:
        name = f"{event.message}:{event.call}"
        row = self._rows.get(name)
        if row is not None and row.state == "asks":
            self._alter(name, state="denied" if event.answer == "no" else "approved")

    def _tool_started(self, _recorded: Recorded, event: events.ToolStarted) -> None:
        self._alter(f"{event.message}:{event.call}", state="running")

    def _tool_handed(self, _recorded: Recorded, event: events.ToolHanded) -> None:
        self._alter(
            f"{event.message}:{event.call}",
            child=event.conversation,
            child_asks=event.asks,
        )

    def _tool_finished(self, recorded: Recorded, event: events.ToolFinished) -> None:
        self._adds[recorded.seq] = f"{event.message}:{event.call}"
        self._alter(
            f"{event.message}:{event.call}",
            state=event.outcome,
            text=event.text,
            child_asks=False,
        )

    def _tool_late(self, recorded: Recorded, event: events.ToolLate) -> None:
        self._adds[recorded.seq] = f"{event.message}:{event.call}"
        self._alter(
            f"{event.message}:{event.call}",
            state=event.outcome,
            text=event.text,
            late=True,
        )

    # -- runs ------------------------------------------------------------------------------------------------

    def _run_started(self, recorded: Recorded, event: events.RunStarted) -> None:
        self._run = recorded.run
        self._started.add(recorded.run or "")
        self._take(recorded.seq, event.inputs)
        if event.resumes is not None and recorded.run is not None:
            self._resumes[recorded.run] = event.resumes
            self._reopen_calls(recorded.run)
            self._alter(_marker(event.resumes), state="resumed")

    def _calls_of(self, run: str) -> list[Row]:
        """Rows of the calls that this run could make: its own, and those of the runs that it went on with."""
        names: list[str] = []
        for _ in range(len(self._resumes) + 1):
            names += self._runs_rows.get(run, ())
            run = self._resumes.get(run, "")
        rows = [self._rows[name] for name in names if name in self._rows]
        return [row for row in rows if row.kind == "tool"]

    def _close_calls(self, run: str) -> None:
        """Nobody makes these calls any more. Whether one that was begun was done, nobody knows."""
        for row in self._calls_of(run):
            if row.state in _UNDER_WAY:
                self._left_open[row.id] = row.state
                self._alter(
                    row.id, state="unknown" if row.state == "running" else "skipped"
                )

    def _reopen_calls(self, run: str) -> None:
        for row in self._calls_of(run):
            before = self._left_open.pop(row.id, "")
            if before and row.state in {"skipped", "unknown"}:
                self._alter(row.id, state=before)

    def _model_failed(self, recorded: Recorded, event: events.ModelFailed) -> None:
        self._answered(event.request)
        if event.wait is not None:
            long = (
                f" It asks to wait for {event.wait / 60:.0f} minutes."
                if event.wait > _LONG_SECONDS
                else ""
            )
            self._put(recorded, str(recorded.seq), kind="notice", text=event.message + long, state="retrying",
                      run=recorded.run)  # fmt: skip

    def _run_finished(self, recorded: Recorded, event: events.RunFinished) -> None:
        run = recorded.run or ""
        self._finished[run] = recorded.seq
        # What came late and before this stands above the marker too.
        for name in self._runs_rows.get(run, ()):
            if (
                (row := self._rows.get(name)) is not None
                and row.late
                and row.key[1] < 0
            ):
                self._alter(name, key=(recorded.seq, -1, row.key[2]))
        if self._run == run:
            self._run, self._asked = None, 0
        self._close_calls(run)
        self._alter(_files(self._first(run)), key=(recorded.seq, 2, 0), state="")
        states = {"failed": "failed", "cancelled": "stopped", "interrupted": "pending"}
        if event.outcome in states:
            self._put(
                recorded,
                _marker(run),
                kind="marker",
                state=states[event.outcome],
                text=event.why,
                run=run,
            )
            return
        # It answered: what the earlier attempts wrote is folded away.
        while run := self._resumes.get(run, ""):
            self._answered_for.add(run)
            for name in self._runs_rows.get(run, ()):
                row = self._rows.get(name)
                if row is not None and row.kind == "assistant" and row.state == "cut":
                    self._alter(name, state="earlier")

    def _run_late(self, recorded: Recorded, event: events.RunLate) -> None:
        run = recorded.run or ""
        key = (self._finished.get(run, recorded.seq), -1, event.index)
        text, name = str(event.payload.get("text", "")), f"{run}:{event.index}"
        mine = [
            row
            for each in self._runs_rows.get(run, ())
            if (row := self._rows.get(each)) and row.late
        ]
        match event.what:
            case "token":
                if mine and mine[-1].kind == "assistant":
                    self._adds[recorded.seq] = mine[-1].id
                    self._alter(mine[-1].id, text=mine[-1].text + text)
                    return
                state = "earlier" if run in self._answered_for else "cut"
                self._put(
                    recorded,
                    name,
                    kind="assistant",
                    key=key,
                    text=text,
                    state=state,
                    run=run,
                    late=True,
                )
            case "tool":
                arguments = msgspec.json.encode(event.payload.get("args", {})).decode()
                self._put(recorded, name, kind="tool", key=key, state="running", run=run, late=True,
                          name=str(event.payload.get("name", "")), arguments=arguments,
                          touches=str(event.payload.get("preview", "")))  # fmt: skip
            case "tool_complete":
                tool = str(event.payload.get("name", ""))
                for row in reversed(mine):
                    if (
                        row.kind == "tool"
                        and row.state in {"running", "unknown"}
                        and tool in {row.name, ""}
                    ):
                        self._adds[recorded.seq] = row.id
                        failed = bool(event.payload.get("is_error"))
                        self._alter(
                            row.id, state="failed" if failed else "done", text=text
                        )
                        return

    def _run_sealed(self, recorded: Recorded, _event: events.RunSealed) -> None:
        """No more output of this run comes."""
        for row in self._calls_of(recorded.run or ""):
            if row.late and row.state == "running":
                self._alter(row.id, state="unknown")

    def _run_recovered(self, recorded: Recorded, event: events.RunRecovered) -> None:
        self._alter(_marker(recorded.run or ""), state=event.state)

    def _context_kept(self, recorded: Recorded, event: events.ContextKept) -> None:
        self._put(recorded, str(recorded.seq), kind="notice", text=event.why)

    def _memory_noted(self, recorded: Recorded, event: events.MemoryNoted) -> None:
        if event.action == "undone":
            self._alter(str(event.of), state="undone")
            return
        self._put(recorded, str(recorded.seq), kind="memory", text=event.text, action=event.action, by=event.by,
                  fact=event.fact, version=event.version)  # fmt: skip

    def _files_changed(self, recorded: Recorded, event: events.FilesChanged) -> None:
        """One row a turn. What is put back is a row of its own, and so can be put back itself."""
        run = recorded.run or ""
        of = str(recorded.seq) if event.undoes else self._first(run)
        did = f"{'Put back' if event.undoes else 'Changed'} {event.total:,} file{'s' * (event.total != 1)}."
        text = f"{did * (event.total > 0)} {event.missed}".strip()
        if text:
            key = (self._finished.get(run, recorded.seq), 2, 0)
            state = "open" if run == self._run and run else ""
            self._put(
                recorded,
                _files(of),
                kind="files",
                key=key,
                text=text,
                state=state,
                run=recorded.run,
                of=of,
            )
        else:  # the turn took back what it had changed
            self._drop(_files(of))
        if event.undoes:
            self._undoes[of] = event.undoes
        state = ""
        for _ in range(len(self._undoes)):  # and what that had undone stands again
            of, state = self._undoes.get(of, ""), "" if state else "undone"
            self._alter(_files(of), state=state)

    def _first(self, run: str) -> str:
        """The run that this one went on with, as far as that is known."""
        for _ in range(len(self._resumes)):
            run = self._resumes.get(run, run)
        return run

    # -- edits -----------------------------------------------------------------------------------------------

    def _conversation_rewound(
        self, recorded: Recorded, event: events.ConversationRewound
    ) -> None:
        self._kill(recorded.seq, event.to)

    def _conversation_cleared(
        self, recorded: Recorded, _event: events.ConversationCleared
    ) -> None:
        self._kill(recorded.seq, 0)

    def _kill(self, by: int, after: int) -> None:
        gone = {
            name: row for name, row in self._rows.items() if self._seqs[name] > after
        }
        self._killed[by] = gone
        for name in gone:
            self._drop(name)

    def _conversation_restored(
        self, _recorded: Recorded, event: events.ConversationRestored
    ) -> None:
        for row in self._killed.pop(event.of, {}).values():
            self._set(row)

    def _content_erased(self, _recorded: Recorded, event: events.ContentErased) -> None:
        seqs = set(event.seqs)
        names = {name for name, seq in self._seqs.items() if seq in seqs}
        names |= {name for seq, name in self._adds.items() if seq in seqs}
        for name in sorted(names):
            self._alter(name, **_BLANK)
            for gone in self._killed.values():
                if name in gone:
                    gone[name] = msgspec.structs.replace(gone[name], **_BLANK)


_BLANK: dict[str, Any] = {
    "text": "",
    "thought": "",
    "arguments": "",
    "touches": "",
    "parts": (),
    "erased": True,
}


def _files(turn: str) -> str:
    return f"files:{turn}"


def _marker(run: str) -> str:
    return f"marker:{run}"


def _others(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(part for part in parts if hasattr(part, "blob"))


_STEPS = steps_of(Transcript)
