"""The tables of a store, for a backup and for a move to another store.

`TABLES` has every table except those that belong to a running store: its own row, leases, processes, and the search
index, which is built anew. A test compares the list with the schema.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NOT_COPIED", "TABLES", "Table"]


class Table(NamedTuple):
    """A table, and how to read it."""

    name: str
    order: tuple[str, ...]
    """The columns of the primary key, in the order of reading."""
    conversation: str = ""
    """The SQL expression for the number of the conversation; empty for a table without a conversation. The rows of such a
    table are read conversation by conversation."""
    where: str = ""
    """The SQL condition for the rows to copy; empty for all rows."""


_CONVERSATION: Final = "conversation"
_PLACE: Final = "place >> 32"

TABLES: Final = (
    Table("conversations", ("num",), "num"),
    Table("heads", (_CONVERSATION,), _CONVERSATION),
    Table("events", ("place",), _PLACE),
    Table("partials", ("place",), _PLACE),
    Table("stretches", (_CONVERSATION, "num"), _CONVERSATION),
    Table("runs", (_CONVERSATION, "run"), _CONVERSATION),
    Table("spent", (_CONVERSATION, "day", "model"), _CONVERSATION),
    Table("received", ("place", "owner", "source", "id"), _PLACE),
    Table(
        "cursors",
        (_CONVERSATION, "reader"),
        _CONVERSATION,
        where="reader <> 'search'",
    ),
    Table("mentions", ("place", "owner", "hash"), _PLACE),
    Table("authors", (_CONVERSATION, "author"), _CONVERSATION),
    Table("letters", (_CONVERSATION, "reader", "seq"), _CONVERSATION),
    Table("read_marks", (_CONVERSATION, "owner"), _CONVERSATION),
    Table("routes", (_CONVERSATION, "account", "chat", "thread"), _CONVERSATION),
    Table("route_cursors", (_CONVERSATION, "account", "chat", "thread"), _CONVERSATION),
    Table("tombstones", ("owner", "id")),
    Table("readers", ("name",), where="name <> 'search'"),
    Table("memories", ("owner",)),
    Table("facts", ("owner", "id", "version")),
    Table("schedules", ("owner", "id")),
    Table("devices", ("id",)),
    Table("preferences", ("owner", "name")),
    Table("personal", ("owner",)),
    Table("projects", ("owner", "id")),
    Table("deliveries", ("account", "chat", "thread", "unit", "piece")),
    Table("channel_values", ("account", "name")),
    Table("chats", ("account", "chat", "thread")),
    Table("channel_people", ("account", "person")),
    Table("pairings", ("account", "person")),
    Table("observed", ("account", "chat", "thread", "message")),
    Table("late_files", ("account", "id")),
    Table("blobs", ("owner", "hash")),
    Table("blob_chunks", ("owner", "hash", "n")),
)

NOT_COPIED: Final = frozenset({"store", "leases", "instances", "pulse", "search_docs"})
"""The tables that belong to a running store."""
