"""The least that one append can cost here: its rows by bare statements, and the same in the shortest Python.

Neither can refuse anything, share a commit, keep a reader informed or come back after an error. They are the ground
that `append-sqlite` stands on.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import apsw
import msgspec

from bench.lab import Lab, talk
from bench.measure import Row, compare, seconds, stated, timed
from tenax.clock import Ids, SystemClock
from tenax.events import Event, encode
from tenax.journal.base import Recorded
from tenax.journal.plan import chain, inner_hash
from tenax.journal.row_index import HeadState
from tenax.journal.row_key import SEQ_BITS
from tenax.journal.schema import statements
from tenax.journal.store import head_row

__all__ = ["floor"]

_SQL = statements("sqlite")
_CONVERSATIONS = 20
_Way = Callable[
    [apsw.Connection, Path, dict[str, HeadState], Event], Callable[[str], object]
]


def floor(lab: Lab, event: Event) -> Iterator[Row]:
    """Both, beside the bare insert and commit."""
    yield _beside_bare(
        lab, event, "rows", "the two rows of that append, by bare statements", _rows
    )
    yield _beside_bare(
        lab,
        event,
        "least",
        "that append in one function that can do nothing else",
        _least,
    )


def _beside_bare(lab: Lab, event: Event, key: str, what: str, way: _Way) -> Row:
    label, body = f"append-{key}", encode(event)
    with lab.sqlite.open(label) as journal:
        names = talk(journal, _CONVERSATIONS)
    path = lab.sqlite.path(label)
    connection = _connected(path)
    append, turn = (
        way(connection, path, {name: _head(connection, name) for name in names}, event),
        cycle(names),
    )
    with lab.sqlite.bare(label) as bare:
        warm = lab.size(2000, quick=20)
        lab.sqlite.warm(label, lambda: append(next(turn)), warm)
        lab.sqlite.warm(f"{label}-bare", lambda: bare.insert(body), warm)
        count = lab.size(100, quick=5)
        found = compare(
            lab.size(50, quick=2),
            lambda: median(timed(count, lambda: append(next(turn)))),
            lambda: median(timed(count, lambda: bare.insert(body))),
        )
    connection.close()
    return stated(
        f"append-sqlite-{key}",
        f"SQLite: {what}",
        f"{found.ratio:.2f} x",
        found.said(seconds),
    )


def _connected(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "full")
    connection.pragma("secure_delete", "on")
    return connection


def _head(connection: apsw.Connection, name: str) -> HeadState:
    named: list[Any] = connection.execute(
        "select num, owner from conversations where id = ?", (name,)
    ).fetchall()
    num, owner = named[0]
    rows: list[Any] = connection.execute(_SQL["head_of"], (num,)).fetchall()
    return HeadState(num, name, owner, *rows[0][4:])


def _rows(
    connection: apsw.Connection, _path: Path, heads: dict[str, HeadState], event: Event
) -> Callable[[str], object]:
    execute, body, chance = connection.cursor().execute, encode(event), os.urandom(32)

    def append(name: str) -> None:
        head = heads[name]
        head.head += 1
        row_key = head.num << SEQ_BITS | head.head
        execute("begin immediate")
        execute(_SQL["put_event"], (row_key, event.kind, head.listed_at, None, head.head, 1, 0, 0, chance[:16], chance[16:],
                                    chance, body))  # fmt: skip
        execute(_SQL["put_head"], head_row(head))
        execute("commit")

    return append


def _least(
    connection: apsw.Connection, path: Path, heads: dict[str, HeadState], event: Event
) -> Callable[[str], object]:
    execute, changed = connection.cursor().execute, connection.data_version
    lock, queue = threading.Lock(), os.open(f"{path}-lock", os.O_RDWR)
    clock = SystemClock()
    ids, file, found = Ids(clock), str(path), path.stat()

    def append(name: str) -> list[Recorded]:
        body, append_id = encode(event), ids.append()
        with lock:
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert os.stat(file).st_ino == found.st_ino  # noqa: PTH116  (the quick way, as in the store)
            execute("begin immediate")
            changed()
            head = msgspec.structs.replace(heads[name])
            seq, at, salt = head.head + 1, clock.now_us(), ids.salt()
            head.head = head.facts = head.revision = seq
            head.messages += 1
            head.stretch_messages += 1
            head.digest = chain(
                head.digest, name, seq, event.kind, at, None, inner_hash(salt, body)
            )
            row_key = head.num << SEQ_BITS | seq
            execute(
                _SQL["put_event"],
                (
                    row_key,
                    event.kind,
                    at,
                    None,
                    seq,
                    1,
                    0,
                    0,
                    append_id,
                    salt,
                    head.digest,
                    body,
                ),
            )
            execute(_SQL["put_head"], head_row(head))
            execute("commit")
            changed()
            heads[name] = head
            fcntl.flock(queue, fcntl.LOCK_UN)
        return [Recorded(name, seq, event.kind, at, None, body, head.digest)]

    return append
