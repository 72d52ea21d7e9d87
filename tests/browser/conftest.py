"""One Chromium for these tests, a window for each, and servers that a test starts for itself.

The browser ends with this folder's last test: Playwright keeps an event loop in this thread, and tests elsewhere bring
their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Playwright, sync_playwright

from tenax.models import Reply
from tests.support.browser import Beside, Chromium, Serve, Window, launched
from tests.support.served import Served
from tests.support.turns import set_up

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def chromium(playwright: Playwright) -> Iterator[Chromium]:
    with launched(playwright) as chromium:
        yield chromium


@pytest.fixture
def window(chromium: Chromium) -> Iterator[Window]:
    """A new person's browser. It fails the test at the end if something went wrong in it."""
    with chromium.window() as window:
        yield window


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `tenax serve` with a model that plays these replies, or with none."""
    with ExitStack() as stack:

        def start(*replies: Reply | str, env: dict[str, str] | None = None) -> Served:
            if replies:
                set_up(
                    tmp_path,
                    [
                        Reply(reply) if isinstance(reply, str) else reply
                        for reply in replies
                    ],
                )
            return stack.enter_context(
                Served(tmp_path, env={"OLLAMA_HOST": NOBODY, **(env or {})})
            )

        yield start


@pytest.fixture
def beside() -> Iterator[Beside]:
    beside = Beside()
    yield beside
    beside.close()
