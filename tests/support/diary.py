"""A memory provider in the style of its ecosystem, as a plugin folder: it writes every call into a file, line by line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tenax.config import Config

SECONDS = 60.0
SOURCE = """
import json, os, threading, time
from pathlib import Path
from agent.memory_provider import MemoryProvider

HERE = Path(__file__).parent

class Diary(MemoryProvider):
    @property
    def name(self):
        return HERE.name

    def is_available(self):
        return True

    def initialize(self, session_id, **kwargs):
        self._note("initialize", session_id, {key: str(value) for key, value in kwargs.items()})

    def get_tool_schemas(self):
        return [{"name": f"{HERE.name}_look", "description": "Looks it up.",
                 "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}]

    def handle_tool_call(self, tool_name, args, **kwargs):
        return f"found {args['query']}"

    def system_prompt_block(self):
        return "A diary is kept."

    def prefetch(self, query, *, session_id=""):
        self._act("prefetch")
        return "the diary knows about tea" if "tea" in query else ""

    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None, key=None):
        self._act("sync")
        self._note("sync", session_id, user_content, assistant_content, key)

    def on_session_end(self, messages):
        self._act("end")
        self._note("end", [each["content"] for each in messages if each["role"] == "user"])

    def on_session_switch(self, new_session_id, *, parent_session_id="", reset=False, rewound=False, **kwargs):
        self._note("switch", new_session_id, parent_session_id, reset, rewound)

    def on_pre_compress(self, messages):
        return "the diary wants the boat kept"

    def on_memory_write(self, action, target, content, metadata=None):
        self._note("write", action, target, content)

    def shutdown(self):
        self._act("shutdown")
        self._note("shutdown")

    def _note(self, *what):
        with (HERE / "calls.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\\n")
            file.flush()
            os.fsync(file.fileno())

    def _act(self, method):
        how = HERE / f"{method}.how"
        word = how.read_text() if how.exists() else ""
        if word == "block":
            # The clock of the journal. The time of a file comes from a coarser clock.
            began = HERE / "blocked.new"
            began.write_text(str(time.time_ns() // 1000))
            began.rename(HERE / "blocked")
            threading.Event().wait()
        if word == "leak":
            # The thread outlives the provider, but not the tests.
            threading.Thread(target=threading.main_thread().join, daemon=False).start()
        if word == "raise":
            raise RuntimeError("no")
        if word == "print":
            print("the diary prints", flush=True)
"""


class Diary:
    """One such plugin in a person's home. `acts` says what it does in a call: block, raise, leak or print."""

    def __init__(self, config: Config, name: str = "diary", **acts: str) -> None:
        self.name = name
        self.folder: Path = config.directories.data / "plugins" / name
        self.folder.mkdir(parents=True)
        (self.folder / "__init__.py").write_text(SOURCE)
        self.act(**acts)

    def act(self, **acts: str) -> None:
        for method, how in acts.items():
            (self.folder / f"{method}.how").write_text(how)

    def calls(self, *kinds: str) -> list[list[Any]]:
        """What it was told so far, of these kinds."""
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [
            line for line in map(json.loads, lines) if not kinds or line[0] in kinds
        ]

    @property
    def blocked(self) -> bool:
        return (self.folder / "blocked").exists()

    @property
    def blocked_at(self) -> int:
        """The time at which the blocked call began, in microseconds since 1970."""
        return int((self.folder / "blocked").read_text())

    def told(self, kind: str, count: int) -> list[list[Any]]:
        """Wait until it was told so many of this kind."""
        until = time.monotonic() + SECONDS
        while len(found := self.calls(kind)) < count:
            assert time.monotonic() < until, (
                f"{self.name} was told {found}, not {count} of {kind}"
            )
            time.sleep(0.02)
        return found
