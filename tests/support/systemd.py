"""What a service manager passes to `tenax serve`, without a service manager, and a real one for `make nightly`."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.needs import Missing
from tests.support.served import SECONDS, environment

__all__ = ["Activated", "program", "run_with_manager"]

# The socket as descriptor 3 and the own process id, as systemd passes them.
_START: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""

# A user manager of its own: in a cgroup of its own, and with a /run that nobody else sees.
_MANAGER: Final = """
script=$1
shift
for cgroup; do mkdir "$cgroup" && echo $$ > "$cgroup/cgroup.procs" || exit 3; done
mount --make-rslave / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/user/0 || exit 3
chmod 700 /run/user/0
export XDG_RUNTIME_DIR=/run/user/0
/lib/systemd/systemd --user --log-target=null >/dev/null 2>&1 &
manager=$!
for number in $(seq 100); do
    systemctl --user show --property=Version >/dev/null 2>&1 && break
    kill -0 $manager 2>/dev/null || exit 3
    sleep 0.1
done
systemctl --user show --property=Version >/dev/null 2>&1 || exit 3
sh -eu -c "$script"
code=$?
systemctl --user exit
wait $manager
exit $code
"""


def program(name: str) -> str:
    """The path of a program of systemd."""
    found = shutil.which(name)
    if found is None:
        raise Missing("systemd", f"{name} is not installed.")
    return found


def run_with_manager(script: str, home: Path) -> str:
    """Run a shell script under a real user manager of systemd. Return its output."""
    program("systemctl")
    if os.getuid() or shutil.which("unshare") is None:
        raise Missing("systemd", "Only root can start another user manager.")
    env = environment(home)
    del env["TENAX_HOME"]
    env["HOME"] = str(home)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        env.pop(name, None)
    cgroups = [root / f"tenax-test-{os.getpid()}" for root in _cgroup_roots()]
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _MANAGER, "sh", script, *cgroups],
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS * 4,
            check=False,
        )
    finally:
        for cgroup in cgroups:
            _remove(cgroup)
    if done.returncode == 3:
        raise Missing("systemd", "Its user manager does not start here.")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _cgroup_roots() -> list[Path]:
    """Where systemd looks for the cgroup of a process, in the old layout and in the new one."""
    top = Path("/sys/fs/cgroup")
    old = [top / name for name in ("systemd", "unified") if (top / name).is_dir()]
    return old or [top]


def _remove(cgroup: Path) -> None:
    """Kill whatever still runs in a cgroup that a test made, and remove the cgroup."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        until = time.monotonic() + SECONDS
        while pids := (Path(folder) / "cgroup.procs").read_text().split():
            assert time.monotonic() < until, pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        Path(folder).rmdir()


class Activated:
    """`tenax serve --no-link` with a listening socket that somebody else holds, and whoever it reports to."""

    def __init__(self, home: Path, *, notify: str = "", **env: str) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        address = notify or str(home / "notify")
        self._states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._states.settimeout(SECONDS)
        self._states.bind(address.replace("@", "\0", 1))
        self.env = {
            **environment(home),
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "tenax.socket",
            "NOTIFY_SOCKET": address,
            **env,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=SECONDS)
        self.listening.close()
        self._states.close()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.process = self.popen(self.listening)
        while not select.select([self._states], [], [], 0.5)[0]:
            assert self.process.poll() is None, self.process.communicate()
        state = self.next_state()
        assert state.startswith("READY=1\n"), state

    def popen(self, passed: socket.socket) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "tenax", "serve", "--no-link"]
        return subprocess.Popen(
            [sys.executable, "-ISc", _START, str(passed.fileno()), *command],
            env=self.env,
            pass_fds=[passed.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_state(self) -> str:
        return self._states.recv(4096).decode()

    def stop(self) -> tuple[int, str, str]:
        """Stop it as systemd does: the exit code, and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def server(self) -> int:
        """The process id of the server under the parent."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
