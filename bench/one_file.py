"""Append latency while a search index is written: in a file of its own, or in the store's file.

`python -m bench.one_file` prints both, in alternating rounds. It is the measurement behind decision 28 and no part of `make bench`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

import apsw

ROUNDS = 5
SECONDS = 5.0
BATCH = 200
REST = 3.0
"""The indexer rests three times as long as it works, as `journal/search/indexer.py` does."""
APPEND_PAUSE = 0.002
CREATE_INDEX = (
    "create virtual table grams using fts5(body, content='', contentless_delete=1, "
    "tokenize='trigram', detail='none')"
)


def main() -> None:
    rng = random.Random(7)
    words = [f"w{number:05d}" for number in range(20_000)]
    texts = [" ".join(rng.choices(words, k=90)) for _ in range(2000)]
    found: dict[str, list[tuple[float, float]]] = {"own file": [], "store's file": []}
    for _ in range(ROUNDS):
        for name, percentiles in found.items():
            percentiles.append(_measure(texts, one_file=name == "store's file"))
    for name, percentiles in found.items():
        p50 = statistics.median(p50 for p50, _ in percentiles)
        p99 = statistics.median(p99 for _, p99 in percentiles)
        print(f"{name}: p50 {p50:.2f} ms, p99 {p99:.1f} ms")


def _measure(texts: list[str], *, one_file: bool) -> tuple[float, float]:
    """Return the 50th and 99th percentile of an append in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="tenax-bench-") as folder:
        store = _connect(Path(folder) / "store.db", "full")
        store.execute("create table events (place integer primary key, body text)")
        file = "store.db" if one_file else "search.db"
        index = _connect(Path(folder) / file, "normal")
        index.execute(CREATE_INDEX)
        stop = threading.Event()
        indexer = threading.Thread(target=_index, args=(index, texts, stop))
        indexer.start()
        times = _append(store, texts)
        stop.set()
        indexer.join()
        store.close()
        index.close()
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


def _connect(path: Path, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("secure_delete", "on")
    return connection


def _append(store: apsw.Connection, texts: list[str]) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        row = (len(times) + 1, texts[len(times) % len(texts)][:300])
        began = time.perf_counter()
        store.execute("begin immediate")
        store.execute("insert into events values (?, ?)", row)
        store.execute("commit")
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(APPEND_PAUSE)
    return times


def _index(index: apsw.Connection, texts: list[str], stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        began = time.monotonic()
        index.execute("begin immediate")
        for _ in range(BATCH):
            count += 1
            row = (count, texts[count % len(texts)])
            index.execute("insert into grams (rowid, body) values (?, ?)", row)
        index.execute("commit")
        stop.wait((time.monotonic() - began) * REST)


if __name__ == "__main__":
    main()
