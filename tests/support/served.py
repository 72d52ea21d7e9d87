"""The real `tenax serve`, as a process of its own, and a browser's view of it without a browser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import httpx

SECONDS = 60.0
SETTINGS = ("TENAX_CONFIG", "TENAX_STORE", "TENAX_MODEL", "TENAX_HOST", "TENAX_PORT", "TENAX_URL", "TENAX_LOG", "OPENAI_BASE_URL",
            "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "OLLAMA_HOST", "SSH_CONNECTION",
            "DISPLAY", "WAYLAND_DISPLAY", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # fmt: skip


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person whose everything is in one folder."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return {**kept, "TENAX_HOME": str(home), "TENAX_PORT": str(free_port()), **more}


def free_port() -> int:
    with kept_port() as trial:
        port: int = trial.getsockname()[1]
        return port


def kept_port(port: int = 0) -> socket.socket:
    """A port that nobody else is given as long as this is open; who wants it by its number may listen there."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind(("127.0.0.1", port))
    except OSError:
        place.close()
        raise
    return place


ROOT = Path(__file__).parents[2]

# Python runs this when it starts: a model that plays a script says as many words of an answer as the file allows.
_PACED = """
import sys
if "tenax.web" in sys.orig_argv or ("tenax" in sys.orig_argv and not {{"serve", "link"}} & set(sys.orig_argv)):
    import asyncio, contextlib, pathlib
    from tenax.models import scripted
    unhindered, allowed = scripted.ScriptedModel.stream, pathlib.Path({file!r})
    async def stream(self, body, *, silence):
        said = 0
        async with contextlib.aclosing(unhindered(self, body, silence=silence)) as pieces:
            async for piece in pieces:
                said += isinstance(piece, scripted.Words)
                while said > int(allowed.read_text()):
                    await asyncio.sleep(0.01)
                yield piece
    scripted.ScriptedModel.stream = stream
"""


class Pace:
    """How far a model that plays a script may go in an answer: it waits there, however slow whoever watches it is.

    It holds for processes that are started with `env`, from `say` to `say`.
    """

    def __init__(self, home: Path, words: int = 1_000_000) -> None:
        self._file = home / "pace"
        self.env = {"PYTHONPATH": os.pathsep.join((str(home), str(ROOT)))}
        self.say(words)
        (home / "sitecustomize.py").write_text(_PACED.format(file=str(self._file)))

    def say(self, words: int = 1_000_000) -> None:
        """Go on, up to so many words of each answer; or to its end."""
        new = self._file.with_suffix(".new")
        new.write_text(str(words))
        new.replace(self._file)


class Served:
    """`tenax serve` (or another command that serves) for as long as the block lasts."""

    def __init__(
        self,
        home: Path,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.home = home
        self._cwd = cwd
        self.env = {**environment(home), **(env or {})}
        self._port: socket.socket | None = None
        self._pages: list[Page] = []
        self.command = [sys.executable, "-P", "-m", "tenax", *(command or ("serve",))]

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # it is another's already
            # and ours while the server is away
            self._port = kept_port(int(self.env["TENAX_PORT"]))
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for page in self._pages:
            page.http.close()
        if self._port is not None:
            self._port.close()
        if self.process.poll() is None:
            children = self._children()
            self.process.kill()
            # it would end by itself, in good order, and take its time
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self.process.communicate()

    def start(self) -> None:
        """Start it, and wait for its link."""
        self.process = subprocess.Popen(
            self.command,
            env=self.env,
            cwd=self._cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        if not self.link:
            if self._port is not None:
                self._port.close()
            raise AssertionError(f"it did not start: {self.process.communicate()[1]}")
        self.url = self.link.partition("/link")[0]
        for page in self._pages:  # somebody else may have taken the port meanwhile
            page.url = self.url
            page.http.base_url = self.url

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, float]:
        """Ctrl-C: the exit code, what was said, and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said, time.monotonic() - began

    @property
    def port(self) -> int:
        """The port on which it listens, whatever address its links have."""
        where = json.loads((self.home / "run" / "serve").read_text())["url"]
        return int(where.rpartition(":")[2])

    def server(self) -> int:
        """The process id of the server under the parent."""
        return self._children()[0]

    def _children(self) -> list[int]:
        found = Path(
            f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        ).read_text()
        return [int(each) for each in found.split()]

    def kill_server(self) -> None:
        """`kill -9` of the server; its parent starts it again."""
        os.kill(self.server(), signal.SIGKILL)

    def tenax(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Another command beside it."""
        command = [sys.executable, "-m", "tenax", *args]
        return subprocess.run(
            command,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def browser(self, link: str | None = None) -> Page:
        """Somebody who opens a link."""
        page = Page(self.url)
        self._pages.append(page)
        answer = page.sign_in(link or self.link)
        assert answer.status_code == 200, answer.text
        return page


def code_of(link: str) -> str:
    """The one-time code in a link."""
    return link.partition("#code=")[2].partition("&")[0]


class Page:
    """A browser's requests, with its cookie and the page's key."""

    def __init__(self, url: str) -> None:
        self.url = url
        # There is no TLS here, and a client that reads who can be trusted takes as long as all its requests. Each of
        # these has a connection of its own: one that is kept may be closed by the server while it is used again.
        once = httpx.Limits(max_keepalive_connections=0)
        own = {"Sec-Fetch-Site": "same-origin"}
        self.http = httpx.Client(
            base_url=url,
            timeout=SECONDS,
            trust_env=False,
            verify=False,
            limits=once,
            headers=own,
        )

    def sign_in(self, link: str, *, replace: bool = False) -> httpx.Response:
        """Follow a link as the page does: exchange its code for the cookie and the key."""
        answer = self.http.post(
            "/api/sign-in", json={"code": code_of(link), "replace": replace}
        )
        if answer.is_success and answer.json()["key"]:
            self.http.headers["Tenax-Key"] = answer.json()["key"]
        return answer

    def get(self, path: str, **query: Any) -> Any:
        answer = self.http.get(f"/api{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(
        self,
        path: str,
        body: object = None,
        *,
        status: int | None = None,
        **headers: str,
    ) -> Any:
        answer = self.http.post(
            f"/api{path}", json=body if body is not None else {}, headers=headers
        )
        assert answer.status_code == status if status else answer.is_success, (
            answer.text
        )
        return answer.json() if answer.content else None

    def new(self) -> str:
        found: str = self.post("/conversations")["id"]
        return found

    def say(
        self, conversation: str, text: str, how: str = "queue", key: str | None = None
    ) -> int:
        headers: Any = {"Idempotency-Key": key or str(uuid4())}
        seq: int = self.post(
            f"/conversations/{conversation}/messages",
            {"text": text, "how": how},
            **headers,
        )["seq"]
        return seq

    def rows(self, conversation: str, **query: int) -> list[dict[str, Any]]:
        """The last rows, and what waits."""
        page = self.get(f"/conversations/{conversation}/rows", **query)
        return [*page["rows"], *page["waiting"]]

    @contextlib.contextmanager
    def stream(self, at: str) -> Iterator[Stream]:
        with self.http.stream(
            "GET", "/api/events", params={"at": at}, timeout=SECONDS
        ) as answer:
            assert answer.status_code == 200
            yield Stream(answer)


class Stream:
    """Frames as they come, and the rows that a page would have of them."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()
        self.cursor = ""
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self.list: dict[str, dict[str, Any]] = {}
        self.snapshots = 0

    def next(self) -> tuple[str, Any]:
        """The next frame, taken in."""
        kind, data = "", ""
        for line in self._lines:
            if not line:
                if kind:
                    return kind, self._take(kind, json.loads(data))
                continue
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                self.cursor = value
            elif name == "data":
                data = value
        raise EOFError("the stream ended")

    def until(self, what: str) -> Any:
        """The next frame of this kind."""
        while True:
            kind, data = self.next()
            if kind == what:
                return data

    def text(self, conversation: str) -> str:
        """The assistant's words, in order."""
        rows = sorted(
            self.rows.get(conversation, {}).values(), key=lambda row: row["key"]
        )
        return "".join(
            row.get("text", "") for row in rows if row["kind"] == "assistant"
        )

    def read_until(self, conversation: str, done: Any) -> None:
        """Read until this holds of the conversation's rows."""
        while not done(self.rows.get(conversation, {})):
            self.next()

    def _take(self, kind: str, data: Any) -> Any:
        if kind == "rows":
            self.snapshots += 1
            self.rows[data["conversation"]] = {
                row["id"]: row for row in data["rows"] + data["waiting"]
            }
        elif kind == "changes":
            rows = self.rows.setdefault(data["conversation"], {})
            for change in data["changes"]:
                match change["type"]:
                    case "put":
                        rows[change["row"]["id"]] = change["row"]
                    case "grow":
                        row = rows[change["id"]]
                        field = change.get("field", "text")
                        assert len(row.get(field, "")) == change["offset"], (
                            "a hole, or a repeat"
                        )
                        row[field] = row.get(field, "") + change["text"]
                    case "drop":
                        rows.pop(change["id"], None)
        elif kind == "list":
            if data["reset"]:
                self.list.clear()
            self.list |= {
                conversation["id"]: conversation
                for conversation in data["conversations"]
            }
            for each in data["gone"]:
                self.list.pop(each, None)
        return data


def is_done(rows: dict[str, dict[str, Any]]) -> bool:
    """Whether an answer stands, whole."""
    kinds = [row for row in rows.values() if row["kind"] == "assistant"]
    return bool(kinds) and all(row.get("state", "") in {"", "earlier"} for row in kinds)
