"""A compaction that is killed leaves the parent open or the child complete, never anything between."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter

import pytest

from tenax.journal.verify.store import verify
from tenax.sessions import Compacted, SessionDB

POINTS = ("begin", "load", "write", "commit", "committed")

SCRIPT = """
import os, signal, sys
from tenax.sessions import SessionDB
db = SessionDB(url=sys.argv[1])
def reach(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
db.try_acquire_compression_lock("p", "doomed")
db.journal.store.reach = reach
db.rotate("p", summary="what was said")
"""


@pytest.mark.crash
def test_a_kill_at_any_point_of_the_rotation_leaves_no_stranded_transcript(
    store_url: str,
) -> None:
    """At every named point of the commit: all messages are there, at most one child, and the next compactor goes on."""
    killed: Counter[str] = Counter()
    for point in POINTS:
        with SessionDB(url=store_url) as db:
            head = f"p-{point}"
            db.create_session(head, source="test")
            for number in range(6):
                db.append_message(head, role="user", content=f"m{number}")
        script = SCRIPT.replace('"p"', repr(head))
        died = subprocess.run(
            [sys.executable, "-c", script, store_url, point], check=False, timeout=60
        )
        assert died.returncode == -signal.SIGKILL
        killed[point] += 1
        with SessionDB(url=store_url) as db:
            parent = db.get_session(head)
            assert parent is not None
            assert len(db.get_messages(head)) == 6
            children = db.children(head)
            if parent["ended_at"] is None:
                assert children == []
                assert db.try_acquire_compression_lock(head, "next")
                assert isinstance(db.rotate(head, summary="again"), Compacted)
            else:
                assert [
                    message["content"] for message in db.get_messages(children[0])
                ] == ["what was said"]
            assert len(db.children(head)) == 1
            assert verify(db.journal).ok
    assert all(killed[point] for point in POINTS)
