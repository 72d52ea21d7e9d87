"""`tenax service`: the units, and what a person is told. Stand-ins play systemctl and journalctl.

tests/web/test_socket_activation.py installs the units with a real systemd.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import tenax
from tests.support.served import Served
from tests.support.systemd import program

USER = pwd.getpwuid(os.getuid()).pw_name

# It writes down how it was called. `active` is whether the service runs; without `manager`, no systemd answers.
SYSTEMCTL = """#!/bin/sh
cd "{folder}" || exit
echo "$*" >> calls
test -e manager || {{ echo "Failed to connect to bus: No medium found" >&2; exit 1; }}
case "$*" in
    *ActiveState*) if test -e active; then echo active; else echo inactive; fi ;;
    *SubState*) echo running ;;
    *UnitFileState*) echo enabled ;;
    *restart*) test ! -e broken || {{ echo "Job for tenax.service failed." >&2; exit 1; }}; touch active ;;
    *disable*) rm -f active ;;
esac
"""


class Systemd:
    """The stand-ins, and the folder of the units."""

    def __init__(self, folder: Path, units: Path) -> None:
        self.folder = folder
        self.units = units
        self.manager = folder / "manager"
        self.active = folder / "active"
        self.broken = folder / "broken"
        self.manager.touch()

    def calls(self) -> list[str]:
        """What was asked of systemctl that changes something."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if " show " not in line]

    def text(self, name: str = "tenax.service") -> str:
        return (self.units / name).read_text()


@pytest.fixture
def systemd(home: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    programs = home / "programs"
    programs.mkdir()
    scripts = {
        "systemctl": SYSTEMCTL.format(folder=programs),
        "journalctl": '#!/bin/sh\necho "journalctl $*"\n',
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    for name in ("TENAX_HOST", "TENAX_PORT", "OPENAI_API_KEY", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    return Systemd(programs, home / "config" / "systemd" / "user")


def test_install_writes_enables_and_starts_two_units(
    home: Path, systemd: Systemd, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program is this one, the data folder is the one of this terminal, and lingering is explained."""
    code, out, err = tenax(capsys, "service", "install")
    assert (code, err) == (0, "")
    lines = systemd.text().splitlines()
    assert f"ExecStart={sys.executable} -P -m tenax serve --no-link" in lines
    assert f'Environment="TENAX_HOME={home}"' in lines
    for line in ("Type=notify", "Restart=always", "KillMode=mixed", "UMask=0077"):
        assert line in lines
    assert "ListenStream=127.0.0.1:8629\n" in systemd.text("tenax.socket")
    for name in ("tenax.service", "tenax.socket"):
        assert f"Installed: {systemd.units / name}\n" in out
        assert stat.S_IMODE((systemd.units / name).stat().st_mode) == 0o644
    assert systemd.calls() == [
        "--user daemon-reload",
        "--user enable tenax.service tenax.socket",
        "--user stop tenax.service tenax.socket",
        "--user restart tenax.service",
    ]
    assert "lingering" in out
    assert f"loginctl enable-linger {USER}" in out or "starts with the machine" in out


def test_a_second_install_leaves_the_socket_open(
    systemd: Systemd,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only another address closes it."""
    assert tenax(capsys, "service", "install")[0] == 0
    before = len(systemd.calls())
    assert tenax(capsys, "service", "install")[0] == 0
    assert "--user stop tenax.service tenax.socket" not in systemd.calls()[before:]
    before = len(systemd.calls())
    monkeypatch.setenv("TENAX_HOST", "::1")
    monkeypatch.setenv("TENAX_PORT", "9000")
    assert tenax(capsys, "service", "install")[0] == 0
    assert "--user stop tenax.service tenax.socket" in systemd.calls()[before:]
    assert "ListenStream=[::1]:9000\n" in systemd.text("tenax.socket")


def test_no_secret_is_in_a_unit(
    home: Path,
    systemd: Systemd,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys and the password of the store are named, with the file where they belong, until they are there."""
    (home / "config.toml").write_text(
        '[models.main]\nurl = "http://127.0.0.1:1/v1"\nname = "x"\nkey = "env:MY_KEY"\n'
    )
    monkeypatch.setenv("MY_KEY", "hunter2")
    monkeypatch.setenv("TENAX_STORE", "postgresql://me:hunter2@127.0.0.1:1/none")
    code, out, _ = tenax(capsys, "service", "install")
    assert code == 0
    assert "hunter2" not in systemd.text()
    file = home / "service.env"
    assert f"EnvironmentFile=-{file}\n" in systemd.text()
    assert f"MY_KEY, TENAX_STORE. Write them into {file}" in out
    file.write_text("MY_KEY=hunter2\nTENAX_STORE=postgresql://\n")
    file.chmod(0o644)
    out = tenax(capsys, "service", "status")[1]
    assert "MY_KEY" not in out
    assert f"Other users can read {file}. To change that: chmod 600 {file}" in out


def test_every_path_and_value_can_be_written_into_a_unit(
    home: Path,
    systemd: Systemd,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spaces, quotes and the signs of systemd; and a profile has units of its own."""
    odd = home / 'a "b" 100% $HOME \\n'
    monkeypatch.setenv("TENAX_HOME", str(odd))
    assert tenax(capsys, "--profile", "work", "service", "install")[0] == 0
    text = systemd.text("tenax-work.service")
    written = str(odd).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    assert f'Environment="TENAX_HOME={written}"\n' in text
    assert "-m tenax --profile work serve --no-link\n" in text
    assert "Requires=tenax-work.socket\n" in text
    assert tenax(capsys, "--profile", "work", "service", "status")[0] == 0


@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_the_units(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    system: bool,
) -> None:
    """`systemd-analyze verify` has nothing to say about them, whatever the data folder is called."""
    verify = program("systemd-analyze")
    monkeypatch.setenv("TENAX_HOME", str(home / 'a "b" 100% $HOME \\n'))
    options = ["--system", "--run-as", USER] if system else []
    code, out, _ = tenax(capsys, "service", "install", "--print", *options)
    assert code == 0
    assert ("User=" in out) == system
    # systemd reads the file as root, so the user must not be able to replace it.
    assert ("\nEnvironmentFile=-/etc/tenax/tenax.env\n" in out) == system
    paths = []
    for path, text in re.findall(r"^# (/\S+)\n(# Written.*?)(?=^# /|\Z)", out, re.MULTILINE | re.DOTALL):  # fmt: skip
        paths.append(home / Path(path).name)
        paths[-1].write_text(text)
    assert len(paths) == 2
    scope = "--system" if system else "--user"
    done = subprocess.run(
        [verify, "verify", scope, "--man=no", *map(str, paths)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if str(home) in line or "tenax" in line]  # fmt: skip
    assert (said, done.returncode) == ([], 0), done.stderr


def test_a_system_service_needs_a_user(capsys: pytest.CaptureFixture[str], systemd: Systemd) -> None:  # fmt: skip
    """Nobody is guessed, except who called sudo."""
    code, _, err = tenax(capsys, "service", "install", "--system")
    assert (code, "Name the user of the service: --run-as NAME." in err) == (2, True)
    code, _, err = tenax(
        capsys, "service", "install", "--system", "--run-as", "no-such-user"
    )
    assert (code, "There is no user 'no-such-user'." in err) == (2, True)
    code, _, err = tenax(capsys, "service", "install", "--run-as", USER)
    assert (code, "--run-as needs --system." in err) == (2, True)


def test_units_of_others_are_left_alone(
    systemd: Systemd,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit that somebody wrote by hand, and the unit of another data folder."""
    systemd.units.mkdir(parents=True)
    unit = systemd.units / "tenax.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/other\n")
    for command in ("install", "status", "remove"):
        code, _, err = tenax(capsys, "service", command)
        assert code == 1
        assert f"{unit} was not written by Tenax." in err
    assert unit.read_text().endswith("other\n")
    unit.unlink()
    assert tenax(capsys, "service", "install")[0] == 0
    before = systemd.text()
    monkeypatch.setenv("TENAX_HOME", str(home / "second"))
    code, _, err = tenax(capsys, "service", "install")
    assert code == 1
    assert f"belongs to another Tenax, with the data in {home}.\n" in err
    assert systemd.text() == before


def test_status_tells_what_differs(
    systemd: Systemd, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not installed, running, stopped, and written by a Tenax that was elsewhere; the exit code is for scripts."""
    code, out, _ = tenax(capsys, "service", "status")
    assert (code, "To install the service: tenax service install" in out) == (1, True)
    tenax(capsys, "service", "install")
    code, out, _ = tenax(capsys, "service", "status")
    assert code == 0
    assert f"{systemd.units}/tenax.service: active (running), enabled\n" in out
    assert "Not as this Tenax would write it" not in out
    unit = systemd.units / "tenax.service"
    unit.write_text(systemd.text().replace(sys.executable, "/old/bin/python"))
    code, out, _ = tenax(capsys, "service", "status")
    assert (
        "Not as this Tenax would write it: tenax.service. To write it again: tenax service install\n"
        in out
    )
    systemd.active.unlink()
    code, out, _ = tenax(capsys, "service", "status")
    assert (code, "tenax.service: inactive (running)" in out) == (1, True)


def test_a_service_that_does_not_start_is_told(
    systemd: Systemd, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the words of systemd, and where to look."""
    systemd.broken.touch()
    code, _, err = tenax(capsys, "service", "install")
    assert code == 1
    assert err == (
        "tenax: systemctl restart tenax.service failed: Job for tenax.service failed.\n"
        "To see why: tenax service logs\n"
    )


@pytest.mark.crash
def test_a_tenax_in_a_terminal_keeps_the_port(
    systemd: Systemd, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has to be stopped first; nothing is written."""
    with Served(home) as served:
        code, _, err = tenax(capsys, "service", "install")
    assert code == 1
    assert f"Tenax is already running at {served.url}, not as this service.\n" in err
    assert not systemd.units.exists()


def test_remove_deletes_the_units_and_nothing_else(
    systemd: Systemd, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped and disabled first."""
    assert tenax(capsys, "service", "remove")[0] == 1
    tenax(capsys, "service", "install")
    code, out, _ = tenax(capsys, "service", "remove")
    assert (code, list(systemd.units.iterdir())) == (0, [])
    assert systemd.calls()[-2:] == [
        "--user disable --now tenax.service tenax.socket",
        "--user daemon-reload",
    ]
    assert out.endswith(f"Your conversations stay in {home}\n")


def test_logs_are_those_of_the_unit(systemd: Systemd, home: Path) -> None:
    """The program gets the terminal; where the server's own log is stands before it."""
    command = [sys.executable, "-P", "-m", "tenax", "service", "logs", "-f", "-n", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (
        0,
        "journalctl --user-unit=tenax.service --user-unit=tenax.socket --lines=5 --follow\n",
    )
    assert done.stderr == f"The server's own log: {home}/log/tenax.log\n"


@pytest.mark.parametrize("there", ["no bus", "no systemd"])
def test_without_systemd_there_is_a_line_for_cron(
    home: Path,
    systemd: Systemd,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    there: str,
) -> None:
    """After su, in a container, on macOS: the reason and another way; nothing is written."""
    systemd.manager.unlink()
    if there == "no systemd":
        monkeypatch.setenv("PATH", str(home / "empty"))
    code, _, err = tenax(capsys, "service", "install")
    assert code == 1
    reason = "Failed to connect to bus: No medium found" if there == "no bus" else "systemctl is not installed"  # fmt: skip
    assert err.startswith(f"tenax: There is no systemd to run a service ({reason}).\n")
    assert err.endswith(
        f"\n@reboot TENAX_HOME={home} {sys.executable} -P -m tenax serve --no-link\n"
    )
    assert not systemd.units.exists()
