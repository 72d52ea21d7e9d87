"""The tools `web_fetch` and `web_search`.

A URL comes from a model, and therefore from every text read by the model. `_address` parses the URL once: the approval,
the checks and the request use the same result. A host name is resolved once per call, every address is checked, and
only checked addresses are dialled (`Guarded`). So no redirect and no second DNS answer leads to this machine or its
network. A redirect is followed only to the host approved by the person.
"""

from __future__ import annotations

import functools
import http
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Sequence
from html import unescape
from typing import Annotated, Any, Final

import httpx
import msgspec
from msgspec import Meta

from tenax.concurrency import run_in_own_thread
from tenax.config import Secret
from tenax.errors import ToolFailed
from tenax.models.http import is_loopback, trusted
from tenax.text import has_hidden
from tenax.tools.base import Args, Call, Tool
from tenax.tools.web.readable import decoded, readable

__all__ = [
    "BYTES_MAX",
    "CHARS_MAX",
    "Brave",
    "FetchPage",
    "Guarded",
    "SearchWeb",
    "Searxng",
    "Tavily",
    "is_public",
    "look_up",
]

# The largest response, compressed and decompressed.
BYTES_MAX: Final = 5 * 1024 * 1024
# The longest text for the model.
CHARS_MAX: Final = 25_000
REDIRECTS_MAX: Final = 5
_ADDRESS_CHARS_MAX = 4096
_CONNECT_SECONDS_MAX = 5.0
_DIALS_MAX = 4
_RESULTS_MAX = 10
_RESULT_CHARS_MAX = 500

_NAME = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]"
)
_NUMBERS = re.compile(r"(?:(?:0x[0-9a-f]*|\d+)(?:\.|$)){1,4}", re.ASCII)
_KIND = re.compile(r"[-\w.+]{1,60}/[-\w.+]{1,60}", re.ASCII)
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = re.compile(
    r"text/.*|application/(.*\+)?(json|xml)|application/(javascript|x-ndjson|yaml|toml)"
)

# The addresses in IANA's special-purpose registries that are not globally reachable, and 168.63.129.16, the metadata
# service of Azure. The metadata services of other clouds have private or link-local addresses.
_SPECIAL = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16 "
    "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
)
_NOT_PUBLIC = [ipaddress.ip_network(network) for network in _SPECIAL.split()]
_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

# Returns the addresses of a host name. Raises OSError.
Resolver = Callable[[str], Awaitable[Sequence[str]]]


def is_public(address: str) -> bool:
    """Return whether the address belongs to the public internet. Invalid addresses do not."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (
            ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
        )
        if ip.scope_id or (inner is None and ip not in _UNICAST):
            return False
        ip = inner or ip
    return not any(ip in network for network in _NOT_PUBLIC)


async def look_up(name: str) -> list[str]:
    """Resolve a host name with the resolver of the machine. Raises `OSError`."""
    found = await run_in_own_thread(
        lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _dial() -> httpx.AsyncBaseTransport:
    return httpx.AsyncHTTPTransport(verify=trusted())


def _client(accept: str, **how: Any) -> httpx.AsyncClient:  # noqa: ANN401  (what httpx takes)
    headers = {"accept": accept, "accept-encoding": "gzip", "user-agent": "tenax"}
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS_MAX),
        **how,
    )


class Guarded(httpx.AsyncBaseTransport):
    """The transport of a call. `Guarded` connects only to public addresses from the first resolution of a host."""

    def __init__(self, resolve: Resolver, dial: httpx.AsyncBaseTransport) -> None:
        self._resolve = resolve
        self._dial = dial
        self._checked: dict[str, Sequence[str]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to a checked address, with the host name in the Host header and in the TLS handshake."""
        host = request.url.raw_host.decode("ascii")
        if host not in self._checked:
            self._checked[host] = await self._addresses(host)
        failed: httpx.TransportError = httpx.ConnectError("")
        for address in self._checked[host][:_DIALS_MAX]:
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._dial.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = error
        raise failed

    async def aclose(self) -> None:
        await self._dial.aclose()

    async def _addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host. Raises `ToolFailed` unless every address is public."""
        addresses: Sequence[str] = [host]
        if not _is_literal(host):
            try:
                addresses = await self._resolve(host)
            except (OSError, UnicodeError) as error:
                raise ToolFailed(
                    f"There is no server of the name {host}, or it cannot be looked up now."
                ) from error
        if not all(map(is_public, addresses)):
            raise ToolFailed(
                f"{host} leads to this machine or its network, and that is not fetched."
            )
        return addresses


class FetchPageArgs(Args):
    url: Annotated[
        str, Meta(description="The whole address, with http:// or https://.")
    ]


class FetchPage(Tool[FetchPageArgs]):
    """Read a web page.

    A GET request can have an effect, for example a confirmation or the use of a one-time link, and a server does not
    know the key of a call. The effect is therefore `once`: after a crash, a fetch is repeated only if a person agrees.
    """

    name = "web_fetch"
    description = (
        "Read a page of the web: its text with its links, without scripts and pictures; also plain text and JSON. "
        "Addresses of this machine and its network cannot be reached."
    )
    effect = "once"
    args = FetchPageArgs
    seconds = 30.0
    asks = True
    open_words = "any page"

    def __init__(
        self,
        resolve: Resolver = look_up,
        dial: Callable[[], httpx.AsyncBaseTransport] = _dial,
    ) -> None:
        self._resolve = resolve
        self._dial = dial

    def badge(self, args: FetchPageArgs) -> str:  # noqa: ARG002  (the contract's signature)
        return "network"

    def touches(self, args: FetchPageArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        """Return the ASCII form of the host, without lookalike letters, and the port unless it is the default."""
        return _host_and_port(_address(args.url))

    def exact(self, args: FetchPageArgs) -> str:
        return str(_address(args.url))

    async def run(self, args: FetchPageArgs, call: Call) -> str:  # noqa: ARG002
        url = _address(args.url)
        accept = "text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.1"
        transport = Guarded(self._resolve, self._dial())
        try:
            async with _client(accept, transport=transport, trust_env=False) as client:
                return await self._follow(client, url)
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise ToolFailed(
                f"{_host_and_port(url)} cannot be read: {_why(error)}."
            ) from error
        except UnicodeError as error:
            raise ToolFailed(
                f"{_host_and_port(url)} sends its visitors on to what is no address."
            ) from error

    async def _follow(self, client: httpx.AsyncClient, url: httpx.URL) -> str:
        """Return the page. Follow redirects within the approved host and port only."""
        for _ in range(REDIRECTS_MAX + 1):
            async with client.stream("GET", url) as response:
                if not response.has_redirect_location:
                    return await _page(response)
                onward = _address(response.headers["location"], url)
            if _host_and_port(onward) != _host_and_port(url):
                return f"{_host_and_port(url)} sends its visitors on to {onward}\nThat is another place, so it was not followed."
            url = onward
        raise ToolFailed(
            f"{_host_and_port(url)} sends its visitors on more than {REDIRECTS_MAX} times."
        )


def _address(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse and normalise a URL. Raises `ToolFailed` for an invalid or non-public URL, or invisible characters."""
    text = text.strip()
    if len(text) > _ADDRESS_CHARS_MAX:
        raise ToolFailed(
            f"An address may have {_ADDRESS_CHARS_MAX:,} characters; this one has {len(text):,}."
        )
    if has_hidden(text) or any(map(str.isspace, text)):
        raise ToolFailed(
            "The address holds a space or a character that cannot be seen."
        )
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host = url.raw_host.decode("ascii").removesuffix(".").lower()
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ToolFailed("That is no address of a page.") from error
    if url.scheme not in {"http", "https"} or not host:
        raise ToolFailed(
            "Only addresses that begin with http:// or https:// and a host are fetched."
        )
    if url.userinfo:
        raise ToolFailed(
            "An address that holds a user's name or password is not fetched."
        )
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise ToolFailed(f"There is no port {url.port}.")
    return url.copy_with(host=_host(host))


def _host(host: str) -> str:
    """Normalise a host: an IP address in every notation, or a public host name."""
    if ":" not in host and _NUMBERS.fullmatch(host):
        try:
            host = socket.inet_ntoa(socket.inet_aton(host))
        except OSError as error:
            raise ToolFailed(f"{host} is no address.") from error
    if _is_literal(host):
        host = str(ipaddress.ip_address(host))
        if not is_public(host):
            raise ToolFailed(
                f"{host} is an address of this machine or its network, and that is not fetched."
            )
    elif not _NAME.fullmatch(host):
        raise ToolFailed("The host in the address is no name of the public internet.")
    return host


def _is_literal(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _host_and_port(url: httpx.URL) -> str:
    """Return the host, and the port unless it is the default."""
    return url.netloc.decode("ascii")


async def _page(response: httpx.Response) -> str:
    host = _host_and_port(response.url)
    if not response.is_success:
        raise ToolFailed(f"{host} answers {_status(response)}.")
    kind, charset = _kind(response.headers.get("content-type", ""))
    if kind and kind not in _HTML and not _TEXT.fullmatch(kind):
        shown = kind if _KIND.fullmatch(kind) else "something"
        raise ToolFailed(
            f"{host} answers with {shown}, and only HTML, text and JSON are read."
        )
    data, whole = await _body(response)
    return await run_in_own_thread(
        lambda: _render(data, kind, charset, response.url, whole)
    )


def _render(
    data: bytes, kind: str, charset: str | None, url: httpx.URL, whole: bool
) -> str:
    """Return the text of a response for the model."""
    text = decoded(data, charset)
    if "\0" in text:
        raise ToolFailed(
            f"{_host_and_port(url)} answers with something that is no text."
        )
    if kind in _HTML or (not kind and text.lstrip().startswith("<")):
        text, all_read = readable(text, str(url), CHARS_MAX)
        whole = whole and all_read
        if not text:
            return "The page has no text that can be read without running its scripts."
    if whole and len(text) <= CHARS_MAX:
        return text or "The answer is empty."
    return f"{text[:CHARS_MAX].rstrip()}\n[The rest is not shown.]"


def _kind(header: str) -> tuple[str, str | None]:
    """Return the media type and the charset of a header. The parser of httpx raises for some headers."""
    kind, *parameters = header.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return kind.strip().lower(), value.strip().strip("\"'")
    return kind.strip().lower(), None


async def _body(response: httpx.Response) -> tuple[bytes, bool]:
    """Return the body up to `BYTES_MAX`, and whether the body is complete. Decompression stops at the same limit."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"", "identity", "gzip", "x-gzip"}:
        raise ToolFailed(
            f"{_host_and_port(response.url)} packs its answer in a way that is not read here."
        )
    unpack = (
        zlib.decompressobj(zlib.MAX_WBITS | 16) if coding.endswith("gzip") else None
    )
    data = bytearray()
    try:
        async for chunk in response.aiter_raw():
            data += (
                unpack.decompress(chunk, BYTES_MAX + 1 - len(data)) if unpack else chunk
            )
            if max(len(data), response.num_bytes_downloaded) > BYTES_MAX:
                return bytes(data[:BYTES_MAX]), False
    except zlib.error as error:
        raise ToolFailed(
            f"{_host_and_port(response.url)} sent something that cannot be unpacked."
        ) from error
    return bytes(data), True


def _status(response: httpx.Response) -> str:
    """Return the status with the standard phrase, because the server can send an arbitrary phrase."""
    try:
        return (
            f"{response.status_code} ({http.HTTPStatus(response.status_code).phrase})"
        )
    except ValueError:
        return str(response.status_code)


def _why(error: httpx.HTTPError | ssl.SSLError) -> str:
    match error:
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return "its certificate is not of this name, or not trusted here"
        case httpx.ConnectTimeout():
            return "it does not answer"
        case httpx.ConnectError():
            return "no connection to it can be made"
        case httpx.RemoteProtocolError():
            return "it does not answer as a web server does"
        case _:
            return "the connection broke"


class Searxng(msgspec.Struct, frozen=True):
    """A SearXNG server that returns JSON."""

    url: str

    def request(self, query: str) -> dict[str, Any]:
        url = self.url.rstrip("/").removesuffix("/search") + "/search"
        return {"method": "GET", "url": url, "params": {"q": query, "format": "json"}}


class Brave(msgspec.Struct, frozen=True):
    """Brave Search."""

    key: Secret
    url: str = "https://api.search.brave.com/res/v1/web/search"

    def request(self, query: str) -> dict[str, Any]:
        params = {"q": query, "count": _RESULTS_MAX, "text_decorations": "false"}
        headers = {"x-subscription-token": self.key.reveal()}
        return {"method": "GET", "url": self.url, "params": params, "headers": headers}


class Tavily(msgspec.Struct, frozen=True):
    """Tavily."""

    key: Secret
    url: str = "https://api.tavily.com/search"

    def request(self, query: str) -> dict[str, Any]:
        body = {"query": query, "max_results": _RESULTS_MAX}
        headers = {"authorization": f"Bearer {self.key.reveal()}"}
        return {"method": "POST", "url": self.url, "json": body, "headers": headers}


class _Result(msgspec.Struct):
    title: str | None = None
    url: str | None = None
    content: str | None = None
    description: str | None = None


class _Results(msgspec.Struct):
    results: list[_Result] = []


class _Found(_Results):
    """A response of a search service. The results of Brave are a level deeper."""

    web: _Results | None = None


class SearchWebArgs(Args):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=400,
            description="What to search for, in a few words.",
        ),
    ]


class SearchWeb(Tool[SearchWebArgs]):
    """Search the web with the configured service. The service may run on this machine, and is therefore not guarded."""

    name = "web_search"
    description = "Search the web. Gives titles, addresses and what stands there in short; read a page with web_fetch."
    effect = "pure"
    args = SearchWebArgs
    seconds = 20.0
    asks = False
    only_reads = True

    def __init__(self, backend: Searxng | Brave | Tavily) -> None:
        self._backend = backend

    def badge(self, args: SearchWebArgs) -> str:  # noqa: ARG002  (the contract's signature)
        return "network"

    def touches(self, args: SearchWebArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return f"{self._where}: {args.query}"

    async def run(self, args: SearchWebArgs, call: Call) -> str:  # noqa: ARG002
        beyond = not is_loopback(self._backend.url)
        client = _client("application/json", verify=trusted(), trust_env=beyond)
        try:
            async with (
                client,
                client.stream(**self._backend.request(args.query)) as response,
            ):
                self._refuse(response)
                data, _ = await _body(response)
            return await run_in_own_thread(lambda: _render_results(data))
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            why = (
                "that is no address"
                if isinstance(error, httpx.InvalidURL)
                else _why(error)
            )
            raise ToolFailed(f"{self._where} cannot be asked: {why}.") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ToolFailed(
                f"{self._where} answers with something that is no list of results."
            ) from error

    @functools.cached_property
    def _where(self) -> str:
        try:
            return _host_and_port(httpx.URL(self._backend.url))
        except (httpx.InvalidURL, UnicodeError):
            return "the search service"

    def _refuse(self, response: httpx.Response) -> None:
        """Turn a failed search response into an error. The response is not quoted, because it may contain the key."""
        status = response.status_code
        if response.is_success:
            return
        if status in {401, 403} and isinstance(self._backend, Searxng):
            raise ToolFailed(
                f"{self._where} gives no results to programs.",
                hint="`json` has to be among the `formats` under `search` in its settings.yml",
            )
        if status in {401, 403, 422} and not isinstance(self._backend, Searxng):
            raise ToolFailed(
                f"{self._where} does not take the key.",
                hint="check the key in the configuration",
            )
        if status in {402, 429, 432, 433}:
            raise ToolFailed(
                f"{self._where} allows no more searches for now.",
                hint="try again later",
            )
        raise ToolFailed(f"{self._where} answers {_status(response)}.")


def _render_results(data: bytes) -> str:
    found = msgspec.json.decode(data, type=_Found)
    shown = []
    for result in (found.web or found).results:
        if not re.fullmatch(r"https?://[!-~]{1,1000}", result.url or ""):
            continue
        excerpt = _line(result.content or result.description)
        lines = [_line(result.title), result.url, excerpt]
        shown.append("\n".join(line for line in lines if line))
    return "\n\n".join(shown[:_RESULTS_MAX]) or "Nothing was found."


def _line(text: str | None) -> str:
    line = " ".join(unescape(text or "").split())
    return line if len(line) <= _RESULT_CHARS_MAX else f"{line[:_RESULT_CHARS_MAX]}..."
