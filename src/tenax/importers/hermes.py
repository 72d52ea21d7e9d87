"""Conversations, memories and skills of Hermes Agent: its home folder, its `state.db`, or an export of sessions.

A compaction either ends a session and starts a child session, or archives the rows of a session in place. Both copy the
kept messages behind the summary. Tenax imports a chain of sessions as a single conversation without the copies.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NamedTuple

import apsw
import msgspec

from tenax.errors import InvalidInput, StoreFull
from tenax.importers.draft import (
    Attached,
    Draft,
    MemoryDraft,
    Node,
    Piece,
    SkillDraft,
    Skipped,
    Source,
    read_time,
)
from tenax.importers.place import Place, read_items, read_rows
from tenax.importers.reading import (
    arrange,
    as_dict,
    as_list,
    as_text,
    attach_data_url,
    decode,
    get_dict,
    get_dicts,
    get_text,
    keep,
    text_parts,
    to_json,
    to_text,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_SQLITE: Final = b"SQLite format 3\0"
_COPIES_MAX: Final = 3
_MEMORY_BYTES_MAX: Final = 1024**2
_URL_CHARS_MAX: Final = 500
_COPY_US: Final = 2_000_000
_OVERLAP_MAX: Final = 2000
"""The largest number of messages behind a summary for a comparison with earlier messages."""
_SESSION_COLUMNS: Final = (
    "id", "parent_session_id", "end_reason", "started_at", "ended_at", "model", "model_config", "title", "source",
    "session_key", "archived", "pinned", "hidden", "display_name", "profile_name", "cwd", "git_branch", "chat_type",
)  # fmt: skip
_MESSAGE_COLUMNS: Final = (
    "id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "effect_disposition", "timestamp",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details", "platform_message_id", "observed",
    "_compressed_summary", "active", "compacted", "display_kind",
)  # fmt: skip
_SESSION_COLUMNS_NEEDED: Final = frozenset({"id", "started_at", "source"})
_MESSAGE_COLUMNS_NEEDED: Final = frozenset({"session_id", "role", "content"})
_RESET_REASONS: Final = frozenset(
    {"session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired"}
)  # fmt: skip
_TEXT_KINDS: Final = frozenset({"", "text", "input_text", "output_text"})
_JSON_CONTENT: Final = "\0json:"
_SUMMARY: Final = re.compile(
    r"\[CONTEXT (?:COMPACTION[^\]\n]*\][^\n]*(?:\n|\Z)|SUMMARY\]:)\s*"
)
"""The beginning of a summary, with the instruction for the model in the same line."""
_SUMMARY_END: Final = re.compile(r"\s*--- END OF CONTEXT SUMMARY[^\n]*---\s*")
_PRIOR: Final = "[PRIOR CONTEXT — for reference only; not a new message]"
_PRIOR_END: Final = "[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]"
_REVIEW: Final = re.compile(
    r"\s*Review the conversation above and (?:update the skill library|update two things:|consider saving to memory"
    r"|consider saving or updating a skill|consider two things:)"
)
_ENTRY_END: Final = re.compile(r"(?:^|\n)[ \t]*§[ \t]*(?:\n|$)")
_NOT_READ: Final = {
    "cron/jobs.json": "scheduled jobs",
    "config.yaml": "settings",
    ".env": "keys",
    "auth.json": "sign-ins",
    "SOUL.md": "persona",
}

_Row = dict[str, Any]


class _Segment(NamedTuple):
    """A session of Hermes."""

    row: _Row
    messages: Callable[[], Iterable[_Row]]


def open_source(place: Place) -> Source | None:
    """Return the conversations of Hermes Agent, or `None` for files of another program."""
    names = place.names()
    databases = [name for name in names if PurePosixPath(name).name == "state.db"]
    if place.path.is_file() and len(names) == 1:
        databases = names
    # The database of the main profile is nearest to the top.
    databases = sorted(databases, key=_count_folders)
    for name in databases:
        if not place.head(name).startswith(_SQLITE):
            continue
        copy = _open_copy(place, name)
        if copy is not None:
            return _Home(place, name, copy)
    candidates = [name for name in names if name.endswith((".json", ".jsonl"))]
    if len(names) == 1:
        candidates = names
    exports = [name for name in candidates if _is_export(place.head(name))]
    return _Export(place, exports) if exports else None


def _count_folders(name: str) -> int:
    return name.count("/")


class _Hermes:
    """The base class of the database and of an export."""

    kind = "hermes"
    label = "Hermes Agent"

    def __init__(self, place: Place) -> None:
        self.left_out: Counter[str] = Counter()
        self._place = place

    def segments(self) -> dict[str, _Segment]:
        raise NotImplementedError

    def drafts(self) -> Iterator[Draft | Skipped]:
        segments = self.segments()
        rows = {id_: segment.row for id_, segment in segments.items()}
        lineage = _Lineage(rows)
        for root in lineage.roots():
            chain = [segments[id_] for id_ in lineage.chain(root)]
            conversation = _Conversation(self.left_out, chain)
            parent, relation = lineage.owner(root)
            try:
                draft = conversation.draft(root, parent, relation)
            except (apsw.Error, ValueError, InvalidInput) as error:
                title = get_text(chain[0].row, "title")
                yield Skipped(root, title, f"its messages cannot be read ({error})")
            else:
                yield draft

    def memories(self) -> Iterator[MemoryDraft]:
        return iter(())

    def skills(self) -> Iterator[SkillDraft]:
        return iter(())

    def close(self) -> None:
        self._place.close()


# -- the database ------------------------------------------------------------------------


def _open_copy(place: Place, name: str) -> _Copy | None:
    """Return a copy of the database, or `None` for a database of another program."""
    copy = _Copy(place, name)
    try:
        has_sessions = copy.columns("sessions") >= _SESSION_COLUMNS_NEEDED
        has_messages = copy.columns("messages") >= _MESSAGE_COLUMNS_NEEDED
    except BaseException:
        copy.close()
        raise
    if has_sessions and has_messages:
        return copy
    copy.close()
    return None


class _Copy:
    """A private copy of a database, because Hermes may write to the original during the import."""

    def __init__(self, place: Place, name: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tenax-import-"))
        self._columns: dict[str, set[str]] = {}
        try:
            self._copy(place, name)
            # The log of the copy is read only by a connection that may write.
            self.connection = apsw.Connection(
                str(self._folder / "state.db"), flags=apsw.SQLITE_OPEN_READWRITE
            )
            self.connection.pragma("query_only", 1)
            self.connection.execute("select count(*) from sqlite_schema").fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            self.close()
            raise InvalidInput(
                f"The database {place.path} cannot be read: {error}.",
                hint="Run `sqlite3 state.db .recover`, or import an older copy.",
            ) from error
        except BaseException:
            self.close()
            raise

    def columns(self, table: str) -> set[str]:
        try:
            rows = self.connection.execute(
                "select name from pragma_table_info(?)", (table,)
            )
            return {str(name) for (name,) in rows}
        except (apsw.Error, UnicodeDecodeError) as error:
            raise InvalidInput(f"Cannot read the database: {error}.") from error

    def rows(
        self,
        table: str,
        columns: Iterable[str],
        clauses: str,
        bindings: tuple[Any, ...],
    ) -> Iterator[_Row]:
        """Yield rows of a table, without columns unknown to the version of Hermes.

        `clauses` follow the name of the table in the query. Binary values become text.
        """
        if table not in self._columns:
            self._columns[table] = self.columns(table)
        known = self._columns[table]
        names = [name for name in columns if name in known]
        quoted = ", ".join(f'"{name}"' for name in names)
        query = f"select {quoted} from {table} {clauses}"  # noqa: S608  (our own names)
        for values in self.connection.execute(query, bindings):
            texts = [_to_text(value) for value in values]
            yield dict(zip(names, texts, strict=True))

    def close(self) -> None:
        connection: apsw.Connection | None = getattr(self, "connection", None)
        if connection is not None:
            connection.close(force=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, place: Place, name: str) -> None:
        source = place.file(name)
        log_name = f"{name}-wal"
        if place.has(log_name):
            log = place.file(log_name)
        else:
            log = source.with_name(f"{source.name}-wal")
        try:
            for _ in range(_COPIES_MAX):
                source_state = _state(source)
                log_state = _state(log)
                shutil.copyfile(source, self._folder / "state.db")
                if log_state is not None:
                    shutil.copyfile(log, self._folder / "state.db-wal")
                # After a write in the meantime, the two copies do not fit together.
                if source_state == _state(source) and log_state == _state(log):
                    return
        except FileNotFoundError as error:
            raise InvalidInput(
                f"Cannot copy {error.filename}: another program deleted the file.",
                hint="Import again.",
            ) from error
        except OSError as error:
            raise StoreFull(
                f"Cannot copy {place.path}: {error.strerror}.",
                hint="Free some disk space, or set TMPDIR to a folder on another disk.",
            ) from error
        raise InvalidInput(
            f"Cannot copy {place.path}: another program changed the file during each of {_COPIES_MAX} attempts.",
            hint="Stop Hermes Agent, and import again.",
        )


def _state(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of the last change, or `None` for a missing file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


class _Home(_Hermes):
    """The home folder: the database, the memories and the skills."""

    def __init__(self, place: Place, name: str, copy: _Copy) -> None:
        super().__init__(place)
        self._copy = copy
        folder, slash, _ = name.rpartition("/")
        self._root = f"{folder}{slash}"
        self._unpacked: Path | None = None
        for file, description in _NOT_READ.items():
            if place.has(f"{self._root}{file}"):
                self.left_out[f"{description} ({file})"] = 1
        profiles = f"{self._root}profiles/"
        for database in place.names("/state.db"):
            profile = database.removeprefix(profiles).removesuffix("/state.db")
            if database == f"{profiles}{profile}/state.db":
                self.left_out[f"profile {profile} (import its folder separately)"] = 1

    def segments(self) -> dict[str, _Segment]:
        segments = {}
        try:
            for row in self._copy.rows("sessions", _SESSION_COLUMNS, "", ()):
                id_ = get_text(row, "id")
                if id_:
                    read_messages = partial(self.messages, id_)
                    segments[id_] = _Segment(_slim(row), read_messages)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"Cannot read the list of sessions: {error}.",
                hint="Run `sqlite3 state.db .recover`, or import an older copy.",
            ) from error
        return segments

    def messages(self, session: str) -> Iterator[_Row]:
        yield from self._copy.rows(
            "messages", _MESSAGE_COLUMNS, "where session_id = ? order by id", (session,)
        )

    def memories(self) -> Iterator[MemoryDraft]:
        seen: set[str] = set()
        for name in ("MEMORY.md", "USER.md"):
            path = f"{self._root}memories/{name}"
            if not self._place.has(path):
                continue
            data = self._place.read(path, _MEMORY_BYTES_MAX)
            if data is None:
                self.left_out[f"unreadable memories ({name})"] = 1
                continue
            about: Literal["profile", "note"] = "note"
            if name == "USER.md":
                about = "profile"
            for entry in _ENTRY_END.split(data.decode("utf-8", "replace")):
                text = entry.strip()
                if text and text not in seen:
                    seen.add(text)
                    digest = hashlib.sha256(text.encode()).hexdigest()
                    yield MemoryDraft(digest, text, about)

    def skills(self) -> Iterator[SkillDraft]:
        skills = f"{self._root}skills/"
        for name in self._place.names("/SKILL.md"):
            if not name.startswith(skills):
                continue
            # Hidden folders contain archived skills, and skills before their review.
            parts = PurePosixPath(name.removeprefix(skills)).parts
            if any(part.startswith(".") for part in parts):
                continue
            folder = PurePosixPath(name).parent
            yield SkillDraft(folder.name, self._folder_of(f"{folder}/"))

    def _folder_of(self, folder: str) -> Path:
        """Return the path of a folder. The files of a zip file are unpacked to a temporary folder."""
        if self._place.path.is_dir():
            return self._place.path / folder
        if self._unpacked is None:
            self._unpacked = Path(tempfile.mkdtemp(prefix="tenax-import-"))
        parent = Path(tempfile.mkdtemp(dir=self._unpacked))
        target = parent / PurePosixPath(folder).name
        for name in self._place.names():
            if not name.startswith(folder):
                continue
            # A name in a zip file may point outside the target.
            relative = PurePosixPath(name.removeprefix(folder))
            if relative.is_absolute() or ".." in relative.parts:
                continue
            path = target / relative
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._place.file(name), path)
            except (OSError, ValueError) as error:
                raise InvalidInput(f"Cannot unpack {name!r:.100}: {error}.") from error
        return target

    def close(self) -> None:
        super().close()
        self._copy.close()
        if self._unpacked is not None:
            shutil.rmtree(self._unpacked, ignore_errors=True)


# -- the export --------------------------------------------------------------------------


def _is_export(head: bytes) -> bool:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().removeprefix(b"[").lstrip()
    if not re.match(rb'\{\s*"id":\s*"', start) or b'"source":' not in start:
        return False
    return b'"started_at":' in start or b'"model_config":' in start


class _Export(_Hermes):
    """A file of `hermes sessions export`: a session, a list of sessions, or a session on each line."""

    def __init__(self, place: Place, names: list[str]) -> None:
        super().__init__(place)
        self._names = names
        self._broken: list[Skipped] = []

    def drafts(self) -> Iterator[Draft | Skipped]:
        yield from super().drafts()
        yield from self._broken

    def segments(self) -> dict[str, _Segment]:
        segments: dict[str, _Segment] = {}
        self._broken = []
        for name in self._names:
            for number, item in enumerate(_items(self._place.file(name)), 1):
                id_ = f"{name}#{number}"
                try:
                    value = as_dict(decode(item))
                except ValueError as error:
                    self._broken.append(Skipped(id_, "", str(error)))
                    continue
                sessions = self._sessions(value, item)
                if not sessions:
                    self._broken.append(Skipped(id_, "", "it is not a session"))
                segments |= sessions
        return segments

    def _sessions(self, value: _Row, item: msgspec.Raw) -> dict[str, _Segment]:
        """Return the session of an item, or the sessions of a lineage."""
        rows: list[tuple[int | None, _Row]] = [(None, value)]
        lineage = get_dicts(value, "segments")
        if lineage:
            rows = list(enumerate(lineage))
        sessions = {}
        for number, row in rows:
            id_ = get_text(row, "id")
            if id_:
                read_messages = partial(_exported, item, number)
                sessions[id_] = _Segment(_slim(row), read_messages)
        return sessions


def _items(path: Path) -> Iterator[msgspec.Raw]:
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error.strerror}.") from error
    # A brace alone in its line begins a session of several lines.
    is_lines = re.match(rb"\s*\{[^\S\n]*\S", head) is not None
    yield from read_rows(path) if is_lines else read_items(path)


def _exported(item: msgspec.Raw, segment: int | None) -> list[_Row]:
    """Decode the messages of an exported session."""
    value = as_dict(decode(item))
    if segment is not None:
        value = get_dicts(value, "segments")[segment]
    return get_dicts(value, "messages")


# -- the chains of sessions --------------------------------------------------------------


def _slim(row: _Row) -> _Row:
    """Return the columns of a session and the marks of its lineage, without the long `model_config`."""
    slim = {name: row.get(name) for name in _SESSION_COLUMNS if name != "model_config"}
    config = as_dict(_decode_column(row, "model_config"))
    for marker in ("_branched_from", "_delegate_from", "_reset_from"):
        slim[marker] = get_text(config, marker)
    return slim


def _decode_column(row: _Row, name: str) -> object:
    """Return the value of a column with JSON, or `None` for damaged JSON. An export may have the value itself."""
    value = row.get(name)
    if not isinstance(value, str) or not value:
        return value
    try:
        return decode(value.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None


def _to_text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Lineage:
    """The chains of sessions, and the branches and sub-agents of each chain."""

    def __init__(self, rows: dict[str, _Row]) -> None:
        self._rows = rows
        children: dict[str, list[str]] = {}
        for id_, row in rows.items():
            parent = as_text(row["parent_session_id"])
            if parent in rows and self._continues(row, parent):
                children.setdefault(parent, []).append(id_)
        self._next = {
            parent: max(continuations, key=self._rank)
            for parent, continuations in children.items()
        }
        self._root: dict[str, str] = {}
        continued = set(self._next.values())
        for id_ in rows:
            if id_ not in continued:
                self._follow(id_)
        for id_ in rows:
            # A chain without a beginning is a cycle. Any session may be the first.
            if id_ not in self._root:
                self._follow(id_)

    def _follow(self, root: str) -> None:
        id_: str | None = root
        while id_ is not None and id_ not in self._root:
            self._root[id_] = root
            id_ = self._next.get(id_)

    def _continues(self, row: _Row, parent: str) -> bool:
        if self._rows[parent]["end_reason"] != "compression":
            return False
        if row["source"] == "tool":
            return False
        # A continuation inherits the marks of its parent, so a mark counts only if it names the parent.
        return parent not in (
            row["_branched_from"],
            row["_delegate_from"],
            row["_reset_from"],
        )

    def _rank(self, id_: str) -> tuple[int, int, str]:
        row = self._rows[id_]
        # A continued session comes before an open session, and before an ended session.
        priority = 0
        if row["end_reason"] == "compression":
            priority = 2
        elif row["ended_at"] is None:
            priority = 1
        return priority, self._start(id_), id_

    def _start(self, id_: str) -> int:
        return read_time(self._rows[id_]["started_at"]) or 0

    def chain(self, root: str) -> list[str]:
        chain: list[str] = []
        id_: str | None = root
        while id_ is not None and self._root[id_] == root:
            if id_ in chain[-1:]:
                break
            chain.append(id_)
            id_ = self._next.get(id_)
            if id_ == root:
                break
        return chain

    def owner(self, root: str) -> tuple[str | None, Any]:
        """Return the parent conversation of a branch or of a sub-agent, and the relation."""
        row = self._rows[root]
        parent = get_text(row, "parent_session_id")
        if row["_branched_from"]:
            owner, relation = row["_branched_from"], "branch"
        elif row["_delegate_from"]:
            owner, relation = row["_delegate_from"], "delegate"
        elif (
            parent not in self._rows
            or row["_reset_from"]
            or self._is_reset(row, parent)
        ):
            return None, ""
        else:
            owner, relation = parent, self._old_relation(parent)
        owner = self._root.get(owner, owner)
        return (owner, relation) if owner != root else (None, "")

    def _is_reset(self, row: _Row, above: str) -> bool:
        parent = self._rows[above]
        key = get_text(row, "session_key")
        if not key or key != parent["session_key"]:
            return False
        return get_text(parent, "end_reason") in _RESET_REASONS

    def _old_relation(self, above: str) -> str:
        """Return the relation to a parent without marks, in older versions.

        A branch ends the parent with the reason `branched`. The other children are sub-agents.
        """
        reason = self._rows[above]["end_reason"]
        return "branch" if reason in ("branched", "compression") else "delegate"

    def roots(self) -> list[str]:
        """Return the first session of every chain, the oldest first, but parents before their children."""
        first_sessions = set(self._root.values())
        starts = sorted((self._start(id_), id_) for id_ in first_sessions)
        ordered: dict[str, None] = {}
        for _, root in starts:
            path = []
            id_: str | None = root
            while id_ in self._rows and id_ not in ordered and id_ not in path:
                path.append(id_)
                id_, _ = self.owner(id_)
            ordered.update(dict.fromkeys(reversed(path)))
        return list(ordered)


# -- a conversation ----------------------------------------------------------------------


class _Entry(NamedTuple):
    """A message of the path."""

    id: str
    key: tuple[Any, ...]
    """The fields in common with a copy of the message."""


class _Conversation:
    """A chain of sessions while its rows are read."""

    def __init__(self, left_out: Counter[str], chain: list[_Segment]) -> None:
        self._left_out = left_out
        self._chain = chain
        self._nodes: list[Node] = []
        self._path: list[_Entry] = []
        """The messages without the summaries."""
        self._exact: dict[tuple[Any, ...], str] = {}
        self._ids: Counter[str] = Counter()
        self._reviewing = False

    def draft(self, root: str, parent: str | None, relation: Any) -> Draft:  # noqa: ANN401  (the literal of Draft)
        for number, segment in enumerate(self._chain):
            self._reviewing = False
            self._read(segment, is_child=number > 0)
        first, last = self._chain[0].row, self._chain[-1].row
        nodes, _ = arrange([node] for node in self._nodes)
        extra = keep(
            first,
            "source",
            "chat_type",
            "display_name",
            "profile_name",
            "cwd",
            "git_branch",
        )
        if first["_reset_from"]:
            extra["reset_from"] = first["_reset_from"]
        return Draft(
            id=root,
            nodes=nodes,
            title=self._title(),
            at=read_time(first["started_at"]),
            archived=bool(last["archived"]) or bool(last["hidden"]),
            pinned=bool(last["pinned"]),
            parent=parent,
            relation=relation,
            extra=extra,
        )

    def _title(self) -> str:
        titles = [get_text(segment.row, "title").strip() for segment in self._chain]
        titles = [title for title in titles if title]
        if not titles:
            return ""
        first, last = titles[0], titles[-1]
        # Hermes numbers the titles of the sessions of a chain.
        is_numbered = re.fullmatch(re.escape(first) + r" #\d+", last) is not None
        return first if is_numbered else last

    def _read(self, segment: _Segment, *, is_child: bool) -> None:
        rows = [row for row in segment.messages() if self._is_shown(row)]
        model = get_text(segment.row, "model")
        overlap = 0
        # Rows before the next summary may be copies of the first messages.
        began = len(self._nodes)
        for index, row in enumerate(rows):
            pieces = self._pieces(row)
            texts = [piece.text for piece in pieces if isinstance(piece, Text)]
            text = "".join(texts)
            if self._is_summary(row, text):
                # In a child session, copies may have any time.
                at = None if is_child else read_time(row.get("timestamp"))
                self._drop_copies_of_beginning(began, at)
                is_child = False
                overlap = self._add_summary(row, pieces, text, rows[index + 1 :])
                began = len(self._nodes)
                continue
            if overlap > 0:
                # A copy of a message that the compaction kept.
                overlap -= 1
                continue
            if self._is_left_out(row, text):
                continue
            key = self._key(row)
            exact = self._exact_key(row, key)
            if exact in self._exact:
                self._note_kept(self._exact[exact])
                continue
            self._add(row, pieces, model)
            self._path.append(_Entry(self._nodes[-1].id, key))
            self._exact[exact] = self._nodes[-1].id

    def _is_shown(self, row: _Row) -> bool:
        is_active = bool(row.get("active", True))
        if not is_active and not row.get("compacted"):
            self._left_out["undone messages"] += 1
            return False
        return row.get("role") != "session_meta"

    def _is_left_out(self, row: _Row, text: str) -> bool:
        role = row.get("role")
        if role in ("user", "system"):
            # The program asked for a review of the conversation, and answered itself.
            self._reviewing = _REVIEW.match(text) is not None
        if self._reviewing:
            self._left_out["reviews of the program"] += 1
            return True
        if row.get("display_kind") == "hidden":
            self._left_out["hidden messages of the program"] += 1
            return True
        if role not in ("user", "assistant", "tool", "system"):
            self._left_out[f"messages with an unknown role ({role!r:.40})"] += 1
            return True
        return False

    def _add(self, row: _Row, pieces: list[Piece], model: str) -> None:
        extra = keep(
            row,
            "platform_message_id",
            "observed",
            "effect_disposition",
            "display_kind",
        )
        if row["role"] == "assistant":
            reasoning = self._reasoning(row)
            calls = self._calls(row)
            self._append(
                row,
                "assistant",
                [*reasoning, *pieces, *calls],
                model=model,
                finish=get_text(row, "finish_reason"),
                extra=extra,
            )
        elif row["role"] == "tool":
            self._append(
                row,
                "tool",
                pieces,
                call=get_text(row, "tool_call_id"),
                name=get_text(row, "tool_name"),
                extra=extra,
            )
        else:
            self._append(row, row["role"], pieces, extra=extra)

    def _append(
        self,
        row: _Row,
        role: Any,  # noqa: ANN401  (Role)
        pieces: Iterable[Piece],
        part: str = "",
        **fields: Any,  # noqa: ANN401  (other fields of Node)
    ) -> None:
        """Append a node behind the last node. `part` distinguishes several nodes of a row."""
        parent = self._nodes[-1].id if self._nodes else None
        node = Node(
            id=self._make_unique(f"{_id_of(row)}{part}"),
            parent=parent,
            role=role,
            parts=tuple(pieces),
            at=read_time(row.get("timestamp")),
            **fields,
        )
        self._nodes.append(node)

    def _make_unique(self, id_: str) -> str:
        """Return the id. A repeated id gets a number, so that the rows stay a path."""
        self._ids[id_] += 1
        number = self._ids[id_]
        return id_ if number == 1 else f"{id_}#{number}"

    # -- compactions

    def _is_summary(self, row: _Row, text: str) -> bool:
        if row.get("role") not in ("user", "assistant", "system"):
            return False
        if row.get("_compressed_summary"):
            return True
        # Hermes may join a summary with the message before the summary.
        _, _, joined = text.partition(_PRIOR_END)
        candidates = (text.lstrip(), joined.lstrip())
        return any(_SUMMARY.match(candidate) for candidate in candidates)

    def _add_summary(
        self, row: _Row, pieces: list[Piece], text: str, after: list[_Row]
    ) -> int:
        """Append a summary, and return the number of copied rows directly after the summary."""
        before, mark, summary = text.partition(_PRIOR_END)
        if not mark:
            before, summary = "", text
        summary = summary.lstrip()
        begin = _SUMMARY.match(summary)
        end = _SUMMARY_END.search(summary)
        behind = ""
        if end is not None:
            behind = summary[end.end() :]
            summary = summary[: end.start()]
        if begin is not None:
            summary = summary[begin.end() :] or summary
        prior = before.strip().removeprefix(_PRIOR).strip()
        self._add_part(row, prior, "prior")
        count = self._count_copies(after)
        extra = {}
        if count:
            extra["kept_from"] = self._path[-count].id
        files = [piece for piece in pieces if isinstance(piece, Attached)]
        parts: list[Piece] = [*text_parts(summary.strip()), *files]
        self._append(row, "summary", parts, extra=extra)
        if row.get("role") == "user":
            self._add_part(row, behind.strip(), "rest")
        return count

    def _add_part(self, row: _Row, text: str, name: str) -> None:
        """Append a message that Hermes joined with the summary. A copy of an earlier message is skipped."""
        earlier = [str(entry.key[1]).strip() for entry in self._path]
        if not text or text in earlier:
            return
        self._append(row, row["role"], [Text(text)], f":{name}")
        key = self._key({"role": row.get("role"), "content": text})
        self._path.append(_Entry(self._nodes[-1].id, key))

    def _drop_copies_of_beginning(self, began: int, at: int | None) -> None:
        """Drop the rows before a summary if the rows repeat the first messages, which a compaction keeps.

        After a compaction in place, the copies have the time of the summary `at`. Copies with their old time are
        recognised by `_exact_key`.
        """
        new = self._nodes[began:]
        if at is not None:
            new = [node for node in new if _is_near(node.at, at)]
        longest = min(len(new), len(self._path) // 2)
        keys = [entry.key for entry in self._path]
        for count in range(longest, 0, -1):
            if keys[:count] == keys[-count:]:
                del self._nodes[-count:]
                del self._path[-count:]
                return

    def _count_copies(self, after: list[_Row]) -> int:
        """Return the number of rows after a summary that repeat the last messages before the summary."""
        keys = [self._key(row) for row in after[:_OVERLAP_MAX]]
        path = [entry.key for entry in self._path[-_OVERLAP_MAX:]]
        longest = min(len(keys), len(path))
        for count in range(longest, 0, -1):
            # The first comparison is cheap and nearly always false.
            if path[-count] == keys[0] and path[-count:] == keys[:count]:
                return count
        return 0

    def _note_kept(self, id_: str) -> None:
        """Record the first message that the compaction kept: the original of a copy directly behind the summary."""
        last = self._nodes[-1]
        if last.role == "summary" and "kept_from" not in last.extra:
            self._nodes[-1] = msgspec.structs.replace(last, extra={"kept_from": id_})

    def _key(self, row: _Row) -> tuple[Any, ...]:
        """Return the fields that a message shares with its copies."""
        role = row.get("role")
        call_id = get_text(row, "tool_call_id")
        if role == "tool" and call_id:
            return ("tool", call_id)
        calls = tuple(get_text(call, "id") for call in self._listed_calls(row))
        return (role, to_text(row.get("content")), calls)

    def _exact_key(self, row: _Row, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a key with the content and the time, which a copy in place has in common with the original."""
        place: Any = row.get("timestamp")
        if not isinstance(place, int | float):
            # Without a time, a second "yes" is not a copy of the first "yes".
            place = ("row", _id_of(row), len(self._nodes))
        return (*key, to_text(row.get("content")), place)

    # -- parts

    def _pieces(self, row: _Row) -> list[Piece]:
        content = row.get("content")
        if isinstance(content, str) and content.startswith(_JSON_CONTENT):
            text = content.removeprefix(_JSON_CONTENT)
            try:
                content = decode(text.encode("utf-8", "surrogatepass"))
            except ValueError:
                self._left_out["unreadable structured content"] += 1
        if content is None or content == "":
            return []
        if isinstance(content, str):
            return [Text(content)]
        if isinstance(content, list):
            pieces: list[Piece] = []
            for part in content:
                pieces += self._piece(part)
            return pieces
        return [Text(to_json(content))]

    def _piece(self, part: object) -> Iterable[Piece]:
        if isinstance(part, str):
            return text_parts(part)
        part = as_dict(part)
        kind = get_text(part, "type")
        if kind in _TEXT_KINDS and isinstance(part.get("text"), str):
            return text_parts(part["text"])
        url = get_text(get_dict(part, "image_url"), "url")
        url = url or get_text(part, "image_url")
        if kind in ("image_url", "input_image") and url:
            attached = attach_data_url("image", url)
            return [attached or Attached(url[:_URL_CHARS_MAX], _read_nothing)]
        self._left_out[f"unknown content ({kind or 'no type':.40})"] += 1
        return [Text(to_json(part))] if part else []

    def _listed_calls(self, row: _Row) -> list[_Row]:
        calls = as_list(_decode_column(row, "tool_calls"))
        return [as_dict(call) for call in calls]

    def _calls(self, row: _Row) -> Iterator[ToolCall]:
        for number, call in enumerate(self._listed_calls(row)):
            id_ = get_text(call, "id", "call_id")
            if not id_:
                id_ = f"{_id_of(row)}:{number}"
            function = get_dict(call, "function") or call
            name = get_text(function, "name") or "unknown"
            arguments = function.get("arguments")
            text = "{}" if arguments is None else to_text(arguments)
            yield ToolCall(id_, name, text or "{}")

    def _reasoning(self, row: _Row) -> list[Reasoning]:
        reasoning = []
        for value in as_list(_decode_column(row, "reasoning_details")):
            detail = as_dict(value)
            text = get_text(detail, "text", "thinking", "summary")
            signature = get_text(detail, "signature") or None
            if text:
                reasoning.append(Reasoning(text, signature))
            else:
                self._left_out["encrypted reasoning"] += 1
        if reasoning:
            return reasoning
        text = get_text(row, "reasoning_content", "reasoning")
        return [Reasoning(text)] if text else []


def _read_nothing() -> None:
    return None


def _is_near(at: int | None, other_time: int) -> bool:
    return at is not None and abs(at - other_time) < _COPY_US


def _id_of(row: _Row) -> str:
    id_ = row.get("id")
    if isinstance(id_, bool) or not isinstance(id_, int | str):
        return "message"
    return str(id_)
