"""A person reaches the page through a reverse proxy with TLS: under a name, and below a path of a name.

Caddy and nginx have the configurations of docs/how-to/behind-a-proxy.md. Where they are not installed, the proxy in
Python is still tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Playwright

from tenax.models import Reply
from tests.support.browser import (
    Beside,
    Chromium,
    Pace,
    Tab,
    Wire,
    expect,
    inside,
    launched,
)
from tests.support.files import png
from tests.support.proxies import NAMES, Certificate, Site, caddy, nginx, sites
from tests.support.served import SECONDS, Page, Served, Stream, kept_port
from tests.support.turns import set_up

ANSWER = " ".join(f"w{number}" for number in range(1, 101))
DIAGRAM = "```mermaid\ngraph TD\n  A[Start] --> B[Ship it]\n```\n"
STEPS = (8, 16, 24)
PHOTO = png(640, 400) + bytes(3 << 20)
"""Larger than nginx accepts by itself. What follows the end of a picture is ignored."""


class Outside(NamedTuple):
    """The network outside: a port where the browser finds the names of the how-to page, with their certificate."""

    chromium: Chromium
    certificate: Certificate
    place: socket

    @property
    def port(self) -> int:
        port: int = self.place.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def outside(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outside]:
    certificate = Certificate(tmp_path_factory.mktemp("tls"))
    with kept_port() as place:
        port = place.getsockname()[1]
        rules = ", ".join(f"MAP {name}:443 127.0.0.1:{port}" for name in NAMES)
        flags = [
            f"--host-resolver-rules={rules}",
            f"--ignore-certificate-errors-spki-list={certificate.pin}",
        ]
        with launched(playwright, *flags) as chromium:
            yield Outside(chromium, certificate, place)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def pace(home: Path) -> Pace:
    return Pace(home, STEPS[0])


@pytest.fixture(params=["name", "path"])
def site(request: pytest.FixtureRequest) -> Site:
    """The address, and what the how-to page says for it."""
    return sites()[request.param]


@pytest.fixture
def served(site: Site, home: Path, pace: Pace) -> Iterator[Served]:
    set_up(home, [Reply(ANSWER + "\n\n" + DIAGRAM)])
    with (home / "config.toml").open("a") as config:
        config.write(site.settings)
    with Served(home, env=pace.env) as served:
        yield served


@pytest.fixture(params=["python", "caddy", "nginx"])
def proxy(
    request: pytest.FixtureRequest,
    site: Site,
    served: Served,
    outside: Outside,
    tmp_path: Path,
    beside: Beside,
) -> Iterator[None]:
    """A proxy between the names and Tenax."""
    with ExitStack() as stack:
        if request.param == "python":
            tls = outside.certificate.context()
            beside.enter(Wire(served, tls=tls, place=outside.place.dup()))
        else:
            run = {"caddy": caddy, "nginx": nginx}[request.param]
            stack.enter_context(
                run(site, tmp_path, outside.certificate, outside.port, served.port)
            )
        yield


@pytest.mark.usefixtures("proxy")
def test_a_person_works_through_a_proxy(
    served: Served, site: Site, outside: Outside, pace: Pace
) -> None:
    """Link, stream, upload, pictures, frames, cookie, reload and the worker: all below the public address."""
    path = "/tenax/" if site.url.endswith("/tenax") else "/"
    assert served.link.startswith(f"{site.url}/link#code=")
    _frames_pass_at_once(served, site, outside)
    with outside.chromium.window() as window:
        window.site = f"{site.url}/"
        tab = window.tab(served.link)
        page = tab.page
        expect(tab.box).to_be_visible()
        assert page.url == f"{site.url}/"
        page.get_by_label("Files to attach").set_input_files(
            {"name": "photo.png", "mimeType": "image/png", "buffer": PHOTO}
        )
        waiting = page.get_by_role("list", name="Attachments").get_by_role("listitem")
        expect(waiting).to_contain_text("photo.png")
        expect(waiting.get_by_role("progressbar")).to_have_count(0)
        _streams(tab, pace)
        _shows_the_picture(tab)
        drawing = inside(page.locator(".code iframe")).locator("svg")
        expect(drawing).to_contain_text("Ship it")
        (cookie,) = window.context.cookies()
        flags = {name: cookie.get(name) for name in ("path", "secure", "httpOnly")}
        assert flags == {"path": path, "secure": True, "httpOnly": True}
        assert cookie.get("sameSite") == "Strict"
        assert page.url == f"{site.url}/c/{tab.conversation}"
        page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
        page.reload()
        expect(tab.rows("assistant", "")).to_have_count(1)
        _shows_the_picture(tab)
        scope = "navigator.serviceWorker.ready.then((one) => one.scope)"
        assert page.evaluate(scope) == f"{site.url}/"
        manifest = "document.querySelector('link[rel=manifest]').href"
        assert page.evaluate(manifest) == f"{site.url}/manifest.webmanifest"
        _offers_the_address(tab, site)


def _frames_pass_at_once(served: Served, site: Site, outside: Outside) -> None:
    """The first frames of an idle stream arrive, and then a frame for each change.

    The browser speaks HTTP/2 to Caddy and nginx. This client speaks HTTP/1.1, where nginx would keep the frames.
    """
    here = Page(f"http://127.0.0.1:{served.port}")
    signed = here.sign_in(served.tenax("link").stdout.strip())
    assert signed.status_code == 200, signed.text
    value = signed.headers["set-cookie"].partition(";")[0].partition("=")[2]
    address = urlsplit(site.url)
    headers = {
        "Host": address.netloc,
        "Cookie": f"tenax_80={value}",
        "Tenax-Key": here.http.headers["Tenax-Key"],
    }
    with (
        httpx.Client(verify=False, trust_env=False, timeout=SECONDS) as http,
        http.stream(
            "GET",
            f"https://127.0.0.1:{outside.port}{address.path}/api/events",
            params={"at": "-"},
            headers=headers,
            extensions={"sni_hostname": address.netloc},
        ) as answer,
    ):
        stream = Stream(answer)
        assert stream.until("list")["reset"]
        new = here.new()
        while new not in stream.list:
            stream.next()
        here.http.delete(f"/api/conversations/{new}")
    here.http.close()


def _streams(tab: Tab, pace: Pace) -> None:
    """Words of the answer arrive while the model still answers."""
    tab.say("Look at this")
    for words in STEPS:
        pace.say(words)
        tab.shows(f"w{words - 2}")
        assert "w100" not in tab.texts("assistant")[0]
    pace.say()
    expect(tab.rows("assistant", "")).to_have_count(1)


def _shows_the_picture(tab: Tab) -> None:
    picture = tab.rows("user").locator("img")
    expect(picture).to_have_js_property("naturalWidth", 640)


def _offers_the_address(tab: Tab, site: Site) -> None:
    """Links stay in the page, and the code for a phone has the public address."""
    tab.page.get_by_role("link", name="Settings", exact=True).click()
    tab.page.get_by_role("link", name="Devices", exact=True).click()
    tab.page.wait_for_url(f"{site.url}/settings/devices")
    tab.button("Open on my phone").click()
    tab.button("Show the code").click()
    expect(tab.page.get_by_text(site.url, exact=True)).to_be_visible()
