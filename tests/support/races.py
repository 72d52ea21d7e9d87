"""Commands in the sandbox while another process exchanges the repository in their folder for a link, as fast as it can.

    python -m tests.support.races FOLDER UID RUNS     prints a `Report` as JSON

The process becomes that user. One child exchanges two names with `renameat2` until it is ended. Beside the folder stands a
repository with a secret, to which the links lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import encodings.idna  # noqa: F401  (imported before the process becomes a user that may not read the interpreter)
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tenax.errors import ToolFailed
from tenax.tools.shell import mounted
from tenax.tools.shell.sandbox import Sandbox
from tests.support.bubblewrap import ROOT

__all__ = ["SWAPS", "Report", "exchange", "race", "swapping", "swapping_here"]

_RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100
_SECRET: Final = "hunter2"
SWAPS: Final = {
    "the folder of the repository": ("repo", "link", "outside"),
    "the repository": ("repo/.git", "repo/link", "outside/.git"),
    "the repository, with a name elsewhere": ("repo/.git", "link", "outside/.git"),
    "the hooks": ("repo/.git/hooks", "repo/.git/link", "outside/.git/hooks"),
    "the settings": ("repo/.git/config", "repo/.git/link", "outside/.git/config"),
    "a folder on the way": ("way", "link", "outside"),
}
"""Two names in the folder, and where a link in place of the second one leads, beside the folder."""
_GIT: Final = (
    "repo/.git",
    "repo/link",
    "link",
    "link/.git",
    "way/repo/.git",
    "link/repo/.git",
)
_READ: Final = ("secret", "config", "link", "hooks/secret", "link/secret")
_WRITE: Final = ("hooks/evil", "link/evil", "config", "link")
_TRIES: Final = [
    *(f"read -r line < {git}/{name} && echo $line" for git in _GIT for name in _READ),
    *(f"echo evil >> {git}/{name}" for git in _GIT for name in _WRITE),
]
_COMMAND: Final = (
    f"{{ for i in 1 2 3 4 5 6; do {'; '.join(_TRIES)}; done; }} 2>/dev/null; echo ran"
)


class Report(msgspec.Struct):
    """What became of the runs."""

    ran: int = 0
    refused: int = 0
    escaped: list[str] = []
    lost: list[str] = []
    errors: list[str] = []


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Have a process exchange two names, in pauses of different length."""
    child = os.fork()
    if child == 0:
        chance = random.Random(os.getpid())
        parent = os.getppid()
        while os.getppid() == parent:
            with contextlib.suppress(OSError):
                exchange(one, other)
            time.sleep(chance.random() * 0.0005)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextlib.contextmanager
def swapping_here(one: Path, other: Path) -> Iterator[None]:
    """The same by a thread of this process."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(one, other)
            time.sleep(0.0001)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def race(folder: Path, user: int, runs: int) -> Report:
    """Run so many commands as this user. `folder` is made; what is beside it is for the links."""
    mounter = folder.parent / "mounted.py"  # our own may lie where only root may look
    shutil.copy(mounted.__file__, mounter)
    mounter.chmod(0o755)
    env = {**os.environ, "HOME": str(folder.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.races", folder, str(user), str(runs)],
        stdout=subprocess.PIPE, env=env, cwd=ROOT, check=True,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Report)


class _Repository:
    """A real repository, watched by descriptors, whatever its name is at the time."""

    def __init__(self, git: Path) -> None:
        for name in ("hooks", "objects", "refs"):
            (git / name).mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "config").write_text("[core]\n")
        self._hooks = os.open(git / "hooks", os.O_RDONLY)
        self._config = os.open(git / "config", os.O_RDWR)

    def lost(self) -> str:
        """Return what was written, and remove it."""
        planted = os.listdir(self._hooks)  # noqa: PTH208  (a descriptor)
        for name in planted:
            os.unlink(name, dir_fd=self._hooks)
        config = os.pread(self._config, 10_000, 0)
        os.ftruncate(self._config, len(b"[core]\n"))
        return " ".join([*planted, *(["config"] if config != b"[core]\n" else [])])


def _outside(place: Path) -> dict[str, str]:
    return {
        str(file): file.read_text() if file.is_file() else ""
        for file in sorted(place.rglob("*"))
    }


async def _work(folder: Path, runs: int) -> Report:
    report = Report()
    swaps = list(SWAPS.items())
    for number in range(runs):
        name, (one, other, leads_to) = swaps[number % len(swaps)]
        work, beside = folder / str(number), folder.parent / f"beside-{number}"
        repository = _Repository(
            work / ("way/repo/.git" if one == "way" else "repo/.git")
        )
        git = beside / ("outside/repo/.git" if one == "way" else "outside/.git")
        (git / "hooks").mkdir(parents=True)
        for secret in ("secret", "config", "hooks/secret", "HEAD"):
            (git / secret).write_text(_SECRET)
        (work / other).symlink_to(beside / leads_to)
        before = _outside(beside)
        # Half of the runs of each swap put the link in the place of the repository first.
        order = 1 if number // len(swaps) % 2 else -1
        with swapping(*((work / one, work / other)[::order])):
            try:
                running = await Sandbox().start(_COMMAND, work)
            except ToolFailed as error:
                report.refused += 1
                if (
                    "exchanged" not in str(error)
                    and "moves" not in str(error)
                    and "is a link" not in str(error)
                ):
                    report.errors.append(f"{name}: {error}")
                continue
            finish = asyncio.create_task(running.finish(60))
            output = (await running.output.read(-1)).decode()
            ending = await finish
            running.close()
            report.ran += 1
        if not output.endswith("ran\n"):
            report.errors.append(f"{name}: {ending} {output}")
        if _SECRET in output or _outside(beside) != before:
            report.escaped.append(name)
        if lost := repository.lost():
            report.lost.append(f"{name}: {lost}")
    return report


def _become(user: int, beside: Path) -> None:
    """Become this user, who needs an interpreter and a mounter to run."""
    if user != os.getuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    mounted.__file__ = str(beside / "mounted.py")
    if not os.access(sys.executable, os.X_OK):
        system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
        assert system is not None, (
            "There is no interpreter that an ordinary user may run."
        )
        sys.executable = system


if __name__ == "__main__":
    Sandbox().why_not()
    _become(int(sys.argv[2]), Path(sys.argv[1]).parent)
    done = asyncio.run(_work(Path(sys.argv[1]), int(sys.argv[3])))
    sys.stdout.buffer.write(msgspec.json.encode(done))
