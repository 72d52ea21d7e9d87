"""Conversations, memories and skills of Hermes Agent: its home folder, its `state.db`, or an export of sessions.

A compaction either ends a session and starts a child session, or archives the rows of a session in place. Both copy the
kept messages behind the summary. Here a chain of sessions is one conversation with each message once.
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
    get_list,
    get_text,
    keep,
    text_parts,
    to_json,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_SQLITE: Final = b"SQLite format 3\0"
_COPIES_MAX: Final = 3
_MEMORY_BYTES_MAX: Final = 1024**2
_URL_CHARS_MAX: Final = 500
_COPY_US: Final = 2_000_000
_OVERLAP_MAX: Final = 2000
"""The number of copied messages that are looked for behind a summary."""
_SESSION_COLUMNS: Final = (
    "id", "parent_session_id", "end_reason", "started_at", "ended_at", "model", "model_config", "title", "source",
    "session_key", "archived", "pinned", "hidden", "display_name", "profile_name", "cwd", "git_branch", "chat_type",
)  # fmt: skip
_MESSAGE_COLUMNS: Final = (
    "id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "effect_disposition", "timestamp",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details", "platform_message_id", "observed",
    "_compressed_summary", "active", "compacted", "display_kind",
)  # fmt: skip
_RESET_REASONS: Final = frozenset(
    {"session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired"}
)  # fmt: skip
_JSON_CONTENT: Final = "\0json:"
_SUMMARY: Final = re.compile(
    r"\[CONTEXT (?:COMPACTION[^\]\n]*\][^\n]*(?:\n|\Z)|SUMMARY\]:)\s*"
)
"""The beginning of a summary. The rest of its line is an instruction for the model."""
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
    """Return the conversations of Hermes Agent, or `None` if this is something else."""
    found = [name for name in place.names() if PurePosixPath(name).name == "state.db"]
    if place.path.is_file() and len(place.names()) == 1:
        found = place.names()
    found.sort(key=lambda name: name.count("/"))
    for name in found:
        if place.head(name).startswith(_SQLITE) and (copy := _open_copy(place, name)):
            return _Home(place, name, copy)
    exports = [name for name in place.names() if name.endswith((".json", ".jsonl"))]
    if len(place.names()) == 1:
        exports = place.names()
    names = [name for name in exports if _is_export(place.head(name))]
    return _Export(place, names) if names else None


class _Hermes:
    """What the database and an export share."""

    kind = "hermes"
    label = "Hermes Agent"

    def __init__(self, place: Place) -> None:
        self.left_out: Counter[str] = Counter()
        self._place = place

    def segments(self) -> dict[str, _Segment]:
        raise NotImplementedError

    def drafts(self) -> Iterator[Draft | Skipped]:
        segments = self.segments()
        lineage = _Lineage({id_: segment.row for id_, segment in segments.items()})
        for root in lineage.roots():
            chain = [segments[id_] for id_ in lineage.chain(root)]
            title = as_text(chain[0].row.get("title"))
            try:
                yield _Conversation(self.left_out, chain).draft(
                    root, *lineage.owner(root)
                )
            except (apsw.Error, ValueError, InvalidInput) as error:
                yield Skipped(root, title, f"its messages cannot be read ({error})")

    def memories(self) -> Iterator[MemoryDraft]:
        return iter(())

    def skills(self) -> Iterator[SkillDraft]:
        return iter(())

    def close(self) -> None:
        self._place.close()


# -- the database ------------------------------------------------------------------------


def _open_copy(place: Place, name: str) -> _Copy | None:
    """Return a copy of the database, or `None` if another program wrote it."""
    copy = _Copy(place, name)
    try:
        sessions, messages = copy.columns("sessions"), copy.columns("messages")
    except BaseException:
        copy.close()
        raise
    if {"id", "started_at", "source"} <= sessions and {
        "session_id",
        "role",
        "content",
    } <= messages:
        return copy
    copy.close()
    return None


class _Copy:
    """A private copy of a database. Hermes may go on writing to its own."""

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
                f"{place.path} is not a readable database: {error}.",
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
            raise InvalidInput(f"The database cannot be read: {error}.") from error

    def rows(
        self, table: str, wanted: Iterable[str], rest: str, bindings: tuple[Any, ...]
    ) -> Iterator[_Row]:
        """Yield rows with the wanted columns that this version of Hermes has."""
        if table not in self._columns:
            self._columns[table] = self.columns(table)
        names = [name for name in wanted if name in self._columns[table]]
        listed = ", ".join(f'"{name}"' for name in names)
        for values in self.connection.execute(
            f"select {listed} from {table} {rest}",  # noqa: S608  (our own names)
            bindings,
        ):
            if any(type(value) is bytes for value in values):
                values = [_to_text(value) for value in values]  # noqa: PLW2901
            yield dict(zip(names, values, strict=True))

    def close(self) -> None:
        connection: apsw.Connection | None = getattr(self, "connection", None)
        if connection is not None:
            connection.close(force=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, place: Place, name: str) -> None:
        source = place.file(name)
        log = source.with_name(f"{source.name}-wal")
        if place.has(f"{name}-wal"):
            log = place.file(f"{name}-wal")
        try:
            for _ in range(_COPIES_MAX):
                before = _state(source), _state(log)
                shutil.copyfile(source, self._folder / "state.db")
                if before[1] is not None:
                    shutil.copyfile(log, self._folder / "state.db-wal")
                if before == (_state(source), _state(log)):
                    return
        except FileNotFoundError as error:
            raise InvalidInput(
                f"{error.filename} was deleted while it was copied.", hint="Try again."
            ) from error
        except OSError as error:
            raise StoreFull(
                f"{place.path} cannot be copied: {error.strerror}.",
                hint="Free some disk space, or set TMPDIR to a folder on another disk.",
            ) from error
        raise InvalidInput(
            f"{place.path} changes all the time.",
            hint="Stop Hermes Agent, and import again.",
        )


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


class _Home(_Hermes):
    """The database, and the files beside it."""

    def __init__(self, place: Place, name: str, copy: _Copy) -> None:
        super().__init__(place)
        self._copy = copy
        self._root = name[: name.rfind("/") + 1]
        self._unpacked: Path | None = None
        for file, description in _NOT_READ.items():
            if place.has(f"{self._root}{file}"):
                self.left_out[f"{description} ({file})"] = 1
        for other in place.names("/state.db"):
            profile = other.removeprefix(f"{self._root}profiles/").removesuffix(
                "/state.db"
            )
            if f"{self._root}profiles/{profile}/state.db" == other:
                self.left_out[f"profile {profile} (import its folder separately)"] = 1

    def segments(self) -> dict[str, _Segment]:
        segments = {}
        try:
            for row in self._copy.rows("sessions", _SESSION_COLUMNS, "", ()):
                id_ = get_text(row, "id")
                if id_:
                    segments[id_] = _Segment(_slim(row), partial(self.messages, id_))
        except (apsw.Error, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"The list of sessions cannot be read: {error}.",
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
            for entry in _ENTRY_END.split(data.decode("utf-8", "replace")):
                text = entry.strip()
                if text and text not in seen:
                    seen.add(text)
                    name_of_text = hashlib.sha256(text.encode()).hexdigest()
                    about: Literal["profile", "note"] = (
                        "profile" if name == "USER.md" else "note"
                    )
                    yield MemoryDraft(name_of_text, text, about)

    def skills(self) -> Iterator[SkillDraft]:
        for name in self._place.names("/SKILL.md"):
            inside = name.removeprefix(f"{self._root}skills/")
            parts = PurePosixPath(inside).parts
            # Hidden folders have archived skills, and skills that wait for a review.
            if f"{self._root}skills/{inside}" != name or any(
                part.startswith(".") for part in parts
            ):
                continue
            folder = PurePosixPath(name).parent
            yield SkillDraft(folder.name, self._folder_of(f"{folder}/"))

    def _folder_of(self, folder: str) -> Path:
        if self._place.path.is_dir():
            return self._place.path / folder
        if self._unpacked is None:
            self._unpacked = Path(tempfile.mkdtemp(prefix="tenax-import-"))
        target = Path(tempfile.mkdtemp(dir=self._unpacked)) / PurePosixPath(folder).name
        for name in self._place.names():
            inside = PurePosixPath(name.removeprefix(folder))
            if (
                name.startswith(folder)
                and not inside.is_absolute()
                and ".." not in inside.parts
            ):
                path = target / inside
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self._place.file(name), path)
                except (OSError, ValueError) as error:
                    raise InvalidInput(
                        f"{name!r:.100} cannot be unpacked: {error}."
                    ) from error
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
                try:
                    value = as_dict(decode(item))
                    parts = self._parts(value, item)
                except ValueError as error:
                    self._broken.append(Skipped(f"{name}#{number}", "", str(error)))
                    continue
                if not parts:
                    self._broken.append(
                        Skipped(f"{name}#{number}", "", "it is not a session")
                    )
                segments |= parts
        return segments

    def _parts(self, value: _Row, item: msgspec.Raw) -> dict[str, _Segment]:
        """Return the sessions of an item: of a lineage, each of its segments."""
        if get_list(value, "segments"):
            found = {}
            for number, part in enumerate(value["segments"]):
                if id_ := get_text(as_dict(part), "id"):
                    found[id_] = _Segment(_slim(part), partial(_exported, item, number))
            return found
        id_ = get_text(value, "id")
        return (
            {id_: _Segment(_slim(value), partial(_exported, item, None))} if id_ else {}
        )


def _items(path: Path) -> Iterator[msgspec.Raw]:
    try:
        with path.open("rb") as file:
            begin = file.read(1024)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    # A lonely brace begins a session that is spread over several lines.
    is_lines = re.match(rb"\s*\{[^\S\n]*\S", begin) is not None
    yield from read_rows(path) if is_lines else read_items(path)


def _exported(item: msgspec.Raw, segment: int | None) -> list[_Row]:
    """Return the messages of an exported session. They are decoded when they are needed."""
    value = as_dict(decode(item))
    if segment is not None:
        value = as_dict(get_list(value, "segments")[segment])
    return [as_dict(row) for row in get_list(value, "messages")]


# -- the chains of sessions --------------------------------------------------------------


def _slim(row: _Row) -> _Row:
    """Keep what the chains need, without the long fields."""
    config = row.get("model_config")
    if isinstance(config, str | bytes):
        try:
            config = decode(
                config.encode("utf-8", "replace") if isinstance(config, str) else config
            )
        except ValueError:
            config = None
    slim = {
        name: _to_text(row.get(name))
        for name in _SESSION_COLUMNS
        if name != "model_config"
    }
    for marker in ("_branched_from", "_delegate_from", "_reset_from"):
        slim[marker] = get_text(as_dict(config), marker)
    return slim


def _to_text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Lineage:
    """Which sessions continue each other, and which belong to another one."""

    def __init__(self, rows: dict[str, _Row]) -> None:
        self._rows = rows
        children: dict[str, list[str]] = {}
        for id_, row in rows.items():
            parent = as_text(row["parent_session_id"])
            if parent in rows and self._continues(row, parent):
                children.setdefault(parent, []).append(id_)
        self._next = {
            parent: max(found, key=self._rank) for parent, found in children.items()
        }
        self._root: dict[str, str] = {}
        continued = set(self._next.values())
        for id_ in rows:
            if id_ not in continued:
                self._follow(id_)
        for id_ in rows:
            # A chain without a beginning is a cycle. It begins anywhere.
            if id_ not in self._root:
                self._follow(id_)

    def _follow(self, root: str) -> None:
        id_: str | None = root
        while id_ is not None and id_ not in self._root:
            self._root[id_] = root
            id_ = self._next.get(id_)

    def _continues(self, row: _Row, parent: str) -> bool:
        if self._rows[parent]["end_reason"] != "compression" or row["source"] == "tool":
            return False
        # A continuation inherits the marks of its parent, so a mark counts only if it names the parent.
        return parent not in (
            row["_branched_from"],
            row["_delegate_from"],
            row["_reset_from"],
        )

    def _rank(self, id_: str) -> tuple[int, int, str]:
        row = self._rows[id_]
        kind = (
            2
            if row["end_reason"] == "compression"
            else 1
            if row["ended_at"] is None
            else 0
        )
        return kind, read_time(row["started_at"]) or 0, id_

    def chain(self, root: str) -> list[str]:
        chain: list[str] = []
        id_: str | None = root
        while id_ is not None and self._root[id_] == root and id_ not in chain[-1:]:
            chain.append(id_)
            id_ = self._next.get(id_)
            if id_ == root:
                break
        return chain

    def owner(self, root: str) -> tuple[str | None, Any]:
        """Return the conversation to which one belongs, and how."""
        row = self._rows[root]
        branched, delegated = row["_branched_from"], row["_delegate_from"]
        above = as_text(row["parent_session_id"])
        if branched or delegated:
            relation = "branch" if branched else "delegate"
            owner = branched or delegated
        elif (
            above not in self._rows or row["_reset_from"] or self._is_reset(row, above)
        ):
            return None, ""
        else:
            owner = above
            relation = self._old_relation(above)
        owner = self._root.get(owner, owner)
        return (owner, relation) if owner != root else (None, "")

    def _is_reset(self, row: _Row, above: str) -> bool:
        parent = self._rows[above]
        key = as_text(row["session_key"])
        return (
            as_text(parent["end_reason"]) in _RESET_REASONS
            and key != ""
            and key == parent["session_key"]
        )

    def _old_relation(self, above: str) -> str:
        """Older versions have no marks: a branch ends its parent as `branched`, and all other children are sub-agents."""
        reason = self._rows[above]["end_reason"]
        return "branch" if reason in ("branched", "compression") else "delegate"

    def roots(self) -> list[str]:
        """Return the first session of each chain, the oldest first, parents before the others."""
        found = sorted(
            set(self._root.values()),
            key=lambda id_: (read_time(self._rows[id_]["started_at"]) or 0, id_),
        )
        ordered: dict[str, None] = {}
        for root in found:
            path = []
            id_: str | None = root
            while id_ in self._rows and id_ not in ordered and id_ not in path:
                path.append(id_)
                id_ = self.owner(id_)[0]
            ordered.update(dict.fromkeys(reversed(path)))
        return list(ordered)


# -- a conversation ----------------------------------------------------------------------


class _Entry(NamedTuple):
    """A message of the path."""

    id: str
    key: tuple[Any, ...]
    """What a copy of the message has, too."""


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
        return Draft(
            id=root,
            nodes=nodes,
            title=self._title(),
            at=read_time(first["started_at"]),
            archived=bool(last["archived"]) or bool(last["hidden"]),
            pinned=bool(last["pinned"]),
            parent=parent,
            relation=relation,
            extra=keep(
                first,
                "source",
                "chat_type",
                "display_name",
                "profile_name",
                "cwd",
                "git_branch",
            )
            | ({"reset_from": first["_reset_from"]} if first["_reset_from"] else {}),
        )

    def _title(self) -> str:
        titles = [as_text(segment.row["title"]).strip() for segment in self._chain]
        titles = [title for title in titles if title]
        if not titles:
            return ""
        # Hermes numbers the titles of the sessions of a chain.
        same = re.fullmatch(re.escape(titles[0]) + r" #\d+", titles[-1])
        return titles[0] if same else titles[-1]

    def _read(self, segment: _Segment, *, is_child: bool) -> None:
        rows = [row for row in segment.messages() if self._is_shown(row)]
        model = as_text(segment.row["model"])
        overlap = 0
        # Rows before the next summary may be copies of the first messages.
        began = len(self._nodes)
        for index, row in enumerate(rows):
            pieces = self._pieces(row)
            text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
            if self._is_summary(row, text):
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
        if "active" in row and not row["active"] and not row.get("compacted"):
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
        role: Any = row["role"]
        if role == "assistant":
            calls = self._calls(row)
            pieces = [*self._reasoning(row), *pieces, *calls]
        node = Node(
            id=self._id_of(row),
            parent=self._nodes[-1].id if self._nodes else None,
            role=role,
            parts=tuple(pieces),
            at=read_time(row.get("timestamp")),
            model=model if role == "assistant" else "",
            finish=get_text(row, "finish_reason") if role == "assistant" else "",
            call=get_text(row, "tool_call_id") if role == "tool" else "",
            name=get_text(row, "tool_name") if role == "tool" else "",
            extra=keep(
                row,
                "platform_message_id",
                "observed",
                "effect_disposition",
                "display_kind",
            ),
        )
        self._nodes.append(node)

    def _id_of(self, row: _Row, part: str = "") -> str:
        """Return the id of a row. A repeated id gets a number, so that the rows stay a path."""
        id_ = f"{_id_of(row)}{part}"
        self._ids[id_] += 1
        return id_ if self._ids[id_] == 1 else f"{id_}#{self._ids[id_]}"

    # -- compactions

    def _is_summary(self, row: _Row, text: str) -> bool:
        if row.get("role") not in ("user", "assistant", "system"):
            return False
        _, _, merged = text.partition(_PRIOR_END)
        return bool(row.get("_compressed_summary")) or any(
            _SUMMARY.match(part.lstrip()) for part in (text, merged)
        )

    def _add_summary(
        self, row: _Row, pieces: list[Piece], text: str, after: list[_Row]
    ) -> int:
        """Append a summary, and return how many of the rows after it are copies."""
        before, mark, summary = text.partition(_PRIOR_END)
        if not mark:
            before, summary = "", text
        summary = summary.lstrip()
        begin = _SUMMARY.match(summary)
        end = _SUMMARY_END.search(summary)
        rest = summary[end.end() :] if end else ""
        summary = summary[: end.start()] if end else summary
        if begin is not None:
            summary = summary[begin.end() :] or summary
        self._add_part(row, before.strip().removeprefix(_PRIOR).strip(), "prior")
        count = self._count_copies(after)
        kept_from = self._path[-count].id if count else None
        files = [piece for piece in pieces if isinstance(piece, Attached)]
        self._nodes.append(
            Node(
                id=self._id_of(row),
                parent=self._nodes[-1].id if self._nodes else None,
                role="summary",
                parts=(*text_parts(summary.strip()), *files),
                at=read_time(row.get("timestamp")),
                extra={"kept_from": kept_from} if kept_from else {},
            )
        )
        if row.get("role") == "user":
            self._add_part(row, rest.strip(), "rest")
        return count

    def _add_part(self, row: _Row, text: str, name: str) -> None:
        """Append a message that Hermes joined with the summary, unless it is a copy."""
        key = self._key({"role": row.get("role"), "content": text})
        if not text or any(str(entry.key[1]).strip() == text for entry in self._path):
            return
        node = Node(
            id=self._id_of(row, f":{name}"),
            parent=self._nodes[-1].id if self._nodes else None,
            role=row["role"],
            parts=(Text(text),),
            at=read_time(row.get("timestamp")),
        )
        self._nodes.append(node)
        self._path.append(_Entry(node.id, key))

    def _drop_copies_of_beginning(self, began: int, at: int | None) -> None:
        """Drop the rows before a summary if they repeat the first messages, which a compaction keeps, too.

        In place, the copies have the time of the summary, or their own time, by which they are known already.
        """
        new = self._nodes[began:]
        if at is not None:
            new = [
                node
                for node in new
                if node.at is not None and abs(node.at - at) < _COPY_US
            ]
        for count in range(min(len(new), len(self._path) // 2), 0, -1):
            first = [entry.key for entry in self._path[:count]]
            if first == [entry.key for entry in self._path[-count:]]:
                del self._nodes[-count:], self._path[-count:]
                return

    def _count_copies(self, after: list[_Row]) -> int:
        """Return how many of the rows after a summary repeat the last messages before it."""
        keys = [self._key(row) for row in after[:_OVERLAP_MAX]]
        path = [entry.key for entry in self._path[-_OVERLAP_MAX:]]
        for count in range(min(len(keys), len(path)), 0, -1):
            if path[-count] == keys[0] and path[-count:] == keys[:count]:
                return count
        return 0

    def _note_kept(self, id_: str) -> None:
        """A copy directly behind a summary says from where the compaction kept the messages."""
        last = self._nodes[-1]
        if last.role == "summary" and "kept_from" not in last.extra:
            self._nodes[-1] = msgspec.structs.replace(last, extra={"kept_from": id_})

    def _key(self, row: _Row) -> tuple[Any, ...]:
        role = row.get("role")
        if role == "tool" and (call := get_text(row, "tool_call_id")):
            return ("tool", call)
        calls = tuple(get_text(as_dict(call), "id") for call in self._listed_calls(row))
        content = row.get("content")
        return (role, content if isinstance(content, str) else to_json(content), calls)

    def _exact_key(self, row: _Row, key: tuple[Any, ...]) -> tuple[Any, ...]:
        at = row.get("timestamp")
        content = row.get("content")
        # Without a time, a second "yes" is no copy of the first one.
        place = (
            at
            if isinstance(at, int | float)
            else ("row", _id_of(row), len(self._nodes))
        )
        return (
            *key,
            content if isinstance(content, str) else to_json(content),
            place,
        )

    # -- parts

    def _pieces(self, row: _Row) -> list[Piece]:
        content = _to_text(row.get("content"))
        if isinstance(content, str) and content.startswith(_JSON_CONTENT):
            try:
                content = decode(
                    content.removeprefix(_JSON_CONTENT).encode("utf-8", "surrogatepass")
                )
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
        if isinstance(part.get("text"), str) and kind in (
            "",
            "text",
            "input_text",
            "output_text",
        ):
            return text_parts(part["text"])
        url = part.get("image_url")
        url = get_text(as_dict(url), "url") or as_text(url)
        if kind in ("image_url", "input_image") and url:
            attached = attach_data_url("image", url)
            return [attached or Attached(url[:_URL_CHARS_MAX], _read_nothing)]
        self._left_out[f"unknown content ({kind or 'no type':.40})"] += 1
        return [Text(to_json(part))] if part else []

    def _listed_calls(self, row: _Row) -> list[Any]:
        calls = _to_text(row.get("tool_calls"))
        if isinstance(calls, str) and calls:
            try:
                calls = decode(calls.encode("utf-8", "surrogatepass"))
            except ValueError:
                return []
        return as_list(calls)

    def _calls(self, row: _Row) -> Iterator[ToolCall]:
        for number, listed in enumerate(self._listed_calls(row)):
            call = as_dict(listed)
            function = get_dict(call, "function") or call
            name = get_text(function, "name")
            id_ = get_text(call, "id", "call_id")
            arguments = function.get("arguments")
            if arguments is None:
                arguments = {}
            text = arguments if isinstance(arguments, str) else to_json(arguments)
            yield ToolCall(
                id_ or f"{_id_of(row)}:{number}", name or "unknown", text or "{}"
            )

    def _reasoning(self, row: _Row) -> list[Reasoning]:
        details = _to_text(row.get("reasoning_details"))
        if isinstance(details, str) and details:
            try:
                details = decode(details.encode("utf-8", "surrogatepass"))
            except ValueError:
                details = None
        found = []
        for listed in as_list(details):
            detail = as_dict(listed)
            text = next(
                (
                    detail[key]
                    for key in ("text", "thinking", "summary")
                    if get_text(detail, key)
                ),
                "",
            )
            if text:
                found.append(Reasoning(text, get_text(detail, "signature") or None))
            else:
                self._left_out["encrypted reasoning"] += 1
        text = get_text(row, "reasoning_content", "reasoning")
        return found or ([Reasoning(text)] if text else [])


def _read_nothing() -> None:
    return None


def _id_of(row: _Row) -> str:
    id_ = row.get("id")
    return (
        str(id_)
        if isinstance(id_, int | str) and not isinstance(id_, bool)
        else "message"
    )
