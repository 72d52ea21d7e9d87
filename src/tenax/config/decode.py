"""Check a configuration file and the environment against the schema. Every error names the setting and its origin."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tenax.config.schema import (
    ChannelSettings,
    FileSettings,
    McpSettings,
    ModelSettings,
    RuleSettings,
    Setting,
    Settings,
    settings_of,
)
from tenax.config.secret import Secret
from tenax.errors import ConfigError

__all__ = ["Decoder", "parse_toml", "read_text", "suggest"]

_Table = TypeVar("_Table", bound=Settings)


class Decoder:
    """Decodes the tables of a file. A variable in `env` overrides its setting.

    `locked` maps each overridden setting to the name of its variable. Without `follow_keys` the decoder checks the
    references to keys, but reads no key.
    """

    def __init__(
        self, file: Path, env: Mapping[str, str], *, follow_keys: bool = True
    ) -> None:
        self.locked: dict[str, str] = {}
        self._file = file
        self._env = env
        self._follow_keys = follow_keys

    def decode_file(self, values: Mapping[str, Any]) -> FileSettings:
        """Decode the whole file."""
        names = FileSettings.__struct_fields__
        for name in values:
            if name not in names:
                raise self._unknown(name, names)
        decoded = self._decode_settings(values, FileSettings, "")
        for field in msgspec.structs.fields(FileSettings):
            if isinstance(field.type, type) and issubclass(field.type, Settings):
                table = values.get(field.name, {})
                decoded[field.name] = self.decode_table(table, field.type, field.name)
        return FileSettings(
            **decoded,
            models=self._decode_named(values, "models", ModelSettings),
            mcp=self._decode_named(values, "mcp", McpSettings),
            channels=self._decode_named(values, "channels", ChannelSettings),
            rules=self._decode_rules(values.get("rules", [])),
        )

    def decode_table(self, values: object, table: type[_Table], path: str) -> _Table:
        """Decode a table, such as [serve] or [models.LABEL]."""
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path} in {self._file} is a section: write [{path}] on a line of its own."
            )
        settings = settings_of(table)
        for name in values:
            if name not in settings:
                known = [f"{path}.{setting}" for setting in settings]
                raise self._unknown(f"{path}.{name}", known)
        return table(**self._decode_settings(values, table, f"{path}."))

    def _decode_named(
        self, values: Mapping[str, Any], kind: str, table: type[_Table]
    ) -> dict[str, _Table]:
        tables = values.get(kind, {})
        if not isinstance(tables, dict):
            raise ConfigError(
                f"{kind} in {self._file} are sections: write [{kind}.NAME] on a line of its own."
            )
        return {
            name: self.decode_table(section, table, f"{kind}.{name}")
            for name, section in tables.items()
        }

    def _decode_rules(self, rules: object) -> tuple[RuleSettings, ...]:
        if not isinstance(rules, list) or not all(
            isinstance(rule, dict) for rule in rules
        ):
            raise ConfigError(
                f"rules in {self._file} are a list: write [[rules]] on a line of its own for each rule."
            )
        return tuple(
            self.decode_table(rule, RuleSettings, f"rules[{number}]")
            for number, rule in enumerate(rules, 1)
        )

    def _decode_settings(
        self, values: Mapping[str, Any], table: type[Settings], prefix: str
    ) -> dict[str, Any]:
        decoded = {}
        for name, setting in settings_of(table).items():
            path = f"{prefix}{name}"
            text = self._env.get(setting.variable)
            if text:
                self.locked[path] = setting.variable
                decoded[name] = _decode_variable(text, setting)
            elif name in values:
                decoded[name] = self._decode_value(values[name], setting, path)
            elif setting.required:
                raise ConfigError(
                    f"{prefix.rstrip('.')} in {self._file} has no {name}.",
                    hint=f"It must be {_describe(setting)}.",
                )
        return decoded

    def _decode_value(self, value: object, setting: Setting, path: str) -> object:
        def find_key(_kind: type, reference: object) -> Secret:
            return self._find_key(reference, path)

        try:
            return msgspec.convert(value, setting.kind, dec_hook=find_key)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{path} in {self._file} must be {_describe(setting)}."
            ) from error

    def _find_key(self, reference: object, path: str) -> Secret:
        """Resolve `env:NAME` or `secret:NAME`. Other text may be a key, so no error quotes the text."""
        found = re.fullmatch(
            r"(env|secret):([A-Za-z_]\w{0,63})", str(reference), re.ASCII
        )
        if found is None:
            raise ConfigError(
                f'{path} in {self._file} must be "env:NAME" or "secret:NAME", never the key itself.',
                hint="If this was a key, somebody may have seen it: consider a new one.",
            )
        kind, name = found.groups()
        if kind == "env":
            return Secret(self._env.get(name), f"the environment variable {name}")
        return Secret(self._keys.get(name), f"{self._keys_file} under {name}")

    @property
    def _keys_file(self) -> Path:
        return self._file.with_name("secrets.toml")

    @cached_property
    def _keys(self) -> Mapping[str, str]:
        return _read_keys(self._keys_file) if self._follow_keys else {}

    def _unknown(self, name: str, known: Iterable[str]) -> ConfigError:
        return ConfigError(
            f"{self._file} sets {name}, which is not a setting of Tenax.",
            hint=suggest(name, known),
        )


def _decode_variable(text: str, setting: Setting) -> object:
    value: object = text
    if isinstance(setting.default, tuple):
        value = [name.strip() for name in text.split(",") if name.strip()]
    try:
        # Not strict: a number or a boolean arrives as text.
        return msgspec.convert(value, setting.kind, strict=False)
    except msgspec.ValidationError as error:
        shape, _, _ = _describe(setting).partition(":")
        raise ConfigError(
            f"{setting.variable} is {text!r}; it must be {shape}."
        ) from error


def _describe(setting: Setting) -> str:
    """Return a description of valid values for the setting, with an example."""
    if setting.shape:
        return setting.shape
    details = inspect.type_info(setting.kind)
    if isinstance(details, inspect.Metadata):
        details = details.type
    if isinstance(details, inspect.UnionType):
        details = details.types[0]
    match details:
        case inspect.BoolType():
            shape, example = "true or false", "true"
        case inspect.IntType(le=None):
            shape, example = "a whole number above 0", "1000"
        case inspect.IntType(ge=low, le=high):
            shape, example = f"a whole number from {low} to {high}", f"{high}"
        case inspect.FloatType():
            shape, example = "a number, 0 or more", "1.5"
        case inspect.LiteralType(values=values):
            *names, example = [f'"{value}"' for value in values]
            shape = f"{', '.join(names)} or {example}"
        case inspect.VarTupleType():
            shape, example = "a list of names in quotes", '["..."]'
        case _:
            shape, example = "text in quotes", '"..."'
    return f"{shape}: {setting.name} = {example}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name nearest to a wrong name, or with the list of known names."""
    known = sorted(known)
    nearest = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if nearest:
        return f"Did you mean {nearest[0]}?"
    return f"Known here: {', '.join(known)}."


def read_text(file: Path) -> str | None:
    """Return the text of the file, or `None` if the file does not exist."""
    try:
        # Some editors write a byte order mark.
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error


def parse_toml(text: str, file: Path) -> dict[str, Any]:
    """Parse the text of the file. Nothing is checked against the schema."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # RecursionError: thousands of nested brackets.
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error


def _read_keys(file: Path) -> Mapping[str, str]:
    """Read the keys in secrets.toml. Raises `ConfigError` if other users can read the file."""
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(
                f"Others can read {file}, which holds keys.",
                hint=f"Run: chmod 600 {file}",
            )
        keys = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        # The cause is left out: it could quote a key.
        raise ConfigError(
            f'{file} is not valid TOML: it holds lines like NAME = "...".'
        ) from None
    return {name: key for name, key in keys.items() if isinstance(key, str)}
