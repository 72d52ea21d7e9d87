"""A real Chromium, a window of it for each test, and tabs that are read and typed into as a person would.

A window keeps what went wrong in it: an error on the console, an exception of the page, a dialog, a request to somewhere
else. What a test did not expect of these fails it. Each tab keeps every text that an answer had while it grew.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    FrameLocator,
    Locator,
    Page,
    Playwright,
    Request,
    WebError,
    expect,
)
from playwright.sync_api import Error as PlaywrightError

from tests.support.fetch import IS_ROOT, alone, install_from_apt
from tests.support.needs import Missing
from tests.support.served import Pace, Served, kept_port
from tests.support.served import Page as Client

__all__ = [
    "FLAGS",
    "SECONDS",
    "AnyBrowser",
    "Beside",
    "Chromium",
    "Pace",
    "Serve",
    "Tab",
    "Window",
    "Wire",
    "client",
    "expect",
    "find_chromium",
    "launched",
]

T = TypeVar("T")
SECONDS: Final = 60.0
"""Bounds every wait: five times what the slowest of them takes on a slow machine."""
MISSING: Final = (
    "it was neither found nor fetched; on Debian and Ubuntu: sudo apt install chromium"
)
LOCAL: Final = "http://127.0.0.1:"
DOWNLOAD_SECONDS: Final = 90.0
"""Less than the time limit of a test."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Every text that the last answers and the banner had, in the order in which a person could have read them.
_WATCH: Final = """
window.__seen = [];
window.__said = [];
new MutationObserver(() => {
  const answers = [...document.querySelectorAll('[data-kind=assistant]')].slice(-3);
  const text = answers.map((each) => each.querySelector('.text')?.textContent.trim() ?? '').join('|');
  if (text !== '' && text !== window.__seen.at(-1)) window.__seen.push(text);
  const said = document.querySelector('.banner')?.textContent ?? '';
  if (said !== '' && said !== window.__said.at(-1)) window.__said.push(said);
  document.documentElement.dataset.said = window.__said.join('|');
}).observe(document, { subtree: true, childList: true, characterData: true });
"""

# Load all that is above, then scroll from the start to the end and note every row: only those near the screen are in the document.
_READ_ALL: Final = """async () => {
  const box = document.querySelector('.transcript');
  const frames = async () => { for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame); };
  const above = () => [...document.querySelectorAll('button')].find((each) => each.textContent === 'Show earlier messages');
  for (let n = 0; n < 6000 && above(); n++) {
    above().click();
    await frames();
  }
  const rows = new Map();
  const note = () => {
    for (const row of document.querySelectorAll('.transcript [data-row]')) {
      const text = row.querySelector('.text')?.textContent.trim() ?? '';
      rows.set(row.dataset.row, [row.dataset.kind, text, row.dataset.state]);
    }
  };
  // A page that still follows the end scrolls back.
  for (let n = 0, still = 0; n < 600 && still < 3; n++, still++) {
    if (box.scrollTop !== 0) [box.scrollTop, still] = [0, 0];
    await frames();
  }
  for (let n = 0; n < 6000; n++) {
    await frames();
    note();
    const before = box.scrollTop;
    box.scrollTop += box.clientHeight * 0.8;
    if (box.scrollTop === before) break;
  }
  return [...rows.values()];
}"""

_SOURCE: Final = """(frame, selector) => {
  const shown = new DOMParser().parseFromString(frame.srcdoc, 'text/html');
  return [...shown.querySelectorAll(selector)].map((element) => element.textContent);
}"""

expect.set_options(timeout=SECONDS * 1000)


def find_chromium(playwright: Playwright) -> str:
    """Return the path of Chromium. Raises Missing where there is none and none can be fetched."""
    with alone():
        found = _installed(playwright) or _from_playwright(playwright)
        if found is None:
            install_from_apt("chromium")
            found = _installed(playwright)
    if found is None:
        raise Missing("Chromium", MISSING)
    return found


def _installed(playwright: Playwright) -> str | None:
    """Return the Chromium of the system, or the one that Playwright has fetched before."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def _from_playwright(playwright: Playwright) -> str | None:
    """Let Playwright download its own Chromium into the home of the user, which needs no root."""
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, check=False, capture_output=True, timeout=DOWNLOAD_SECONDS
        )
    return _installed(playwright)


@contextmanager
def launched(playwright: Playwright, *flags: str) -> Iterator[Chromium]:
    """A browser for many tests."""
    sandbox = ["--no-sandbox"] if IS_ROOT else []
    path = find_chromium(playwright)
    try:
        browser = playwright.chromium.launch(
            executable_path=path, args=[*FLAGS, *flags, *sandbox]
        )
    except PlaywrightError as error:  # such as a library of the system that it lacks
        reason = str(error).partition("\n")[0]
        raise Missing("Chromium", f"{path} does not start. {reason}") from error
    try:
        yield Chromium(browser)
    finally:
        browser.close()


class AnyBrowser:
    """Gives windows: each with cookies and storage of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def window(self, **how: Any) -> Iterator[Window]:
        """A window for as long as the block lasts. What went wrong in it unexpectedly is an error at its end."""
        context = self._browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **how}
        )
        try:
            window = Window(context)
            yield window
            window.check()
        finally:
            context.close()


class Chromium(AnyBrowser):
    """The browser of nearly all tests."""


class Window:
    """One person's browser."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.site = LOCAL
        """How the addresses begin that it may ask."""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._expected: list[str] = []
        context.set_default_timeout(SECONDS * 1000)
        context.add_init_script(_WATCH)
        context.on("console", self._console)
        context.on("weberror", self._weberror)
        context.on("dialog", self._dialog)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("requestfailed", self._failed)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location['url']})")

    def _dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _failed(self, request: Request) -> None:
        # The policy of a document stopped the request before it left the browser.
        if request.failure == "csp":
            self.requests.remove(request.url)

    def _weberror(self, error: WebError) -> None:
        self.errors.append(f"exception: {error.error}")

    def expects(self, *patterns: str) -> None:
        """Errors that belong to the test: a network that is cut is told on the console."""
        self._expected += patterns

    def check(self) -> None:
        """Nothing went wrong that was not expected, and nothing left for elsewhere."""
        wrong = [
            error
            for error in self.errors
            if not any(re.search(pattern, error) for pattern in self._expected)
        ]
        assert not wrong, f"the page had errors: {wrong}"
        foreign = [
            request
            for request in self.requests
            if not request.startswith((self.site, "data:", "blob:"))
        ]
        assert not foreign, f"the page asked elsewhere: {foreign}"

    def tab(self, address: str) -> Tab:
        """A new tab at this address."""
        tab = Tab(self.context.new_page())
        tab.page.goto(address)
        if "/link#" in address:
            # the page is signed in
            tab.page.wait_for_url(lambda url: "/link" not in url)
        return tab

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """No page and no worker runs while this lasts, as on a machine that sleeps.

        Chromium itself freezes only what is hidden, and without a screen it hides nothing.
        """
        assert self.context.browser is not None
        known = self.context.browser.new_browser_cdp_session().send(
            "SystemInfo.getProcessInfo"
        )["processInfo"]
        running = [each["id"] for each in known if each["type"] == "renderer"]
        for each in running:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in running:
                os.kill(each, signal.SIGCONT)

    def enter(self, served: Served) -> Tab:
        """A tab for somebody who opens the link."""
        return self.tab(served.link)


def inside(frame: Locator) -> FrameLocator:
    """Wait until a frame shows a document, and look into it.

    The first check of `expect` has no time limit (Playwright 1.65), and waits for ever for a frame without a document: the page
    loads a frame when the frame comes near the screen. In a frame without scripts no timer fires, and rarely the check gets
    no answer: look at such a frame from outside, with `source`.
    """
    frame.scroll_into_view_if_needed()
    content = frame.element_handle().content_frame()
    assert content is not None
    content.wait_for_url(re.compile("."), wait_until="commit")
    return frame.content_frame


def source(frame: Locator, selector: str) -> list[str]:
    """Return the texts of elements in the source of a frame without scripts. The frame shows a document."""
    inside(frame)
    expect(frame).to_have_attribute("sandbox", "")
    found: list[str] = frame.evaluate(_SOURCE, selector)
    return found


def client(served: Served) -> Client:
    """The same person without a browser, let in by a link of its own."""
    return served.browser(served.tenax("link").stdout.strip())


class Tab:
    """A page, and what a person does with it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def conversation(self) -> str:
        """The id of the conversation that it shows; waits for one."""
        self.page.wait_for_url(re.compile(r"/c/"))
        return re.sub(r"^.*/c/|#.*$", "", self.page.url)

    @property
    def box(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def say(self, text: str, button: str = "") -> None:
        """Type and send: with Enter, or with a button."""
        self.box.fill(text)
        if button:
            self.button(button).click()
        else:
            self.box.press("Enter")

    def rows(self, kind: str = "", state: str | None = None) -> Locator:
        """Rows of the transcript."""
        wanted = "[data-row]"
        if kind:
            wanted += f"[data-kind={kind}]"
        if state is not None:
            wanted += f"[data-state='{state}']"
        return self.page.locator(wanted)

    def unfold(self) -> None:
        """Open the folded work of the finished turns."""
        expect(self.page.locator(".work").first).to_be_visible()
        for work in self.page.locator(".work:not([open]) > summary").all():
            work.click()

    def texts(self, kind: str) -> list[str]:
        """What rows of this kind say, trimmed."""
        return [
            text.strip()
            for text in self.rows(kind).locator(".text").all_text_contents()
        ]

    def read_all(self) -> list[tuple[str, str, str]]:
        """Kind, text and state of every row of the conversation, as a person sees them who scrolls through it."""
        rows: list[list[str]] = self.page.evaluate(_READ_ALL)
        return [(kind, text, state) for kind, text, state in rows]

    def shows(self, words: str) -> None:
        """Wait for these words in an answer."""
        expect(self.rows("assistant").filter(has_text=words).last).to_be_attached()

    def answered(self, text: str, *, count: int | None = None) -> None:
        """Wait until the last answer is this, whole; and if asked, the only one of `count`."""
        done = self.rows("assistant", "")
        expect(done.last.locator(".text")).to_have_text(text)
        if count is not None:
            expect(self.rows("assistant")).to_have_count(count)

    def answer_whole_or_cut(self, *, timeout: float) -> Locator:
        """Wait until the first answer has ended. A real model may also end it because it may be no longer."""
        ended = self.page.locator(
            "[data-row][data-kind=assistant]:is([data-state=''], [data-state=full])"
        ).first
        expect(ended).to_be_attached(timeout=timeout)
        return ended

    @property
    def seen(self) -> list[str]:
        """Every text that the answers had since the page was loaded."""
        found: list[str] = self.page.evaluate("window.__seen")
        return found

    @property
    def told(self) -> list[str]:
        """Everything that the banner said since then."""
        found: list[str] = self.page.evaluate("window.__said")
        return found

    def hears(self, words: str) -> None:
        """Wait until the banner has said this. It may say something else by now, or nothing."""
        said = re.compile(rf"(^|\|){re.escape(words)}($|\|)")
        expect(self.page.locator("html")).to_have_attribute("data-said", said)

    @property
    def banner(self) -> Locator:
        return self.page.locator(".banner")

    def menu(self, item: str) -> None:
        self.button("Menu").click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()


class Beside:
    """Runs what is asynchronous, such as a `Provider`, in a thread beside the test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._entered: list[Any] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter this; it is left at the end."""
        entered = self.run(_entered(context))
        self._entered.append(context)
        return entered

    def close(self) -> None:
        """Leave all that was entered."""
        for each in reversed(self._entered):
            self.run(_left(each))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _entered(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)


class Wire:
    """The network between a browser and a server: a wire that can be cut. What is on it then is lost, both ways.

    The browser's own way to be offline does not reach a SharedWorker. With `tls`, the wire is a proxy that speaks TLS to
    the browser, and listens on the port of `place`.
    """

    def __init__(
        self,
        served: Served,
        *,
        tls: ssl.SSLContext | None = None,
        place: socket.socket | None = None,
    ) -> None:
        self._far = served.port
        self._tls = tls
        self._place = place or kept_port()  # also while it is cut
        self._port: int = self._place.getsockname()[1]
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self._place.close()

    def link(self, served: Served) -> str:
        """The server's link, by this wire."""
        return served.link.replace(f":{self._far}/", f":{self._port}/")

    async def mend(self) -> None:
        self._server = await asyncio.start_server(
            self._carry, "127.0.0.1", self._port, ssl=self._tls
        )

    async def cut(self) -> None:
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        await self._server.wait_closed()

    async def _carry(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        # it is cut as well while it does not reach the other side yet
        self._ends.add(back)
        far, forth = await asyncio.open_connection("127.0.0.1", self._far)
        await asyncio.gather(self._pump(near, forth), self._pump(far, back))

    async def _pump(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        self._ends.add(to)
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    to.write(data)
                    await to.drain()
        finally:
            to.close()
            self._ends.discard(to)


Serve = Callable[..., Served]
