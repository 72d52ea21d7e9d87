"""Turn a draft into events of a conversation.

The versions of a message become undos with a further version, like edits in Tenax. So the events are in the order of
the versions, and the path to the current message comes last. Two kinds of branches cannot be versions and become
separate conversations (`split_branches`): a branch without a message of the person at the beginning, because a version
begins with a message of the person, and a branch with a compaction, because an undo does not reach back over a
compaction.
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
"""The largest text in an event. A longer text of a message becomes a file, and the result of a tool is cut."""
_DEPTH_MAX: Final = 50
_INT_MAX: Final = 2**63
_EXTRA_BYTES_MAX: Final = 64 * 1024

Seqs = Sequence[int]
"""The seqs of the earlier entries."""
PutFile = Callable[[Attached], Sequence[Part]]
"""Store a file and return the parts of a message: the file, or a sentence about the missing file."""


class Entry(NamedTuple):
    """An event of an imported conversation. `make` needs the seqs of the earlier entries."""

    mark: tuple[str, ...]
    """The kind, and the fields that identify the event in a second import."""
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
        current = draft.current if draft.current in self.nodes else None
        if current is not None and not self.nodes[current].role:
            current = self._real_parent(current, parents)
        self.nodes = {name: self.nodes[name] for name in self.parents}
        self._break_cycles()
        self.children: dict[str | None, list[str]] = defaultdict(list)
        for name, parent in self.parents.items():
            self.children[parent].append(name)
        last = current or next(reversed(self.nodes), None)
        # The shown path ends at a leaf. The last version of a message is the newest version.
        while last is not None and self.children.get(last):
            last = self.children[last][-1]
        self.shown: dict[str, None] = {}
        if last is not None:
            self.shown = dict.fromkeys(self.path_to(last))

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
        """Remove the parent of a node in every cycle."""
        checked: set[str] = set()
        for name in self.parents:
            path: set[str] = set()
            ancestor: str | None = name
            while ancestor is not None and ancestor not in checked:
                if ancestor in path:
                    self.parents[ancestor] = None
                    break
                path.add(ancestor)
                ancestor = self.parents[ancestor]
            checked |= path

    def path_to(self, name: str) -> list[str]:
        """Return the path from the root to a node, including the node."""
        path: list[str] = []
        ancestor: str | None = name
        while ancestor is not None:
            path.append(ancestor)
            ancestor = self.parents[ancestor]
        path.reverse()
        return path

    def subtree(self, name: str) -> Iterator[str]:
        """Yield a node and the nodes below, parents first."""
        stack = [name]
        while stack:
            current = stack.pop()
            yield current
            children = self.children.get(current, [])
            stack.extend(reversed(children))

    def has_summary(self, name: str) -> bool:
        """Return whether a node or a node below is a summary."""
        return any(self.nodes[below].role == "summary" for below in self.subtree(name))

    def nodes_of(self, names: Sequence[str]) -> tuple[Node, ...]:
        """Return nodes with their real parents."""
        return tuple(
            msgspec.structs.replace(self.nodes[name], parent=self.parents[name])
            for name in names
        )

    def in_order(self, parent: str | None) -> list[str]:
        """Return the children of a node. The child on the shown path is the last one."""
        return sorted(self.children.get(parent, []), key=self.shown.__contains__)

    def pivot(self, siblings: Sequence[str]) -> str | None:
        """Return the message of the person whose versions show the siblings, or `None` without such a message."""
        if all(self.nodes[name].role == "user" for name in siblings):
            return siblings[0]
        ancestor = self.parents[siblings[0]]
        while ancestor is not None:
            role = self.nodes[ancestor].role
            if role == "user":
                return ancestor
            if role == "summary":
                return None
            ancestor = self.parents[ancestor]
        return None


def split_branches(draft: Draft) -> tuple[Draft, list[Draft]]:
    """Return the draft with versions only, and the other branches as drafts."""
    tree = _Tree(draft)
    cut: list[str] = []
    stack: list[str | None] = [None]
    while stack:
        parent = stack.pop()
        siblings = tree.in_order(parent)
        if len(siblings) <= 1:
            stack.extend(siblings)
            continue
        has_pivot = tree.pivot(siblings) is not None
        *earlier, last = siblings
        for name in earlier:
            if has_pivot and not tree.has_summary(name):
                stack.append(name)
            else:
                cut.append(name)
        stack.append(last)
    if not cut:
        return draft, []
    cut_names = {below for name in cut for below in tree.subtree(name)}
    kept_names = [name for name in tree.nodes if name not in cut_names]
    shown = next(reversed(tree.shown), None)
    main = msgspec.structs.replace(
        draft, nodes=tree.nodes_of(kept_names), current=shown
    )
    # A branch may contain branches that cannot be versions either.
    branches: list[Draft] = []
    for name in cut:
        branch, nested = split_branches(_branch(draft, tree, name))
        branches.append(branch)
        branches += nested
    return main, branches


def _branch(draft: Draft, tree: _Tree, name: str) -> Draft:
    """Return a branch as a conversation, with the messages above the branch."""
    *ancestors, _ = tree.path_to(name)
    names = [*ancestors, *tree.subtree(name)]
    return msgspec.structs.replace(
        draft,
        id=f"{draft.id}#{name}",
        nodes=tree.nodes_of(names),
        current=None,
        parent=draft.id,
        relation="branch",
        pinned=False,
    )


# -- events ----------------------------------------------------------------------------------


def list_entries(
    draft: Draft, segment: str, put_file: PutFile, now: int, *, with_runs: bool = False
) -> list[Entry]:
    """Return the events of a draft after `conversation.opened`. `segment` is the name of the first segment.

    `with_runs` adds runs, because memory providers and the review of the memory follow runs.
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
            counts = range(len(siblings), 0, -1)
            stack.extend((siblings[count - 1], siblings[:count]) for count in counts)

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
        """Undo back to before a version of a message, so that the next version can follow."""
        previous, name = siblings[-2:]
        tree = self._tree
        pivot = tree.pivot([previous, name])
        assert pivot is not None
        again: list[str] = []
        if pivot != previous:
            # The pivot is above the siblings. The messages from the pivot on are written again.
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
            # The result of a tool has only text, so the files follow under a separate call.
            names = ", ".join(make_storable(file.name) for file in files)
            listed = ToolResult(f"{call}#files", names, name)

            def make_files(_: Seqs) -> Event:
                parts: list[Part] = [listed]
                for file in files:
                    parts += self._put_file(file)
                return MessageTool(parts)

            self._put((MessageTool.kind, listed.call, names), make_files)

    def _write_summary(self, node: Node) -> None:
        self._end_run()
        parts = self._parts(node)
        last = len(self._entries) - 1
        covered = self._last_covered(node)
        parent = self._segment
        self._segments += 1
        root, _, _ = parent.partition(".")
        child = f"{root}.{self._segments}"
        self._segment = child

        def make_summary(seqs: Seqs) -> Event:
            texts: list[Part] = [part for part in parts() if isinstance(part, Text)]
            return ContextSummarised(texts, seqs[covered], model=node.model or None)

        mark = _mark_message(ContextSummarised.kind, node.id, node.parts)
        self._put(mark, make_summary)
        self._put(
            (ContextCompacted.kind,),
            lambda seqs: ContextCompacted(
                parent, child, seqs[last + 1], seqs[covered], seqs[last + 1]
            ),
        )

    def _last_covered(self, node: Node) -> int:
        """Return the last entry that the summary replaces. `kept_from` names the first message after this entry."""
        last = len(self._entries) - 1
        kept = node.extra.get("kept_from")
        place = self._places.get(kept, 0) if isinstance(kept, str) else 0
        # The result of a tool must not be cut off from its call.
        if place > self._covered and self._tree.nodes[str(kept)].role != "tool":
            self._covered = place - 1
        else:
            self._covered = last
        return self._covered

    # -- runs ------------------------------------------------------------------------------

    def _begin_run(self) -> None:
        """Open a run for the last message of the person."""
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

        def make_parts() -> list[Part]:
            parts: list[Part] = []
            for piece in node.parts:
                parts += self._part(piece)
            return parts

        return make_parts

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
    """Return the extra fields of a message: the id in the source, and fields without an equivalent in Tenax."""
    kept = clean(extra)
    if len(msgspec.json.encode(kept)) > _EXTRA_BYTES_MAX:
        kept = {}
    return {"import": {**kept, "id": make_storable(name)}}


def clean(value: Any, depth: int = 0) -> Any:  # noqa: ANN401  (JSON of any shape)
    """Return JSON for the store: without invalid characters, too large numbers and very deep nesting."""
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_INT_MAX <= value < _INT_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEPTH_MAX and isinstance(value, dict):
        cleaned = {}
        for key, item in value.items():
            cleaned[make_storable(str(key))] = clean(item, depth + 1)
        return cleaned
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
    """Return the mark of a message: the kind, the id in the source, the texts and the ids of the calls."""
    contents: list[str] = []
    for part in parts:
        if isinstance(part, Text) and len(part.text) <= TEXT_CHARS_MAX:
            contents.append(make_storable(part.text))
        elif isinstance(part, ToolCall):
            contents.append(make_storable(part.id))
    # A stored summary does not have the id in the source.
    name = "" if kind == ContextSummarised.kind else make_storable(name)
    return kind, name, *contents


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
