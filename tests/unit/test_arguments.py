"""Public calls look at the types of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from tenax.arguments import checked
from tenax.errors import InvalidInput


@checked
class Desk:
    """One parameter of each sort."""

    def take(
        self, name: str, *, count: int = 0, seconds: float = 0, on: bool = False, way: Literal["a", "b"] = "a",
        words: Sequence[str] = (), fields: Mapping[str, int] | None = None, call: Callable[[], None] | None = None,
        pair: tuple[int, str] = (0, ""), other: Any = None, later: Unknown = None,
    ) -> str:  # fmt: skip
        return name

    async def wait(self, name: str) -> str:
        return name

    def _own(self, name: str) -> str:
        return name


Unknown = Any  # as a name that only type checkers know


@pytest.mark.parametrize(
    "given",
    [{"count": 2**70}, {"seconds": 1}, {"seconds": 1.5}, {"on": True}, {"way": "b"}, {"words": ["x"]}, {"words": ("x",)},
     {"fields": {"a": 1}}, {"fields": None}, {"call": print}, {"pair": (1, "x")}, {"other": ...}, {"later": 1}],
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


async def test_a_coroutine_stays_one_and_a_private_method_is_left_alone() -> None:
    """So does what others see of a method."""
    wrong: Any = 1
    assert inspect.iscoroutinefunction(Desk.wait)
    assert await Desk().wait("x") == "x"
    with pytest.raises(InvalidInput, match="`name` of wait"):
        await Desk().wait(wrong)
    assert Desk()._own(wrong) == 1  # type: ignore[comparison-overlap]
