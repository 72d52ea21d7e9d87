"""The format `tenax`: everything that is stored, with the proof, in a single file."""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import tenax
from tenax.errors import InvalidInput, StoreDamaged
from tenax.events import (
    ConversationOpened,
    MessageUser,
    ModelRequested,
    ReplyDelta,
    RunStarted,
)
from tenax.export import export_several, lossless
from tenax.export.lines import Blob, Conversation, End, Event, Header, Line, decode_line
from tenax.export.selection import Selection, select
from tenax.journal import Journal, open_snapshot
from tenax.journal.copying import Snapshot
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS
from tenax.journal.tables import TABLES
from tenax.parts import File
from tenax.testing import memory
from tests.archive.conftest import NewUrl
from tests.contract.engine.base import answer, begin, say

MIB = 1024 * 1024
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "export.md"
EVENTS, PARTIALS, CONVERSATIONS = (
    next(table for table in TABLES if table.name == name)
    for name in ("events", "partials", "conversations")
)


@pytest.fixture
def journal(world_url: str) -> Iterator[Journal]:
    with tenax.open(world_url, user="ada") as journal:
        yield journal


def exported(journal: Journal, url: str, *names: str) -> list[Line]:
    chosen = names or select(journal, Selection())
    data = b"".join(export_several(journal, url, list(chosen), "tenax"))
    return [decode_line(line) for line in data.splitlines()]


def stored(url: str, owner: str) -> dict[str, list[dict[str, Any]]]:
    """All events and partials of a user by conversation, as their rows have them."""
    found: dict[str, list[dict[str, Any]]] = {}
    with contextlib.closing(open_snapshot(url)) as snapshot:
        names = {}
        for row in snapshot.rows(CONVERSATIONS):
            listed = dict(zip(snapshot.columns("conversations"), row, strict=True))
            if listed["owner"] == owner:
                names[listed["num"]] = listed["id"]
        for table in (EVENTS, PARTIALS):
            columns = snapshot.columns(table.name)
            for row in snapshot.rows(table):
                values = dict(zip(columns, row, strict=True))
                name = names.get(values["place"] >> SEQ_BITS)
                if name is not None:
                    found.setdefault(name, []).append(values)
    for rows in found.values():
        rows.sort(key=lambda row: int(row["place"]))
    return found


def rebuilt(events: list[Event]) -> list[dict[str, Any]]:
    """The rows that an import would store, without what it derives."""
    return [
        {
            "seq": event.seq,
            "kind": event.kind if event.code == 0 else event.code,
            "at": event.at,
            "run": event.run,
            "append_id": _bytes(event.append),
            "salt": _bytes(event.salt),
            "body_hash": _bytes(event.inner),
            "digest": _bytes(event.digest),
            "body": None if event.body is None else event.body.encode(),
        }
        for event in events
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def test_every_stored_event_and_blob_is_in_the_file(
    journal: Journal, world_url: str
) -> None:
    """Facts and partials, with holes, salts, append ids and erased bodies; nothing of another user."""
    lines = exported(journal, world_url)
    header, end = lines[0], lines[-1]
    assert isinstance(header, Header)
    assert header.version == 1
    found: dict[str, list[Event]] = {}
    blobs: dict[str, bytes] = {}
    for line in lines:
        match line:
            case Conversation(id=name, user=user):
                assert user == "ada"
                found[name] = []
            case Event():
                found[name].append(line)
            case Blob():
                assert (line.part == 0) == (line.name not in blobs)
                blobs[line.name] = blobs.get(line.name, b"") + line.data
    expected = stored(world_url, "ada")
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        wanted = [
            {
                "seq": row["place"] & ALL_SEQS,
                "kind": row.get("kind", row.get("code")),
                "at": row["at"],
                **{
                    column: _plain(row.get(column))
                    for column in ("run", "append_id", "salt", "body_hash")
                },
                "digest": _plain(row.get("digest")),
                "body": _plain(row["body"]),
            }
            for row in rows
        ]
        assert rebuilt(found[name]) == wanted
    erased = [event for events in found.values() for event in events if not event.body]
    waiting = [event.waiting for event in erased if event.kind == "message.user"]
    assert 1 in waiting
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in blobs.items())
    assert hashlib.sha256(b"picture" * 200_000).hexdigest() in blobs
    assert isinstance(end, End)
    assert end.conversations == len(found)
    assert end.events == sum(map(len, found.values()))
    authors = {
        line.id: line.authors for line in lines if isinstance(line, Conversation)
    }
    assert "eve" in authors["c_old"]


def test_a_reader_without_tenax_proves_the_file(
    journal: Journal, world_url: str, tmp_path: Path
) -> None:
    """With the lines on the page and nothing else. A changed byte and a missing line are noticed."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script, file = tmp_path / "prove.py", tmp_path / "out.jsonl"
    script.write_text(code)
    names = select(journal, Selection())
    data = b"".join(export_several(journal, world_url, names, "tenax"))

    def prove(content: bytes) -> subprocess.CompletedProcess[str]:
        file.write_bytes(content)
        return subprocess.run(
            [sys.executable, "-I", script, file],
            capture_output=True,
            text=True,
            check=False,
        )

    done = prove(data)
    assert (done.returncode, done.stderr) == (0, "")
    lines = data.splitlines(keepends=True)
    assert prove(b"".join(lines[:-1])).returncode != 0
    changed = data.replace(b"the first question", b"the first Question")
    assert changed != data
    assert prove(changed).returncode != 0
    middle = next(n for n, line in enumerate(lines) if b'"salt"' in line)
    assert prove(b"".join(lines[:middle] + lines[middle + 1 :])).returncode != 0


def test_a_sub_agent_belongs_to_its_conversation(
    journal: Journal, world_url: str
) -> None:
    """Also the sub-agent of a sub-agent; each conversation is in the file once."""
    name = begin(journal, say("Delegate this"))
    parent = f"s-{name}"
    for child in ("c-sub", "c-subsub"):
        opened = ConversationOpened(
            "ada", f"s-{child}", source="delegate", parent=parent
        )
        journal.append(child, [opened, say("Do it")])
        parent = f"s-{child}"
    lines = exported(journal, world_url, name, "c-sub")
    found = [line.id for line in lines if isinstance(line, Conversation)]
    assert found == [name, "c-sub", "c-subsub"]
    assert name not in select(journal, Selection(words="nothing"))
    assert select(journal, Selection(words='"do it"')) == [name]


def test_one_moment_of_a_conversation_is_exported(
    journal: Journal, world_url: str
) -> None:
    """An append and a pruning meanwhile change nothing. A conversation that was deleted before its turn is left out."""
    first = begin(journal, say("Before", ask=True))
    asked = [RunStarted([2]), ModelRequested(2, "", "m", 1.0, [2])]
    journal.append(first, asked, run="r")
    journal.append(first, [ReplyDelta(4, 0, "An")])
    second = begin(journal, say("Second"))

    def disturbed() -> Snapshot:
        journal.delete(second)
        snapshot = open_snapshot(world_url)
        journal.append(first, [answer("An answer", request=4)], run="r")
        journal.prune(first)
        return snapshot

    header = Header(1, "test", "")
    pieces = lossless.write(journal, disturbed, [first, second], header)
    seen = [decode_line(line) for line in b"".join(pieces).splitlines()]
    found = [line for line in seen if isinstance(line, Event)]
    assert [event.seq for event in found] == [1, 2, 3, 4, 5]
    assert found[4].code == ReplyDelta.code
    assert seen[-1] == End(1, 5)


def test_a_slow_download_keeps_no_snapshot(journal: Journal, world_url: str) -> None:
    """Otherwise an erasure would wait for the download, and all writers with it."""
    name = begin(journal, *(say("x" * 100_000) for _ in range(100)))
    pieces = export_several(journal, world_url, [name], "tenax")
    next(pieces)
    assert journal.erase(name, [2], by="ada").scrubbed
    assert b'"end"' in b"".join(pieces)


def test_memory_stays_flat(journal: Journal, world_url: str) -> None:
    """Neither a long conversation nor a large attachment is held in memory."""
    blob = journal.put_blob(b"\0" * 24 * MIB)
    name = begin(journal, MessageUser([File(blob, "image/png")]))
    for _ in range(12):
        journal.append(name, [say("x" * 10_000) for _ in range(100)])
    size = 0
    tracemalloc.start()
    try:
        for piece in export_several(journal, world_url, [name], "tenax"):
            size += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 40 * MIB
    assert peak < 22 * MIB


def test_a_damaged_event_is_not_exported(new_url: NewUrl) -> None:
    url = new_url("sqlite")
    with tenax.open(url, user="ada") as journal:
        name = begin(journal, say("Something"), say("Else"))
    store = apsw.Connection(url.removeprefix("sqlite:///"))
    store.execute("update events set body = cast(replace(cast(body as text), 'Else', 'Nope') as blob)")  # fmt: skip
    store.close()
    with tenax.open(url, user="ada") as journal:
        pieces = export_several(journal, url, [name], "tenax")
        with pytest.raises(StoreDamaged, match=f"Event 3 of conversation {name}"):
            list(pieces)


def test_a_store_in_memory_has_no_such_export() -> None:
    with (
        memory() as journal,
        pytest.raises(InvalidInput, match="A store in memory"),
    ):
        list(export_several(journal, "memory:", [begin(journal)], "tenax"))
