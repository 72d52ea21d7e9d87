"""How the command line ends: its exit codes and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest

import tenax as package
from tenax.cli import COMMANDS, main
from tenax.cli import tenax as command
from tenax.cli.frame import Commands, pass_config, run
from tenax.config import Config
from tenax.errors import ConfigError, TenaxError
from tests.cli.conftest import tenax


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


def test_an_old_habit_is_accepted_and_not_advertised(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stdin
        process.stdin.close()
        assert process.stderr
        assert process.stderr.read() == b""


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_disk_that_is_full_is_a_sentence(lines: int) -> None:
    """`tenax list > /dev/full` says why, once, and fails."""
    done = piped(f'[click.echo("x" * 100) for _ in range({lines})]', ">/dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "tenax: Cannot write the output: No space left on device.\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_nowhere(closed: str) -> None:
    """Who starts it without stdin, stdout or stderr gets the rest; no file of ours takes the place of one."""
    done = piped(
        'click.echo(sys.stdin.read() + "said"), click.echo("aside", err=True), sys.exit(os.dup(0) < 3)',
        closed,
    )
    assert done.returncode == 0
    assert done.stdout == ("" if ">&- 2" in closed or closed == ">&-" else "said\n")
    assert done.stderr == ("" if "2>&-" in closed else "aside\n")


def piped(body: str, how: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command that does this, in a process of its own, started by a shell with its streams so."""
    code = f"""
import os, sys, click
import tenax.cli
from tenax.cli.output import print_exactly, print_json
tenax.cli.tenax.command("go")(lambda: [{body}] and None)
tenax.cli.main(["go"])
"""
    line = f'exec "$0" -c "$1" {how}'
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, code],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding=env.get("PYTHONIOENCODING", "utf-8"),
        timeout=60,
        check=False,
    )


def test_what_an_encoding_does_not_have_is_replaced() -> None:
    """A terminal that is not of UTF-8 gets what it can show."""
    done = piped(
        'click.echo("caf\\xe9 \\u65e5 \\udcff")', "", PYTHONIOENCODING="latin-1"
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        b"caf\xe9 ? ?\n".decode("latin-1"),
        "",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-p hello list", "-p cannot be used with a command."),
        ("--json list", "--json cannot be used with a command."),
        ("-c c_1 show c_1", "-c cannot be used with a command."),
        (
            "--no-context-files doctor",
            "--no-context-files cannot be used with a command.",
        ),
        ("--json", "--json needs -p."),
        ("--attach x", "--attach needs -p."),
        ("--how steer", "--how needs -p."),
        ("--new -c c_1", "--new and -c cannot be used together."),
        ("-p hello --new -c c_1", "--new and -c cannot be used together."),
    ],
)
@pytest.mark.usefixtures("home")
def test_an_option_that_would_not_be_heeded_is_refused(
    capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    """Who asks for JSON, for a conversation or for a file gets it, or is told."""
    code, out, err = tenax(capsys, *line.split())
    assert (code, out) == (2, "")
    assert err.endswith(f"Error: {said}\n")


def test_the_very_characters_go_to_a_pipe() -> None:
    """What was said is printed as it was said, whatever it holds; and JSON holds nothing that a terminal would obey."""
    done = piped('print_exactly("\\x1b[31mred\\n")', "")
    assert done.stdout == "\x1b[31mred\n"
    done = piped('print_json(["caf\\xe9 \\x1b[31m\\x9b2J\\u202e"])', "")
    assert done.stdout == '[\n  "café \\u001b[31m\\u009b2J\\u202e"\n]\n'
    latin = piped('print_json(["\\u65e5"])', "", PYTHONIOENCODING="latin-1")
    assert msgspec.json.decode(latin.stdout.encode("latin-1")) == ["日"]
    assert msgspec.json.decode(done.stdout) == ["café \x1b[31m\x9b2J\u202e"]


def test_what_a_terminal_would_obey_stands_in_no_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name that somebody pasted comes back in what is said about it: as characters that can be seen."""
    evil = "\x1b]0;evil\x07"
    assert (
        ending(failing(TenaxError(f"There is no {evil}.", hint=f"Look at {evil}.")))
        == 1
    )
    assert (
        capsys.readouterr().err
        == "tenax: There is no \ufffd]0;evil\ufffd.\nLook at \ufffd]0;evil\ufffd.\n"
    )
    assert run(Commands(), [evil]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "]0;evil" in said


def test_ctrl_c_while_it_is_being_loaded_says_nothing() -> None:
    """Python needs a moment for all that is imported; nothing is begun in it."""
    impatient = """
import os, signal, sys
class Impatient:
    def find_spec(self, name, *rest):
        if name == "tenax.journal.journal":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
from tenax.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", impatient, "show", "c_1"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_command_is_imported_when_it_is_called(argument: str) -> None:
    """`tenax --version` and `tenax --help` load neither a command nor the agent, so they start quickly."""
    code = """
import sys
from tenax.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {name for name in done.stderr.split() if name.startswith("tenax.")}
    assert modules <= {
        "tenax.__main__",
        "tenax.cli",
        "tenax.cli.frame",
        "tenax.cli.lines",
        "tenax.errors",
        "tenax.text",
    }
    slow = {"asyncio", "apsw", "httpx", "msgspec", "prompt_toolkit", "rich", "tomlkit"}
    assert not slow & set(done.stderr.split())


def test_list_does_not_load_the_agent(home: Path) -> None:
    """`tenax list` reads the store, and loads only what reads it."""
    code = """
import sys
from tenax.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "list"],
        env={**os.environ, "TENAX_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    agent = {"asyncio", "httpx", "tenax.agent", "tenax.memory", "tenax.models", "tenax.tools", "tenax.web"}  # fmt: skip
    assert not agent & set(done.stderr.split())


def test_help_names_every_command_with_the_first_sentence_of_its_own_help() -> None:
    """The table in `tenax.cli` repeats the sentences, so that `--help` need not import the commands."""
    context = click.Context(command)
    for name, lazy in COMMANDS.items():
        loaded = command.get_command(context, name)
        assert loaded is not None
        assert loaded.name == name
        sentence = (loaded.help or "").partition("\n")[0].partition(". ")[0]
        assert lazy.help == sentence.removesuffix(".") + "."


def test_what_was_told_to_ignore_ctrl_c_ignores_it() -> None:
    """As `nohup` and a background job of a script have it."""
    deaf = """
import os, signal
from tenax.__main__ import main
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    main()
finally:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    subprocess.run(
        [sys.executable, "-c", deaf, "--version"], capture_output=True, check=True
    )


def test_the_public_names_are_there_and_others_are_not() -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert getattr(package, "recovery").repair  # noqa: B009  (a part that nobody imported by name)
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        getattr(package, "opne")  # noqa: B009
