"""How the command line ends: its exit codes and what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from tenax.cli import main
from tenax.cli.frame import Commands, pass_config, run
from tenax.config import Config
from tenax.errors import ConfigError, TenaxError


def ending(body: Callable[[], object]) -> int:
    """Run a group with one command, `go`, that does this."""
    group = Commands()
    group.command("go")(body)
    return run(group, ["go"])


def failing(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_done_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Results go to stdout."""
    assert ending(lambda: click.echo("done")) == 0
    assert capsys.readouterr() == ("done\n", "")


def test_an_error_is_a_sentence_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """Failed is 1, on stderr, without a traceback."""
    assert ending(failing(TenaxError("It broke.", hint="Mend it."))) == 1
    assert capsys.readouterr() == ("", "tenax: It broke.\nMend it.\n")


def test_a_configuration_error_is_3() -> None:
    """Not set up."""
    assert ending(failing(ConfigError("No."))) == 3


def test_a_command_chooses_its_own_code() -> None:
    """A command that finds something wrong leaves with the code it wants."""
    assert ending(lambda: click.get_current_context().exit(1)) == 1


def test_stopped_is_130() -> None:
    """Ctrl-C says nothing more."""
    assert ending(failing(KeyboardInterrupt())) == 130


def test_a_surprise_is_not_hidden() -> None:
    """A bug keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        ending(failing(ZeroDivisionError()))


def test_wrong_use_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option or command is told on stderr."""
    for wrong in ("--nonsense", "nonsense"):
        with pytest.raises(SystemExit) as caught:
            main([wrong])
        assert caught.value.code == 2
        assert "nonsense" in capsys.readouterr().err


def test_an_old_habit_is_accepted_and_not_advertised(capsys: pytest.CaptureFixture[str]) -> None:
    """`sessions` is `list`."""
    group = Commands()
    group.command("list")(lambda: click.echo("listed"))
    assert run(group, ["sessions"]) == 0
    assert run(group, ["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("listed\n")
    assert "sessions" not in said


def test_help_works_where_the_configuration_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configuration is loaded when a command runs, not before."""
    monkeypatch.setenv("TENAX_LOG", "loud")

    @pass_config
    def body(config: Config) -> None:
        """Go."""

    assert ending(body) == 3
    group = Commands()
    group.command("go")(body)
    assert run(group, ["go", "--help"]) == 0
    assert "Go." in capsys.readouterr().out


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_goes_away_is_no_error(lines: int) -> None:
    """`tenax list | head -1` says nothing on stderr."""
    code = f"""
import sys, click
from tenax.cli.frame import Commands, run
group = Commands()
group.command("go")(lambda: [click.echo("x" * 100) for _ in range({lines})])
sys.stdin.read()
sys.exit(run(group, ["go"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stdin
        process.stdin.close()
        assert process.stderr
        assert process.stderr.read() == b""
