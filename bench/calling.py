"""What a call of a tool costs beside the bare command: through the gate into the sandbox, and as a step of a turn."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.lab import Lab
from bench.measure import Row, compare, seconds, stated
from tenax.assembly import Runtime
from tenax.config import load
from tenax.config.rules import Rule
from tenax.events import MessageAssistant, ToolFinished
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.tools.base import Call
from tenax.tools.gate import Allowed, Gate
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Shell
from tenax.tools.shell.sandbox import Sandbox

__all__ = ["tools"]

_COMMAND = "true"
_ALLOWED = '[[rules]]\nverdict = "allow"\ntool = "shell"\n'


def tools(lab: Lab) -> Iterator[Row]:
    """The shortest command there is: all that is measured beside it is ours, bubblewrap's and the kernel's."""
    if why := Sandbox().why_not():
        yield stated("tool-shell", "a command in the sandbox", "no sandbox", why)
        return
    rounds = lab.size(101, quick=3)
    with tempfile.TemporaryDirectory(dir=lab.cache) as made, asyncio.Runner() as runner:
        folder = Path(made) / "work"
        call = _shell(runner, folder)
        call()
        pair = compare(rounds, call, _bare)
        what = f"`{_COMMAND}` through the gate and in the sandbox, beside `bash -c {_COMMAND}`"
        said = f"{pair.said(seconds)}; so {seconds(pair.ours - pair.theirs)} a call"
        yield stated("tool-shell", what, f"{pair.ratio:.1f} x", said)
        step = runner.run(_step(Path(made), rounds))
        what = "SQLite: the same as a step of a turn, with what is stored before and after, per call"
        yield stated(
            "tool-step", what, seconds(step), f"the bare command {seconds(pair.theirs)}"
        )


def _shell(runner: asyncio.Runner, folder: Path) -> Callable[[], float]:
    gate = Gate([Shell(Sandbox(), Redact())])
    allowed = Rule("allow", "shell", "*")
    call = Call("local", "c_1", 1, "call", folder)

    def work() -> float:
        begun = time.perf_counter()
        permit = gate.weigh(
            "shell", f'{{"command":"{_COMMAND}"}}', call, allowed=[allowed]
        )
        assert isinstance(permit, Allowed)
        done = runner.run(gate.perform(permit, approved_arguments=None))
        assert done.outcome == "done", done.text
        return time.perf_counter() - begun

    return work


def _bare() -> float:
    begun = time.perf_counter()
    subprocess.run(
        ["/bin/bash", "-c", _COMMAND],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


async def _step(home: Path, count: int) -> float:
    """Seconds of each of so many calls of one answer: they are made one after the other."""
    (home / "config.toml").write_text(_ALLOWED)
    calls = [ScriptedCall("shell", {"command": _COMMAND}) for _ in range(count)]
    config = load({"TENAX_HOME": str(home)})
    async with Runtime(
        config, models=[ScriptedModel([Reply(calls=calls), "done"])]
    ) as runtime:
        name = await runtime.new()
        await runtime.finished(name, (await runtime.submit(name, "go")).seq)
        found = await runtime.journal.read(name, limit=10 * count + 100)
    asked = next(each.at for each in found if isinstance(each.event, MessageAssistant))
    done = [
        each.at
        for each in found
        if isinstance(each.event, ToolFinished) and each.event.outcome == "done"
    ]
    assert len(done) == count
    return (done[-1] - asked) / 1e6 / count
