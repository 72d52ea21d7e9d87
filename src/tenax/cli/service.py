"""`tenax service`: install Tenax as a service of systemd, for a user or for the whole system.

Two units are written: the socket, which stays open while Tenax restarts, and the server. The units contain no secret.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import click

from tenax.cli.frame import FAILED
from tenax.cli.serve import find_address, log_file, running_server
from tenax.concurrency import python_module, write_atomically
from tenax.config import Config, load
from tenax.config.read import safe_path
from tenax.config.secret import find_secrets, hide_password
from tenax.errors import Refused, unusable

__all__ = ["service"]

_SYSTEM_FOLDER: Final = Path("/etc/systemd/system")
_SYSTEM_VARIABLES: Final = Path("/etc/tenax")
_LINGER_FOLDER: Final = Path("/var/lib/systemd/linger")
_WAIT_SECONDS: Final = 120.0
_UNIT_MODE: Final = 0o644
_OTHERS: Final = 0o077
_MARK: Final = "# Written by `tenax service install` for the data in "
_FOLDER_VARIABLES: Final = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
# Variables that are not settings. Variables of settings are in `Config.locked`.
_VARIABLES: Final = (
    "TENAX_HOME",
    "TENAX_CONFIG",
    "TENAX_LOG",
    "OPENAI_BASE_URL",
    *_FOLDER_VARIABLES,
)
# Hardening options are missing on purpose: the commands of tools run in the sandbox of Tenax, which needs user
# namespaces and an unmasked /proc. OOMPolicy: a command that needs too much memory must not end the server. No start
# limit: after a reboot the store may be away for a while.
_SERVICE_UNIT: Final = """{mark}
[Unit]
Description=Tenax
Requires={name}.socket
After={name}.socket{network}
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
{environment}EnvironmentFile=-{file}
{user}Restart=always
RestartSec=2
TimeoutStartSec=infinity
TimeoutStopSec=15
KillMode=mixed
OOMPolicy=continue
UMask=0077

[Install]
WantedBy={target}
"""
_SOCKET_UNIT: Final = """{mark}
[Unit]
Description=Socket of Tenax

[Socket]
ListenStream={address}
FreeBind=yes

[Install]
WantedBy=sockets.target
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """The service of an installation or a profile."""

    config: Config
    run_as: str
    """The user of a system service. Empty for a service of the current user."""

    @property
    def name(self) -> str:
        profile = self.config.profile
        return f"tenax-{profile}" if profile else "tenax"

    @property
    def folder(self) -> Path:
        if self.run_as:
            return _SYSTEM_FOLDER
        own = Path(os.environ.get("XDG_CONFIG_HOME", ""))
        return (own if own.is_absolute() else Path.home() / ".config") / "systemd/user"

    @property
    def variables_file(self) -> Path:
        """The file with the secrets of the service. A person writes the file."""
        if self.run_as:
            # systemd reads the file as root. A user who could replace it by a link would read the files of root.
            return _SYSTEM_VARIABLES / f"{self.name}.env"
        return self.config.directories.config / "service.env"

    @property
    def command(self) -> list[str]:
        profile = self.config.profile
        options = ["--profile", profile] if profile else []
        return python_module("tenax", *options, "serve", "--no-link")

    @property
    def mark(self) -> str:
        return f"{_MARK}{_escape(str(self.config.directories.data))}"

    def units(self) -> dict[Path, str]:
        """Return the text of every unit, by path."""
        environment = self.environment()
        server = _SERVICE_UNIT.format(
            mark=self.mark,
            name=self.name,
            command=" ".join(_quote(word) for word in self.command),
            environment="".join(
                f'Environment="{_escape(f"{name}={value}")}"\n'
                for name, value in environment.items()
            ),
            file=str(self.variables_file).replace("%", "%%"),
            user=f"User={self.run_as}\n" if self.run_as else "",
            network="\nWants=network-online.target\nAfter=network-online.target"
            if self.run_as
            else "",
            target="multi-user.target" if self.run_as else "default.target",
        )
        _, address = find_address(self.config.serve)
        host = f"[{address}]" if ":" in address else address
        listener = _SOCKET_UNIT.format(
            mark=self.mark, address=f"{host}:{self.config.serve.port}"
        )
        return {
            self.folder / f"{self.name}.service": server,
            self.folder / f"{self.name}.socket": listener,
        }

    def environment(self) -> dict[str, str]:
        """Return the variables of this terminal that change the settings, without secrets and with absolute paths."""
        names = {*_VARIABLES, *self.config.locked.values()}
        if self.run_as or os.environ.get("TENAX_HOME"):
            names -= set(_FOLDER_VARIABLES)
        values = {name: os.environ.get(name, "") for name in sorted(names)}
        absolute = {
            "TENAX_HOME": str(Path(values["TENAX_HOME"]).expanduser().absolute()),
            "TENAX_CONFIG": str(self.config.file),
            "TENAX_STORE": self.config.store_url,
        }
        return {
            name: absolute.get(name, value)
            for name, value in values.items()
            if value and hide_password(value) == value
        }

    def missing_variables(self) -> list[str]:
        """Return the variables of this terminal with secrets that neither a unit nor the file of variables contains."""
        secrets = set(find_secrets(self.config))
        try:
            text = self.variables_file.read_text("utf-8", "replace")
        except OSError:
            text = ""
        known = {line.partition("=")[0].strip() for line in text.splitlines()}
        return sorted(
            name
            for name, value in os.environ.items()
            if name not in known
            and (
                value.strip() in secrets
                or (name == "TENAX_STORE" and hide_password(value) != value)
            )
        )

    def installed(self) -> dict[Path, str]:
        """Return the text of every installed unit. Raises `Refused` for units of others."""
        found: dict[Path, str] = {}
        for path in self.units():
            try:
                found[path] = path.read_text("utf-8", "replace")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unusable(f"{path} cannot be read", error) from error
            first = found[path].partition("\n")[0]
            if first != self.mark:
                owner = first.removeprefix(_MARK)
                reason = f"{path} was not written by Tenax."
                if owner != first:
                    reason = (
                        f"{path} belongs to another Tenax, with the data in {owner}."
                    )
                raise Refused(
                    reason,
                    hint="Remove it first, or use a profile (tenax --profile NAME service ...).",
                )
        return found

    def systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run systemctl. Raises `Refused` after a timeout."""
        scope = [] if self.run_as else ["--user"]
        program = _find_program(self.config, "systemctl")
        if program is None:
            self._refuse_without_manager("systemctl is not installed")
        try:
            return subprocess.run(  # noqa: S603  (the program of the system)
                [program, *scope, *words],
                env=_manager_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_WAIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(
                f"systemctl {words[0]} cannot be run, or does not end.",
                hint="To see why: tenax service logs",
            ) from error

    def state(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        done = self.systemctl("show", f"--property={name}", "--value", unit)
        return done.stdout.strip()

    def is_active(self) -> bool:
        return self.state(f"{self.name}.service", "ActiveState") == "active"

    def act(self, *words: str) -> None:
        """Run systemctl. Raises `Refused` with the error of a failed command."""
        done = self.systemctl(*words)
        if done.returncode:
            raise Refused(
                f"systemctl {' '.join(words)} failed: {done.stderr.strip()}",
                hint="To see why: tenax service logs",
            )

    def check_manager(self) -> None:
        """Raise `Refused` without an answer of systemd."""
        done = self.systemctl("show", "--property=Version")
        if done.returncode:
            self._refuse_without_manager(done.stderr.strip())

    def _refuse_without_manager(self, reason: str) -> NoReturn:
        which = "system" if self.run_as else "user"
        variables = self.environment().items()
        assignments = [f"{name}={shlex.quote(value)}" for name, value in variables]
        words = [*assignments, shlex.join(self.command)]
        # In a crontab, a percent sign ends the command.
        line = " ".join(words).replace("%", "\\%")
        hints = [
            f"No systemd answers for the {which}: this is a container, or you came here with su or sudo."
        ]
        if not self.run_as:
            hints.append(
                f"On a machine with systemd, log in as {_user_name()} directly, or use --system as root."
            )
        hints.append("To start Tenax with cron instead, run `crontab -e` and add:")
        raise Refused(
            f"There is no systemd to run a service ({reason.rstrip('.')}).",
            hint="\n".join([*hints, f"@reboot {line}"]),
        )


def _escape(text: str) -> str:
    """Escape a text between double quotes in a unit."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "%": "%%"}
    return "".join(escapes.get(char, char) for char in text)


def _quote(word: str) -> str:
    """Quote a word of ExecStart."""
    if re.fullmatch(r"[\w@+=:,./-]+", word):
        return word
    return f'"{_escape(word).replace("$", "$$")}"'


def _find_program(config: Config, name: str) -> str | None:
    path = safe_path(os.environ.get("PATH", os.defpath), config.tools_folder)
    return shutil.which(name, path=path)


def _manager_environment() -> dict[str, str]:
    """Return the environment for systemctl and journalctl. `su` does not set XDG_RUNTIME_DIR."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _find_service(*, system: bool, run_as: str | None = None) -> _Service:
    """Return the service of the settings. A system service uses the settings of the user who runs Tenax."""
    profile = click.get_current_context().find_root().params.get("profile")
    if not system:
        if run_as is not None:
            raise click.UsageError("--run-as needs --system.")
        return _Service(config=load(os.environ, profile=profile), run_as="")
    name = f"tenax-{profile}" if profile else "tenax"
    run_as = run_as or _installed_user(name) or os.environ.get("SUDO_USER")
    if not run_as:
        raise click.UsageError("Name the user of the service: --run-as NAME.")
    try:
        home = pwd.getpwnam(run_as).pw_dir
    except KeyError:
        raise click.UsageError(f"There is no user {run_as!r}.") from None
    env = {**os.environ, "HOME": home}
    for variable in _FOLDER_VARIABLES:
        env.pop(variable, None)
    return _Service(config=load(env, profile=profile), run_as=run_as)


def _installed_user(name: str) -> str:
    """Return the user of the installed system service, or an empty string."""
    try:
        text = (_SYSTEM_FOLDER / f"{name}.service").read_text("utf-8", "replace")
    except OSError:
        return ""
    match = re.search(r"^User=(\S+)$", text, re.MULTILINE)
    return match[1] if match else ""


_system: Final[Callable[[Callable[..., object]], Callable[..., object]]] = click.option(
    "--system",
    is_flag=True,
    help="The service of the system, in /etc/systemd/system. Changing it needs root.",
)


@click.group("service")
def service() -> None:
    """Start Tenax by itself, as a service of systemd."""


@service.command("install")
@_system
@click.option(
    "--run-as",
    metavar="NAME",
    help="With --system: the user that runs Tenax. Default: the user who called sudo.",
)
@click.option(
    "--print", "only_print", is_flag=True, help="Print the units and install nothing."
)
def install(run_as: str | None, *, system: bool, only_print: bool) -> None:
    """Install, start and enable the service.

    Run the command again after a change of serve.host or serve.port, or after Tenax was moved.
    """
    service = _find_service(system=system, run_as=run_as)
    units = service.units()
    if only_print:
        for path, text in units.items():
            click.echo(f"# {path}\n{text}")
        return
    service.check_manager()
    installed = service.installed()
    where = running_server(service.config)
    if where is not None and not service.is_active():
        raise Refused(
            f"Tenax is already running at {where.url}, not as this service.",
            hint="Stop it (Ctrl-C in its terminal), and install the service again.",
        )
    _write(units)
    service.act("daemon-reload")
    names = [path.name for path in units]
    service.act("enable", *names)
    if any(
        installed.get(path) != units[path] for path in units if ".socket" in path.name
    ):
        # A socket cannot be replaced while its service runs.
        service.act("stop", *names)
    service.act("restart", *names[:1])
    click.echo("Tenax is running. To open the page: tenax link")
    _echo_remarks(service)


def _write(units: dict[Path, str]) -> None:
    for path, text in units.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode(), mode=_UNIT_MODE)
        except PermissionError:
            raise Refused(
                f"{path} cannot be written without root.", hint="Use sudo."
            ) from None
        except OSError as error:
            raise unusable(f"{path} cannot be written", error) from error
        click.echo(f"Installed: {path}")


@service.command("status")
@_system
def status(*, system: bool) -> int:
    """Show whether the service runs, and what keeps it from starting. The exit code is 0 if it runs."""
    service = _find_service(system=system)
    units = service.units()
    installed = service.installed()
    where = running_server(service.config)
    if where is not None:
        click.echo(f"Tenax is running at {where.url}")
    if not installed:
        click.echo(f"No service is installed in {service.folder}.")
    service.check_manager()
    for path in installed:
        active, sub, enabled = (
            service.state(path.name, name)
            for name in ("ActiveState", "SubState", "UnitFileState")
        )
        click.echo(f"{path}: {active} ({sub}), {enabled}")
    if not installed:
        click.echo("To install the service: tenax service install")
        return FAILED
    changed = [path.name for path in units if installed.get(path) != units[path]]
    if changed:
        click.echo(
            f"Not as this Tenax would write it: {', '.join(changed)}. To write it again: tenax service install"
        )
    _echo_remarks(service)
    return 0 if service.is_active() else FAILED


@service.command("logs")
@_system
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they come.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The number of lines.",
)
def logs(*, system: bool, follow: bool, lines: int) -> NoReturn:
    """Show the journal of the service: starts, stops and errors of the start."""
    service = _find_service(system=system)
    program = _find_program(service.config, "journalctl")
    click.echo(f"The server's own log: {log_file(service.config)}", err=True)
    if program is None:
        raise Refused("journalctl is not installed, so there is no journal to show.")
    option = "--unit" if service.run_as else "--user-unit"
    units = [f"{option}={service.name}.{kind}" for kind in ("service", "socket")]
    words = [*units, f"--lines={lines}"]
    sys.stdout.flush()
    sys.stderr.flush()
    # journalctl replaces this process, so it gets Ctrl-C and its pager gets the terminal.
    os.execve(  # noqa: S606  (the program of the system)
        program,
        [program, *words, *(["--follow"] if follow else [])],
        _manager_environment(),
    )


@service.command("remove")
@_system
def remove(*, system: bool) -> None:
    """Stop the service and delete its units. Conversations and settings stay."""
    service = _find_service(system=system)
    installed = service.installed()
    if not installed:
        raise Refused(f"No service is installed in {service.folder}.")
    service.check_manager()
    service.act("disable", "--now", *(path.name for path in installed))
    for path in installed:
        try:
            path.unlink()
        except OSError as error:
            raise unusable(f"{path} cannot be deleted", error) from error
        click.echo(f"Deleted: {path}")
    service.act("daemon-reload")
    click.echo(f"Your conversations stay in {service.config.directories.data}")


def _echo_remarks(service: _Service) -> None:
    for line in _remarks(service):
        click.echo(line)


def _remarks(service: _Service) -> Iterator[str]:
    """Yield the instructions for the person after the installation of a service."""
    user = _user_name()
    if service.run_as:
        yield f"Tenax runs as {service.run_as} and starts with the machine."
    elif (_LINGER_FOLDER / user).exists():
        yield f"Tenax starts with the machine: lingering is on for {user}."
    else:
        yield f"Tenax runs only while {user} is logged in, because lingering is off."
        yield f"To start it with the machine, and keep it running after a logout: loginctl enable-linger {user}"
    file = service.variables_file
    missing = service.missing_variables()
    if missing:
        yield (
            f"The service does not get the secrets in the variables of this terminal: {', '.join(missing)}. Write them into "
            f"{file}, one NAME=VALUE in a line, with the mode 0600. Then run: tenax service install"
        )
    try:
        is_open = bool(file.stat().st_mode & _OTHERS)
    except OSError:
        is_open = False
    if is_open:
        yield f"Other users can read {file}. To change that: chmod 600 {shlex.quote(str(file))}"
