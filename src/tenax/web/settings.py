"""`/api/settings`: the settings that a person changes on the page. Only the owner sees and changes settings.

The table of settings is `config/schema.py`. A key is only written: the response says whether there is a key, and where.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta, inspect
from starlette.requests import Request

from tenax.config import Config, hide_password, write
from tenax.config.schema import (
    Backup,
    Budget,
    FileSettings,
    Memory,
    ModelSettings,
    Search,
    Serve,
    Setting,
    Settings,
    Speech,
    Tools,
    settings_of,
)
from tenax.config.secret import Secret
from tenax.errors import InvalidInput
from tenax.web.api import ResponseBody, endpoint
from tenax.web.server_state import ServerState, state_of
from tenax.web.setup import path_at_home

__all__ = ["ShownSetting"]

_SECTIONS: Final[Mapping[str, tuple[type[Settings], frozenset[str]]]] = {
    "": (FileSettings, frozenset({"fallback", "resume", "context_files"})),
    "memory": (Memory, frozenset({"review", "providers"})),
    "backup": (Backup, frozenset({"folder", "every", "keep"})),
    "budget": (Budget, frozenset({"day", "conversation"})),
    "search": (Search, frozenset({"searxng", "brave", "tavily"})),
    "speech": (Speech, frozenset({"url", "key", "model", "timeout_seconds"})),
    "tools": (Tools, frozenset({"folder"})),
    "serve": (Serve, frozenset({"sign_in_days"})),
}
"""By section, the settings on the page. The settings of the server itself could lock the person out."""
_OF_MODELS: Final = (
    "context",
    "max_tokens",
    "temperature",
    "effort",
    "price_input",
    "price_output",
    "sees",
    "key",
)

Value = bool | int | float | str | list[str] | None
Kind = Literal["bool", "int", "float", "text", "choice", "list", "secret"]
_KINDS: Final[Mapping[type[inspect.Type], Kind]] = {
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.VarTupleType: "list",
    inspect.CustomType: "secret",
}
_CHANGES_MAX: Final = 100
_TEXT_CHARS_MAX: Final = 4000
Name = Annotated[str, Meta(max_length=300)]


class ShownSetting(ResponseBody):
    """A setting."""

    name: str
    """The full name, such as `budget.day` or `models.main.temperature`."""
    section: str
    """The section of the file: empty, `budget`, or `models.main`."""
    kind: Kind
    description: str
    value: Value
    """The present value. Always null for a key."""
    default: Value
    is_set: bool
    """Whether the file or the environment sets a value."""
    choices: list[str] = []  # noqa: RUF012  (msgspec copies it)
    locked: str = ""
    """The environment variable that sets the value. The value cannot be changed here."""
    restart: bool = False
    """Whether a change applies at the next start of Tenax."""
    origin: str = ""
    """The place of a key, in words."""


class SettingsList(ResponseBody):
    """The settings, in the order of the sections."""

    settings: list[ShownSetting]
    file: str
    data: str
    """The folder with the stored data."""


@endpoint("GET", "/api/settings", owner=True)
async def list_settings(call: Request) -> SettingsList:
    """List the settings with their present values."""
    state = state_of(call)
    await state.look_at_settings()
    return _listed(state)


@endpoint("PATCH", "/api/settings", owner=True)
async def change_settings(call: Request, body: dict[str, Value]) -> SettingsList:
    """Change settings by their names; null restores the default. The value of a key is the key itself.

    All changes are made, or none.
    """
    if not 0 < len(body) <= _CHANGES_MAX:
        raise InvalidInput(f"Send 1 to {_CHANGES_MAX} settings.")
    state = state_of(call)
    await state.look_at_settings()
    known = {shown.name: shown for shown in _shown(state.config)}
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name, value in body.items():
        if name not in known:
            raise InvalidInput(
                f"{name[:100]!r} is not a setting that can be changed here."
            )
        if len(str(value)) > _TEXT_CHARS_MAX:
            raise InvalidInput(f"The value of {name} is too long.")
        if known[name].kind == "secret" and value is not None:
            keys[name] = _key(name, value)
        elif (
            isinstance(value, str) and hide_password(value) == value and "***" in value
        ):
            raise InvalidInput(
                f"The value of {name} has stars instead of its password.",
                hint="Enter the whole value.",
            )
        else:
            values[name] = _typed(known[name], value)
    await state.change(write.change_settings, values, os.environ, keys=keys)
    return _listed(state)


@endpoint("DELETE", "/api/models/{label}", owner=True)
async def remove_model(call: Request, label: Name) -> SettingsList:
    """Remove a model from the settings file. The model that answers cannot be removed."""
    state = state_of(call)
    await state.look_at_settings()
    await state.change(write.remove_model, label)
    return _listed(state)


def _listed(state: ServerState) -> SettingsList:
    config = state.config
    return SettingsList(
        settings=list(_shown(config)),
        file=path_at_home(config.file),
        data=path_at_home(config.directories.data),
    )


def _shown(config: Config) -> Iterator[ShownSetting]:
    for section, (table, names) in _SECTIONS.items():
        found = settings_of(table)
        for name in (name for name in found if name in names):
            yield _show(config, section, found[name], _value(config, section, name))
    for label in sorted(config.models):
        model = config.models[label]
        if model.api == "practice":
            continue
        for name in _OF_MODELS:
            setting = settings_of(ModelSettings)[name]
            yield _show(config, f"models.{label}", setting, getattr(model, name))


def _value(config: Config, section: str, name: str) -> object:
    if section == "tools":
        return path_at_home(config.tools_folder)
    return getattr(getattr(config, section) if section else config, name)


def _show(
    config: Config, section: str, setting: Setting, value: object
) -> ShownSetting:
    name = f"{section}.{setting.name}" if section else setting.name
    kind, choices = _kind(setting)
    if name == "fallback":
        choices = sorted(config.models)
    default = None if kind == "secret" else _plain(setting.default)
    shown: Value = None
    is_set, origin = value != setting.default, ""
    if isinstance(value, Secret):
        is_set, origin = value.is_set, value.origin
    else:
        shown = _plain(value)
    return ShownSetting(
        name=name,
        section=section,
        kind=kind,
        description=setting.description,
        value=shown,
        default=default,
        is_set=is_set,
        choices=choices,
        locked=config.locked.get(name, ""),
        restart=setting.restart,
        origin=origin,
    )


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    if isinstance(value, str):
        return hide_password(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _kind(setting: Setting) -> tuple[Kind, list[str]]:
    """Return the kind of the values of a setting, and the choices."""
    details = inspect.type_info(setting.kind)
    if isinstance(details, inspect.Metadata):
        details = details.type
    if isinstance(details, inspect.UnionType):
        details = details.types[0]
    if isinstance(details, inspect.LiteralType):
        # `details` has the choices in the order of the alphabet.
        return "choice", list(_choices(setting.kind))
    return _KINDS.get(type(details), "text"), []


def _choices(kind: object) -> Iterator[str]:
    """Yield the values of the literal in a type, in their order."""
    for inner in get_args(kind):
        if get_origin(kind) is Literal:
            yield str(inner)
        else:
            yield from _choices(inner)


def _key(name: str, value: Value) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{name} needs a key.", hint="Send null to remove the key.")
    return value


def _typed(shown: ShownSetting, value: Value) -> Value:
    """Return a value as the file stores it. JSON does not distinguish 1 from 1.0."""
    if shown.kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
