"""Commands in a sandbox of bubblewrap: they see the system read-only, may write in one folder, and are alone otherwise.

What stays true: a command reaches no file outside its folder but the programs and their data, no process but its own, and
no network unless the call said so; it holds no privilege and no word of our environment; when it ends, or we do, all that
it started ends with it. Bubblewrap gives the namespaces. What it leaves open where Tenax runs as root (the user inside is
root's own number outside) is closed here: `/proc` is read-only, devices are our own, and a filter of system calls refuses
keyrings, mounts, new namespaces, sockets that no network namespace holds, and files that would run as their owner.
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
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tenax.errors import ConfigError, ToolFailed
from tenax.tools.base import aside
from tenax.tools.paths import open_folder, real_folder
from tenax.tools.shell.mounts import Protection
from tenax.tools.shell.repositories import FULL, refuse_where_full

__all__ = [
    "FILE_BYTES_MAX",
    "PROCESSES_MAX",
    "Ending",
    "Running",
    "Sandbox",
    "start_bare",
]

FILE_BYTES_MAX = 1024**3
"""The largest file a command may write, and the size of its own /tmp."""
PROCESSES_MAX = 1000
"""Processes and threads of one command."""
_START_SECONDS = 10.0
_END_SECONDS = 4.0
"""Shorter than the grace that the gate gives a call."""
_LOOK_SECONDS = 0.1
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOME = "/tmp/home"  # noqa: S108  (a place in the sandbox's own /tmp)
_PLAIN = {"PATH": _PATH, "LANG": "C.UTF-8", "TERM": "dumb"}

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
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
"""On the same file system as the others: elsewhere devices may be forbidden."""
_NOBODY = 65534
_PASSWD = f"root:x:0:0::/:/bin/sh\ntenax:x:1000:1000::{_HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
_GROUP = "root:x:0:\ntenax:x:1000:\nnogroup:x:65534:\n"

# The first process inside is a shell of the sandbox's own file system, not bubblewrap: that one's program is a file of the
# machine, which root's commands could reach through /proc. It also takes in what others leave behind.
# It says with an empty line that the sandbox is set up. The command begins when a line comes on standard input: not before
# we hold the way to end it and its repositories are protected, and not if we died.
_READY = b"\n"
_LIMITS = f"ulimit -c 0; ulimit -f {FILE_BYTES_MAX // 512}"
_INSIDE = (
    f"{{ {_LIMITS}; ulimit -d $1; ulimit -u {2 * PROCESSES_MAX} || ulimit -p {2 * PROCESSES_MAX}; }} 2>/dev/null; "
    'shift; echo; read -r _ || exit 125; "$@" </dev/null; exit $?'
)
# Where there is no namespace that ends with us, a process of the same group waits for our end and ends the group.
_BARE = (
    f"{{ {_LIMITS}; }} 2>/dev/null; read -r _ || exit 125; exec 3<&0; "
    '{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 & exec "$@" </dev/null 3<&-'
)

_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# io_uring, and the newer calls for mounts: the same numbers everywhere
_NEWER = [*range(425, 434), 442, 467]
_NO_CALL = 0xFFFF
# On x86_64, on aarch64: keyrings, mounts, namespaces, the log of the kernel, bpf, perf, userfaultfd.
_REFUSED = (
    (248, 217), (249, 218), (250, 219), (165, 40), (166, 39), (155, 41), (272, 97), (308, 268), (103, 116),
    (321, 280), (298, 241), (323, 282),
)  # fmt: skip
# clone3, openat2: their arguments cannot be seen; programs go back to the older ones
_MISSING = (435, 437)
_SOCKET = (41, 198)
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink: those that the namespace holds
_OWNERS = 0o6000
_CREATES = 0x400040
# A call is refused where each of these arguments has one of these bits: clone for namespaces; chmod, fchmod, fchmodat,
# fchmodat2, creat, open, openat, mknod, mknodat for files that run as their owner.
_BITS = (
    ((56, 220), ((0, 0x7E020000),)), ((90, _NO_CALL), ((1, _OWNERS),)), ((91, 52), ((1, _OWNERS),)),
    ((268, 53), ((2, _OWNERS),)), ((452, 452), ((2, _OWNERS),)), ((85, _NO_CALL), ((1, _OWNERS),)),
    ((2, _NO_CALL), ((1, _CREATES), (2, _OWNERS))), ((257, 56), ((2, _CREATES), (3, _OWNERS))),
    ((133, _NO_CALL), ((1, _OWNERS),)), ((259, 33), ((2, _OWNERS),)),
)  # fmt: skip


class Ending(msgspec.Struct, frozen=True):
    """How a command ended: with an exit code, or because of something it did."""

    code: int | None
    why: str
    seconds: float


class Running:
    """A command at work, and the way to end all of it: its namespace by `init`, or else its group."""

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
        self._process, self._transports, self._init, self._status = (
            process,
            transports,
            init,
            status,
        )
        self._protection = protection
        self._pidfd = os.pidfd_open(init) if init is not None else None
        self._since = time.monotonic()
        self._planted = ""

    async def protect(self) -> None:
        """Wait until the sandbox is set up, check its folder, and protect the repositories there. Raises ToolFailed."""
        try:
            line = await asyncio.wait_for(self.output.readline(), _START_SECONDS)
        except TimeoutError:
            line = b""
        if line != _READY:
            text = (line + await self.output.read(500)).decode(errors="replace").strip()
            raise ToolFailed(
                f"The sandbox could not be set up, so nothing was run. {text}"
            )
        await aside(lambda _deserted: self._mount())

    def _mount(self) -> None:
        """Bubblewrap mounts the folder by its path: check that it is the one that was looked through."""
        protection, pidfd = self._protection, self._pidfd
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
        """Protect the repositories that are there now from the other commands that run in this folder."""
        for other in list(_at_work):
            if other is not self and other.shares_folder(self):
                # It has ended, or there is no room: it is tried again at the next end.
                with contextlib.suppress(ToolFailed, OSError):
                    await other.update()

    def shares_folder(self, other: Running) -> bool:
        """Return whether one of the two folders holds the other."""
        if self._protection is None or other._protection is None:
            return False
        mine, its = self._protection.folder, other._protection.folder
        return mine.is_relative_to(its) or its.is_relative_to(mine)

    async def update(self) -> None:
        """Protect repositories that came to be since this command began. Raises ToolFailed or OSError."""
        protection, init = self._protection, self._init
        if protection is None or init is None or self._pidfd is None:
            return
        # The command may end meanwhile, and the loop then closes its own descriptor. The thread closes this one.
        given = [os.dup(self._pidfd)]

        def work(_deserted: threading.Event) -> None:
            pidfd = given.pop()
            try:
                protection.update(init, pidfd)
            finally:
                os.close(pidfd)

        try:
            await aside(work)
        finally:
            with contextlib.suppress(IndexError):  # the thread did not begin
                os.close(given.pop())

    async def finish(self, seconds: float | None = None) -> Ending:
        """Wait until it ends, has taken this long or too much of the machine. Then nothing of it is left."""
        code, why = None, ""
        wait, watch = (
            asyncio.create_task(self._process.wait()),
            asyncio.create_task(self._watch()),
        )
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
            except (
                asyncio.CancelledError
            ):  # given up just now: what it may not leave behind is removed first
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
        """End it and all that it started, and wait until they are gone."""
        _at_work.discard(self)
        try:
            await self._end_all()
        finally:
            protection = self._protection
            if protection is not None and (planted := protection.planted()):
                self._planted = planted
                try:
                    left = await aside(lambda _deserted: protection.clear())
                except ToolFailed:  # there is no room for a thread
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
        """Let go of the output, whoever still holds its other end."""
        for each in self._transports:
            each.close()

    async def _end_namespace(self, pidfd: int) -> None:
        """The first process of a namespace ends after all others have."""
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        loop.add_reader(pidfd, gone.set)
        try:
            await asyncio.wait_for(gone.wait(), _END_SECONDS)
        except (
            TimeoutError
        ):  # a process that waits for a disk; it ends when the disk answers
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def _end_group(self) -> None:
        """The group is there, and its number nobody else's, as long as the process in it waits for our end."""
        self._init = 0  # once
        with contextlib.suppress(ProcessLookupError):
            # it may be there longer, without life: who should look after it does not hurry
            for _ in range(20):
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.sleep(0.005)

    async def _watch(self) -> str:
        """The sentence once it takes too much. Limits of the system alone do not hold root."""
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
            # it is still on its way into the sandbox
            if proc.stat().st_dev == Path("/proc").stat().st_dev:
                return ""
        found: list[Path] = []
        with contextlib.suppress(OSError):  # it has just ended
            found = [each for each in proc.iterdir() if each.name.isdigit()]
        tasks = pages = 0
        for each in found if len(found) <= PROCESSES_MAX else ():
            with contextlib.suppress(OSError):
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                tasks, pages = tasks + int(fields[17]), pages + int(fields[21])
        if max(tasks, len(found)) > PROCESSES_MAX:
            return f"it had more than {PROCESSES_MAX:,} processes"
        if pages * os.sysconf("SC_PAGE_SIZE") > _memory_max():
            return f"it took more than {_memory_max() >> 20:,} MB of memory"
        return ""


_at_work: set[Running] = set()
"""Commands of this process that run in a sandbox."""


class Sandbox:
    """Starts commands that can do no harm outside one folder. `hidden` is what no command may see.

    In the system it is covered. A folder that holds some of it is refused: a command could move what covers it.
    """

    def __init__(self, hidden: Iterable[Path] = ()) -> None:
        self._hidden = tuple(each.resolve() for each in hidden)

    def why_not(self) -> str:
        """Why there is no sandbox here, in a sentence. Empty where there is one. It is tried once in a process."""
        return _why_not(_bwrap())

    async def start(
        self, command: str, folder: Path, *, network: bool = False
    ) -> Running:
        """Begin this command line in the folder. Raises ToolFailed."""
        if why := self.why_not():
            raise ToolFailed(why)
        protection = await aside(lambda _deserted: self._protection_of(folder))
        # A caller that goes away meanwhile leaves nothing behind.
        begin = asyncio.ensure_future(self._begin(command, protection, network=network))
        try:
            return await asyncio.shield(begin)
        except asyncio.CancelledError:
            with contextlib.suppress(ToolFailed):
                running = await begin
                await running.end()
                running.close()
            raise

    def _protection_of(self, folder: Path) -> Protection:
        """Look through the folder, and check that no link was put on the way to it."""
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
        """The folder, without links on the way to it. Refuses one that holds what a command must not see."""
        folder = real_folder(folder)
        own = [Path(each) for each in (*_SYSTEM, *_CLOSED, "/etc", "/tmp", "/var/tmp")]  # noqa: S108  (they are kept out)
        programs = [Path(entry) for entry in _PATH.split(":")]
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
        if any(folder.is_relative_to(each) for each in _CLOSED):
            raise ToolFailed(
                f"No command is run in {folder}: it is a part of the system."
            )
        return folder

    async def _begin(
        self, command: str, protection: Protection, *, network: bool
    ) -> Running:
        limits = ["/bin/sh", "-c", _INSIDE, "sh", str(_memory_max() // 1024)]
        try:
            with _given() as given, contextlib.ExitStack() as undo:
                read, write = os.pipe()
                try:
                    status, transport = await _reader(read)
                    undo.callback(transport.close)
                    wrap = [str(_bwrap()), "--json-status-fd", str(write)]
                    wrap += _arguments(
                        given, protection.folder, self._hidden, network=network
                    )
                    process, output, shown = await _spawn(
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
        ) as error:  # also that it took too long, or is gone
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
    """Return whether one of these paths is the folder or lies in it. `Path.is_relative_to` takes 10 times as long."""
    start = str(folder).rstrip("/") + "/"
    return any(f"{path}/".startswith(start) for path in paths)


def _own_program() -> frozenset[Path]:
    """Where the code of this process comes from: Python, its environment, our package, and all that may be imported."""
    return _with_and_without_links(
        sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), *sys.path
    )


@functools.cache
def _with_and_without_links(*places: str) -> frozenset[Path]:
    """Return these paths, and where they lead: a link in a folder could be replaced."""
    paths = [Path(place) for place in places]
    return frozenset(
        [path.absolute() for path in paths] + [path.resolve() for path in paths]
    )


def _is_imported(folder: Path) -> bool:
    """Return whether Python could take the folder itself for a package of ours, such as ~/tenax where ~ is imported from."""
    return folder.name in sys.modules and folder.parent in _own_program()


def _homes() -> Iterator[Path]:
    """Where people have their keys, whatever our environment says."""
    yield Path.home().resolve()
    with contextlib.suppress(KeyError):  # a number without a name
        yield Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
    try:
        yield from Path("/home").iterdir()
    except OSError as error:
        refuse_where_full(error)


async def start_bare(command: str, folder: Path) -> Running:
    """Begin this command line without a sandbox: with all that the person may do."""
    env = {**_PLAIN, "HOME": str(Path.home())}
    try:
        await aside(lambda _deserted: os.close(open_folder(folder, make=True)))
        process, output, shown = await _spawn(
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


def _bwrap() -> str | None:
    """Find bubblewrap in the system: PATH may name a folder in which commands write."""
    return shutil.which("bwrap", path=_PATH)


@functools.cache
def _why_not(bwrap: str | None) -> str:
    if bwrap is None:
        return "There is no sandbox: bubblewrap is not installed (Debian, Ubuntu: apt install bubblewrap)."
    if platform.machine() not in _ARCHES:
        return f"There is no sandbox: no filter of system calls is known for {platform.machine()}."
    try:
        with _given() as given:
            tried = subprocess.run(  # noqa: S603  (it is the sandbox)
                [bwrap, *_arguments(given), "true"],
                env=_PLAIN, pass_fds=given, capture_output=True, timeout=_START_SECONDS, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        # raised, so that it is not remembered
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


async def _spawn(
    command: list[str],
    env: dict[str, str],
    folder: Path,
    fds: tuple[int, ...],
    *,
    own_group: bool = False,
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.ReadTransport]:
    """Start it from the loop's own thread: what dies with its parent dies with that thread."""
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
    """No command gets a descriptor that this process was started with: uvloop closes none of them for a child."""
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
    """Descriptors of what is given to a sandbox, each to be read once."""
    with contextlib.ExitStack() as undo:
        ends = []
        for each in (_filter(), _PASSWD.encode(), _GROUP.encode()):
            read, write = os.pipe()
            undo.callback(os.close, read)
            os.write(write, each)  # a pipe holds far more
            os.close(write)
            ends.append(read)
        yield tuple(ends)


def _shell(command: str) -> list[str]:
    """The command line is one argument, and what it begins with is not taken for an option."""
    return [shutil.which("bash", path=_PATH) or "/bin/sh", "-c", "--", command]


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
        *("--seccomp", calls, *_system(), "--file", passwd, "/etc/passwd", "--file", group, "/etc/group"),
        *("--proc", "/proc"),
    ]  # fmt: skip
    for each in hidden:
        # in the system no command can move what covers it
        if any(each.is_relative_to(name) for name in _SYSTEM) and each.exists():
            wrap += ["--tmpfs", str(each if each.is_dir() else each.parent)]
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
def _system() -> list[str]:
    """Programs and what they need of /etc. No keys and no passwords: root's own would be readable."""
    found: list[str] = []
    for name in _SYSTEM:
        if Path(name).is_symlink():
            found += ("--symlink", str(Path(name).readlink()), name)
        elif Path(name).exists():
            found += ("--ro-bind", name, name)
    for name in (str(each) for pattern in _ETC for each in Path("/etc").glob(pattern)):
        found += ("--ro-bind-try", name, name)
    return found


def _devices() -> Iterator[str]:
    """Devices for root's commands, owned by nobody: the owner of a device could take it from all others by `chmod`."""
    if Path("/dev/null").stat().st_uid != os.geteuid():
        return
    _OWN_DEVICES.mkdir(mode=0o700, exist_ok=True)
    for name, minor in _DEVICES.items():
        device = _OWN_DEVICES / name
        with contextlib.suppress(FileExistsError):
            os.mknod(device, stat.S_IFCHR, os.makedev(1 if minor else 5, minor))
        # Commands act as our user: what it owns, one command could take from all others, of every user.
        os.chown(device, _NOBODY, _NOBODY)
        device.chmod(0o666)
        yield from ("--dev-bind", str(device), f"/dev/{name}")


def _memory_max() -> int:
    """Half of what the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@functools.cache
def _filter() -> bytes:
    """The filter of system calls, as the kernel reads it: (code, jump if true, jump if false, value)."""
    arch, column = _ARCHES[platform.machine()]
    load, equal, above, bits, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, missing = (
        (leave, 0, 0, 0x7FFF0000),
        (leave, 0, 0, 0x00050001),
        (leave, 0, 0, 0x00050026),
    )
    steps = [
        (load, 0, 0, 4),
        (equal, 1, 0, arch),
        refuse,
        (load, 0, 0, 0),
        (above, 0, 1, 0x40000000),
        refuse,
    ]
    for number in (*(each[column] for each in _REFUSED), *_NEWER):
        steps += [(equal, 0, 1, number), refuse]
    for number in _MISSING:
        steps += [(equal, 0, 1, number), missing]
    for numbers, tests in _BITS:
        steps.append((equal, 0, 2 * len(tests) + 2, numbers[column]))
        for left, (argument, mask) in zip(range(len(tests), 0, -1), tests, strict=True):
            steps += [(load, 0, 0, 16 + 8 * argument), (bits, 0, 2 * left - 1, mask)]
        steps += [refuse, allow]
    steps += [(equal, 0, len(_FAMILIES) + 3, _SOCKET[column]), (load, 0, 0, 16)]
    steps += [
        (equal, len(_FAMILIES) - at, 0, family) for at, family in enumerate(_FAMILIES)
    ]
    steps += [refuse, allow, allow]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
