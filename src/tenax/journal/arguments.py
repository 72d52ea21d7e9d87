"""Check the arguments of public calls against the annotations, at run time.

A wrong type is refused by name before anything is done, instead of becoming an unreadable row later. The fields of a
value such as a `Lease` are checked too, because nothing checks the fields when the value is created.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from tenax.errors import InvalidInput
from tenax.events import Event

__all__ = ["check_struct", "checked"]

T = TypeVar("T")
Check = Callable[[Any], bool]
_MANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_PLACED = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def checked(target: T, *, but: Collection[str] = ()) -> T:
    """Check the arguments of a function, or of every public method of a class. A wrong type raises `InvalidInput`.

    `but`: methods with checks of their own.
    """
    if not isinstance(target, type):
        return cast("T", _checked(cast("Callable[..., Any]", target)))
    for name, method in list(vars(target).items()):
        if inspect.isfunction(method) and not name.startswith("_") and name not in but:
            setattr(target, name, _checked(method))
    return target


def check_struct(
    function: str, name: str, kind: type[msgspec.Struct], value: object
) -> None:
    """Check that an argument is a struct of the kind with fields of the right types. Raises `InvalidInput`."""
    if not _fits_struct(kind, value):
        raise _refusal(function, name, kind.__name__, value)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    checks = _Checks(function)

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401  (the result of the function)
        checks.look_at(args, kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    async def call_async(*args: object, **kwargs: object) -> object:
        return await call(*args, **kwargs)

    return call_async if inspect.iscoroutinefunction(function) else call


class _Checks:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def look_at(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        positional, names = self._compiled
        # Python itself refuses a call with too many arguments.
        for (name, check), value in zip(positional, args, strict=False):
            if check is not None and not check(value):
                raise self._refuse(name, value)
        for name, value in kwargs.items():
            check = names.get(name)
            if check is not None and not check(value):
                raise self._refuse(name, value)

    @functools.cached_property
    def _compiled(
        self,
    ) -> tuple[list[tuple[str, Check | None]], dict[str, Check | None]]:
        """The checks by position and by name.

        The annotations are read at the first call, when every module is loaded.
        """
        known = _Names(
            {**vars(collections.abc), **vars(builtins), **self._function.__globals__}
        )
        hints = typing.get_type_hints(self._function, localns=known)
        kinds = {
            name: parameter.kind
            for name, parameter in inspect.signature(self._function).parameters.items()
        }
        names = {
            name: _check_of(hints.get(name, Any))
            for name, kind in kinds.items()
            if kind not in _MANY
        }
        return [
            (name, check) for name, check in names.items() if kinds[name] in _PLACED
        ], names

    def _refuse(self, name: str, value: object) -> InvalidInput:
        wanted = str(self._function.__annotations__.get(name, ""))
        return _refusal(self._function.__name__, name, wanted, value)


def _refusal(function: str, name: str, wanted: str, value: object) -> InvalidInput:
    """Return the error for a wrong argument, or for the wrong field of an argument."""
    name, wanted, value = _wrong_field(name, value) or (name, wanted, value)
    found = (
        "NaN"
        if isinstance(value, float) and math.isnan(value)
        else type(value).__name__
    )
    return InvalidInput(
        f"`{name}` of {function} has to be {wanted.replace(' | ', ' or ')}, not {found}."
    )


def _wrong_field(name: str, value: object) -> tuple[str, str, object] | None:
    """Return name, type and value of the first field with a wrong type, in a struct or in a list of structs."""
    if isinstance(value, list | tuple):
        wrongs = (_wrong_field(f"{name}[{n}]", item) for n, item in enumerate(value))
        return next((wrong for wrong in wrongs if wrong is not None), None)
    if isinstance(value, Event) or not isinstance(value, msgspec.Struct):
        return None
    for field, check in _fields_of(type(value)):
        found = getattr(value, field)
        if not check(found):
            return (
                f"{name}.{field}",
                str(type(value).__annotations__.get(field, "")),
                found,
            )
    return None


class _Names(dict[str, Any]):
    """The meaning of the names in annotations. A name imported only for type checkers means `Any`."""

    def __missing__(self, _name: str) -> Any:  # noqa: ANN401  (an annotation)
        return Any


def _check_of(hint: Any) -> Check | None:  # noqa: ANN401, PLR0911  (an annotation; a list of cases)
    """Return a check of values against an annotation, or `None` if every value fits."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        ways = [_check_of(option) for option in inner]
        return (
            None
            if None in ways
            else lambda value: any(way(value) for way in ways if way)
        )
    if origin is Literal:
        return lambda value: any(
            type(value) is type(literal) and value == literal for literal in inner
        )
    if origin is Callable:
        return callable
    if origin is Annotated:
        return _check_of(inner[0])
    if isinstance(origin, type):
        return _check_of_many(origin, inner)
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    # `encode` checks events and gives a better message. A protocol is checked only in use.
    if (
        hint in {Any, Event}
        or not isinstance(hint, type)
        or getattr(hint, "_is_protocol", False)
    ):
        return None
    if issubclass(hint, msgspec.Struct) and not issubclass(hint, Event):
        return functools.partial(_fits_struct, hint)
    return lambda value: isinstance(value, hint)


def _fits_struct(kind: type[msgspec.Struct], value: object) -> bool:
    if not isinstance(value, kind):
        return False
    return all(check(getattr(value, field)) for field, check in _fields_of(type(value)))


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, Check]]:
    """Return the fields of a struct with a type to check, and the checks."""
    checks = [
        (field.name, _check_of(field.type)) for field in msgspec.structs.fields(kind)
    ]
    return [(name, check) for name, check in checks if check is not None]


def _check_of_many(origin: type, inner: tuple[Any, ...]) -> Check:
    checks = [_check_of(argument) for argument in inner if argument is not Ellipsis]
    if issubclass(origin, Mapping):
        return functools.partial(_fits_mapping, origin, *checks)
    if origin is tuple and Ellipsis not in inner:
        return functools.partial(_fits_tuple, checks)
    return functools.partial(_fits_many, origin, checks[0] if checks else None)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_NUMBERS: dict[Any, Check] = {
    int: _is_whole,
    float: lambda value: (
        _is_whole(value) or (isinstance(value, float) and not math.isnan(value))
    ),
}


def _fits_tuple(checks: list[Check | None], value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != len(checks):
        return False
    return all(
        check is None or check(item) for check, item in zip(checks, value, strict=True)
    )


def _fits_mapping(
    kind: type, key: Check | None, item: Check | None, value: object
) -> bool:
    if not isinstance(value, kind) or not isinstance(value, Mapping):
        return False
    return (key is None or all(map(key, value))) and (
        item is None or all(map(item, value.values()))
    )


def _fits_many(kind: type, check: Check | None, value: object) -> bool:
    """Return whether a value is a collection of the kind.

    Text does not count. Iterators are not consumed for the check.
    """
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        return False
    return check is None or not isinstance(value, Collection) or all(map(check, value))
