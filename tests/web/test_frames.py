"""`/frames`: documents for sandboxed frames. Each has its own policy; the page keeps its own."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from tenax.concurrency import ThreadPool
from tenax.web import frames
from tenax.web.app import PAGE_ROUTES
from tests.support.served import Page

SCRIPT = "parent.postMessage(1, '*')"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starlette]:
    """The routes of the page, with documents as the build writes them."""
    monkeypatch.setattr(frames, "FOLDER", tmp_path)
    for name in ("diagram", "picture"):
        html = f"<!doctype html><body></body><script>{SCRIPT}</script>"
        (tmp_path / f"{name}.html").write_text(html, encoding="utf-8")
    app = Starlette(routes=PAGE_ROUTES)
    threads = ThreadPool(1, "tenax-page")
    app.state.server_state = SimpleNamespace(page_threads=threads)
    yield app
    threads.stop()


async def get(app: Starlette, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get(path, headers=headers)


def rules_of(policy: str) -> dict[str, str]:
    return dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))


async def test_a_frame_may_run_its_own_script_and_nothing_else(
    built: Starlette,
) -> None:
    """Opaque origin, no network, and only the page may embed the frame."""
    answer = await get(built, "/frames/diagram", **{"Sec-Fetch-Dest": "iframe"})
    assert answer.status_code == 200
    rules = rules_of(answer.headers["content-security-policy"])
    digest = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    assert rules["sandbox"] == "allow-scripts"
    assert rules["frame-ancestors"] == "'self'"
    assert "connect-src" not in rules
    assert "frame-src" not in rules


async def test_a_frame_that_did_not_change_is_not_sent_again(
    built: Starlette,
) -> None:
    """The document of the diagrams is large, and each diagram has a frame."""
    answer = await get(built, "/frames/diagram")
    again = await get(
        built, "/frames/diagram", **{"If-None-Match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    plain = await get(built, "/frames/diagram", **{"Accept-Encoding": "identity"})
    assert plain.content == answer.content


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "script"},
    ],
)
def test_only_the_page_opens_a_frame(page: Page, headers: dict[str, str]) -> None:
    """Neither another site, nor a tab of its own, nor a script."""
    navigate = {"Sec-Fetch-Mode": "navigate", **headers}
    assert page.http.get("/frames/diagram", headers=navigate).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://example.com", "https://xn--bcher-kva.example:8443"]
)
async def test_a_frame_of_a_picture_allows_one_site(
    built: Starlette, origin: str
) -> None:
    """The policy names the origin of the picture and no other."""
    answer = await get(built, f"/frames/picture?origin={quote(origin)}")
    assert answer.status_code == 200
    assert rules_of(answer.headers["content-security-policy"])["img-src"] == origin


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "*",
        "https:",
        "https://*",
        "https://*.example.com",
        "http://example.com",
        "https://example.com/",
        "https://example.com/path",
        "https://user:secret@example.com",
        "https://example.com https://evil.example",
        "https://example.com; script-src *",
        "https://example.com,script-src *",
        "https://example.com\r\nset-cookie: a=b",
        "https://example.com\n",
        "https://EXAMPLE.com",
        "https://b\u00fccher.example",
        "https://[::1]",
        "https://example.com:999999",
        "data:",
        "javascript:alert(1)",
        "'self'",
    ],
)
def test_a_picture_of_no_site_is_refused(page: Page, origin: str) -> None:
    """The origin becomes a part of the policy, so it is an origin and nothing else."""
    answer = page.http.get("/frames/picture", params={"origin": origin})
    assert answer.status_code == 400
    assert "img-src 'self' data:" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name", ["none", "%2e%2e", "%2e%2e%2findex", "diagram.html", "%00", "x" * 500]
)
def test_other_names_are_no_frames(page: Page, name: str) -> None:
    """Nothing else of the disk is served."""
    assert page.http.get(f"/frames/{name}").status_code == 404


def test_the_policy_of_the_page_stays(page: Page) -> None:
    """No frame of another site, and no inline script or style."""
    policy = page.http.get("/").headers["content-security-policy"]
    assert not re.search(r"unsafe|frame-src|https:|blob:", policy)
