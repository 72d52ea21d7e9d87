"""What the formats share: strange JSON, files inside text, and trees with damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenax.errors import InvalidInput
from tenax.importers.draft import Draft, Node, Piece
from tenax.importers.place import read_items, read_rows
from tenax.importers.reading import (
    Result,
    arrange,
    attach_base64,
    attach_data_url,
    decode,
    find_keys,
    keep,
    unfold,
)
from tenax.parts import Reasoning, Text, ToolCall
from tests.support.importing import check_draft


def node(own: str, parent: str | None = None, **fields: object) -> Node:
    return Node(**{"id": own, "parent": parent, "role": "user", **fields})  # type: ignore[arg-type]


def shape(nodes: tuple[Node, ...]) -> list[tuple[str, str | None, str]]:
    return [(one.id, one.parent, one.role) for one in nodes]


def write(folder: Path, data: bytes) -> Path:
    path = folder / "items.json"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"[]", []),
        (b'\xef\xbb\xbf[{"a": 1}]', [{"a": 1}]),
        (b'{"a": [1]}', [{"a": [1]}]),
        (b'["\\ud800", {"a": "],"}, 5 ]', ["\ud800", {"a": "],"}, 5]),
        (b'[{"a": 1}, {oops}, {"b": [1, 2]}]', [{"a": 1}, ValueError, {"b": [1, 2]}]),
        (b'["\xff", "fine"]', [ValueError, "fine"]),
    ],
)
def test_items_one_by_one(tmp_path: Path, data: bytes, values: list[object]) -> None:
    """A lone surrogate, broken UTF-8 or a broken item leaves the other items readable."""
    read: list[object] = []
    for item in read_items(write(tmp_path, data)):
        try:
            read.append(decode(item))
        except ValueError:
            read.append(ValueError)
    assert read == values


@pytest.mark.parametrize("data", [b"", b"[1, 2", b'[{"a": "x', b'{"a": 1', b"[1]]", b"what", b'{"a": 1}{"b": 2}'])  # fmt: skip
def test_incomplete_file(tmp_path: Path, data: bytes) -> None:
    """A file that is cut off gives no item at all, and a sentence."""
    with pytest.raises(InvalidInput, match=r"items\.json is"):
        next(read_items(write(tmp_path, data)))


def test_rows(tmp_path: Path) -> None:
    """Lines of JSON are read one by one, without empty lines."""
    rows = read_rows(write(tmp_path, b'{"a": 1}\r\n\n \n{"b": 2}'))
    assert [decode(row) for row in rows] == [{"a": 1}, {"b": 2}]


def test_deep_nesting() -> None:
    """JSON that is nested 20,000 levels deep is decoded."""
    value = decode(b'{"a": [' * 20_000 + b'"\xc3\xa4"' + b"]}" * 20_000)
    for _ in range(20_000):
        value = value["a"][0]
    assert value == "ä"


def test_deep_nesting_that_is_broken() -> None:
    """Deep nesting without an end is an error with a reason."""
    with pytest.raises(ValueError, match="not JSON"):
        decode(b"[" * 20_000)


def test_keys_of_a_beginning() -> None:
    """The keys of the items and one level deeper are found, also if the file is cut off, and none inside text or lists."""
    keys = find_keys(
        b'[{"id": "\\"no\\": 1", "chat": {"history": {"deep": 1}}, "list": [{"no": 1}]}, {"cut": {"o'
    )
    assert keys == {"id", "chat", "chat.history", "list", "cut"}


def test_large_fields_are_counted() -> None:
    """A field that is too large is not kept, and empty fields and numbers that are no JSON are left away."""
    source = {"a": "x", "b": "y" * 100_000, "c": [], "d": float("nan")}
    assert keep(source, "a", "b", "c", "d") == {"a": "x"}


def test_data_urls() -> None:
    """The file of a `data:` URL is read, with an ending from its type. Other URLs are no files."""
    image = attach_data_url("image", "data:image/png;base64,iVBO")
    text = attach_data_url("a note", "data:text/plain;charset=utf-8,a%20b")
    assert image is not None
    assert text is not None
    assert (image.name, image.read()) == ("image.png", b"\x89PN")
    assert (text.name, text.read()) == ("a note.txt", b"a b")
    assert attach_data_url("image", "https://example.com/a.png") is None
    assert attach_base64("a.png", "image/png", "é").read() is None


def test_branches_keep_their_order() -> None:
    """Parents come before their children, and versions stay in order."""
    nodes, current = arrange(
        [[node("b", "a")], [node("a")], [node("c", "a")], [node("d", "b")]], "d"
    )
    assert [one.id for one in nodes] == ["a", "b", "d", "c"]
    assert current == "d"


def test_cycles_and_unknown_parents() -> None:
    """A cycle is broken at its first message, and an unknown parent makes a beginning."""
    nodes, current = arrange(
        [[node("a", "b")], [node("b", "a")], [node("c", "gone")], [node("d", "d")]],
        "gone",
    )
    assert shape(nodes) == [("c", None, "user"), ("a", None, "user"), ("b", "a", "user"), ("d", None, "user")]  # fmt: skip
    assert current is None


def test_repeated_ids() -> None:
    """A repeated id gets a number, the same in every import."""
    nodes, _ = arrange([[node("a")], [node("a", "a")], [node("a", "a")]])
    assert [(one.id, one.parent) for one in nodes] == [("a", None), ("a#2", "a"), ("a#3", "a")]  # fmt: skip


def test_a_message_with_calls_becomes_a_chain() -> None:
    """Text, calls, results and more text of a message become nodes, and the next message follows the last of them."""
    parts: list[Piece | Result] = [Text("look"), ToolCall("1", "ls", "{}"), ToolCall("2", "pwd", "{}"), Result("1", "ls", (Text("a"),)),
             Result("2", "pwd", (Text("no"),), "failed"), Text("done")]  # fmt: skip
    answer = unfold(node("m", role="assistant", model="x", finish="stop"), parts)
    nodes, current = arrange([answer, [node("n", "m")]], "m")
    check_draft(Draft(id="d", nodes=nodes, current=current))
    assert shape(nodes) == [("m", None, "assistant"), ("m:1", "m", "tool"), ("m:2", "m:1", "tool"),
                            ("m:3", "m:2", "assistant"), ("n", "m:3", "user")]  # fmt: skip
    assert [one.finish for one in nodes] == ["", "", "", "stop", ""]
    assert nodes[2].outcome == "failed"
    assert current == "m:3"


def test_a_result_without_a_call() -> None:
    """A result without a call gets a call without arguments."""
    nodes, _ = arrange([[node("r", role="tool", name="search", parts=(Text("a"),))]])
    assert shape(nodes) == [("r:call", None, "assistant"), ("r", "r:call", "tool")]
    assert nodes[0].parts == (ToolCall("r", "search", "{}"),)
    assert nodes[1].call == "r"


def test_results_without_the_id_of_their_call() -> None:
    """A result without the id of its call belongs to the call before it, and a second result continues the first."""
    ask = node("a", role="assistant", parts=(ToolCall("a", "search", "{}"),))
    nodes, _ = arrange(
        [[ask], [node("r", "a", role="tool", parts=(Text("1"),))],
         [node("s", "r", role="tool", parts=(Text("2"),))], [node("t", "r", role="tool", parts=(Text("3"),))]]
    )  # fmt: skip
    check_draft(Draft(id="d", nodes=nodes))
    assert nodes[1].parts == (Text("1"), Text("2"))
    assert [(one.role, one.call) for one in nodes] == [("assistant", ""), ("tool", "a"), ("", ""), ("assistant", ""), ("tool", "t")]  # fmt: skip


def test_reasoning_in_a_message_of_its_own() -> None:
    """Reasoning in messages of its own belongs to the answer after it, and to each version of the answer."""
    think = [
        [node(name, above, role="assistant", parts=(Reasoning(name),))]
        for name, above in (("t", None), ("u", "link"))
    ]
    answers = [
        [node(name, "u", role="assistant", parts=(Text(name),))] for name in ("a", "b")
    ]
    nodes, _ = arrange([*think, [node("link", "t", role="")], *answers])
    assert [(one.id, one.role) for one in nodes] == [
        ("t", ""),
        ("link", ""),
        ("u", ""),
        ("a", "assistant"),
        ("b", "assistant"),
    ]
    assert nodes[3].parts == (Reasoning("t"), Reasoning("u"), Text("a"))
    assert nodes[4].parts == (Reasoning("t"), Reasoning("u"), Text("b"))


def test_a_long_chain_is_linear() -> None:
    """20,000 messages in a line are arranged without recursion."""
    nodes, _ = arrange([[node(f"{n}", f"{n - 1}")] for n in range(20_000)])
    assert len(nodes) == 20_000
    assert json.dumps([nodes[-1].id, nodes[-1].parent]) == '["19999", "19998"]'
