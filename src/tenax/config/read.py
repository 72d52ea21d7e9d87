"""Load the configuration: a frozen value, built once by `load` and passed down.

A TOML file holds the settings. An environment variable overrides its setting, and `Config.locked` lists the override.
Nothing is read at import, and the environment is read only through the mapping passed by the caller.

The file never contains the key of a provider: `key = "env:NAME"` or `key = "secret:NAME"` is a reference to the key.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from tenax.clock import Timing
from tenax.config.decode import Decoder, parse_toml, read_text, suggest
from tenax.config.rules import Rule, find_mistake
from tenax.config.schema import (
    Backup,
    Budget,
    ChannelSettings,
    FileSettings,
    McpSettings,
    Memory,
    ModelSettings,
    Resume,
    RuleSettings,
    Search,
    Serve,
    Speech,
    is_host,
)
from tenax.config.secret import Secret, hide_password
from tenax.errors import ConfigError

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
FILE_NAME_BYTES_MAX: Final = 255
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_PATH: Final = re.compile(r"(/[0-9A-Za-z_-][0-9A-Za-z._~-]*)*", re.ASCII)
"""The path of a public address. No part begins with a dot, so the path means the same to every program."""

# The URL of a provider, and the variable with its key, if the file names neither. A key goes to its own provider only.
PROVIDER_DEFAULTS: Final = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directories:
    """The folders of an installation or a profile. The class does not create them."""

    config: Path
    data: Path
    state: Path

    @property
    def database(self) -> Path:
        return self.data / "tenax.db"

    @property
    def witness(self) -> Path:
        """The file with the newest position of each PostgreSQL store.

        A SQLite store has a witness file beside the database.
        """
        return self.data / "witness"

    @property
    def users(self) -> Path:
        """The folder with the folders of all users except the local user (`tools/folders.py`)."""
        return self.data / "users"

    @property
    def servers(self) -> Path:
        """The working directory of MCP servers. Shell commands cannot write there."""
        return self.data / "servers"

    @property
    def channels(self) -> Path:
        """The folder with the folders of accounts in chat apps, such as the keys of encrypted rooms."""
        return self.data / "channels"

    @property
    def snapshots(self) -> Path:
        """The folder with earlier contents of changed files (`workspace/snapshots.py`)."""
        return self.data / "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The checked configuration, with absolute paths and URLs. `schema.py` describes the settings."""

    directories: Directories
    profile: str = ""
    file: Path
    # The URL may contain a password: print `hide_password(store_url)`.
    store_url: str = field(repr=False)
    tools_folder: Path
    model: str | None = None
    fallback: tuple[str, ...] = ()
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    resume: Resume = "auto"
    serve: Serve = field(default_factory=Serve)
    budget: Budget = field(default_factory=Budget)
    backup: Backup = field(default_factory=Backup)
    # The folder of `backup`, as an absolute path.
    backup_folder: Path = Path()
    search: Search = field(default_factory=Search)
    speech: Speech = field(default_factory=Speech)
    memory: Memory = field(default_factory=Memory)
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    channels: Mapping[str, ChannelSettings] = field(default_factory=dict)
    # The rules at the time of `load`. `config.write.Rules` follows the file.
    rules: tuple[Rule, ...] = ()
    log: str = "warning"
    # Maps each setting that an environment variable overrides to the name of the variable.
    locked: Mapping[str, str] = field(default_factory=dict)
    # `--no-context-files` turns the instruction files of folders off, whatever the file says.
    context_files: bool = True
    # Not settings: only tests pass other values.
    timing: Timing = field(default_factory=Timing)


def load(
    env: Mapping[str, str], *, profile: str | None = None, context_files: bool = True
) -> Config:
    """Read the file and the environment. Raises `ConfigError` naming the wrong setting."""
    directories = _find_directories(env, profile)
    file = _find_file(env, directories)
    values = _read_file(file, must_exist=bool(env.get("TENAX_CONFIG")))
    return _resolve(
        values, file, directories, env, profile, context_files=context_files
    )


def check_values(
    config: Config, values: Mapping[str, Any], env: Mapping[str, str]
) -> None:
    """Raise `ConfigError` if a file with the values could not be loaded."""
    profile = config.profile or None
    _resolve(values, config.file, config.directories, env, profile, context_files=True)


def _resolve(
    values: Mapping[str, Any],
    file: Path,
    directories: Directories,
    env: Mapping[str, str],
    profile: str | None,
    *,
    context_files: bool,
) -> Config:
    """Return the configuration with the values of a file."""
    decoder = Decoder(file, env)
    settings = decoder.decode_file(values)
    tools_folder = _resolve_tools_folder(
        settings.tools.folder, directories, env, profile
    )
    models = {
        label: _resolve_model(label, model, file, env)
        for label, model in settings.models.items()
    }
    _add_model_of_environment(models, env)
    return Config(
        context_files=context_files and settings.context_files,
        directories=directories,
        profile=profile or "",
        file=file,
        store_url=_resolve_store_url(
            settings.store.url, directories, env, file, decoder.locked
        ),
        tools_folder=tools_folder,
        model=_choose_model(settings, models, file, decoder.locked),
        fallback=settings.fallback,
        models=models,
        resume=settings.resume,
        serve=_resolve_serve(settings.serve, file, decoder.locked),
        budget=settings.budget,
        backup=settings.backup,
        backup_folder=_resolve_path(
            settings.backup.folder or "backups", env, directories.data
        ),
        search=_check_search(settings.search, file),
        speech=_check_speech(settings.speech, file),
        memory=replace(
            settings.memory, providers=tuple(dict.fromkeys(settings.memory.providers))
        ),
        mcp={
            name: resolve_server(name, server, file, _servers_env(env, tools_folder))
            for name, server in settings.mcp.items()
        },
        channels={
            label: _resolve_channel(label, channel, file, directories)
            for label, channel in settings.channels.items()
        },
        rules=_check_rules(settings.rules, file),
        log=_log_level(env),
        locked=decoder.locked,
    )


def read_rules(file: Path) -> tuple[Rule, ...]:
    """Return the rules in a file. Raises `ConfigError` if anything in the file is invalid."""
    decoder = Decoder(file, {}, follow_keys=False)
    settings = decoder.decode_file(_read_file(file, must_exist=False))
    return _check_rules(settings.rules, file)


def check_server(name: str, values: Mapping[str, Any], file: Path) -> None:
    """Raise `ConfigError` if the values are invalid for the section [mcp.NAME]."""
    decoder = Decoder(file, {}, follow_keys=False)
    server = decoder.decode_table(values, McpSettings, f"mcp.{name}")
    resolve_server(name, server, file, {})


def _read_file(file: Path, *, must_exist: bool) -> dict[str, Any]:
    text = read_text(file)
    if text is None and must_exist:
        raise ConfigError(f"TENAX_CONFIG names {file}, and there is no such file.")
    return parse_toml(text or "", file)


# -- paths --------------------------------------------------------------------------------------------------------


def _find_directories(env: Mapping[str, str], profile: str | None) -> Directories:
    home = env.get("TENAX_HOME")
    if home:
        root = _resolve_path(home, env, Path.cwd())
        directories = Directories(config=root, data=root, state=root)
    else:
        directories = Directories(
            config=_xdg_folder(env, "XDG_CONFIG_HOME", ".config"),
            data=_xdg_folder(env, "XDG_DATA_HOME", ".local/share"),
            state=_xdg_folder(env, "XDG_STATE_HOME", ".local/state"),
        )
    if profile is None:
        return directories
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", profile):
        raise ConfigError(
            f"{profile!r} cannot be the name of a profile.",
            hint="Use small letters, digits, - and _, and begin with a letter or a digit.",
        )
    root = directories.data / "profiles" / profile
    return Directories(config=root, data=root, state=root)


def _xdg_folder(env: Mapping[str, str], variable: str, default: str) -> Path:
    """Return Tenax's folder in an XDG base directory. The XDG specification ignores relative paths."""
    base = Path(env.get(variable, ""))
    if not base.is_absolute():
        base = _home(env) / default
    return base / "tenax"


def _home(env: Mapping[str, str]) -> Path:
    home = Path(env.get("HOME", ""))
    if not home.is_absolute():
        raise ConfigError(
            "HOME is not set, so Tenax has no place for its files.",
            hint="Set TENAX_HOME=DIR.",
        )
    return home


def _find_file(env: Mapping[str, str], directories: Directories) -> Path:
    name = env.get("TENAX_CONFIG")
    if name:
        return _resolve_path(name, env, Path.cwd())
    return directories.config / "config.toml"


def _resolve_path(text: str, env: Mapping[str, str], base: Path) -> Path:
    """Expand `~` in a path from a person. A relative path starts at `base`."""
    names = text.split("/")
    if "\0" in text or any(
        len(os.fsencode(name)) > FILE_NAME_BYTES_MAX for name in names
    ):
        raise ConfigError(f"{text[:100]!r} cannot be the path of a file or folder.")
    if text == "~" or text.startswith("~/"):
        return _home(env) / text[2:]
    return base / text


def _resolve_store_url(
    url: str,
    directories: Directories,
    env: Mapping[str, str],
    file: Path,
    locked: Mapping[str, str],
) -> str:
    """Return the full URL of the store. The path in `sqlite:///` is not percent-encoded."""
    if "store.url" in locked:
        origin, base = locked["store.url"], Path.cwd()
    else:
        origin, base = f"store.url in {file}", directories.data
    scheme, colon, rest = url.partition("://")
    if url == "sqlite":
        return f"sqlite:///{directories.database}"
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return f"sqlite:///{_resolve_path(rest[1:], env, base)}"
    if scheme in {"postgresql", "postgres"} and colon:
        return f"postgresql://{rest}"
    raise ConfigError(
        f"{origin} is {hide_password(url)!r}, which is no store that Tenax knows.",
        hint='Use "sqlite", "sqlite:///PATH" or "postgresql://USER@HOST/DATABASE".',
    )


def _resolve_tools_folder(
    text: str, directories: Directories, env: Mapping[str, str], profile: str | None
) -> Path:
    """Return the tools' folder. Raises `ConfigError` if the folder holds Tenax's own files."""
    if text:
        folder = _resolve_path(text, env, directories.data)
        sentence = f"tools.folder is {folder}"
    else:
        folder = _default_tools_folder(directories, env, profile)
        sentence = f"tools.folder is not set, so it is {folder}"
    real = Path(os.path.realpath(folder))
    own = (directories.config, directories.data, directories.state)
    if any(Path(os.path.realpath(path)).is_relative_to(real) for path in own):
        raise ConfigError(
            f"{sentence}, which holds Tenax's own files: its settings, keys and store.",
            hint="Choose a folder that does not, such as one inside it.",
        )
    private = (
        directories.users,
        directories.servers,
        directories.snapshots,
        directories.channels,
    )
    if any(real.is_relative_to(os.path.realpath(path)) for path in private):
        raise ConfigError(
            f"{sentence}, where Tenax keeps the files of other users, MCP servers and its snapshots.",
            hint=f"Choose a folder elsewhere, such as {directories.data / 'work'}.",
        )
    return folder


def _default_tools_folder(
    directories: Directories, env: Mapping[str, str], profile: str | None
) -> Path:
    """Return `~/tenax`, or `work` in the data folder with a profile, with TENAX_HOME or without HOME."""
    home = Path(env.get("HOME", ""))
    if profile is None and not env.get("TENAX_HOME") and home.is_absolute():
        folder = home / "tenax"
        # ~/tenax may be a clone of Tenax: commands must not write the running program.
        if not _holds_program(folder):
            return folder
    return directories.data / "work"


def _holds_program(folder: Path) -> bool:
    """Return whether the folder contains the running Tenax or its Python environment."""
    real = os.path.realpath(folder)
    return any(
        Path(os.path.realpath(path)).is_relative_to(real)
        for path in (__file__, sys.prefix)
    )


def safe_path(path: str, folder: Path) -> str:
    """Return the variable PATH without entries in the tools' folder, where a command could put a program."""
    real_folder = os.path.realpath(folder)

    def is_safe(entry: str) -> bool:
        if not Path(entry).is_absolute():
            return False
        return not any(
            Path(spelling).is_relative_to(parent)
            for spelling in (os.path.normpath(entry), os.path.realpath(entry))
            for parent in (folder, real_folder)
        )

    entries = [entry for entry in path.split(os.pathsep) if is_safe(entry)]
    return os.pathsep.join(entries) or os.defpath


def _servers_env(env: Mapping[str, str], tools_folder: Path) -> Mapping[str, str]:
    """Return the environment with a safe PATH for MCP servers."""
    if "PATH" not in env:
        return env
    return {**env, "PATH": safe_path(env["PATH"], tools_folder)}


# -- models -------------------------------------------------------------------------------------------------------


def _resolve_model(
    label: str, model: ModelSettings, file: Path, env: Mapping[str, str]
) -> ModelSettings:
    """Fill in the label, and the defaults of the provider."""
    path = f"models.{label}"
    if model.api == "practice":
        return ModelSettings(label=label, api="practice", name="practice")
    url, key = model.url, model.key
    if not url:
        if model.api not in PROVIDER_DEFAULTS:
            raise ConfigError(
                f"{path} in {file} has no url.",
                hint="For a script it is the path of a JSON file.",
            )
        url, variable = PROVIDER_DEFAULTS[model.api]
        key = key or Secret(env.get(variable), variable)
    if model.api == "script":
        url = str(_resolve_path(url, env, file.parent))
    else:
        url = check_url(url, f"{path}.url in {file}")
        if not model.name:
            raise ConfigError(
                f"{path} in {file} has no name.",
                hint='Write name = "..." with the name that the provider uses.',
            )
    return replace(model, label=label, url=url, name=model.name or label, key=key)


def _add_model_of_environment(
    models: dict[str, ModelSettings], env: Mapping[str, str]
) -> None:
    """Add a model from OPENAI_BASE_URL and TENAX_MODEL, if the file has no model."""
    name, url = env.get("TENAX_MODEL"), env.get("OPENAI_BASE_URL")
    if models or not name or not url:
        return
    key = env.get("OPENAI_API_KEY")
    models[name] = ModelSettings(
        label=name,
        url=check_url(url, "OPENAI_BASE_URL"),
        name=name,
        key=Secret(key, "OPENAI_API_KEY") if key else None,
    )


def _choose_model(
    settings: FileSettings,
    models: Mapping[str, ModelSettings],
    file: Path,
    locked: Mapping[str, str],
) -> str | None:
    """Return the label of the answering model. Raises `ConfigError` if a named model does not exist."""
    chosen = settings.model
    if chosen is None and len(models) == 1:
        chosen = next(iter(models))
    origins = [(label, f"fallback in {file}") for label in settings.fallback]
    if chosen is not None:
        origins.insert(0, (chosen, locked.get("model", f"model in {file}")))
    for label, origin in origins:
        if label not in models:
            raise ConfigError(
                f"{origin} names {label!r}, and there is no section [models.{label}].",
                hint=suggest(label, models)
                if models
                else "Add a section [models.NAME] that says how to reach a model.",
            )
    return chosen


def check_url(url: str, origin: str) -> str:
    """Return an HTTP address without its last slash. Raises `ConfigError` naming `origin` if the address is invalid."""
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
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
            f"{origin} is not an HTTP address.",
            hint="Enter a full URL, for example http://localhost:11434/v1.",
        )
    return url.rstrip("/")


# -- other sections -----------------------------------------------------------------------------------------------


def resolve_server(
    name: str, server: McpSettings, file: Path, env: Mapping[str, str]
) -> McpSettings:
    """Fill in the name and the environment of an MCP server. Raises `ConfigError` if the section is inconsistent."""
    path = f"mcp.{name}"
    if not re.fullmatch(r"(?=.{1,32}$)[a-z0-9]+([_-][a-z0-9]+)*", name):
        raise ConfigError(
            f"{path} in {file} cannot be the name of a server.",
            hint="Use up to 32 small letters and digits, with single - or _ between them.",
        )
    for setting, needed in (("env", "command"), ("key", "url"), ("header", "key")):
        if getattr(server, setting) and not getattr(server, needed):
            raise ConfigError(f"{path} in {file} has {setting} and no {needed}.")
    is_valid = all(word and "\0" not in word for word in server.command)
    if bool(server.command) == bool(server.url) or not is_valid:
        raise ConfigError(
            f"{path} in {file} needs either a command or a url.",
            hint='Write command = ["PROGRAM", "..."] or url = "https://...".',
        )
    if server.url:
        check_url(server.url, f"{path}.url in {file}")
    if not re.fullmatch(r"[A-Za-z0-9-]*", server.header):
        raise ConfigError(f"{path}.header in {file} is not the name of a header.")
    environment: dict[str, str | Secret] = {}
    if server.command:
        passed = [variable for variable in ("PATH", "HOME", "LANG") if variable in env]
        environment.update({variable: env[variable] for variable in passed})
        for variable in server.env:
            # A missing variable is an error when the server starts.
            environment[variable] = Secret(
                env.get(variable), f"the variable {variable}"
            )
    return replace(server, name=name, environment=environment)


def _resolve_channel(
    label: str, channel: ChannelSettings, file: Path, directories: Directories
) -> ChannelSettings:
    """Fill in the label and the folder of an account in a chat app."""
    path = f"channels.{label}"
    if not re.fullmatch(r"(?=.{1,32}$)[a-z0-9]+([_-][a-z0-9]+)*", label):
        raise ConfigError(
            f"{path} in {file} cannot be the name of an account.",
            hint="Use up to 32 small letters and digits, with single - or _ between them.",
        )
    if channel.url:
        check_url(channel.url, f"{path}.url in {file}")
    return replace(channel, label=label, folder=str(directories.channels / label))


def _check_rules(rules: tuple[RuleSettings, ...], file: Path) -> tuple[Rule, ...]:
    """Return the rules. Tool names are not checked: a tool may be added later."""
    found = []
    for number, settings in enumerate(rules, 1):
        rule = Rule(settings.verdict, settings.tool, settings.touches)
        mistake = find_mistake(rule)
        if mistake:
            raise ConfigError(
                f"rules[{number}] in {file} cannot be a rule: its {mistake}."
            )
        found.append(rule)
    return tuple(found)


def _resolve_serve(serve: Serve, file: Path, locked: Mapping[str, str]) -> Serve:
    """Check the addresses in [serve], and write the public address as browsers write it."""
    for address in serve.proxies:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise ConfigError(
                f"serve.proxies in {file} has {address!r}, which is not an IP address.",
                hint='Write the address that the proxy connects from: proxies = ["127.0.0.1"].',
            ) from error
    if not serve.url:
        return serve
    origin = locked.get("serve.url", f"serve.url in {file}")
    return replace(serve, url=_public_url(serve.url, origin))


def _public_url(text: str, origin: str) -> str:
    """Return a public address in lower case, without the default port and without a slash at the end."""
    error = ConfigError(
        f"{origin} is {hide_password(text)!r}, which cannot be the address of the page.",
        hint="Write the scheme, the name, and if necessary the port and the path: "
        'url = "https://tenax.example.org" or url = "https://example.org/tenax".',
    )
    try:
        parts = urlsplit(text)
        name, port = parts.hostname or "", parts.port
    except ValueError:
        raise error from None
    netloc = f"[{name}]" if ":" in name else name
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme):
        netloc += f":{port}"
    path = parts.path.rstrip("/")
    is_plain = (
        parts.scheme in _DEFAULT_PORTS and is_host(name) and "@" not in parts.netloc
    )
    if not is_plain or not _PATH.fullmatch(path) or "?" in text or "#" in text:
        raise error
    return f"{parts.scheme}://{netloc}{path}"


def _check_search(search: Search, file: Path) -> Search:
    services = [name for name in search.__struct_fields__ if getattr(search, name)]
    if len(services) > 1:
        raise ConfigError(
            f"[search] in {file} names {', '.join(services)}; choose one of them."
        )
    return search


def _check_speech(speech: Speech, file: Path) -> Speech:
    if speech.url:
        check_url(speech.url, f"speech.url in {file}")
    return speech


def _log_level(env: Mapping[str, str]) -> str:
    level = env.get("TENAX_LOG", "").lower() or "warning"
    if level not in LOG_LEVELS:
        raise ConfigError(
            f"TENAX_LOG is {level!r}; it must be one of {', '.join(LOG_LEVELS)}."
        )
    return level
