"""Changes to the one TOML file, for the faces that set Tenax up. Its comments and its order stay.

A file is replaced as a whole or not at all: a crash or a full disk leaves the old one. A key goes into `secrets.toml`,
which nobody else can read from its first moment on; the file itself only ever names it. One changes it at a time.
Whoever changes something here loads the configuration again; only rules are looked up in the file itself (`Rules`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tenax.config.read import (
    Config,
    Secret,
    mcp_settings,
    parsed,
    read_rules,
    read_text,
)
from tenax.config.rules import Rule, mistake
from tenax.errors import ConfigError, InvalidInput

__all__ = [
    "Rules",
    "add_model",
    "add_rule",
    "choose_model",
    "remove_rule",
    "set_server",
    "stamp",
    "trust_server",
]

log = logging.getLogger(__name__)

_NEW_MODE: Final = 0o600
_NAME_CHARS_MAX: Final = 50
_TURN_SECONDS: Final = 5.0
_RULE: Final = re.compile(r"\s*\[\[\s*rules\s*\]\]")
_HEADER: Final = re.compile(r"\s*\[")
_NOTHING: Final = re.compile(r"\s*(#.*)?$")


def add_model(
    config: Config,
    label: str,
    values: Mapping[str, Any],
    *,
    key: str | None = None,
    choose: bool = True,
) -> str:
    """Write the section [models.LABEL] and, unless told not to, choose it. The label that it got.

    The same section again stays one; other values under a label that is taken get a number. `key` is the key itself.
    """
    if choose:
        _refuse_locked(config)
    with _turn(config.file):
        wanted, section, keys = _known(config.file), dict(values), ""
        if key is not None:
            section["key"], keys = _with_secret(config.file, label, key)
        models = wanted.setdefault("models", {})
        label = next(
            each for each in _numbered(label) if models.get(each, section) == section
        )
        models[label] = section
        if choose:
            wanted["model"] = label

        def add(document: Any) -> None:  # noqa: ANN401
            if choose:
                _choose(document, label)
            _put(document, "models", label, section)

        _change(config.file, wanted, add, _add_by_hand(label), keys)
        return label


def choose_model(config: Config, label: str) -> None:
    """Let this model answer from now on."""
    _refuse_locked(config)
    if label not in config.models:
        raise ConfigError(
            f"There is no model {label!r}.",
            hint=f"There are: {', '.join(config.models)}.",
        )
    with _turn(config.file):
        wanted = _known(config.file) | {"model": label}
        _change(
            config.file,
            wanted,
            lambda document: _choose(document, label),
            _add_by_hand(label),
        )


def add_rule(config: Config, rule: Rule) -> None:
    """Decide this for all calls of a kind from now on. The same rule again stays one."""
    if said := mistake(rule):
        raise InvalidInput(f"This cannot be a rule: its {said}.")
    with _turn(config.file):
        text, known = read_text(config.file) or "", read_rules(config.file)
        if rule in known:
            return
        values = {"verdict": rule.verdict, "tool": rule.tool, "touches": rule.touches}
        lines = [
            f"{name} = {tomlkit.string(value).as_string()}\n"
            for name, value in values.items()
        ]
        before = f"{text.rstrip()}\n\n" if text.strip() else ""
        _write_rules(
            config.file, text, "".join([before, "[[rules]]\n", *lines]), (*known, rule)
        )


def remove_rule(config: Config, rule: Rule) -> None:
    """Take a rule back. What stands around it in the file stays, comments too."""
    with _turn(config.file):
        text, known = read_text(config.file) or "", read_rules(config.file)
        if rule not in known:
            raise InvalidInput(
                "There is no such rule any more.", hint="Look at the list again."
            )
        lines = text.splitlines(keepends=True)
        starts = [n for n, line in enumerate(lines) if _RULE.match(line)]
        for n in reversed(
            [n for n, each in enumerate(known) if each == rule and n < len(starts)]
        ):
            end = next(
                (
                    at
                    for at in range(starts[n] + 1, len(lines))
                    if _HEADER.match(lines[at])
                ),
                len(lines),
            )
            while end > starts[n] + 1 and _NOTHING.match(lines[end - 1]):
                end -= 1
            del lines[starts[n] : end]
        _write_rules(
            config.file,
            text,
            "".join(lines),
            tuple(each for each in known if each != rule),
        )


def set_server(
    config: Config,
    name: str,
    values: Mapping[str, Any] | None,
    *,
    key: str | None = None,
) -> None:
    """Write the section [mcp.NAME], or with None take it away. `key` is the key itself."""
    with _turn(config.file):
        wanted, keys = _known(config.file), ""
        servers = wanted.setdefault("mcp", {})
        if values is None and servers.pop(name, None) is None:
            raise InvalidInput(
                f"There is no server {name} any more.", hint="Look at the list again."
            )
        if values is not None:
            servers[name] = dict(values)
            if key:
                servers[name]["key"], keys = _with_secret(
                    config.file, f"MCP_{name}", key
                )
            # what could not be read again is not written
            mcp_settings(name, servers[name], config.file, {})

        def change(document: Any) -> None:  # noqa: ANN401
            if values is None:
                del document["mcp"][name]
            else:
                _put(document, "mcp", name, servers[name])

        by_hand = (
            f"Change [mcp.{name}] by hand; docs/CONFIGURATION.md says what it holds."
        )
        _change(config.file, wanted, change, by_hand, keys)


def trust_server(config: Config, name: str, *, trusted: bool) -> None:
    """Let what a server says about its own tools count, or no longer."""
    known = _known(config.file).get("mcp", {}).get(name)
    if known is None:
        raise InvalidInput(
            f"There is no server {name} any more.", hint="Look at the list again."
        )
    set_server(config, name, {**known, "trusted": trusted})


def _write_rules(file: Path, text: str, changed: str, rules: tuple[Rule, ...]) -> None:
    """Write the text with these rules. It is compared with what it should say: a file is never spoiled."""
    before = parsed(text, file)
    with suppress(tomllib.TOMLDecodeError):
        after = tomllib.loads(changed)
        found = tuple(Rule(**each) for each in after.pop("rules", ()))
        before.pop("rules", None)
        if (after, found) == (before, rules):
            _write(file, changed)
            return
    raise _harm(
        file, "Change its rules by hand; docs/CONFIGURATION.md says what they hold."
    )


class Rules:
    """The rules as the file says them now: it is looked at before each use, so that whoever changes them, they hold at once.

    Without `allows` only what forbids: a rule allows for the person whose file this is, and for nobody else.
    """

    def __init__(self, config: Config, *, allows: bool = True) -> None:
        self._file, self._rules, self._allows = config.file, config.rules, allows
        self._seen: object = None

    def __call__(self) -> tuple[Rule, ...]:
        if self._seen != (seen := stamp(self._file)):
            try:
                self._rules, self._seen = read_rules(self._file), seen
            except ConfigError as error:
                log.warning(
                    "The rules stay as they were: %s", error, extra={"action": "rules"}
                )
        return tuple(
            each for each in self._rules if self._allows or each.verdict == "deny"
        )


def stamp(file: Path) -> tuple[int, ...]:
    """Another one whenever the file is another; also one that was empty for less than a tick of its clock."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


@contextmanager
def _turn(file: Path) -> Iterator[None]:
    """Have the file for oneself: two who change it at once, in one process or in two, both have their way."""
    folder = Path(os.path.realpath(file)).parent
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.",
            hint="Nothing in it was changed.",
        ) from error
    try:
        until = time.monotonic() + _TURN_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ConfigError(
                        f"Somebody else changes {file} all the time.", hint="Try again."
                    ) from None
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(lock)


def _refuse_locked(config: Config) -> None:
    if variable := config.locked.get("model"):
        raise ConfigError(
            f"{variable} says which model answers, so it cannot be changed here.",
            hint=f"Unset {variable}, and try again.",
        )


def _known(file: Path) -> dict[str, Any]:
    return parsed(read_text(file) or "", file)


def _change(
    file: Path,
    wanted: Mapping[str, Any],
    change: Callable[[Any], None],
    by_hand: str,
    keys: str = "",
) -> None:
    """Change the file, after the keys that it will name. It is compared with what it should say: a file is never spoiled."""
    try:
        document = tomlkit.parse(read_text(file) or "")
        change(document)
        changed = tomlkit.dumps(document)
        as_wanted = {"mcp": {}, **tomllib.loads(changed)} == {"mcp": {}, **wanted}
    except (TOMLKitError, TypeError, ValueError, KeyError) as error:
        raise _harm(file, by_hand) from error
    if not as_wanted:
        raise _harm(file, by_hand)
    if keys:
        _write(file.with_name("secrets.toml"), keys, mode=_NEW_MODE)
    _write(file, changed)


def _choose(document: Any, label: str) -> None:  # noqa: ANN401
    if document.get("model") != label:
        document["model"] = label


def _put(document: Any, kind: str, name: str, section: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Write [KIND.NAME]. One that is there keeps its comments."""
    known = document.get(kind, {}).get(name)
    if known is None:
        table = tomlkit.table()
        table.update(section)
        document.setdefault(kind, tomlkit.table(is_super_table=True))[name] = table
    elif known != section:
        known.update(section)


def _harm(file: Path, by_hand: str) -> ConfigError:
    return ConfigError(
        f"{file} is written in a way that Tenax cannot change without harm.",
        hint=by_hand,
    )


def _add_by_hand(label: str) -> str:
    return f"Add the section [models.{label}] by hand; docs/CONFIGURATION.md says what it holds."


def _with_secret(file: Path, label: str, key: str) -> tuple[str, str]:
    """How the file names this key, and the file of secrets with it."""
    keys = file.with_name("secrets.toml")
    key, text = Secret(key, "what was given").reveal(), read_text(keys) or ""
    try:
        known = tomllib.loads(text)
    except ValueError:  # its cause could quote a key
        raise ConfigError(
            f'{keys} is not valid TOML: it holds lines like NAME = "...".'
        ) from None
    base = f"KEY_{re.sub(r'[^A-Za-z0-9]', '_', label).upper()[:_NAME_CHARS_MAX]}"
    name = next(each for each in _numbered(base) if known.get(each, key) == key)
    document = tomlkit.parse(text)
    document[name] = key
    return f"secret:{name}", tomlkit.dumps(document)


def _numbered(name: str) -> Iterator[str]:
    """The name, then with a 2, a 3 and so on."""
    yield name
    yield from (f"{name}{number}" for number in count(2))


def _write(file: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file at once. It keeps who may read it, or gets `mode`; a link stays one."""
    real = Path(os.path.realpath(file))
    new = real.with_name(f".{real.name}.{secrets.token_hex(4)}")
    try:
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if real.exists() and not os.access(real, os.W_OK):  # a rename would not ask
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if mode is None:
            mode = real.stat().st_mode & 0o777 if real.exists() else _NEW_MODE
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_MODE)
            with open(descriptor, "wb") as out:  # noqa: PTH123  (of a descriptor)
                out.write(text.encode())
                os.fchmod(out.fileno(), mode)
                out.flush()
                os.fsync(out.fileno())
            new.replace(real)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        _flush(real.parent)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}.",
            hint="Nothing in it was changed.",
        ) from error


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
