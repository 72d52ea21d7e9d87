"""`tenax serve` and `tenax -p` with a memory provider: killed in every phase nothing is lost, and no provider keeps them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from tenax.config import Config
from tenax.events import MemoryDue, MessageUser
from tenax.models import Reply
from tenax.parts import text_of
from tests.support.diary import SOURCE, Diary
from tests.support.runs import config_of
from tests.support.served import SECONDS, Page, Served, environment, is_done
from tests.support.turns import journal_of, set_up

pytestmark = pytest.mark.crash

NAMED = {"TENAX_MEMORY_PROVIDERS": "diary"}
PHASES = {
    "sync": "turns queued",  # the provider has not kept the first of three
    "synced": "sync in flight",  # it has, and the store does not know
    "": "between turn and boundary",
    "end": "commit in flight",
    "ended": "commit in flight",
}
EXIT_SECONDS = 60.0
ANSWER = "An answer."
STUCK = """
import threading, time
from pathlib import Path
from agent.memory_provider import MemoryProvider

def stick(*args, **kwargs):
    (Path(__file__).parent / "called").touch()
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
    threading.Event().wait()

class Stuck(MemoryProvider):
    name = "diary"
    is_available = lambda self: True
    initialize = prefetch = queue_prefetch = sync_turn = system_prompt_block = get_tool_schemas = stick
    handle_tool_call = shutdown = on_turn_start = on_session_end = on_session_switch = on_pre_compress = stick
"""


class Halting(Diary):
    """The same, and it can be held after it has kept something."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        kept = {
            "assistant_content, key)\n": "synced",
            'if each["role"] == "user"])\n': "ended",
        }
        source = SOURCE
        for line, point in kept.items():
            assert source.count(line) == 1
            source = source.replace(line, f'{line}        self._act("{point}")\n')
        (self.folder / "__init__.py").write_text(source)

    def halt(self, *points: str) -> None:
        """Block there from now on, and nowhere else."""
        self.act(**dict.fromkeys(("sync", "synced", "end", "ended"), ""))
        self.act(**dict.fromkeys(points, "block"))
        (self.folder / "blocked").unlink(missing_ok=True)

    def wait(self) -> None:
        """Until it blocks."""
        until = time.monotonic() + SECONDS
        while not self.blocked:
            assert time.monotonic() < until, self.calls()
            time.sleep(0.02)


def talk(page: Page, name: str, words: str, nth: int) -> None:
    """Say this, and wait for the nth answer."""
    page.say(name, words)
    with page.stream(f"-~{name}:") as stream:
        stream.read_until(
            name,
            lambda rows: (
                is_done(rows)
                and sum(row["kind"] == "assistant" for row in rows.values()) == nth
            ),
        )


def without_repeats(found: list[str]) -> list[str]:
    return [each for each, _ in groupby(found)]


def test_a_killed_server_gives_every_turn_and_every_end(
    store_url: str, tmp_path: Path
) -> None:
    """`kill -9` with turns queued, a turn or an end in flight, and before the boundary; only what was in flight comes twice."""
    set_up(tmp_path, [Reply(ANSWER)])
    diary, kills = Halting(config_of(store_url, tmp_path)), Counter[str]()
    with Served(tmp_path, env={"TENAX_STORE": store_url, **NAMED}) as served:
        page = served.browser()
        while not page.get("/memory/status")["providers"]:
            time.sleep(0.02)
        names = []
        for point, phase in PHASES.items():
            names.append(name := page.new())
            turns = 3 if point in {"sync", ""} else 1
            diary.halt(point or "end")
            before, ends = len(diary.calls("sync")), len(diary.calls("end"))
            for n in range(turns):
                talk(page, name, f"{point} {n}", n + 1)
            if point in {"end", "ended"}:
                page.post(f"/conversations/{name}/left")
            if point:
                diary.wait()
            else:
                diary.told("sync", before + turns)
                # It has them, and the store knows.
                while page.get("/memory/status")["providers"][0]["behind"]:
                    time.sleep(0.02)
            assert len(diary.calls("sync")) - before == {"sync": 0}.get(point, turns), (
                phase
            )
            assert len(diary.calls("end")) - ends == (point == "ended"), phase
            diary.halt()
            served.kill_server()
            kills[phase] += 1
            diary.told("end", ends + 1 + (point == "ended"))
        page.post(f"/conversations/{names[-1]}/left")
        code, said, _ = served.stop()
        assert code == 0, said
    assert all(kills[phase] for phase in PHASES.values()), kills
    repeated = Counter[str]()
    for name, phase in zip(names, PHASES.values(), strict=True):
        events = journal_of(store_url, name)
        finished = [event.seq for event in events if event.kind == "run.finished"]
        words = [
            text_of(event.event.parts)
            for event in events
            if isinstance(event.event, MessageUser)
        ]
        keys = [
            call[4] for call in diary.calls("sync") if call[4].startswith(f"{name}:")
        ]
        assert without_repeats(keys) == [f"{name}:{seq}" for seq in finished], phase
        assert sum(isinstance(event.event, MemoryDue) for event in events) == 1, phase
        told = [call[1] for call in diary.calls("end") if call[1] == words]
        assert told, phase
        repeated[phase] += len(keys) - len(finished) + len(told) - 1
    assert +repeated == {"sync in flight": 1, "commit in flight": 1}


def stuck(home: Path) -> Path:
    """A provider that never comes back from any call; the file that says it was called."""
    set_up(home, [Reply(ANSWER, pause=0.4)])
    folder = home / "plugins" / "diary"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(STUCK)
    return folder / "called"


def test_ctrl_c_ends_a_server_whose_provider_never_comes_back(tmp_path: Path) -> None:
    """Exit code 0 in time, though it blocks in every call and leaves threads behind that nobody may wait for."""
    called = stuck(tmp_path)
    with Served(tmp_path, env=NAMED) as served:
        page = served.browser()
        name = page.new()
        talk(page, name, "hello", 1)
        page.post(f"/conversations/{name}/left")
        talk(page, name, "hello again", 2)
        code, said, seconds = served.stop()
    assert called.exists()
    assert (code, "Traceback" in said) == (0, False), said
    assert seconds < EXIT_SECONDS


def test_one_question_is_answered_and_its_process_ends(tmp_path: Path) -> None:
    """`tenax -p` with the same provider: the answer on stdout, exit code 0, in time."""
    called = stuck(tmp_path)
    command = [sys.executable, "-m", "tenax", "-p", "hello"]
    done = subprocess.run(
        command, env=environment(tmp_path, **NAMED), capture_output=True, text=True, timeout=EXIT_SECONDS, check=False
    )  # fmt: skip
    assert called.exists()
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n"), done.stderr
    assert "Traceback" not in done.stderr
