"""A task of ten tool steps in a real repository, killed at every step and in the middle of tools: the same end state."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tenax.agent.recovery import UNKNOWN_OUTCOME
from tenax.assembly import Runtime
from tenax.events import MessageAssistant, ToolFinished, ToolStarted
from tenax.journal.base import Recorded
from tenax.journal.verify.store import verify
from tenax.models import Piece, ScriptedModel
from tenax.models.base import Answer
from tenax.parts import Part, Text, ToolCall, ToolResult
from tenax.tools.base import Call
from tests.support.children import Child, Teller
from tests.support.runs import config_of
from tests.support.turns import (
    after_each_append,
    all_answered,
    journal_of,
    new_conversation,
    rows_of,
)

pytestmark = pytest.mark.crash

PHASES = ("message.assistant", "tool.started", "before", "after", "tool.finished")
"""The answer that asks for the step was stored; it is begun; nothing of it, or all of it, is done; its outcome is stored."""
TEST = (
    "import unittest\nfrom calc import add\n\n\nclass Adds(unittest.TestCase):\n"
    "    def test_add(self) -> None:\n        self.assertEqual(add(2, 3), 5)\n"
)
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "README": "A calculator.\n",
    "old.txt": "to be removed\n",
    ".gitignore": "__pycache__\n.began*\n",
}
HOLD = ".began-hold"
"""While there is such a file, a command that has begun goes no further."""


class Step(NamedTuple):
    """A call, what its result holds, and how to find out whether it was done: a call whose result holds something."""

    name: str
    args: dict[str, Any]
    says: str
    check: tuple[str, dict[str, Any], str] = ("", {}, "")


def shell(command: str, says: str, check: str, done: str) -> Step:
    """It says that it has begun, so that it can be killed in its middle."""
    slow = f"date +%s%N > .began; while test -e {HOLD}; do sleep 0.02; done; {command}"
    return Step("shell", {"command": slow}, says, ("shell", {"command": check}, done))


def edit(path: str, old: str, new: str) -> Step:
    return Step(
        "edit_file",
        {"path": path, "old": old, "new": new},
        "+",
        ("read_file", {"path": path}, new),
    )


STEPS = (
    Step("find_files", {"pattern": "*.py"}, "calc.py"),
    Step("read_file", {"path": "calc.py"}, "a - b"),
    Step("search_files", {"pattern": "def add"}, "calc.py:1:"),
    edit("calc.py", "a - b", "a + b"),
    Step("write_file", {"path": "test_calc.py", "content": TEST}, "was written"),
    shell("python3 -m unittest -q", "OK", "false", "never"),
    edit("README", "calculator", "calculator that adds"),
    Step(
        "write_file", {"path": "docs/CHANGES", "content": "add adds.\n"}, "was written"
    ),
    shell(
        "rm -f old.txt; echo removed",
        "removed",
        "test ! -e old.txt && echo gone",
        "gone",
    ),
    shell(
        "git add -A && git commit -q -m 'Add adds' && echo committed",
        "committed",
        "rm -f .git/index.lock; git log -1 --format=%s",
        "Add adds",
    ),
)


def plan(messages: list[dict[str, Any]]) -> list[Part]:
    """The next call: a function of what was said. What may have been done is looked at before it is done again."""
    parts = [
        msgspec.convert(part, Part) for message in messages for part in message["parts"]
    ]
    calls = [part.id for part in parts if isinstance(part, ToolCall)]
    results = {part.call: part.text for part in parts if isinstance(part, ToolResult)}
    for n, step in enumerate(STEPS):
        tries = [call for call in calls if call.startswith(f"{n}.do.")]
        checks = [call for call in calls if call.startswith(f"{n}.look.{len(tries)}.")]
        said = results.get(tries[-1], "") if tries else None
        if said is not None and UNKNOWN_OUTCOME not in said:
            assert step.says in said, f"{step.name}: {said}"
            continue
        looked = results.get(checks[-1], "") if checks else UNKNOWN_OUTCOME
        if said is not None and UNKNOWN_OUTCOME in looked:
            name, args, _ = step.check
            return [
                ToolCall(
                    f"{n}.look.{len(tries)}.{len(checks)}",
                    name,
                    msgspec.json.encode(args).decode(),
                )
            ]
        if said is None or step.check[2] not in looked:
            return [
                ToolCall(
                    f"{n}.do.{len(tries)}",
                    step.name,
                    msgspec.json.encode(step.args).decode(),
                )
            ]
    return [Text("It adds now.")]


class Worker(ScriptedModel):
    """Plays the plan."""

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        yield Answer(plan(msgspec.json.decode(body)["messages"]), None, "stop")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_of(step: int, event: object) -> bool:
    """Whether this event is about a call of the step."""
    calls = [event.call] if isinstance(event, ToolStarted | ToolFinished) else []
    if isinstance(event, MessageAssistant):
        calls = [part.id for part in event.parts if isinstance(part, ToolCall)]
    return any(call.startswith(f"{step}.") for call in calls)


def die_when_stored(step: int, kind: str) -> None:
    def look(stored: list[Recorded]) -> None:
        if any(each.kind == kind and is_of(step, each.event) for each in stored):
            die()

    after_each_append(look)


def die_in_tool(runtime: Runtime, step: int, phase: str) -> None:
    def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
        async def dying(args: Any, call: Call) -> str:
            mine = call.id.startswith(f"{step}.")
            if mine and phase == "before":
                die()
            if mine and phase == "middle":
                (call.folder / HOLD).touch()
                threading.Thread(
                    target=die_once_begun, args=(call.folder / ".began",), daemon=True
                ).start()
            done: str = await run(args, call)
            if mine and phase == "after":
                die()
            return done

        return dying

    for tool in runtime.agent.gate.tools():
        tool.run = wrapped(tool.run)  # type: ignore[method-assign]


def die_once_begun(file: Path) -> None:
    before = file.read_text() if file.exists() else ""
    while not file.exists() or file.read_text() in {"", before}:
        time.sleep(0.002)
    die()


def work(
    teller: Teller,
    url: str,
    home: str,
    conversation: str,
    words: str,
    step: int,
    phase: str,
) -> None:
    """Answer, or go on with what is there, and die in this phase of this step."""
    if "." in phase:
        die_when_stored(step, phase)
    config = config_of(url, Path(home))
    (config.tools_folder / HOLD).unlink(missing_ok=True)

    async def go() -> None:
        async with Runtime(config, models=[Worker([])], asks=False) as runtime:
            die_in_tool(runtime, step, phase)
            if words:
                await runtime.submit(conversation, words)
            else:
                await runtime.go_on(conversation)
            await all_answered(runtime, conversation)

    asyncio.run(go())
    teller.tell("done")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@localhost"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_home(home: Path) -> Path:
    """A configuration that allows everything, and a repository."""
    home.mkdir()
    (home / "config.toml").write_text('[[rules]]\nverdict = "allow"\ntool = "*"\n')
    folder = config_of("sqlite:///x", home).tools_folder
    folder.mkdir(parents=True)
    for path, content in FILES.items():
        (folder / path).write_text(content)
    git(folder, "init", "-q")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@localhost")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Begin")
    return folder


def files_of(folder: Path) -> dict[str, str]:
    found = (
        path
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    )
    return {
        str(each.relative_to(folder)): each.read_text() for each in found
        if each.name != ".began" and "__pycache__" not in each.parts
    }  # fmt: skip


def end_of(folder: Path) -> tuple[dict[str, str], str, str]:
    """What there is when all is done: the files, what was committed, and that nothing is left over."""
    return (
        files_of(folder),
        git(folder, "log", "--format=%s %T"),
        git(folder, "status", "--porcelain"),
    )


@pytest.mark.timeout(300)  # more than fifty processes, one after the other
def test_ten_steps_killed_at_every_one_end_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    """And what the whole turn changed, through all its deaths, is put back as one."""
    assert shutil.which("git"), "this test needs git"
    calm, calm_url = make_home(tmp_path / "calm"), f"sqlite:///{tmp_path}/calm.db"
    name = new_conversation(calm_url)
    assert (
        Child(
            work, calm_url, str(tmp_path / "calm"), name, "Make it add.", -1, ""
        ).finish()
        == 0
    )
    wanted = end_of(calm)
    assert wanted[0].keys() == {
        "calc.py",
        "README",
        ".gitignore",
        "test_calc.py",
        "docs/CHANGES",
    }

    home, url = tmp_path / "killed", f"sqlite:///{tmp_path}/killed.db"
    folder = make_home(home)
    name, kills = new_conversation(url), Counter[str]()
    words = "Make it add."
    for n, step in enumerate(STEPS):
        phases = (
            [*PHASES[:3], "middle", *PHASES[3:]] if step.name == "shell" else PHASES
        )
        for phase in phases:
            victim = Child(work, url, str(home), name, words, n, phase)
            assert victim.finish() == -9, f"step {n} was over before {phase}"
            kills[phase] += 1
            words = ""
    assert Child(work, url, str(home), name, "", -1, "").finish() == 0
    assert kills == {**dict.fromkeys(PHASES, len(STEPS)), "middle": 3}
    assert end_of(folder) == wanted
    events = journal_of(url, name)
    ended = Counter(
        event.event.call for event in events if isinstance(event.event, ToolFinished)
    )
    assert set(ended.values()) == {1}, "a call ended twice"
    once = {
        event.event.call
        for event in events
        if isinstance(event.event, ToolStarted) and event.event.effect == "once"
    }
    begun = Counter(
        event.event.call for event in events if isinstance(event.event, ToolStarted)
    )
    assert all(begun[call] == 1 for call in once), (
        "what may be done once was begun twice"
    )
    rows = [
        row
        for row in rows_of(events).rows
        if row.kind in {"assistant", "files"} and row.text
    ]
    assert [row.text for row in rows[-2:]] == ["It adds now.", "Changed 5 files."]
    asyncio.run(put_back(url, home, name, folder))


async def put_back(url: str, home: Path, name: str, folder: Path) -> None:
    async with Runtime(
        config_of(url, home), models=[Worker([])], serves=False
    ) as runtime:
        (turn,) = await runtime.changes(name)
        what = {file.path: file.what for file in turn.files}
        assert what == {
            "README": "changed", "calc.py": "changed", "docs/CHANGES": "added", "old.txt": "removed",
            "test_calc.py": "added",
        }  # fmt: skip
        back = await runtime.put_back(name, turn.turn)
        assert (sorted(back.done), back.left) == (sorted(what), {})
        assert files_of(folder) == FILES
        assert (await asyncio.to_thread(verify, runtime.journal.journal)).problems == []
