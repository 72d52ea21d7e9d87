"""A hostile server on another port of the same host, such as a development server that an agent started.

It keeps the cookies that browsers send to it, and its page tries what a page of another port can try.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

__all__ = ["Neighbour"]

_PAGE = """<!doctype html><title>A project</title><body><p id="tried"></p><script>
const target = TARGET, found = [];
const tries = [
  ["read", () => fetch(target + "/api/setup", { credentials: "include" }).then((answer) => answer.text())],
  ["stream", () => fetch(target + "/api/events", { credentials: "include" }).then((answer) => answer.text())],
  ["write", () => fetch(target + "/api/conversations", { method: "POST", credentials: "include", mode: "no-cors",
    headers: { "Content-Type": "text/plain" }, body: "{}" }).then((answer) => answer.text())],
  ["sign in", () => fetch(target + "/api/sign-in", { method: "POST", credentials: "include",
    headers: { "Content-Type": "application/json" }, body: '{"code": "x"}' }).then((answer) => answer.text())],
  ["storage", () => localStorage.getItem("tenax.key")],
  ["picture", () => new Promise((done) => { const image = new Image(); image.onload = () => done("shown");
    image.onerror = () => done(""); image.src = target + "/api/memory/export"; })],
];
(async () => {
  for (const [name, work] of tries) {
    try { found.push(name + ":" + ((await work()) || "")); } catch { found.push(name + ":"); }
  }
  document.getElementById("tried").textContent = found.join("|");
})();
</script>"""


class Neighbour:
    """Listens on a port of 127.0.0.1 for as long as the block lasts."""

    def __init__(self, target: str) -> None:
        self.cookies: list[str] = []
        cookies = self.cookies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(_PAGE.replace("TARGET", repr(target)).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
