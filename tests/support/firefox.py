"""Debian's Firefox for the tests, driven by Playwright through WebDriver BiDi.

Playwright sends `emulation.setMediaFeaturesOverride` for every new window. Firefox 153 does not know this command, and
Playwright gives up. So Playwright starts this module instead of Firefox. It starts Firefox, passes all messages on, and
turns that one command into `session.status`, which does nothing.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Playwright

from tests.support.browser import AnyBrowser
from tests.support.fetch import alone, install_from_apt
from tests.support.needs import Missing

ROOT: Final = Path(__file__).parents[2]
UNKNOWN: Final = b'"emulation.setMediaFeaturesOverride"'
# The same length, so that the head of a WebSocket frame stays as it is.
HARMLESS: Final = b'"session.status"'.ljust(len(UNKNOWN))
LISTENS: Final = re.compile(r"(WebDriver BiDi listening on ws://[\w.]+:)(\d+)")
PREFERENCES: Final[dict[str, str | float | bool]] = {
    "app.normandy.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    # A mouse, also where no screen is: a fine pointer that can hover.
    "ui.allPointerCapabilities": 6,
    "ui.primaryPointerCapabilities": 6,
}


@contextmanager
def launched_firefox(playwright: Playwright, folder: Path) -> Iterator[AnyBrowser]:
    """Start Firefox. Raises Missing where there is none, or where Playwright cannot drive it."""
    path = find_firefox()
    start = folder / "firefox"
    command = shlex.join([sys.executable, "-m", __name__, path])
    start.write_text(f'#!/bin/sh\ncd {shlex.quote(str(ROOT))}\nexec {command} "$@"\n')
    start.chmod(0o755)
    try:
        browser = playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=start,
            firefox_user_prefs=PREFERENCES,
        )
    except PlaywrightError as error:
        reason = str(error).partition("\n")[0]
        raise Missing("Firefox", f"{path} does not start. {reason}") from error
    try:
        yield AnyBrowser(browser)
    finally:
        browser.close()


def find_firefox() -> str:
    """Return the path of Firefox. Raises Missing where there is none and none can be installed."""
    with alone():
        found = shutil.which("firefox-esr") or shutil.which("firefox")
        if found is None:
            install_from_apt("firefox-esr")
            found = shutil.which("firefox-esr")
    if found is None:
        why = "it was not found; on Debian: sudo apt install firefox-esr"
        raise Missing("Firefox", why)
    return found


async def run(command: list[str]) -> int:
    """Start Firefox, and print the address of the proxy where Firefox prints its own."""
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace")
        match = LISTENS.search(text)
        if match is not None:
            port = await listen(int(match[2]))
            text = f"{match[1]}{port}\n"
        sys.stderr.write(text)
        sys.stderr.flush()
    return await process.wait()


async def listen(firefox_port: int) -> int:
    """Accept connections for Firefox. Return the port."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", firefox_port
        )
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await asyncio.gather(
                pass_frames(reader, far_writer), pass_bytes(far_reader, writer)
            )

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def pass_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def pass_frames(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass on the handshake and then frame by frame, each with the mask that a client must use (RFC 6455)."""
    port = writer.get_extra_info("peername")[1]
    handshake = await reader.readuntil(b"\r\n\r\n")
    host = b"\r\nHost: 127.0.0.1:%d\r\n" % port
    writer.write(re.sub(rb"(?i)\r\nhost: [^\r]*\r\n", host, handshake))
    while True:
        head = await reader.readexactly(2)
        size = head[1] & 0x7F
        if size >= 126:
            head += await reader.readexactly(2 if size == 126 else 8)
            size = int.from_bytes(head[2:])
        mask = await reader.readexactly(4)
        body = apply_mask(await reader.readexactly(size), mask)
        body = body.replace(UNKNOWN, HARMLESS)
        writer.write(head + mask + apply_mask(body, mask))
        await writer.drain()


def apply_mask(data: bytes, mask: bytes) -> bytes:
    """XOR the data with the repeated mask."""
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    number = int.from_bytes(data) ^ int.from_bytes(whole)
    return number.to_bytes(len(data))


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:])))
