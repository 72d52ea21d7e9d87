"""Find models on this machine: keys in the environment, servers on loopback, the practice model.

The search contacts only this machine and the Ollama server named by the person. A remote provider is contacted only
after the person has chosen the provider. Tenax then lists the models, picks a model, and makes a small call as a test.
Errors of providers are `Failure`s, as with every call. A local server that hangs or sends invalid data counts as
absent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.clock import Timing
from tenax.config import Api, ModelSettings, Secret
from tenax.config.read import PROVIDER_DEFAULTS, check_url
from tenax.errors import ConfigError
from tenax.models import connect
from tenax.models.anthropic import Anthropic
from tenax.models.base import Answer, Failure, Thought, ToolSpec, Words
from tenax.models.errors import CHECK_SERVER, Failures
from tenax.models.http import is_loopback, trusted
from tenax.models.openai import OpenAI
from tenax.models.practice.practice import installed
from tenax.models.presets import PRESETS
from tenax.parts import Text
from tenax.views.context import Message

__all__ = [
    "Offer",
    "Ready",
    "find_offers",
    "list_models",
    "reach_model",
    "try_model",
    "use_offer",
]

T = TypeVar("T")

# The system accepts a connection for a server that listens, however busy the machine is. The answer takes longer there.
PROBE_CONNECT_SECONDS_MAX: Final = 0.7
LIST_SECONDS_MAX: Final = 15.0
_CONTEXT_MIN, _CONTEXT_MAX = 512, 100_000_000
"""Context lengths outside of these are mistakes of a server."""
# A local server may have to load the model first.
TRY_SECONDS_MAX: Final = 90.0
TRY_TOKENS_MAX: Final = 16
ANSWER_BYTES_MAX: Final = 8 << 20
# For each server.
OFFERS_MAX: Final = 8
OLLAMA_PORT: Final = 11434
LM_STUDIO: Final = "http://127.0.0.1:1234"
LLAMA_CPP: Final = "http://127.0.0.1:8080"


class Offer(msgspec.Struct, frozen=True):
    """A provider or model to choose, with the values for the section [models.LABEL].

    Without `name`, the models of the provider are not known yet.
    """

    id: str
    title: str
    detail: str
    kind: Literal["key", "local", "practice"]
    label: str
    api: Api
    url: str = ""
    name: str = ""
    key: str = ""
    """The reference to the key (env:NAME), never the key itself."""


class Ready(msgspec.Struct, frozen=True):
    """A model that answered: the label and values for `config.write.add_model`, and the list of available models."""

    label: str
    values: dict[str, Any]
    models: list[str]
    """Best first."""


class _Provider(msgspec.Struct, frozen=True):
    title: str
    label: str
    api: Api
    url: str
    key: str
    base: str
    """Name of the variable with a different URL for the key."""
    preferred: tuple[str, ...]
    """Patterns of model names, best first. Of several matches the highest version is taken."""


_OPENROUTER: Final = next(preset for preset in PRESETS if preset.id == "openrouter")
_PROVIDERS: Final = (
    _Provider(
        "Anthropic", "anthropic", "anthropic", *PROVIDER_DEFAULTS["anthropic"], "ANTHROPIC_BASE_URL",
        (r"claude-sonnet-[\d-]+", r"claude-.*sonnet.*", r"claude-opus.*", r"claude.*"),
    ),
    _Provider(
        "OpenAI", "openai", "openai", *PROVIDER_DEFAULTS["openai"], "OPENAI_BASE_URL",
        (r"gpt-\d+(\.\d+)?", r"gpt-\d+o", r"gpt-.*"),
    ),
    _Provider(
        "OpenRouter", "openrouter", "openai", _OPENROUTER.url, _OPENROUTER.variable, "",
        (r"openrouter/auto",),
    ),
)  # fmt: skip
# Models that do not chat.
_NO_CHAT: Final = re.compile(
    r"embed|minilm|\bbge\b|bge-|\bgte-|\be5-|rerank|whisper|\btts\b|-tts|dall-e|image|audio|realtime|transcribe"
    r"|moderation|davinci|babbage|sora|clip\b|guard",
    re.IGNORECASE,
)
# Models without instruction tuning.
_BASE: Final = re.compile(r"[-:](?:base|text|pt)\b", re.IGNORECASE)
# Billions of parameters, such as 8b.
_BILLIONS: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_HELLO: Final = Message("user", (Text("Say hello."),))
_TOOL: Final = ToolSpec(
    "read_file",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}},
)


# -- finding ------------------------------------------------------------------------------------------------


async def find_offers(env: Mapping[str, str], timing: Timing = Timing()) -> list[Offer]:
    """Return offers for every usable model, in the order of preference."""
    ollama = _ollama_url(env.get("OLLAMA_HOST", ""))
    timeout = httpx.Timeout(timing.probe_seconds, connect=PROBE_CONNECT_SECONDS_MAX)
    async with httpx.AsyncClient(
        trust_env=False, verify=trusted(), timeout=timeout
    ) as client:
        servers = await asyncio.gather(
            _find_ollama(client, ollama),
            _find_openai(client, "LM Studio", "lmstudio", LM_STUDIO),
            # Many other programs use this port, so the server must identify as llama.cpp.
            _find_openai(client, "llama.cpp", "llamacpp", LLAMA_CPP, owner="llamacpp"),
        )
    offers = [
        _offer_key(provider, env)
        for provider in _PROVIDERS
        if env.get(provider.key, "").strip()
    ]
    for models in servers:
        offers += models
    if installed():
        offers.append(
            Offer("practice", "Use the practice model (small, on this machine)",
                  "135 million parameters. It makes things up: good for trying Tenax, not for answers.",
                  "practice", "practice", "practice", name="practice")
        )  # fmt: skip
    return offers


def _offer_key(provider: _Provider, env: Mapping[str, str]) -> Offer:
    url = env.get(provider.base, "").strip() if provider.base else ""
    title = provider.title
    if url:
        title = urlsplit(url).netloc.rpartition("@")[2] or title
        detail = f"{provider.base} names it."
    else:
        host = urlsplit(provider.url).hostname
        detail = f"Messages go to {host}, and are paid there."
    return Offer(f"key:{provider.key}", f"Use {title} with the key in {provider.key}", detail, "key",
                 provider.label, provider.api, url or provider.url, key=f"env:{provider.key}")  # fmt: skip


class _Model(msgspec.Struct):
    """A model in the list of a server. Servers have different names for the context length."""

    id: str
    owned_by: str = ""
    context_length: Any = None
    context_window: Any = None
    max_model_len: Any = None
    meta: Any = None

    @property
    def context(self) -> int | None:
        """The context length in tokens, or None if the server does not tell it."""
        trained = self.meta.get("n_ctx_train") if isinstance(self.meta, dict) else None
        lengths = (
            self.context_length,
            self.context_window,
            self.max_model_len,
            trained,
        )
        for length in lengths:
            if type(length) is int and _CONTEXT_MIN <= length <= _CONTEXT_MAX:
                return length
        return None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tag(msgspec.Struct):
    name: str
    size: int = 0
    remote_host: str = ""
    """Set if Ollama forwards requests to another machine."""


class _Tags(msgspec.Struct):
    models: list[_Tag]


async def _find_ollama(client: httpx.AsyncClient, url: str) -> list[Offer]:
    tags = await _probe(client, f"{url}/api/tags", _Tags) or _Tags([])
    sizes = {tag.name: tag.size / 1e9 for tag in tags.models if not tag.remote_host}
    return _offer_local("Ollama", "ollama", url, sizes)


async def _find_openai(
    client: httpx.AsyncClient, title: str, label: str, url: str, *, owner: str = ""
) -> list[Offer]:
    """Offer the models of a server with the API of OpenAI. With `owner`, offer only models of the owner."""
    found = await _probe(client, f"{url}/v1/models", _Models) or _Models([])
    models = [model for model in found.data if owner in {"", model.owned_by}]
    return _offer_local(title, label, url, _guess_sizes(models))


def _guess_sizes(models: Iterable[_Model]) -> dict[str, float]:
    """Return the billions of parameters in the names of the models, or 0."""
    sizes = {model.id: _BILLIONS.search(model.id) for model in models}
    return {name: float(size[1]) if size else 0.0 for name, size in sizes.items()}


def _offer_local(
    title: str, label: str, url: str, sizes: Mapping[str, float]
) -> list[Offer]:
    """Offer the models of a server: models with instruction tuning first, then by size, the largest first."""
    names = [
        name
        for name in sizes
        if name and name.isprintable() and not _NO_CHAT.search(name)
    ]
    names.sort(key=lambda name: (bool(_BASE.search(name)), -sizes[name], name))
    where = f"On {'this machine' if is_loopback(url) else urlsplit(url).netloc}. Nothing leaves it."
    return [
        Offer(f"{label}:{name}", f"Use {name.rpartition('/')[2] or name} from {title}", where, "local",
              label, "openai", f"{url}/v1", name)
        for name in names[:OFFERS_MAX]
    ]  # fmt: skip


async def _probe(client: httpx.AsyncClient, url: str, shape: type[T]) -> T | None:
    try:
        # The timeout of httpx is for a single read. The whole answer has the same time.
        async with asyncio.timeout(client.timeout.read):
            status, body = await _get(client, url)
            if status != httpx.codes.OK:
                return None
            return msgspec.json.decode(body, type=shape)
    except (
        TimeoutError,
        httpx.HTTPError,
        httpx.InvalidURL,
        msgspec.MsgspecError,
        ValueError,
        RecursionError,
    ):
        return None


async def _get(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body. A body beyond the size limit is cut, and is then invalid JSON."""
    async with client.stream("GET", url, headers=headers) as response:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                break
        return response.status_code, body


def _ollama_url(host: str) -> str:
    """Return the URL of Ollama from OLLAMA_HOST: a host, a port, both or a URL.

    An address to listen on, such as 0.0.0.0, means this machine.
    """
    scheme, _, rest = host.strip().rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, OLLAMA_PORT)
    except ValueError:
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    name = parts.hostname or ""
    if name in {"", "0.0.0.0", "::"}:  # noqa: S104
        name = "127.0.0.1"
    if ":" in name:
        name = f"[{name}]"
    return f"{scheme or 'http'}://{name}:{port}{parts.path.rstrip('/')}"


# -- choosing -----------------------------------------------------------------------------------------------


async def use_offer(
    offer: Offer, env: Mapping[str, str], *, name: str = ""
) -> Ready | Failure:
    """Try the model `name` of an offer. Without a name, try the best model of the offer."""
    key, models = None, [offer.name]
    if offer.key:
        variable = offer.key.removeprefix("env:")
        key = Secret(env.get(variable), f"the environment variable {variable}")
    if not offer.name:
        listed = await list_models(offer.api, offer.url, key)
        if isinstance(listed, Failure):
            return listed
        preferred = {provider.label: provider.preferred for provider in _PROVIDERS}
        models = _put_best_first(listed, preferred.get(offer.label, ()))
    if not name and not models:
        return Failure(
            "refused",
            f"{urlsplit(offer.url).hostname} lists no model.",
            hint="Connect another.",
        )
    ready = await reach_model(offer.api, offer.url, name or models[0], key)
    if isinstance(ready, Failure):
        return ready
    values = dict(ready.values)
    if offer.key:
        values["key"] = offer.key
    return Ready(offer.label, values, models)


async def reach_model(
    api: Api, url: str, name: str, key: Secret | None
) -> Ready | Failure:
    """Try a model at a URL. The values of the result do not contain the key."""
    if api == "practice":
        failure = await try_model(
            ModelSettings(label="practice", api=api, url="", name="practice")
        )
        return failure or Ready("practice", {"api": api}, ["practice"])
    try:
        url = check_url(url.strip(), "This")
    except ConfigError as error:
        return Failure("refused", str(error), hint=error.hint)
    failure = await try_model(
        ModelSettings(label="", api=api, url=url, name=name, key=key)
    )
    if failure is not None:
        return failure
    values: dict[str, Any] = {"api": api, "url": url, "name": name}
    context = await find_context(api, url, name, key)
    if context is not None:
        values["context"] = context
    return Ready(_label(url), values, [name])


async def find_context(api: Api, url: str, name: str, key: Secret | None) -> int | None:
    """Return the context length of a model from the server's list, or None if the list does not tell it."""
    models = await fetch_models(api, url, key)
    if isinstance(models, Failure):
        return None
    return next((model.context for model in models if model.id == name), None)


def _label(url: str) -> str:
    """Return a short name for a URL: groq for api.groq.com."""
    if is_loopback(url):
        return "local"
    host = re.sub(r"^(?:api|www)\.|\.[a-z]+$", "", urlsplit(url).hostname or "")
    return re.sub(r"\W+", "-", host).strip("-") or "main"


async def list_models(
    api: Api, url: str, key: Secret | None = None
) -> list[str] | Failure:
    """Return the names of the chat models at a URL, or of all models if no name looks like a chat model."""
    models = await fetch_models(api, url, key)
    if isinstance(models, Failure):
        return models
    found = sorted({model.id for model in models if model.id})
    return [name for name in found if not _NO_CHAT.search(name)] or found


async def fetch_models(
    api: Api, url: str, key: Secret | None, *, seconds: float = LIST_SECONDS_MAX
) -> list[_Model] | Failure:
    """Return the list of models at a URL. The server has `seconds` to answer."""
    try:
        url = check_url(url.strip(), "This")
        secret = key.reveal() if key else None
    except ConfigError as error:
        return Failure("refused", str(error), hint=error.hint)
    failures = Failures(
        urlsplit(url).netloc.rpartition("@")[2], "any of its models", secret
    )
    adapter = Anthropic if api == "anthropic" else OpenAI
    proxied = not is_loopback(url)
    client = httpx.AsyncClient(trust_env=proxied, verify=trusted(), timeout=seconds)
    try:
        async with asyncio.timeout(seconds), client:
            headers = {"user-agent": "tenax", **adapter.headers(secret)}
            target = adapter.root(url) + adapter.models_path
            status, body = await _get(client, target, headers)
        # 404 and 405 mean a wrong URL: the body is then no list of models.
        if status not in {200, 404, 405}:
            return failures.from_response(status, {}, body)
        return msgspec.json.decode(body, type=_Models).data
    except (TimeoutError, httpx.TimeoutException):
        return Failure(
            "silent", f"{failures.where} does not answer.", hint=CHECK_SERVER
        )
    except httpx.HTTPError as error:
        return failures.from_connection_error(error)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Failure(
            "malformed",
            f"{failures.where} answers, but not with a list of models.",
            hint="Is the address right? Does /v1 have to be added to it?",
        )


async def try_model(settings: ModelSettings) -> Failure | None:
    """Make a small call with a tool, like later calls. Return `None` if the call works."""
    try:
        model = connect(msgspec.structs.replace(settings, max_tokens=TRY_TOKENS_MAX))
    except ConfigError as error:
        return Failure("key", str(error), hint=error.hint)
    try:
        body = model.body("", [_TOOL], [model.message(_HELLO)], model.parameters)
        async with aclosing(model.stream(body, silence=TRY_SECONDS_MAX)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Failure):
                    return piece
                if isinstance(piece, Words | Thought | Answer):
                    break
    finally:
        await model.close()
    return None


def _put_best_first(models: Sequence[str], patterns: Iterable[str]) -> list[str]:
    for pattern in patterns:
        matches = [name for name in models if re.fullmatch(pattern, name)]
        if matches:
            best = max(matches, key=_version)
            return [best, *(name for name in models if name != best)]
    return list(models)


def _version(name: str) -> tuple[list[float], int, str]:
    """Return the numbers in a name without dates; of the same version the shortest name is the greatest."""
    numbers = [
        float(number)
        for number in re.findall(r"\d+(?:\.\d+)?", name)
        if len(number) < 5  # noqa: PLR2004
    ]
    return numbers, -len(name), name
