"""Public calls look at the types of their arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from tenax.errors import InvalidInput
from tenax.journal.arguments import checked
from tenax.journal.base import Lease, RawEvent, Reader


@checked
class Desk:
    """One parameter of each sort."""

    def take(
        self, name: str, *, count: int = 0, seconds: float = 0, on: bool = False, way: Literal["a", "b"] = "a",
        words: Sequence[str] = (), fields: Mapping[str, int] | None = None, call: Callable[[], None] | None = None,
        pair: tuple[int, str] = (0, ""), other: Any = None, later: Unknown = None, lease: Lease | None = None,
        reader: Reader | None = None, entries: Sequence[RawEvent] = (),
    ) -> str:  # fmt: skip
        return name

    async def wait(self, name: str) -> str:
        return name

    def take_unchecked(self, name: Any) -> str:
        """Call a private method, whose arguments are not checked."""
        return self._own(name)

    def _own(self, name: str) -> str:
        return name


Unknown = Any  # as a name that only type checkers know


@pytest.mark.parametrize(
    "given",
    [{"count": 2**70}, {"seconds": 1}, {"seconds": 1.5}, {"on": True}, {"way": "b"}, {"words": ["x"]}, {"words": ("x",)},
     {"fields": {"a": 1}}, {"fields": None}, {"call": print}, {"pair": (1, "x")}, {"other": ...}, {"later": 1},
     {"lease": Lease("a", "b", 1, 5, b"")}, {"reader": Reader("a", "due")}, {"entries": [RawEvent("a", 1, None, b"")]}],
    ids=str,
)  # fmt: skip
def test_what_fits_is_taken(given: dict[str, Any]) -> None:
    """Also a whole number where any is taken."""
    assert Desk().take("x", **given) == "x"


@pytest.mark.parametrize(
    "given",
    [{"name": b"x"}, {"name": None}, {"count": True}, {"count": 1.0}, {"seconds": float("nan")}, {"seconds": True}, {"on": 1},
     {"way": "c"}, {"way": ["a"]}, {"words": "xyz"}, {"words": [1]}, {"fields": {1: 1}}, {"fields": {"a": "b"}}, {"fields": []},
     {"call": 1}, {"pair": (1,)}, {"pair": ("x", 1)}, {"pair": [1, "x"]}],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any]) -> None:
    """The error names the argument, and not what was in it."""
    with pytest.raises(InvalidInput, match=f"`{next(iter(given))}` of take"):
        Desk().take(**{"name": "x", **given})


WRONG: Any = object()


@pytest.mark.parametrize(
    ("given", "field"),
    [({"lease": Lease(WRONG, "b", 1, 5, b"")}, "lease.name"), ({"lease": Lease("a", "b", True, 5, b"")}, "lease.term"),
     ({"lease": Lease("a", "b", 1, float("nan"), b"")}, "lease.seconds"), ({"reader": Reader("a", WRONG)}, "reader.follows"),
     ({"entries": [RawEvent("a", 1, None, b""), RawEvent("a", 1, WRONG, b"")]}, "entries[1].run")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_field_that_does_not_fit_is_refused_by_name(
    given: dict[str, Any], field: str
) -> None:
    """A value looks at nothing when it is made, so the call does."""
    with pytest.raises(InvalidInput, match=re.escape(f"`{field}` of take has to be ")):
        Desk().take("x", **given)


async def test_a_coroutine_stays_one_and_a_private_method_is_left_alone() -> None:
    """So does what others see of a method."""
    wrong: Any = 1
    assert inspect.iscoroutinefunction(Desk.wait)
    assert await Desk().wait("x") == "x"
    with pytest.raises(InvalidInput, match="`name` of wait"):
        await Desk().wait(wrong)
    assert Desk().take_unchecked(wrong) == wrong
