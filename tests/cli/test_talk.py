"""`tenax`: a talk in a real terminal, typed and read as a person would, against a model that plays a script."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.concurrency import write_atomically
from tenax.config import load
from tenax.config.rules import Rule
from tenax.errors import InvalidInput
from tenax.events import ApprovalAnswered, ModelRequested
from tenax.models import Reply, ScriptedCall
from tests.support.postgres import PostgresServer
from tests.support.runs import config_of, until
from tests.support.served import Pace
from tests.support.turns import journal_of, new_conversation, rows_of, set_up

SECONDS = 60.0
CTRL_C, CTRL_D, CTRL_Z, ALT_ENTER = "\x03", "\x04", "\x1a", "\x1b\r"
WRITE = ScriptedCall("write_file", {"path": "notes.txt", "content": "remember\nthis"})
_TOKEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\r\n\b]|[^\x1b\r\n\b]+|\x1b")


class Tape:
    """What a person has seen and could scroll back to: a terminal without an upper edge."""

    def __init__(self, written: str) -> None:
        self.lines = [""]
        self._row = self._column = 0
        for token in _TOKEN.findall(written):
            if token.startswith("\x1b"):
                self._obey(token)
            elif token in "\r\n\b":
                self._row += token == "\n"
                self._column = max(self._column - 1, 0) if token == "\b" else 0
            else:
                line = self._line.ljust(self._column)
                self.lines[self._row] = (
                    line[: self._column] + token + line[self._column + len(token) :]
                )
                self._column += len(token)

    @property
    def _line(self) -> str:
        self.lines += [""] * (self._row + 1 - len(self.lines))
        return self.lines[self._row]

    def _obey(self, token: str) -> None:
        count = (
            int(token[2:-1] or 1) if token[2:-1].isdecimal() or not token[2:-1] else 0
        )
        match token[-1]:
            case "A":
                self._row = max(self._row - count, 0)
            case "B":
                self._row += count
            case "C":
                self._column += count
            case "D":
                self._column = max(self._column - count, 0)
            case "J" | "K":
                self.lines[self._row] = self._line[: self._column]
                if token[-1] == "J":
                    del self.lines[self._row + 1 :]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


class Terminal:
    """`tenax` in a terminal of its own: what is typed goes in, what a person could have read comes out."""

    def __init__(
        self, *args: str, command: Sequence[str] = (sys.executable, "-m", "tenax")
    ) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (30, 100))
        env = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [*command, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = b""
        self._before = ""

    def type(self, *texts: str) -> None:
        while not self.text.rpartition("\n")[2].startswith(">") and self._read(0.1):
            pass  # what is being drawn is read to its end, which is the input line
        self._before = self.text
        for text in texts:
            os.write(self._master, text.encode())

    def send(self, line: str) -> None:
        self.type(line, "\r")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            got = os.read(self._master, 65536)
        except OSError:  # nobody is at the other end any more
            got = b""
        self.raw += got
        return bool(got)

    @property
    def text(self) -> str:
        return Tape(self.raw.decode(errors="ignore")).text

    @property
    def news(self) -> str:
        """What has changed on the screen since something was typed."""
        now, before = self.text, self._before
        same = next(
            (n for n, (a, b) in enumerate(zip(now, before, strict=False)) if a != b),
            len(before),
        )
        return now[now.rfind("\n", 0, same) + 1 :]

    def until(self, words: str) -> str:
        """What is new, once these words are there."""
        return self._wait(
            lambda news: words in " ".join(news.split()) or words in news, words
        )

    def at_rest(self) -> str:
        """What is new, once nothing is being written."""
        return self._wait(
            lambda news: " · " in news and "· writing" not in news,
            "the end of the answer",
        )

    def _wait(self, there: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + SECONDS
        while not there(news := self.news):
            assert time.monotonic() < deadline, f"{what!r} did not come:\n{news}"
            assert self._read(1.0) or self.process.poll() is None, f"{what!r}:\n{news}"
        return news

    def ended(self) -> int:
        """Its exit code; and there was no traceback."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.news
            self._read(0.2)
        while self._read(0.0):
            pass
        assert "Traceback" not in self.text
        return self.process.returncode

    def resize(self, rows: int, columns: int) -> None:
        """Somebody drags the window's corner."""
        termios.tcsetwinsize(self._master, (rows, columns))
        self.process.send_signal(signal.SIGWINCH)

    def hang_up(self) -> None:
        """The window is closed."""
        self.process.send_signal(signal.SIGHUP)
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)


@pytest.fixture
def home(home: Path) -> Path:
    """A person's home, with a model that answers and a store of its own."""
    set_up(home, [Reply(words="Forty-two, *I think*.")])
    return home


@pytest.fixture
def start() -> Iterator[Callable[..., Terminal]]:
    """Starts a talk, and waits until it listens."""
    begun: list[Terminal] = []

    def begin(*args: str, until: str = "", **how: Sequence[str]) -> Terminal:
        begun.append(Terminal(*args, **how))
        begun[-1].until(until)
        begun[-1].until("script")
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


Start = Callable[..., Terminal]


def paced(home: Path, monkeypatch: pytest.MonkeyPatch, words: int) -> Pace:
    """What is started from here on says so many words of an answer, and waits for more leave."""
    pace = Pace(home, words)
    for name, value in pace.env.items():
        monkeypatch.setenv(name, value)
    return pace


def url_of(home: Path) -> str:
    return f"sqlite:///{home / 'tenax.db'}"


def conversation_in(home: Path) -> str:
    """The one conversation that is there."""
    (found,) = asyncio.run(_conversations(home))
    return found


async def _conversations(home: Path) -> list[str]:
    async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
        return [summary.conversation for summary in await runtime.conversations()]


def said_in(home: Path, conversation: str = "") -> list[tuple[str, str]]:
    """What stands in a conversation, as (kind, text)."""
    rows = rows_of(journal_of(url_of(home), conversation or conversation_in(home))).rows
    return [(row.kind, row.text) for row in rows]


def test_what_is_asked_is_answered_in_markdown_and_opens_again(
    home: Path, start: Start
) -> None:
    """The last conversation opens with its last rows; `--new` begins another, which is stored with its first words."""
    talk = start()
    talk.send("What is it?")
    assert "> What is it?" in talk.until("Forty-two, I think.")
    talk.at_rest()
    talk.type(CTRL_D)
    assert talk.ended() == 0
    name = conversation_in(home)
    assert said_in(home) == [
        ("user", "What is it?"),
        ("assistant", "Forty-two, *I think*."),
    ]
    history = home / "history"
    assert (history.stat().st_mode & 0o777, "+What is it?" in history.read_text()) == (
        0o600,
        True,
    )
    for args in ((), ("-c", name)):
        talk = start(*args, until="Forty-two, I think.")
        talk.type(CTRL_D)
        assert talk.ended() == 0
    talk = start("--new", until="New conversation.")
    folder = load({"TENAX_HOME": str(home)}).tools_folder
    shown = talk.until("? for help, ! runs a command.")
    # A long path is wrapped.
    assert f"scriptworksin{folder}." in "".join(shown.split())
    talk.send("?")
    talk.until("/versions [N]")
    talk.type(CTRL_D)
    assert talk.ended() == 0
    assert conversation_in(home) == name
    assert "Forty-two" not in talk.text


def test_a_file_goes_with_the_next_message(home: Path, start: Start) -> None:
    """It is named beside the words, and is not sent twice; what is no file is a sentence."""
    (home / "note.txt").write_text("the moon")
    talk = start()
    talk.send(f"/attach {home}")
    talk.until("is no file.")
    talk.send(f"/attach {home / 'note.txt'}")
    talk.until("note.txt is attached to the next message.")
    talk.send("Read it")
    assert "> Read it [note.txt]" in talk.until("Forty-two, I think.")
    talk.at_rest()
    talk.send("/attach")
    talk.until("Type: /attach FILE")


def test_ctrl_c_stops_the_answer_and_the_second_one_leaves(
    home: Path, start: Start
) -> None:
    """What was said stays; an input that was begun is cleared by the first one when nothing is written."""
    set_up(
        home,
        [Reply(words="once upon a time", pause=0.02, hang=True), Reply(words="Fine.")],
    )
    talk = start()
    talk.send("tell me")
    talk.until("a time")
    talk.type(CTRL_C)
    talk.until("-- Stopped.")
    assert talk.text.count("once upon a time") == 1
    talk.send("and now?")
    talk.until("Fine.")
    talk.at_rest()
    talk.type("half a thought", CTRL_C)
    talk.type(CTRL_C)
    talk.until("Press Ctrl-C again to leave")
    talk.type(CTRL_C)
    assert talk.ended() == 0
    said = [text for kind, text in said_in(home) if kind == "assistant"]
    assert said == ["once upon a time", "Fine."]


def test_a_narrow_terminal_says_too_that_an_answer_is_being_written(
    home: Path, start: Start
) -> None:
    """What the conversation is called takes half of the line at most."""
    set_up(home, [Reply(words="once upon a time", pause=0.02, hang=True)])
    talk = start()
    talk.resize(10, 40)
    talk.send("tell me")
    talk.until("once upon a time")
    talk.until("· writing")


def test_ctrl_z_gives_the_shell_back_and_the_talk_goes_on(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in any program: nothing is typed into the message, and an answer that is being written waits too."""
    set_up(home, [Reply(words="once upon a time there was an end", pause=0.3)])
    pace = paced(home, monkeypatch, 4)
    as_a_job = (
        f'exec <"$(tty)"; set -m; {sys.executable} -m tenax; echo stopped; sleep 1; fg'
    )
    talk = start(command=["/bin/sh", "-c", as_a_job])
    talk.send("tell me")
    talk.until("once upon")
    talk.type("and then?", CTRL_Z)
    talk.until("stopped")
    pace.say()
    talk.until("was an end")
    talk.until("> and then?")
    talk.send("")
    talk.until("> and then?\n")
    said = [
        ("user", "tell me"),
        ("assistant", "once upon a time there was an end"),
        ("user", "and then?"),
    ]
    assert said_in(home)[:3] == said


def test_while_an_answer_is_written_words_wait_or_steer(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter queues, /steer stands in the next request; both are shown as waiting until they are taken."""
    pace = paced(home, monkeypatch, 2)
    replies = [
        Reply(
            words="one two three",
            pause=0.4,
            calls=[ScriptedCall("read_file", {"path": "a.txt"})],
        )
    ]
    set_up(home, [*replies, Reply(words="I read it."), Reply(words="Afterwards.")])
    talk = start()
    talk.send("begin")
    talk.until("one")
    talk.send("later")
    talk.until("> later (queued)")
    talk.send("/steer mind the gap")
    talk.until("> mind the gap (steering)")
    pace.say()
    shown = talk.until("Afterwards.")
    order = ["read_file a.txt … failed", "I read it.", "> later\n"]
    places = [shown.index(words) for words in order]
    assert places == sorted(places)
    kinds = [words for kind, words in said_in(home) if kind == "user"]
    assert kinds == ["begin", "mind the gap", "later"]


def test_a_queued_message_is_edited_and_cancelled(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/edit replaces the last queued message, Ctrl-C ends the edit only, /cancel removes the message."""
    pace = paced(home, monkeypatch, 2)
    set_up(home, [Reply(words="one two three", pause=0.01), Reply(words="Afterwards.")])
    talk = start()
    talk.send("begin")
    talk.until("one")
    talk.send("/cancel")
    talk.until("No message is queued. /stop stops the answer.")
    talk.send("later")
    talk.until("> later (queued)")
    talk.send("/edit")
    talk.until("Editing: Enter sends a new version, Ctrl-C cancels")
    talk.type(CTRL_C)
    talk.send("too much")
    talk.until("> too much (queued)")
    talk.send("/cancel")
    talk.until("Cancelled: too much")
    talk.send("/edit")
    talk.until("Ctrl-C cancels")
    talk.send(" on")
    talk.until("> later on (queued)")
    pace.say()
    talk.until("Afterwards.")
    talk.at_rest()
    assert said_in(home) == [
        ("user", "begin"),
        ("assistant", "one two three"),
        ("user", "later on"),
        ("assistant", "Afterwards."),
    ]


@pytest.mark.parametrize(
    ("answer", "state"), [("y", "done"), ("n", "denied"), ("c", "done")]
)
def test_a_tool_asks_and_is_answered(
    home: Path, start: Start, answer: str, state: str
) -> None:
    """Its name, what it touches and its change are shown; the answer is yes, yes for all, or no."""
    set_up(
        home,
        [
            Reply(calls=[WRITE]),
            Reply(words="So be it."),
            Reply(calls=[WRITE]),
            Reply(words="Again."),
        ],
    )
    talk = start()
    talk.send("write it down")
    asked = talk.until("Allow write_file notes.txt? y once, c, c 2, always, n deny")
    assert "c in this conversation: write_file notes.txt (any content)" in asked
    assert "Target: notes.txt" in asked
    assert "needs approval (changes a file)." in asked
    assert "+remember" in asked
    assert "Arguments" not in asked
    assert b"\x1b[32m  +this" in talk.raw
    talk.send(answer)
    assert f"write_file notes.txt … {state}" in talk.until("So be it.")
    talk.send("once more")
    if answer == "c":
        assert "Allow" not in talk.until("Again.")
    else:
        talk.until("Allow write_file")


def test_a_no_takes_a_reason_and_several_calls_one_answer(
    home: Path, start: Start
) -> None:
    """The model reads the reason; `a` allows all calls that wait, and is offered only then."""
    calls = [
        ScriptedCall("write_file", {"path": path, "content": "x"}, id=path)
        for path in ("one", "two")
    ]
    replies = [
        Reply(calls=[WRITE]),
        Reply("Sorry."),
        Reply(calls=calls),
        Reply("Done."),
    ]
    set_up(home, replies)
    talk = start()
    talk.send("write it down")
    talk.until("Allow write_file notes.txt? y once, c, c 2, always, n deny")
    talk.send("n Use Another file")
    shown = talk.until("Sorry.")
    assert "denied: The person said no, and why: Use Another file" in shown
    talk.send("both")
    talk.until("Allow write_file one? y once, c, always, a all 2, n deny")
    talk.send("a")
    shown = talk.until("Done.")
    assert "write_file one … done" in shown
    assert "write_file two … done" in shown


def test_a_model_that_is_chosen_elsewhere_answers_here_at_once(
    home: Path, start: Start
) -> None:
    """The page, `tenax setup` or an editor chooses it in the settings file."""
    set_up(home, [Reply(words="From the first.")])
    (home / "other.json").write_text(
        '{"replies": [{"words": "From the other."}], "repeat": true}'
    )
    talk = start()
    talk.send("who is it?")
    talk.until("From the first.")
    talk.at_rest()
    file = home / "config.toml"
    section = f'\n[models.other]\napi = "script"\nurl = "{home}/other.json"\nname = "second"\n'
    section += '[models.locked]\napi = "openai"\nurl = "http://127.0.0.1:9/v1"\nname = "l"\nkey = "env:NOBODY_HAS_THIS_KEY"\n'
    settings = file.read_text() + section
    # A model whose key is not here is reported, and the next choice counts again.
    for label, words in (
        ("locked", "NOBODY_HAS_THIS_KEY"),
        ("other", "Now using second."),
    ):
        chosen = settings.replace('model = "main"', f'model = "{label}"')
        write_atomically(file, chosen.encode())
        talk.until(words)
    talk.send("and now?")
    talk.until("From the other.")


def test_a_question_mark_explains_the_answers_and_denies_nothing(
    home: Path, start: Start
) -> None:
    """The status line names the conversation by its first words, not by its id."""
    set_up(home, [Reply(calls=[WRITE]), Reply(words="So be it.")])
    talk = start()
    talk.send("write it down")
    asked = talk.until("Allow write_file notes.txt?")
    assert "c_" not in asked
    talk.send("?")
    talk.until("Any other text is a new message, and denies the call.")
    talk.send("y")
    shown = talk.until("So be it.")
    assert "write_file notes.txt … done" in shown
    assert "write it down · " in talk.until("write it down · ")


def test_what_a_turn_changed_is_shown_and_put_back(home: Path, start: Start) -> None:
    """One line under the turn; the diff; back, and back again. `tenax show` tells the same."""
    set_up(home, [Reply(calls=[WRITE]), Reply(words="So be it.")])
    file = load({"TENAX_HOME": str(home)}).tools_folder / "notes.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("forget\nthis")
    talk = start()
    talk.send("write it down")
    talk.until("Allow write_file")
    talk.send("y")
    talk.until("Changed 1 file. /changes shows them, /putback reverts them.")
    talk.at_rest()
    talk.send("/changes")
    shown = talk.until("+remember")
    assert "changed notes.txt" in shown
    assert "-forget" in shown
    assert b"\x1b[32m   +remember" in talk.raw
    assert b"\x1b[31m   -forget" in talk.raw
    talk.send("/putback")
    talk.until("notes.txt was reverted.")
    assert file.read_text() == "forget\nthis"
    talk.send("/putback")
    talk.until("notes.txt was reverted.")
    assert file.read_text() == "remember\nthis"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_changes_have_colours_only_where_they_are_wanted(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    """Neither with NO_COLOR nor in a pipe; `tenax show --changes` in a terminal is as colourful as /changes."""
    set_up(home, [Reply(calls=[WRITE]), Reply(words="So be it.")])
    monkeypatch.setenv("NO_COLOR", no_color)
    talk = start()
    talk.send("write it down")
    talk.until("Allow write_file")
    talk.send("y")
    talk.until("Changed 1 file.")
    talk.at_rest()
    before = len(talk.raw)
    talk.send("/changes")
    talk.until("+remember")
    assert (b"\x1b[32m" in talk.raw[before:]) is not bool(no_color)
    talk.type(CTRL_D)
    assert talk.ended() == 0
    args = (sys.executable, "-m", "tenax", "show", "--changes", conversation_in(home))
    piped = subprocess.run(args, capture_output=True, check=True).stdout
    assert b"\n+remember" in piped
    assert b"\x1b" not in piped
    shown = Terminal(command=args)
    try:
        assert shown.ended() == 0
    finally:
        shown.close()
    assert (b"\x1b[32m+remember" in shown.raw) is not bool(no_color)


def requests_in(home: Path) -> list[str]:
    """The bodies of all requests to the model in the one conversation, as the model saw them."""

    async def read() -> list[str]:
        async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
            (summary,) = await runtime.conversations()
            name = summary.conversation
            events = await runtime.journal.read(name, limit=1000)
            seqs = [
                fact.seq for fact in events if isinstance(fact.event, ModelRequested)
            ]
            return [(await runtime.seen(name, seq)).decode() for seq in seqs]

    return asyncio.run(read())


def test_a_command_of_the_person_runs_and_the_model_reads_it_later(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder, with the environment of the person, without an answer; its exit code is shown and secrets are not."""
    monkeypatch.setenv("SECRET_KEY_OF_MODEL", "hunter2-hunter2")
    monkeypatch.setenv("SHELL", "/bin/sh")
    config = home / "config.toml"
    config.write_text(config.read_text() + 'key = "env:SECRET_KEY_OF_MODEL"\n')
    talk = start()
    talk.send("!")
    talk.until("! and a command runs it in the folder of the conversation")
    assert asyncio.run(_conversations(home)) == []
    talk.send("!echo pears > list.txt; cat list.txt; echo $SECRET_KEY_OF_MODEL; exit 3")
    shown = talk.until("Added to the conversation; the model reads it")
    assert "\npears\n[secret]\n" in shown
    assert "… exit code 3, " in shown
    assert "writing" not in shown
    folder = load({"TENAX_HOME": str(home)}).tools_folder
    assert (folder / "list.txt").read_text() == "pears\n"
    ((kind, text),) = said_in(home)
    assert kind == "user"
    assert text.startswith("$ echo pears > list.txt; cat list.txt;")
    assert "\npears\n[secret]\n[I ran this command myself: exit code 3, " in text
    assert requests_in(home) == []
    talk.send("What was in it?")
    talk.until("Forty-two")
    talk.at_rest()
    (request,) = requests_in(home)
    assert "[secret]" in request
    assert "exit code 3" in request
    assert request.index("pears") < request.index("What was in it?")
    assert "hunter2" not in request + talk.text
    talk.send("!true")
    talk.until("… exit code 0, ")
    talk.send("/retry")
    talk.until("> What was in it?  < 2/2 >")
    talk.type(CTRL_D)
    assert talk.ended() == 0
    again = start(until="What was in it?")
    assert "> $ echo pears > list.txt" in again.text


def test_a_command_runs_while_an_answer_is_written(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer goes on, and its next request has the command. A long output is cut."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    pace = paced(home, monkeypatch, 2)
    read = ScriptedCall("read_file", {"path": "a.txt"})
    set_up(
        home, [Reply(words="one two three", calls=[read]), Reply(words="I read it.")]
    )
    talk = start()
    talk.send("begin")
    talk.until("one")
    talk.send("!yes pears | head -n 20000")
    talk.until("… exit code 0, ")
    pace.say()
    talk.until("I read it.")
    talk.at_rest()
    first, second = requests_in(home)
    assert "pears" not in first
    assert "$ yes pears | head -n 20000" in second
    assert "bytes are not shown ...]" in second
    assert len(second) < 100_000


def test_ctrl_c_stops_the_command_and_the_talk_goes_on(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output is shown as it comes; a process in the background does not hold the command; one command at a time."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    talk = start()
    talk.send("!echo begun; printf half; exec sleep 600")
    shown = talk.until("running, Ctrl-C stops it")
    shown = talk.until("\nhalf\n")
    assert "\nbegun\n" in shown
    talk.send("!echo other")
    talk.until("A command is still running. Ctrl-C stops it.")
    talk.type(CTRL_C)
    talk.until("… stopped by SIGINT, ")
    assert said_in(home)[0][1].startswith(
        "$ echo begun; printf half; exec sleep 600\nbegun\nhalf"
    )
    talk.type(CTRL_C)
    talk.send("!sleep 600 & echo $!")
    news = talk.until("… exit code 0, ")
    pid = next(int(line) for line in news.splitlines() if line.strip().isdecimal())
    os.kill(pid, signal.SIGKILL)
    talk.send("!trap 'echo no' INT; echo ready; while :; do sleep 0.1; done")
    talk.until("\nready\n")
    talk.type(CTRL_C)
    talk.until("no\n")
    talk.until("stopping, Ctrl-C kills it")
    talk.type(CTRL_C)
    talk.until("… stopped by SIGKILL, ")
    assert talk.process.poll() is None


def test_leaving_ends_the_command(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As closing a terminal does; and the person reads that the output was not added."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    talk = start()
    talk.send(
        "!trap '' PIPE; trap 'echo > ended.txt; exit' HUP; echo ready; while :; do sleep 0.1; done"
    )
    talk.until("\nready\n")
    talk.type(CTRL_D)
    assert talk.ended() == 0
    assert "The command was stopped, and its output is not in the conversation." in (
        talk.text
    )
    assert said_in(home) == []
    file = load({"TENAX_HOME": str(home)}).tools_folder / "ended.txt"
    deadline = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_question_is_answered_with_a_number_or_in_other_words(
    home: Path, start: Start
) -> None:
    """The choices are shown with their numbers; /queue says something else instead."""
    first, second, third = (
        ScriptedCall(
            "ask",
            {"question": f"Which\ncolour has the {each}?", "choices": ["Red", "Blue"]},
        )
        for each in ("door", "wall", "roof")
    )
    set_up(
        home,
        [
            *(Reply(calls=[each]) for each in (first, second, third)),
            Reply("Thanks."),
            Reply("Well."),
        ],
    )
    talk = start()
    talk.send("paint it")
    shown = talk.until("Type a number or your own answer")
    assert "  Which colour has the door?\n  1  Red\n  2  Blue\n" in shown
    talk.send("2")
    talk.until("the wall? 1 Red 2 Blue Type a number")
    talk.send("n")
    talk.until("the roof? 1 Red 2 Blue Type a number")
    talk.send("/queue leave it")
    talk.until("Well.")
    texts = [text for kind, text in said_in(home) if kind == "tool"]
    assert texts == [
        "The person answered:\n\nBlue",
        "The person answered:\n\nn",
        "The person said something else instead.",
    ]


@pytest.mark.parametrize("answer", ["y", "c"])
def test_a_line_answers_the_question_that_was_shown_when_it_was_begun(
    home: Path, start: Start, answer: str
) -> None:
    """If another one stands there at Enter, the terminal says so, keeps the line, and answers nothing."""
    first, second = (
        ScriptedCall("write_file", {"path": path, "content": "x"}, id=path)
        for path in ("one", "two")
    )
    set_up(home, [Reply(calls=[first, second]), Reply("Done.")])
    talk = start()
    talk.send("write it down")
    talk.until("Allow write_file one?")
    talk.type(answer)
    talk.until(f"> {answer}")

    async def deny_first() -> str:
        async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
            name = (await runtime.conversations())[0].conversation
            (question, _) = await runtime.questions(name)
            await runtime.answer(name, question.message, question.call, "no")
            return name

    name = asyncio.run(deny_first())
    talk.until("Allow write_file two?")
    talk.type("\r")
    talk.until("The question appeared after")
    talk.until(f"> {answer}")
    given = [
        each.event
        for each in journal_of(url_of(home), name)
        if each.kind == "approval.answered"
    ]
    assert [event.call for event in given if isinstance(event, ApprovalAnswered)] == [
        "one"
    ]
    talk.type("\r")
    assert "write_file two … done" in talk.until("Done.")


def test_always_shows_the_rule_before_it_makes_it(home: Path, start: Start) -> None:
    """Which patterns there are is told in full first; the rule is listed, is heeded elsewhere, and can be taken back."""
    write = ScriptedCall("write_file", {"path": "a[1]/notes.txt", "content": "x"})
    set_up(
        home,
        [
            Reply(calls=[write]),
            Reply(words="So be it."),
            Reply(calls=[write]),
            Reply(words="Again."),
        ],
    )
    talk = start()
    talk.send("write it down")
    talk.until("always, n deny")
    talk.send("always")
    shown = talk.until("Type always 1")
    assert " 1  write_file  a[[]1]/notes.txt (any content)" in shown
    assert " 2  write_file  a[[]1]/*.txt" in shown
    assert " 3  write_file  a[[]1]/**" in shown
    assert load({"TENAX_HOME": str(home)}).rules == ()
    talk.send("always 4")
    talk.until("No pattern has the number 4.")
    talk.send("always 3")
    talk.until("So be it.")
    assert load({"TENAX_HOME": str(home)}).rules == (
        Rule("allow", "write_file", "a[[]1]/**"),
    )
    talk.send("/rules")
    talk.until("1  allow  write_file  a[[]1]/**")
    talk.send("once more")
    assert "Allow" not in talk.until("Again.")
    talk.send("/rules remove 2")
    talk.until("No rule has the number 2.")
    talk.send("/rules remove 1")
    talk.until("Removed: allow write_file a[[]1]/*")
    assert load({"TENAX_HOME": str(home)}).rules == ()
    talk.send("/rules all")
    talk.until("Unknown option 'all'.")


def test_a_question_that_is_answered_elsewhere_goes(home: Path, start: Start) -> None:
    """A line says so; who answers it a second time is told plainly, and nothing is said in the conversation."""
    set_up(
        home, [Reply(calls=[WRITE]), Reply(words="Thank you all very much.", pause=0.5)]
    )
    talk = start()
    talk.send("write it down")
    talk.until("Allow write_file")

    async def answer() -> None:
        async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
            name = (await runtime.conversations())[0].conversation
            asked = await until(runtime, name, "approval.asked")
            await runtime.answer(name, asked.event.message, asked.event.call, "once")  # type: ignore[union-attr]
            with pytest.raises(InvalidInput, match="answered already"):
                await runtime.answer(name, asked.event.message, asked.event.call, "no")  # type: ignore[union-attr]
            await until(runtime, name, "tool.finished")
            await until(runtime, name, "reply.delta")
            talk.until(
                "The question about write_file was answered elsewhere: approved."
            )
            talk.send("n")
            talk.until("The question was already answered")
            await runtime.workers.idle(name)

    asyncio.run(answer())
    assert "Thank you all" in talk.until("very much.")
    assert [kind for kind, _ in said_in(home)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "files",
    ]


def test_an_answer_that_another_process_writes_is_seen_here_as_it_comes(
    store_url: str, home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first words are on the screen before its last are written; and it can be stopped from here."""
    monkeypatch.setenv("TENAX_STORE", store_url)
    set_up(home, [Reply(words="from far away", pause=0.1, hang=True)])
    name = new_conversation(store_url)
    talk = start("-c", name)

    async def other() -> None:
        async with Runtime(config_of(store_url, home), serves=False) as runtime:
            await runtime.submit(name, "hello from elsewhere")
            async with asyncio.timeout(SECONDS):
                await asyncio.to_thread(talk.until, "> hello from elsewhere")
                await asyncio.to_thread(talk.until, "far away")
                talk.type(CTRL_C)
                await until(runtime, name, "run.finished")

    asyncio.run(other())
    talk.until("-- Stopped.")
    assert talk.text.count("from far away") == 1
    talk.type(CTRL_D)
    assert talk.ended() == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_each_word_is_shown_once_after_a_crash_of_the_server_of_a_minute(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash takes stored text, and its numbers go to other events. What the terminal showed stands, and the rest comes."""
    words = " ".join(f"w{n}" for n in range(110))
    set_up(
        home,
        [Reply(words=words, calls=[ScriptedCall("none", {})]), Reply(words="done")],
    )
    pace = paced(home, monkeypatch, 10)
    # The server flushes nothing by itself, so what was stored without a flush is lost.
    with PostgresServer({"wal_writer_delay": "10s"}) as server:
        monkeypatch.setenv("TENAX_STORE", server.create_database())
        talk = start()
        talk.send("go")
        talk.until("w5")
        server.stop("immediate")
        pace.say()
        time.sleep(50)  # the absence itself
        server.start()
        talk.until("done")
        talk.at_rest()
        shown = re.findall(r"\bw\d+\b|\bdone\b", talk.text)
        talk.type(CTRL_D)
        assert talk.ended() == 0
    assert shown == [*words.split(), "done"]


def test_a_conversation_that_is_deleted_elsewhere_makes_room_for_a_new_one(
    home: Path, start: Start
) -> None:
    """A line says so, and what is said next begins another."""
    talk = start()
    talk.send("first")
    talk.until("Forty-two")
    talk.at_rest()

    async def delete() -> str:
        async with Runtime(config_of(url_of(home), home), serves=False) as runtime:
            name = (await runtime.conversations())[0].conversation
            await runtime.delete(name)
            return name

    gone = asyncio.run(delete())
    talk.until("This conversation was deleted.")
    talk.until("new conversation · script")
    talk.send("second")
    talk.until("Forty-two")
    assert conversation_in(home) != gone


def test_leaving_in_the_middle_parks_the_answer(home: Path, start: Start) -> None:
    """A line says so, and it goes on when the conversation is opened again."""
    set_up(
        home,
        [Reply(words="a long story ", pause=0.3, hang=True), Reply(words="The end.")],
    )
    talk = start()
    talk.send("tell me")
    talk.until("story")
    talk.type(CTRL_D)
    talk.until("It continues when you open the conversation again.")
    assert talk.ended() == 0
    set_up(home, [Reply(words="A short one.")])
    talk = start(until="The answer was interrupted")
    talk.until("A short one.")


def test_a_terminal_that_is_closed_parks_the_answer_too(
    home: Path, start: Start
) -> None:
    """Nobody is told anything, and what was said is in the store."""
    set_up(home, [Reply(words="a long story ", pause=0.1, hang=True)])
    talk = start()
    talk.send("tell me")
    talk.until("story")
    talk.hang_up()
    assert talk.process.wait(SECONDS) == 0
    rows = rows_of(journal_of(url_of(home), conversation_in(home))).rows
    assert [(row.kind, row.state) for row in rows] == [
        ("user", ""),
        ("assistant", "cut"),
        ("marker", "recovered"),
    ]


def test_several_lines_are_one_message(home: Path, start: Start) -> None:
    """Alt-Enter begins a line, and what is pasted stays together."""
    talk = start()
    talk.type("one", ALT_ENTER, "two", "\x1b[200~\nthree\nfour\x1b[201~")
    talk.send("")
    talk.until("Forty-two")
    assert said_in(home)[0] == ("user", "one\ntwo\nthree\nfour")


def test_a_message_with_a_long_answer_is_taken_back(home: Path, start: Start) -> None:
    """However many rows stand below it."""
    calls = [
        ScriptedCall("read_file", {"path": "none.txt"}, id=f"call_{n}")
        for n in range(30)
    ]
    set_up(
        home,
        [
            Reply("A step.", calls=calls),
            Reply("Another.", calls=calls),
            Reply("The end."),
        ],
    )
    talk = start()
    talk.send("first")
    talk.until("The end.")
    talk.at_rest()
    talk.send("/undo")
    talk.until("/undo back restores it.")
    assert said_in(home) == []


def test_what_was_said_is_taken_back_asked_again_and_changed(
    home: Path, start: Start
) -> None:
    """/undo, /undo back, /retry, /edit, /clear: what no longer stands is said to, and comes back when asked for."""
    talk = start()
    talk.send("first")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/undo")
    talk.until("/undo back restores it.")
    assert said_in(home) == []
    talk.send("/undo back")
    talk.until("> first")
    talk.until("Forty-two")
    talk.send("/retry")
    talk.until("the last 2 rows above.")
    talk.until("> first")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/edit")
    talk.until("Editing: Enter sends a new version, Ctrl-C cancels")
    talk.until("> first")
    talk.send(" of all")
    talk.until("the last 2 rows above.")
    talk.until("> first of all")
    talk.until("Forty-two")
    talk.at_rest()
    assert said_in(home)[0] == ("user", "first of all")
    talk.send("/clear")
    talk.until("Cleared. /undo back restores it.")
    assert said_in(home) == []
    talk.send("/retry")
    talk.until("There is no message to remove.")


def test_an_edit_and_a_retry_keep_the_earlier_versions(
    home: Path, start: Start
) -> None:
    """/versions lists them with numbers and brings one back with its answer; Ctrl-C ends an edit and changes nothing."""
    talk = start()
    talk.send("/versions")
    talk.until("This conversation has no messages yet.")
    talk.send("first")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/versions")
    talk.until("No message has versions.")
    talk.send("/edit")
    talk.until("Ctrl-C cancels")
    talk.type(CTRL_C)
    talk.send("/versions")
    talk.until("No message has versions.")
    talk.send("/edit")
    talk.until("Ctrl-C cancels")
    talk.send(" of all")
    talk.until("> first of all  < 2/2 >")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/retry")
    talk.until("> first of all  < 3/3 >")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/versions")
    listed = talk.until("/versions N shows another version and its answers.")
    assert " 1  first\n" in listed
    assert " 2  first of all\n" in listed
    assert " 3  first of all  (shown)" in listed
    talk.send("/versions 1")
    talk.until("> first  < 1/3 >")
    talk.until("Forty-two")
    assert said_in(home) == [
        ("user", "first"),
        ("assistant", "Forty-two, *I think*."),
    ]
    talk.send("/versions 1")
    talk.until("Version 1 is shown already.")
    talk.send("/versions 4")
    talk.until("No version has the number 4. /versions shows the numbers.")
    (row, _) = rows_of(journal_of(url_of(home), conversation_in(home))).rows
    assert len(row.versions) == 3


def test_an_edited_message_keeps_its_attachment(home: Path, start: Start) -> None:
    """The new version has the file of the earlier one."""
    file = home / "pears.txt"
    file.write_text("ten pears")
    talk = start()
    talk.send(f"/attach {file}")
    talk.until("is attached to the next message.")
    talk.send("count")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/edit")
    talk.until("Ctrl-C cancels")
    talk.send(" them")
    talk.until("> count them [pears.txt]")
    talk.until("Forty-two")
    talk.at_rest()
    (row, _) = rows_of(journal_of(url_of(home), conversation_in(home))).rows
    assert [part.name for part in row.parts] == ["pears.txt"]


def test_from_one_conversation_to_another(home: Path, start: Start) -> None:
    """/title, /new, /list, /open, /search, /fork, and the names that people are used to."""
    talk = start()
    talk.send("about pears")
    talk.until("Forty-two")
    talk.at_rest()
    first = conversation_in(home)
    talk.send("/title Fruit of the year")
    talk.until("Fruit of the year · script")
    talk.send("/new")
    talk.until("New conversation.")
    talk.send("about apples")
    talk.until("Forty-two")
    talk.at_rest()
    talk.send("/sessions")
    assert " 1  about apples" in talk.until(" 2  Fruit of the year")
    talk.send("/open 2")
    talk.until(f"Fruit of the year ({first})")
    talk.until("> about pears")
    talk.send("/search apples")
    assert "user: " in talk.until("/open N opens a conversation.")
    talk.send("/resume 1")
    talk.until("> about apples")
    talk.type(f"/open {first[:-4]}")
    talk.until(first)
    talk.type("\t")
    talk.until(f"> /open {first}")
    talk.send("")
    talk.until("> about pears")
    talk.send("/fork")
    talk.until(f"Copied to a new conversation. /open {first} goes back.")
    assert len(asyncio.run(_conversations(home))) == 3
    talk.send("/open c_nowhere")
    talk.until("c_nowhere")
    talk.send("/open 99")
    talk.until("no number 99")


def test_whatever_stands_after_a_slash_the_talk_goes_on(
    home: Path, start: Start
) -> None:
    """A number without end, no words at all, somebody's home that is not there: each is a sentence, and makes nothing."""
    endless = "9" * 5000
    set_up(home, [Reply(calls=[WRITE])])
    talk = start("--new")
    for line, said in {
        f"/open {endless}": "The last list has no number 99999",
        f"/rules remove {endless}": "No rule has the number 99999",
        "/attach ~nobody_of_that_name/x": "~nobody_of_that_name/x is no file.",
        "/steer": "The message is empty.",
        "/queue": "The message is empty.",
    }.items():
        talk.send(f"\x1b[200~{line}\x1b[201~")
        talk.until(said)
    assert asyncio.run(_conversations(home)) == []
    talk.send("write it down")
    talk.until("always, n deny")
    talk.send(f"\x1b[200~always {endless}\x1b[201~")
    talk.until("No pattern has the number 99999")


def test_what_can_be_looked_up_and_set(home: Path, start: Start) -> None:
    """/help, /tools, /model, and the nearest of a command that is none."""
    other = (
        f'[models.other]\napi = "script"\nurl = "{home}/script.json"\nname = "second"\n'
    )
    config = home / "config.toml"
    config.write_text(config.read_text() + other)
    talk = start()
    talk.send("/help")
    listed = talk.until("Ctrl-C again or Ctrl-D leaves.")
    names = [
        "new",
        "list",
        "open",
        "search",
        "undo",
        "retry",
        "edit",
        "fork",
        "compact",
        "clear",
    ]
    for name in [
        *names,
        "model",
        "tools",
        "stop",
        "steer",
        "queue",
        "cancel",
        "title",
        "help",
    ]:
        assert f"/{name} " in listed
    assert "/sessions" not in listed
    talk.send("/tools")
    assert "read_file (read-only)" in talk.until(
        "write_file (safe to repeat, asks first)"
    )
    talk.send("/model")
    assert "main  script  (in use, default)" in talk.until("other  second")
    talk.send("/model other")
    talk.until("Now using other.")
    talk.until("second")
    talk.send("/model nobody")
    talk.until("No model is called nobody. Models: main, other.")
    talk.send("/compress")
    talk.until("This conversation has no messages yet.")
    talk.send("/stop")
    talk.until("There is no answer to stop.")
    talk.send("/serach pears")
    talk.until("Unknown command /serach. Did you mean /search?")
    talk.type(CTRL_C)
    talk.send(" /etc/hosts is a path")
    talk.until("Forty-two")


def test_nothing_that_a_model_says_is_obeyed_by_the_terminal(
    home: Path, start: Start
) -> None:
    """Escape sequences in words, names of tools and their arguments are shown as what cannot be shown."""
    evil = "\x1b]0;evil\x07\x1b[31mred\x9b2J &#8238;"
    set_up(
        home,
        [
            Reply(
                words=evil,
                calls=[
                    ScriptedCall("write_file", {"path": "x", "content": evil}),
                    ScriptedCall(evil),
                ],
            )
        ],
    )
    talk = start()
    talk.send("be evil")
    talk.until("Allow write_file")
    assert "�]0;evil��[31mred�2J" in talk.text
    for each in (b"\x1b]0;", b"\x1b[31m", b"\x07", "\x9b".encode(), "\u202e".encode()):
        assert each not in talk.raw


def test_a_wrong_key_is_told_and_the_talk_goes_on(
    home: Path, start: Start, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message stays in the conversation, to be asked again."""
    settings = (
        f'api = "openai"\nurl = "{refusing}/v1"\nname = "script"\nkey = "env:MY_KEY"\n'
    )
    monkeypatch.setenv("MY_KEY", "sk-hunter2-hunter2")
    (home / "config.toml").write_text(f'model = "main"\n[models.main]\n{settings}')
    talk = start()
    talk.send("hello")
    talk.until("rejected the API key")
    talk.until("/retry sends it again.")
    talk.at_rest()
    talk.send("/retry")
    talk.until("> hello")
    talk.until("/retry sends it again.")
    talk.at_rest()
    talk.send("/compress")
    talk.until("Nothing to compact yet.")
    talk.type(CTRL_D)
    assert talk.ended() == 0
    assert said_in(home)[0] == ("user", "hello")
    assert "hunter2" not in talk.text


def test_words_that_cannot_be_stored_come_back(home: Path, start: Start) -> None:
    """A store that is away is told in a sentence; once it is back, Enter sends the same words, once."""
    talk = start()
    talk.send("first")
    talk.until("Forty-two")
    talk.at_rest()
    store, elsewhere = home / "tenax.db", home / "elsewhere.db"
    store.rename(elsewhere)
    talk.send("second")
    talk.until("put it back")  # others who miss the store say so too, and may be first
    talk.until("> second")
    elsewhere.rename(store)
    talk.send(" time")
    talk.until("> second time")
    talk.until("Forty-two")
    talk.at_rest()
    assert [text for kind, text in said_in(home) if kind == "user"] == [
        "first",
        "second time",
    ]


def test_without_a_model_or_a_terminal_it_says_what_to_do(home: Path) -> None:
    """Not set up is 3, with the way on; no terminal, or one that draws nothing, is 2, and names `tenax -p`; no such conversation is 1."""
    args: Sequence[str] = [sys.executable, "-m", "tenax"]
    piped = subprocess.run(
        args,
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (piped.returncode, piped.stdout) == (2, "")
    assert "tenax -p" in piped.stderr
    talk = Terminal(
        command=["/usr/bin/env", "TERM=dumb", sys.executable, "-m", "tenax"]
    )
    assert talk.ended() == 2
    assert "tenax -p" in talk.text
    talk.close()
    talk = Terminal("-c", "c_nowhere")
    assert talk.ended() == 1
    assert "There is no conversation c_nowhere." in talk.text
    talk.close()
    (home / "config.toml").unlink()
    talk = Terminal()
    assert talk.ended() == 3
    assert "No model is set up" in talk.text
    assert "tenax setup" in talk.text
    assert "tenax demo" in talk.text
    talk.close()
