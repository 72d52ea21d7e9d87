"""`tenax serve`: a small parent process. The parent holds the socket, starts the server, and restarts a dead server.

The socket outlives the server, so a page reconnecting during a restart waits instead of being refused. If systemd passes
the socket, it outlives the parent too. A lock allows a
single server per state folder, and the lock file holds the address. `tenax link` signs another browser in; `tenax demo`
opens the tour.
"""

from __future__ import annotations

import contextlib
import errno
import html
import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import click
import msgspec

from tenax.cli.frame import FAILED, pass_config
from tenax.cli.lines import minute
from tenax.cli.systemd import Manager
from tenax.concurrency import LockFile, python_module
from tenax.config import Config
from tenax.config.read import safe_path
from tenax.config.schema import PORT_MAX, Serve, is_host
from tenax.errors import CannotOpen, Refused, unusable
from tenax.journal import LOCAL_USER
from tenax.journal.devices import Devices
from tenax.runtime.runtime import open_store
from tenax.text import to_one_line
from tenax.web.links import Links

__all__ = [
    "Ready",
    "code",
    "demo",
    "find_address",
    "link",
    "links_of",
    "log_file",
    "running_server",
    "serve",
]

PORTS_TRIED: Final = 20
STOP_SECONDS: Final = 4.5
DEATHS_MAX: Final = 5
DEATHS_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0
_REDIRECT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"><title>Tenax</title><a href="{address}">Open Tenax</a></html>
"""


class Where(msgspec.Struct, frozen=True):
    """The content of the lock file: the running server."""

    url: str
    pid: int


class Ready(msgspec.Struct, omit_defaults=True):
    """The line printed by the server process after its start or failure."""

    ok: bool
    error: str = ""
    hint: str = ""


def _host(_context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is not None and not is_host(text):
        raise click.BadParameter(
            f"{text!r} is not a host. Use a name or an address, for example 127.0.0.1."
        )
    if text is not None:
        os.environ["TENAX_HOST"] = text


def _port(
    _context: click.Context, _option: click.Parameter, number: int | None
) -> None:
    if number is not None:
        os.environ["TENAX_PORT"] = str(number)


# Both options become environment variables before the configuration is read: here, and in the separate server process.
@click.command("serve")
@click.option(
    "--host",
    metavar="ADDRESS",
    callback=_host,
    expose_value=False,
    help="Listen on this address instead of serve.host.",
)
@click.option(
    "--port",
    type=click.IntRange(1, PORT_MAX),
    callback=_port,
    expose_value=False,
    help="Listen on this port instead of serve.port.",
)
@click.option(
    "--no-link",
    is_flag=True,
    help="Print no link. A service uses this option, because its output is kept in a log.",
)
@pass_config
def serve(config: Config, *, no_link: bool) -> int:
    """Serve the page, and print a link that opens it. Ctrl-C ends the server."""
    return _serve(config, None if no_link else "/")


@click.command("demo")
@pass_config
def demo(config: Config) -> int:
    """Take the tour; needs no model and no key. Serves the page unless a server is running."""
    return _serve(config, "/tour")


@click.command("link")
@click.option(
    "--user",
    metavar="NAME",
    help="Make the link for this user. Every user has separate conversations.",
)
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="List the browsers that are signed in, of all users or of NAME.",
)
@click.option(
    "--revoke",
    metavar="ID|all",
    help="Sign out the browser with this ID, or all browsers of all users or of NAME. 'all' also cancels unused links.",
)
@pass_config
def link(config: Config, user: str | None, revoke: str | None, *, lists: bool) -> int:
    """Print a link that signs another browser in. The link works once, for 15 minutes.

    With --list or --revoke: show or sign out the signed-in browsers.
    """
    if lists and revoke is not None:
        raise click.UsageError("--list and --revoke cannot be used together.")
    if lists:
        return _list_devices(config, user)
    if revoke is not None:
        return _revoke(config, revoke, user)
    user = LOCAL_USER if user is None else user
    where = running_server(config)
    if where is None:
        click.echo("The server is not running. Start it with: tenax serve", err=True)
        return FAILED
    if not user.strip() or not user.isprintable() or len(user) > 100:  # noqa: PLR2004  (a name)
        raise click.UsageError("A user name has 1 to 100 printable characters.")
    click.echo(_link(config, where.url, "/", user))
    return 0


@click.command("code")
@pass_config
def code(config: Config) -> int:
    """Print a code that confirms a new MCP server on the page.

    The page asks for the code before adding a server with a command. The code works once, for five minutes.
    """
    click.echo(links_of(config).make_confirmation())
    return 0


@contextlib.contextmanager
def _devices(config: Config) -> Iterator[Devices]:
    with contextlib.closing(open_store(config)) as journal:
        yield Devices(journal, days=config.serve.sign_in_days)


def _list_devices(config: Config, user: str | None) -> int:
    with _devices(config) as devices:
        found = devices.all(user)
    for device in found:
        since, seen = minute(device.made_at), minute(device.seen_at)
        click.echo(
            f"{device.id}  {to_one_line(device.user)}  since {since}  seen {seen}  {to_one_line(device.name)}"
        )
    if not found:
        click.echo("No browser is signed in.", err=True)
    return 0


def _revoke(config: Config, id: str, user: str | None) -> int:  # noqa: A002  (the field's name)
    with _devices(config) as devices:
        if id == "all":
            count = devices.revoke_all(user)
            click.echo(
                "Signed out: 1 browser."
                if count == 1
                else f"Signed out: {count} browsers."
            )
            links_of(config).forget_codes(user)
        else:
            devices.revoke(id, user)
            click.echo("Signed out: 1 browser.")
    return 0


def _serve(config: Config, to: str | None) -> int:
    """Serve until SIGINT or SIGTERM. `to` is the path that the printed link opens; with `None`, no link is printed."""
    manager = Manager(os.environ)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_locked(config))
        if lock is None:
            where = running_server(config)
            address = where.url if where is not None else "another address"
            click.echo(f"Tenax is already running at {address}", err=True)
            if to is None:
                # A service manager tries again until the other server ends.
                return FAILED
            if where is not None:
                click.echo(_link(config, where.url, to))
            return 0
        passed = manager.listening_socket()
        listening = stack.enter_context(passed or _listen(config))
        stack.enter_context(_own_terminal())
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        where = Where(url, os.getpid())
        return _Parent(config, listening, lock, where, manager).run(to)


@contextlib.contextmanager
def _own_terminal() -> Iterator[None]:
    """Become the foreground process group, like a job of a shell: otherwise Ctrl-C would end `make` before Tenax."""
    before = os.getpgrp()
    try:
        ours = before == os.getpid() or os.tcgetpgrp(0) != before
    except OSError:
        # The process has no terminal.
        ours = True
    if ours:
        yield
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, before)


def _link(config: Config, url: str, to: str, user: str = LOCAL_USER) -> str:
    """Make a link to the page at its public address, or else at the local address `url`."""
    code = links_of(config).make_code(user)
    page = config.serve.url or url
    # A browser does not send the part after # to the server, so a preview of the link does not use the code up.
    return f"{page}/link#code={code}" + ("" if to == "/" else f"&to={to}")


def links_of(config: Config) -> Links:
    return Links(config.directories.state / "web")


def _opened(config: Config) -> Path:
    """Return the path of the file for redirecting a browser to the link."""
    return config.directories.state / "web" / "open.html"


def log_file(config: Config) -> Path:
    """Return the path of the server log."""
    return config.directories.state / "log" / "tenax.log"


# -- one at a time -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(config: Config) -> Iterator[LockFile | None]:
    """Hold the lock of the server during the block. Yield `None` if a server is running."""
    folder = config.directories.state / "run"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = LockFile.acquire(folder / "serve")
    except OSError as error:
        raise unusable(f"{folder} cannot be written", error) from error
    with lock or contextlib.nullcontext():
        yield lock


def running_server(config: Config) -> Where | None:
    """Return the address of the running server, or `None`."""
    file = config.directories.state / "run" / "serve"
    try:
        if LockFile.is_held(file):
            return msgspec.json.decode(file.read_bytes(), type=Where)
    except (OSError, msgspec.MsgspecError):
        pass
    return None


def find_address(settings: Serve) -> tuple[socket.AddressFamily, str]:
    """Return the address to listen on. Raises `CannotOpen` if serve.host is unknown."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host,
            settings.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
    except OSError as error:
        raise CannotOpen(
            f"{settings.host} is not an address of this machine.",
            hint="Check serve.host, TENAX_HOST and --host.",
        ) from error
    return family, str(address[0])


@contextlib.contextmanager
def _listen(config: Config) -> Iterator[socket.socket]:
    """Listen on the configured port, or on the next free port. A proxy knows only the configured port."""
    host, first = config.serve.host, config.serve.port
    family, address = find_address(config.serve)
    tried = 1 if config.serve.url else PORTS_TRIED
    last = min(first + tried - 1, PORT_MAX)
    for port in range(first, last + 1):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
            listening.listen(512)
        except PermissionError as error:
            listening.close()
            raise CannotOpen(
                f"Port {port} needs administrator rights.",
                hint="Set serve.port to 1024 or more.",
            ) from error
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise CannotOpen(
                    f"Cannot listen on {host}: {error.strerror}.",
                    hint="Check serve.host.",
                ) from error
            continue
        with listening:
            if port != first:
                click.echo(f"Port {first} is in use. Using {port} instead.", err=True)
            yield listening
        return
    taken = (
        f"Port {first} is in use."
        if first == last
        else f"The ports {first} to {last} are all in use."
    )
    raise CannotOpen(taken, hint="Choose another with --port.")


# -- the parent ----------------------------------------------------------------------------------------------


class _Stop(Exception):
    """Raised by the handler of SIGINT and SIGTERM."""


class _Parent:
    """The parent process. Starts the server process, and restarts the server until Ctrl-C or SIGTERM."""

    def __init__(
        self,
        config: Config,
        listening: socket.socket,
        lock: LockFile,
        where: Where,
        manager: Manager,
    ) -> None:
        self._config = config
        self._listening = listening
        self._lock = lock
        self._where = where
        self._manager = manager
        self._child: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)

    def run(self, to: str | None) -> int:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._stop)
        try:
            ready = self._start_server()
            if not ready.ok:
                raise Refused(ready.error, hint=ready.hint)
            self._say_where()
            if to is None:
                _tell(f"Tenax is running at {self._where.url}")
            else:
                self._welcome(_link(self._config, self._where.url, to))
            self._manager.notify("READY=1", f"STATUS=Running at {self._where.url}")
            return self._restart_dead_servers()
        except _Stop:
            return self._stop_server()
        finally:
            with contextlib.suppress(OSError):
                _opened(self._config).unlink(missing_ok=True)
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
                self._child.wait()

    def _say_where(self) -> None:
        try:
            self._lock.write(msgspec.json.encode(self._where))
        except OSError as error:
            raise unusable(
                "The address of the server cannot be saved", error
            ) from error

    def _start_server(self) -> Ready:
        profile = click.get_current_context().find_root().params.get("profile")
        command = python_module("tenax.web", str(self._listening.fileno()))
        try:
            child = self._child = subprocess.Popen(  # noqa: S603  (our own)
                [*command, profile] if profile else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listening.fileno()],
                # Ctrl-C goes only to the parent, and the parent stops the server.
                start_new_session=True,
            )
        except OSError as error:
            return Ready(
                ok=False, error=f"The server cannot be started: {error.strerror}."
            )
        assert child.stdout is not None
        line = child.stdout.readline()
        try:
            return msgspec.json.decode(line, type=Ready)
        except msgspec.MsgspecError:
            hint = f"See the log: {log_file(self._config)}"
            return Ready(
                ok=False, error="The server stopped before it was ready.", hint=hint
            )

    def _restart_dead_servers(self) -> int:
        while True:
            assert self._child is not None
            code = self._child.wait()
            self._deaths.append(time.monotonic())
            often = (
                len(self._deaths) == DEATHS_MAX
                and self._deaths[-1] - self._deaths[0] < DEATHS_SECONDS
            )
            how = f"signal {-code}" if code < 0 else f"code {code}"
            _tell(f"The server stopped ({how}). Restarting it.")
            time.sleep(PAUSE_SECONDS if often else 0)
            while not (ready := self._start_server()).ok:
                _tell(f"tenax: {ready.error} Trying again.")
                self._child.wait()
                time.sleep(PAUSE_SECONDS)
            _tell("The server is running again.")

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_IGN)
        raise _Stop

    def _stop_server(self) -> int:
        """Stop the server process. The server ends the streams of pages and parks running turns for the next start."""
        self._manager.notify("STOPPING=1")
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            # After the timeout, `run` kills the process.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_SECONDS)
        _tell("\nStopped. Unfinished answers continue at the next start.")
        return 0

    def _welcome(self, address: str) -> None:
        port = self._listening.getsockname()[1]
        if self._config.serve.url:
            _tell(f"Tenax listens on {self._where.url} for the proxy.")
        elif os.environ.get("SSH_CONNECTION"):
            name = os.environ.get("USER", "you")
            _tell(
                f"To open the page from your own machine: ssh -L {port}:127.0.0.1:{port} {name}@{socket.gethostname()}"
            )
        _tell("This link works once; `tenax link` prints another. Ctrl-C stops Tenax.")
        click.echo(address)
        sys.stdout.flush()
        if sys.stdout.isatty() and (
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        ):
            self._open_browser(address)

    def _open_browser(self, address: str) -> None:
        """Open a browser. Every user of the machine can read command lines, so a private file passes the link."""
        # The browser is found by name through PATH. Remove the tools folder from PATH, so that no program written by a
        # command starts.
        os.environ["PATH"] = safe_path(
            os.environ.get("PATH", ""), self._config.tools_folder
        )
        file = _opened(self._config)
        try:
            file.unlink(missing_ok=True)
            with open(  # noqa: PTH123
                os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
            ) as opened:
                opened.write(_REDIRECT.format(address=html.escape(address)))
            webbrowser.open(file.absolute().as_uri())
        except (OSError, webbrowser.Error):
            # The link is printed already.
            return


def _tell(words: str) -> None:
    """Print a line on stderr. A closed terminal or a full disk must not end the parent of the server."""
    try:
        click.echo(words, err=True)
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.EIO}:
            # The terminal is gone. Unwritten bytes in the buffer would make Python exit with status 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 2)
