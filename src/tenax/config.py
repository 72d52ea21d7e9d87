"""The configuration: one frozen value, built once at the edge by `load` and handed down.

One TOML file is the truth. An environment variable wins over it, and `Config.locked` says so. Nothing is
read at import, and the environment only through the mapping that the caller passes in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tenax.errors import ConfigError

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

# Every name that the file may hold.
SETTINGS: Final[Mapping[str, Mapping[str, type]]] = {"store": {"url": str}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are kept. Nothing is created here."""

    config: Path
    data: Path
    state: Path

    @property
    def database(self) -> Path:
        return self.data / "tenax.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that a person can set."""

    places: Places
    file: Path
    store_url: str = field(repr=False)  # may hold a password: print `shown(store_url)`
    log: str = "warning"
    locked: Mapping[str, str] = field(default_factory=dict)  # setting -> the variable that set it


def load(env: Mapping[str, str], *, profile: str | None = None) -> Config:
    """Read the file and the environment. What is wrong is a `ConfigError` that names its place."""
    places = _places(env, profile)
    named = env.get("TENAX_CONFIG")
    file = _path(named, env, Path.cwd()) if named else places.config / "config.toml"
    settings = _read(file, must_exist=bool(named))
    locked: dict[str, str] = {}

    if url := env.get("TENAX_STORE"):
        locked["store.url"] = "TENAX_STORE"
        store_url = _store_url(url, "TENAX_STORE", places, env, base=Path.cwd())
    else:
        url = settings.get("store", {}).get("url", "sqlite")
        store_url = _store_url(url, f"store.url in {file}", places, env, base=places.data)

    log = env.get("TENAX_LOG", "").lower() or "warning"
    if log not in LOG_LEVELS:
        raise ConfigError(f"TENAX_LOG is {log!r}; it must be one of {', '.join(LOG_LEVELS)}.")
    return Config(places=places, file=file, store_url=store_url, log=log, locked=locked)


def shown(url: str) -> str:
    """The URL as it may be printed: without its password.

    Where a URL is malformed and the end of the password is unclear, too much is hidden rather than too little.
    """
    url = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url, count=1)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)


def _places(env: Mapping[str, str], profile: str | None) -> Places:
    if home := env.get("TENAX_HOME"):
        root = _path(home, env, Path.cwd())
        places = Places(config=root, data=root, state=root)
    else:
        places = Places(
            config=_xdg(env, "XDG_CONFIG_HOME", ".config"),
            data=_xdg(env, "XDG_DATA_HOME", ".local/share"),
            state=_xdg(env, "XDG_STATE_HOME", ".local/state"),
        )
    if profile is None:
        return places
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", profile):
        raise ConfigError(
            f"{profile!r} cannot be the name of a profile.",
            hint="Use small letters, digits, - and _, and begin with a letter or a digit.",
        )
    root = places.data / "profiles" / profile
    return Places(config=root, data=root, state=root)


def _xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    """The XDG rule: a relative path is as good as none."""
    given = Path(env.get(name, ""))
    return (given if given.is_absolute() else _home(env) / default) / "tenax"


def _home(env: Mapping[str, str]) -> Path:
    home = Path(env.get("HOME", ""))
    if not home.is_absolute():
        raise ConfigError("HOME is not set, so Tenax has no place for its files.", hint="Set TENAX_HOME=DIR.")
    return home


def _path(text: str, env: Mapping[str, str], base: Path) -> Path:
    """A path that a person wrote: `~` is their home, and a relative one begins at `base`."""
    if text == "~" or text.startswith("~/"):
        return _home(env) / text[2:]
    return base / text


def _store_url(url: str, where: str, places: Places, env: Mapping[str, str], *, base: Path) -> str:
    """A full URL. The path of `sqlite:///` stands as it is, not percent-encoded."""
    scheme, colon, rest = url.partition("://")
    if url == "sqlite":
        return f"sqlite:///{places.database}"
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return f"sqlite:///{_path(rest[1:], env, base)}"
    if scheme in {"postgresql", "postgres"} and colon:
        return f"postgresql://{rest}"
    raise ConfigError(
        f"{where} is {shown(url)!r}, which is no store that Tenax knows.",
        hint='Use "sqlite", "sqlite:///PATH" or "postgresql://USER@HOST/DATABASE".',
    )


def _read(file: Path, *, must_exist: bool) -> dict[str, dict[str, Any]]:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not must_exist:
            return {}
        raise ConfigError(f"TENAX_CONFIG names {file}, and there is no such file.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error
    _check(settings, file)
    return settings


def _check(settings: Mapping[str, Any], file: Path) -> None:
    for section, values in settings.items():
        if section not in SETTINGS:
            raise _unknown(section, SETTINGS, file)
        if not isinstance(values, dict):
            raise ConfigError(f"{section} in {file} is a section: write [{section}] on a line of its own.")
        names = {f"{section}.{name}": kind for name, kind in SETTINGS[section].items()}
        for name, value in values.items():
            full = f"{section}.{name}"
            if full not in names:
                raise _unknown(full, names, file)
            if not isinstance(value, names[full]):
                raise ConfigError(f'{full} in {file} must be text in quotes: {name} = "...".')


def _unknown(name: str, known: Iterable[str], file: Path) -> ConfigError:
    known = sorted(known)
    nearest = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"Did you mean {nearest[0]}?" if nearest else f"Known here: {', '.join(known)}."
    return ConfigError(f"{file} sets {name}, which is no setting of Tenax.", hint=hint)
