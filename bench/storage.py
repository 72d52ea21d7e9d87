"""What a store takes: bytes at rest and in the log, time to import, memory while it grows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.engines import Engine
from bench.lab import ROOT, Lab, Words, message, talk
from bench.measure import Row, at_most, progress, seconds, stated
from tenax.events import Event, MessageAssistant, ReplyDelta
from tenax.journal import Journal
from tenax.parts import Text

__all__ = ["bytes_stored", "import_time", "memory"]

_ANSWER_CHARS = 6000
_DELTA_CHARS = 36
"""100 ms of a model that writes 85 tokens of 4.2 characters a second."""


def bytes_stored(lab: Lab) -> Iterator[Row]:
    """Bytes for each byte of text."""
    for engine in lab.engines:
        progress(f"bytes, {engine.name}")
        for nbytes in (300, 2000):
            yield _messages(lab, engine, nbytes)
        yield from _answers(lab, engine)


def _messages(lab: Lab, engine: Engine, nbytes: int) -> Row:
    label, count = f"bytes-{nbytes}", lab.size(2000, quick=20)
    words = Words()
    with engine.open(label, metered=True) as journal:
        names = talk(journal, 10)
        rows, log = engine.rows_bytes(label), engine.log_bytes(label)
        for number in range(count):
            journal.append(names[number % len(names)], [message(words.text(nbytes))])
        log = engine.log_bytes(label) - log
        rows = engine.rows_bytes(label) - rows
    what = f"{engine.title}: messages of {nbytes:,} bytes, each appended by itself; bytes at rest for each byte of text"
    key, text = f"bytes-{engine.name}-{nbytes}", count * nbytes
    return stated(key, what, f"{rows / text:.2f}", _log(log, count, text))


def _answers(lab: Lab, engine: Engine) -> Iterator[Row]:
    """Answers that stream, each in a conversation of its own, and what is left when its partials are pruned."""
    label, count = "bytes-answers", lab.size(50, quick=1)
    words, total = Words(), count * _ANSWER_CHARS
    with engine.open(label, metered=True) as journal:
        names = talk(journal, count)
        rows, log = engine.rows_bytes(label), engine.log_bytes(label)
        for name in names:
            _answer(journal, name, words.text(_ANSWER_CHARS))
        log = engine.log_bytes(label) - log
        whole = engine.rows_bytes(label) - rows
        for name in names:
            journal.prune(name)
        pruned = engine.rows_bytes(label) - rows
    deltas = count * -(-_ANSWER_CHARS // _DELTA_CHARS)
    what = f"{engine.title}: answers of 6,000 characters at 85 tokens a second, a partial every 100 ms, then the whole"
    key, text = f"bytes-{engine.name}", _log(log, deltas + count, total)
    yield stated(
        f"{key}-stream",
        f"{what}; bytes at rest for each byte of text",
        f"{whole / total:.2f}",
        text,
    )
    what = f"{engine.title}: the same when the partials are pruned"
    yield stated(f"{key}-pruned", what, f"{pruned / total:.2f}")


def _answer(journal: Journal, name: str, text: str) -> None:
    request = journal.head(name).head
    for offset in range(0, len(text), _DELTA_CHARS):
        journal.append(
            name, [ReplyDelta(request, offset, text[offset : offset + _DELTA_CHARS])]
        )
    answer: Event = MessageAssistant([Text(text)], request=request)
    journal.append(name, [answer])


def _log(log: int, commits: int, text: int) -> str:
    return f"log {log / text:.1f} bytes for each byte, {log / commits / 1024:.1f} KiB a commit"


def import_time(lab: Lab) -> Iterator[Row]:
    """The best of many, because everything else only adds to it."""
    progress("import")
    rounds = lab.size(20, quick=1)
    starts = [(_start("from tenax import *"), _start("pass")) for _ in range(rounds)]
    ours, bare = min(a for a, _ in starts), min(b for _, b in starts)
    what = f"`from tenax import *`, all that it offers, less the start of Python: the best of {rounds} processes"
    yield stated(
        "import", what, seconds(ours - bare), f"{seconds(ours)} beside {seconds(bare)}"
    )


def _start(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return time.perf_counter() - begun


def memory(lab: Lab) -> Iterator[Row]:
    """A process of its own that appends, and then proves the store."""
    early, late = (
        lab.size(20_000, quick=1000, large=100_000),
        lab.size(100_000, quick=1000, large=1_000_000),
    )
    for engine in lab.engines:
        progress(f"memory, {late:,} events, {engine.name}")
        command = [
            sys.executable,
            "-m",
            "bench.grow",
            engine.url("memory"),
            str(early),
            str(late),
        ]
        done = subprocess.run(
            command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        at_early, at_late, proved, took = map(float, done.stdout.split())
        what = f"{engine.title}: memory of a process that appends {late:,} events and proves the store, beside itself at {early:,}"
        measured = f"{at_early:.0f} MiB, then {at_late:.0f} MiB, {proved:.0f} MiB with the proof"
        key, grown = f"memory-{engine.name}", max(at_late, proved) / at_early
        if lab.scale == "large":  # before that, caches are still filling
            yield at_most(key, what, grown, 1.2, measured)
        else:
            yield stated(key, what, f"{grown:.2f} x", measured)
        what = f"{engine.title}: `verify` of these {late:,} events"
        yield stated(
            f"memory-{engine.name}-verify",
            what,
            f"{late / took:,.0f} events a second",
            f"{took:.1f} s",
        )
