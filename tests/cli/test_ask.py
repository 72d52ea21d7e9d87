"""`tenax -p`, and `tenax show`: one question, one answer, and a sentence for whatever goes wrong."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import click
import msgspec
import pytest

import tenax as journals
from tenax.clock import Timing
from tenax.events import BODY_BYTES_MAX, MessageWithdrawn, RunFinished, RunStarted
from tenax.journal import LOCAL_USER
from tenax.models import Reply, Script, ScriptedCall, Trouble
from tests.cli.conftest import tenax
from tests.contract.engine.base import begin, take
from tests.support.runs import config_of
from tests.support.turns import journal_of, rows_of, set_up, wait_for

ANSWER = "Forty-two, I think."


@pytest.fixture
def home(store_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home, with a model that answers."""
    monkeypatch.setenv("TENAX_STORE", store_url)
    set_up(home, [Reply(words=ANSWER)])
    return home


def conversation_in(err: str) -> str:
    found = re.search(r"conversation (\S+)", err)
    assert found is not None, err
    return found[1]


def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the conversation is told, to go on with; `tenax show` shows what was said."""
    code, out, err = tenax(capsys, "-p", "What is it?")
    assert (code, out) == (0, f"{ANSWER}\n")
    name = conversation_in(err)
    assert err == f"conversation {name}\n"
    assert tenax(capsys, "-p", "Sure?", "-c", name)[:2] == (0, f"{ANSWER}\n")
    code, out, err = tenax(capsys, "show", name)
    assert (code, err) == (0, "")
    told = [part.split("\n", 1) for part in out.rstrip("\n").split("\n\n")]
    assert [text for _, text in told] == ["What is it?", ANSWER, "Sure?", ANSWER]
    assert [head.split(",")[0] for head, _ in told] == ["You", "Tenax", "You", "Tenax"]
    code, out, _ = tenax(capsys, "show", name, "--json")
    assert [row["kind"] for row in msgspec.json.decode(out)] == [
        "user",
        "assistant",
    ] * 2


def test_an_answer_that_reached_its_longest_is_said_to_have(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends in mid-sentence, and whoever reads it is told why; what goes to stdout is the answer alone."""
    set_up(home, [Reply(words="There once was a", finish="length")])
    code, out, err = tenax(capsys, "-p", "A long story.")
    assert (code, out) == (0, "There once was a\n")
    assert err.splitlines()[1:] == ["Reached the maximum length."]
    assert (
        "(reached the maximum length)\nThere once was a\n"
        in tenax(capsys, "show", conversation_in(err))[1]
    )


def test_tools_are_told_aside(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that would have to be asked for is denied: nobody is there to be asked."""
    calls = [
        ScriptedCall("write_file", {"path": "a", "content": "b"}),
        ScriptedCall("read_file", {"path": "c"}),
    ]
    set_up(home, [Reply(words="Hm.", calls=calls), Reply(words=ANSWER)])
    code, out, err = tenax(capsys, "-p", "Go")
    assert (code, out) == (0, f"Hm.\n{ANSWER}\n")
    assert "[write_file denied]\n" in err
    assert "[read_file failed]\n" in err
    assert not (config_of(os.environ["TENAX_STORE"], home).tools_folder / "a").exists()


def test_a_rule_lets_a_tool_do_it_and_its_lack_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is denied is told with the command that would allow just that; after it, the same question is answered."""
    calls = [ScriptedCall("write_file", {"path": "it's [1]*.txt", "content": "b"})]
    set_up(home, [Reply(words="Hm.", calls=calls), Reply(words=ANSWER)])
    file = config_of(os.environ["TENAX_STORE"], home).tools_folder / "it's [1]*.txt"
    for more in ((), ("--json",)):
        code, _, err = tenax(capsys, *more, "-p", "Go")
        assert code == 0
        told = [
            line
            for line in err.splitlines()
            if "No rule allows this. To allow it: " in line
        ]
        assert len(told) == 1, err
        assert not file.exists()
    wanted = shlex.split(told[0].partition("it: ")[2])
    assert wanted == [
        "tenax",
        "rules",
        "add",
        "allow",
        "write_file",
        "it's [[]1][*].txt",
    ]
    assert tenax(capsys, *wanted[1:])[0] == 0
    _, _, err = tenax(capsys, "-p", "Go")
    assert "[write_file done]\n" in err
    assert "rule" not in err
    assert file.exists()
    file.unlink()
    assert tenax(capsys, "rules", "add", "deny", "write_file")[0] == 0
    _, _, err = tenax(capsys, "-p", "Go")
    assert "[write_file denied]\n" in err
    assert "To allow it" not in err
    assert not file.exists()


def test_a_file_that_went_with_a_message_is_named_where_it_is_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With words and without."""
    file = home / "note.txt"
    file.write_text("the moon")
    name = conversation_in(tenax(capsys, "-p", "Read it", "--attach", str(file))[2])
    assert tenax(capsys, "-p", "", "--attach", str(file), "-c", name)[0] == 0
    shown = tenax(capsys, "show", name)[1]
    assert "\nRead it [note.txt]\n" in shown
    assert "\n[note.txt]\n" in shown


def test_words_come_from_stdin(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-p -` reads all of it but a byte order mark; what is no text is refused in a sentence."""
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfline one\nline two\n"))
    )
    code, out, err = tenax(capsys, "-p", "-")
    assert (code, out) == (0, f"{ANSWER}\n")
    rows = rows_of(journal_of(os.environ["TENAX_STORE"], conversation_in(err))).rows
    assert rows[0].text == "line one\nline two\n"
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")
    )
    code, out, err = tenax(capsys, "-p", "-")
    assert (code, out, err) == (
        1,
        "",
        "tenax: The input on stdin is not UTF-8 text.\n",
    )
    with open("/dev/zero", encoding="utf-8") as endless:  # noqa: PTH123  (no file)
        monkeypatch.setattr(sys, "stdin", endless)
        code, out, err = tenax(capsys, "-p", "-")
    assert (code, out, err) == (
        1,
        "",
        f"tenax: The input on stdin is too large. The limit is {BODY_BYTES_MAX:,} bytes.\n",
    )


@pytest.mark.parametrize(
    ("words", "piped", "asked"),
    [
        ("Sum it up.", "one\ntwo\n", "Sum it up.\n\none\ntwo\n"),
        ("", "one\n", "one\n"),
        ("Sum it up.", "", "Sum it up."),
        ("Sum it up.", " \n", "Sum it up."),
    ],
)
@pytest.mark.parametrize("how", ["pipe", "file"])
def test_what_is_piped_in_goes_with_the_question(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    words: str,
    piped: str,
    asked: str,
) -> None:
    """After the question and an empty line; nothing is added where nothing came."""
    file = home / "piped"
    file.write_text(piped)
    command = ["cat", str(file)] if how == "pipe" else ["true"]
    with subprocess.Popen(command, stdout=-1) as cat, file.open() as opened:
        assert cat.stdout is not None
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(cat.stdout) if how == "pipe" else opened
        )
        code, out, err = tenax(capsys, "-p", words)
    assert (code, out) == (0, f"{ANSWER}\n")
    name = conversation_in(err)
    assert err == f"conversation {name}\n"
    assert rows_of(journal_of(os.environ["TENAX_STORE"], name)).rows[0].text == asked


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_that_is_silent_for_a_while_is_waited_for(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    blocking: bool,
) -> None:
    """The person is told what is waited for, and what comes late is asked."""
    read, write = os.pipe()
    os.set_blocking(read, blocking)
    echo = click.echo

    def told(message: str = "", **given: Any) -> None:
        echo(message, **given)
        if message.startswith("Waiting"):
            threading.Thread(target=send).start()

    def send() -> None:
        os.write(write, b"late\n")
        os.close(write)

    monkeypatch.setattr(click, "echo", told)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        timing = Timing(stdin_seconds=0.01)
        code, out, err = tenax(capsys, "-p", "What is it?", timing=timing)
    assert (code, out) == (0, f"{ANSWER}\n")
    waiting = "Waiting for input on stdin; press Ctrl-D or use `</dev/null` if there is none.\n"
    assert err.startswith(waiting)
    name = conversation_in(err.removeprefix(waiting))
    assert (
        rows_of(journal_of(os.environ["TENAX_STORE"], name)).rows[0].text
        == "What is it?\n\nlate\n"
    )


def test_stdin_that_cannot_be_read_or_is_no_text_is_told(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is open for writing only is none. Other encodings are refused, whatever Python would take."""
    file = home / "piped"
    with (
        file.open("wb") as written,
        os.fdopen(os.dup(written.fileno()), encoding="utf-8") as stdin,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = tenax(capsys, "-p", "What is it?")
    assert (code, out) == (0, f"{ANSWER}\n")
    assert (
        rows_of(journal_of(os.environ["TENAX_STORE"], conversation_in(err)))
        .rows[0]
        .text
        == "What is it?"
    )
    file.write_bytes(b"caf\xe9")
    for encoding, errors in (
        ("utf-8", "strict"),
        ("utf-8", "surrogateescape"),
        ("latin-1", "strict"),
    ):
        with file.open(encoding=encoding, errors=errors) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            told = tenax(capsys, "-p", "What is it?")
        assert told == (1, "", "tenax: The input on stdin is not UTF-8 text.\n")
    os.truncate(file, BODY_BYTES_MAX + 1)
    with file.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = tenax(capsys, "-p", "What is it?")
    assert (code, out) == (1, "")
    assert "is too large" in err


@pytest.mark.parametrize("how", ["take-over", "take over"])
def test_a_message_takes_over_in_either_spelling(
    home: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """With a hyphen, as an option is typed, and with the space of earlier versions."""
    set_up(home, [Reply("Yes.")])
    assert tenax(capsys, "-p", "hello", "--how", how)[:2] == (0, "Yes.\n")


def test_what_cannot_be_asked_is_refused_in_a_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing set up is 3, an empty message and an unknown conversation are 1, a wrong option is 2."""
    code, out, err = tenax(capsys, "-p", "hello", "-c", "c_nowhere")
    assert (code, out) == (1, "")
    assert "c_nowhere" in err
    assert tenax(capsys, "show", "c_nowhere")[0] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    for words in ("", "  \n", "-"):
        code, out, err = tenax(capsys, "-p", words)
        assert (code, out, err.splitlines()[0]) == (
            1,
            "",
            "tenax: The message is empty.",
        )
    code, _, err = tenax(capsys, "-p", "half a pair \ud800")
    assert code == 1
    assert "which is no text" in err
    assert tenax(capsys, "list")[:2] == (0, "")
    assert tenax(capsys, "-p", "hello", "--how", "shout")[0] == 2
    (home / "config.toml").unlink()
    code, out, err = tenax(capsys, "-p", "hello")
    assert (code, out) == (3, "")
    assert err.startswith("tenax: No model is set up.\n")


def test_every_change_is_a_line_of_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that keeps rows by their id has the transcript at the end."""
    set_up(
        home,
        [
            Reply(words="one two three four", pause=0.03),
            Reply(trouble=Trouble("key", "No entry.")),
        ],
    )
    code, out, err = tenax(capsys, "-p", "count", "--json")
    assert (code, err) == (0, "")
    first, *changes = [msgspec.json.decode(line) for line in out.splitlines()]
    assert first["type"] == "began"
    seqs = [change["seq"] for change in changes]
    assert seqs == sorted(seqs)
    rows: dict[str, str] = {}
    for change in changes:
        match change["type"]:
            case "put":
                rows[change["row"]["id"]] = change["row"].get("text", "")
            case "grow":
                assert len(rows[change["id"]]) == change["offset"]
                rows[change["id"]] += change["text"]
    assert list(rows.values()) == ["count", "one two three four"]
    code, out, _ = tenax(capsys, "-p", "again", "-c", first["conversation"], "--json")
    assert code == 1
    assert "No entry." in msgspec.json.decode(out.splitlines()[-1])["row"]["text"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_message_that_is_cancelled_elsewhere_ends_it(
    home: Path, more: tuple[str, ...]
) -> None:
    """Exit code 1. The message waits behind the answer of another process."""
    set_up(home, [Reply(words=ANSWER)])
    with journals.open(os.environ["TENAX_STORE"], user=LOCAL_USER) as journal:
        name = begin(journal)
        lease = take(journal, f"run:{name}")
        journal.append(name, [RunStarted()], run="r-1", lease=lease)
        args = [sys.executable, "-m", "tenax", "-p", "hello", "-c", name, *more]
        process = subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        )
        waiting = wait_for(journal, name, "message.user")
        journal.append(name, [MessageWithdrawn(waiting.seq)])
        end = [RunFinished("completed")]
        journal.append(name, end, run="r-1", lease=lease, release=True)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors.decode()
    if not more:
        assert "cancelled before its answer began." in errors.decode()


def test_a_wrong_key_is_told_and_the_message_is_kept(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    refusing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 1, a sentence that says where to look, and a way to go on with another key."""
    settings = (
        f'api = "openai"\nurl = "{refusing}/v1"\nname = "m"\nkey = "env:MY_KEY"\n'
    )
    (home / "config.toml").write_text(f'model = "main"\n[models.main]\n{settings}')
    monkeypatch.setenv("MY_KEY", "sk-hunter2-hunter2")
    code, out, err = tenax(capsys, "-p", "hello")
    assert (code, out) == (1, "")
    assert "rejected the API key. Check the key" in err
    assert "hunter2" not in err
    name = conversation_in(err)
    assert err.endswith(f'To continue: tenax -p "..." -c {name}\n')
    set_up(home, [Reply(words=ANSWER)])
    assert tenax(capsys, "-p", "again", "-c", name)[:2] == (0, f"{ANSWER}\n")
    assert "hello" in tenax(capsys, "show", name)[1]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_answer_and_keeps_what_there_is(
    home: Path, capsys: pytest.CaptureFixture[str], stop: signal.Signals
) -> None:
    """Within five seconds, with exit code 130, also when it comes twice; the conversation goes on."""
    set_up(
        home,
        [Reply(words="once upon a time", pause=0.05, hang=True), Reply(words=ANSWER)],
    )
    args = [sys.executable, "-m", "tenax", "-p", "tell me"]
    process = subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    seen = read_until(process.stdout, b"upon")
    process.send_signal(stop)
    if stop is signal.SIGINT:
        process.send_signal(stop)
    rest, errors = process.communicate(timeout=60)
    err = errors.decode()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    name = conversation_in(err)
    rows = rows_of(journal_of(os.environ["TENAX_STORE"], name)).rows
    assert [(row.kind, row.state) for row in rows[1:]] == [
        ("assistant", "cut"),
        ("marker", "stopped"),
    ]
    assert rows[1].text.startswith((seen + rest).decode().rstrip("\n"))
    assert tenax(capsys, "-p", "go on", "-c", name)[:2] == (0, f"{ANSWER}\n")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_reader_that_goes_away_ends_it_and_loses_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """`tenax -p ... | head -1` comes to its end; what the model had said is kept, and the conversation goes on."""
    set_up(
        home, [Reply(words="once upon a time " * 100, pause=0.05), Reply(words=ANSWER)]
    )
    args = [sys.executable, "-m", "tenax", *more, "-p", "tell me"]
    with subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout, b"upon")
        process.stdout.close()
        try:
            assert process.wait(60) == 1
        finally:
            process.kill()
        assert re.fullmatch(r"(conversation \S+\n)?", process.stderr.read().decode())
    (name,) = [
        each["id"] for each in msgspec.json.decode(tenax(capsys, "list", "--json")[1])
    ]
    rows = rows_of(journal_of(os.environ["TENAX_STORE"], name)).rows
    assert [(row.kind, row.state) for row in rows[1:]] == [
        ("assistant", "cut"),
        ("marker", "recovered"),
    ]
    assert "once upon" in rows[1].text
    assert tenax(capsys, "-p", "go on", "-c", name)[:2] == (0, f"{ANSWER}\n")


def test_the_exact_words_go_to_a_pipe_and_what_a_terminal_would_obey_to_no_terminal(
    home: Path,
) -> None:
    """An escape sequence that a model wrote is part of its answer, and is obeyed by nobody."""
    evil = "\x1b]0;evil\x07 \x1b[31mred\x9b2J\n\tend"
    set_up(home, [Reply(words=evil)])
    args = [sys.executable, "-m", "tenax", "-p", "be evil"]
    piped = subprocess.run(args, capture_output=True, timeout=60, check=True)
    assert piped.stdout.decode() == f"{evil}\n"
    master, slave = pty.openpty()
    subprocess.run(
        args, stdout=slave, stderr=subprocess.DEVNULL, timeout=60, check=True
    )
    shown = shown_on(master, slave)
    assert shown == "�]0;evil� �[31mred�2J\r\n\tend\r\n"


def test_what_is_told_aside_has_a_line_of_its_own_in_a_terminal(home: Path) -> None:
    """Both come to one screen there; the words of the answer are as they are elsewhere."""
    set_up(
        home,
        [
            Reply(words="Hm.", calls=[ScriptedCall("read_file", {"path": "c"})]),
            Reply(words=ANSWER),
        ],
    )
    master, slave = pty.openpty()
    args = [sys.executable, "-m", "tenax", "-p", "Go"]
    subprocess.run(args, stdout=slave, stderr=slave, timeout=60, check=True)
    shown = shown_on(master, slave)
    lines = ["Hm.", "[read_file running]", "[read_file failed]", "", ANSWER, ""]
    assert shown.split("\r\n")[1:] == lines


def test_nothing_in_a_conversation_is_obeyed_by_the_terminal_that_shows_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is the name of a tool, which a model makes up."""
    evil = "\x1b]0;evil\x07"
    set_up(
        home,
        [
            Reply(words=f"{evil}one\r\ntwo", calls=[ScriptedCall(evil)]),
            Reply(words=ANSWER),
        ],
    )
    name = conversation_in(tenax(capsys, "-p", f"say {evil}")[2])
    shown = tenax(capsys, "show", name)[1]
    assert not re.search(r"[\x1b\x07\r]", shown)
    assert "[�]0;evil�: failed]" in shown
    assert "�]0;evil�one \ntwo\n" in shown


def shown_on(master: int, slave: int) -> str:
    """All that was written to a terminal. It comes in pieces, a moment after it was written."""
    os.close(slave)
    shown = b""
    # nobody is at the other end, and everything was read
    with contextlib.suppress(OSError):
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    return shown.decode()


def read_until(pipe: IO[bytes], words: bytes) -> bytes:
    """What comes through a pipe, up to these words."""
    found = b""
    watchdog = threading.Timer(20.0, pipe.close)
    watchdog.start()
    while words not in found:
        found += os.read(pipe.fileno(), 1024)
    watchdog.cancel()
    return found


def test_the_first_question_makes_the_place_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without a store the usual folder is made, for this person only."""
    home = tmp_path / "not" / "yet"
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(Script([Reply(words=ANSWER)])))
    config = tmp_path / "config.toml"
    config.write_text(
        f'[models.main]\napi = "script"\nurl = "{script}"\nname = "demo"\n'
    )
    monkeypatch.delenv("TENAX_STORE", raising=False)
    monkeypatch.setenv("TENAX_HOME", str(home))
    monkeypatch.setenv("TENAX_CONFIG", str(config))
    assert tenax(capsys, "-p", "hello")[:2] == (0, f"{ANSWER}\n")
    assert home.stat().st_mode & 0o077 == 0
