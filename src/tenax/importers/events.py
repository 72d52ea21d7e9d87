"""Turn a draft into events of a conversation.

The versions of a message become undos with a further version, as if the messages had been edited here. So the events
are in the order of the versions, and the path to the current message comes last. A branch that cannot be such a version
becomes a conversation of its own (`split_branches`): a version needs a message of the person to begin with, and an undo
does not reach back over a compaction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from tenax.events import (
    IMPORTED_RUN,
    ContextCompacted,
    ContextSummarised,
    ConversationRewound,
    Event,
    MessageAssistant,
    MessageSystem,
    MessageTool,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.importers.draft import Attached, Draft, Node
from tenax.journal.standing import EDITS
from tenax.parts import Part, Reasoning, Text, ToolCall, ToolResult
from tenax.text import make_storable

__all__ = [
    "COMPARED",
    "Entry",
    "PutFile",
    "clean",
    "list_entries",
    "mark_of",
    "split_branches",
]

TEXT_CHARS_MAX: Final = 500_000
"""A longer text of a message becomes a file, and the result of a tool is cut: an event has a largest size."""
_DEPTH_MAX: Final = 50
_INT_MAX: Final = 2**63
_EXTRA_BYTES_MAX: Final = 64 * 1024

Seqs = Sequence[int]
"""The seq of each earlier entry."""
PutFile = Callable[[Attached], Sequence[Part]]
"""Stores a file and returns the parts of a message: the file, or a sentence if the file is missing."""


class Entry(NamedTuple):
    """An event of an imported conversation. `make` needs the seqs of the earlier entries."""

    mark: tuple[str, ...]
    """What identifies the event in a second import."""
    at: int
    make: Callable[[Seqs], Event]
    run: str | None = None


# -- the tree --------------------------------------------------------------------------------


class _Tree:
    """The nodes of a draft without structural nodes, cycles and unknown parents."""

    def __init__(self, draft: Draft) -> None:
        self.nodes: dict[str, Node] = {}
        parents: dict[str, str | None] = {}
        for node in draft.nodes:
            if node.id not in parents:
                parents[node.id] = node.parent
                self.nodes[node.id] = node
        self.parents = {
            name: self._real_parent(name, parents)
            for name, node in self.nodes.items()
            if node.role
        }
        wanted = draft.current if draft.current in self.nodes else None
        if wanted is not None and not self.nodes[wanted].role:
            wanted = self._real_parent(wanted, parents)
        self.nodes = {name: self.nodes[name] for name in self.parents}
        self._break_cycles()
        self.children: dict[str | None, list[str]] = defaultdict(list)
        for name, parent in self.parents.items():
            self.children[parent].append(name)
        last = wanted or next(reversed(self.nodes), None)
        while last is not None and self.children.get(last):
            last = self.children[last][-1]
        self.shown = dict.fromkeys(self.path_to(last)) if last is not None else {}

    def _real_parent(self, name: str, parents: dict[str, str | None]) -> str | None:
        """Return the nearest ancestor with a role."""
        seen = {name}
        parent = parents[name]
        while parent in parents and not self.nodes[parent].role:
            if parent in seen:
                return None
            seen.add(parent)
            parent = parents[parent]
        return parent if parent in parents else None

    def _break_cycles(self) -> None:
        fine: set[str] = set()
        for name in self.parents:
            trail: dict[str, None] = {}
            at: str | None = name
            while at is not None and at not in fine:
                if at in trail:
                    self.parents[at] = None
                    break
                trail[at] = None
                at = self.parents[at]
            fine.update(trail)

    def path_to(self, name: str) -> list[str]:
        """Return the path from the root to a node, the node included."""
        path: list[str] = []
        at: str | None = name
        while at is not None:
            path.append(at)
            at = self.parents[at]
        return path[::-1]

    def subtree(self, name: str) -> Iterator[str]:
        """Yield a node and all nodes below, parents first."""
        stack = [name]
        while stack:
            at = stack.pop()
            yield at
            stack.extend(reversed(self.children.get(at, [])))

    def in_order(self, parent: str | None) -> list[str]:
        """Return the children of a node. The child on the shown path is the last one."""
        return sorted(self.children.get(parent, []), key=self.shown.__contains__)

    def pivot(self, siblings: Sequence[str]) -> str | None:
        """Return the message that gets a further version to show another sibling, or `None` if there is none."""
        if all(self.nodes[name].role == "user" for name in siblings):
            return siblings[0]
        at = self.parents[siblings[0]]
        while at is not None and self.nodes[at].role not in {"user", "summary"}:
            at = self.parents[at]
        return at if at is not None and self.nodes[at].role == "user" else None


def split_branches(draft: Draft) -> tuple[Draft, list[Draft]]:
    """Return the draft without the branches that cannot be versions of a message, and those branches as drafts."""
    tree = _Tree(draft)
    cut: list[str] = []
    stack: list[str | None] = [None]
    while stack:
        parent = stack.pop()
        siblings = tree.in_order(parent)
        if len(siblings) > 1:
            kept = siblings[-1]
            has_pivot = tree.pivot(siblings) is not None
            for name in siblings[:-1]:
                if not has_pivot or any(
                    tree.nodes[below].role == "summary" for below in tree.subtree(name)
                ):
                    cut.append(name)
                else:
                    stack.append(name)
            stack.append(kept)
        else:
            stack.extend(siblings)
    if not cut:
        return draft, []
    gone = {below for name in cut for below in tree.subtree(name)}
    left = tuple(node for name, node in tree.nodes.items() if name not in gone)
    left = tuple(_under(node, tree.parents[node.id]) for node in left)
    shown = next(reversed(tree.shown), None)
    rest = msgspec.structs.replace(draft, nodes=left, current=shown)
    # A branch is split again: it may have such branches of its own.
    branches: list[Draft] = []
    for name in cut:
        branch, more = split_branches(_branch(draft, tree, name))
        branches += (branch, *more)
    return rest, branches


def _under(node: Node, parent: str | None) -> Node:
    return msgspec.structs.replace(node, parent=parent)


def _branch(draft: Draft, tree: _Tree, name: str) -> Draft:
    above = tree.path_to(name)[:-1]
    names = [*above, *tree.subtree(name)]
    nodes = tuple(_under(tree.nodes[one], tree.parents[one]) for one in names)
    return msgspec.structs.replace(
        draft,
        id=f"{draft.id}#{name}",
        nodes=nodes,
        current=None,
        parent=draft.id,
        relation="branch",
        pinned=False,
    )


# -- events ----------------------------------------------------------------------------------


def list_entries(
    draft: Draft, segment: str, put_file: PutFile, now: int, *, with_runs: bool = False
) -> list[Entry]:
    """Return the events of a draft after `conversation.opened`. `segment` is the name of its first segment.

    `with_runs` adds the runs that memory providers and the review of the memory follow.
    """
    return _Writer(draft, segment, put_file, now, with_runs=with_runs).write()


class _Writer:
    def __init__(
        self,
        draft: Draft,
        segment: str,
        put_file: PutFile,
        now: int,
        *,
        with_runs: bool,
    ) -> None:
        self._tree = _Tree(draft)
        self._segment = segment
        self._segments = 1
        self._covered = 0
        """The last entry that a summary covers."""
        self._put_file = put_file
        self._at = draft.at or now
        self._with_runs = with_runs
        self._entries: list[Entry] = []
        self._places: dict[str, int] = {}
        """The last entry of a node."""
        self._calls: dict[str, int] = {}
        """The entry of the answer with a tool call, by id of the call."""
        self._run: str | None = None
        self._runs = 0

    def write(self) -> list[Entry]:
        stack: list[tuple[str, list[str]]] = []

        def push(parent: str | None) -> None:
            siblings = self._tree.in_order(parent)
            for number, name in reversed(list(enumerate(siblings))):
                stack.append((name, siblings[: number + 1]))

        push(None)
        while stack:
            name, siblings = stack.pop()
            if len(siblings) > 1:
                self._switch(siblings)
            following = self._tree.in_order(name)
            self._write_node(name, following[0] if following else None)
            push(name)
        self._end_run()
        return self._entries

    def _switch(self, siblings: list[str]) -> None:
        """Undo back to before the version of a message, so that another one can follow."""
        previous, name = siblings[-2:]
        tree = self._tree
        pivot = previous
        again: list[str] = []
        if not tree.nodes[name].role == tree.nodes[previous].role == "user":
            found = tree.pivot([name, previous])
            assert found is not None
            pivot = found
            path = tree.path_to(name)
            again = path[path.index(pivot) : -1]
        self._end_run()
        self._forget_calls(tree.path_to(pivot)[:-1])
        place = self._places[pivot]
        self._put(
            (ConversationRewound.kind,),
            lambda seqs: ConversationRewound(seqs[place] - 1, replaced=True),
        )
        for earlier, following in pairwise([*again, name]):
            self._write_node(earlier, following)

    def _forget_calls(self, path: list[str]) -> None:
        """Forget the calls of other branches than the path: a result must not belong to an answer that was undone."""
        self._calls = {
            make_storable(part.id): self._places[name]
            for name in path
            for part in self._tree.nodes[name].parts
            if isinstance(part, ToolCall)
        }

    def _put(
        self, mark: tuple[str, ...], make: Callable[[Seqs], Event], *, run: bool = False
    ) -> None:
        self._entries.append(Entry(mark, self._at, make, self._run if run else None))

    def _write_node(self, name: str, following: str | None) -> None:
        node = self._tree.nodes[name]
        if node.at is not None:
            self._at = node.at
        match node.role:
            case "user":
                is_answered = (
                    following is not None
                    and self._tree.nodes[following].role == "assistant"
                )
                self._write_user(node, asks=self._with_runs and is_answered)
            case "assistant":
                self._write_answer(node)
            case "tool":
                self._write_result(node)
            case "summary" if self._entries:
                self._write_summary(node)
            case _:
                parts = self._parts(node)
                extra = _extra(node.id, node.extra)
                self._put(
                    _mark_message(MessageSystem.kind, node.id, node.parts),
                    lambda _: MessageSystem(parts(), extra),
                )
        self._places.setdefault(name, len(self._entries) - 1)
        if node.role in {"user", "assistant"}:
            self._places[name] = len(self._entries) - 1

    def _write_user(self, node: Node, *, asks: bool) -> None:
        self._end_run()
        parts = self._parts(node)
        extra = _extra(node.id, node.extra)
        author = make_storable(node.author)
        self._put(
            _mark_message(MessageUser.kind, node.id, node.parts),
            lambda _: MessageUser(parts(), author, ask=asks, extra=extra),
        )

    def _write_answer(self, node: Node) -> None:
        self._begin_run()
        parts = self._parts(node)
        extra = _extra(node.id, node.extra)
        self._put(
            _mark_message(MessageAssistant.kind, node.id, node.parts),
            lambda _: MessageAssistant(
                parts(), model=node.model, finish=node.finish, extra=extra
            ),
            run=True,
        )
        for part in node.parts:
            if isinstance(part, ToolCall):
                self._calls[make_storable(part.id)] = len(self._entries) - 1

    def _write_result(self, node: Node) -> None:
        call, name = make_storable(node.call), make_storable(node.name)
        texts = [part.text for part in node.parts if isinstance(part, Text)]
        whole = make_storable("\n".join(texts))
        text = whole[:TEXT_CHARS_MAX]
        cut = len(whole) - len(text)
        place = self._calls.get(call)
        if place is None:
            result = ToolResult(call, text, name)
            extra = _extra(node.id, node.extra)
            self._put(
                (MessageTool.kind, call, text),
                lambda _: MessageTool([result], extra),
            )
        else:
            self._put(
                (ToolFinished.kind, call, text),
                lambda seqs: ToolFinished(seqs[place], call, node.outcome, text, cut),
                run=True,
            )
        files = [part for part in node.parts if isinstance(part, Attached)]
        if cut:
            files.append(Attached(f"{name or 'tool'}.txt", whole.encode))
        if files:
            # The result itself holds only text, so its files follow under a call of their own.
            names = ", ".join(make_storable(file.name) for file in files)
            listed = ToolResult(f"{call}#files", names, name)
            self._put(
                (MessageTool.kind, listed.call, names),
                lambda _: MessageTool(
                    [listed, *(part for file in files for part in self._put_file(file))]
                ),
            )

    def _write_summary(self, node: Node) -> None:
        self._end_run()
        parts = self._parts(node)
        last = len(self._entries) - 1
        covered = self._last_covered(node)
        parent = self._segment
        self._segments += 1
        child = self._segment = f"{parent.partition('.')[0]}.{self._segments}"
        self._put(
            _mark_message(ContextSummarised.kind, node.id, node.parts),
            lambda seqs: ContextSummarised(
                [part for part in parts() if isinstance(part, Text)],
                seqs[covered],
                model=node.model or None,
            ),
        )
        self._put(
            (ContextCompacted.kind,),
            lambda seqs: ContextCompacted(
                parent, child, seqs[last + 1], seqs[covered], seqs[last + 1]
            ),
        )

    def _last_covered(self, node: Node) -> int:
        """Return the last entry that the summary covers. `kept_from` names the first message that stays word for word."""
        last = len(self._entries) - 1
        kept = node.extra.get("kept_from")
        place = self._places.get(kept, 0) if isinstance(kept, str) else 0
        # The result of a tool must not be cut off from its call.
        is_whole = place > self._covered and self._tree.nodes[str(kept)].role != "tool"
        self._covered = place - 1 if is_whole else last
        return self._covered

    # -- runs ------------------------------------------------------------------------------

    def _begin_run(self) -> None:
        """Open a run for the last message of the person, if runs are wanted."""
        if not self._with_runs or self._run is not None or not self._entries:
            return
        self._runs += 1
        place = len(self._entries) - 1
        is_asked = self._entries[place].mark[0] == MessageUser.kind
        self._run = f"{IMPORTED_RUN}{self._segment}-{self._runs}"
        self._put(
            (RunStarted.kind,),
            lambda seqs: RunStarted([seqs[place]] if is_asked else []),
            run=True,
        )

    def _end_run(self) -> None:
        if self._run is not None:
            self._put((RunFinished.kind,), lambda _: RunFinished("completed"), run=True)
            self._run = None

    # -- parts -----------------------------------------------------------------------------

    def _parts(self, node: Node) -> Callable[[], list[Part]]:
        """Return a function that stores the files of a message and returns the parts."""
        return lambda: [part for piece in node.parts for part in self._part(piece)]

    def _part(self, piece: Text | Reasoning | ToolCall | Attached) -> Sequence[Part]:
        match piece:
            case Attached():
                return self._put_file(piece)
            case Text(text=text) if len(text) > TEXT_CHARS_MAX:
                whole = make_storable(text).encode()
                return self._put_file(Attached("message.txt", lambda: whole))
            case Text(text=text):
                return [Text(make_storable(text))]
            case Reasoning(text=text, signature=signature, seconds=seconds):
                text = make_storable(text[:TEXT_CHARS_MAX])
                return [Reasoning(text, clean(signature), seconds)]
            case ToolCall(id=name, name=tool, arguments=arguments):
                strings = map(make_storable, (name, tool, arguments))
                return [ToolCall(*strings)]


def _extra(name: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the extra fields of a message: the id in the source, and what has no other place."""
    kept = clean(extra)
    if len(msgspec.json.encode(kept)) > _EXTRA_BYTES_MAX:
        kept = {}
    return {"import": {**kept, "id": make_storable(name)}}


def clean(value: Any, depth: int = 0) -> Any:  # noqa: ANN401  (JSON of any shape)
    """Return JSON that can be stored: without invalid characters, too large numbers and endless nesting."""
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_INT_MAX <= value < _INT_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEPTH_MAX and isinstance(value, dict):
        items = value.items()
        return {make_storable(str(key)): clean(item, depth + 1) for key, item in items}
    if depth < _DEPTH_MAX and isinstance(value, list | tuple):
        return [clean(item, depth + 1) for item in value]
    return value if isinstance(value, bool) else None


# -- comparing -------------------------------------------------------------------------------

_MESSAGES: Final = (MessageUser, MessageAssistant, MessageSystem, ContextSummarised)
COMPARED: Final = frozenset(
    {
        *(kind.kind for kind in _MESSAGES),
        MessageTool.kind,
        ToolFinished.kind,
        ContextCompacted.kind,
        *EDITS,
    }
)
"""The kinds of events that a second import compares."""


def _mark_message(
    kind: str, name: str, parts: Sequence[Part | Attached]
) -> tuple[str, ...]:
    found: list[str] = []
    for part in parts:
        if isinstance(part, Text) and len(part.text) <= TEXT_CHARS_MAX:
            found.append(make_storable(part.text))
        elif isinstance(part, ToolCall):
            found.append(make_storable(part.id))
    name = "" if kind == ContextSummarised.kind else make_storable(name)
    return kind, name, *found


def mark_of(event: Event) -> tuple[str, ...]:
    """Return the mark of a stored event."""
    match event:
        case MessageTool(parts=[ToolResult(call=call, text=text), *_]):
            return MessageTool.kind, call, text
        case ToolFinished(call=call, text=text):
            return ToolFinished.kind, call, text
        case ContextSummarised(parts=parts):
            return _mark_message(event.kind, "", parts)
        case MessageUser() | MessageAssistant() | MessageSystem():
            imported = event.extra.get("import")
            name = imported.get("id", "") if isinstance(imported, dict) else ""
            return _mark_message(event.kind, str(name), event.parts)
        case _:
            return (event.kind,)
