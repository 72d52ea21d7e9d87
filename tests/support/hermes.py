"""The home folder of Hermes Agent in two versions of its schema, with invented conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

import apsw

Schema = Literal[22, 30]

_SESSIONS: Final = {
    22: """id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, session_key TEXT, chat_id TEXT, chat_type TEXT, thread_id TEXT,
        display_name TEXT, origin_json TEXT, model TEXT, model_config TEXT, system_prompt TEXT, parent_session_id TEXT,
        started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, message_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
        cwd TEXT, title TEXT, archived INTEGER NOT NULL DEFAULT 0, rewind_count INTEGER NOT NULL DEFAULT 0""",
    30: """id TEXT PRIMARY KEY, source TEXT NOT NULL, created_source TEXT, user_id TEXT, session_key TEXT, chat_id TEXT, chat_type TEXT,
        thread_id TEXT, display_name TEXT, origin_json TEXT, model TEXT, model_config TEXT, system_prompt TEXT,
        system_prompt_hash TEXT, tool_names TEXT, parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT,
        message_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0, cwd TEXT, git_branch TEXT, git_repo_root TEXT, title TEXT,
        title_source TEXT, last_activity_at REAL, profile_name TEXT, rewind_count INTEGER NOT NULL DEFAULT 0,
        archived INTEGER NOT NULL DEFAULT 0, pinned INTEGER NOT NULL DEFAULT 0, hidden INTEGER NOT NULL DEFAULT 0""",
}
_MESSAGES: Final = {
    22: """id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
        tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, token_count INTEGER, finish_reason TEXT,
        reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT, codex_reasoning_items TEXT, platform_message_id TEXT,
        observed INTEGER DEFAULT 0, active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0""",
    30: """id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
        tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, effect_disposition TEXT, timestamp REAL NOT NULL, token_count INTEGER,
        finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT, codex_reasoning_items TEXT,
        codex_message_items TEXT, platform_message_id TEXT, observed INTEGER DEFAULT 0, _compressed_summary INTEGER NOT NULL DEFAULT 0,
        active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0, api_content TEXT, display_kind TEXT,
        display_metadata TEXT, display_identity BLOB, display_order INTEGER, message_uid TEXT""",
}
SUMMARY: Final = "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted into the summary below. Do NOT answer questions.\n"
SUMMARY_END: Final = "\n\n--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---"
PRIOR: Final = "[PRIOR CONTEXT — for reference only; not a new message]\n"
PRIOR_END: Final = "\n[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]\n"
DOT: Final = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
NOON: Final = 1_750_000_000.0


class HermesHome:
    """A home folder. `session` and `say` write rows as Hermes does."""

    def __init__(self, folder: Path, schema: Schema = 30, *, log: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = folder / "state.db"
        self.connection = apsw.Connection(str(self.database))
        self.connection.pragma("journal_mode", "wal" if log else "delete")
        self.connection.pragma("synchronous", "off")
        self.connection.execute(
            f"CREATE TABLE sessions ({_SESSIONS[schema]}); CREATE TABLE messages ({_MESSAGES[schema]});"
            "CREATE INDEX idx_messages_session ON messages(session_id, timestamp);"
            "CREATE TABLE schema_version (version INTEGER NOT NULL);"
            "CREATE TABLE system_prompts (hash TEXT PRIMARY KEY, prompt TEXT NOT NULL)"
        )
        self.connection.execute("INSERT INTO schema_version VALUES (?)", (schema,))
        self._time = NOON

    def session(self, id_: str, **values: Any) -> str:
        """Add a session."""
        config = {key: values.pop(key) for key in list(values) if key.startswith("_")}
        self._time += 60
        row = {
            "id": id_,
            "source": "cli",
            "model": "hermes-4",
            "started_at": self._time,
        }
        self._insert("sessions", row | {"model_config": json.dumps(config)} | values)
        return id_

    def say(self, session: str, role: str, content: Any, **values: Any) -> int:
        """Add a message and return its id."""
        self._time += 1
        if isinstance(content, list | dict):
            content = "\0json:" + json.dumps(content)
        if "tool_calls" in values:
            values["tool_calls"] = json.dumps(values["tool_calls"])
        row = {
            "session_id": session,
            "role": role,
            "content": content,
            "timestamp": self._time,
        }
        self._insert("messages", row | values)
        return self.connection.last_insert_rowid()

    def copy(self, message: int, session: str | None = None) -> int:
        """Copy a message as a compaction does."""
        columns = [
            str(name)
            for (name,) in self.connection.execute(
                "SELECT name FROM pragma_table_info('messages')"
            )
            if name not in ("id", "session_id", "active", "compacted")
        ]
        names = ", ".join(columns)
        self.connection.execute(
            f"INSERT INTO messages (session_id, active, compacted, {names})"
            f" SELECT coalesce(?, session_id), 1, 0, {names} FROM messages WHERE id = ?",
            (session, message),
        )
        return self.connection.last_insert_rowid()

    def archive(self, session: str) -> None:
        """Archive the rows of a session, as a compaction in place does first."""
        self.connection.execute(
            "UPDATE messages SET active = 0, compacted = 1 WHERE session_id = ? AND active = 1",
            (session,),
        )

    def undo(self, *messages: int) -> None:
        for message in messages:
            self.connection.execute(
                "UPDATE messages SET active = 0 WHERE id = ?", (message,)
            )

    def end(self, session: str, reason: str) -> None:
        self._time += 1
        self.connection.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?",
            (self._time, reason, session),
        )

    def export(self, session: str) -> dict[str, Any]:
        """Return a session as `hermes sessions export` writes it."""
        [row] = self._rows("sessions", "id", session)
        messages = self._rows("messages", "session_id", session)
        for message in messages:
            message.pop("display_identity", None)
            if str(message["content"]).startswith("\0json:"):
                message["content"] = json.loads(message["content"][6:])
            if message["tool_calls"]:
                message["tool_calls"] = json.loads(message["tool_calls"])
        return row | {"messages": [one for one in messages if one["active"]]}

    def close(self) -> None:
        self.connection.close()

    def _rows(self, table: str, column: str, value: str) -> list[dict[str, Any]]:
        cursor = self.connection.execute(
            f"SELECT * FROM {table} WHERE {column} = ? ORDER BY rowid", (value,)
        )
        found = []
        for values in cursor:
            names = [name for name, *_ in cursor.get_description()]
            found.append(dict(zip(names, values, strict=True)))
        return found

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        self.connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values())
        )


def call(id_: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call in the shape of OpenAI."""
    return {
        "id": id_,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def fill(home: HermesHome) -> dict[str, list[int]]:
    """Write conversations of every kind. Returns the ids of their messages."""
    ids: dict[str, list[int]] = {}
    chat = home.session("20250615_chat", title="Bread 🍞", archived=1, cwd="/home/ada")
    ids["chat"] = [
        home.say(chat, "session_meta", '{"tools": []}'),
        home.say(chat, "user", "How long does the dough rest?"),
        home.say(chat, "assistant", "I look it up.", reasoning="A recipe.", finish_reason="tool_calls",
                 tool_calls=[call("call_1", "read_file", path="bread.md"), call("call_2", "web_search", query="dough")],
                 reasoning_details=json.dumps([{"type": "thinking", "thinking": "A recipe.", "signature": "c2ln"}])),
        home.say(chat, "tool", "Rest: 2 h", tool_call_id="call_1", tool_name="read_file"),
        home.say(chat, "tool", None, tool_call_id="call_2", tool_name="web_search"),
        home.say(chat, "assistant", "Two hours.", finish_reason="stop"),
        home.say(chat, "user", "And a week?"),
        home.say(chat, "assistant", "No."),
        home.say(chat, "user", [{"type": "text", "text": "Is this ready?"}, {"type": "image_url", "image_url": {"url": DOT}},
                                {"type": "image_url", "image_url": {"url": "https://bread.example/a.jpg"}}]),
        home.say(chat, "assistant", "Yes."),
        home.say(chat, "user", "Review the conversation above and update the skill library. Be active."),
        home.say(chat, "assistant", "", tool_calls=[call("call_9", "skill_manage", action="create")]),
        home.say(chat, "tool", "done", tool_call_id="call_9", tool_name="skill_manage"),
        home.say(chat, "assistant", "[skill_manage]"),
        home.say(chat, "user", "Thanks."),
    ]  # fmt: skip
    home.undo(*ids["chat"][6:8])
    branch = home.session(
        "20250615_branch", parent_session_id=chat, _branched_from=chat
    )
    ids["branch"] = [home.copy(id_, branch) for id_ in ids["chat"][1:6]]
    ids["branch"].append(home.say(branch, "user", "With rye?"))
    helper = home.session(
        "20250615_helper",
        parent_session_id=chat,
        _delegate_from=chat,
        source="subagent",
    )
    ids["helper"] = [
        home.say(helper, "user", "Compare flours."),
        home.say(helper, "assistant", "Rye is darker."),
    ]
    return ids
