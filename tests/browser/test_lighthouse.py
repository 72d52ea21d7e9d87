"""Lighthouse rates the page. Its scores depend on the machine, so only `make nightly` runs these tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, sync_playwright

from tests.support.browser import FLAGS, Serve, Tab, find_chromium
from tests.support.fetch import IS_ROOT
from tests.support.needs import Missing
from tests.support.served import free_port
from tools.page import NpmError, run_npm

FOLDER = Path(__file__).parent / "lighthouse"
# The performance score of a fast page varies by a few points between runs.
SCORES_MIN = {
    "performance": 95,
    "accessibility": 100,
    "best-practices": 100,
    "seo": 100,
}


@pytest.fixture
def lighthouse() -> Path:
    """The script of Lighthouse, fetched from the npm registry."""
    try:
        run_npm(FOLDER, ["ls", "lighthouse"])
    except NpmError as error:
        reason = str(error).splitlines()[-1]
        raise Missing("Lighthouse", reason) from error
    return FOLDER / "node_modules" / ".bin" / "lighthouse"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", ["desktop", "mobile"])
def test_lighthouse_gives_the_page_full_marks(
    lighthouse: Path, serve: Serve, tmp_path: Path, size: str
) -> None:
    """A conversation with an answer, opened by a person who is signed in."""
    served = serve("# Title\n\nA **bold** word and `code`.")
    port = free_port()
    with _browser(tmp_path / "browser", port) as context:
        tab = Tab(context.new_page())
        tab.page.goto(served.link)
        tab.page.wait_for_url(lambda url: "/link" not in url)
        tab.say("hello")
        tab.answered("TitleA bold word and code.")
        address = tab.page.url
        tab.page.close()
        scores = _scores(lighthouse, address, port, size)
    missed = {
        name: scores[name] for name in SCORES_MIN if scores[name] < SCORES_MIN[name]
    }
    assert not missed, scores


@contextmanager
def _browser(profile: Path, port: int) -> Iterator[BrowserContext]:
    """A Chromium that Lighthouse can control: its tabs share one profile, so they are signed in together."""
    sandbox = ["--no-sandbox"] if IS_ROOT else []
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        context = playwright.chromium.launch_persistent_context(
            str(profile),
            executable_path=find_chromium(playwright),
            args=[*FLAGS, *sandbox, f"--remote-debugging-port={port}"],
        )
        stack.callback(context.close)
        yield context


def _scores(lighthouse: Path, address: str, port: int, size: str) -> dict[str, int]:
    """Return the score of each category, from 0 to 100."""
    options = [f"--port={port}", "--disable-storage-reset", "--output=json", "--quiet"]
    options.append("--no-enable-error-reporting")
    if size == "desktop":
        options.append("--preset=desktop")
    output = run_npm(
        FOLDER, ["exec", "--silent", "--", str(lighthouse), address, *options]
    )
    report = json.loads(output)
    assert report["finalDisplayedUrl"] == address, report["finalDisplayedUrl"]
    return {
        name: round(100 * report["categories"][name]["score"]) for name in SCORES_MIN
    }
