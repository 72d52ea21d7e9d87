"""The parts of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import (
    appending,
    backing,
    calling,
    chats,
    costs,
    flat,
    peer,
    probe,
    recall,
    searching,
    starting,
    storage,
    streaming,
    turns,
    waking,
    web,
)
from bench.lab import Lab
from bench.measure import Row

__all__ = ["PARTS"]

PARTS: dict[str, tuple[str, Callable[[Lab], Iterator[Row]]]] = {
    "append": ("One append, nobody waiting", appending.alone),
    "callers": ("Many callers at once", appending.concurrent),
    "streams": ("Answers that stream", streaming.streams),
    "flat": ("Large stores beside small ones", flat.flat),
    "search": ("Search", searching.search),
    "peer": ("Beside a peer", peer.peer),
    "turns": ("A turn of the agent", turns.turns),
    "costs": ("What a turn asks of the store", costs.costs),
    "tools": ("A call of a tool", calling.tools),
    "probe": ("What a compaction keeps", probe.probe),
    "recall": ("What is recalled", recall.recall),
    "waking": ("First words and restarts", waking.waking),
    "web": ("The page", web.web),
    "chats": ("Chat apps", chats.chats),
    "backups": ("Backups", backing.backups),
    "bytes": ("Bytes stored for each byte of text", storage.bytes_stored),
    "import": ("Time to import", storage.import_time),
    "start": ("Start of the command", starting.starting),
    "memory": ("Memory while a store grows", storage.memory),
}
