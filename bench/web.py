"""The page's server under many readers, and a long conversation opened in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from playwright.sync_api import Browser, sync_playwright

import tenax
from bench.lab import Lab
from bench.measure import Row, progress
from tenax.events import MessageAssistant, MessageUser
from tenax.models import Reply
from tenax.parts import Text
from tests.support.browser import client
from tests.support.served import Page, Served, is_done
from tests.support.turns import set_up

__all__ = ["web"]

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync"]  # fmt: skip

_PROSE = """\
## A part of the answer

A journal is a list that *only grows*. Each entry holds the **digest** of the entry before it, so nobody can change an old
entry without changing all entries after it. See `journal/plan.py` for the details of one append.

- the first point of the list
- another point, with `code` and a [link](https://example.com)

```python
def chain(entries: list[bytes]) -> str:
    return sha256(b"".join(entries)).hexdigest()
```

"""


def web(lab: Lab) -> Iterator[Row]:
    """Many readers; then one who opens something long."""
    home = lab.folder / "home-web"
    home.mkdir()
    words = "word " * lab.size(80, quick=10)
    prose = _PROSE * lab.size(40, quick=2)
    set_up(home, [Reply(words, pause=0.03), Reply(prose, pause=0.004)])
    long = _long(home, lab.size(20_000, quick=100))
    short = _long(home, lab.size(300, quick=100))
    with Served(home) as served:
        page = served.browser()
        yield from _readers(lab, served, page, words)
        yield _last_word(lab, page)
        yield _opened(lab, page, long)
        yield from _in_browser(lab, served, {"page-open": long, "page-open-300": short})


def _long(home: Path, count: int) -> str:
    """A conversation of so many messages."""
    with tenax.open(f"sqlite:///{home / 'tenax.db'}") as journal:
        name = journal.ids.conversation()
        journal.append(
            name, [tenax.events.ConversationOpened("local", journal.ids.segment())]
        )
        for start in range(0, count, 100):
            pairs = [(MessageUser([Text(f"Question {n}")]), MessageAssistant([Text(f"Answer {n}. " * 20)]))
                     for n in range(start, start + 100, 2)]  # fmt: skip
            journal.append(name, [each for pair in pairs for each in pair])
    return name


# -- many readers --------------------------------------------------------------------------------------------


def _readers(lab: Lab, served: Served, page: Page, words: str) -> Iterator[Row]:
    idle, talking = lab.size(1000, quick=10), lab.size(50, quick=2)
    progress(f"{idle} idle readers, {talking} conversations that stream")
    names = [page.new() for _ in range(talking)]
    late, missing = asyncio.run(_measure(served, page, names, idle, words))
    cuts = quantiles(late, n=100) if len(late) > 1 else [late[0]] * 99
    what = f"{idle} idle readers and {talking} streaming conversations, each watched: from an append to the reader that has it"
    yield Row(
        "web-readers",
        what,
        f"{median(late) * 1000:.1f} ms",
        f"p99 {cuts[98] * 1000:.0f} ms, {len(late)} rows",
    )
    yield Row(
        "web-missed",
        "rows that a reader missed meanwhile",
        str(missing),
        gate="0",
        held=missing == 0,
    )


async def _measure(
    served: Served, page: Page, names: list[str], idle: int, words: str
) -> tuple[list[float], int]:
    cookie = "; ".join(f"{each.name}={each.value}" for each in page.http.cookies.jar)
    proof = f"Cookie: {cookie}\r\nTenax-Key: {page.http.headers['Tenax-Key']}\r\n"
    late: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        sleepers = [
            await stack.enter_async_context(_connected(served.url, proof, "-"))
            for _ in range(idle)
        ]
        for sleeper in sleepers:
            stack.enter_context(contextlib.closing(_Drain(sleeper)))
        watching = [
            asyncio.create_task(_watch(served.url, proof, name, late)) for name in names
        ]
        await asyncio.sleep(1)
        for name in names:
            await asyncio.to_thread(page.say, name, "Talk.")
        texts = await asyncio.gather(*watching)
    return late, sum(text != words for text in texts)


class _Drain:
    """Reads and forgets."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._task = asyncio.create_task(self._run(reader))

    async def _run(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(65536):
            pass

    def close(self) -> None:
        self._task.cancel()


@contextlib.asynccontextmanager
async def _connected(
    url: str, proof: str, at: str
) -> AsyncIterator[asyncio.StreamReader]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    writer.write(
        f"GET /api/events?at={at} HTTP/1.1\r\nHost: {host}:{port}\r\n{proof}\r\n".encode()
    )
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


async def _watch(url: str, proof: str, name: str, late: list[float]) -> str:
    """The text that a reader has at the end; how late each new row was."""
    rows: dict[str, Any] = {}
    async with _connected(url, proof, f"-~{name}:") as reader:
        async with asyncio.timeout(120):
            while not is_done(rows):
                line = await reader.readline()
                if not line.startswith(b"data: "):
                    continue
                for change in json.loads(line[6:]).get("changes", ()):
                    if change["type"] == "put":
                        rows[change["row"]["id"]] = change["row"]
                        late.append(time.time() - change["row"]["at"] / 1e6)
                    elif change["type"] == "grow":
                        row = rows[change["id"]]
                        assert len(row["text"]) == change["offset"]
                        row["text"] += change["text"]
    return "".join(row["text"] for row in rows.values() if row["kind"] == "assistant")


def _last_word(lab: Lab, page: Page) -> Row:
    """From the last words of an answer to its end."""
    found = []
    for _ in range(lab.size(10, quick=1)):
        name = page.new()
        with page.stream(f"-~{name}:") as stream:
            stream.until("rows")
            page.say(name, "Talk.")
            last = 0.0
            while not is_done(stream.rows.get(name, {})):
                kind, data = stream.next()
                if kind == "changes" and any(
                    change["type"] == "grow" for change in data["changes"]
                ):
                    last = time.monotonic()
            found.append(time.monotonic() - last)
    return Row(
        "web-done",
        "from the last words of an answer, as a reader has them, to its end",
        f"{median(found) * 1000:.0f} ms",
    )


# -- a real browser ------------------------------------------------------------------------------------------


def _opened(lab: Lab, page: Page, name: str) -> Row:
    count = page.get(f"/conversations/{name}")["messages"]
    found = []
    for _ in range(lab.size(7, quick=1)):
        began = time.monotonic()
        with page.stream(f"-~{name}:") as stream:
            stream.until("rows")
        found.append(time.monotonic() - began)
    what = f"a conversation of {count:,} messages: from the request to its last rows"
    return Row("web-rows", what, f"{median(found) * 1000:.0f} ms")


def _in_browser(lab: Lab, served: Served, names: dict[str, str]) -> Iterator[Row]:
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        return
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=_FLAGS)
        for key, name in names.items():
            yield _shown(lab, served, browser, key, name)
        yield _streamed(served, browser)
        browser.close()


def _shown(lab: Lab, served: Served, browser: Browser, key: str, name: str) -> Row:
    """From the address of a conversation to its last answer on the screen."""
    count = client(served).get(f"/conversations/{name}")["messages"]
    asked: list[str] = []
    found = []
    for n in range(lab.size(5, quick=1)):
        context = browser.new_context()
        tab = context.new_page()
        tab.goto(served.tenax("link").stdout.strip())
        tab.get_by_label("Message", exact=True).wait_for()
        if n == 0:
            tab.on("response", lambda answer: asked.append(answer.url))
        began = time.monotonic()
        tab.goto(f"{served.url}/c/{name}")
        tab.get_by_text(f"Answer {count - 2}.").first.wait_for()
        found.append(time.monotonic() - began)
        context.close()
    what = f"{count:,} messages in Chromium: from the address to the last answer on the screen ({len(asked)} requests)"
    return Row(key, what, f"{median(found) * 1000:.0f} ms")


_WATCH_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((task) => task.duration))).observe({ type: "longtask" });
}"""


def _streamed(served: Served, browser: Browser) -> Row:
    """The tasks of more than 50 ms while a long answer streams."""
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(served.tenax("link").stdout.strip())
    box = tab.get_by_label("Message", exact=True)
    for n in range(2):
        box.fill("Go on.")
        if n == 1:
            tab.evaluate(_WATCH_TASKS)
        box.press("Enter")
        tab.get_by_role("button", name="Stop", exact=True).wait_for()
        tab.get_by_role("button", name="Send", exact=True).wait_for(timeout=120_000)
    words = len(tab.locator("[data-kind=assistant]").last.inner_text().split())
    tasks = tab.evaluate("window.longTasks")
    context.close()
    what = f"tasks of more than 50 ms in the page while an answer of {words:,} words streams"
    longest = f"the longest {max(tasks):.0f} ms" if tasks else ""
    return Row("page-stream", what, str(len(tasks)), longest, "none", not tasks)
