"""The settings of the configuration file: names, types, defaults, descriptions and environment variables.

The structs are the only table of settings. `decode.py` checks a file against the structs, and the reference page is
generated from `list_settings`. A field with a description is a setting; a field without a description is filled in by
`read.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_origin

import msgspec
from msgspec import Meta

from tenax.config.secret import Secret

__all__ = [
    "PORT_MAX",
    "VARIABLES",
    "Api",
    "Backup",
    "Budget",
    "ChannelSettings",
    "FileSettings",
    "McpSettings",
    "Memory",
    "ModelSettings",
    "Platform",
    "Resume",
    "RuleSettings",
    "Search",
    "Serve",
    "Setting",
    "Settings",
    "is_host",
    "list_settings",
    "settings_of",
]

PORT_MAX: Final = 65_535
_HOST_PATTERN: Final = r"\A[0-9A-Za-z.:_-]+\Z"

Api = Literal["openai", "anthropic", "practice", "script"]
Platform = Literal["telegram", "matrix", "discord", "webhook"]
Resume = Literal["auto", "ask"]
Effort = Literal["low", "medium", "high"]
Names = tuple[str, ...]
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Dollars = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Host = Annotated[str, Meta(pattern=_HOST_PATTERN)]
HttpAddress = Annotated[str, Meta(pattern=r"\Ahttps?://")]
Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
# Browsers keep no cookie for longer than 400 days.
Days = Annotated[int, Meta(ge=1, le=400)]

# The variables that belong to no setting of the file.
VARIABLES: Final = {
    "TENAX_HOME": "The folder for configuration, data and state.",
    "TENAX_BACKUP_PASSPHRASE": "The passphrase of the secrets in a backup.",
    "TENAX_CONFIG": "The path of the configuration file.",
    "TENAX_LOG": "The log level: debug, info, warning (the default) or error.",
}


def _about(
    description: str, *, variable: str = "", shape: str = "", restart: bool = False
) -> Meta:
    """Describe a setting. The environment variable `variable` overrides the setting.

    `shape` describes valid values in errors, if the type is not enough. With `restart`, a change applies at the next
    start.
    """
    extra = {"variable": variable, "shape": shape, "restart": restart}
    return Meta(description=description, extra=extra)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file."""

    def __repr__(self) -> str:
        # A URL may contain a password.
        names = [
            name for name in self.__struct_fields__ if name not in {"url", "searxng"}
        ]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({values})"


class ModelSettings(Settings, frozen=True, kw_only=True):
    """[models.LABEL]: how to reach a model."""

    label: str = ""
    api: Annotated[
        Api,
        _about(
            "The protocol: OpenAI chat completions, Anthropic messages, the practice model, or a script for tests."
        ),
    ] = "openai"
    url: Annotated[
        Text,
        _about(
            "The base URL of the provider, for openai including /v1; for a script, the path of its file. Default: the provider's own URL."
        ),
    ] = ""
    name: Annotated[Text, _about("The provider's name for the model.")] = ""
    key: Annotated[
        Secret | None,
        _about('Where the key is: "env:NAME" or "secret:NAME". Never the key itself.'),
    ] = None
    context: Annotated[
        Count | None,
        _about(
            "The context window in tokens. Default: learned from the first request that is too long."
        ),
    ] = None
    max_tokens: Annotated[
        Count | None, _about("The longest answer to request, in tokens.")
    ] = None
    temperature: Annotated[
        Temperature | None,
        _about(
            "How random the answers are. Default: decided by the provider. Some models accept no temperature.",
            shape="a number from 0 to 2: temperature = 0.7",
        ),
    ] = None
    effort: Annotated[
        Effort | None,
        _about(
            "How much the model thinks before an answer. Default: decided by the provider. Only for models that can reason."
        ),
    ] = None
    price_input: Annotated[
        Dollars | None,
        _about(
            "US dollars for a million input tokens, if the provider does not report costs."
        ),
    ] = None
    price_output: Annotated[
        Dollars | None,
        _about(
            "US dollars for a million output tokens, if the provider does not report costs."
        ),
    ] = None
    sees: Annotated[
        bool | None,
        _about(
            "Whether the model accepts pictures. Default: what is known about its family."
        ),
    ] = None

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return the price of a call in US dollars, or `None` if no price is set."""
        if self.price_input is None and self.price_output is None:
            return None
        price_input = tokens_in * (self.price_input or 0)
        price_output = tokens_out * (self.price_output or 0)
        return (price_input + price_output) / 1e6


class McpSettings(Settings, frozen=True, kw_only=True):
    """[mcp.NAME]: an MCP server that Tenax starts with `command`, or reaches at `url`."""

    name: str = ""
    environment: Mapping[str, str | Secret] = {}
    """The whole environment of the command."""
    command: Annotated[
        Names,
        _about(
            "The program to start, and its arguments. It runs outside the sandbox, with your rights."
        ),
    ] = ()
    env: Annotated[
        Names,
        _about(
            "Environment variables to pass to the command, besides HOME, LANG and PATH."
        ),
    ] = ()
    url: Annotated[
        str, _about("The URL of a server with streamable HTTP, instead of a command.")
    ] = ""
    key: Annotated[
        Secret | None,
        _about(
            'Where the key is: "env:NAME" or "secret:NAME". It is sent as a bearer token.'
        ),
    ] = None
    header: Annotated[
        str, _about("The HTTP header that takes the key instead of Authorization.")
    ] = ""
    trusted: Annotated[
        bool, _about("Whether to believe what the server says about its own tools.")
    ] = False


class ChannelSettings(Settings, frozen=True, kw_only=True):
    """[channels.LABEL]: an account of Tenax in a chat app, such as a bot on Telegram."""

    label: str = ""
    folder: str = ""
    """Where the account may keep files, such as the keys of encrypted rooms. Not a setting."""
    platform: Annotated[Platform, _about("The chat app.")]
    token: Annotated[
        Secret | None,
        _about('Where the token of the bot is: "env:NAME" or "secret:NAME".'),
    ] = None
    url: Annotated[
        HttpAddress | None,
        _about(
            "Matrix: the address of the homeserver. Telegram: the address of a Bot API server of your own. Webhook: the "
            "address that gets the answers.",
            shape="an address that begins with http:// or https://",
        ),
    ] = None
    user: Annotated[
        str | None,
        _about("Matrix: the account, such as @tenax:example.org."),
    ] = None
    device: Annotated[
        str | None,
        _about(
            "Matrix: the device of the access token. It stays the same: by the device, the homeserver recognises a "
            "repeated message."
        ),
    ] = None
    allow: Annotated[
        Names,
        _about(
            "The platform's ids of people who may talk without a code. With such a list, other people get no answer at all."
        ),
    ] = ()


class Speech(Settings, frozen=True, kw_only=True):
    """[speech]: a service that turns voice notes into text. Without one no sound is sent anywhere."""

    url: Annotated[
        HttpAddress | None,
        _about(
            "The base URL of a service with OpenAI's /audio/transcriptions, usually including /v1.",
            shape="an address that begins with http:// or https://",
        ),
    ] = None
    key: Annotated[
        Secret | None,
        _about('Where the key of the service is: "env:NAME" or "secret:NAME".'),
    ] = None
    model: Annotated[Text, _about("The service's name for its model.")] = "whisper-1"
    timeout_seconds: Annotated[
        Seconds,
        _about("How long the service may take for a voice note, in seconds."),
    ] = 60.0


class RuleSettings(Settings, frozen=True, kw_only=True):
    """[[rules]]: what tools may do without asking, and what they may never do."""

    verdict: Annotated[
        Literal["allow", "deny"],
        _about("Whether to allow or deny matching calls. Deny takes precedence."),
    ]
    tool: Annotated[
        str,
        _about(
            "The name of a tool, or a pattern for several.",
            shape='text in quotes: tool = "*"',
        ),
    ]
    touches: Annotated[
        str,
        _about("A pattern for what the call touches, as the approval shows it."),
    ] = "*"


class Store(Settings, frozen=True, kw_only=True):
    """[store]: where conversations are stored."""

    url: Annotated[
        str,
        _about(
            '"sqlite", "sqlite:///PATH" or "postgresql://USER@HOST/DATABASE".',
            variable="TENAX_STORE",
        ),
    ] = "sqlite"


class Tools(Settings, frozen=True, kw_only=True):
    """[tools]: where tools work."""

    folder: Annotated[
        str,
        _about(
            "The folder in which tools read and write files and commands run. Default: ~/tenax.",
            restart=True,
        ),
    ] = ""


class Search(Settings, frozen=True, kw_only=True):
    """[search]: one service for web searches. Without one the model cannot search the web."""

    searxng: Annotated[
        HttpAddress | None,
        _about(
            "The address of a SearXNG server that returns JSON.",
            shape="an address that begins with http:// or https://",
        ),
    ] = None
    brave: Annotated[
        Secret | None,
        _about('Where the key for Brave Search is: "env:NAME" or "secret:NAME".'),
    ] = None
    tavily: Annotated[
        Secret | None,
        _about('Where the key for Tavily is: "env:NAME" or "secret:NAME".'),
    ] = None


class Budget(Settings, frozen=True, kw_only=True):
    """[budget]: limits in US dollars, checked before every call of a model."""

    day: Annotated[
        Dollars | None,
        _about("US dollars for a day (UTC), over all conversations of a user."),
    ] = None
    conversation: Annotated[
        Dollars | None,
        _about("US dollars for a conversation, including its sub-agents."),
    ] = None


class Backup(Settings, frozen=True, kw_only=True):
    """[backup]: copies of the store."""

    folder: Annotated[
        str,
        _about(
            "The folder of the backups. Default: backups in the data folder. Choose a folder on another disk."
        ),
    ] = ""
    every: Annotated[
        Literal["never", "day", "week"],
        _about("How often a running server makes a backup."),
    ] = "never"
    keep: Annotated[Count, _about("How many backups to keep.")] = 7


class Serve(Settings, frozen=True, kw_only=True):
    """[serve]: the web page."""

    host: Annotated[
        Host,
        _about(
            "The host name or address of the page.",
            variable="TENAX_HOST",
            shape='the name or the address of a host: host = "127.0.0.1"',
        ),
    ] = "127.0.0.1"
    port: Annotated[Port, _about("The port of the page.", variable="TENAX_PORT")] = 8629
    url: Annotated[
        str,
        _about(
            "The public address of the page, if a reverse proxy serves it: https://tenax.example.org.",
            variable="TENAX_URL",
            shape='an address in quotes: url = "https://tenax.example.org"',
        ),
    ] = ""
    proxies: Annotated[
        Names,
        _about(
            "Addresses of reverse proxies. Their connections are not limited, and X-Forwarded-Proto is read only from them."
        ),
    ] = ()
    sign_in_days: Annotated[
        Days,
        _about("The number of days after which a browser needs a new link."),
    ] = 90


class Memory(Settings, frozen=True, kw_only=True):
    """[memory]: what Tenax remembers beyond a conversation."""

    review: Annotated[
        bool,
        _about(
            "Whether the model looks for things worth remembering after each answer. It costs tokens.",
            variable="TENAX_MEMORY_REVIEW",
        ),
    ] = True
    providers: Annotated[
        Names,
        _about(
            "Names of the memory plugins to load.",
            variable="TENAX_MEMORY_PROVIDERS",
            restart=True,
        ),
    ] = ()


class FileSettings(Settings, frozen=True, kw_only=True):
    """The whole file."""

    model: Annotated[
        str | None,
        _about(
            "The label of the section [models.LABEL] that answers. Default: the only such section.",
            variable="TENAX_MODEL",
        ),
    ] = None
    fallback: Annotated[
        Names, _about("Labels of models to try, in this order, if a model fails.")
    ] = ()
    resume: Annotated[
        Resume,
        _about(
            "Whether a long-lived process continues an interrupted answer by itself, or only if asked to."
        ),
    ] = "auto"
    context_files: Annotated[
        bool,
        _about(
            "Whether to read AGENTS.md, CLAUDE.md and skills from the folder of the tools.",
            restart=True,
        ),
    ] = True
    models: Mapping[str, ModelSettings] = {}
    store: Store = Store()
    tools: Tools = Tools()
    search: Search = Search()
    speech: Speech = Speech()
    budget: Budget = Budget()
    backup: Backup = Backup()
    serve: Serve = Serve()
    memory: Memory = Memory()
    mcp: Mapping[str, McpSettings] = {}
    channels: Mapping[str, ChannelSettings] = {}
    rules: tuple[RuleSettings, ...] = ()


def is_host(text: str) -> bool:
    """Return whether the text can be the name or the address of a host."""
    return re.match(_HOST_PATTERN, text) is not None


class Setting(NamedTuple):
    """A field of one of the structs above that a person can set."""

    name: str
    kind: Any
    """The Python type with its constraints, for `msgspec.convert`."""
    required: bool
    default: object
    description: str
    variable: str
    shape: str
    restart: bool
    """Whether a change applies at the next start."""


@cache
def settings_of(table: type[Settings]) -> Mapping[str, Setting]:
    """Return the settings of a table by name."""
    found = {}
    for field in msgspec.structs.fields(table):
        if get_origin(field.type) is not Annotated:
            continue
        about = field.type.__metadata__[-1]
        found[field.name] = Setting(
            field.name,
            field.type,
            field.required,
            field.default,
            about.description,
            **about.extra,
        )
    return found


def list_settings() -> Iterator[tuple[str, Setting]]:
    """Yield every setting with its full name, such as `serve.port` or `models.LABEL.api`."""
    tables: Mapping[str, type[Settings]] = {
        "": FileSettings,
        "models.LABEL.": ModelSettings,
        "store.": Store,
        "tools.": Tools,
        "search.": Search,
        "speech.": Speech,
        "budget.": Budget,
        "backup.": Backup,
        "serve.": Serve,
        "memory.": Memory,
        "mcp.NAME.": McpSettings,
        "channels.LABEL.": ChannelSettings,
        "rules.": RuleSettings,
    }
    for prefix, table in tables.items():
        for name, setting in settings_of(table).items():
            yield f"{prefix}{name}", setting
