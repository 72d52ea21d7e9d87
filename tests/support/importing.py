"""Read an export of another program, check its drafts, and damage it by chance."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tenax.errors import InvalidInput
from tenax.importers.draft import Attached, Draft, Node, Skipped, Source
from tenax.importers.place import Place
from tenax.parts import Reasoning, Text, ToolCall

FIXTURES = Path(__file__).parents[1] / "importers" / "fixtures"
ODD: tuple[Any, ...] = (None, True, 0, -1, 1e300, float("nan"), 2**70, 10**400, "", "x", "\ud800\0", "a" * 300, [], [[]], [None], {}, {"a": {"b": []}}, {"type": 5})  # fmt: skip

Open = Callable[[Place], Source | None]


class Found(NamedTuple):
    drafts: dict[str, Draft]
    skipped: list[Skipped]
    left_out: Counter[str]


def read_source(open_source: Open, path: Path) -> Found | None:
    """Read everything. Return `None` if the files are of another format."""
    place = Place(path)
    source = open_source(place)
    if source is None:
        place.close()
        return None
    drafts: dict[str, Draft] = {}
    skipped: list[Skipped] = []
    try:
        for draft in source.drafts():
            if isinstance(draft, Skipped):
                assert draft.why
                skipped.append(draft)
            else:
                check_draft(draft)
                drafts[draft.id] = _with_files(draft)
        assert [*source.memories(), *source.skills()] == []
    finally:
        source.close()
    return Found(drafts, skipped, source.left_out)


def _with_files(draft: Draft) -> Draft:
    """Return the draft with the content of its files, which can be read only while the source is open."""
    nodes = []
    for node in draft.nodes:
        parts = [
            Attached(part.name, partial(_get, part.read())) if isinstance(part, Attached) else part
            for part in node.parts
        ]  # fmt: skip
        nodes.append(msgspec.structs.replace(node, parts=tuple(parts)))
    return msgspec.structs.replace(draft, nodes=tuple(nodes))


def _get(data: bytes | None) -> bytes | None:
    return data


def read_found(open_source: Open, path: Path) -> Found:
    found = read_source(open_source, path)
    assert found is not None
    return found


def check_draft(draft: Draft) -> None:
    """Check what every draft promises: a tree, parents first, every tool result behind its call."""
    waiting: dict[str | None, set[str]] = {None: set()}
    assert isinstance(draft.id, str)
    assert draft.id
    assert isinstance(draft.title, str)
    for node in draft.nodes:
        assert isinstance(node.id, str)
        assert node.id not in waiting
        assert node.parent in waiting
        assert node.at is None or isinstance(node.at, int)
        for text in (node.model, node.finish, node.call, node.name):
            assert isinstance(text, str)
        json.dumps(node.extra, allow_nan=False)
        calls = set(waiting[node.parent]) if node.role in ("", "tool") else set()
        for part in node.parts:
            if isinstance(part, Attached):
                assert isinstance(part.name, str)
                assert isinstance(part.read(), bytes | None)
            elif isinstance(part, ToolCall):
                assert isinstance(part.arguments, str)
                calls.add(part.id)
            else:
                assert isinstance(part, Text | Reasoning)
                assert isinstance(part.text, str)
        if node.role == "tool":
            assert node.call in calls
            calls.discard(node.call)
        waiting[node.id] = calls
    assert draft.current is None or draft.current in waiting


def path_of(draft: Draft) -> list[Node]:
    """Return the shown path, without nodes that are only links."""
    nodes = {node.id: node for node in draft.nodes}
    path: list[Node] = []
    name = draft.current or draft.nodes[-1].id
    while name:
        path.append(nodes[name])
        name = nodes[name].parent or ""
    return [node for node in reversed(path) if node.role]


def said(nodes: list[Node]) -> list[tuple[str, str]]:
    """Return role and text of messages."""
    return [
        (node.role, "|".join(p.text for p in node.parts if isinstance(p, Text)))
        for node in nodes
    ]


def files_of(node: Node) -> list[tuple[str, bytes | None]]:
    return [(part.name, part.read()) for part in node.parts if isinstance(part, Attached)]  # fmt: skip


def damage(value: object, chance: random.Random) -> object:
    """Return a copy of decoded JSON with a few values replaced, removed or repeated."""
    damaged = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        spots: list[tuple[Any, Any]] = []
        _list_spots(damaged, spots)
        if not spots:
            break
        holder, key = chance.choice(spots)
        what = chance.random()
        if what < 0.6:
            holder[key] = copy.deepcopy(chance.choice(ODD))
        elif what < 0.8:
            del holder[key]
        else:
            # Ids appear in other places: cycles, repeated ids, unknown parents.
            other, its_key = chance.choice(spots)
            holder[key] = copy.deepcopy(other[its_key])
    return damaged


def _list_spots(value: object, spots: list[tuple[Any, Any]]) -> None:
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    else:
        keys = list(range(len(value))) if isinstance(value, list) else []
    holder: Any = value
    for key in keys:
        spots.append((holder, key))
        _list_spots(holder[key], spots)


def read_damaged(open_source: Open, file: Path, scratch: Path, rounds: int) -> Counter[str]:  # fmt: skip
    """Damage a file again and again and read it. Return how often it was read, refused and not recognised.

    Any other exception than `InvalidInput` fails the test and names the round.
    """
    whole = json.loads(file.read_text())
    target = scratch / file.name
    ends: Counter[str] = Counter()
    for number in range(rounds):
        chance = random.Random(f"{file.name}-{number}")
        data = json.dumps(
            damage(whole, chance), indent=chance.choice((None, 1))
        ).encode()
        what = chance.random()
        if what < 0.1:
            data = data[: chance.randrange(len(data))]
        elif what < 0.2:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(chance.randint(1, 4)) + data[at + 1 :]
        target.write_bytes(data)
        try:
            found = read_source(open_source, target)
        except InvalidInput:
            ends["refused"] += 1
        except Exception as error:
            raise AssertionError(f"round {number} of {file.name}") from error
        else:
            ends["read" if found else "not recognised"] += 1
    return ends
