"""A real bubblewrap, and commands tried in the sandbox as ourselves or, where we are root, as an ordinary user too.

    python -m tests.support.bubblewrap FOLDER UID [HIDDEN...]     commands on stdin as JSON, results on stdout as JSON

Everything is imported before the process becomes that user: our interpreter may lie where only root may look. It has a
terminal, as a Tenax that a person started has.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  (see above)
import fcntl
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tenax.config.rules import Rule
from tenax.tools.base import Call
from tenax.tools.gate import Allowed, Done, Gate
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Shell
from tenax.tools.shell.sandbox import Sandbox, _bwrap

__all__ = ["ORDINARY", "ROOT", "find_bwrap", "inside", "try_all", "use"]

ROOT: Final = Path(__file__).parents[2]
ORDINARY: Final = 54_321
"""A user without a name: enough to be nobody in particular."""
MISSING: Final = "There is no bubblewrap here: install it (on Debian and Ubuntu: apt install bubblewrap)."
SECONDS: Final = 100.0


def find_bwrap() -> str:
    """The path of bubblewrap. Root fetches it where there is none."""
    with (Path(tempfile.gettempdir()) / f"tenax-bwrap-{os.getuid()}.lock").open(
        "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _bwrap() or _from_apt()
    if found is None:
        raise AssertionError(MISSING)
    if why := Sandbox().why_not():  # such as a system that forbids user namespaces
        raise AssertionError(f"The tests of the shell cannot be run. {why}")
    return found


def _from_apt() -> str | None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        return None
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "bubblewrap"]):
        subprocess.run(["apt-get", "-qq", *step], check=False, env=env)
    return _bwrap()


def inside(folder: Path) -> list[str]:
    """Programs at work in this folder."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdigit() and (each / "cwd").readlink() == folder:
                found.append((each / "comm").read_text().strip())
    return found


async def use(
    shell: Shell, folder: Path, conversation: str = "c_1", **arguments: object
) -> Done:
    """A call as the loop makes it: through the gate, allowed."""
    gate = Gate([shell])
    call = Call("local", conversation, 3, "call", folder)
    weighed = gate.weigh(
        "shell",
        msgspec.json.encode(arguments).decode(),
        call,
        allowed=[Rule("allow", "shell")],
    )
    if not isinstance(weighed, Allowed):
        return (
            weighed
            if isinstance(weighed, Done)
            else Done("failed", "a person was asked")
        )
    return await gate.perform(weighed, approved_arguments=None)


def try_all(
    folder: Path, user: int, commands: list[str], hidden: list[Path] | None = None
) -> list[Done]:
    """What became of each of these commands, run by a Tenax of this user."""
    env = {
        **os.environ,
        "HOME": str(folder.parent),
        "TENAX_SECRET": "hunter2",
        "SOME_API_KEY": "hunter2",
    }
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.bubblewrap", folder, str(user), *(hidden or [])],
        input=msgspec.json.encode(commands), stdout=subprocess.PIPE, env=env, cwd=ROOT, check=True, timeout=SECONDS,
    )  # fmt: skip
    return msgspec.json.decode(told.stdout, type=list[Done])


async def _work(folder: Path, hidden: list[Path], commands: list[str]) -> list[Done]:
    sandbox = Sandbox(hidden)
    assert not sandbox.why_not(), sandbox.why_not()
    shell = Shell(sandbox, Redact())
    return [await use(shell, folder, command=each, seconds=20) for each in commands]


if __name__ == "__main__":
    where, number, *others = sys.argv[1:]
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    if int(number) != os.getuid():
        os.setgroups([])
        os.setgid(int(number))
        os.setuid(int(number))
    os.setsid()
    # the first one that it opens is its own
    terminal = os.open(os.ttyname(pty.openpty()[1]), os.O_RDWR)
    done = asyncio.run(_work(Path(where), [Path(each) for each in others], asked))
    sys.stdout.buffer.write(msgspec.json.encode(done))
