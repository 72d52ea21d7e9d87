"""`tenax serve`: a small parent that holds the socket, starts the server, and starts it again if it dies.

The socket outlives the server, so a page that reconnects while it starts again waits instead of being refused. One serves
a place at a time: a lock says so, and where. `tenax link` lets another browser in; `tenax demo` leads to the tour.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
from typing import IO, Final

import click
import msgspec

from tenax.cli.frame import FAILED, pass_config
from tenax.cli.lines import minute, one_line
from tenax.config import Config
from tenax.config.read import PORT_MAX, is_host, programs_path
from tenax.errors import CannotOpen, Refused, unusable
from tenax.journal import LOCAL_USER
from tenax.journal.devices import Devices
from tenax.runtime.runtime import open_store
from tenax.web.links import Links

__all__ = ["Ready", "code", "demo", "link", "links_of", "log_file", "serve"]

PORTS_TRIED: Final = 20
STOP_SECONDS: Final = 4.5
DEATHS_MAX: Final = 5
DEATHS_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0
_REDIRECT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"><title>Tenax</title><a href="{address}">Open Tenax</a></html>
"""


class Where(msgspec.Struct, frozen=True):
    """What the lock says of the one who has it."""

    url: str
    pid: int


class Ready(msgspec.Struct, omit_defaults=True):
    """The one line that the server says when it has started, or could not."""

    ok: bool
    error: str = ""
    hint: str = ""


def _host(_context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is not None and not is_host(text):
        raise click.BadParameter(
            f"{text!r} is no host. Use a name or an address, like 127.0.0.1."
        )
    if text is not None:
        os.environ["TENAX_HOST"] = text


def _port(
    _context: click.Context, _option: click.Parameter, number: int | None
) -> None:
    if number is not None:
        os.environ["TENAX_PORT"] = str(number)


# Both options become variables before the configuration is read: here, and in the server, which is a process of its own.
@click.command("serve")
@click.option(
    "--host",
    metavar="ADDRESS",
    callback=_host,
    expose_value=False,
    help="Listen there, not on serve.host.",
)
@click.option(
    "--port",
    type=click.IntRange(1, PORT_MAX),
    callback=_port,
    expose_value=False,
    help="Listen on this port, not on serve.port.",
)
@pass_config
def serve(config: Config) -> int:
    """Serve the page, and print a link that opens it. Ctrl-C ends it."""
    return _serve(config, "/")


@click.command("demo")
@pass_config
def demo(config: Config) -> int:
    """Take the tour: no model and no key is needed. Serves the page if nothing does yet."""
    return _serve(config, "/tour")


@click.command("link")
@click.option(
    "--user",
    metavar="NAME",
    help="For this person; everybody has conversations of their own.",
)
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="Show the browsers that are signed in, of all users or of NAME.",
)
@click.option(
    "--revoke",
    metavar="ID|all",
    help="Sign out the browser with this ID, or all browsers of all users or of NAME; then unused links end too.",
)
@pass_config
def link(config: Config, user: str | None, revoke: str | None, *, lists: bool) -> int:
    """Print a link that lets another browser in. It works once, for a quarter of an hour.

    With --list or --revoke: show the browsers that are signed in, or sign them out.
    """
    if lists and revoke is not None:
        raise click.UsageError("--list and --revoke do not go together.")
    if lists:
        return _list_devices(config, user)
    if revoke is not None:
        return _revoke(config, revoke, user)
    user = LOCAL_USER if user is None else user
    where = _running(config)
    if where is None:
        click.echo("Nothing serves the page now; start it with: tenax serve", err=True)
        return FAILED
    if not user.strip() or not user.isprintable() or len(user) > 100:  # noqa: PLR2004  (a name)
        raise click.UsageError("A name has 1 to 100 characters that can be seen.")
    click.echo(_link(config, where.url, "/", user))
    return 0


@click.command("code")
@pass_config
def code(config: Config) -> int:
    """Print a code that the page asks for before it adds a server with a command. It works once, for five minutes."""
    click.echo(links_of(config).make_confirmation())
    return 0


@contextlib.contextmanager
def _devices(config: Config) -> Iterator[Devices]:
    with contextlib.closing(open_store(config)) as journal:
        yield Devices(journal, days=config.sign_in_days)


def _list_devices(config: Config, user: str | None) -> int:
    with _devices(config) as devices:
        found = devices.all(user)
    for device in found:
        since, seen = minute(device.made_at), minute(device.seen_at)
        click.echo(
            f"{device.id}  {one_line(device.user)}  since {since}  seen {seen}  {one_line(device.name)}"
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


def _serve(config: Config, to: str) -> int:
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_locked(config))
        if lock is None:
            where = _running(config)
            address = where.url if where is not None else "another address"
            click.echo(f"Tenax is already running at {address}", err=True)
            if where is not None:
                click.echo(_link(config, where.url, to))
            return 0
        listening = stack.enter_context(_listen(config))
        stack.enter_context(_own_terminal())
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return _Parent(config, listening, lock, Where(url, os.getpid())).run(to)


@contextlib.contextmanager
def _own_terminal() -> Iterator[None]:
    """Take Ctrl-C from the terminal for ourselves, as a shell does for a job: under `make`, make would end by it first."""
    before = os.getpgrp()
    try:
        ours = before == os.getpid() or os.tcgetpgrp(0) != before
    except OSError:  # there is no terminal
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
    code = links_of(config).make_code(user)
    # A browser keeps what follows # to itself: a preview of the link does not use the code up.
    return f"{url}/link#code={code}" + ("" if to == "/" else f"&to={to}")


def links_of(config: Config) -> Links:
    return Links(config.places.state / "web")


def _opened(config: Config) -> Path:
    """The file that leads a browser to the link."""
    return config.places.state / "web" / "open.html"


def log_file(config: Config) -> Path:
    """Where the server writes what it says."""
    return config.places.state / "log" / "tenax.log"


# -- one at a time -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(config: Config) -> Iterator[IO[bytes] | None]:
    folder = config.places.state / "run"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.open(folder / "serve", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = open(found, "r+b", buffering=0)  # noqa: PTH123, SIM115  (a descriptor, closed below)
    except OSError as error:
        raise unusable(f"{folder} cannot be written", error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file


def _running(config: Config) -> Where | None:
    """Where it runs, if it does."""
    try:
        with (config.places.state / "run" / "serve").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Where)
    except (OSError, msgspec.MsgspecError):
        return None
    return None


@contextlib.contextmanager
def _listen(config: Config) -> Iterator[socket.socket]:
    """Listen on the port of the configuration, or the next one that is free."""
    host, first = config.serve_host, config.serve_port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, first, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise CannotOpen(
            f"There is no address {host} here.",
            hint="Look at serve.host, TENAX_HOST and --host.",
        ) from error
    last = min(first + PORTS_TRIED - 1, PORT_MAX)
    for port in range(first, last + 1):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], port))
            listening.listen(512)
        except PermissionError as error:
            listening.close()
            raise CannotOpen(
                f"Port {port} is not for ordinary users.",
                hint="Set serve.port to 1024 or more.",
            ) from error
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise CannotOpen(
                    f"{host} cannot be listened on: {error.strerror}.",
                    hint="Look at serve.host.",
                ) from error
            continue
        with listening:
            if port != first:
                click.echo(f"Port {first} is taken; this is {port}.", err=True)
            yield listening
        return
    taken = (
        f"Port {first} is taken."
        if first == last
        else f"The ports {first} to {last} are all taken."
    )
    raise CannotOpen(taken, hint="Choose another with --port.")


# -- the parent ----------------------------------------------------------------------------------------------


class _Stop(Exception):
    """Somebody pressed Ctrl-C."""


class _Parent:
    """Starts the server, again and again, until it is told to stop."""

    def __init__(
        self, config: Config, listening: socket.socket, lock: IO[bytes], where: Where
    ) -> None:
        self._config = config
        self._listening = listening
        self._lock = lock
        self._where = where
        self._child: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)

    def run(self, to: str) -> int:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._stop)
        try:
            ready = self._start()
            if not ready.ok:
                raise Refused(ready.error, hint=ready.hint)
            self._say_where()
            self._welcome(_link(self._config, self._where.url, to))
            return self._look_after()
        except _Stop:
            return self._end()
        finally:
            with contextlib.suppress(OSError):
                _opened(self._config).unlink(missing_ok=True)
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
                self._child.wait()

    def _say_where(self) -> None:
        try:
            self._lock.truncate(0)
            self._lock.write(msgspec.json.encode(self._where))
        except OSError as error:
            raise unusable("Where the page is cannot be written down", error) from error

    def _start(self) -> Ready:
        profile = click.get_current_context().find_root().params.get("profile")
        # -P: nothing is imported from where we are, which may be a folder in which commands write.
        command = [
            sys.executable,
            "-P",
            "-m",
            "tenax.web",
            str(self._listening.fileno()),
        ]
        try:
            child = self._child = subprocess.Popen(  # noqa: S603  (our own)
                [*command, profile] if profile else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._listening.fileno()],
                start_new_session=True,  # Ctrl-C is for the parent, which tells it
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
            hint = f"Look into {log_file(self._config)}"
            return Ready(
                ok=False, error="The server ended before it could say why.", hint=hint
            )

    def _look_after(self) -> int:
        while True:
            assert self._child is not None
            code = self._child.wait()
            self._deaths.append(time.monotonic())
            often = (
                len(self._deaths) == DEATHS_MAX
                and self._deaths[-1] - self._deaths[0] < DEATHS_SECONDS
            )
            how = f"signal {-code}" if code < 0 else f"code {code}"
            _tell(f"The server is gone ({how}); starting it again.")
            time.sleep(PAUSE_SECONDS if often else 0)
            while not (ready := self._start()).ok:
                _tell(f"tenax: {ready.error} Trying again.")
                self._child.wait()
                time.sleep(PAUSE_SECONDS)
            _tell("The server is back.")

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise _Stop

    def _end(self) -> int:
        """Pages are told, runs are parked for the next start."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed
                self._child.wait(STOP_SECONDS)
        _tell("\nStopped. What was being written goes on at the next start.")
        return 0

    def _welcome(self, address: str) -> None:
        port = self._listening.getsockname()[1]
        if os.environ.get("SSH_CONNECTION"):
            name = os.environ.get("USER", "you")
            _tell(
                f"From your own machine: ssh -L {port}:127.0.0.1:{port} {name}@{socket.gethostname()}"
            )
        _tell("This link works once; `tenax link` makes another. Ctrl-C ends Tenax.")
        click.echo(address)
        sys.stdout.flush()
        if sys.stdout.isatty() and (
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        ):
            self._open(address)

    def _open(self, address: str) -> None:
        """Open a browser. Every user of the machine can read its command line, so the link stands in a file of ours."""
        # The browser is found by its name, and must not be a program of a command.
        os.environ["PATH"] = programs_path(
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
            return  # the link was printed


def _tell(words: str) -> None:
    """To whoever looks. A terminal that was closed, or a full disk behind it, must not end what looks after the server."""
    try:
        click.echo(words, err=True)
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.EIO}:
            # Nobody reads any more. What is left in the buffer would make Python exit with status 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 2)
