"""The public address behind a proxy: its Host, Origin, cookie, links and path. Forwarded headers change nothing of it."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tenax.journal import LOCAL_USER
from tenax.models import Reply
from tenax.web.links import Links
from tests.support.files import png
from tests.support.served import SECONDS, Page, Served
from tests.support.turns import set_up

URL = "https://example.org/tenax"
HOST = "example.org"
ORIGIN = "https://example.org"
FORGED = [
    {"X-Forwarded-Proto": "http", "X-Forwarded-For": "192.0.2.7"},
    {"X-Forwarded-Proto": "https", "X-Forwarded-For": "127.0.0.1"},
    {"X-Forwarded-Host": HOST, "X-Forwarded-Port": "443", "X-Real-IP": "127.0.0.1"},
    {"X-Forwarded-Prefix": "/evil", "X-Script-Name": "/evil", "X-Original-URL": "/"},
    {"Forwarded": f"for=127.0.0.1;host={HOST};proto=https"},
]


@contextlib.contextmanager
def serving(home: Path, settings: str) -> Iterator[Served]:
    set_up(home, [Reply("Yes.")])
    with (home / "config.toml").open("a") as config:
        config.write(f"[serve]\n{settings}\n")
    with Served(home) as served:
        yield served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Tenax with a public address below a path, and no proxy that it believes."""
    with serving(tmp_path_factory.mktemp("public"), f'url = "{URL}"') as served:
        yield served


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Tenax with a proxy that it believes, and no public address."""
    home = tmp_path_factory.mktemp("trusting")
    with serving(home, 'proxies = ["127.0.0.1"]') as served:
        yield served


def local(served: Served, path: str = "") -> str:
    return f"http://127.0.0.1:{served.port}{path}"


def visit(served: Served, path: str, **headers: str) -> httpx.Response:
    """What a proxy gets for a path, with the headers of a browser at the public address."""
    headers = {"Host": HOST, "Sec-Fetch-Site": "same-origin", **headers}
    return httpx.get(
        local(served, path), headers=headers, trust_env=False, timeout=SECONDS
    )


def sign_in(served: Served, path: str, headers: dict[str, str]) -> httpx.Response:
    """Use a new link below a path."""
    code = Links(served.home / "web").make_code(LOCAL_USER)
    return httpx.post(
        local(served, f"{path}/api/sign-in"),
        json={"code": code},
        headers=headers,
        trust_env=False,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[Page]:
    """A browser at the public address that is signed in."""
    page = Page(local(served, "/tenax"))
    page.http.headers.update({"Host": HOST, "Origin": ORIGIN})
    answer = page.sign_in(served.tenax("link").stdout.strip())
    assert answer.status_code == 200, answer.text
    # The cookie is Secure, and this client speaks plain HTTP as a proxy does.
    page.http.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
    yield page
    page.http.close()


def test_links_have_the_public_address(served: Served, page: Page) -> None:
    """So have the links for another browser on the page of this machine."""
    assert served.link.startswith(f"{URL}/link#code=")
    assert served.tenax("link").stdout.startswith(f"{URL}/link#code=")
    again = served.tenax("serve")
    assert again.stdout.startswith(f"{URL}/link#code=")
    assert f"already running at {local(served)}" in again.stderr
    assert page.get("/devices")["address"] == URL


@pytest.mark.parametrize("host", [HOST, "EXAMPLE.org", "example.org:443"])
def test_the_public_name_is_allowed(served: Served, host: str) -> None:
    assert visit(served, "/tenax/", Host=host).status_code == 200
    assert visit(served, "/tenax/api/health", Host=host).json()["ok"] is True


@pytest.mark.parametrize(
    "host",
    ["example.org:8443", "example.org:80", "example.org.", "evil.example.org",
     "example.org.evil", "192.0.2.1", ""],
)  # fmt: skip
def test_another_name_is_refused_as_before(served: Served, host: str) -> None:
    """Also another port of the name, and a forwarded name."""
    for more in ({}, *FORGED):
        answer = visit(served, "/tenax/", **{**more, "Host": host})
        assert answer.status_code == 403, more
        assert "set `serve.url`" in answer.json()["hint"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "https://example.org:8443"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"},
        {"Host": "127.0.0.1:{port}", "Origin": ORIGIN},
        {},
    ],
)
def test_an_unsafe_request_comes_from_the_page_of_the_public_address(
    served: Served, headers: dict[str, str]
) -> None:
    """A proxy that changes the Host gets the sentence that says so."""
    own = headers.get("Host", HOST).format(port=served.port)
    prefix = "/tenax" if own == HOST else ""
    answer = sign_in(served, prefix, {**headers, "Host": own})
    assert (answer.status_code, answer.json()["title"]) == (403, "Another site")
    assert "must forward the `Host` header" in answer.json()["hint"]


@pytest.mark.parametrize("forged", [{}, *FORGED])
def test_the_cookie_belongs_to_the_public_address(
    served: Served, forged: dict[str, str]
) -> None:
    """It is Secure and has the path, whatever a client says of the way that it came."""
    answer = sign_in(served, "/tenax", {"Host": HOST, "Origin": ORIGIN, **forged})
    assert answer.status_code == 200, answer.text
    flags = set(answer.headers["set-cookie"].lower().split("; ")[1:])
    assert {"path=/tenax/", "secure", "httponly", "samesite=strict"} <= flags


@pytest.mark.parametrize("forged", [{}, *FORGED])
def test_the_local_address_works_as_before(
    served: Served, forged: dict[str, str]
) -> None:
    """Without the path, and without Secure: forwarded headers of a program on this machine are not believed."""
    origin = local(served)
    answer = sign_in(served, "", {"Origin": origin, **forged})
    assert answer.status_code == 200, answer.text
    flags = set(answer.headers["set-cookie"].lower().split("; ")[1:])
    assert "path=/" in flags
    assert "secure" not in flags
    with httpx.Client(trust_env=False, timeout=SECONDS) as http:
        assert http.get(f"{origin}/", headers=forged).status_code == 200
        assert http.get(f"{origin}/tenax/", headers=forged).status_code == 404


def test_a_named_proxy_says_that_the_browser_speaks_https(trusting: Served) -> None:
    """It says nothing else: neither the name, nor the path."""
    for proto, secure in (("https", True), ("http", False)):
        headers = {"Origin": local(trusting), "X-Forwarded-Proto": proto}
        answer = sign_in(trusting, "", headers)
        assert ("secure" in answer.headers["set-cookie"].lower()) is secure
    forged = {"X-Forwarded-Host": "127.0.0.1", "Forwarded": "host=127.0.0.1"}
    answer = visit(trusting, "/", **{**forged, "Host": "evil.example"})
    assert answer.status_code == 403


def test_paths_outside_the_address_are_not_found(served: Served) -> None:
    """The sentence names the cause: a proxy that removes the path. Without its last slash, the address is redirected."""
    for path in ("/", "/api/health", "/tenaxx/", "/TENAX/", "//tenax/"):
        answer = visit(served, path)
        assert answer.status_code == 404, path
        assert answer.json()["detail"] == "The page is at /tenax/."
        assert "must forward the path" in answer.json()["hint"]
    moved = visit(served, "/tenax")
    assert (moved.status_code, moved.headers["location"]) == (307, "/tenax/")
    slash = visit(served, "/tenax/settings/")
    assert slash.headers["location"] in {f"{URL}/settings", "/tenax/settings"}


def test_the_page_names_its_files_below_the_path(served: Served) -> None:
    """Every address in the page exists there, as do those of the manifest and of the service worker."""
    for path in ("/tenax/", "/tenax/c/c_1", "/tenax/settings/devices"):
        names = re.findall(r'(?:href|src)="([^"]+)"', visit(served, path).text)
        assert len(names) > 4
        for name in names:
            assert name.startswith("/tenax/"), path
            assert visit(served, name).status_code == 200, name
    script = visit(served, "/tenax/service.js").text
    for name in re.findall(r'"(assets/[^"]+)"', script):
        assert visit(served, f"/tenax/{name}").status_code == 200, name
    manifest = visit(served, "/tenax/manifest.webmanifest").json()
    for icon in manifest["icons"]:
        assert visit(served, f"/tenax/{icon['src']}").status_code == 200


def test_the_api_streams_and_signed_addresses_are_below_the_path(
    served: Served, page: Page
) -> None:
    """A proxy is told not to keep frames back. A signature holds for the path inside the page."""
    conversation = page.new()
    page.say(conversation, "Hello")
    with page.http.stream("GET", "/api/events", params={"at": "-"}) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-store"
        assert next(answer.iter_lines()) == "event: hello"
    answer = page.http.post(
        "/api/attachments", params={"name": "a.png"}, content=png(8, 8)
    )
    assert answer.status_code == 201, answer.text
    path = f"/api/conversations/{conversation}/export?format=markdown"
    (signed,) = page.post("/addresses", {"paths": [path]})["addresses"]
    assert signed.startswith(path)
    browser = {"Host": HOST, "Cookie": page.http.headers["Cookie"]}
    assert visit(served, f"/tenax{signed}", **browser).status_code == 200
    assert visit(served, f"/tenax{signed}0", **browser).status_code == 401


def test_a_webhook_is_taken_below_the_path(served: Served) -> None:
    """Under the public address as under the local one: here, both refuse the signature."""
    for path, host in (("/tenax", HOST), ("", f"127.0.0.1:{served.port}")):
        answer = httpx.post(
            local(served, f"{path}/api/hooks/none"),
            json={},
            headers={"Host": host},
            trust_env=False,
            timeout=SECONDS,
        )
        assert (answer.status_code, answer.json()["title"]) == (401, "Not authorized")


@pytest.mark.nightly
def test_an_idle_stream_says_something_before_a_proxy_closes_it(page: Page) -> None:
    """A proxy such as nginx waits 60 seconds for the next byte of a stream, as this client does."""
    params = {"at": "-"}
    with page.http.stream("GET", "/api/events", params=params, timeout=60) as answer:
        assert ": here" in answer.iter_lines()


def test_a_port_that_is_in_use_is_an_error_behind_a_proxy(
    served: Served, tmp_path: Path
) -> None:
    """The proxy would not find Tenax on another port, but whatever listens on the configured one."""
    set_up(tmp_path, [Reply("Yes.")])
    with (tmp_path / "config.toml").open("a") as config:
        config.write(f'[serve]\nurl = "{URL}"\n')
    env = {**served.env, "TENAX_HOME": str(tmp_path), "TENAX_PORT": str(served.port)}
    done = subprocess.run(
        served.command,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert f"Port {served.port} is in use." in done.stderr
