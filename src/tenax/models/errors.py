"""Turn the error responses of providers into `Failure`s with a hint for the person.

Providers agree on HTTP status codes and on little else. The text of an error is searched only for causes that need a
different action: a context overflow, an unpaid account, a wrong URL, a model without tools. The text is quoted,
shortened, and the key is removed.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenax.models.base import Failure, Why

__all__ = ["CHECK_SERVER", "Failures", "read_retry_after"]

QUOTE_CHARS_MAX: Final = 300
WAIT_SECONDS_MAX: Final = 24 * 3600.0

# The status for each error code. Errors inside a stream have a code and no status.
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
# The size of the context window, in the first group.
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

# Servers that listen on this machine, by port: the name, and the command that starts the server.
_LOCAL_SERVERS: Final = {
    "11434": ("Ollama", "ollama serve"),
    "1234": ("LM Studio", "lms server start"),
    "8080": ("llama.cpp", "llama-server -m MODEL.gguf"),
}
_LOOPBACK: Final = re.compile(r"(127\.[\d.]+|localhost|\[::1\])(?::(\d+))?")

CHECK_SERVER: Final = "Is the server running, and is the URL right?"
_CHECK_NETWORK: Final = "Is this machine on the network, and is the URL right?"
_CHECK_CERTIFICATE: Final = "Is the URL right? For your own server, set SSL_CERT_FILE to the certificate to trust."


class _Explanation(NamedTuple):
    """The meaning of an error, and a hint for the person."""

    why: Why
    sentence: str
    hint: str


# 401 is not quoted: the text may contain the key.
_BY_STATUS: Final[Mapping[int, _Explanation]] = {
    401: _Explanation(
        "key",
        "{where} rejected the API key.",
        "Check the key and try again.",
    ),
    402: _Explanation(
        "refused",
        "{where} says that your account has no credit left.{quoted}",
        "Add credit to your account, or use another model.",
    ),
    403: _Explanation(
        "key",
        "{where} does not allow this API key to use {model}.{quoted}",
        "Check the permissions of the key at the provider.",
    ),
    404: _Explanation(
        "refused",
        "{where} has no model {model}, or the URL is wrong.{quoted}",
        "Check the name of the model and the URL.",
    ),
    429: _Explanation(
        "rate",
        "{where}: rate limit reached.{quoted}",
        "Wait, or use another model.",
    ),
}
_NO_MODEL: Final = _Explanation(
    "refused",
    "{where} has no model {model}.{quoted}",
    "Check the name of the model. A local server may have to download it first.",
)
_WRONG_URL: Final = _Explanation(
    "refused",
    "{where} responds, but there is no model at this URL.{quoted}",
    "Check the URL. Does it have to end with /v1?",
)
_WITHOUT_TOOLS: Final = _Explanation(
    "refused",
    "{model} cannot use tools, and Tenax needs them.{quoted}",
    "Choose another model. Start llama.cpp with --jinja.",
)
_NO_KEY: Final = _Explanation(
    "key",
    "{where} needs an API key, and none is set.",
    'Enter a key with `tenax setup`, or set key = "env:NAME" for this model in the settings file.',
)
_SERVER_ERROR: Final = _Explanation(
    "server",
    "{where} returned an error (status {status}).{quoted}",
    "Try again later, or use another model.",
)
_REFUSED: Final = _Explanation(
    "refused",
    "{where} refused the request (status {status}).{quoted}",
    "Check the type of server, the URL and the name of the model.",
)


class _Error(msgspec.Struct):
    """The common fields of the known error formats."""

    message: str = ""
    codes: list[str] = []
    status: int = 0
    limit: int | None = None
    is_page: bool = False
    """Whether the body is HTML."""

    @property
    def text(self) -> str:
        return " ".join([*self.codes, self.message])


class Failures:
    """Explains the errors of a model at a host, without revealing the key."""

    def __init__(self, where: str, model: str, key: str | None) -> None:
        self.where = where
        self.model = model
        self._key = key

    def from_response(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> Failure:
        """Explain a response. An error with a success status may carry the real status in the body."""
        error = _decode_error(body)
        if status < 300:  # noqa: PLR2004
            status = error.status or 500
        return self._explain(error, status, read_retry_after(headers))

    def from_event(self, error: object) -> Failure:
        """Explain an error object inside a stream."""
        found = _parse_error(error)
        return self._explain(found, found.status or 500, None)

    def _explain(
        self, error: _Error, status: int, retry_after: float | None
    ) -> Failure:
        is_too_long = error.limit or _TOO_LONG.search(error.text)
        if status in {400, 413, 422, 500} and is_too_long:
            return self._explain_overflow(error, status)
        is_unpaid = status in {400, 403} and _UNPAID.search(error.message)
        if is_unpaid or "insufficient_quota" in error.codes:
            status = 402
        if status in {401, 403} and not self._key:
            explanation = _NO_KEY
        else:
            explanation = _find_explanation(error, status)
        message = explanation.sentence.format(
            where=self.where,
            model=self.model,
            status=status,
            quoted=self._quote(error.message),
        )
        return Failure(
            explanation.why,
            message,
            hint=explanation.hint,
            status=status,
            retry_after=retry_after,
        )

    def from_connection_error(self, error: BaseException) -> Failure:
        """Explain why a connection could not be made."""
        reason = str(error).rstrip(".") or "the connection failed"
        hint = CHECK_SERVER
        for cause in _causes(error):
            match cause:
                case ssl.SSLCertVerificationError():
                    reason = "its certificate is not trusted"
                    hint = _CHECK_CERTIFICATE
                case ssl.SSLError():
                    reason = "the server does not use https there"
                    hint = "Does the URL begin with http:// instead?"
                case socket.gaierror():
                    reason, hint = "the host name is unknown", _CHECK_NETWORK
                case ConnectionRefusedError():
                    local = _LOOPBACK.fullmatch(self.where)
                    if local and local[2] in _LOCAL_SERVERS:
                        name, command = _LOCAL_SERVERS[local[2]]
                        return Failure(
                            "away",
                            f"{name} is not running at {self.where}.",
                            hint=f"Start it with: {command}",
                        )
                    reason = "nothing is listening at this address"
                case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
                    reason, hint = "there is no route to the host", _CHECK_NETWORK
                case _:
                    continue
            break
        return Failure("away", f"{self.where} cannot be reached: {reason}.", hint=hint)

    def _explain_overflow(self, error: _Error, status: int) -> Failure:
        limit = error.limit or _find_limit(error.message)
        size = f" ({limit:,} tokens)" if limit else ""
        return Failure(
            "overflow",
            f"The conversation is too long for the context of {self.model}{size}.",
            hint="Use a model with a larger context, or start a new conversation.",
            status=status,
            limit=limit,
        )

    def _quote(self, text: str) -> str:
        """Quote the provider: short, on a single line, without the key."""
        if self._key:
            text = text.replace(self._key, "***")
        text = _KEY_LIKE.sub("***", " ".join(text.split()))
        if len(text) > QUOTE_CHARS_MAX:
            text = text[:QUOTE_CHARS_MAX] + "..."
        return f' Server message: "{text}"' if text else ""


def _find_explanation(error: _Error, status: int) -> _Explanation:
    if _NO_TOOLS.search(error.message):
        return _WITHOUT_TOOLS
    if status in {404, 405} and error.is_page:
        return _WRONG_URL
    if status in {404, 405, 500} and _NO_PATH.search(error.message):
        return _WRONG_URL
    if status in {400, 404, 422} and _MODEL_UNKNOWN.search(error.text):
        return _NO_MODEL
    if status in {408, 409, 425} or status >= 500:  # noqa: PLR2004  (a status is its own name)
        return _SERVER_ERROR
    return _BY_STATUS.get(status, _REFUSED)


def _find_limit(message: str) -> int | None:
    """Return the size of the context window named in the message."""
    for pattern in _LIMITS:
        found = pattern.search(message)
        if found:
            return int(found[1].replace(",", ""))
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all of its causes."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _causes(cause)


def _decode_error(body: bytes) -> _Error:
    try:
        return _parse_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = re.sub(r"<[^<>]*>", " ", body.decode("utf-8", "replace"))
        return _Error(message=text, is_page=b"<html" in body[:500].lower())


def _parse_error(answer: object) -> _Error:
    """Parse OpenAI's `{"error": {"message", "type", "code"}}`, Anthropic's `{"type": "error", "error": {...}}`, and simpler forms."""
    error: Any = answer
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return _Error(message=error if isinstance(error, str) else "")
    messages = [error.get(key) for key in ("message", "error", "detail")]
    codes = [error.get(key) for key in ("code", "type")]
    found = _Error(
        message=next((text for text in messages if isinstance(text, str)), ""),
        codes=[code for code in codes if isinstance(code, str)],
    )
    found.status = next((_STATUS[code] for code in found.codes if code in _STATUS), 0)
    code, limit = error.get("code"), error.get("n_ctx")
    if isinstance(code, int) and code >= 400:  # noqa: PLR2004
        found.status = code
    if isinstance(limit, int) and limit > 0:
        found.limit = limit
    return found


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After. The header may be a date by the clock of the server."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return min(float(text), WAIT_SECONDS_MAX)
    try:
        until, now = _parse_date(text), _parse_date(headers.get("date", ""))
    except (TypeError, ValueError):
        return None
    seconds = (until - now).total_seconds()
    return min(max(seconds, 0.0), WAIT_SECONDS_MAX)


def _parse_date(text: str) -> datetime:
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)
