"""Sessions of Claude Code: a .jsonl file, the folder of a project, or the folder `~/.claude`.

A session is a file of lines. The line of a message names the parent, so a rewind leaves a fork. A message of the model
consists of several lines with the same message id. Sub-agents have separate files, or lines marked as a sidechain.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import msgspec

from tenax.errors import InvalidInput
from tenax.importers.draft import (
    Draft,
    MemoryDraft,
    Node,
    Outcome,
    Piece,
    SkillDraft,
    Skipped,
    Source,
    read_time,
)
from tenax.importers.place import Place, read_lines
from tenax.importers.reading import (
    JsonObject,
    arrange,
    as_dict,
    as_list,
    as_text,
    attach_base64,
    decode,
    get_dict,
    get_text,
    keep,
    text_parts,
    to_json,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_SNIFFED_FILES_MAX: Final = 200
_META_BYTES_MAX: Final = 64 * 1024
_TITLE_CHARS: Final = 80
_MESSAGES: Final = frozenset({"user", "assistant", "system"})
_TITLES: Final = {
    "custom-title": "custom_title",
    "agent-name": "agent_name",
    "ai-title": "ai_title",
}
"""The types of lines with a title, the most important first, and the field of the title."""
_BOOKKEEPING: Final = frozenset(
    {"agent-color", "agent-setting", "attachment", "attribution-snapshot", "content-replacement", "file-history-snapshot",
     "last-prompt", "mode", "permission-mode", "pr-link", "progress", "queue-operation", "speculation-accept", "summary",
     "system", "tag", "task-summary", "worktree-state"}
)  # fmt: skip
_SCAFFOLDING: Final = re.compile(
    r"\s*<(command-(?:name|message|args)|local-command-(?:stdout|stderr|caveat)|system-reminder|bash-(?:stdout|stderr)"
    r"|task-notification|user-prompt-submit-hook|ide_opened_file|ide_selection|new-diagnostics)>"
)
_INTERRUPTED: Final = "[Request interrupted by user"
_DENIED: Final = "The user doesn't want to proceed with this tool use."
_FIRST_TIME: Final = re.compile(rb'"timestamp":\s*"([^"\\]{10,40})"')
_SESSION: Final = re.compile(rb'"sessionId":\s*"([^"\\]{1,100})"')
_AGENT: Final = re.compile(rb'"agentId":\s*"[^"\\]{1,100}"')
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FORKED: Final = re.compile(rb'"forkedFrom":\s*\{')


class _Line(msgspec.Struct):
    """The fields of a line for the import. A field may have any type.

    The long field `toolUseResult` repeats the message, so the decoder skips the field.
    """

    type: Any = None
    uuid: Any = None
    parent_uuid: Any = msgspec.field(default=None, name="parentUuid")
    logical_parent: Any = msgspec.field(default=None, name="logicalParentUuid")
    session_id: Any = msgspec.field(default=None, name="sessionId")
    timestamp: Any = None
    cwd: Any = None
    git_branch: Any = msgspec.field(default=None, name="gitBranch")
    version: Any = None
    is_sidechain: Any = msgspec.field(default=None, name="isSidechain")
    is_meta: Any = msgspec.field(default=None, name="isMeta")
    is_summary: Any = msgspec.field(default=None, name="isCompactSummary")
    is_error: Any = msgspec.field(default=None, name="isApiErrorMessage")
    forked_from: Any = msgspec.field(default=None, name="forkedFrom")
    subtype: Any = None
    compact: Any = msgspec.field(default=None, name="compactMetadata")
    message: Any = None
    attachment: Any = None
    summary: Any = None
    leaf_uuid: Any = msgspec.field(default=None, name="leafUuid")
    custom_title: Any = msgspec.field(default=None, name="customTitle")
    agent_name: Any = msgspec.field(default=None, name="agentName")
    ai_title: Any = msgspec.field(default=None, name="aiTitle")


_LINE: Final = msgspec.json.Decoder(_Line)


class _File(NamedTuple):
    """The facts from the beginning of a file."""

    begin: int
    is_fork: bool
    name: str
    session: str
    """The parent session of a sub-agent's file. Empty for a session."""


def open_source(place: Place) -> Source | None:
    """Return the sessions of Claude Code, or `None` for files of another program."""
    names = _candidates(place)
    for name in names[:_SNIFFED_FILES_MAX]:
        if _is_session(place.head(name)):
            return _ClaudeCode(place, names)
    return None


def _candidates(place: Place) -> list[str]:
    names = place.names()
    if len(names) == 1:
        return names
    # Other files of ~/.claude, such as history.jsonl, are lists of prompts or logs.
    return [name for name in names if name.endswith(".jsonl")]


def _is_session(head: bytes) -> bool:
    *lines, tail = head.split(b"\n")
    if not lines:
        # The first line is longer than the head, or the only line.
        lines = [tail]
    for data in lines:
        try:
            line = _LINE.decode(data)
        except (ValueError, RecursionError):
            if data is tail and _begins_session(data):
                return True
            continue
        if _is_of_claude_code(line):
            return True
    return False


def _begins_session(data: bytes) -> bool:
    """Return whether an incomplete line is the beginning of a message."""
    if b'"isSidechain":' not in data:
        return False
    return data.startswith(b'{"parentUuid":') or _SESSION.search(data) is not None


def _is_of_claude_code(line: _Line) -> bool:
    match line.type:
        case "file-history-snapshot":
            return True
        case "summary" if line.leaf_uuid:
            return True
        case str() as kind if line.session_id:
            is_message = kind in _MESSAGES and bool(line.uuid)
            return is_message or kind in _TITLES or kind in _BOOKKEEPING
        case _:
            return False


class _ClaudeCode:
    kind = "claude-code"
    label = "Claude Code"

    def __init__(self, place: Place, names: list[str]) -> None:
        self.left_out: Counter[str] = Counter()
        self._place = place
        self._names = names
        self._summaries: dict[str, str] = {}
        """Titles of older versions, by the id of the last message. A title may be in the file of another session."""
        self._begun: dict[str, str] = {}
        """The name of a session, by the id of the first message."""

    def drafts(self) -> Iterator[Draft | Skipped]:
        looks = [self._look(name) for name in self._names]
        files = sorted(file for file in looks if file is not None)
        delegates: dict[str, list[_File]] = {}
        for file in files:
            if file.session:
                delegates.setdefault(file.session, []).append(file)
        for file in files:
            if file.session:
                continue
            yield from self._read(file)
            for delegate in delegates.pop(_stem(file.name), ()):
                yield from self._read(delegate)
        for orphans in delegates.values():
            for delegate in orphans:
                yield from self._read(delegate)

    def memories(self) -> Iterator[MemoryDraft]:
        return iter(())

    def skills(self) -> Iterator[SkillDraft]:
        return iter(())

    def close(self) -> None:
        self._place.close()

    def _look(self, name: str) -> _File | None:
        head = self._place.head(name)
        if not _is_session(head):
            if self._place.path.is_file() or _is_of_session(name):
                return _File(0, False, name, _owner(name, head))
            return None
        if b'"summary"' in head:
            self._collect_summaries(head)
        begin = None
        first_time = _FIRST_TIME.search(head)
        if first_time is not None:
            begin = read_time(first_time[1].decode("ascii", "replace"))
        is_fork = _FORKED.search(head) is not None
        return _File(begin or 0, is_fork, name, _owner(name, head))

    def _collect_summaries(self, head: bytes) -> None:
        for data in head.split(b"\n"):
            if b'"summary"' not in data[:200]:
                continue
            line = _decode(data)
            if line is None or line.type != "summary":
                continue
            title, leaf = as_text(line.summary), as_text(line.leaf_uuid)
            if title and leaf:
                self._summaries[leaf] = title

    def _read(self, file: _File) -> Iterator[Draft | Skipped]:
        stem = _stem(file.name)
        session = _Session(self.left_out, self._summaries)
        try:
            for data in read_lines(self._place.file(file.name)):
                session.add(_decode(data))
        except InvalidInput as error:
            yield Skipped(stem, "", str(error))
            return
        if session.is_broken:
            yield Skipped(stem, "", "it has no readable line")
            return
        if file.session:
            drafts = session.delegate(file.session, stem, self._describe(file.name))
        else:
            drafts = session.drafts(_id_of(stem, session.session_id), self._begun)
        yield from drafts

    def _describe(self, name: str) -> JsonObject:
        """Return the description of a sub-agent, or an empty object."""
        meta = f"{name.removesuffix('.jsonl')}.meta.json"
        if not self._place.has(meta):
            return {}
        data = self._place.read(meta, _META_BYTES_MAX)
        if not data:
            return {}
        try:
            return as_dict(decode(data))
        except ValueError:
            return {}


def _stem(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".jsonl")


def _is_of_session(name: str) -> bool:
    """Return whether the name of a file is a UUID, like the name of a session."""
    return _UUID.fullmatch(_stem(name)) is not None


def _id_of(stem: str, session: str) -> str:
    # A copied session repeats the id of the original in every line, so the name of the file is the id.
    if not session or _UUID.fullmatch(stem):
        return stem
    return session


def _owner(name: str, head: bytes) -> str:
    """Return the parent session of a sub-agent's file, or an empty text for a session."""
    parts = PurePosixPath(name).parts
    if "subagents" in parts[1:-1]:
        return parts[parts.index("subagents", 1) - 1]
    if not _stem(name).startswith("agent-") or not _AGENT.search(head):
        return ""
    session = _SESSION.search(head)
    return session[1].decode("utf-8", "replace") if session else ""


def _decode(data: bytes) -> _Line | None:
    try:
        return _LINE.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        # Only the decoder of the standard library accepts lone surrogates.
        value = json.loads(data)
        return msgspec.convert(value, _Line) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


class _Message:
    """A message while its lines are read."""

    def __init__(self, id_: str, parent: str | None, line: _Line, role: Any) -> None:  # noqa: ANN401  (Role)
        self.id = id_
        self.parent = parent
        self.role = role
        self.at = read_time(line.timestamp)
        self.sidechain = line.is_sidechain is True
        self.pieces: list[Piece] = []
        self.model = ""
        self.finish = ""
        self.call = ""
        self.outcome: Outcome = "done"
        self.extra: JsonObject = {}
        self.blocks: set[int] = set()
        self.is_placed = False
        """Whether `parent` is the id of a message, and not of a line."""


class _Session:
    """The lines of a file."""

    def __init__(self, left_out: Counter[str], summaries: dict[str, str]) -> None:
        self.left_out = left_out
        self.session_id = ""
        self._summaries = summaries
        self._lines = 0
        self._damaged = 0
        self._above: dict[str, str | None] = {}
        """The parent of each line."""
        self._message_of: dict[str, _Message] = {}
        """The message of a line."""
        self._joined: dict[str, _Message] = {}
        """The message, by the message id of the provider."""
        self._messages: list[_Message] = []
        self._asked: dict[str, tuple[_Message, str]] = {}
        """The message and the tool of a call, by the id of the call."""
        self._answered: dict[str, _Message] = {}
        """The last result of the calls of a message, by the id of the message."""
        self._results: set[str] = set()
        self._titles: dict[str, str] = {}
        self._boundary: JsonObject = {}
        self._preserved: dict[str, str] = {}
        """The summary between the last preserved message and the next message, by the line of the preserved message."""
        self._last = ""
        self._last_of_side = ""
        self._side: set[str] = set()
        self._forked_from = ""
        self._first: _Line | None = None
        self._old_title = ""

    @property
    def is_broken(self) -> bool:
        return self._damaged > 0 and not self._lines

    # -- lines

    def add(self, line: _Line | None) -> None:
        if line is None or not isinstance(line.type, str):
            self._damaged += 1
            self.left_out["unreadable lines"] += 1
            return
        self._lines += 1
        if not self.session_id:
            self.session_id = as_text(line.session_id)
        if line.type in _TITLES:
            title = as_text(getattr(line, _TITLES[line.type])).strip()
            if title:
                self._titles[line.type] = title
        elif line.type == "summary":
            if as_text(line.leaf_uuid) and as_text(line.summary):
                self._summaries[line.leaf_uuid] = line.summary
        elif not as_text(line.uuid):
            self._count(line)
        elif line.uuid in self._above:
            self.left_out["repeated lines"] += 1
        else:
            self._add_to_tree(line)

    def _count(self, line: _Line) -> None:
        if line.type in _MESSAGES:
            self.left_out["messages without an id"] += 1
        elif line.type not in _BOOKKEEPING:
            self.left_out[f"unknown lines ({line.type:.40})"] += 1

    def _add_to_tree(self, line: _Line) -> None:
        uuid = line.uuid
        above = as_text(line.parent_uuid) or as_text(line.logical_parent) or None
        is_side = line.is_sidechain is True
        is_compaction = line.subtype == "compact_boundary" or line.is_summary is True
        if is_compaction and above not in self._above:
            # Older versions name no parent, or a message of another file. The parent is the last message.
            last = self._last_of_side if is_side else self._last
            above = last or None
        self._above[uuid] = self._preserved.get(above, above) if above else None
        if uuid in self._summaries:
            self._old_title = self._summaries[uuid]
        if is_side:
            self._side.add(uuid)
            self._last_of_side = uuid
        else:
            self._last = uuid
        self._note(line)
        if line.type == "user":
            self._add_user(line)
        elif line.type == "assistant":
            self._add_assistant(line)
        elif line.type == "attachment":
            self._add_attachment(line)
        elif line.subtype == "compact_boundary":
            self._boundary = as_dict(line.compact)
        else:
            self._count_system(line)

    def _count_system(self, line: _Line) -> None:
        if line.type not in _BOOKKEEPING:
            self.left_out[f"unknown lines ({line.type:.40})"] += 1

    def _note(self, line: _Line) -> None:
        if self._first is None or (self._first.cwd is None and line.cwd is not None):
            self._first = line
        forked = get_text(as_dict(line.forked_from), "sessionId")
        self._forked_from = self._forked_from or forked

    def _begin(self, line: _Line, role: str, *, part: str = "") -> _Message:
        parent = self._above[line.uuid]
        message = _Message(line.uuid + part, parent, line, role)
        self._messages.append(message)
        self._message_of[line.uuid] = message
        return message

    def _add_user(self, line: _Line) -> None:
        content = as_dict(line.message).get("content")
        if line.is_summary is True:
            self._add_summary(line, content)
            return
        if line.is_meta is True:
            self.left_out["notes of the program"] += 1
            return
        pieces: list[Piece] = []
        unknown: list[Any] = []
        results = 0
        for block in _blocks(content):
            kind = as_dict(block).get("type")
            if kind == "tool_result":
                self._add_result(line, block, results)
                results += 1
            elif kind == "text" and self._is_program(get_text(block, "text")):
                continue
            else:
                self._take(block, pieces, unknown)
        if pieces:
            message = self._begin(line, "user", part=":text" if results else "")
            message.pieces = pieces
            _keep_unknown(message, unknown)

    def _is_program(self, text: str) -> bool:
        if text.startswith(_INTERRUPTED):
            self.left_out["marks of an interruption"] += 1
            return True
        if _is_scaffolding(text):
            self.left_out["commands and notes of the program"] += 1
            return True
        return False

    def _add_summary(self, line: _Line, content: object) -> None:
        pieces: list[Piece] = []
        unknown: list[Any] = []
        for block in _blocks(content):
            self._take(block, pieces, unknown)
        message = self._begin(line, "summary")
        message.pieces = pieces
        message.extra = keep(self._boundary, "trigger", "preTokens")
        segment = as_dict(self._boundary.get("preservedSegment"))
        head = get_text(segment, "headUuid")
        tail = get_text(segment, "tailUuid")
        if head in self._message_of:
            message.extra["kept_from"] = self._message_of[head].id
        if tail in self._above:
            self._preserved[tail] = line.uuid
        self._boundary = {}

    def _add_result(self, line: _Line, block: JsonObject, number: int) -> None:
        call = get_text(block, "tool_use_id")
        if call and call in self._results:
            self.left_out["repeated results of a tool call"] += 1
            return
        self._results.add(call)
        suffix = f":{number}" if number else ""
        message = self._begin(line, "tool", part=suffix)
        unknown: list[Any] = []
        for part in _blocks(block.get("content")):
            if as_dict(part).get("type") == "tool_reference":
                message.pieces += text_parts(part.get("tool_name"))
            else:
                self._take(part, message.pieces, unknown)
        message.call = call
        _keep_unknown(message, unknown)
        texts = [piece.text for piece in message.pieces if isinstance(piece, Text)]
        is_error = block.get("is_error") is True
        message.outcome = _outcome("".join(texts), failed=is_error)
        if call in self._asked:
            # The results of parallel calls name the lines of their calls. Here, the results form a chain.
            asking, _ = self._asked[call]
            last = self._answered.get(asking.id)
            message.parent = last.id if last is not None else asking.id
            message.is_placed = True
            self._answered[asking.id] = message
        elif number:
            message.parent = self._messages[-2].id
            message.is_placed = True

    def _add_assistant(self, line: _Line) -> None:
        content = as_dict(line.message)
        if line.is_error is True or content.get("model") == "<synthetic>":
            self.left_out["errors shown by the program"] += 1
            return
        message_id = get_text(content, "id")
        message = self._joined.get(message_id)
        is_side = line.is_sidechain is True
        if message is None or message.sidechain is not is_side:
            message = self._begin(line, "assistant")
            if message_id:
                self._joined[message_id] = message
        self._message_of[line.uuid] = message
        message.model = get_text(content, "model") or message.model
        message.finish = get_text(content, "stop_reason") or message.finish
        unknown: list[Any] = []
        for block in _blocks(content.get("content")):
            # Some versions repeat the earlier blocks of a message in every line.
            digest = hash(to_json(block))
            if digest not in message.blocks:
                message.blocks.add(digest)
                self._take_answer(block, message, unknown)
        _keep_unknown(message, unknown)

    def _take_answer(self, block: Any, message: _Message, unknown: list[Any]) -> None:  # noqa: ANN401  (JSON)
        kind = as_dict(block).get("type")
        if kind == "thinking":
            signature = get_text(block, "signature") or None
            message.pieces.append(Reasoning(get_text(block, "thinking"), signature))
        elif kind in ("tool_use", "server_tool_use"):
            id_ = get_text(block, "id")
            if not id_:
                id_ = f"{message.id}:{len(message.pieces)}"
            name = get_text(block, "name") or "unknown"
            arguments = to_json(block.get("input", {}))
            message.pieces.append(ToolCall(id_, name, arguments))
            self._asked.setdefault(id_, (message, name))
        else:
            self._take(block, message.pieces, unknown)

    def _add_attachment(self, line: _Line) -> None:
        """Add a prompt from the time of an answer. Claude Code stores such a prompt as an attachment of the next request."""
        attached = as_dict(line.attachment)
        if attached.get("type") in ("file", "directory"):
            self.left_out["files named in a message with @"] += 1
        if attached.get("type") != "queued_command":
            return
        if line.is_meta is True:
            return
        if attached.get("commandMode") not in (None, "prompt"):
            return
        pieces: list[Piece] = []
        unknown: list[Any] = []
        for block in _blocks(attached.get("prompt")):
            if not self._is_program(get_text(as_dict(block), "text")):
                self._take(block, pieces, unknown)
        if pieces:
            self._begin(line, "user").pieces = pieces

    def _take(self, block: Any, pieces: list[Piece], unknown: list[Any]) -> None:  # noqa: ANN401  (JSON)
        block = as_dict(block)
        kind = get_text(block, "type")
        source = get_dict(block, "source")
        if kind == "text":
            pieces += text_parts(block.get("text"))
        elif kind in ("image", "document") and get_text(source, "data"):
            name = get_text(block, "title") or kind
            if source.get("type") == "text":
                pieces += text_parts(source["data"])
            else:
                media_type = get_text(source, "media_type")
                pieces.append(attach_base64(name, media_type, source["data"]))
        else:
            unknown.append(block)
            self.left_out[f"unknown content ({kind or 'no type':.40})"] += 1

    # -- drafts

    def drafts(self, id_: str, begun: dict[str, str]) -> Iterator[Draft]:
        """Yield the session, and the sub-agents with lines in the file of the session."""
        # Older versions copied the lines of a session to a new file, and continued the session in the new file.
        copied_from = id_
        if self._messages:
            copied_from = begun.setdefault(self._messages[0].id, id_)
        parent, relation = self._forked_from or copied_from, "branch"
        if parent == id_:
            parent, relation = "", ""
        main = [message for message in self._messages if not message.sidechain]
        if main:
            yield self._draft(id_, main, parent, relation, self._title(main))
        elif self._messages:
            self.left_out["sessions with a sub-agent only"] += 1
        else:
            self.left_out["sessions without a message"] += 1
        for root, messages in self._sidechains().items():
            title = _first_line(messages)
            yield self._draft(f"{id_}/{root}", messages, id_, "delegate", title)

    def delegate(self, parent: str, name: str, about: JsonObject) -> Iterator[Draft]:
        """Yield the sub-agent of a file."""
        if not self._messages:
            self.left_out["sessions without a message"] += 1
            return
        id_ = f"{parent}/{name}"
        title = get_text(about, "description") or _first_line(self._messages)
        extra = keep(about, "agentType", "toolUseId")
        yield self._draft(id_, self._messages, parent, "delegate", title, extra)

    def _sidechains(self) -> dict[str, list[_Message]]:
        """Return the messages of every sub-agent, by the id of the first line."""
        chains: dict[str, list[_Message]] = {}
        roots: dict[str, str] = {}
        for message in self._messages:
            if message.sidechain:
                uuid, _, _ = message.id.partition(":")
                root = self._root(uuid, roots)
                chains.setdefault(root, []).append(message)
        return chains

    def _root(self, uuid: str, roots: dict[str, str]) -> str:
        """Return the first line of a sub-agent. `roots` has the results of earlier searches, by line."""
        path: list[str] = []
        seen: set[str] = set()
        while uuid not in roots and uuid not in seen:
            path.append(uuid)
            seen.add(uuid)
            above = self._above.get(uuid)
            if above is None or above not in self._side:
                break
            uuid = above
        root = roots.get(uuid, uuid)
        roots.update(dict.fromkeys(path, root))
        return root

    def _draft(
        self,
        id_: str,
        messages: list[_Message],
        parent: str,
        relation: Any,  # noqa: ANN401  (the literal of Draft)
        title: str,
        extra: JsonObject | None = None,
    ) -> Draft:
        last = messages[-1].id
        shown = self._nearest(self._last) if not messages[-1].sidechain else None
        if shown is not None:
            last = self._follow(shown)
        chains = [[self._node(message)] for message in messages]
        nodes, current = arrange(chains, last)
        about = {}
        if self._first is not None:
            about["cwd"] = self._first.cwd
            about["gitBranch"] = self._first.git_branch
            about["version"] = self._first.version
        times = [message.at for message in messages if message.at is not None]
        return Draft(
            id=id_,
            nodes=nodes,
            current=current,
            title=title,
            at=times[0] if times else None,
            parent=parent or None,
            relation=relation,
            extra=keep(about, "cwd", "gitBranch", "version") | (extra or {}),
        )

    def _node(self, message: _Message) -> Node:
        parent = message.parent
        if not message.is_placed:
            above = self._nearest(parent)
            parent = parent if above is None else self._follow(above)
        name = ""
        if message.call in self._asked:
            _, name = self._asked[message.call]
        return Node(
            id=message.id,
            parent=parent,
            role=message.role,
            parts=tuple(message.pieces),
            at=message.at,
            model=message.model,
            finish=message.finish,
            call=message.call,
            name=name,
            outcome=message.outcome,
            extra=message.extra,
        )

    def _nearest(self, uuid: str | None) -> _Message | None:
        """Return the message of a line, or of the nearest line above with a message."""
        seen: set[str] = set()
        while uuid is not None and uuid not in seen:
            seen.add(uuid)
            message = self._message_of.get(uuid)
            if message is not None:
                return message
            uuid = self._above.get(uuid)
        return None

    def _follow(self, message: _Message) -> str:
        """Return the id of the message before the next message: after calls, the id of the last result."""
        if message.role == "tool" and message.call in self._asked:
            message, _ = self._asked[message.call]
        last = self._answered.get(message.id, message)
        return last.id

    def _title(self, messages: list[_Message]) -> str:
        for kind in _TITLES:
            if kind in self._titles:
                return self._titles[kind]
        return self._old_title or _first_line(messages)


def _blocks(content: object) -> Iterable[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return as_list(content)


def _keep_unknown(message: _Message, unknown: list[Any]) -> None:
    if unknown:
        message.extra |= keep({"content": unknown}, "content")


def _outcome(text: str, *, failed: bool) -> Outcome:
    if text.startswith(_INTERRUPTED):
        return "cancelled"
    if failed:
        return "denied" if text.startswith(_DENIED) else "failed"
    return "done"


def _first_line(messages: list[_Message]) -> str:
    for message in messages:
        if message.role == "user":
            for piece in message.pieces:
                text = piece.text.strip() if isinstance(piece, Text) else ""
                if text:
                    first, *_ = text.splitlines()
                    return first[:_TITLE_CHARS]
    return ""


def _is_scaffolding(text: str) -> bool:
    """Return whether the whole text consists of elements of the program."""
    end = 0
    while element := _SCAFFOLDING.match(text, end):
        close = f"</{element[1]}>"
        index = text.find(close, element.end())
        if index < 0:
            return False
        end = index + len(close)
    return end > 0 and not text[end:].strip()
