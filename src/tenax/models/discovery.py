"""What could answer on this machine: keys in the environment, servers on loopback, the practice model.

Finding asks nobody but this machine, and the Ollama that the person named. A provider elsewhere is only asked when a
person chooses it: then its models are listed, one is picked, and one small real call shows whether it works. What goes
wrong outside is a `Failure`, as with any call; a server that hangs or answers nonsense is as good as none.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.config import Api, ModelSettings, Secret
from tenax.config.read import USUAL, model_url
from tenax.errors import ConfigError
from tenax.models import connect
from tenax.models.anthropic import VERSION
from tenax.models.base import Answer, Failure, Thought, ToolSpec, Words
from tenax.models.errors import IS_IT, Failures
from tenax.models.http import is_loopback, trusted
from tenax.models.practice.practice import installed
from tenax.parts import Text
from tenax.views.context import Message

__all__ = ["Offer", "Ready", "find", "models_at", "reach", "try_model", "use"]

T = TypeVar("T")

PROBE_SECONDS_MAX: Final = 0.7
LIST_SECONDS_MAX: Final = 15.0
TRY_SECONDS_MAX: Final = 90.0
"""A local server may have to load the model first."""
TRY_TOKENS_MAX: Final = 16
ANSWER_BYTES_MAX: Final = 8 << 20
OFFERS_MAX: Final = 8
"""How many of one server's models are offered."""
OLLAMA_PORT: Final = 11434
LM_STUDIO: Final = "http://127.0.0.1:1234"
LLAMA_CPP: Final = "http://127.0.0.1:8080"


class Offer(msgspec.Struct, frozen=True):
    """One thing that could answer, and what its section [models.LABEL] would hold. No `name`: its models are not known yet."""

    id: str
    title: str
    detail: str
    kind: Literal["key", "local", "practice"]
    label: str
    api: Api
    url: str = ""
    name: str = ""
    key: str = ""
    """Where the key is (env:NAME), never the key itself."""


class Ready(msgspec.Struct, frozen=True):
    """A model that answered: the label and the values for `settings.add_model`, and what else could have been chosen."""

    label: str
    values: dict[str, str]
    models: list[str]
    """Best first."""


class _Provider(msgspec.Struct, frozen=True):
    title: str
    label: str
    api: Api
    url: str
    key: str
    base: str
    """The variable by which people point the key at another address."""
    best: tuple[str, ...]
    """Which of its models to take, as patterns; of several the highest version."""


_PROVIDERS: Final = (
    _Provider(
        "Anthropic", "anthropic", "anthropic", *USUAL["anthropic"], "ANTHROPIC_BASE_URL",
        (r"claude-sonnet-[\d-]+", r"claude-.*sonnet.*", r"claude-opus.*", r"claude.*"),
    ),
    _Provider(
        "OpenAI", "openai", "openai", *USUAL["openai"], "OPENAI_BASE_URL",
        (r"gpt-\d+(\.\d+)?", r"gpt-\d+o", r"gpt-.*"),
    ),
    _Provider(
        "OpenRouter", "openrouter", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "",
        (r"openrouter/auto",),
    ),
)  # fmt: skip
_NO_CHAT: Final = re.compile(
    r"embed|minilm|\bbge\b|bge-|\bgte-|\be5-|rerank|whisper|\btts\b|-tts|dall-e|image|audio|realtime|transcribe"
    r"|moderation|davinci|babbage|sora|clip\b|guard",
    re.IGNORECASE,
)
_BASE: Final = re.compile(r"[-:](?:base|text|pt)\b", re.IGNORECASE)
_BILLIONS: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_HELLO: Final = Message("user", (Text("Say hello."),))
_TOOL: Final = ToolSpec(
    "read_file",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}},
)


# -- finding ------------------------------------------------------------------------------------------------


async def find(env: Mapping[str, str]) -> list[Offer]:
    """Everything that could answer, in the order in which it is offered; the same things in the same order always."""
    ollama = _ollama_url(env.get("OLLAMA_HOST", ""))
    async with httpx.AsyncClient(
        trust_env=False, verify=trusted(), timeout=PROBE_SECONDS_MAX
    ) as client:
        local = await asyncio.gather(
            _ollama(client, ollama),
            _lm_studio(client, LM_STUDIO),
            _llama_cpp(client, LLAMA_CPP),
        )
    offers = [
        _key_offer(each, env) for each in _PROVIDERS if env.get(each.key, "").strip()
    ]
    offers += [offer for server in local for offer in server]
    if installed():
        offers.append(
            Offer("practice", "Use the practice model (small, on this machine)",
                  "135 million parameters. It makes things up: good for trying Tenax, not for answers.",
                  "practice", "practice", "practice", name="practice")
        )  # fmt: skip
    return offers


def _key_offer(provider: _Provider, env: Mapping[str, str]) -> Offer:
    url = env.get(provider.base, "").strip() if provider.base else ""
    title, detail = (
        provider.title,
        f"Messages go to {urlsplit(provider.url).hostname}, and are paid there.",
    )
    if url:
        title = urlsplit(url).netloc.rpartition("@")[2] or provider.title
        detail = f"{provider.base} names it."
    return Offer(f"key:{provider.key}", f"Use {title} with the key in {provider.key}", detail, "key",
                 provider.label, provider.api, url or provider.url, key=f"env:{provider.key}")  # fmt: skip


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tag(msgspec.Struct):
    name: str
    size: int = 0
    remote_host: str = ""
    """Set where Ollama would ask another machine."""


class _Tags(msgspec.Struct):
    models: list[_Tag]


async def _ollama(client: httpx.AsyncClient, url: str) -> list[Offer]:
    tags = await _probe(client, f"{url}/api/tags", _Tags)
    sizes = (
        {tag.name: tag.size / 1e9 for tag in tags.models if not tag.remote_host}
        if tags
        else {}
    )
    return _local("Ollama", "ollama", url, sizes)


async def _lm_studio(client: httpx.AsyncClient, url: str) -> list[Offer]:
    found = await _probe(client, f"{url}/v1/models", _Models)
    return _local("LM Studio", "lmstudio", url, _by_name(found.data) if found else {})


async def _llama_cpp(client: httpx.AsyncClient, url: str) -> list[Offer]:
    """Much else listens on its port: it is believed only if it says who it is."""
    found = await _probe(client, f"{url}/v1/models", _Models)
    own = [each for each in found.data if each.owned_by == "llamacpp"] if found else []
    return _local("llama.cpp", "llamacpp", url, _by_name(own))


def _by_name(models: Iterable[_Model]) -> dict[str, float]:
    """How large models are, in billions of parameters, as far as their names tell."""
    sizes = {each.id: _BILLIONS.search(each.id) for each in models}
    return {name: float(size[1]) if size else 0.0 for name, size in sizes.items()}


def _local(title: str, label: str, url: str, sizes: Mapping[str, float]) -> list[Offer]:
    """The models of a server, those that were taught to talk first, the largest of them first."""
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
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            status, body = await _get(client, url)
            return (
                msgspec.json.decode(body, type=shape)
                if status == httpx.codes.OK
                else None
            )
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
    """Status and body; what is longer than any list of models is cut, and is no JSON then."""
    async with client.stream("GET", url, headers=headers) as response:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                break
        return response.status_code, body


def _ollama_url(host: str) -> str:
    """Where Ollama is, by its own variable: a host, a port, both or a URL; an address to listen on means this machine."""
    host = host.strip()
    scheme, mark, rest = host.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port or (
            {"http": 80, "https": 443}.get(scheme, OLLAMA_PORT) if mark else OLLAMA_PORT
        )
    except ValueError:
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    name = (
        parts.hostname
        if parts.hostname not in {None, "", "0.0.0.0", "::"}  # noqa: S104
        else "127.0.0.1"
    )
    name = f"[{name}]" if ":" in str(name) else name
    return f"{scheme or 'http'}://{name}:{port}{parts.path.rstrip('/')}"


# -- choosing -----------------------------------------------------------------------------------------------


async def use(
    offer: Offer, env: Mapping[str, str], *, name: str = ""
) -> Ready | Failure:
    """Take an offer: list its models if that was not done yet, pick one unless `name` does, and try it."""
    key, models = None, [offer.name]
    if offer.key:
        variable = offer.key.removeprefix("env:")
        key = Secret(env.get(variable), f"the environment variable {variable}")
    if not offer.name:
        listed = await models_at(offer.api, offer.url, key)
        if isinstance(listed, Failure):
            return listed
        best = next((each.best for each in _PROVIDERS if each.label == offer.label), ())
        models = _best_first(listed, best)
    if not name and not models:
        return Failure(
            "refused",
            f"{urlsplit(offer.url).hostname} lists no model.",
            hint="Connect another.",
        )
    tried = await reach(offer.api, offer.url, name or models[0], key)
    if isinstance(tried, Failure):
        return tried
    values = tried.values | ({"key": offer.key} if offer.key else {})
    return Ready(offer.label, values, models)


async def reach(api: Api, url: str, name: str, key: Secret | None) -> Ready | Failure:
    """Try a model at an address. The key is not among the values: `settings.add_model` is given it apart."""
    if api == "practice":
        failure = await try_model(
            ModelSettings(label="practice", api=api, url="", name="practice")
        )
        return failure or Ready("practice", {"api": api}, ["practice"])
    try:
        url = model_url(url.strip(), "This")
    except ConfigError as error:
        return Failure("refused", str(error), hint=error.hint)
    failure = await try_model(
        ModelSettings(label="", api=api, url=url, name=name, key=key)
    )
    return failure or Ready(_label(url), {"api": api, "url": url, "name": name}, [name])


def _label(url: str) -> str:
    """A short name for an address: api.groq.com is groq."""
    if is_loopback(url):
        return "local"
    host = re.sub(r"^(?:api|www)\.|\.[a-z]+$", "", urlsplit(url).hostname or "")
    return re.sub(r"\W+", "-", host).strip("-") or "main"


async def models_at(
    api: Api, url: str, key: Secret | None = None
) -> list[str] | Failure:
    """The models at an address that can talk, by name; all of them, where none looks like it."""
    try:
        url = model_url(url.strip(), "This")
        secret = key.reveal() if key else None
    except ConfigError as error:
        return Failure("refused", str(error), hint=error.hint)
    failures = Failures(
        urlsplit(url).netloc.rpartition("@")[2], "any of its models", secret
    )
    proxied = not is_loopback(url)
    client = httpx.AsyncClient(
        trust_env=proxied, verify=trusted(), timeout=LIST_SECONDS_MAX
    )
    try:
        async with asyncio.timeout(LIST_SECONDS_MAX), client:
            status, body = await _get(client, *_list_request(api, url, secret))
        # what is no address of models has no list of them
        if status not in {200, 404, 405}:
            return failures.answered(status, {}, body)
        found = sorted(
            {
                each.id
                for each in msgspec.json.decode(body, type=_Models).data
                if each.id
            }
        )
    except (TimeoutError, httpx.TimeoutException):
        return Failure("silent", f"{failures.where} does not answer.", hint=IS_IT)
    except httpx.HTTPError as error:
        return failures.away(error)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Failure(
            "malformed",
            f"{failures.where} answers, but not with a list of models.",
            hint="Is the address right? Does /v1 have to be added to it?",
        )
    return [name for name in found if not _NO_CHAT.search(name)] or found


def _list_request(api: Api, url: str, secret: str | None) -> tuple[str, dict[str, str]]:
    """Where the models of an address are listed, and what has to be said there."""
    headers = {"user-agent": "tenax"}
    if api == "anthropic":
        headers |= {"anthropic-version": VERSION} | (
            {"x-api-key": secret} if secret else {}
        )
        return f"{url.removesuffix('/v1')}/v1/models?limit=1000", headers
    return f"{url}/models", headers | (
        {"authorization": f"Bearer {secret}"} if secret else {}
    )


async def try_model(settings: ModelSettings) -> Failure | None:
    """One small real call, with a tool, as every later call has one. None: it works."""
    try:
        model = connect(replace(settings, max_tokens=TRY_TOKENS_MAX))
    except ConfigError as error:
        return Failure("key", str(error), hint=error.hint)
    try:
        body = model.body("", [_TOOL], [model.message(_HELLO)], {})
        async with aclosing(model.stream(body, silence=TRY_SECONDS_MAX)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Failure):
                    return piece
                if isinstance(piece, Words | Thought | Answer):
                    break
    finally:
        await model.close()
    return None


def _best_first(models: Sequence[str], patterns: Iterable[str]) -> list[str]:
    for pattern in patterns:
        if hits := [name for name in models if re.fullmatch(pattern, name)]:
            best = max(hits, key=_version)
            return [best, *(name for name in models if name != best)]
    return list(models)


def _version(name: str) -> tuple[list[float], int, str]:
    """The numbers in a name, without dates; of the same version the plain name."""
    numbers = [
        float(each)
        for each in re.findall(r"\d+(?:\.\d+)?", name)
        if len(each) < 5  # noqa: PLR2004
    ]
    return numbers, -len(name), name
