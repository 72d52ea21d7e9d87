"""Files of a conversation in a frame, as Chromium shows them."""

from __future__ import annotations

from pathlib import Path

from tests.support.browser import Chromium, Serve, client
from tests.support.files import written

HOSTILE = """<h1>Shown</h1><script>parent.pwned = 1; document.querySelector('h1').textContent = 'Ran'</script>
<img src="/api/health" onerror="parent.pwned = 2"><form action="/api/rules"><button>Send</button></form>
<meta http-equiv="refresh" content="0; url=http://evil.invalid/">"""
_FRAME = """(address) => new Promise((shown) => {
  const frame = document.createElement('iframe');
  frame.onload = () => shown(frame.contentDocument === null);
  frame.src = address;
  document.body.append(frame);
})"""


def test_a_framed_file_is_shown_and_does_nothing(
    chromium: Chromium, serve: Serve, tmp_path: Path
) -> None:
    """A page and a PDF are shown in a frame of an origin of their own; no script in them runs."""
    served = serve("Done.")
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work/evil.html").write_text(HOSTILE)
    (tmp_path / "work/a.pdf").write_bytes(written("Inside"))
    person = client(served)
    base = f"/api/conversations/{person.new()}/files/content?path="
    wanted = [f"{base}{name}" for name in ("evil.html", "a.pdf")]
    addresses = person.post("/addresses", {"paths": wanted})["addresses"]
    with chromium.window() as window:
        window.expects("sandbox", "Content Security Policy", "404", "chrome-extension")
        for cookie in person.http.cookies.jar:
            window.context.add_cookies(
                [{"name": cookie.name, "value": cookie.value or "", "url": served.url}]
            )
        page = window.tab(f"{served.url}/third-party.txt").page
        is_apart, _ = [page.evaluate(_FRAME, address) for address in addresses]
        assert is_apart, "the frame has an origin of its own"
        html = next(frame for frame in page.frames if "evil.html" in frame.url)
        assert html.locator("h1").inner_text() == "Shown"
        assert page.evaluate("window.pwned") is None
        page.wait_for_function("document.querySelectorAll('iframe').length === 2")
        while not any(
            frame.url.startswith("chrome-extension:") for frame in page.frames
        ):
            page.wait_for_event("frameattached")
        window.requests = [
            request for request in window.requests if not request.startswith("chrome")
        ]
