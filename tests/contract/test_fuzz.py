"""Whatever is handed to the store is stored as it is, or refused by name: every kind of event, and every public call."""

from __future__ import annotations

import inspect
import random
import typing
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenax
from tenax.assembly import Runtime
from tenax.errors import InvalidInput, Refused
from tenax.events import KINDS, Blob, Event, Usage, decode, encode
from tenax.journal import Journal
from tenax.journal.base import Dedup, Expect, Lease, Reader
from tenax.journal.verify.store import verify
from tenax.models import ScriptedModel
from tenax.parts import Part, Text
from tenax.recovery import repair
from tenax.sessions import SessionDB
from tenax.text import is_storable, make_storable
from tests.contract.engine.base import begin, say
from tests.support.runs import config_of

EVENTS = 800
APPENDS = 150
CALLS = 400
FITS = (InvalidInput, Refused)
"""What a call may be answered with that cannot be done. Anything else is a fault."""


BYTES = b"kept bytes"
BLOB = Blob(sha256(BYTES).hexdigest())


class Strange:
    """An object that JSON does not know."""


WRONG: Any = Text(b"x")  # type: ignore[arg-type]  # a part of the wrong type
ODD: tuple[Any, ...] = (float("nan"), float("inf"), b"x", bytearray(b"y"), 2**70 + 1, -(2**63) - 1, "\ud800", "a\0b", {1: "a"},
                        {"a": {2: 3}}, {b"k": 1}, {"a": float("nan")}, [b"x"], (float("-inf"),), {"a"}, Strange(), Strange, WRONG,
                        [WRONG], msgspec.UNSET, msgspec.Raw(b"{"), 1j, -1, True, None, "", "x" * 300, [], {}, ())  # fmt: skip
FINE: tuple[Any, ...] = ("words", 0, 1, 2, 7, 1.5, "c-1", "s-1", "r-1", "done", "token", "queue", "new", [1], [], {}, {"a": [1, {"b": None}]},
                         {"a": (1, ("b", 2.5))}, [Text("hello")], (Text("hello"),), Usage(1, 2), BLOB, False)  # fmt: skip


FITTING: dict[Any, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["words", "", "c-1"]),
    int: st.integers(0, 9),
    float: st.sampled_from([0.5, 3, 1e9]),
    bool: st.booleans(),
    list[Part]: st.just([Text("hello")]) | st.just((Text("hello"),)) | st.just([]),
    dict[str, Any]: st.sampled_from(
        [{}, {"a": [1, {"b": None}]}, {"a": (1, ("b", 2.5))}]
    ),
    dict[str, str]: st.just({"a": "b"}),
    Usage: st.just(Usage(1, 2)),
    Blob: st.just(BLOB),
}


def fitting(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    inner = typing.get_args(hint)
    if hint in FITTING:
        return FITTING[hint]
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(inner)
    if typing.get_origin(hint) is list:
        return (
            st.just([]) | st.lists(FITTING[inner[0]], max_size=2)
            if inner[0] in FITTING
            else st.just([])
        )
    return st.none()


def odd(hint: Any) -> st.SearchStrategy[Any]:
    """What it may not hold; or, where it takes any JSON, something deep inside."""
    values = st.sampled_from(ODD)
    return (
        values.map(lambda value: {"a": [{"b": value}]})
        if hint == dict[str, Any]
        else values
    )


@st.composite
def events(draw: st.DrawFn) -> Event:
    """An event of any kind, of which at most one field is odd."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    hints = {
        name: hint
        for name, hint in typing.get_type_hints(kind).items()
        if name in kind.__struct_fields__
    }
    fields = {name: draw(fitting(hint)) for name, hint in hints.items()}
    spoils = draw(st.integers(0, 3)) > 0
    if hints and spoils:
        name = draw(st.sampled_from(sorted(hints)))
        fields[name] = draw(odd(hints[name]))
    return kind(**fields)


def plain(value: Any) -> Any:
    """What a value is after it was stored and read, if that changes nothing but tuples and text that is none."""
    match value:
        case str():
            return make_storable(value)
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {plain(key): plain(item) for key, item in value.items()}
        case msgspec.Struct():
            return {
                name: plain(getattr(value, name)) for name in value.__struct_fields__
            }
    return value


def same(stored: Any, given: Event) -> bool:
    """Whether this is what was given. Where text was replaced, the event says so."""
    expected, found = plain(given), plain(stored)
    if found.get("repaired"):
        expected["repaired"] = True
    elif stored != given:
        assert is_storable(repr(given)) or given.kind == "reply.delta"
    return bool(expected == found)


@settings(deadline=None, max_examples=EVENTS)
@given(events())
def test_any_event_is_encoded_as_it_is_or_refused_by_name(event: Event) -> None:
    """What comes out decodes to the same event."""
    try:
        body = encode(event)
    except InvalidInput:
        return
    assert same(decode(event.kind, body), event)


@settings(
    deadline=None,
    max_examples=APPENDS,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(event=events())
def test_any_event_is_stored_as_it_is_or_refused_by_name(
    stores: Stores, event: Event
) -> None:
    """Nothing is written of what is refused, and the store is sound."""
    name, before = stores.name, stores.journal.head(stores.name)
    try:
        (stored,) = stores.journal.append(name, [event])
    except FITS:
        assert stores.journal.head(name) == before
    else:
        (read,) = stores.journal.read(name, after=stored.seq - 1, limit=1)
        assert read.event == stored.event == decode(event.kind, encode(event))


class Stores:
    """A journal with one conversation; `check` proves it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal = tenax.open(url, user="local")
        self.journal.put_blob(BYTES)  # before an event names it
        self.name = begin(self.journal, say("hello"), name="c-1")

    def check(self) -> None:
        problems = verify(self.journal).problems
        self.journal.close()
        assert problems == []


@pytest.fixture
def stores(store_url: str) -> Iterator[Stores]:
    stores = Stores(store_url)
    yield stores
    stores.check()


ENDLESS = {
    "close",
    "tail",
    "wait",
    "of",
    "let_go",
    "follow",
    "finished",
    "live",
    "leave",
    "start",
    "configure",
    "use_model",
}
"""What does not end by itself, or ends everything."""
KNOWN: dict[str, tuple[Any, ...]] = {
    "conversation": ("c-1",), "session_id": ("s-c-1",), "run": ("r-1",), "run_id": ("r-1",), "events": ([say("more")],),
    "lease": (Lease("run:c-1", "me", 1, 5.0, b"0" * 16),), "expect": (Expect(head=1), Expect(unedited=(1, 1))),
    "dedup": (Dedup("there", "1"),), "reader": (Reader("fuzz"),), "seconds": (0.5,), "ttl_seconds": (1.0,),
    "holder": ("me",), "name": ("n-1", "s-c-1"), "words": ("hello",), "limit": (5,), "seqs": ([2],), "role": ("user",),
    "kind": ("token", "stream_end"), "payload": ({"text": "late"},), "messages": ([{"role": "user", "content": "x"}],),
    "summary": ("all of it",), "data": (b"bytes",), "turn": ("r-1",), "parts": ("hi",),
}  # fmt: skip


def arguments(function: Callable[..., Any], chance: random.Random) -> dict[str, Any]:
    """For every parameter a value that fits, or one that may not."""
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items()):
        required = parameter.default is parameter.empty
        if (
            parameter.kind is parameter.VAR_KEYWORD
            or name in {"self", "db"}
            or not (required or chance.random() < 0.5)
        ):
            continue
        fits = KNOWN.get(name, FINE)
        found[name] = chance.choice(fits if chance.random() < 0.6 else ODD + FINE)
    return found


def structs(chance: random.Random) -> dict[str, Any]:
    """A value of the contract, of which one field is odd."""
    values = {
        "lease": Lease("run:c-1", "me", 1, 5.0, b"0" * 16),
        "expect": Expect(head=1, unedited=(1, 1)),
        "dedup": Dedup("there", "1"),
        "reader": Reader("fuzz"),
    }
    name = chance.choice(sorted(values))
    field = chance.choice(values[name].__struct_fields__)
    spoiled = msgspec.structs.replace(
        values[name], **{field: chance.choice(ODD + FINE + ((2**70, 1), (1, 2**70)))}
    )
    return {name: spoiled}


STRUCT_CALLS: dict[str, list[Callable[[Journal, Any], Any]]] = {
    "lease": [
        lambda journal, lease: journal.append("c-1", [say("more")], lease=lease),
        lambda journal, lease: journal.renew(lease),
        lambda journal, lease: journal.release(lease),
    ],
    "expect": [
        lambda journal, expect: journal.append("c-1", [say("more")], expect=expect)
    ],
    "dedup": [lambda journal, dedup: journal.append("c-1", [say("more")], dedup=dedup)],
    "reader": [
        lambda journal, reader: journal.cursor(reader, "c-1"),
        lambda journal, reader: journal.behind(reader),
    ],
}


def test_any_field_of_a_value_is_taken_or_refused_by_name(store_url: str) -> None:
    """A lease, a reader and the conditions of an append look at nothing when they are made."""
    chance = random.Random(29)
    stores = Stores(store_url)
    for _ in range(CALLS):
        ((name, value),) = structs(chance).items()
        call = chance.choice(STRUCT_CALLS[name])
        succeeds(
            lambda call=call, value=value: call(stores.journal, value),
            name,
            {name: value},
        )
    stores.check()


def calls(target: type) -> list[str]:
    """Return the names of the public methods, inherited methods included."""
    methods = {
        name: method
        for base in reversed(target.__mro__)
        for name, method in vars(base).items()
    }
    return [name for name, method in methods.items()
            if inspect.isfunction(method) and not name.startswith("_") and name not in ENDLESS]  # fmt: skip


@pytest.mark.parametrize("target", [Journal, SessionDB])
def test_any_call_is_done_or_refused_by_name(store_url: str, target: type) -> None:
    """Wrong types, strange numbers and text that is none: no traceback, and `doctor` finds nothing afterwards."""
    chance = random.Random(17)
    stores = Stores(store_url)
    db = SessionDB(journal=stores.journal)
    it = stores.journal if target is Journal else db
    done = 0
    for n in range(CALLS):
        name = chance.choice(calls(target))
        given = arguments(getattr(target, name), chance)
        if name.startswith("delete") and n < CALLS - 20:  # the last ones may
            continue
        done += succeeds(
            lambda it=it, name=name, given=given: getattr(it, name)(**given),
            name,
            given,
        )
    assert done
    stores.check()


def succeeds(call: Callable[[], Any], name: str, given: dict[str, Any]) -> bool:
    try:
        call()
    except FITS:
        return False
    except Exception as error:
        raise AssertionError(f"{name}({given}) ended in {error!r}") from error
    return True


async def test_any_call_of_the_runtime_is_done_or_refused_by_name(
    store_url: str, tmp_path: Path
) -> None:
    """The same through the object that the faces use; and for `repair`."""
    chance = random.Random(3)
    stores = Stores(store_url)
    async with Runtime(
        config_of(store_url, tmp_path),
        journal=stores.journal,
        models=[ScriptedModel(["a"])],
        serves=False,
    ) as runtime:
        for name in chance.choices(calls(Runtime), k=CALLS // 4):
            given = arguments(getattr(Runtime, name), chance)
            if name == "delete":
                continue
            try:
                found = getattr(runtime, name)(**given)
                if inspect.isawaitable(found):
                    await found
            except FITS:
                continue
            except Exception as error:
                raise AssertionError(f"{name}({given}) ended in {error!r}") from error
    with SessionDB(journal=stores.journal) as db:
        for value in ODD:
            succeeds(
                lambda value=value: repair(db, "s-c-1", value),
                "repair",
                {"run_id": value},
            )
            succeeds(
                lambda value=value: repair(db, value, "r-1"),
                "repair",
                {"session_id": value},
            )
    stores.check()


@pytest.mark.parametrize("seq", [-1, 2**63 - 1, 2**70])
@pytest.mark.parametrize("name", ["covers_to", "folded_to"])
def test_a_compaction_up_to_a_number_that_no_event_has_is_refused(
    store_url: str, name: str, seq: int
) -> None:
    """Before the store is asked for it."""
    stores = Stores(store_url)
    numbers: dict[str, Any] = {name: seq}
    with (
        SessionDB(journal=stores.journal) as db,
        pytest.raises(InvalidInput, match=name),
    ):
        db.rotate("s-c-1", summary="all of it", **numbers)
    stores.check()


@pytest.mark.parametrize("title", [float("nan"), b"x", 3, object(), ["x"]])
def test_a_title_that_is_no_text_is_refused(store_url: str, title: Any) -> None:
    """On every engine alike, and before anything is written."""
    stores = Stores(store_url)
    with (
        SessionDB(journal=stores.journal) as db,
        pytest.raises(InvalidInput, match="title"),
    ):
        db.set_title("s-c-1", title)
    stores.check()


def test_an_address_that_is_no_text_is_refused() -> None:
    address: Any = 5
    with pytest.raises(InvalidInput, match="url"):
        SessionDB(url=address)
