"""The same work for two projects that have a SessionDB: `python peer_work.py MODULE PATH`.

It runs in the environment of the project that it measures and imports nothing else. It reads one request a line from
stdin (`append COUNT`, `callers COUNT`, `load COUNT`) and answers with a number.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

CALLERS = 8


class Work:
    """One store."""

    def __init__(self, module: str, path: str) -> None:
        self._db: Any = importlib.import_module(module).SessionDB(db_path=Path(path))
        self._text = (
            "The agent reads a file and answers a question about durability in some detail. "
            * 4
        )
        for number in range(CALLERS):
            self._db.create_session(f"s{number}", "bench")
        self._loaded = False

    def append(self, count: int) -> float:
        """Median seconds of one append."""
        found = []
        for _ in range(count):
            begun = time.perf_counter()
            self._put("s0")
            found.append(time.perf_counter() - begun)
        return statistics.median(found)

    def callers(self, count: int) -> float:
        """Messages a second of eight threads, each in its own session."""

        def call(session: str) -> None:
            for _ in range(count):
                self._put(session)

        threads = [
            threading.Thread(target=call, args=(f"s{number}",))
            for number in range(CALLERS)
        ]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return CALLERS * count / (time.perf_counter() - begun)

    def load(self, count: int) -> float:
        """Seconds to read a session of so many messages."""
        if not self._loaded:
            self._db.create_session("long", "bench")
            for _ in range(count):
                self._put("long")
            self._loaded = True
        begun = time.perf_counter()
        found = self._db.get_messages("long")
        seconds = time.perf_counter() - begun
        assert len(found) == count
        return seconds

    def _put(self, session: str) -> None:
        self._db.append_message(session, role="user", content=self._text)

    def close(self) -> None:
        self._db.close()


def main() -> None:
    work = Work(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        what, count = line.split()
        print(getattr(work, what)(int(count)), flush=True)
    work.close()


if __name__ == "__main__":
    main()
