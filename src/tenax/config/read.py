"""The configuration: one frozen value, built once at the edge by `load` and handed down.

One TOML file is the truth. An environment variable wins over it, and `Config.locked` says so. Nothing is
read at import, and the environment only through the mapping that the caller passes in.

A key of a provider never stands in the file: `key = "env:NAME"` or `key = "secret:NAME"` says where it is. It is held as
a `Secret`, which prints as stars.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from tenax.config.rules import Rule, mistake
from tenax.errors import ConfigError

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
HOST: Final = "127.0.0.1"
PORT: Final = 8629
PORT_MAX: Final = 65_535
SIGN_IN_DAYS: Final = 90
SIGN_IN_DAYS_MAX: Final = 400  # browsers keep no cookie for longer
NAME_BYTES_MAX: Final = 255

Api = Literal["openai", "anthropic", "practice", "script"]
Resume = Literal["auto", "ask"]

# Where an api is, and where its key is, when the file does not say. A key goes to its own provider only.
USUAL: Final = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
}

# Every name that the file may hold: at its top, in a section, in each section [models.NAME] and [mcp.NAME], and in each of [[rules]].
TOP: Final[Mapping[str, type]] = {"model": str, "fallback": list, "resume": str}
SECTIONS: Final[Mapping[str, Mapping[str, type]]] = {
    "store": {"url": str},
    "tools": {"folder": str},
    "search": {"searxng": str, "brave": str, "tavily": str},
    "budget": {"day": float, "conversation": float},
    "serve": {"host": str, "port": int, "proxies": list, "sign_in_days": int},
    "memory": {"review": bool, "providers": list},
}
MODEL: Final[Mapping[str, type]] = {
    "api": str,
    "url": str,
    "name": str,
    "key": str,
    "context": int,
    "max_tokens": int,
    "price_input": float,
    "price_output": float,
    "sees": bool,
}
MCP: Final[Mapping[str, type]] = {
    "command": list,
    "env": list,
    "url": str,
    "key": str,
    "header": str,
    "trusted": bool,
}
RULE: Final[Mapping[str, type]] = {"verdict": str, "tool": str, "touches": str}

_SHAPES: Final = {
    bool: "true or false: {name} = true",
    str: 'text in quotes: {name} = "..."',
    int: "a whole number above 0: {name} = 1000",
    float: "a number, 0 or more: {name} = 1.5",
    list: 'a list of names in quotes: {name} = ["..."]',
}


class Secret:
    """A key, or why there is none. It prints as stars; `reveal` is the only way to it."""

    __slots__ = ("_value", "_where")

    def __init__(self, value: str | None, where: str) -> None:
        self._value = value.strip() if value else None
        self._where = where

    def reveal(self) -> str:
        """The key. Where it is missing, or is none, that is said only now: not everything needs a model."""
        if not self._value:
            raise ConfigError(f"A key is to be in {self._where}, and there is none.")
        if not re.fullmatch(r"[!-~]+", self._value):
            raise ConfigError(
                f"What is in {self._where} holds a space or a character that no key has."
            )
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._value, self._where) == (
            other._value,
            other._where,
        )

    def __hash__(self) -> int:
        return hash((self._value, self._where))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One [models.NAME]: how a model is reached. Prices are US dollars for a million tokens."""

    label: str
    """Its name in the file."""
    api: Api
    url: str = field(repr=False)  # may hold a password
    name: str
    """What the provider calls it."""
    key: Secret | None = None
    context: int | None = None
    max_tokens: int | None = None
    price_input: float | None = None
    price_output: float | None = None
    sees: bool | None = None
    """Whether it can be shown pictures; None: as is known of its family."""

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """What so many tokens cost at these prices, in US dollars; None where no price was set."""
        if self.price_input is None and self.price_output is None:
            return None
        return (
            tokens_in * (self.price_input or 0) + tokens_out * (self.price_output or 0)
        ) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """One [mcp.NAME]: a server of tools that is started here, by `command`, or is at `url`."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str | Secret] = field(default_factory=dict)
    """All that the command finds in its environment."""
    url: str = field(default="", repr=False)  # may hold a password
    key: Secret | None = None
    header: str = ""
    """Where the key goes; else it is the bearer token."""
    trusted: bool = False
    """What it says about its own tools counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are kept. Nothing is created here."""

    config: Path
    data: Path
    state: Path

    @property
    def database(self) -> Path:
        return self.data / "tenax.db"

    @property
    def witness(self) -> Path:
        """How far PostgreSQL stores had come, as this host saw it. A SQLite store has its own beside it."""
        return self.data / "witness"

    @property
    def users(self) -> Path:
        """Holds the folders of users who are not the owner (`folders.py`)."""
        return self.data / "users"

    @property
    def servers(self) -> Path:
        """Where MCP servers are started: no command writes there."""
        return self.data / "servers"

    @property
    def snapshots(self) -> Path:
        """Holds what files were before a call changed them (`tools/snapshot.py`)."""
        return self.data / "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that a person can set."""

    places: Places
    profile: str = ""
    file: Path
    store_url: str = field(repr=False)  # may hold a password: print `shown(store_url)`
    tools_folder: Path
    model: str | None = None  # the label of one of `models`
    fallback: tuple[str, ...] = ()
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    resume: Resume = "auto"
    serve_host: str = HOST
    serve_port: int = PORT
    # addresses whose connections are not limited as strangers' are
    serve_proxies: tuple[str, ...] = ()
    sign_in_days: int = SIGN_IN_DAYS
    budget_day: float | None = None  # US dollars
    budget_conversation: float | None = None
    searxng: str | None = None  # one of these three looks things up in the web
    brave: Secret | None = None
    tavily: Secret | None = None
    # a connected model looks over what was said, for what is worth remembering
    memory_review: bool = True
    memory_providers: tuple[str, ...] = ()  # the plugins that are loaded
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    # as they were when this was read: `settings.Rules` has them as they are
    rules: tuple[Rule, ...] = ()
    log: str = "warning"
    # setting -> the variable that set it
    locked: Mapping[str, str] = field(default_factory=dict)


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
        store_url = _store_url(
            url, f"store.url in {file}", places, env, base=places.data
        )

    tools_folder = _tools_folder(
        settings.get("tools", {}).get("folder"), places, env, profile
    )
    servers_env = (
        {**env, "PATH": programs_path(env["PATH"], tools_folder)}
        if "PATH" in env
        else env
    )
    models = {
        label: _model(label, values, file, env)
        for label, values in settings.get("models", {}).items()
    }
    model, fallback = _chosen(settings, models, file, env, locked)
    resume = settings.get("resume", "auto")
    if resume not in get_args(Resume):
        raise ConfigError(
            f'resume in {file} is {resume!r}; it must be "auto" or "ask".'
        )

    serve_host, serve_port = _serve(settings.get("serve", {}), file, env, locked)
    sign_in_days = settings.get("serve", {}).get("sign_in_days", SIGN_IN_DAYS)
    if not 1 <= sign_in_days <= SIGN_IN_DAYS_MAX:
        raise ConfigError(
            f"serve.sign_in_days in {file} is {sign_in_days}; it must be a whole number from 1 to {SIGN_IN_DAYS_MAX}."
        )
    memory_review, memory_providers = _memory(settings.get("memory", {}), env, locked)
    log = env.get("TENAX_LOG", "").lower() or "warning"
    if log not in LOG_LEVELS:
        raise ConfigError(
            f"TENAX_LOG is {log!r}; it must be one of {', '.join(LOG_LEVELS)}."
        )
    return Config(
        places=places,
        file=file,
        store_url=store_url,
        profile=profile or "",
        tools_folder=tools_folder,
        model=model,
        fallback=fallback,
        models=models,
        resume=cast("Resume", resume),
        serve_host=serve_host,
        serve_port=serve_port,
        serve_proxies=_proxies(settings.get("serve", {}).get("proxies", []), file),
        sign_in_days=sign_in_days,
        budget_day=settings.get("budget", {}).get("day"),
        budget_conversation=settings.get("budget", {}).get("conversation"),
        **_search(settings.get("search", {}), file, env),
        memory_review=memory_review,
        memory_providers=memory_providers,
        mcp={
            name: mcp_settings(name, each, file, servers_env)
            for name, each in settings.get("mcp", {}).items()
        },
        rules=_rules(settings, file),
        log=log,
        locked=locked,
    )


def read_rules(file: Path) -> tuple[Rule, ...]:
    """The rules in this file; none where there is no file."""
    return _rules(_read(file, must_exist=False), file)


def secrets(part: object) -> Iterator[str]:
    """Every key that stands in this part of a configuration, and every password in an address."""
    inside: Iterable[object] = ()
    if isinstance(part, Secret) and part._value:  # noqa: SLF001  (missing ones are no matter here)
        yield part._value  # noqa: SLF001
    elif isinstance(part, str):
        for pair in re.findall(
            r"://[^:@/]*:(.*)@|[?&](?:ssl)?password=([^&]*)", part, re.IGNORECASE
        ):
            yield from {"".join(pair), unquote("".join(pair))}
    elif isinstance(part, Mapping):
        inside = part.values()
    elif isinstance(part, tuple | list):
        inside = part
    elif is_dataclass(part):
        inside = (getattr(part, each.name) for each in fields(part))
    for each in inside:
        yield from secrets(each)


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
        raise ConfigError(
            "HOME is not set, so Tenax has no place for its files.",
            hint="Set TENAX_HOME=DIR.",
        )
    return home


def _path(text: str, env: Mapping[str, str], base: Path) -> Path:
    """A path that a person wrote: `~` is their home, and a relative one begins at `base`."""
    if "\0" in text or any(
        len(os.fsencode(each)) > NAME_BYTES_MAX for each in text.split("/")
    ):
        raise ConfigError(f"{text[:100]!r} cannot be the path of a file or folder.")
    if text == "~" or text.startswith("~/"):
        return _home(env) / text[2:]
    return base / text


def _store_url(
    url: str, where: str, places: Places, env: Mapping[str, str], *, base: Path
) -> str:
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


def _tools_folder(
    given: str | None, places: Places, env: Mapping[str, str], profile: str | None
) -> Path:
    """Where tools act. By itself ~/tenax; a TENAX_HOME and a profile have one of their own."""
    home = Path(env.get("HOME", ""))
    if given:
        folder = _path(given, env, places.data)
    elif profile is not None or env.get("TENAX_HOME") or not home.is_absolute():
        folder = places.data / "work"
    else:
        folder = home / "tenax"
        if _holds_program(folder):  # a clone of Tenax: no command may write what runs
            folder = places.data / "work"
    named = (
        f"tools.folder is {folder}"
        if given
        else f"tools.folder is not set, so it is {folder}"
    )
    real = [
        Path(os.path.realpath(each))
        for each in (places.config, places.data, places.state)
    ]
    if any(each.is_relative_to(os.path.realpath(folder)) for each in real):
        raise ConfigError(
            f"{named}, which holds Tenax's own files: its settings, keys and store.",
            hint="Choose a folder that does not, such as one inside it.",
        )
    private = [
        os.path.realpath(each)
        for each in (places.users, places.servers, places.snapshots)
    ]
    if any(Path(os.path.realpath(folder)).is_relative_to(each) for each in private):
        raise ConfigError(
            f"{named}, where Tenax keeps the files of other users, MCP servers and its snapshots.",
            hint=f"Choose a folder elsewhere, such as {places.data / 'work'}.",
        )
    return folder


def _holds_program(folder: Path) -> bool:
    """Return whether this very Tenax, or its Python environment, lies in the folder."""
    real = os.path.realpath(folder)
    return any(
        Path(os.path.realpath(each)).is_relative_to(real)
        for each in (__file__, sys.prefix)
    )


def programs_path(path: str, folder: Path) -> str:
    """Return this PATH without the entries in which a command could put a program: those in the folder of the tools."""

    def is_safe(entry: str) -> bool:
        ways = (os.path.normpath(entry), os.path.realpath(entry))
        return Path(entry).is_absolute() and not any(
            Path(way).is_relative_to(real)
            for way in ways
            for real in (folder, os.path.realpath(folder))
        )

    return os.pathsep.join(filter(is_safe, path.split(os.pathsep))) or os.defpath


def is_host(text: str) -> bool:
    """Whether this can be the name or the address of a host."""
    return re.fullmatch(r"[0-9A-Za-z.:_-]+", text) is not None


def _serve(
    settings: Mapping[str, Any],
    file: Path,
    env: Mapping[str, str],
    locked: dict[str, str],
) -> tuple[str, int]:
    """Where the page is served."""
    host, where = settings.get("host", HOST), f"serve.host in {file}"
    if named := env.get("TENAX_HOST"):
        host, where = named, "TENAX_HOST"
        locked["serve.host"] = where
    if not is_host(host):
        raise ConfigError(
            f"{where} is {host!r}, which is no host.",
            hint='It is a name or an address, like "127.0.0.1".',
        )
    port, where = str(settings.get("port", PORT)), f"serve.port in {file}"
    if numbered := env.get("TENAX_PORT"):
        port, where = numbered, "TENAX_PORT"
        locked["serve.port"] = where
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= PORT_MAX:
        raise ConfigError(
            f"{where} is {port!r}; it must be a whole number from 1 to {PORT_MAX}."
        )
    return host, int(port)


def _proxies(given: list[str], file: Path) -> tuple[str, ...]:
    """The addresses of the proxies before the page."""
    for address in given:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise ConfigError(
                f"serve.proxies in {file} has {address!r}, which is no address.",
                hint='Write the address that the proxy connects from: proxies = ["127.0.0.1"].',
            ) from error
    return tuple(given)


def _search(
    settings: Mapping[str, Any], file: Path, env: Mapping[str, str]
) -> dict[str, Any]:
    """The service that looks things up in the web: an address, or where a key is."""
    if len(settings) > 1:
        raise ConfigError(
            f"[search] in {file} names {', '.join(settings)}; choose one of them."
        )
    if "searxng" in settings:
        address = settings["searxng"]
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                f"search.searxng in {file} is {address!r}; it must begin with http:// or https://."
            )
        return {"searxng": address}
    return {
        name: _key(given, f"search.{name}", file, env)
        for name, given in settings.items()
    }


def _memory(
    settings: Mapping[str, Any], env: Mapping[str, str], locked: dict[str, str]
) -> tuple[bool, tuple[str, ...]]:
    """Whether talks are looked over for what is worth remembering, and which plugins are loaded beside the built-in memory."""
    review: bool = settings.get("review", True)
    if said := env.get("TENAX_MEMORY_REVIEW"):
        if said.lower() not in {"true", "false"}:
            raise ConfigError(
                f"TENAX_MEMORY_REVIEW is {said!r}; it must be true or false."
            )
        review, locked["memory.review"] = said.lower() == "true", "TENAX_MEMORY_REVIEW"
    providers: list[str] = settings.get("providers", [])
    if named := env.get("TENAX_MEMORY_PROVIDERS"):
        providers = [each.strip() for each in named.split(",") if each.strip()]
        locked["memory.providers"] = "TENAX_MEMORY_PROVIDERS"
    return review, tuple(dict.fromkeys(providers))


def mcp_settings(
    name: str, values: Mapping[str, Any], file: Path, env: Mapping[str, str]
) -> McpSettings:
    """One server of tools. A variable or a key that is missing is told when it is needed."""
    where, command, url = (
        f"mcp.{name}",
        values.get("command", []),
        values.get("url", ""),
    )
    if not re.fullmatch(r"(?=.{1,32}$)[a-z0-9]+([_-][a-z0-9]+)*", name):
        raise ConfigError(
            f"{where} in {file} cannot be the name of a server.",
            hint="It is of small letters and digits, with single - or _ between them, 32 at most.",
        )
    needs = {"env": "command", "key": "url", "header": "key"}
    if missing := [
        (each, other)
        for each, other in needs.items()
        if each in values and other not in values
    ]:
        raise ConfigError(
            f"{where} in {file} has {missing[0][0]} and no {missing[0][1]}."
        )
    if (
        bool(command) == bool(url)
        or not all(command)
        or any("\0" in each for each in command)
    ):
        raise ConfigError(
            f"{where} in {file} needs either a command or a url.",
            hint='Write command = ["PROGRAM", "..."] or url = "https://...".',
        )
    if url:
        model_url(url, f"{where}.url in {file}")
    if not re.fullmatch(r"[A-Za-z0-9-]*", values.get("header", "")):
        raise ConfigError(f"{where}.header in {file} is no name of a header.")
    passed: dict[str, str | Secret] = {
        each: env[each] for each in ("PATH", "HOME", "LANG") if each in env
    }
    passed |= {
        each: Secret(env.get(each), f"the variable {each}")
        for each in values.get("env", ())
    }
    return McpSettings(
        name=name,
        command=tuple(command),
        env=passed if command else {},
        url=url,
        key=_key(values["key"], f"{where}.key", file, env) if "key" in values else None,
        header=values.get("header", ""),
        trusted=values.get("trusted", False),
    )


def _rules(settings: Mapping[str, Any], file: Path) -> tuple[Rule, ...]:
    """What the person decided for all calls of a kind. A tool that is not there may come: its name is not looked up."""
    rules = []
    for n, values in enumerate(settings.get("rules", ()), 1):
        verdict = values.get("verdict")
        if verdict not in {"allow", "deny"}:
            raise ConfigError(
                f'rules[{n}].verdict in {file} is {verdict!r}; it must be "allow" or "deny".'
            )
        if "tool" not in values:
            raise ConfigError(
                f"rules[{n}] in {file} has no tool.",
                hint='For all of them write tool = "*".',
            )
        rules.append(Rule(verdict, values["tool"], values.get("touches", "*")))
        if said := mistake(rules[-1]):
            raise ConfigError(f"rules[{n}] in {file} cannot be a rule: its {said}.")
    return tuple(rules)


def _chosen(
    settings: Mapping[str, Any],
    models: dict[str, ModelSettings],
    file: Path,
    env: Mapping[str, str],
    locked: dict[str, str],
) -> tuple[str | None, tuple[str, ...]]:
    """The labels of the model and of those that stand in for it. A lone section needs no `model`."""
    model: str | None = settings.get(
        "model", next(iter(models)) if len(models) == 1 else None
    )
    where = f"model in {file}"
    if named := env.get("TENAX_MODEL"):
        model, where = named, "TENAX_MODEL"
        locked["model"] = where
        url = env.get("OPENAI_BASE_URL")
        if url and not models:
            key = env.get("OPENAI_API_KEY")
            models[named] = ModelSettings(
                label=named,
                api="openai",
                url=model_url(url, "OPENAI_BASE_URL"),
                name=named,
                key=Secret(key, "OPENAI_API_KEY") if key else None,
            )
    fallback = tuple(settings.get("fallback", ()))
    if model is not None:
        _known_model(model, models, where)
    for label in fallback:
        _known_model(label, models, f"fallback in {file}")
    return model, fallback


def _known_model(label: str, models: Mapping[str, ModelSettings], where: str) -> None:
    if label not in models:
        raise ConfigError(
            f"{where} names {label!r}, and there is no section [models.{label}].",
            hint=_nearest(label, models)
            if models
            else "A section [models.NAME] says how a model is reached.",
        )


def _model(
    label: str, values: Mapping[str, Any], file: Path, env: Mapping[str, str]
) -> ModelSettings:
    where = f"models.{label}"
    api = values.get("api", "openai")
    if api not in get_args(Api):
        raise ConfigError(
            f"{where}.api in {file} is {api!r}; it must be one of {', '.join(get_args(Api))}.",
        )
    if api == "practice":
        return ModelSettings(label=label, api="practice", url="", name="practice")
    url, usual_key = USUAL.get(api, ("", ""))
    key = _key(values["key"], f"{where}.key", file, env) if "key" in values else None
    if "url" in values:
        url = values["url"]
    elif not url:
        raise ConfigError(
            f"{where} in {file} has no url.",
            hint="For a script it is the path of a JSON file.",
        )
    elif key is None:
        key = Secret(env.get(usual_key), usual_key)
    if "name" not in values and api != "script":
        raise ConfigError(
            f"{where} in {file} has no name.",
            hint='Write name = "..." as the provider calls it.',
        )
    return ModelSettings(
        label=label,
        api=cast("Api", api),
        url=str(_path(url, env, file.parent))
        if api == "script"
        else model_url(url, f"{where}.url in {file}"),
        name=values.get("name", label),
        key=key,
        context=values.get("context"),
        max_tokens=values.get("max_tokens"),
        price_input=values.get("price_input"),
        price_output=values.get("price_output"),
        sees=values.get("sees"),
    )


def model_url(url: str, where: str) -> str:
    """An address as it is used; `where` it was written is told where it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        parts, host = urlsplit(""), ""
    if (
        parts.scheme not in {"http", "https"}
        or not re.fullmatch(r"[\w.:%-]+", host)
        or not url.isprintable()
    ):
        raise ConfigError(
            f"{where} is no address.", hint="It begins with http:// or https://."
        )
    return url.rstrip("/")


def _key(given: str, where: str, file: Path, env: Mapping[str, str]) -> Secret:
    """Follow env:NAME or secret:NAME. What was written instead may be the key: it is never repeated."""
    kind, _, name = given.partition(":")
    if kind not in {"env", "secret"} or not re.fullmatch(
        r"[A-Za-z_]\w{0,63}", name, re.ASCII
    ):
        raise ConfigError(
            f'{where} in {file} must be "env:NAME" or "secret:NAME", never the key itself.',
            hint="If a key stood there, somebody may have seen it: consider a new one.",
        )
    if kind == "env":
        return Secret(env.get(name), f"the environment variable {name}")
    secrets = file.with_name("secrets.toml")
    return Secret(_read_secrets(secrets).get(name), f"{secrets} under {name}")


def _read_secrets(file: Path) -> Mapping[str, str]:
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(
                f"Others can read {file}, which holds keys.",
                hint=f"Run: chmod 600 {file}",
            )
        secrets = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError):  # its cause could quote a key
        raise ConfigError(
            f'{file} is not valid TOML: it holds lines like NAME = "...".'
        ) from None
    return {name: value for name, value in secrets.items() if isinstance(value, str)}


def read_text(file: Path) -> str | None:
    """What the file holds; None where there is none."""
    try:
        # some editors begin a file with a mark of their own
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error


def parsed(text: str, file: Path) -> dict[str, Any]:
    """What this text of the file says; nothing of it is checked yet."""
    try:
        return tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number without end, or brackets in brackets
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error


def _read(file: Path, *, must_exist: bool) -> dict[str, Any]:
    text = read_text(file)
    if text is None and must_exist:
        raise ConfigError(f"TENAX_CONFIG names {file}, and there is no such file.")
    settings = parsed(text or "", file)
    _check(settings, file)
    return settings


def _check(settings: Mapping[str, Any], file: Path) -> None:
    for name, value in settings.items():
        if name in TOP:
            _check_value(name, value, TOP[name], file)
        elif name in SECTIONS:
            _check_section(name, value, SECTIONS[name], file)
        elif name in {"models", "mcp"}:
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{name} in {file} are sections: write [{name}.NAME] on a line of its own."
                )
            for label, values in value.items():
                _check_section(
                    f"{name}.{label}", values, MODEL if name == "models" else MCP, file
                )
        elif name == "rules":
            if not isinstance(value, list) or not all(
                isinstance(each, dict) for each in value
            ):
                raise ConfigError(
                    f"rules in {file} are a list: write [[rules]] on a line of its own for each."
                )
            for n, values in enumerate(value, 1):
                _check_section(f"rules[{n}]", values, RULE, file)
        else:
            raise _unknown(name, [*TOP, *SECTIONS, "models", "mcp", "rules"], file)


def _check_section(
    section: str, values: object, known: Mapping[str, type], file: Path
) -> None:
    if not isinstance(values, dict):
        raise ConfigError(
            f"{section} in {file} is a section: write [{section}] on a line of its own."
        )
    for name, value in values.items():
        if name not in known:
            raise _unknown(
                f"{section}.{name}", [f"{section}.{each}" for each in known], file
            )
        _check_value(f"{section}.{name}", value, known[name], file)


def _check_value(full: str, value: object, kind: type, file: Path) -> None:
    match value:
        case str():
            fits = kind is str
        case bool():
            fits = kind is bool
        case int() | float():
            fits = (kind is float and 0 <= value < float("inf")) or (
                kind is int and isinstance(value, int) and value > 0
            )
        case list():
            fits = kind is list and all(isinstance(each, str) for each in value)
        case _:
            fits = False
    if not fits:
        shape = _SHAPES[kind].format(name=full.rpartition(".")[2])
        raise ConfigError(f"{full} in {file} must be {shape}.")


def _unknown(name: str, known: Iterable[str], file: Path) -> ConfigError:
    return ConfigError(
        f"{file} sets {name}, which is no setting of Tenax.", hint=_nearest(name, known)
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    nearest = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return (
        f"Did you mean {nearest[0]}?" if nearest else f"Known here: {', '.join(known)}."
    )
