"""The installed page: it opens while the server is away, shows nothing old as new, and a new version replaces it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from playwright.sync_api import Page

from tenax.web.app import PAGE, PAGE_ROUTES
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, expect
from tests.support.served import ROOT

AWAY = r"ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|Failed to fetch|ERR_FAILED|ERR_ABORTED"
CACHES = "caches.keys().then(names => names.join())"
# The old one is deleted when the new worker is in charge.
CACHE_IS = """name => new Promise(resolve => {
  const look = async () => (await caches.keys()).join() === name ? resolve(0) : setTimeout(look, 50);
  void look();
})"""
KEPT = """async () => {
  const urls = [];
  for (const name of await caches.keys())
    for (const request of await (await caches.open(name)).keys()) urls.push(new URL(request.url).pathname);
  return urls;
}"""
# Python runs this when it starts: the server shows the page in this folder.
OTHER_PAGE = """
import sys
if "tenax.web" in sys.orig_argv:
    import pathlib
    import tenax.web.app
    tenax.web.app.PAGE = pathlib.Path({folder!r})
"""


def installed(page: Page) -> None:
    """Wait for the service worker, and until it answers for the page."""
    page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    page.wait_for_function("navigator.serviceWorker.controller !== null")


def test_the_page_opens_while_the_server_is_away(serve: Serve, window: Window) -> None:
    """It shows no conversation and no message, and keeps what is written. Then everything goes on."""
    window.expects(AWAY)
    served = serve("Yes.", "Here it is.")
    tab = window.enter(served)
    tab.say("Hello there")
    tab.answered("Yes.")
    expect(tab.page.locator("a[data-item]")).to_have_count(1)
    installed(tab.page)
    served.stop()
    tab.page.reload()
    expect(tab.banner).to_contain_text("Reconnecting…")
    expect(tab.page.get_by_role("navigation")).to_contain_text("Reconnecting…")
    expect(tab.page.locator("a[data-item]")).to_have_count(0)
    expect(tab.rows()).to_have_count(0)
    nothing_is_wrong(tab, "away")
    tab.say("Written while the server was away")
    expect(tab.rows("user", "unsent")).to_contain_text("Written while")
    tab.page.reload()
    expect(tab.rows("user", "unsent")).to_contain_text("Written while")
    served.start()
    tab.answered("Here it is.", count=2)
    assert tab.texts("user") == ["Hello there", "Written while the server was away"]
    expect(tab.page.locator("a[data-item]")).to_have_count(1)


def test_only_the_shell_is_kept(serve: Serve, window: Window) -> None:
    """No data, no address of a conversation, no code of a link."""
    tab = window.enter(serve("Yes."))
    tab.say("Hello there")
    tab.answered("Yes.")
    installed(tab.page)
    tab.page.reload()
    tab.answered("Yes.")
    kept = tab.page.evaluate(KEPT)
    assert "/" in kept
    assert [path for path in kept if path != "/" and "/assets/" not in path] == []


def test_a_new_version_replaces_the_kept_page(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """At the first visit; and after it, the new page opens while the server is away."""
    window.expects(AWAY)
    folder = tmp_path / "page"
    shutil.copytree(PAGE, folder)
    (tmp_path / "sitecustomize.py").write_text(OTHER_PAGE.format(folder=str(folder)))
    served = serve("Yes.", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    installed(tab.page)
    before = tab.page.evaluate(CACHES)
    script, page = folder / "service.js", folder / "index.html"
    version = before.removeprefix("tenax-shell-")
    assert version in script.read_text()
    script.write_text(script.read_text().replace(version, "0123456789ab"))
    page.write_text(page.read_text().replace("<html", '<html data-version="new"'))
    tab.page.reload()
    expect(tab.page.locator("html")).to_have_attribute("data-version", "new")
    tab.page.evaluate(CACHE_IS, "tenax-shell-0123456789ab")
    served.stop()
    tab.page.reload()
    expect(tab.banner).to_contain_text("Reconnecting…")
    expect(tab.page.locator("html")).to_have_attribute("data-version", "new")


def test_a_link_signs_in_also_where_the_page_is_installed(
    serve: Serve, window: Window
) -> None:
    served = serve("Yes.")
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    installed(tab.page)
    again = window.tab(served.tenax("link").stdout.strip())
    expect(again.box).to_be_visible()
    again.page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    again.say("Hello")
    again.answered("Yes.")


def test_the_worker_knows_the_addresses_of_the_page() -> None:
    """All but /link, which it must not answer."""
    script = (ROOT / "ui" / "src" / "service.ts").read_text()
    written = re.search(r"const PAGES = /(.*)/;", script)
    assert written is not None
    pattern = re.compile(written[1].replace(r"\/", "/"))
    pages = [route.path for route in PAGE_ROUTES if route.endpoint.__name__ == "page"]
    assert [path for path in pages if not pattern.match(path)] == ["/link"]
    assert not pattern.match("/api/setup")
