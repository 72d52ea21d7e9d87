"""Another process that follows a conversation: `python -m bench.follow URL CONVERSATION COUNT`.

It says `ready`, waits for so many partials that hold the moment they were sent, and prints how long each was on its way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tenax
from bench.lab import ROOT
from tenax.events import MessageAssistant, ReplyDelta

__all__ = ["follower", "latencies", "stamp"]


def stamp(request: int) -> ReplyDelta:
    """A partial that says when it was sent. The monotonic clock is the same for all processes of a machine."""
    return ReplyDelta(request, 0, f"{time.monotonic_ns()}")


@contextmanager
def follower(
    url: str, conversation: str, count: int
) -> Iterator[subprocess.Popen[str]]:
    """The process, listening. `latencies` reads what it found."""
    command = [sys.executable, "-m", "bench.follow", url, conversation, str(count)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.3)
            yield process
        finally:
            process.kill()


def latencies(process: subprocess.Popen[str]) -> list[float]:
    """Seconds between sending and seeing."""
    said, _ = process.communicate(timeout=60)
    return list(json.loads(said))


def _follow(url: str, conversation: str, count: int) -> None:
    found: list[float] = []
    seen, missed = set(), 0
    with tenax.open(url) as journal:
        head = journal.head(conversation).head
        print("ready", flush=True)
        for each in journal.tail(conversation, head):
            now = time.monotonic_ns()
            if isinstance(each.event, ReplyDelta):
                found.append((now - int(each.event.text)) / 1e9)
                seen.add(each.event.request)
            elif (
                isinstance(each.event, MessageAssistant)
                and each.event.request not in seen
            ):
                # the answer was there, and its partials pruned, before this process looked
                missed += 1
            if len(found) + missed == count:
                break
    print(json.dumps(found))


if __name__ == "__main__":
    _follow(sys.argv[1], sys.argv[2], int(sys.argv[3]))
