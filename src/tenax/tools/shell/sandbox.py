"""Run commands in a bubblewrap sandbox: the system is read-only, a single folder is writable, the rest is isolated.

Guarantees: outside its folder, a command reaches only programs and their data. A command reaches only its own
processes, and the network only if the call requests the network. A command has no privileges, and no environment
variable of Tenax. When a command or Tenax ends, every process started by the command ends too.

Bubblewrap creates the namespaces. If Tenax runs as root, the user inside the sandbox has the user id of root outside.
This module closes the resulting gaps: `/proc` is read-only, the devices are separate nodes, and a system call filter
refuses keyrings, mounts, new namespaces, sockets not confined by a network namespace, and setuid or setgid files.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import platform
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tenax.concurrency import run_in_own_thread
from tenax.errors import ConfigError, ToolFailed
from tenax.tools.paths import open_folder, real_folder
from tenax.tools.shell.mounts import Protection
from tenax.tools.shell.repositories import FULL, refuse_where_full
from tenax.tools.shell.seccomp import build_filter, is_known_machine

__all__ = [
    "FILE_BYTES_MAX",
    "PROCESSES_MAX",
    "SYSTEM_FOLDERS",
    "SYSTEM_PATH",
    "Ending",
    "Running",
    "Sandbox",
    "find_bubblewrap",
    "memory_max",
    "spawn",
    "start_bare",
]

FILE_BYTES_MAX = 1024**3
"""The largest file of a command, and the size of the private /tmp."""
PROCESSES_MAX = 1000
"""The maximum number of processes and threads of a command."""
_START_SECONDS = 10.0
_END_SECONDS = 4.0
"""The time for a killed command to end. Shorter than the grace period of the gate."""
_LOOK_SECONDS = 0.1
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The folders with the programs of the system, and the only folders searched for bubblewrap and bash."""
_HOME = "/tmp/home"  # noqa: S108  (a place in the sandbox's own /tmp)
_PLAIN = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "TERM": "dumb"}

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""The folders with programs and their data. Every command sees them, read-only."""
_CLOSED = ("/proc", "/sys", "/dev", "/run", "/boot")
_ETC = (
    "alternatives", "crypto-policies", "fonts", "hosts", "java*", "ld.so.cache", "localtime", "mime.types",
    "nsswitch.conf", "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "protocols", "python3*", "services",
    "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
_UNREAD = (
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "sched_debug",
    "timer_list",
)
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9, "tty": 0}
_OWN_DEVICES = Path("/dev/tenax")
"""A folder on the file system of /dev, because device nodes may be forbidden on other file systems."""
_NOBODY = 65534
_PASSWD = f"root:x:0:0::/:/bin/sh\ntenax:x:1000:1000::{_HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
_GROUP = "root:x:0:\ntenax:x:1000:\nnogroup:x:65534:\n"

# The first process inside is a shell from the sandbox's file system, not bubblewrap: the program of bubblewrap is a
# file of the machine, and commands of root could reach that file through /proc. The shell also reaps orphans.
# The shell reports with an empty line that the sandbox is set up. The command begins after a line on standard input. So
# the command does not begin before Tenax can end it and has protected its repositories, nor after Tenax died.
_READY = b"\n"
_LIMITS = f"ulimit -c 0; ulimit -f {FILE_BYTES_MAX // 512}"
_INSIDE = (
    f"{{ {_LIMITS}; ulimit -d $1; ulimit -u {2 * PROCESSES_MAX} || ulimit -p {2 * PROCESSES_MAX}; }} 2>/dev/null; "
    'shift; echo; read -r _ || exit 125; "$@" </dev/null; exit $?'
)
# Without a sandbox, no namespace ends together with Tenax. Instead, a process of the command's process group waits for
# the end of Tenax and then kills the group.
_BARE = (
    f"{{ {_LIMITS}; }} 2>/dev/null; read -r _ || exit 125; exec 3<&0; "
    '{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 & exec "$@" </dev/null 3<&-'
)


class Ending(msgspec.Struct, frozen=True):
    """The end of a command: an exit code, or the reason why the command was ended."""

    code: int | None
    why: str
    seconds: float


class Running:
    """A running command.

    `init` is the first process of the PID namespace. Killing `init` ends the whole namespace. Without a sandbox, `init`
    is `None`, and the process group is killed instead.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        transports: list[asyncio.ReadTransport],
        init: int | None = None,
        status: asyncio.StreamReader | None = None,
        protection: Protection | None = None,
    ) -> None:
        self.output = output
        self._process = process
        self._transports = transports
        self._init = init
        self._status = status
        self._protection = protection
        self._pidfd = os.pidfd_open(init) if init is not None else None
        self._since = time.monotonic()
        self._planted = ""

    async def protect(self) -> None:
        """Wait until the sandbox is set up, check the folder, and protect the repositories. Raises `ToolFailed`."""
        try:
            line = await asyncio.wait_for(self.output.readline(), _START_SECONDS)
        except TimeoutError:
            line = b""
        if line != _READY:
            text = (line + await self.output.read(500)).decode(errors="replace").strip()
            raise ToolFailed(
                f"The sandbox could not be set up, so nothing was run. {text}"
            )
        await run_in_own_thread(self._mount)

    def _mount(self) -> None:
        """Check that bubblewrap, which mounts by path, mounted the searched folder. Then protect the repositories."""
        protection = self._protection
        pidfd = self._pidfd
        assert protection is not None
        assert self._init is not None
        assert pidfd is not None
        try:
            found = Path(f"/proc/{self._init}/root{protection.folder}").lstat()
        except OSError as error:
            raise ToolFailed(
                f"The sandbox could not be set up, so nothing was run: {error.strerror}."
            ) from error
        if not protection.is_folder(found):
            raise ToolFailed(
                f"Nothing was run: {protection.folder} was exchanged for another folder."
            )
        if protection.is_needed:
            protection.mount(self._init, pidfd)

    async def _protect_from_others(self) -> None:
        """Protect the existing repositories from the other commands running in the same folder."""
        for other in list(_at_work):
            if other is not self and other.shares_folder(self):
                # The command ended, or the system is out of resources. The next ending command tries again.
                with contextlib.suppress(ToolFailed, OSError):
                    await other.update()

    def shares_folder(self, other: Running) -> bool:
        """Return whether the folders of the two commands are equal or nested."""
        if self._protection is None or other._protection is None:
            return False
        mine = self._protection.folder
        its = other._protection.folder
        return mine.is_relative_to(its) or its.is_relative_to(mine)

    async def update(self) -> None:
        """Protect the repositories created since the start of the command. Raises `ToolFailed` or `OSError`."""
        protection = self._protection
        init = self._init
        if protection is None or init is None or self._pidfd is None:
            return
        # If the command ends meanwhile, the event loop closes `_pidfd`. So the thread gets and closes a duplicate.
        given = [os.dup(self._pidfd)]

        def update_protection() -> None:
            pidfd = given.pop()
            try:
                protection.update(init, pidfd)
            finally:
                os.close(pidfd)

        try:
            await run_in_own_thread(update_protection)
        finally:
            # The list still holds the duplicate if the thread did not start.
            with contextlib.suppress(IndexError):
                os.close(given.pop())

    async def finish(self, seconds: float | None = None) -> Ending:
        """Wait until the command ends, reaches the timeout, or exceeds a limit. Then end all of its processes."""
        code = None
        why = ""
        wait = asyncio.create_task(self._process.wait())
        watch = asyncio.create_task(self.watch())
        try:
            ended, _ = await asyncio.wait(
                {wait, watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if wait in ended:
                code = wait.result() if wait.result() >= 0 else 128 - wait.result()
            else:
                why = (
                    watch.result()
                    if watch in ended
                    else f"it took more than {seconds} seconds"
                )
        finally:
            watch.cancel()
            end = asyncio.ensure_future(self.end())
            try:
                await asyncio.shield(end)
            except asyncio.CancelledError:
                # The caller was cancelled. Finish the cleanup of forbidden files first.
                await asyncio.wait({end})
                raise
            wait.cancel()
        took = time.monotonic() - self._since
        if (
            code == 1
            and self._status is not None
            and b"exit-code" not in await self._status.read(4096)
        ):
            code, why = None, "the sandbox could not be set up"
        if self._planted:
            code, why = None, self._planted
        await self._protect_from_others()
        return Ending(code, why, took)

    async def end(self) -> None:
        """End the command and every process started by the command, and wait until they are gone.

        Then rename the forbidden files created by the command.
        """
        _at_work.discard(self)
        try:
            await self._end_all()
        finally:
            protection = self._protection
            if protection is not None and (planted := protection.planted()):
                self._planted = planted
                try:
                    left = await run_in_own_thread(protection.clear)
                except ToolFailed:
                    # The system has no room for a thread.
                    left = protection.clear()
                self._planted = left or planted

    async def _end_all(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            await self._end_namespace(pidfd)
        elif self._init is None:
            await self._end_group()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)

    def close(self) -> None:
        """Close the output, even if a process still has the write end open."""
        for transport in self._transports:
            transport.close()

    async def _end_namespace(self, pidfd: int) -> None:
        """Kill the first process of the namespace and wait for its end, which is the end of the whole namespace."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        loop.add_reader(pidfd, gone.set)
        try:
            await asyncio.wait_for(gone.wait(), _END_SECONDS)
        except TimeoutError:
            # A process waits for a disk, and ends when the disk answers.
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def _end_group(self) -> None:
        """Kill the process group. Its id is not reused while the background process of `_BARE` is in the group."""
        # Do so only once.
        self._init = 0
        with contextlib.suppress(ProcessLookupError):
            # Zombies may keep the group alive for longer, because their parent may reap them late.
            for _ in range(20):
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(0.005)

    async def watch(self) -> str:
        """Wait until the command exceeds a limit or creates a forbidden file, and return the reason.

        The limits of the system are not enough, because they do not apply to root.
        """
        while True:
            if self._pidfd is not None and (
                why := self._excess(Path(f"/proc/{self._init}/root/proc"))
            ):
                return why
            if self._protection is not None and (why := self._protection.planted()):
                return why
            await asyncio.sleep(_LOOK_SECONDS)

    def _excess(self, proc: Path) -> str:
        with contextlib.suppress(OSError):
            # The process has not entered the sandbox yet.
            if proc.stat().st_dev == Path("/proc").stat().st_dev:
                return ""
        found: list[Path] = []
        # The command may just have ended.
        with contextlib.suppress(OSError):
            found = [entry for entry in proc.iterdir() if entry.name.isdigit()]
        tasks = pages = 0
        for entry in found if len(found) <= PROCESSES_MAX else ():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                tasks += int(fields[17])
                pages += int(fields[21])
        if max(tasks, len(found)) > PROCESSES_MAX:
            return f"it had more than {PROCESSES_MAX:,} processes"
        if pages * os.sysconf("SC_PAGE_SIZE") > memory_max():
            return f"it took more than {memory_max() >> 20:,} MB of memory"
        return ""


_at_work: set[Running] = set()
"""The commands of this process in a sandbox."""


class Sandbox:
    """The sandbox for commands. A command can do no harm outside its folder, and cannot see the paths in `hidden`.

    Hidden paths in system folders are covered by an empty mount. A working folder containing a hidden path is refused,
    because a command could move the cover there.
    """

    def __init__(self, hidden: Iterable[Path] = ()) -> None:
        self._hidden = tuple(path.resolve() for path in hidden)

    def why_not(self) -> str:
        """Return why the sandbox does not work here, or an empty text. A process tests the sandbox once."""
        return _why_not(find_bubblewrap())

    async def start(
        self, command: str, folder: Path, *, network: bool = False
    ) -> Running:
        """Start a command line in the folder. Raises `ToolFailed`."""
        if why := self.why_not():
            raise ToolFailed(why)
        protection = await run_in_own_thread(lambda: self._protection_of(folder))
        # If the caller is cancelled meanwhile, the command is ended below.
        begin = asyncio.ensure_future(
            self._start_sandboxed(command, protection, network=network)
        )
        try:
            return await asyncio.shield(begin)
        except asyncio.CancelledError:
            with contextlib.suppress(ToolFailed):
                running = await begin
                await running.end()
                running.close()
            raise

    def _protection_of(self, folder: Path) -> Protection:
        """Search the folder for repositories, and check that no link replaced the folder or a parent folder."""
        folder = self._checked(folder)
        try:
            root = open_folder(folder, make=True)
        except OSError as error:
            raise ToolFailed(
                f"The conversation's folder cannot be used: {error.strerror}."
            ) from error
        try:
            protection = Protection(folder)
            if not protection.is_folder(os.fstat(root)):
                raise ToolFailed(
                    f"Nothing was run: {folder} was exchanged for another folder."
                )
        finally:
            os.close(root)
        return protection

    def _checked(self, folder: Path) -> Path:
        """Return the folder with links resolved. Raises `ToolFailed` if a command must not see or write all of it."""
        folder = real_folder(folder)
        shared = ("/etc", "/tmp", "/var/tmp")  # noqa: S108  (they are kept out)
        own = [Path(path) for path in (*SYSTEM_FOLDERS, *_CLOSED, *shared)]
        programs = [Path(entry) for entry in SYSTEM_PATH.split(":")]
        kept = [*own, *programs, *_homes(), *self._hidden]
        if _holds(folder, kept):
            raise ToolFailed(
                f"No command is run in {folder}: it holds more than a command may touch, such as keys or Tenax's own data.",
                hint="use a folder inside it",
            )
        if _holds(folder, _own_program()) or _is_imported(folder):
            raise ToolFailed(
                f"No command is run in {folder}: Tenax's own program is in it, and a command could change what it runs.",
                hint="set tools.folder to another folder, and restart Tenax",
            )
        if any(folder.is_relative_to(closed) for closed in _CLOSED):
            raise ToolFailed(
                f"No command is run in {folder}: it is a part of the system."
            )
        return folder

    async def _start_sandboxed(
        self, command: str, protection: Protection, *, network: bool
    ) -> Running:
        limits = ["/bin/sh", "-c", _INSIDE, "sh", str(memory_max() // 1024)]
        try:
            with _given() as given, contextlib.ExitStack() as undo:
                read, write = os.pipe()
                try:
                    status, transport = await _reader(read)
                    undo.callback(transport.close)
                    wrap = [str(find_bubblewrap()), "--json-status-fd", str(write)]
                    wrap += _arguments(
                        given, protection.folder, self._hidden, network=network
                    )
                    process, output, shown = await spawn(
                        [*wrap, *limits, *_shell(command)],
                        {**_PLAIN, "HOME": _HOME},
                        Path("/"),
                        (*given, write),
                    )
                    undo.pop_all()
                finally:
                    os.close(write)
        except OSError as error:
            raise ToolFailed(
                f"The sandbox could not be started: {error.strerror}."
            ) from error
        try:
            line = await asyncio.wait_for(status.readline(), _START_SECONDS)
            init = msgspec.json.decode(line)["child-pid"]
            running = Running(
                process, output, [shown, transport], init, status, protection
            )
        except (
            OSError,
            msgspec.DecodeError,
        ) as error:
            # `OSError` includes a timeout and a process that has already ended.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            said = (await output.read(500)).decode(errors="replace").strip()
            shown.close()
            transport.close()
            raise ToolFailed(
                f"The sandbox could not be set up, so nothing was run. {said}"
            ) from error
        try:
            await running.protect()
        except BaseException:
            await running.end()
            running.close()
            raise
        _go(process)
        _at_work.add(running)
        return running


def _holds(folder: Path, paths: Iterable[Path]) -> bool:
    """Return whether the folder equals or contains one of the paths. `Path.is_relative_to` takes 10 times as long."""
    start = str(folder).rstrip("/") + "/"
    return any(f"{path}/".startswith(start) for path in paths)


def _own_program() -> frozenset[Path]:
    """Return the sources of the code of this process: Python, the virtual environment, Tenax, and the import path."""
    return _with_and_without_links(
        sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), *sys.path
    )


@functools.cache
def _with_and_without_links(*paths: str) -> frozenset[Path]:
    """Return the paths as given and with links resolved, because a command could replace a link."""
    found = [Path(path) for path in paths]
    return frozenset(
        [path.absolute() for path in found] + [path.resolve() for path in found]
    )


def _is_imported(folder: Path) -> bool:
    """Return whether Python could import the folder as a loaded package, such as ~/tenax with ~ in the import path."""
    return folder.name in sys.modules and folder.parent in _own_program()


def _homes() -> Iterator[Path]:
    """Return the home folders, where people keep their keys. The variable HOME alone is not trusted."""
    yield Path.home().resolve()
    # The user id may have no entry in the user database.
    with contextlib.suppress(KeyError):
        yield Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
    try:
        yield from Path("/home").iterdir()
    except OSError as error:
        refuse_where_full(error)


async def start_bare(command: str, folder: Path) -> Running:
    """Start a command line without a sandbox, with every right of the person. Raises `ToolFailed`."""
    env = {**_PLAIN, "HOME": str(Path.home())}
    try:
        await run_in_own_thread(lambda: os.close(open_folder(folder, make=True)))
        process, output, shown = await spawn(
            ["/bin/sh", "-c", _BARE, "sh", *_shell(command)],
            env,
            real_folder(folder),
            (),
            own_group=True,
        )
    except OSError as error:
        raise ToolFailed(f"The command cannot be begun: {error.strerror}.") from error
    _go(process, keep_open=True)
    return Running(process, output, [shown])


def find_bubblewrap() -> str | None:
    """Find bubblewrap in the system folders only, because PATH may name a folder writable by commands."""
    return shutil.which("bwrap", path=SYSTEM_PATH)


@functools.cache
def _why_not(bwrap: str | None) -> str:
    if bwrap is None:
        return "There is no sandbox: bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap)."
    if not is_known_machine():
        return f"There is no sandbox: no filter of system calls is known for {platform.machine()}."
    try:
        with _given() as given:
            tried = subprocess.run(  # noqa: S603  (it is the sandbox)
                [bwrap, *_arguments(given), "true"],
                env=_PLAIN, pass_fds=given, capture_output=True, timeout=_START_SECONDS, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        # Raise instead of returning, because a return value would be cached.
        if isinstance(error, OSError) and error.errno in FULL:
            raise ConfigError(
                f"It cannot be said now whether commands have a sandbox: {error.strerror}.",
                hint="Try again.",
            ) from error
        return (
            f"There is no sandbox: bubblewrap cannot be run ({type(error).__name__})."
        )
    said = tried.stderr.decode(errors="replace").strip()[:300]
    if tried.returncode == 0:
        return ""
    if "namespace" in said or "uid map" in said:
        return (
            f"There is no sandbox: this system forbids user namespaces. It said: {said}"
        )
    return f"There is no sandbox: bubblewrap does not work here. It said: {said}"


def _go(process: asyncio.subprocess.Process, *, keep_open: bool = False) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    if not keep_open:
        process.stdin.close()


async def spawn(
    command: list[str],
    env: dict[str, str],
    folder: Path,
    fds: tuple[int, ...],
    *,
    own_group: bool = False,
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.ReadTransport]:
    """Start a process from the thread of the event loop: `--die-with-parent` ends the process with that thread.

    The pipe of the output does not belong to the process object, so waiting for the process does not wait for other
    holders of the pipe.
    """
    read, write = os.pipe()
    output, transport = await _reader(read)
    _keep_to_ourselves()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=write, stderr=write, env=env, cwd=folder, pass_fds=fds,
            start_new_session=own_group,
        )  # fmt: skip
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(write)
    return process, output, transport


def _keep_to_ourselves() -> None:
    """Keep inherited descriptors of this process from commands, because uvloop does not close them in a child."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names, not paths)
            if int(name) > 2:  # noqa: PLR2004  (the standard ones)
                with contextlib.suppress(OSError):
                    os.set_inheritable(int(name), False)


async def _reader(
    descriptor: int,
) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


@contextlib.contextmanager
def _given() -> Iterator[tuple[int, ...]]:
    """Yield the descriptors passed to a sandbox. A descriptor can be read only once."""
    with contextlib.ExitStack() as undo:
        ends = []
        for content in (build_filter(), _PASSWD.encode(), _GROUP.encode()):
            read, write = os.pipe()
            undo.callback(os.close, read)
            # The write does not block, because the buffer of a pipe is much larger.
            os.write(write, content)
            os.close(write)
            ends.append(read)
        yield tuple(ends)


def _shell(command: str) -> list[str]:
    """Return the shell call for a command line. A leading dash of the command line is not read as an option."""
    return [shutil.which("bash", path=SYSTEM_PATH) or "/bin/sh", "-c", "--", command]


def _arguments(
    given: tuple[int, ...],
    folder: Path | None = None,
    hidden: Iterable[Path] = (),
    *,
    network: bool = False,
) -> list[str]:
    calls, passwd, group = map(str, given)
    wrap = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *([] if network else ["--unshare-net"]),
        *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--seccomp", calls, *_system(SYSTEM_FOLDERS), "--file", passwd, "/etc/passwd", "--file", group, "/etc/group"),
        *("--proc", "/proc"),
    ]  # fmt: skip
    for path in hidden:
        # In a system folder, no command can move the cover.
        if any(path.is_relative_to(name) for name in SYSTEM_FOLDERS) and path.exists():
            wrap += ["--tmpfs", str(path if path.is_dir() else path.parent)]
    for name in _UNREAD:
        if Path("/proc", name).exists():
            wrap += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    wrap += [
        "--remount-ro",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(FILE_BYTES_MAX),
        "--tmpfs",
        "/dev/shm",  # noqa: S108
    ]
    wrap += _devices()
    wrap += [
        "--remount-ro",
        "/dev",
        "--size",
        str(FILE_BYTES_MAX),
        "--tmpfs",
        "/tmp",  # noqa: S108
        "--dir",
        _HOME,
    ]
    if network:
        wrap += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    if folder is not None:
        wrap += ["--bind", str(folder), str(folder), "--chdir", str(folder)]
    return [*wrap, "--remount-ro", "/", "--"]


@functools.cache
def _system(folders: tuple[str, ...]) -> list[str]:
    """Return the mounts of programs and of their files in /etc, without keys and passwords.

    If Tenax runs as root, commands could read the keys and passwords of root there.
    """
    found: list[str] = []
    for name in folders:
        if Path(name).is_symlink():
            found += ("--symlink", str(Path(name).readlink()), name)
        elif Path(name).exists():
            found += ("--ro-bind", name, name)
    for pattern in _ETC:
        for file in Path("/etc").glob(pattern):
            found += ("--ro-bind-try", str(file), str(file))
    return found


def _devices() -> Iterator[str]:
    """Create devices for the commands of root and return the mounts. Their owner is the user `nobody`.

    The owner of a device could lock every user out of the device with `chmod`.
    """
    if Path("/dev/null").stat().st_uid != os.geteuid():
        return
    _OWN_DEVICES.mkdir(mode=0o700, exist_ok=True)
    for name, minor in _DEVICES.items():
        device = _OWN_DEVICES / name
        with contextlib.suppress(FileExistsError):
            os.mknod(device, stat.S_IFCHR, os.makedev(1 if minor else 5, minor))
        # Commands run as the user of Tenax. If that user owned the device, a command could close it to everyone else.
        os.chown(device, _NOBODY, _NOBODY)
        device.chmod(0o666)
        yield from ("--dev-bind", str(device), f"/dev/{name}")


def memory_max() -> int:
    """Return the memory limit of a command in bytes: half of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
