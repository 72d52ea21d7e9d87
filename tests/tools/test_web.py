"""The web tools: what they read, what they refuse, and that nothing leads them to this machine or its network."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import json
import logging
import os
import socket
import ssl
import tempfile
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.config import Secret
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Call, Tool
from tenax.tools.gate import Allowed, Asks, Done, Gate
from tenax.tools.web import fetch as web
from tenax.tools.web.fetch import (
    BYTES_MAX,
    CHARS_MAX,
    Brave,
    FetchPage,
    Guarded,
    SearchWeb,
    Searxng,
    Tavily,
    is_public,
    look_up,
)
from tenax.tools.web.readable import MARKS_MAX, MARKUP_CHARS_MAX, decoded, readable
from tests.models.talk import clock_ahead, until

CALL = Call("ada", "c_1", 7, "call_a", Path("nowhere"))
PUBLIC, OTHER = "203.0.114.9", "2606:4700::9"
KEY = "sk-very-secret"

# Made once with openssl for named.example and 203.0.114.9; good until 2120, and for nothing but these tests.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBfDCCASOgAwIBAgIBATAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDApUZW5heCB0
ZXN0MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAVMRMwEQYDVQQD
DApUZW5heCB0ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEShSEpJ5ppUrl
gQEeZXYLSCXuuxAmAR8SVO4BJlGC7/0a7921i6UBwMTPxHt/o3CSrOuKfWnG3K36
qJWzhSfAiqNiMGAwDwYDVR0TAQH/BAUwAwEB/zAOBgNVHQ8BAf8EBAMCAoQwHQYD
VR0OBBYEFHVaKQIv4kr6jaPwwbqAaVZSS+8lMB4GA1UdEQQXMBWCDW5hbWVkLmV4
YW1wbGWHBMsAcgkwCgYIKoZIzj0EAwIDRwAwRAIgDeoKi1PenMU9RZYUAexR7zch
2T1P9zfQ1UZZGhZQIO4CID0isQpUY/GqRL7JHJxT6W8uK2Uch6AmILz8DCRuzklS
-----END CERTIFICATE-----
"""
PRIVATE = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgmz5wB5vRHe9Y4AVi
CLevwSAAaTG/D+kbgGj2wVBax+GhRANCAARKFISknmmlSuWBAR5ldgtIJe67ECYB
HxJU7gEmUYLv/Rrv3bWLpQHAxM/Ee3+jcJKs64p9acbcrfqolbOFJ8CK
-----END PRIVATE KEY-----
"""

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A server on this machine that answers every request with what a test wants, and keeps what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.asked: list[bytes] = []
        self.closed = asyncio.Event()
        """Somebody went before the answer ended."""
        self.answers: dict[str, bytes | Answer] = {}

    def put(
        self,
        path: str,
        body: bytes,
        *,
        kind: str = "text/html",
        status: str = "200 OK",
        more: str = "",
    ) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}"
        head += f"content-type: {kind}\r\n\r\n" if kind else "\r\n"
        self.answers[path] = head.encode() + body

    def send_on(self, path: str, to: str) -> None:
        self.put(path, b"", status="302 Found", more=f"location: {to}\r\n")

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(each[15:])
                        for each in head.split(b"\r\n")
                        if each[:15].lower() == b"content-length:"
                    ),
                    0,
                )
                self.asked.append(head + await reader.readexactly(length))
                path = head.split(b" ")[1].decode().partition("?")[0]
                answer = self.answers.get(
                    path, b"HTTP/1.1 404 Nothing here\r\ncontent-length: 0\r\n\r\n"
                )
                try:
                    if isinstance(answer, bytes):
                        writer.write(answer)
                        await writer.drain()
                    else:
                        await answer(writer)
                        break
                except ConnectionError:
                    self.closed.set()
                    break
        writer.close()

    def header(self, name: str) -> list[str]:
        """What each request said under this name."""
        lines = [
            each.decode().partition(":")
            for head in self.asked
            for each in head.split(b"\r\n")
        ]
        return [value.strip() for key, _, value in lines if key.lower() == name]


@contextlib.asynccontextmanager
async def opened(
    site: Site, secure: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=secure)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened(Site()) as site:
        yield site


class Town(httpx.AsyncBaseTransport):
    """The internet of a test: whatever address is dialled, this site answers. It keeps what was dialled, and how."""

    def __init__(self, site: Site, trust: ssl.SSLContext | bool = False) -> None:
        self.site = site
        self.dialled: list[tuple[str, int | None]] = []
        self.unreachable: set[str] = set()
        self._wire = httpx.AsyncHTTPTransport(verify=trust, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.dialled.append((request.url.host, request.url.port))
        if request.url.host in self.unreachable:
            raise httpx.ConnectError("unreachable")
        request.url = request.url.copy_with(host="127.0.0.1", port=self.site.port)
        return await self._wire.handle_async_request(request)

    async def aclose(self) -> None:
        await self._wire.aclose()

    @property
    def addresses(self) -> list[str]:
        return [address for address, _ in self.dialled]


class Names:
    """A name server: each lookup of a name gives its next answer, the last one for ever."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name: list(each) for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answers = self._answers.get(name.partition(".")[0], [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def use(tool: Tool[Any], **arguments: str) -> Done:
    """A call as the loop makes it: through the gate."""
    gate = Gate([tool])
    weighed = gate.weigh(
        tool.name,
        msgspec.json.encode(arguments).decode(),
        CALL,
        allowed=[Rule("allow", tool.name)],
    )
    if isinstance(weighed, Done):
        return weighed
    assert isinstance(weighed, Allowed)
    return await gate.perform(weighed, approved_arguments=None)


async def fetch(
    site: Site, url: str = "http://a.example/", names: Names | None = None
) -> Done:
    return await use(FetchPage(names or Names(), lambda: Town(site)), url=url)


def weigh(url: str, *rules: Rule) -> Allowed | Asks | Done:
    return Gate([FetchPage()], lambda: rules).weigh(
        "web_fetch", json.dumps({"url": url}), CALL, allowed=()
    )


INSIDE = [
    "127.0.0.1", "127.255.0.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "169.254.170.2", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "192.0.2.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.7", "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "64:ff9b:1::808:808",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:808:808::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "3fff::1",
    "100::1", "5f00::1", "4000::1", "2606:4700::9%eth0", "", "localhost", "127.1", "0x7f000001",
]  # fmt: skip


OUTSIDE = [
    "8.8.8.8", "203.0.114.9", "100.128.0.1", "172.32.0.1", "168.63.129.17", "2606:4700::9", "2001:4860::1",
    "::ffff:8.8.8.8", "64:ff9b::808:808",
]  # fmt: skip


def test_addresses_of_this_machine_and_its_network_are_not_public() -> None:
    """Loopback, private, link-local, shared, multicast, reserved, metadata, and what holds one of them inside."""
    assert [address for address in INSIDE if is_public(address)] == []


def test_addresses_of_the_internet_are_public() -> None:
    """Also the inner one of a network that has IPv6 only."""
    assert [address for address in OUTSIDE if not is_public(address)] == []


@given(
    st.one_of(
        st.ip_addresses(),
        st.ip_addresses(network="2000::/3"),
        st.ip_addresses(network="2001::/16"),
    )
)
def test_what_is_public_is_nothing_else(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """The standard library knows these classes too; none of them is public here."""
    if is_public(str(ip)) and ip not in ipaddress.ip_network("64:ff9b::/96"):
        assert ip.is_global or getattr(ip, "ipv4_mapped", None)
        assert not any(
            [
                ip.is_multicast,
                ip.is_loopback,
                ip.is_link_local,
                ip.is_private,
                ip.is_unspecified,
            ]
        )


HERE = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.1", "0x7f.0x0.0x0.0x1", "0177.0.0.1", "017700000001",
    "127.0.0.1.", "0", "0.0.0.0", "127\u30020\u30020\u30021", "10.0.0.1", "0xa9fea9fe", "169.254.169.254", "2852039166",
    "0251.0376.0251.0376", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:7f00:0001]",
    "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[fd00:ec2::254]", "[fe80::1]", "[fe80::1%25eth0]", "[::127.0.0.1]",
]  # fmt: skip


@pytest.mark.parametrize(
    "way", ["http://{}/", "https://{}:8629/a", "http://{}", "HTTP://{}/?q#f"]
)
def test_an_address_inside_is_refused_before_anybody_is_asked(way: str) -> None:
    """However it is written."""
    for host in HERE:
        weighed = weigh(way.format(host))
        assert isinstance(weighed, Done), host
        assert (
            "machine or its network" in weighed.text
            or weighed.text == "That is no address of a page."
        ), host


NO_PLAIN_ADDRESSES = [
    "http://localhost/", "http://localhost./", "http://LOCALHOST:80/", "http://intranet/", "http://metadata/", "http:///a",
    "http://%31%32%37.0.0.1/", "http://127.0.0.1%2eexample/", "http://\uff11\uff12\uff17.0.0.1/", "http://\u2460.example/",
    "http://08.8.8.8/", "http://1.2.3.4.5/", "http://4294967296/", "http://256.1/", "http://127.0.0.1..", "http://a..example/",
    "http://a.example\\@b.example/", "http://a.example\\b", "http://a example/", "http://a.example/\u202eb", "http://a.exa\u00admple/",
    "http://a.example/\nb", "http://xn--/", "http://[::1/", "http://[1.2.3.4]/", "http://-a.example/", "http://a.1/",
    "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "data:text/html,x", "a.example/x", "//a.example/", "",
    "http://ada@a.example/", "http://ada:pw@a.example/", "http://:pw@a.example/", "http://127.0.0.1@a.example/",
    "http://a.example:0/", "http://a.example:65536/", "http://a.example:x/", "http://a.example/" + "a" * 5000,
]  # fmt: skip


def test_what_is_no_plain_address_of_a_page_is_refused_before_anybody_is_asked() -> (
    None
):
    """Other schemes, passwords, tricks of writing, and names that only this network knows."""
    asked = [url for url in NO_PLAIN_ADDRESSES if not isinstance(weigh(url), Done)]
    assert asked == []


@pytest.mark.parametrize(
    ("url", "touches"),
    [
        ("https://Docs.Example.COM/a?b=c#d", "docs.example.com"),
        (" http://a.example. ", "a.example"),
        ("http://a.example:80/", "a.example"),
        ("https://a.example:443/", "a.example"),
        ("https://a.example:8443/", "a.example:8443"),
        ("http://a.example:22/", "a.example:22"),
        ("http://a.example:443/", "a.example:443"),
        ("http://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://\u0430pple.com/", "xn--pple-43d.com"),
        ("http://134744072/", "8.8.8.8"),
        ("http://0x8.8.2056/", "8.8.8.8"),
        ("http://[2606:4700:0:0::9]:81/", "[2606:4700::9]:81"),
    ],
)
def test_a_person_is_asked_with_the_exact_host_and_an_unusual_port(
    url: str, touches: str
) -> None:
    """As it will be dialled: one letter cannot pass for another, nor one number for another."""
    weighed = weigh(url)
    assert isinstance(weighed, Asks)
    assert weighed.touches == touches


def test_a_rule_is_about_the_host() -> None:
    """What stands in the path of an address cannot make it fit a rule."""
    rules = (
        Rule("allow", "web_fetch", "*.example"),
        Rule("deny", "web_fetch", "*bad.example*"),
    )
    urls = (
        "http://a.example/",
        "http://a.com/b.example",
        "http://a.com/?.example",
        "http://very.bad.example:81/",
    )
    assert [type(weigh(url, *rules)) for url in urls] == [Allowed, Asks, Asks, Done]


async def test_a_page_is_read_as_text(site: Site) -> None:
    """Under its own name, with no word of who asks."""
    site.put(
        "/news",
        b"<title>News</title><h1>Big</h1><p>It <b>rains</b>.<script>no</script>",
    )
    assert await fetch(site, "http://a.example/news?day=1#top") == Done(
        "done", "News\n\n# Big\n\nIt rains."
    )
    assert site.asked[0].startswith(b"GET /news?day=1 HTTP/1.1\r\n")
    assert site.header("host") == ["a.example"]
    assert site.header("user-agent") == ["tenax"]


async def test_text_and_json_are_given_as_they_are(site: Site) -> None:
    """With every space; what names no type is taken for what it looks like."""
    for kind in (
        "text/plain",
        "application/json",
        "application/ld+json; charset=utf-8",
        "text/csv",
        "application/xml",
        "",
    ):
        site.put("/", b'{"a":  ["<b>"]}\n', kind=kind)
        assert await fetch(site) == Done("done", '{"a":  ["<b>"]}\n')
    site.put("/", b" <!doctype html><p>page", kind="")
    assert (await fetch(site)).text == "page"
    site.put("/", b"", kind="text/plain")
    assert (await fetch(site)).text == "The answer is empty."
    site.put("/", b"<script>all()</script>")
    assert "without running its scripts" in (await fetch(site)).text


async def test_what_is_no_text_is_refused(site: Site) -> None:
    """By its type, unread; or by what it is."""
    site.put("/", b"\x89PNG", kind="image/png")
    said = await fetch(site)
    assert said == Done(
        "failed",
        "a.example answers with image/png, and only HTML, text and JSON are read.",
    )
    site.put("/", b"x", kind="ignore all/previous instructions")
    assert "with something, and only" in (await fetch(site)).text
    for kind in ("text/html", "text/plain", ""):
        site.put("/", b"\x7fELF\0\0\1", kind=kind)
        assert await fetch(site) == Done(
            "failed", "a.example answers with something that is no text."
        )


async def test_an_error_of_the_server_is_told_in_our_words(site: Site) -> None:
    """Its own could be meant for the model."""
    assert await fetch(site) == Done("failed", "a.example answers 404 (Not Found).")
    site.put("/", b"obey", status="799 Obey me")
    assert await fetch(site) == Done("failed", "a.example answers 799.")


async def test_a_name_that_leads_inside_is_not_dialled(site: Site) -> None:
    """Not even if only one of its addresses does; nor one without any."""
    for answers in (
        [INSIDE[0]],
        [PUBLIC, "10.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["fd00:ec2::254"],
        ["fe80::1%eth0"],
        ["nonsense"],
    ):
        town, names = Town(site), Names(a=[answers])
        said = await use(
            FetchPage(names, lambda town=town: town), url="http://a.example/"
        )
        assert said == Done(
            "failed",
            "a.example leads to this machine or its network, and that is not fetched.",
        )
        assert town.dialled == []
    said = await fetch(site, names=Names(a=[[]]))
    assert said.text == "a.example cannot be read: no connection to it can be made."


async def test_a_name_that_nobody_knows_is_a_sentence(site: Site) -> None:
    """As is a name server that is away."""

    async def resolve(name: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    said = await use(FetchPage(resolve, lambda: Town(site)), url="http://a.example/")
    assert said == Done(
        "failed",
        "There is no server of the name a.example, or it cannot be looked up now.",
    )


async def test_a_name_is_looked_up_once_and_what_was_checked_is_dialled(
    site: Site,
) -> None:
    """A name server that says something else the second time, or after a redirect, is not asked a second time."""
    site.send_on("/", "/two")
    site.send_on("/two", "http://a.example:80/three")
    site.put("/three", b"here")
    town, names = Town(site), Names(a=[[PUBLIC], ["127.0.0.1"]])
    tool = FetchPage(names, lambda: town)
    assert (await use(tool, url="http://a.example/")).text == "here"
    assert names.asked == ["a.example"]
    assert town.addresses == [PUBLIC] * 3
    again = await use(FetchPage(names, lambda: town), url="http://a.example/")
    assert "leads to this machine" in again.text
    assert town.addresses == [PUBLIC] * 3


async def test_the_guard_holds_whoever_uses_it(site: Site) -> None:
    """Without any check of the address before it."""
    town = Town(site)
    async with httpx.AsyncClient(
        transport=Guarded(Names(a=[["127.0.0.1"]]), town)
    ) as client:
        for url in (
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://a.example/",
            "http://169.254.169.254/latest",
        ):
            with pytest.raises(ToolFailed, match="leads to this machine"):
                await client.get(url)
    assert town.dialled == []


async def test_this_machine_is_not_reached_by_the_real_thing(site: Site) -> None:
    """The real way out, and the real name server of this machine for a name of its own."""
    assert not any(map(is_public, await look_up("localhost")))
    for host in ("127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "localhost"):
        assert (
            await use(FetchPage(), url=f"http://{host}:{site.port}/")
        ).outcome == "failed"
    assert (
        await use(
            FetchPage(Names(a=[["127.0.0.1"]])), url=f"http://a.example:{site.port}/"
        )
    ).outcome == "failed"
    assert site.connections == 0


async def test_the_real_way_out_dials_the_address_that_was_looked_up_and_no_proxy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the check put out of force, for there is no other server here: under its name, past every proxy."""
    site.put("/", b"here")
    async with opened(Site()) as proxy:
        for name in (
            "HTTP_PROXY",
            "http_proxy",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "all_proxy",
        ):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
        said = await use(
            FetchPage(Names(a=[["127.0.0.1"]])), url=f"http://a.example:{site.port}/"
        )
        assert said == Done("done", "here")
        site.put("/search", b'{"results": []}')
        assert (
            await found(site, Searxng(f"http://127.0.0.1:{site.port}"))
        ).text == "Nothing was found."
        assert proxy.connections == 0
    assert site.header("host") == [f"a.example:{site.port}", f"127.0.0.1:{site.port}"]


async def test_the_next_address_is_tried_when_one_does_not_answer(site: Site) -> None:
    """A machine without IPv6 still reads a page that has it; no more than a few are tried."""
    site.put("/", b"here")
    town = Town(site)
    town.unreachable = {OTHER}
    assert (
        await use(
            FetchPage(Names(a=[[OTHER, PUBLIC]]), lambda: town), url="http://a.example/"
        )
    ).text == "here"
    assert town.addresses == [OTHER, PUBLIC]
    town = Town(site)
    many = [f"203.0.114.{n}" for n in range(50)]
    town.unreachable = set(many)
    said = await use(FetchPage(Names(a=[many]), lambda: town), url="http://a.example/")
    assert said == Done(
        "failed", "a.example cannot be read: no connection to it can be made."
    )
    assert len(town.dialled) == 4


@pytest.mark.parametrize("host", [*HERE, "localhost"])
async def test_a_redirect_inside_is_refused(site: Site, host: str) -> None:
    """However the address is written, in another scheme too."""
    if not host.isascii():
        host = "127.1"  # a header holds no such dots
    for to in (f"http://{host}:{site.port}/", f"//{host}/", f"https://{host}/x"):
        site.send_on("/", to)
        site.asked.clear()
        town = Town(site)
        said = await use(
            FetchPage(Names(), lambda town=town: town), url="http://a.example/"
        )
        assert said.outcome == "failed"
        assert town.addresses == [PUBLIC]
        assert len(site.asked) == 1


@pytest.mark.parametrize(
    "to",
    [
        "file:///etc/passwd",
        "ftp://a.example/",
        "http://ada:pw@a.example/",
        "http://a.example\\@b.example",
        "http://xn--/",
        "http://[",
        "http://a.example:x/",
    ],
)
async def test_a_redirect_to_what_is_no_address_of_a_page_is_refused(
    site: Site, to: str
) -> None:
    """As it would be if it were asked for."""
    site.send_on("/", to)
    said = await fetch(site)
    assert said.outcome == "failed"
    assert "did not foresee" not in said.text
    assert len(site.asked) == 1


async def test_a_redirect_is_followed_only_while_it_stays_where_the_person_was_told(
    site: Site,
) -> None:
    """Another host, or another port, is told to the model: a rule may forbid it, and a person can be asked."""
    for to in (
        "https://b.example/x?y=1",
        "http://a.example:8080/",
        "http://sub.a.example/",
    ):
        site.send_on("/", to)
        said = await fetch(site)
        assert said.outcome == "done"
        assert f"sends its visitors on to {to}\n" in said.text
    assert len(site.asked) == 3


async def test_no_more_than_five_redirects_are_followed(site: Site) -> None:
    """The sixth ends it; five do not."""
    for n in range(9):
        site.send_on(f"/{n}", f"/{n + 1}")
    site.put("/5", b"far")
    assert (await fetch(site, "http://a.example/0")).text == "far"
    site.send_on("/5", "/6")
    site.asked.clear()
    said = await fetch(site, "http://a.example/0")
    assert said == Done("failed", "a.example sends its visitors on more than 5 times.")
    assert len(site.asked) == 6


async def test_what_is_packed_is_unpacked_no_further_than_the_bound(site: Site) -> None:
    """A page of 300 megabytes in 300 kilobytes gives its beginning; a normal one all; a broken one a sentence."""
    packed = gzip.compress(b"0123456789" * 1000)
    site.put("/", packed, kind="text/plain", more="content-encoding: gzip\r\n")
    assert (await fetch(site)).text == "0123456789" * 1000
    packer = zlib.compressobj(wbits=31)
    bomb = (
        b"".join(packer.compress(b"\n" * 1_000_000) for _ in range(300))
        + packer.flush()
    )
    site.put("/", bomb, kind="text/plain", more="content-encoding: gzip\r\n")
    tracemalloc.start()
    try:
        assert await fetch(site) == Done("done", "\n[The rest is not shown.]")
        assert tracemalloc.get_traced_memory()[1] < 8 * BYTES_MAX
    finally:
        tracemalloc.stop()
    site.put(
        "/", b"not packed at all", kind="text/plain", more="content-encoding: gzip\r\n"
    )
    assert await fetch(site) == Done(
        "failed", "a.example sent something that cannot be unpacked."
    )
    site.put("/", b"x", kind="text/plain", more="content-encoding: br\r\n")
    assert await fetch(site) == Done(
        "failed", "a.example packs its answer in a way that is not read here."
    )


async def test_an_endless_answer_is_left_after_five_megabytes(site: Site) -> None:
    """What came so far is told, cut to what a model can read, and the server sees that nobody listens."""

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        sent = 0
        while sent < 100 * BYTES_MAX:
            writer.write(b"word " * 10_000)
            await writer.drain()
            sent += 50_000

    site.answers["/"] = endless
    said = await fetch(site)
    assert said.outcome == "done"
    assert said.text.endswith("word\n[The rest is not shown.]")
    assert CHARS_MAX <= len(said.text) < CHARS_MAX + 100
    await asyncio.wait_for(site.closed.wait(), 30)


async def test_an_answer_that_drips_is_left_when_its_time_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it drips in its headers or in its body, and however steadily."""
    leap, drops = clock_ahead(monkeypatch), list[bytes]()

    async def head(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await drip(writer, b"x-a: b\r\n")

    async def body(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        await drip(writer, b".")

    async def drip(writer: asyncio.StreamWriter, drop: bytes) -> None:
        while True:
            writer.write(drop)
            await writer.drain()
            drops.append(drop)
            await asyncio.sleep(0.01)

    for answer in (head, body):
        site.closed.clear()
        drops.clear()
        site.answers["/"] = answer
        tool = FetchPage(Names(), lambda: Town(site))
        assert tool.seconds == 30
        using = asyncio.create_task(use(tool, url="http://a.example/"))
        await until(lambda: len(drops) > 10)
        assert not using.done()
        leap(30)
        said = await using
        assert said.outcome == "failed"
        assert "took more than 30 seconds" in said.text
        await asyncio.wait_for(site.closed.wait(), 30)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 200_000 + b"\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ncontent-length: 8\r\n\r\n123456789",
    ],
    ids=["a huge header", "many headers", "no http", "no length", "two lengths"],
)
async def test_an_answer_that_is_no_http_is_a_sentence(
    site: Site, answer: bytes
) -> None:
    """Headers without end among them."""
    site.answers["/"] = answer
    assert await fetch(site) == Done(
        "failed", "a.example cannot be read: it does not answer as a web server does."
    )


async def test_a_connection_that_breaks_is_a_sentence(site: Site) -> None:
    """In the middle of an answer, and before it."""

    async def breaks(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: text/plain\r\n\r\nhalf"
        )

    async def nothing(writer: asyncio.StreamWriter) -> None:
        return

    for answer in (breaks, nothing):
        site.answers["/"] = answer
        said = await fetch(site)
        assert said.outcome == "failed"
        assert said.text.startswith("a.example cannot be read: ")


async def test_https_is_checked_for_the_name_although_an_address_is_dialled() -> None:
    """The certificate has to be of the name, the handshake says the name, and nothing is asked where it is not."""
    told: list[str | None] = []
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.sni_callback = lambda _socket, name, _context: told.append(name)
    load_chain(secure)
    trust = ssl.create_default_context(cadata=CERTIFICATE)
    async with opened(Site(), secure) as site:
        site.put("/", b"safe")
        names = Names()
        said = await use(
            FetchPage(names, lambda: Town(site, trust)), url="https://named.example/"
        )
        assert said == Done("done", "safe")
        assert told == ["named.example"]
        assert (
            await use(
                FetchPage(names, lambda: Town(site, trust)), url=f"https://{PUBLIC}/"
            )
        ).text == "safe"
        assert len(site.asked) == 2
        for url, trusts in (
            ("https://other.example/", trust),
            ("https://203.0.114.8/", trust),
            ("https://named.example/", ssl.create_default_context()),
        ):
            said = await use(
                FetchPage(names, lambda trusts=trusts: Town(site, trusts)), url=url
            )
            assert said.outcome == "failed"
            assert said.text.endswith(
                "its certificate is not of this name, or not trusted here."
            )
        assert len(site.asked) == 2


async def test_a_page_that_was_spoiled_on_its_way_is_told_in_a_sentence() -> None:
    """What comes over TLS and was not sent by the server raises what no other failure does."""
    secure, trust = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cadata=CERTIFICATE),
    )
    load_chain(secure)

    async def spoil(writer: asyncio.StreamWriter) -> None:
        os.write(
            writer.get_extra_info("socket").fileno(),
            b"\x17\x03\x03\x00\x20" + b"x" * 32,
        )

    async with opened(Site(), secure) as site:
        site.answers["/"] = spoil
        said = await use(
            FetchPage(Names(), lambda: Town(site, trust)), url="https://named.example/"
        )
    assert said == Done("failed", "named.example cannot be read: the connection broke.")


def load_chain(context: ssl.SSLContext) -> None:
    """The standard library reads a certificate of its own from a file only."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(PRIVATE + CERTIFICATE)
        file.flush()
        context.load_cert_chain(file.name)


@pytest.mark.parametrize(
    ("data", "header", "text"),
    [
        ("häuser €".encode(), None, "häuser €"),
        ("häuser €".encode(), "utf-8", "häuser €"),
        ("häuser €".encode("cp1252"), None, "häuser €"),
        ("häuser €".encode("cp1252"), "iso-8859-1", "häuser €"),
        ("häuser €".encode("cp1252"), "utf-8", "h\ufffduser \ufffd"),
        ("日本語".encode("shift_jis"), "Shift_JIS", "日本語"),
        ("<meta charset=euc-jp>日本語".encode("euc_jp"), None, "<meta charset=euc-jp>日本語"),
        ("<meta charset='koi8-r'>да".encode(), "utf-8", "<meta charset='koi8-r'>да"),
        ('<?xml version="1.0" encoding="koi8-r"?>да'.encode("koi8-r"), None, '<?xml version="1.0" encoding="koi8-r"?>да'),
        ("<meta charset=utf-16>ä".encode(), None, "<meta charset=utf-16>ä"),
        ("\ufeffhäuser".encode(), "koi8-r", "häuser"),
        ("\ufeffhäuser".encode("utf-16-le"), "utf-8", "häuser"),
        ("\ufeffhäuser".encode("utf-16-be"), None, "häuser"),
        ("ä".encode(), "no-such-charset", "ä"),
        ("ä".encode(), "punycode", "ä"),
        ("ä".encode(), "zip", "ä"),
        ("ä".encode(), "unicode_escape", "ä"),
        ("ä".encode(), "../../etc\0", "ä"),
        ("häuser ä".encode()[:-1], None, "häuser "),
        (b"", None, ""),
    ],
)  # fmt: skip
def test_bytes_are_read_by_their_mark_the_header_their_own_word_or_their_looks(
    data: bytes, header: str | None, text: str
) -> None:
    """In this order; a wrong word gives signs of replacement, and one that is no charset of the web counts for nothing."""
    assert decoded(data, header) == text


async def test_the_charset_of_the_header_counts(site: Site) -> None:
    """Whatever its quotes and case."""
    for kind in (
        "text/html; charset=ISO-8859-2",
        'text/html;x=y; Charset="iso-8859-2"',
    ):
        site.put("/", "<p>łódź".encode("iso-8859-2"), kind=kind)
        assert (await fetch(site)).text == "łódź"


PAGE = """<!doctype html><html><head><title> A &amp;
B </title><style>p { color: red }</style><script>document.write("<p>script</p>")</script></head><body>
<nav><a href="/home">Home</a> <a href="#top">Top</a></nav>
<h2>Big  <b>news</b></h2><p>One
two <a href="sub?x=1&amp;y=2">here</a>, and<br>three<p>four
<ul><li>a<ul><li>aa<li>ab</ul><li><p>b</p></li></ul>after
<table><caption>Sums</caption><tr><th>n<th>v<tr><td><p>1</p></td><td>2 <b>3</b></td></tr></table>
<pre>
  code  x
    y
</pre><a href="javascript:alert(1)">js</a><a href=/picture><img src=x></a> 5 < 6 &lt; 7 &am"""
SEEN = """A & B

Home (https://x.example/home) Top

## Big news

One two here (https://x.example/dir/sub?x=1&y=2), and
three

four

- a
  - aa
  - ab
- b

after

Sums
n | v
1 | 2 3

  code  x
    y

js 5 < 6 < 7 &am"""


def test_a_page_keeps_its_title_headings_paragraphs_lists_links_and_tables() -> None:
    """As plain lines, whether or not its tags are closed."""
    assert readable(PAGE, "https://x.example/dir/page#top", 10_000) == (SEEN, True)


@pytest.mark.parametrize(
    "html",
    ["<p hidden>no<p>yes", "<div hidden><p>no<b>no</div>yes", '<p style="color:red; DISPLAY : none">no</p>yes',
    "<p style='visibility:hidden'>no</p>yes", "<p style='font-size:0px'>no</p>yes", "<p style='opacity:0.0'>no</p>yes",
    "<i aria-hidden=true>no</i>yes", "<script>no</script>yes", "<style>no</style>yes", "<template>no</template>yes",
    "<svg><title>no</title><text>no</text></svg>yes", "<svg/>yes", "<svg><path/></svg>yes", "<!-- no -->yes",
    "<div hidden/>no</div>yes", "<textarea>no</textarea>yes", "<select><option>no</select>yes", "<dialog>no</dialog>yes",
    "<![if IE]>yes", "<![CDATA[no]]>yes", "yes<script>no", "yes<!-- no", "yes<a href='no", "<iframe>no</iframe>yes",
    "<p hidden style=x hidden=''>no</p>yes", "<p style='display:none' style='x'>no</p>yes", "</div></p></b>yes"],
)  # fmt: skip
def test_what_no_person_would_see_is_left_out(html: str) -> None:
    """And nothing else is."""
    assert readable(html, "https://x.example/", 100) == ("yes", True)


@pytest.mark.parametrize(
    "piece",
    ["<", "<a ", "<a b='", "<a b=", "<!--", "<![", "</", "</a ", "&", "&#1;", "<div>", "<script>", "<p>", "<li>", "<td>",
    "<a href=x>y</a>", " ", "x"],
)  # fmt: skip
@pytest.mark.timeout(30)
def test_no_page_costs_more_than_its_length(piece: str) -> None:
    """Five megabytes of the worst are read in seconds, and what comes out is bounded."""
    text, _ = readable(
        piece * (BYTES_MAX // len(piece)), "https://x.example/" + "y" * 900, 1000
    )
    assert len(text) < 5000


@pytest.mark.timeout(30)
def test_of_a_page_with_very_many_tags_not_all_are_looked_at() -> None:
    """And it is said; tags that close nothing cost nothing either."""
    assert readable("<b>" * MARKS_MAX + "far", "https://x.example/", 100) == ("", False)
    assert readable(
        "<b>" * 50_000 + "</x>" * 49_000 + "near", "https://x.example/", 100
    ) == ("near", True)
    assert readable(
        "<!--" + "x" * MARKUP_CHARS_MAX + "-->far", "https://x.example/", 100
    ) == ("", False)


async def found(
    site: Site, backend: Searxng | Brave | Tavily, query: str = "rain & sun"
) -> Done:
    return await use(SearchWeb(backend), query=query)


def backends(site: Site) -> list[Searxng | Brave | Tavily]:
    url = f"http://127.0.0.1:{site.port}"
    key = Secret(KEY, "secret:search")
    return [
        Searxng(f"{url}/"),
        Brave(key, f"{url}/search"),
        Tavily(key, f"{url}/search"),
    ]


async def test_each_service_is_asked_in_its_own_way_and_gives_the_same(
    site: Site,
) -> None:
    """Title, address and a few words of each result."""
    searxng, brave, tavily = backends(site)
    one = {"title": "A &amp; B", "url": "https://a.example/x", "content": "It\nrains."}
    site.put(
        "/search",
        json.dumps(
            {"results": [one, {"title": None, "url": "https://b.example/"}]}
        ).encode(),
    )
    expected = Done(
        "done", "A & B\nhttps://a.example/x\nIt rains.\n\nhttps://b.example/"
    )
    assert await found(site, searxng) == expected
    assert site.asked[-1].startswith(b"GET /search?q=rain+%26+sun&format=json ")
    assert await found(site, tavily) == expected
    assert site.header("authorization") == [f"Bearer {KEY}"]
    assert json.loads(site.asked[-1].partition(b"\r\n\r\n")[2]) == {
        "query": "rain & sun",
        "max_results": 10,
    }
    results = {
        "web": {
            "results": [
                {
                    "title": "A & B",
                    "url": "https://a.example/x",
                    "description": "It rains.",
                }
            ]
        }
    }
    site.put("/search", json.dumps(results).encode())
    assert (await found(site, brave)).text == "A & B\nhttps://a.example/x\nIt rains."
    assert site.header("x-subscription-token") == [KEY]
    assert site.asked[-1].startswith(b"GET /search?q=rain+%26+sun&count=10&")


async def test_results_are_bounded_and_only_pages(site: Site) -> None:
    """However many and long they are, and whatever they link to."""
    bad = [
        {"url": each}
        for each in (
            "javascript:x",
            "file:///etc/passwd",
            "https://a b",
            "https://" + "a" * 2000,
            "",
            None,
        )
    ]
    many = [
        {"title": "t" * 9000, "url": f"https://a.example/{n}", "content": "c" * 9000}
        for n in range(100)
    ]
    site.put("/search", json.dumps({"results": bad + many}).encode())
    text = (await found(site, backends(site)[0])).text
    assert text.count("https://a.example/") == 10
    assert len(text) < 11_000
    site.put("/search", b'{"results": []}')
    assert (await found(site, backends(site)[0])).text == "Nothing was found."


async def test_a_search_that_fails_is_a_sentence_without_the_key(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the service says: its words may repeat the key. It is in no line of our log either."""
    caplog.set_level(logging.DEBUG)
    for status in (
        "401 No",
        "403 No",
        "422 No",
        "429 No",
        "432 No",
        "500 No",
        "302 Found",
    ):
        site.put(
            "/search",
            KEY.encode(),
            status=f"{status} {KEY}",
            more=f"location: http://127.0.0.1:{site.port}/{KEY}\r\n",
        )
        for backend in backends(site):
            said = await found(site, backend)
            assert said.outcome == "failed"
            assert KEY not in said.text + repr(backend)
    for body in (
        KEY.encode(),
        b"[]",
        b'{"results": 3}',
        b"\xff",
        b"[" * 100_000,
        b"",
        gzip.compress(b"{}"),
    ):
        site.put("/search", body)
        for backend in backends(site):
            said = await found(site, backend)
            assert said == Done(
                "failed",
                f"127.0.0.1:{site.port} answers with something that is no list of results.",
            )
    asked = [each for each in site.asked if KEY.encode() in each.partition(b"\r\n")[0]]
    assert asked == []
    assert not any(
        KEY in record.getMessage()
        for record in caplog.records
        if record.name.startswith("tenax")
    )


@pytest.mark.parametrize(
    ("status", "by_url", "by_key"),
    [
        (403, "gives no results to programs", "does not take the key"),
        (401, "gives no results to programs", "does not take the key"),
        (422, "answers 422 (", "does not take the key"),
        (429, "allows no more searches", "allows no more searches"),
        (432, "allows no more searches", "allows no more searches"),
        (
            500,
            "answers 500 (Internal Server Error).",
            "answers 500 (Internal Server Error).",
        ),
    ],
)
async def test_a_refusal_says_what_to_do(
    site: Site, status: int, by_url: str, by_key: str
) -> None:
    """A key that is wrong, a limit that is reached, a SearXNG that is set up for people only."""
    site.put("/search", b"", status=f"{status} No")
    searxng, *others = backends(site)
    assert by_url in (await found(site, searxng)).text
    for other in others:
        assert by_key in (await found(site, other)).text


async def test_a_service_that_is_away_or_has_no_key_is_a_sentence() -> None:
    """Nothing listens there; the key is missing; the address is none."""
    with socket.socket() as taken:
        # bound, so that nobody else is there, and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = await use(SearchWeb(Searxng(f"http://127.0.0.1:{port}")), query="rain")
    assert (
        said.text
        == f"127.0.0.1:{port} cannot be asked: no connection to it can be made."
    )
    said = await use(SearchWeb(Brave(Secret(None, "secret:brave"))), query="rain")
    assert said.text == "There is no key in secret:brave."
    for url in ("http://[", "nonsense", "http://a:b"):
        assert (await use(SearchWeb(Searxng(url)), query="rain")).outcome == "failed"


def test_a_search_needs_words_and_says_who_hears_them() -> None:
    """It is not asked for: the person has set it up."""
    tool = SearchWeb(Tavily(Secret(KEY, "secret:search")))
    gate = Gate([tool])
    weighed = gate.weigh("web_search", '{"query":"rain"}', CALL, allowed=())
    assert isinstance(weighed, Allowed)
    assert weighed.touches == "api.tavily.com: rain"
    for query in ("", "a" * 401):
        assert isinstance(
            gate.weigh("web_search", json.dumps({"query": query}), CALL, allowed=()),
            Done,
        )


def test_a_fetch_is_asked_for_and_never_repeated_unasked() -> None:
    """An address can do something; a search cannot."""
    assert (FetchPage().asks, FetchPage().effect) == (True, "once")
    assert SearchWeb(Searxng("http://a.example")).effect == "pure"
