"""The link, the cookie, and what is refused before anything is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

import tenax
from tenax.clock import Timing
from tenax.concurrency import ThreadPool
from tenax.errors import CannotOpen
from tenax.journal import Journal
from tenax.journal.devices import Device, Devices
from tenax.testing.clock import SimClock
from tenax.web.app import endpoints
from tenax.web.app import page as show_page
from tenax.web.guard import Guard
from tenax.web.links import Links
from tenax.web.signins import UNKNOWN_MAX, Signins
from tests.support.served import SECONDS, Page, Served, code_of

PATHS = [(each.method, each.path) for each in endpoints() if not each.public]


@pytest.fixture(scope="module")
def berta(shared: Served) -> Page:
    """Another person's page."""
    return shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())


def begun(page: Page) -> set[str]:
    """The conversations there are. In one of them somebody may be answered just now."""
    return {
        conversation["id"]
        for conversation in page.get("/conversations", limit=200)["conversations"]
    }


def test_a_link_works_once_and_becomes_a_cookie_and_a_key(shared: Served) -> None:
    """No script can read the cookie; a second browser that opens the link gets a sentence that says what to do."""
    page = Page(shared.url)
    link = shared.tenax("link").stdout.strip()
    assert httpx.get(link, trust_env=False, timeout=SECONDS).status_code == 200, (
        "a preview of the link"
    )
    answer = page.sign_in(link)
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert page.http.get("/api/setup").status_code == 200
    again = Page(shared.url).sign_in(link)
    assert again.status_code == 403
    assert "tenax link" in again.json()["hint"]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_nothing_is_told_without_a_cookie_and_the_key_of_the_same_device(
    shared: Served, page: Page, berta: Page, method: str, path: str
) -> None:
    """Every endpoint but the one that says that the server is there, and the one that signs in."""
    address = shared.url + re.sub(r"{\w+}", "1", path)
    name = f"tenax_{shared.url.rpartition(':')[2]}"
    good, key = page.http.cookies[name], page.http.headers["Tenax-Key"]
    device = good.partition(".")[0]
    proofs = [
        {},
        {"cookie": f"{name}=tenax=x"},
        {"cookie": f"{name}=6c6f63616c.9999999999.00", "Tenax-Key": key},
        {"cookie": f"{name}={device}.", "Tenax-Key": key},
        {"Tenax-Key": key},
        {"cookie": f"{name}={good}"},
        {"cookie": f"{name}={good}", "Tenax-Key": ""},
        {"cookie": f"{name}={good}", "Tenax-Key": berta.http.headers["Tenax-Key"]},
    ]
    with httpx.Client(trust_env=False, verify=False, timeout=SECONDS) as http:
        for proof in proofs:
            answer = http.request(
                method, address, headers={**proof, "Sec-Fetch-Site": "same-origin"}
            )
            assert answer.status_code == 401, proof
            assert "tenax link" in answer.json()["hint"]


async def test_a_cookie_without_the_key_is_no_sign_of_its_device(
    tmp_path: Path,
) -> None:
    """The server of another port has the cookie: it must not keep the device in the list as seen just now."""
    clock = SimClock()
    with tenax.open("memory:", clock=clock) as journal:
        signins = Signins(Devices(journal, days=1), Links(tmp_path))
        added = signins.devices.add("anna", "Hers", 80)
        noted, seen = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
        note_seen = signins.devices.note_seen

        def note(id: str) -> None:  # noqa: A002  (the field's name)
            note_seen(id)
            seen(noted.set)

        signins.devices.note_seen = note  # type: ignore[method-assign]
        clock.advance(2 * 3600)
        for key in (b"", b"wrong", added.key.encode()):
            assert len(asyncio.all_tasks()) == 1, "nothing is noted in the background"
            headers = [
                (b"cookie", f"tenax_80={added.cookie}".encode()),
                (b"tenax-key", key),
            ]
            scope = {"type": "http", "method": "GET", "path": "/api/setup", "query_string": b"",
                     "headers": headers, "server": ("127.0.0.1", 80)}  # fmt: skip
            found = await signins.device_of(Request(scope))
        assert found == added.device
        await noted.wait()
        assert signins.devices.all("anna")[0].seen_at == clock.now_us()


def test_an_old_cookie_is_told_that_it_needs_a_new_link(shared: Served) -> None:
    """Earlier versions signed a name and a time."""
    name = f"tenax_{shared.url.rpartition(':')[2]}"
    cookie = f"{name}=6c6f63616c.1790000000.{'0' * 64}"
    answer = httpx.get(
        f"{shared.url}/api/setup",
        headers={"cookie": cookie},
        trust_env=False,
        timeout=SECONDS,
    )
    assert "was signed out" in answer.json()["detail"]
    assert "tenax link" in answer.json()["hint"]


async def test_the_guard_decides_by_the_path_that_is_routed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`request.url` of some versions of Starlette has the path that a client wrote into the Host header."""
    reached: list[str] = []

    async def endpoint(scope: Scope, _receive: Receive, _send: Send) -> None:
        reached.append(scope["path"])

    monkeypatch.setattr(Request, "url", URL("http://127.0.0.1/x?/api/setup"))
    with tenax.open("memory:") as journal:
        signins = Signins(Devices(journal, days=1), Links(tmp_path))
        guard = Guard(endpoint, signins=signins, host="127.0.0.1", public=frozenset())
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1"
        ) as http:
            assert (await http.get("/api/setup")).status_code == 401
    assert reached == []


class SlowDevices(Devices):
    """Devices of a store that is away: a read waits until `back` is set. Cookies in `known` are found at once."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, days=1)
        self.back = threading.Event()
        self.known: set[str] = set()

    def find(self, cookie: str) -> Device | None:
        if cookie not in self.known:
            assert self.back.wait(SECONDS)
        return super().find(cookie)


async def test_strangers_take_nothing_from_known_devices_while_the_store_is_away(
    tmp_path: Path,
) -> None:
    """Unknown cookies beyond a few are answered at once, a device that is signed in goes on, and the page is there."""

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("hello")(scope, receive, send)

    timing = Timing(device_fresh_seconds=0.0, device_store_seconds=SECONDS)
    only = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(only)
    page_threads = ThreadPool(2, "tenax-page")
    with tenax.open("memory:") as journal:
        devices = SlowDevices(journal)
        made = devices.add("local", "a browser", 8629)
        devices.known.add(made.cookie)
        signins = Signins(devices, Links(tmp_path), timing)
        guard = Guard(endpoint, signins=signins, host="127.0.0.1", public=frozenset())
        transport = httpx.ASGITransport(guard)
        async with (
            httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:8629", timeout=SECONDS
            ) as http,
            asyncio.timeout(SECONDS),
        ):

            async def ask(cookie: str, key: str = "x") -> int:
                headers = {"cookie": f"tenax_8629={cookie}", "tenax-key": key}
                return (await http.get("/api/setup", headers=headers)).status_code

            only.submit(devices.back.wait, SECONDS)
            assert await ask(made.cookie, made.key) == 200
            strangers = [
                asyncio.create_task(ask(f"c{n}.x")) for n in range(UNKNOWN_MAX)
            ]
            while len(signins.unknown) < UNKNOWN_MAX:  # noqa: ASYNC110  (nothing tells that a request waits)
                await asyncio.sleep(0)
            assert await ask("one.more") == 503
            assert await ask(made.cookie, made.key) == 200
            app = Starlette()
            app.state.server_state = SimpleNamespace(page_threads=page_threads)
            assert await show_page(Request({"type": "http", "app": app}))
            devices.back.set()
            assert set(await asyncio.gather(*strangers)) == {401}
            assert await ask("one.more") == 401
        signins.close()
        page_threads.stop()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1/x", "127.0.0.1?", "127.0.0.1#", "127.0.0.1/api/health?", "[::1]/x?"],
)
@pytest.mark.parametrize(
    "path", ["/api/setup", "/api/openapi.json", "/%61pi/setup", "/api/../api/setup"]
)
def test_what_stands_in_the_host_changes_no_path(
    shared: Served, host: str, path: str
) -> None:
    """The guard looks at the path that is routed, whatever address a client makes up around it."""
    place, port = shared.url.removeprefix("http://").split(":")
    with socket.create_connection((place, int(port)), timeout=SECONDS) as raw:
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ", 2)[1] in {b"400", b"401", b"403", b"404"}, answer


def test_health_needs_no_cookie(shared: Served) -> None:
    """It says that the server answers, and which version."""
    answer = httpx.get(f"{shared.url}/api/health", trust_env=False, timeout=SECONDS)
    assert answer.json()["ok"] is True


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8629", "127.0.0.1.evil.example", "", "[::1"]
)
def test_a_name_that_somebody_else_controls_is_refused(page: Page, host: str) -> None:
    """DNS rebinding: the browser believes that it talks to another site."""
    answer = page.http.get("/api/conversations", headers={"Host": host})
    assert answer.status_code in {400, 403}


OTHER_NAMES = [
    "localhost",
    "LOCALHOST",
    "a.localhost",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "0.0.0.0",
    "[::]",
]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name_of_the_machine_leads_to_the_address(
    page: Page, name: str
) -> None:
    """Another program may listen on [::1] with the same port, and a browser tries that first for `localhost`."""
    port = page.url.rpartition(":")[2]
    host = {"Host": f"{name}:{port}"}
    moved = page.http.get("/link?a=b", headers=host)
    assert (moved.status_code, moved.headers["location"]) == (
        307,
        f"//127.0.0.1:{port}/link?a=b",
    )
    assert moved.headers["cache-control"] == "no-store"
    odd = page.http.get("/%0d%0a//evil.example/%C3%A9", headers=host)
    assert odd.headers["location"] == f"//127.0.0.1:{port}/%0D%0A//evil.example/%C3%A9"
    refused = [
        page.http.get("/api/setup", headers=host),
        page.http.get("/api/health", headers=host),
        page.http.post("/api/sign-in", json={"code": "x"}, headers=host),
        page.http.get("/assets/x.js", headers={**host, "Sec-Fetch-Dest": "script"}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 4
    assert f"http://127.0.0.1:{port}/" in refused[0].json()["hint"]


@pytest.mark.parametrize(
    "host", ["127.0.0.2", "[::1]", "192.0.2.1", "localhost.", "127.0.0.1."]
)
def test_an_address_on_which_nobody_listens_is_refused(page: Page, host: str) -> None:
    """A browser keeps other secrets under it, and nobody would be asked about another user's link."""
    for path in ("/", "/api/setup"):
        refused = page.http.get(path, headers={"Host": host})
        assert refused.status_code == 403
        assert "`Host` header" in refused.json()["detail"]
        assert "A proxy must forward the `Host` header" in refused.json()["hint"]


@pytest.mark.parametrize(
    ("listens", "proxied", "host", "said"),
    [
        ("0.0.0.0", False, "192.0.2.1:80", "200"),
        ("0.0.0.0", False, "[2001:db8::1]", "200"),
        ("0.0.0.0", False, "0.0.0.0:80", "//127.0.0.1:80/"),
        ("0.0.0.0", False, "localhost", "//127.0.0.1/"),
        ("::", False, "192.0.2.1", "200"),
        ("::", False, "localhost:80", "//[::1]:80/"),
        ("192.0.2.1", False, "192.0.2.1", "200"),
        ("192.0.2.1", False, "127.0.0.1", "403"),
        ("192.0.2.1", False, "localhost", "403"),
        ("127.0.0.1", True, "192.0.2.1", "200"),
        ("127.0.0.1", True, "localhost:80", "//127.0.0.1:80/"),
        ("127.0.0.1", True, "tenax.example", "403"),
        ("Tenax.example", False, "tenax.example", "200"),
        ("Tenax.example", False, "192.0.2.1", "403"),
        ("localhost", False, "localhost:80", "//127.0.0.1:80/"),
        ("localhost", False, "127.0.0.1", "200"),
        ("::1", False, "[::1]:80", "200"),
        ("::1", False, "localhost:80", "//[::1]:80/"),
    ],
)
async def test_the_names_depend_on_where_the_server_listens(
    tmp_path: Path, listens: str, host: str, said: str, *, proxied: bool
) -> None:
    """Every address where it listens on every address, or where a proxy is configured; the name that is configured."""
    is_number = re.fullmatch(r"[0-9.:]+", listens) and listens not in {"0.0.0.0", "::"}
    server = listens if is_number else "127.0.0.1"

    async def endpoint(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with tenax.open("memory:") as journal:
        signins = Signins(Devices(journal, days=1), Links(tmp_path))
        guard = Guard(
            endpoint, signins=signins, host=listens, public=frozenset(), proxied=proxied
        )

        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            await guard({**scope, "server": (server, 80)}, receive, send)

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(served), base_url="http://127.0.0.1"
        ) as http:
            answer = await http.get("/", headers={"Host": host})
    assert answer.headers.get("location", str(answer.status_code)) == said


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
    ],
)
def test_another_site_cannot_make_a_browser_do_something(
    page: Page, headers: dict[str, str]
) -> None:
    """CSRF: the cookie comes along, and that is not enough."""
    before = begun(page)
    answer = page.http.post("/api/conversations", json={}, headers=headers)
    assert answer.status_code == 403
    assert "A proxy must forward the `Host` header" in answer.json()["hint"], (
        "else `Origin` and `Host` differ"
    )
    assert begun(page) == before


def test_another_site_cannot_read_by_embedding(page: Page) -> None:
    """A script or picture of another site is no navigation."""
    answer = page.http.get(
        "/api/conversations",
        headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    )
    assert answer.status_code == 403


def test_every_answer_says_what_a_browser_may_do_with_it(page: Page) -> None:
    """No inline script, no frame around it, nothing from elsewhere."""
    for path in ("/", "/api/setup", "/nowhere"):
        headers = page.http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("headers", [{}, {"Tenax-Key": ""}])
def test_a_request_that_changes_something_says_where_it_comes_from(
    page: Page, headers: dict[str, str]
) -> None:
    """A browser always says so. What says nothing is no page of ours, even with cookie and key."""
    before = begun(page)
    name, value = next(iter(page.http.cookies.items()))
    proof = {
        "cookie": f"{name}={value}",
        "Tenax-Key": page.http.headers["Tenax-Key"],
        **headers,
    }
    with httpx.Client(
        base_url=page.url, trust_env=False, verify=False, timeout=SECONDS
    ) as http:
        assert (
            http.post("/api/conversations", json={}, headers=proof).status_code == 403
        )
        answer = http.post(
            "/api/conversations", json={}, headers={**proof, "Origin": page.url}
        )
        assert answer.status_code == (401 if headers else 201)
    assert len(begun(page) - before) == (0 if headers else 1)


def test_a_signed_address_is_for_one_device_and_one_path_and_five_minutes(
    tmp_path: Path,
) -> None:
    """Nothing else can be signed."""
    links = Links(tmp_path)
    path = "/api/memory/export"
    _, _, signature = links.sign("one", path).partition("?signed=")
    assert links.is_signed("one", path, signature)
    assert not links.is_signed("two", path, signature)
    assert not links.is_signed(
        "one", f"/api/conversations/c/attachments/{'0' * 64}", signature
    )
    until, _, mac = signature.partition(".")
    assert 0 < int(until) - time.time() <= 300
    assert not links.is_signed("one", path, f"{int(until) + 1}.{mac}")
    for bad in ("", ".", f"{until}.", f".{mac}", "x.y", f"{until}.\udcff"):
        assert not links.is_signed("one", path, bad)
    assert not links.is_signed(
        "one", "/api/setup", links.sign("one", "/api/setup").partition("?signed=")[2]
    )


def test_an_address_is_signed_for_what_a_browser_fetches_by_itself(
    page: Page, berta: Page
) -> None:
    """With the cookie and without the key; not without the cookie, not for another's, not for another path."""
    export = "/api/memory/export"
    address = page.post("/addresses", {"paths": [export]})["addresses"][0]
    assert (
        page.http.post("/api/addresses", json={"paths": ["/api/setup"]}).status_code
        == 400
    )
    with httpx.Client(
        base_url=page.url, trust_env=False, verify=False, timeout=SECONDS
    ) as http:
        assert http.get(address).status_code == 401
        http.cookies.update(page.http.cookies)
        assert http.get(address).status_code == 200
        assert http.get(export).status_code == 401
        assert http.get(address.replace(export, "/api/setup")).status_code == 401
        http.cookies.clear()
        http.cookies.update(berta.http.cookies)
        assert http.get(address).status_code == 401


def use_code(links: Links, code: str) -> str | None:
    """Use a code, and return its user."""
    with links.using(code) as user:
        return user


def test_a_code_that_is_old_or_used_is_none(tmp_path: Path) -> None:
    """Of two who use it at once, one gets in; after a quarter of an hour nobody does."""
    links = Links(tmp_path)
    code = links.make_code("anna")
    assert (links.user_of(code), use_code(links, code)) == ("anna", "anna")
    assert (links.user_of(code), use_code(links, code)) == (None, None)
    old = links.make_code("anna")
    for file in (tmp_path / "codes").iterdir():
        os.utime(file, (time.time() - 1000, time.time() - 1000))
    assert (links.user_of(old), use_code(links, old)) == (None, None)
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


def test_a_code_from_the_future_is_none(tmp_path: Path) -> None:
    """The clock was set back: the code would be good for longer than a quarter of an hour. The next code deletes it."""
    links = Links(tmp_path)
    codes = [links.make_code("anna") for _ in range(2)]
    for file in (tmp_path / "codes").iterdir():
        os.utime(file, (time.time() + 600, time.time() + 600))
    assert [links.user_of(codes[0]), use_code(links, codes[0])] == [None, None]
    assert links.user_of(links.make_code("anna")) == "anna"
    assert len(list((tmp_path / "codes").iterdir())) == 1


def test_a_code_is_there_with_its_whole_text_and_keeps_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds a code before its user is written; a use that fails gives it no new quarter of an hour."""
    links = Links(tmp_path)
    link, texts = os.link, []

    def watch(source: Path, target: Path, **folders: Any) -> None:
        assert not target.exists()
        texts.append(source.read_text())
        link(source, target, **folders)

    monkeypatch.setattr(os, "link", watch)
    code = links.make_code("anna")
    assert texts == ["anna"]
    (file,) = (tmp_path / "codes").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    os.utime(file, (time.time() - 800, time.time() - 800))
    before = file.stat().st_mtime
    with contextlib.suppress(OSError), links.using(code) as user:
        assert (user, use_code(links, code)) == ("anna", None)
        raise OSError("away")
    assert (links.user_of(code), file.stat().st_mtime) == ("anna", before)


def test_a_server_with_a_command_asks_for_a_code_from_the_terminal(
    shared: Served, page: Page
) -> None:
    """It works once, for this and nothing else; the code of a link is none."""
    server = {"name": "mine", "command": [sys.executable, "-c", "0"]}
    link = code_of(shared.tenax("link").stdout.strip())
    for wrong in ("", "AAAA-AAAA", link):
        refused = page.http.post("/api/mcp", json={**server, "code": wrong})
        assert refused.status_code == 409
        assert "code`" in refused.json()["hint"]
    code = shared.tenax("code").stdout.strip()
    assert Page(shared.url).sign_in(f"#code={code}").status_code == 403
    both = page.http.post(
        "/api/mcp", json={**server, "url": "http://127.0.0.1:1/", "code": code}
    )
    assert "either a command or a url" in both.text, (
        "a request that is refused does not use the code up"
    )
    added = page.post("/mcp", {**server, "code": f" {code.lower()} "}, status=201)
    assert [each["name"] for each in added["servers"]] == ["mine"]
    page.http.delete("/api/mcp", params={"name": "mine"})
    assert page.http.post("/api/mcp", json={**server, "code": code}).status_code == 409


@pytest.mark.parametrize("left", [0, 16])
def test_a_key_that_was_cut_short_signs_nothing(tmp_path: Path, left: int) -> None:
    """Anybody could guess it. The sentence says how to get another."""
    Links(tmp_path)
    key = tmp_path / "key"
    key.write_bytes(key.read_bytes()[:left])
    with pytest.raises(CannotOpen, match="key is damaged") as caught:
        Links(tmp_path)
    assert "Delete it" in caught.value.hint


def test_listening_on_every_address_still_needs_a_link(tmp_path: Path) -> None:
    """There is no way to serve without one."""
    with Served(tmp_path, env={"TENAX_HOST": "0.0.0.0"}) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        answer = httpx.get(f"{url}/api/conversations", trust_env=False, timeout=SECONDS)
        assert answer.status_code == 401
        link = served.link.replace("0.0.0.0", "127.0.0.1")
        page = Page(url)
        assert page.sign_in(link).status_code == 200
        assert page.http.get("/api/conversations").status_code == 200
