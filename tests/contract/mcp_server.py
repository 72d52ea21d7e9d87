"""A small MCP server that misbehaves on request, run as a script.

With `--http` over HTTP, and it prints its address first; with `--many` tools; `--strict` about its first message. It is
written without the SDK, so that it can say what no SDK lets one say.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

__all__ = ["ENDLESS", "KEY", "Server", "main"]

KEY: Final = "open-sesame"
"""What it wants as its key over HTTP, if it is started with `--key`."""
ENDLESS: Final = 64 * 1024 * 1024
_NOISE: Final = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
_TEXT: Final = {"type": "object", "properties": {"text": {"type": "string"}}}
_TOOLS: Final = {
    "echo": ("Says it again.\u202e\x07", {"readOnlyHint": True}),
    "note": ("Adds its process number to the file that is the text.", {}),
    "slow": ("Does the same, and then takes half a minute.", {}),
    "again": ("Does the same, and then takes three seconds.", {"idempotentHint": True}),
    "env": ("The names of its environment.", {}),
    "child": ("Starts a process that sleeps, and says its number.", {}),
    "picture": ("A picture, a link and a text.", {}),
    "fail": ("Says that it failed.", {}),
    "hang": ("Never answers.", {}),
    "freeze": ("Answers nothing any more.", {}),
    "die": ("Ends.", {}),
    "flood": ("Sends messages without an end.", {}),
    "line": ("Sends a message without an end.", {}),
    "complain": ("Writes a lot to its standard error.", {}),
    "garbage": ("Sends what is no message, and then answers.", {}),
    "change": ("Has other tools from now on.", {}),
    "wei\u00dfe farbe/" + "x" * 80: ("Has a name that no model can be told.", {}),
}


class Server:
    """What it answers, whatever carries it."""

    def __init__(self) -> None:
        self.changed = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a message; None where it wants none."""
        if "id" not in message:
            return None
        params = message.get("params") or {}
        match message.get("method"):
            case "initialize":
                version = params["protocolVersion"]
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "tenax-testing", "version": "1"}
                found: Any = {
                    "protocolVersion": version,
                    "capabilities": capabilities,
                    "serverInfo": info,
                }
            case "tools/list":
                found = {"tools": self._tools()}
            case "tools/call":
                found = self._call(
                    params["name"], (params.get("arguments") or {}).get("text", "")
                )
            case _:
                error = {"code": -32601, "message": "Unknown"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": found}

    def _tools(self) -> list[dict[str, Any]]:
        if "--many" in sys.argv:
            long = {"type": "object", "properties": {"text": {"const": "x" * 3000}}}
            return [
                {"name": f"t{n}", "description": "y" * 5000, "inputSchema": long}
                for n in range(300)
            ]
        more = f" Changed {self.changed} times." if self.changed else ""
        return [
            {
                "name": name,
                "description": said + more,
                "inputSchema": _TEXT,
                "annotations": hints,
            }
            for name, (said, hints) in _TOOLS.items()
        ]

    def _call(self, name: str, text: str) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        match name:
            case "note" | "slow" | "again":
                with Path(text).open("a") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep({"note": 0, "slow": 30, "again": 3}[name])
            case "env":
                text = " ".join(sorted(os.environ))
            case "child":
                child = subprocess.Popen(["sleep", "600"])
                text = f"{os.getpid()} {child.pid}"
            case "picture":
                parts = [{"type": "image", "data": "A" * 4000, "mimeType": "image/png"}]
                parts.append({"type": "resource_link", "name": "a", "uri": "file:///a"})
            case "hang":
                time.sleep(600)
            case "die":
                sys.stderr.write("I was told to.\n")
                sys.stderr.flush()
                os._exit(3)
            case "complain":
                for _ in range(16):
                    sys.stderr.write("oh " * 30_000)
            case "change":
                self.changed += 1
        parts.append({"type": "text", "text": text})
        return {"content": parts, "isError": name == "fail"}


class _Pipes:
    def __init__(self) -> None:
        self._server, self._lock = Server(), threading.Lock()

    def serve(self) -> None:
        for nth, line in enumerate(sys.stdin):
            if nth == 0 and "--strict" in sys.argv and '"initialize"' not in line:
                return
            threading.Thread(
                target=self._handle, args=(json.loads(line),), daemon=True
            ).start()

    def _handle(self, message: dict[str, Any]) -> None:
        tool = (message.get("params") or {}).get("name", "")
        match tool:
            case "freeze":
                self._lock.acquire()
            case "line":
                for _ in range(ENDLESS // 65536):
                    self._say("x" * 65536)
            case "flood":
                while True:
                    self._say(_NOISE * 50)
            case "garbage":
                self._say('no message\n{"half": \n\n\u2028\n[1]\n')
        found = self._server.answer(message)
        if tool == "change":
            self._say('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n')
        if found is not None:
            self._say(json.dumps(found) + "\n")

    def _say(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of = Server()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "--key" in sys.argv and self.headers["x-key"] != KEY:
            return self._send(401)
        tool = (message.get("params") or {}).get("name", "")
        if tool in {"flood", "line"}:
            self.send_response(200)
            self.send_header(
                "content-type",
                "application/json" if tool == "line" else "text/event-stream",
            )
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                for _ in range(ENDLESS // 65536):
                    self.wfile.write(b"data: " + b"x" * 65529 + b"\n")
            return None
        if tool == "garbage":
            return self._send(200, b'{"no": "message"')
        found = self.server_of.answer(message)
        return (
            self._send(202)
            if found is None
            else self._send(200, json.dumps(found).encode())
        )

    def do_GET(self) -> None:
        self._send(405)

    def _send(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the input ends, or for ever."""
    if "--http" not in sys.argv:
        return _Pipes().serve()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"http://127.0.0.1:{http.server_port}/mcp\n")
    sys.stdout.flush()
    return http.serve_forever()


if __name__ == "__main__":
    main()
