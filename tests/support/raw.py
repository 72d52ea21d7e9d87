"""What a SQLite store holds, read without any of Tenax's own code, and its chain worked out again."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import apsw


def stored(path: Path) -> dict[str, dict[int, str]]:
    """The text of every message by conversation and seq. Raises if a number, a digest or a head is wrong."""
    connection = apsw.Connection(str(path))
    try:
        return _stored(connection)
    finally:
        connection.close()


def _stored(connection: apsw.Connection) -> dict[str, dict[int, str]]:
    names = {
        int(str(num)): str(name)
        for num, name in connection.execute("select num, id from conversations")
    }
    heads = {
        num: rest
        for num, *rest in connection.execute(
            "select conversation, head, facts, digest from heads"
        )
    }
    found: dict[str, dict[int, str]] = {name: {} for name in names.values()}
    last: dict[int, bytes] = defaultdict(lambda: bytes(32))
    seqs: dict[int, set[int]] = defaultdict(set)
    facts: dict[int, int] = {}
    for row_key, kind, at, run, salt, body, digest in connection.execute(
        "select place, kind, at, run, salt, body, digest from events order by place"
    ):
        num, seq = row_key >> 32, row_key & 0xFFFFFFFF
        header = f"{names[num]}\n{seq}\n{kind}\n{at}\n{run or ''}".encode()
        last[num] = hashlib.sha256(
            last[num] + hashlib.sha256(salt + body).digest() + header
        ).digest()
        assert digest == last[num], f"the chain of {names[num]} breaks at {seq}"
        seqs[num].add(seq)
        facts[num] = seq
        if kind.startswith("message."):
            found[names[num]][seq] = text_of(json.loads(body))
    for (row_key,) in connection.execute("select place from partials"):
        seqs[row_key >> 32].add(row_key & 0xFFFFFFFF)
    for num, (head, facts_upto, digest) in heads.items():
        assert seqs[num] == set(range(1, head + 1)), (
            f"{names[num]} has a hole below {head}"
        )
        assert (facts[num], last[num]) == (facts_upto, digest), (
            f"the head of {names[num]} is not its last fact"
        )
    assert set(heads) == set(names) == set(seqs)
    return found


def text_of(body: dict[str, Any]) -> str:
    return "".join(part["text"] for part in body["parts"])
