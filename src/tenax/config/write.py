"""Edit the configuration file. Comments and the order of settings stay.

A write replaces the whole file or nothing: a crash or a full disk leaves the old file. A key goes into `secrets.toml`,
readable only by the owner from the moment of creation. The configuration file only names the key. A lock on the folder
lets in a single writer at a time. After an edit the caller loads the configuration again. Only rules follow the file
without a reload (`Rules`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tenax.concurrency import locked, write_atomically
from tenax.config.decode import parse_toml, read_text
from tenax.config.read import Config, check_server, check_values, read_rules
from tenax.config.rules import Rule, find_mistake
from tenax.config.secret import Secret
from tenax.errors import ConfigError, InvalidInput

__all__ = [
    "Rules",
    "add_model",
    "add_rule",
    "change_settings",
    "choose_model",
    "file_version",
    "remove_model",
    "remove_rule",
    "set_channel",
    "set_server",
    "trust_server",
]

log = logging.getLogger(__name__)

_NEW_MODE: Final = 0o600
_NAME_CHARS_MAX: Final = 50
_RULE_HEADER: Final = re.compile(r"\s*\[\[\s*rules\s*\]\]")
_HEADER: Final = re.compile(r"\s*\[")
_BLANK_OR_COMMENT: Final = re.compile(r"\s*(#.*)?$")


def add_model(
    config: Config,
    label: str,
    values: Mapping[str, Any],
    *,
    key: str | None = None,
    choose: bool = True,
) -> str:
    """Write the section [models.LABEL], and choose the model if `choose`. Return the label, possibly with a number.

    Adding the same section again changes nothing. If a section with different values has the label, the new label gets
    a number. `key` is the key itself.
    """
    if choose:
        _refuse_if_locked(config)
    with _locked_folder(config):
        wanted = _parse_file(config.file)
        section = dict(values)
        keys = ""
        if key is not None:
            secrets = read_text(config.file.with_name("secrets.toml")) or ""
            section["key"], keys = _add_key(config.file, label, key, secrets)
        models = wanted.setdefault("models", {})
        label = next(
            name
            for name in _number_names(label)
            if models.get(name, section) == section
        )
        models[label] = section
        if choose:
            wanted["model"] = label

        def edit(document: Any) -> None:  # noqa: ANN401
            if choose:
                _set_model(document, label)
            _set_section(document, "models", label, section)

        _edit_file(config.file, wanted, edit, f"[models.{label}]", keys)
        return label


def choose_model(config: Config, label: str) -> None:
    """Make the model the answering model."""
    _refuse_if_locked(config)
    if label not in config.models:
        raise ConfigError(
            f"There is no model {label!r}.",
            hint=f"There are: {', '.join(config.models)}.",
        )

    def edit(document: Any) -> None:  # noqa: ANN401
        _set_model(document, label)

    with _locked_folder(config):
        wanted = _parse_file(config.file) | {"model": label}
        _edit_file(config.file, wanted, edit, "model")


def remove_model(config: Config, label: str) -> None:
    """Remove the section [models.LABEL], its place in `fallback`, and its key if nothing else uses the key."""
    if label == config.model:
        raise InvalidInput(
            f"{label} is the model that answers, so it cannot be removed.",
            hint="Choose another model first.",
        )
    with _locked_folder(config):
        wanted = _parse_file(config.file)
        section = wanted.get("models", {}).pop(label, None)
        if section is None:
            raise InvalidInput(
                f"The settings file has no model {label!r}.",
                hint="Look at the list again.",
            )
        fallback = [name for name in wanted.get("fallback", ()) if name != label]
        if "fallback" in wanted:
            wanted["fallback"] = fallback

        def edit(document: Any) -> None:  # noqa: ANN401
            del document["models"][label]
            if document.get("fallback", fallback) != fallback:
                document["fallback"] = fallback

        _edit_file(config.file, wanted, edit, f"[models.{label}]")
        _forget_key(config.file, section.get("key"), wanted)


def change_settings(
    config: Config,
    changes: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    keys: Mapping[str, str],
) -> None:
    """Set settings by their full names, such as `budget.day`; `None` removes a setting, so that the default applies.

    `keys` are keys themselves, by the full name of the setting that refers to a key. A file that `load` would refuse is
    not written.
    """
    for name in (*changes, *keys):
        if name in config.locked:
            raise ConfigError(
                f"{config.locked[name]} sets {name}, so it cannot be changed here.",
                hint=f"Unset {config.locked[name]}, and try again.",
            )
    with _locked_folder(config):
        before = _parse_file(config.file)
        wanted = _parse_file(config.file)
        values = dict(changes)
        text = read_text(config.file.with_name("secrets.toml")) or ""
        for name, key in keys.items():
            values[name], text = _add_key(
                config.file, name.removesuffix(".key"), key, text
            )
        for name, value in values.items():
            _set_value(wanted, _path_of(name, wanted, config.file), value)
        check_values(config, wanted, env)

        def edit(document: Any) -> None:  # noqa: ANN401
            for name, value in values.items():
                _set_value(document, _path_of(name, wanted, config.file), value)

        names = ", ".join(values)
        _edit_file(config.file, wanted, edit, names, text if keys else "")
        for name in values:
            old = _value_at(before, _path_of(name, wanted, config.file))
            _forget_key(config.file, old, wanted)


def _path_of(name: str, values: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Return the keys of a setting in the file. A label of a model may contain dots."""
    section, _, rest = name.partition(".")
    if section != "models":
        return tuple(name.split("."))
    label, _, setting = rest.rpartition(".")
    if label not in values.get("models", {}):
        raise ConfigError(
            f"{file} has no section [models.{label}].",
            hint="Connect the model on the page or with `tenax setup` first.",
        )
    return ("models", label, setting)


def _value_at(values: Mapping[str, Any], path: tuple[str, ...]) -> object:
    found: Any = values
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _set_value(values: Any, path: tuple[str, ...], value: object) -> None:  # noqa: ANN401  (a dictionary or a document)
    *sections, name = path
    for section in sections:
        if section not in values:
            if value is None:
                return
            values[section] = {}
        values = values[section]
    if value is None:
        values.pop(name, None)
    elif values.get(name) != value:
        values[name] = value


def _forget_key(file: Path, reference: object, values: Mapping[str, Any]) -> None:
    """Remove a key from secrets.toml if no setting refers to the key any more."""
    kind, _, name = str(reference).partition(":")
    keys = file.with_name("secrets.toml")
    if kind != "secret" or str(reference) in _texts_in(values):
        return
    document = tomlkit.parse(read_text(keys) or "")
    if document.pop(name, None) is not None:
        _replace_file(keys, tomlkit.dumps(document), mode=_NEW_MODE)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, str):
        yield value


# Rules are edited as lines of text, not with tomlkit. tomlkit deletes the comments after a removed [[rules]], and moves a
# later [[rules]] in front of the sections between (docs/decisions/0024-configuration.md). `_write_rules` checks the result.


def add_rule(config: Config, rule: Rule) -> None:
    """Add a rule at the end of the file, unless the file already has the rule."""
    mistake = find_mistake(rule)
    if mistake:
        raise InvalidInput(f"This cannot be a rule: its {mistake}.")
    with _locked_folder(config):
        text = read_text(config.file) or ""
        rules = read_rules(config.file)
        if rule in rules:
            return
        lines = [f"{text.rstrip()}\n\n"] if text.strip() else []
        lines.append("[[rules]]\n")
        for name in ("verdict", "tool", "touches"):
            value = tomlkit.string(getattr(rule, name)).as_string()
            lines.append(f"{name} = {value}\n")
        _write_rules(config.file, text, "".join(lines), (*rules, rule))


def remove_rule(config: Config, rule: Rule) -> None:
    """Remove a rule. Everything around the rule stays, including comments."""
    with _locked_folder(config):
        text = read_text(config.file) or ""
        rules = read_rules(config.file)
        if rule not in rules:
            raise InvalidInput(
                "This rule no longer exists.", hint="Look at the list again."
            )
        lines = text.splitlines(keepends=True)
        spans = _find_rules(lines)
        found = [
            span for span, known in zip(spans, rules, strict=False) if known == rule
        ]
        for start, end in reversed(found):
            del lines[start:end]
        remaining = tuple(known for known in rules if known != rule)
        _write_rules(config.file, text, "".join(lines), remaining)


def _find_rules(lines: list[str]) -> list[tuple[int, int]]:
    """Return the first line of each [[rules]] section, and the line after its last setting."""
    spans = []
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    next_headers = [*headers[1:], len(lines)]
    for start, next_header in zip(headers, next_headers, strict=False):
        if not _RULE_HEADER.match(lines[start]):
            continue
        end = next_header
        while end > start + 1 and _BLANK_OR_COMMENT.match(lines[end - 1]):
            end -= 1
        spans.append((start, end))
    return spans


def _write_rules(file: Path, text: str, changed: str, rules: tuple[Rule, ...]) -> None:
    """Write the text if it contains exactly the given rules and leaves the other settings unchanged."""
    before = parse_toml(text, file)
    before.pop("rules", None)
    with suppress(tomllib.TOMLDecodeError):
        after = tomllib.loads(changed)
        found = tuple(Rule(**values) for values in after.pop("rules", ()))
        if (after, found) == (before, rules):
            _replace_file(file, changed)
            return
    raise _cannot_edit(file, "[[rules]]")


def set_server(
    config: Config,
    name: str,
    values: Mapping[str, Any] | None,
    *,
    key: str | None = None,
) -> None:
    """Write the section [mcp.NAME], or remove the section if `values` is `None`. `key` is the key itself."""
    with _locked_folder(config):
        wanted = _parse_file(config.file)
        servers = wanted.setdefault("mcp", {})
        keys = ""
        if values is None:
            if servers.pop(name, None) is None:
                raise _no_server(name)
        else:
            section = dict(values)
            if key:
                secrets = read_text(config.file.with_name("secrets.toml")) or ""
                section["key"], keys = _add_key(
                    config.file, f"MCP_{name}", key, secrets
                )
            # A section that `load` would refuse is not written.
            check_server(name, section, config.file)
            servers[name] = section

        def edit(document: Any) -> None:  # noqa: ANN401
            if values is None:
                del document["mcp"][name]
            else:
                _set_section(document, "mcp", name, servers[name])

        _edit_file(config.file, wanted, edit, f"[mcp.{name}]", keys)


def trust_server(config: Config, name: str, *, trusted: bool) -> None:
    """Set whether to trust a server's description of its own tools."""
    section = _parse_file(config.file).get("mcp", {}).get(name)
    if section is None:
        raise _no_server(name)
    set_server(config, name, {**section, "trusted": trusted})


def _no_server(name: str) -> InvalidInput:
    return InvalidInput(
        f"The server {name} no longer exists.", hint="Look at the list again."
    )


def set_channel(
    config: Config,
    label: str,
    values: Mapping[str, Any] | None,
    *,
    token: str | None,
) -> None:
    """Write the section [channels.LABEL], or remove the section if `values` is `None`.

    `token` is the token itself. With `None`, the token stays as it is. A token that nothing uses any more is removed
    from secrets.toml.
    """
    with _locked_folder(config):
        wanted = _parse_file(config.file)
        channels = wanted.setdefault("channels", {})
        before = channels.pop(label, {})
        keys = ""
        if values is None:
            if not before:
                raise InvalidInput(
                    f"The account {label} no longer exists.",
                    hint="Look at the list again.",
                )
        else:
            section = dict(values)
            if token is not None:
                secrets = read_text(config.file.with_name("secrets.toml")) or ""
                section["token"], keys = _add_key(
                    config.file, f"CHANNEL_{label}", token, secrets
                )
            elif "token" in before:
                section.setdefault("token", before["token"])
            # A section that `load` would refuse is not written. The other sections need the environment of the person,
            # and stay as they are.
            check_values(config, {"channels": {label: section}}, {})
            channels[label] = section

        def edit(document: Any) -> None:  # noqa: ANN401
            if values is None:
                del document["channels"][label]
            else:
                _set_section(document, "channels", label, section)

        _edit_file(config.file, wanted, edit, f"[channels.{label}]", keys)
        _forget_key(config.file, before.get("token"), wanted)


class Rules:
    """The current rules of the file. Every call checks the file, so an edit takes effect at once.

    With `allows=False` only the deny rules are returned: allow rules are for the owner of the file only.
    """

    def __init__(self, config: Config, *, allows: bool = True) -> None:
        self._file = config.file
        self._rules = config.rules
        self._allows = allows
        self._version: tuple[int, ...] | None = None

    def __call__(self) -> tuple[Rule, ...]:
        version = file_version(self._file)
        if version != self._version:
            try:
                self._rules = read_rules(self._file)
                self._version = version
            except ConfigError as error:
                log.warning(
                    "The rules stay as they were: %s", error, extra={"action": "rules"}
                )
        if self._allows:
            return self._rules
        return tuple(rule for rule in self._rules if rule.verdict == "deny")


def file_version(file: Path) -> tuple[int, ...]:
    """Return a value that differs after every change of the file, even after two changes within a tick of the file's
    clock.
    """
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size


@contextmanager
def _locked_folder(config: Config) -> Iterator[None]:
    """Lock the folder of the settings file, so that two concurrent changes are both kept."""
    file = config.file
    folder = Path(os.path.realpath(file)).parent
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise _cannot_write(file, error) from error
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, config.timing.settings_lock_seconds))
        except TimeoutError as error:
            raise ConfigError(
                f"Timed out waiting for the lock on {file}.", hint="Try again."
            ) from error
        except OSError:
            # The file system has no locks, or the folder cannot be used. In the second
            # case the write fails, with a sentence that says why.
            pass
        yield


def _refuse_if_locked(config: Config) -> None:
    variable = config.locked.get("model")
    if variable:
        raise ConfigError(
            f"{variable} chooses the model, so it cannot be changed here.",
            hint=f"Unset {variable}, and try again.",
        )


def _parse_file(file: Path) -> dict[str, Any]:
    return parse_toml(read_text(file) or "", file)


def _edit_file(
    file: Path,
    wanted: Mapping[str, Any],
    edit: Callable[[Any], None],
    edited: str,
    keys: str = "",
) -> None:
    """Edit the document, and write it only if the result equals `wanted`. The keys are written first.

    The check is needed because TOML can express the same value in many ways, and tomlkit does not edit all of them
    well.
    """
    try:
        document = tomlkit.parse(read_text(file) or "")
        edit(document)
        changed = tomlkit.dumps(document)
        # A section without content may be there or not.
        empty: dict[str, Any] = {"mcp": {}, "channels": {}}
        is_as_wanted = {**empty, **tomllib.loads(changed)} == {**empty, **wanted}
    except (TOMLKitError, TypeError, ValueError, KeyError) as error:
        raise _cannot_edit(file, edited) from error
    if not is_as_wanted:
        raise _cannot_edit(file, edited)
    if keys:
        _replace_file(file.with_name("secrets.toml"), keys, mode=_NEW_MODE)
    _replace_file(file, changed)


def _set_model(document: Any, label: str) -> None:  # noqa: ANN401
    if document.get("model") != label:
        document["model"] = label


def _set_section(
    document: Any,  # noqa: ANN401
    kind: str,
    name: str,
    section: Mapping[str, Any],
) -> None:
    """Write the section [KIND.NAME]. An existing section keeps its comments."""
    known = document.get(kind, {}).get(name)
    if known is None:
        table = tomlkit.table()
        table.update(section)
        document.setdefault(kind, tomlkit.table(is_super_table=True))[name] = table
    elif known != section:
        for setting in [setting for setting in known if setting not in section]:
            del known[setting]
        known.update(section)


def _cannot_edit(file: Path, edited: str) -> ConfigError:
    return ConfigError(
        f"Tenax cannot edit {edited} in {file} safely, because of the way the file is written.",
        hint=f"Edit {edited} by hand; docs/CONFIGURATION.md describes the settings.",
    )


def _add_key(file: Path, label: str, key: str, text: str) -> tuple[str, str]:
    """Return the reference to a key, and the text of secrets.toml with the key added to `text`."""
    keys = file.with_name("secrets.toml")
    key = Secret(key, "what was given").reveal()
    try:
        known = tomllib.loads(text)
    except ValueError:
        # The cause is left out: it could quote a key.
        raise ConfigError(
            f'{keys} is not valid TOML: it holds lines like NAME = "...".'
        ) from None
    base = f"KEY_{re.sub(r'[^A-Za-z0-9]', '_', label).upper()[:_NAME_CHARS_MAX]}"
    name = next(name for name in _number_names(base) if known.get(name, key) == key)
    document = tomlkit.parse(text)
    document[name] = key
    return f"secret:{name}", tomlkit.dumps(document)


def _number_names(name: str) -> Iterator[str]:
    """Yield NAME, NAME2, NAME3 and so on."""
    yield name
    yield from (f"{name}{number}" for number in count(2))


def _replace_file(file: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file. The file keeps its mode unless `mode` is given. A link stays a link."""
    real = Path(os.path.realpath(file))
    try:
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A rename needs no permission to write the old file, so the permission is checked.
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if mode is None:
            mode = real.stat().st_mode & 0o777 if real.exists() else _NEW_MODE
        write_atomically(real, text.encode(), mode=mode)
    except OSError as error:
        raise _cannot_write(file, error) from error


def _cannot_write(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{file} cannot be written: {error.strerror}.",
        hint="Nothing in it was changed.",
    )
