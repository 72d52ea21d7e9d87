"""The link, the cookie, and what is refused before anything is looked at."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tenax.errors import CannotOpen
from tenax.web.app import endpoints
from tenax.web.links import Links
from tests.support.served import SECONDS, Page, Served

PATHS = [(each.method, each.path) for each in endpoints() if not each.public]


def begun(page: Page) -> set[str]:
    """The conversations there are. In one of them somebody may be answered just now."""
    return {each["id"] for each in page.get("/conversations", limit=200)["conversations"]}


def test_a_link_works_once_and_becomes_a_cookie_that_no_script_can_read(shared: Served) -> None:
    """The second who opens it gets a sentence that says what to do."""
    link = shared.tenax("link").stdout.strip()
    with httpx.Client(trust_env=False, timeout=SECONDS) as http:
        answer = http.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert http.get(f"{shared.url}/api/setup").status_code == 200
        assert http.get(link).status_code == 303, "who is in already is let through"
    answer = httpx.get(link, trust_env=False, timeout=SECONDS)
    assert answer.status_code == 403
    assert "tenax link" in answer.text


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_nothing_is_told_without_a_cookie(shared: Served, method: str, path: str) -> None:
    """Every endpoint but the one that says that the server is there."""
    address = shared.url + re.sub(r"{\w+}", "1", path)
    name = f"tenax_{shared.url.rpartition(':')[2]}"
    with httpx.Client(trust_env=False, verify=False, timeout=SECONDS) as http:
        for cookie in ("", "tenax=x", "6c6f63616c.9999999999.00"):
            answer = http.request(method, address, headers={"cookie": f"{name}={cookie}"})
            assert answer.status_code == 401
            assert "tenax link" in answer.json()["hint"]


def test_health_needs_no_cookie(shared: Served) -> None:
    """It says that the server answers, and which version."""
    answer = httpx.get(f"{shared.url}/api/health", trust_env=False, timeout=SECONDS)
    assert answer.json()["ok"] is True


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8629", "127.0.0.1.evil.example", "", "[::1"])
def test_a_name_that_somebody_else_controls_is_refused(page: Page, host: str) -> None:
    """DNS rebinding: the browser believes that it talks to another site."""
    answer = page.http.get("/api/conversations", headers={"Host": host})
    assert answer.status_code in {400, 403}


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
def test_another_site_cannot_make_a_browser_do_something(page: Page, headers: dict[str, str]) -> None:
    """CSRF: the cookie comes along, and that is not enough."""
    before = begun(page)
    answer = page.http.post("/api/conversations", json={}, headers=headers)
    assert answer.status_code == 403
    assert begun(page) == before


def test_another_site_cannot_read_by_embedding(page: Page) -> None:
    """A script or picture of another site is no navigation."""
    answer = page.http.get(
        "/api/conversations", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
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


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "evil"])
def test_a_link_never_leads_away(page: Page, to: str) -> None:
    """Where it leads is a path of ours."""
    assert page.http.get("/link", params={"to": to}).headers["location"] == "/"


def test_a_code_that_is_old_or_used_is_none(tmp_path: Path) -> None:
    """Of two who use it at once, one gets in; after a quarter of an hour nobody does."""
    import os
    import time

    links = Links(tmp_path)
    code = links.make_code("anna")
    cookie = links.use(code)
    assert cookie is not None
    assert links.user(cookie) == "anna"
    assert links.use(code) is None
    old = links.make_code("anna")
    for file in (tmp_path / "codes").iterdir():
        os.utime(file, (time.time() - 1000, time.time() - 1000))
    assert links.use(old) is None
    assert Links(tmp_path).user(cookie) == "anna", "the cookie outlives the server"
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("left", [0, 16])
def test_a_key_that_was_cut_short_signs_nothing(tmp_path: Path, left: int) -> None:
    """Anybody could guess it. The sentence says how to get another."""
    Links(tmp_path)
    key = tmp_path / "key"
    key.write_bytes(key.read_bytes()[:left])
    with pytest.raises(CannotOpen, match="key is damaged") as caught:
        Links(tmp_path)
    assert "delete it" in caught.value.hint


def test_listening_on_every_address_still_needs_a_link(tmp_path: Path) -> None:
    """There is no way to serve without one."""
    with Served(tmp_path, env={"TENAX_HOST": "0.0.0.0"}) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        answer = httpx.get(f"{url}/api/conversations", trust_env=False, timeout=SECONDS)
        assert answer.status_code == 401
        link = served.link.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(trust_env=False, timeout=SECONDS) as http:
            assert http.get(link).status_code == 303
            assert http.get(f"{url}/api/conversations").status_code == 200


def test_a_picture_in_an_answer_and_a_link_elsewhere_begin_nothing(page: Page) -> None:
    """`![](/tour)` is a request from our own page, and a link on another site leads here with the cookie."""
    before = begun(page)
    for headers in (
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"},
    ):
        assert page.http.get("/tour", headers=headers).headers.get("location", "/") == "/"
    assert begun(page) == before
