"""What a provider said instead of an answer, as a `Failure` that a person can act on.

Providers agree on the status and on little else; what they say in words is read only for what a person would do
differently about: a context that is too long, an account that is empty, a wrong address, a model that knows no tools. Their
words are quoted, cut short, with the key taken out.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from tenax.models.base import Failure, Why

__all__ = ["IS_IT", "Failures"]

QUOTE_CHARS_MAX: Final = 300
WAIT_SECONDS_MAX: Final = 24 * 3600.0

# Errors inside a stream carry a word where a status would stand.
_STATUS: Final = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_error": 500,
    "timeout_error": 504,
}
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context (?:length|size|window|limit)"
    r"|(?:prompt|input|request|message)s? (?:is|are|was) too (?:long|large)|request_too_large|entity too large"
    r"|maximum number of tokens|reduce the length",
    re.IGNORECASE,
)
_LIMITS: Final = (
    re.compile(r"maximum context length (?:is|of) ([\d,]+)", re.IGNORECASE),
    re.compile(r"(?<![\d,])([\d,]+) maximum context length", re.IGNORECASE),
    re.compile(r"> ([\d,]+)"),
    re.compile(
        r"context (?:size|window|limit|length) ?(?:is|of|:)? ?\(?([\d,]+)",
        re.IGNORECASE,
    ),
    re.compile(r"maximum number of tokens allowed \(?([\d,]+)", re.IGNORECASE),
)
_KEY_LIKE: Final = re.compile(
    r"\b(?:sk|pk|gsk|xai)-[\w*-]{4,}|\bBearer \S+", re.IGNORECASE
)

_UNPAID: Final = re.compile(
    r"credit balance is too low|insufficient (?:credit|balance|fund|quota)|insufficient_quota",
    re.IGNORECASE,
)
_NO_TOOLS: Final = re.compile(
    r"not support (?:tool|function)|support tool use|tools? param requires|tool use is not",
    re.IGNORECASE,
)
_MODEL_UNKNOWN: Final = re.compile(
    r"model.{0,80}(?:not found|not exist|not a valid|unknown)|(?:valid|unknown|such) model",
    re.IGNORECASE,
)
_NO_PATH: Final = re.compile(
    r"^\W*(?:404\W+)?(?:page |file |route )?not found\W*$|invalid url|unexpected endpoint|cannot post|no route",
    re.IGNORECASE,
)

# What is known to listen on this machine, by its port, and how it is started.
_SERVERS: Final = {
    "11434": ("Ollama", "ollama serve"),
    "1234": ("LM Studio", "lms server start"),
    "8080": ("llama.cpp", "llama-server -m MODEL.gguf"),
}
_LOOPBACK: Final = re.compile(r"(127\.[\d.]+|localhost|\[::1\])(?::(\d+))?")

# What a status means, in a sentence, and what to do. 401 is not quoted: the provider's words may hold the key.
_SENTENCES: Final[Mapping[int, tuple[Why, str, str]]] = {
    401: (
        "key",
        "{where} does not accept the key.",
        "Check `key` in the section of this model, and what it names.",
    ),
    402: (
        "refused",
        "{where} wants to be paid first.{quoted}",
        "Check the account at the provider.",
    ),
    403: (
        "key",
        "{where} does not let this key use {model}.{quoted}",
        "Check with the provider what this key may do.",
    ),
    404: (
        "refused",
        "{where} has no model {model}, or the address is wrong.{quoted}",
        "Check `name` and `url` in the section of this model.",
    ),
    429: (
        "rate",
        "{where} takes no more requests for now.{quoted}",
        "Wait, or use another model.",
    ),
}
IS_IT: Final = "Is it running, and is `url` in the section of this model right?"
_NETWORK: Final = (
    "Is this machine on the network, and is `url` in the section of this model right?"
)
_CERTIFICATE: Final = "Is `url` right? For a server of your own, SSL_CERT_FILE names the certificate to trust."
_NO_MODEL: Final[tuple[Why, str, str]] = (
    "refused",
    "{where} has no model {model}.{quoted}",
    "Check `name` in the section of this model; a local server may have to fetch it first.",
)
_NOWHERE: Final[tuple[Why, str, str]] = (
    "refused",
    "{where} answers, and there is no model at this address.{quoted}",
    "Check `url` in the section of this model: does /v1 have to be added to it?",
)
_TOOLLESS: Final[tuple[Why, str, str]] = (
    "refused",
    "{model} cannot use tools, and Tenax works with tools.{quoted}",
    "Choose another model. llama.cpp has to be started with --jinja.",
)
_NO_KEY: Final[tuple[Why, str, str]] = (
    "key",
    "{where} asks for a key, and none is set.",
    'Set key = "env:NAME" in the section of this model.',
)
_TROUBLE: Final[tuple[Why, str, str]] = (
    "server",
    "{where} has trouble of its own (status {status}).{quoted}",
    "Try again later, or use another model.",
)
_REFUSED: Final[tuple[Why, str, str]] = (
    "refused",
    "{where} refused the request (status {status}).{quoted}",
    "Check `api`, `url` and `name` in the section of this model.",
)


class _Error(msgspec.Struct):
    """What the known shapes of an error have in common."""

    message: str = ""
    kinds: list[str] = []
    status: int = 0
    limit: int | None = None
    page: bool = False
    """Whether it is a page for people."""


class Failures:
    """Who is spoken of, and what must never be repeated."""

    def __init__(self, where: str, model: str, key: str | None) -> None:
        self.where = where
        self.model = model
        self._key = key

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """The failure that this answer is. An error under the status of success carries its own, or none."""
        found = _read(body)
        return self._failure(
            found,
            status if status >= 300 else found.status or 500,  # noqa: PLR2004
            _wait(headers),
        )

    def sent(self, error: object) -> Failure:
        """The failure that an error object inside a stream is."""
        found = _parse(error)
        return self._failure(found, found.status or 500, None)

    def _failure(self, error: _Error, status: int, wait: float | None) -> Failure:
        said = " ".join([*error.kinds, error.message])
        if status in {400, 413, 422, 500} and (error.limit or _TOO_LONG.search(said)):
            return self._overflow(error, status)
        if "insufficient_quota" in error.kinds or (
            status in {400, 403} and _UNPAID.search(error.message)
        ):
            status = 402
        if status in {401, 403} and not self._key:
            why, sentence, hint = _NO_KEY
        else:
            why, sentence, hint = _meant(error, status)
        words = {
            "where": self.where,
            "model": self.model,
            "status": status,
            "quoted": self._quote(error.message),
        }
        return Failure(
            why, sentence.format(**words), hint=hint, status=status, retry_after=wait
        )

    def away(self, error: BaseException) -> Failure:
        """The failure that a connection is which could not be made."""
        because, hint = str(error).rstrip(".") or "the connection failed", IS_IT
        for cause in _causes(error):
            match cause:
                case ssl.SSLCertVerificationError():
                    because, hint = "its certificate is not trusted here", _CERTIFICATE
                case ssl.SSLError():
                    because, hint = (
                        "it does not speak https there",
                        "Does `url` begin with http:// instead?",
                    )
                case socket.gaierror():
                    because, hint = "its name is not known", _NETWORK
                case ConnectionRefusedError():
                    here = _LOOPBACK.fullmatch(self.where)
                    if here and (known := _SERVERS.get(here[2])):
                        sentence = f"{known[0]} is not running at {self.where}."
                        return Failure(
                            "away", sentence, hint=f"Start it with: {known[1]}"
                        )
                    because, hint = "nothing is running there", IS_IT
                case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
                    because, hint = "there is no way to it", _NETWORK
                case _:
                    continue
            break
        return Failure("away", f"{self.where} cannot be reached: {because}.", hint=hint)

    def _overflow(self, error: _Error, status: int) -> Failure:
        limit = error.limit or next(
            (
                int(found[1].replace(",", ""))
                for each in _LIMITS
                if (found := each.search(error.message))
            ),
            None,
        )
        holds = f", which holds {limit:,} tokens" if limit else ""
        return Failure(
            "overflow",
            f"The conversation is longer than the context of {self.model}{holds}.",
            hint="Use a model with a larger context, or begin a new conversation.",
            status=status,
            limit=limit,
        )

    def _quote(self, words: str) -> str:
        """The provider's words as they may be shown: short, on one line, without the key."""
        if self._key:
            words = words.replace(self._key, "***")
        words = _KEY_LIKE.sub("***", " ".join(words.split()))
        if len(words) > QUOTE_CHARS_MAX:
            words = words[:QUOTE_CHARS_MAX] + "..."
        return f' It says: "{words}"' if words else ""


def _meant(error: _Error, status: int) -> tuple[Why, str, str]:
    """What a person has to know of it."""
    if _NO_TOOLS.search(error.message):
        return _TOOLLESS
    if status in {404, 405} and error.page:
        return _NOWHERE
    if status in {404, 405, 500} and _NO_PATH.search(error.message):
        return _NOWHERE
    if status in {400, 404, 422} and _MODEL_UNKNOWN.search(
        " ".join([*error.kinds, error.message])
    ):
        return _NO_MODEL
    if status in {408, 409, 425} or status >= 500:  # noqa: PLR2004  (a status is its own name)
        return _TROUBLE
    return _SENTENCES.get(status, _REFUSED)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _causes(cause)


def _read(body: bytes) -> _Error:
    try:
        return _parse(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = re.sub(r"<[^<>]*>", " ", body.decode("utf-8", "replace"))
        return _Error(message=text, page=b"<html" in body[:500].lower())


def _parse(answer: object) -> _Error:
    """OpenAI `{"error": {"message", "type", "code"}}`, Anthropic `{"type": "error", "error": {...}}`, and plainer ones."""
    error: Any = answer
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return _Error(message=error if isinstance(error, str) else "")
    said = next(
        (
            error[key]
            for key in ("message", "error", "detail")
            if isinstance(error.get(key), str)
        ),
        "",
    )
    kinds = [
        each for key in ("code", "type") if isinstance(each := error.get(key), str)
    ]
    code = error.get("code")
    known = [_STATUS[each] for each in kinds if each in _STATUS]
    limit = error.get("n_ctx")
    return _Error(
        message=said,
        kinds=kinds,
        status=code if isinstance(code, int) and code >= 400 else next(iter(known), 0),  # noqa: PLR2004
        limit=limit if isinstance(limit, int) and limit > 0 else None,
    )


def _wait(headers: Mapping[str, str]) -> float | None:
    """Retry-After: seconds, or a date by the provider's own clock."""
    given = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", given):
        return min(float(given), WAIT_SECONDS_MAX)
    try:
        seconds = (_date(given) - _date(headers.get("date", ""))).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(seconds, 0.0), WAIT_SECONDS_MAX)


def _date(text: str) -> datetime:
    when = parsedate_to_datetime(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
