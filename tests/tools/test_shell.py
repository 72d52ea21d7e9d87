"""The shell: what a command gets, what becomes of its output, when a person is asked, and processes in the background."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from tenax.agent.tour import TOUR
from tenax.assembly import Runtime
from tenax.clock import Timing
from tenax.concurrency import LockFile
from tenax.config.rules import Rule
from tenax.errors import Refused as NotAllowed
from tenax.errors import StoreUnavailable
from tenax.events import (
    TEMPORARY,
    ApprovalAnswered,
    ConversationTitled,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.parts import Text, text_of
from tenax.tools.base import Call, Tool
from tenax.tools.gate import CHARS_MAX, STOPPED, Allowed, Asks, Done, Gate
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Background, Finished, Shell
from tenax.tools.shell.sandbox import Sandbox
from tests.contract.engine.base import begin
from tests.models.talk import clock_ahead
from tests.support.bubblewrap import inside, need_bwrap, use
from tests.support.remembering import until
from tests.support.runs import config_of, settled
from tests.support.runs import told as events
from tests.support.runs import until as stored

KEY = "sk-0123456789abcdef"
REDACT = Redact(lambda: [KEY, "hunter2"])


@pytest.fixture
def folder() -> Iterator[Path]:
    need_bwrap()
    with tempfile.TemporaryDirectory(prefix="tenax-shell-", dir="/var/tmp") as made:
        yield Path(made)


async def run(folder: Path, command: str, **how: Any) -> Done:
    return await use(Shell(Sandbox(), REDACT), folder, command=command, **how)


def told(done: Done) -> str:
    """The text with every time made the same."""
    return re.sub(r"\d+\.\d s", "0.0 s", done.text)


async def test_output_comes_in_order_with_exit_code_and_time(folder: Path) -> None:
    """Both streams as one, as a person would have seen them."""
    done = await run(folder, "echo one; echo two >&2; echo three; exit 3")
    assert (done.outcome, told(done)) == (
        "done",
        "one\ntwo\nthree\n[exit code 3, 0.0 s]",
    )
    assert told(await run(folder, "true")) == "(no output)\n[exit code 0, 0.0 s]"
    assert (
        told(await run(folder, "kill -SEGV $$"))
        == "Segmentation fault\n[exit code 139, 0.0 s, ended by SIGSEGV]"
    )


async def test_an_endless_file_is_told_in_a_sentence(folder: Path) -> None:
    """A program that is ended for it cannot say why."""
    done = await run(folder, "dd if=/dev/zero of=big bs=1M seek=1020 2>&1; exit $?")
    assert "ended by SIGXFSZ: a file grew past 1 GB]" in done.text


@pytest.mark.parametrize(
    "command",
    [
        "printf %s 'a b'",
        "-x",
        "--version",
        "'; exit 4 #",
        'echo "$(echo "a\'b")" `echo c` \\; $\'\\n\' d\necho e',
        "é ☃",
    ],
)
async def test_nothing_but_the_command_reaches_the_shell(
    folder: Path, command: str
) -> None:
    """It is one argument, as it stands: no option, no second command, no expansion on the way."""
    (folder / "command").write_text(command)
    read = "tr '\\0' '\\n' < /proc/$$/cmdline"
    whole = await run(folder, f'{read}; : "$0" $#\n{command}')
    assert whole.text.splitlines()[1:3] == ["-c", "--"]
    assert command in whole.text
    arguments = await run(
        folder, 'echo "$#"; exec 2>&1; eval "$(cat command)"; echo "${0##*/}"'
    )
    assert arguments.text.startswith("0\n")


async def test_a_command_sees_no_word_of_our_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a program needs."""
    for name in (
        "OPENROUTER_API_KEY",
        "TENAX_HOME",
        "PASSWORD",
        "BASH_ENV",
        "LD_PRELOAD",
    ):
        monkeypatch.setenv(name, "/nothing/here")
    done = await run(folder, "env | cut -d= -f1 | sort | tr '\\n' ' '")
    assert done.text.startswith(
        "HOME LANG PATH PWD SHLVL TERM _ \n"
    ) or done.text.startswith("HOME LANG PATH PWD SHLVL TERM _")


@pytest.mark.parametrize(
    "command",
    [
        "read -p x y; printf 'Continue? [y/N] '; read y",
        "printf 'Password: '; read y; exit 1",
        "cat > /dev/tty",
        "perl -e 'die \"EOF when reading a line\\n\" unless defined <STDIN>'",
    ],
)
async def test_a_program_that_asks_gets_the_end_of_its_input_and_it_is_said(
    folder: Path, command: str
) -> None:
    """It does not wait for anybody."""
    assert (
        "It seems to have asked for input: there is none"
        in (await run(folder, command)).text
    )


@pytest.mark.parametrize(
    "command",
    ["cat; wc -l", "echo 'Name: '", "printf '[1, 2]'", "printf '<p>a</p>'", "exit 1"],
)
async def test_where_nobody_asked_nothing_is_said_of_it(
    folder: Path, command: str
) -> None:
    """A program that only reads its input to the end has what it needs."""
    assert "asked" not in (await run(folder, command)).text


async def timed_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, mark: str, seconds: int
) -> Done:
    """What comes of a command that is ended for its time, once it has made this file: however slowly it began."""
    leap = clock_ahead(monkeypatch)
    task = asyncio.create_task(run(folder, command, seconds=seconds))
    await until((folder / mark).exists)
    assert not task.done()
    leap(seconds)
    return await task


async def test_much_output_is_bounded_while_it_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning and the end are kept of 100 MB, and of a stream that never ends."""
    big = await run(
        folder,
        "echo first; head -c 100000000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo; echo last",
    )
    assert big.outcome == "done"
    assert (big.cut, len(big.text) < CHARS_MAX) == (0, True)
    assert big.text.startswith("first\nxxx")
    assert re.search(
        r"\n\[\.\.\. about 100,\d{3},\d{3} bytes are not shown \.\.\.\]\n", big.text
    )
    assert big.text.splitlines()[-2] == "last"
    endless = await timed_out(
        folder, monkeypatch, "yes | head -c 1000000; touch begun; yes", "begun", 60
    )
    assert endless.outcome == "failed"
    assert len(endless.text) < CHARS_MAX
    assert endless.text.endswith(
        "y\n[It was ended because it took more than 60 seconds. All that it started was ended too.]"
    )


async def test_a_flood_leaves_the_loop_to_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenax pauses after each read of an endless stream, so that most of the processor is left to others.

    Here the clock of the loop moves only between the turns of others, by one pause at a time. The stream goes on by
    one read for each pause, however fast the machine is.
    """
    flood, read_bytes, unread_bytes = 16_000_000, 1 << 18, 3_000_000
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(
        run(
            folder,
            f"head -c 20000000 /dev/zero; touch begun; head -c {flood} /dev/zero; touch ended",
            seconds=600,
        )
    )
    await until((folder / "begun").exists)
    with monkeypatch.context() as patch:
        now, pauses = loop.time(), 0
        patch.setattr(loop, "time", lambda: now)
        while not (folder / "ended").exists():
            for _ in range(1000):
                await asyncio.sleep(0)
            now += 0.002
            pauses += 1
    assert pauses >= (flood - unread_bytes) / read_bytes
    assert (await task).outcome == "done"


async def test_what_is_not_text_is_said_and_not_shown(folder: Path) -> None:
    """However much of it there is."""
    assert told(await run(folder, "head -c 1000 /dev/zero")) == (
        "[1,000 bytes that are not text are not shown]\n[exit code 0, 0.0 s]"
    )
    assert (
        "[3,000,000 bytes that are not text are not shown]"
        in (await run(folder, "head -c 3000000 /dev/urandom")).text
    )


async def test_control_characters_and_colours_are_taken_out(folder: Path) -> None:
    """What is left is what a person would read; of a progress bar the last state."""
    shown = await run(
        folder,
        r"printf '\033[1;31mred\033[0m \033]0;title\007a\bb\a\r\n10%%\r50%%\r100%%\n\033(Bx\033[2K\302\233y\177\n'",
    )
    assert told(shown) == "red ab\n100%\nx\n[exit code 0, 0.0 s]"


async def test_configured_secrets_do_not_reach_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in what is printed, not with colours in the middle, and not in halves where output is cut."""
    assert told(await run(folder, f"echo a {KEY}b; echo hunter2 >&2")) == (
        "a [secret]b\n[secret]\n[exit code 0, 0.0 s]"
    )
    assert (
        KEY[3:] not in (await run(folder, rf"printf '{KEY[:8]}\033[0m{KEY[8:]}'")).text
    )
    late = await timed_out(
        folder, monkeypatch, f"echo {KEY}; touch begun; sleep 300", "begun", 60
    )
    assert late.text.startswith("[secret]\n[It was ended")
    # The edges of what is kept fall into a secret, and escapes make that little enough to be shown up to the edge.
    escapes = r"\033[0m" * 25
    for dots in range(68, 86, 3):
        much = f"printf '%.{dots}d' 0; for i in $(seq 4000); do printf '{KEY}{escapes}'; done; printf '%.{dots}d' 0"
        shown = await run(folder, much)
        assert KEY[2:9] not in shown.text
        assert KEY[-6:] not in shown.text


async def test_cancelling_ends_all_of_it(folder: Path) -> None:
    """Also what left its group."""
    task = asyncio.create_task(run(folder, "setsid sleep 300 & touch begun; sleep 300"))
    await until((folder / "begun").exists)
    assert len(inside(folder)) >= 2
    task.cancel()
    assert await task == Done("cancelled", f"{STOPPED}\n(no output)")
    assert inside(folder) == []


async def test_what_a_command_leaves_running_ends_with_it(folder: Path) -> None:
    """A call in the foreground leaves nothing behind, and does not wait for it."""
    # A call that waited for what it left behind would wait for 300 seconds.
    async with asyncio.timeout(60):
        done = await run(folder, "sleep 300 & setsid sleep 300 & echo on")
    assert done.text.startswith("on\n")
    assert inside(folder) == []


def weighed(
    tool: Tool[Any],
    *,
    rules: tuple[Rule, ...] = (),
    user: str = "local",
    **arguments: Any,
) -> Allowed | Asks | Done:
    call = Call(user, "c_1", 3, "call", Path("nowhere"))
    return Gate([tool], lambda: rules).weigh(
        tool.name,
        msgspec.json.encode(arguments).decode(),
        call,
        allowed=[Rule("allow", "shell*")],
    )


def tools(sandbox: Sandbox) -> list[Tool[Any]]:
    async def nothing(finished: Finished) -> None:
        pass

    background = Background(sandbox, nothing, Path("/nowhere"), "local", REDACT)
    return [Shell(sandbox, REDACT), background.tools()[0]]


def test_a_person_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once for the conversation in the sandbox; each time for the network; and each time where there is no sandbox."""
    always = Rule("allow", "*")
    for tool in tools(Sandbox()):
        assert tool.asks
        given = weighed(tool, command="ls")
        assert isinstance(given, Allowed)
        assert given.touches == "in the sandbox: ls"
        asked = weighed(tool, command="ls", network=True, rules=(always,))
        assert isinstance(asked, Asks)
        assert asked.touches == "with network: ls"
    monkeypatch.setattr("tenax.tools.shell.sandbox.SYSTEM_PATH", str(tmp_path))
    for tool in tools(Sandbox()):
        for network in (False, True):
            asked = weighed(tool, command="ls", network=network, rules=(always,))
            assert isinstance(asked, Asks)
            assert asked.touches == "WITHOUT A SANDBOX: ls"


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": " \n"},
        {"command": "a\0b"},
        {"command": "x" * 100_001},
        {"command": "ls", "seconds": 601},
        {"command": "ls", "seconds": 0},
        {"command": ["ls"]},
        {"command": "ls", "env": {}},
    ],
)
def test_nobody_is_asked_for_what_cannot_be_run(arguments: dict[str, Any]) -> None:
    """The model is told why."""
    assert isinstance(weighed(Shell(Sandbox(), REDACT), **arguments), Done)


def test_who_does_not_run_tenax_allows_no_command_outside_of_the_sandbox(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another user answers their own questions: they get neither this machine's network nor the rights of its owner."""
    for tool in tools(Sandbox()):
        assert isinstance(weighed(tool, command="ls", user="berta"), Allowed)
        assert isinstance(weighed(tool, command="ls", user="berta", network=True), Done)
    monkeypatch.setattr("tenax.tools.shell.sandbox.SYSTEM_PATH", str(tmp_path))
    for tool in tools(Sandbox()):
        refused = weighed(tool, command="ls", user="berta")
        assert isinstance(refused, Done)
        assert "only the person who runs this Tenax" in refused.text


@pytest.mark.parametrize(
    ("allowed", "command", "asks"),
    [
        ("git status*", "git status -s", False),
        ("git status*", "git status; rm -rf .", True),
        ("git status*", "git status\nrm -rf .", True),
        ("git status*", "git status && rm -rf .", True),
        ("git log * | head*", "git log -3 | head -1", False),
        ("git log * | head*", "git log `rm -rf .` | head", True),
        ("echo ?*", "echo $(rm -rf .)", True),
        ("grep * x", "grep a > x", True),
        ("*", "a; b | c", False),
        ("*;*", "a; b | c", True),
        ("*;*", "a; b", False),
        ("[!r]*", "ls; rm -rf .", True),
    ],
)
def test_a_rule_for_a_command_is_none_for_what_stands_behind_it(
    folder: Path, allowed: str, command: str, *, asks: bool
) -> None:
    """A pattern fills words in, and no second command; only one for every command allows all of it."""
    shell = Shell(Sandbox(), REDACT)
    call = Call("local", "c_1", 3, "call", folder)
    arguments = msgspec.json.encode({"command": command}).decode()
    gate = Gate([shell], lambda: [Rule("allow", "shell", f"in the sandbox: {allowed}")])
    assert isinstance(gate.weigh("shell", arguments, call, allowed=()), Asks) == asks
    denied = Gate(
        [shell], lambda: [Rule("allow", "*"), Rule("deny", "shell", f"*{command[:3]}*")]
    )
    assert isinstance(denied.weigh("shell", arguments, call, allowed=()), Done)


@pytest.mark.parametrize(
    ("allowed", "every"),
    [
        ("*", True),
        ("*: *", True),
        ("in the sandbox: *", True),
        ("*x*", False),
        ("*box*", False),
        ("*;*", False),
    ],
)
def test_a_pattern_is_for_every_command_if_nothing_of_the_command_is_in_it(
    folder: Path, allowed: str, *, every: bool
) -> None:
    """One that happens to match the words before the command is not."""
    gate = Gate([Shell(Sandbox(), REDACT)], lambda: [Rule("allow", "shell", allowed)])
    arguments = msgspec.json.encode({"command": "x; rm -rf . | y"}).decode()
    verdict = gate.weigh(
        "shell", arguments, Call("local", "c_1", 3, "call", folder), allowed=()
    )
    assert isinstance(verdict, Allowed) == every


async def test_without_a_sandbox_commands_run_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When a person said yes to this one."""
    monkeypatch.setattr("tenax.tools.shell.sandbox.SYSTEM_PATH", str(tmp_path))
    shell = Shell(Sandbox(), REDACT)
    gate = Gate([shell])
    arguments = msgspec.json.encode(
        {"command": f"echo {KEY} > file; cat file; read x; echo $?"}
    ).decode()
    asked = gate.weigh(
        "shell", arguments, Call("local", "c_1", 3, "call", folder), allowed=()
    )
    assert isinstance(asked, Asks)
    permit = gate.approve(asked, arguments)
    assert isinstance(permit, Allowed)
    done = await gate.perform(permit, approved_arguments=arguments)
    assert told(done) == "[secret]\n1\n[exit code 0, 0.0 s]"
    assert (folder / "file").read_text() == f"{KEY}\n"


def test_it_works_on_the_other_loop_too(folder: Path) -> None:
    """An application that embeds Tenax may use uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert (
            told(runner.run(run(folder, "echo on; sleep 0.1; exit 2")))
            == "on\n[exit code 2, 0.0 s]"
        )
        assert (
            "more than 1 seconds"
            in runner.run(run(folder, "yes; sleep 60", seconds=1)).text
        )
    assert inside(folder) == []


class Behind:
    """Background processes of two conversations in one folder."""

    def __init__(self, folder: Path, timing: Timing) -> None:
        self.folder = folder
        self.told: list[Finished] = []
        self.away, self.stuck, self.tries = False, False, 0
        self.traces = folder / "traces"
        self.background = Background(
            Sandbox(), self._hear, self.traces, "local", REDACT, timing
        )
        self.gate = Gate(self.background.tools())

    async def _hear(self, finished: Finished) -> None:
        self.tries += 1
        if self.stuck:
            await asyncio.sleep(600)
        if self.away:
            raise StoreUnavailable("The store does not answer.")
        self.told.append(finished)

    async def use(
        self, name: str, conversation: str = "c_1", **arguments: object
    ) -> Done:
        call = Call("local", conversation, 3, "call", self.folder)
        given = self.gate.weigh(
            name,
            msgspec.json.encode(arguments).decode(),
            call,
            allowed=[Rule("allow", "shell_start")],
        )
        assert isinstance(given, Allowed)
        return await self.gate.perform(given, approved_arguments=None)

    async def start(self, command: str, conversation: str = "c_1") -> str:
        done = await self.use("shell_start", conversation, command=command)
        found = re.fullmatch(r"It runs as (p_\w+)\.", done.text)
        assert found, done
        return found[1]

    async def read(self, name: str) -> str:
        return told(await self.use("shell_read", id=name))

    async def read_until(self, name: str, ready: Callable[[str], bool]) -> str:
        text = ""
        async with asyncio.timeout(60):
            while not ready(text):
                await asyncio.sleep(0.01)
                text += (
                    (await self.read(name))
                    .rpartition("\n")[0]
                    .replace("(no new output)", "")
                )
        return text


@asynccontextmanager
async def behind(folder: Path, timing: Timing = Timing()) -> AsyncIterator[Behind]:
    made = Behind(folder, timing)
    try:
        yield made
    finally:
        await made.background.close()
        assert inside(folder) == []


async def test_a_background_process_is_started_read_and_stopped(folder: Path) -> None:
    """Each reading gives what is new; stopping ends all of it, and is not told as its own end."""
    async with behind(folder) as it:
        name = await it.start(
            "echo one; until test -e go; do sleep 0.02; done; echo two; setsid sleep 300"
        )
        assert await it.read_until(name, lambda text: "one" in text) == "one"
        assert await it.read(name) == "(no new output)\n[it is running]"
        (folder / "go").touch()
        await it.read_until(name, lambda text: "two" in text)
        assert (await it.use("shell_stop", id=name)).text == f"{name} was stopped."
        assert inside(folder) == []
        assert (await it.read(name)).endswith("\n[it was stopped]")
        assert "has ended before" in (await it.use("shell_stop", id=name)).text
        assert it.told == []


async def test_its_end_is_told(folder: Path) -> None:
    """With its exit code; what it wrote can still be read, and no secret is in either."""
    async with behind(folder) as it:
        name = await it.start(f"echo {KEY}; exit 5")
        await until(lambda: bool(it.told))
        assert it.told[0].conversation == "c_1"
        text = re.sub(r"\d+\.\d s", "0.0 s", it.told[0].text)
        assert text == (
            f"[From Tenax, not from the person] The background process {name} ended: echo [secret]; exit 5\n"
            "[exit code 5, 0.0 s] shell_read reads what it wrote."
        )
        assert await it.read(name) == "[secret]\n[exit code 5, 0.0 s]"
        assert await it.read(name) == "(no new output)\n[exit code 5, 0.0 s]"


async def test_nothing_is_told_of_a_process_that_was_not_begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts it may be stopped in the very moment in which the note of it is there."""
    async with behind(folder) as made:
        create, loop = LockFile.create, asyncio.get_running_loop()
        gone = threading.Event()

        def late(*given: Any) -> Any:
            trace = create(*given)
            loop.call_soon_threadsafe(started.cancel)
            assert gone.wait(60)
            return trace

        monkeypatch.setattr(LockFile, "create", late)
        started = asyncio.create_task(made.start("sleep 60"))
        started.add_done_callback(lambda _: gone.set())
        with pytest.raises(asyncio.CancelledError):
            await started
        await until(lambda: not any(made.traces.iterdir()))
        await made.background.sweep()
        assert made.told == []


async def test_a_conversation_has_eight_and_sees_only_its_own(folder: Path) -> None:
    """Others have their own; and one that nobody knows ended when Tenax stopped."""
    async with behind(folder) as it:
        names = [await it.start("sleep 300") for _ in range(8)]
        ninth = await it.use("shell_start", command="sleep 300")
        assert ninth.outcome == "failed"
        assert names[0] in ninth.text
        await it.start("sleep 300", "c_2")
        for name, conversation in ((names[0], "c_2"), ("p_00000000", "c_1")):
            for tool in ("shell_read", "shell_stop"):
                done = await it.use(tool, conversation, id=name)
                assert (done.outcome, "it ended when Tenax stopped" in done.text) == (
                    "failed",
                    True,
                )
        await it.use("shell_stop", id=names[0])
        await it.start("sleep 300")
        # a start does not wait for its program
        await until(lambda: inside(folder).count("sleep") == 9)
        await it.background.close("c_1")
        assert inside(folder).count("sleep") == 1


async def test_its_output_is_bounded_and_comes_in_pages(folder: Path) -> None:
    """The last megabyte is kept; it is read in pieces without a gap, and what is lost is said."""
    async with behind(folder) as it:
        name = await it.start("seq 20000; echo end")
        await until(lambda: bool(it.told))
        text, page = "", await it.read(name)
        while found := re.search(
            r"\n\[[\d,]+ more bytes are there: read again\]\n\[exit.*\]\Z", page
        ):
            text, page = text + page[: found.start()] + "\n", await it.read(name)
        whole = (text + page).rpartition("\n")[0]
        assert re.sub(r"\s", "", whole) == "".join(map(str, range(1, 20_001))) + "end"
        name = await it.start("seq 600000")
        await until(lambda: len(it.told) == 2)
        first = await it.read(name)
        assert re.match(r"\[[\d,]+ bytes before this were not kept\]\n", first)
        assert len(first) < CHARS_MAX


async def test_a_secret_in_two_halves_is_not_read_in_two_halves(folder: Path) -> None:
    """A half is held back until it is clear what it is; so is half of a character."""
    async with behind(folder) as it:
        command = (
            f"printf 'a {KEY[:9]}'; touch half; until test -e go; do sleep 0.02; done; printf '{KEY[9:]} \\303'; touch rest; "
            "until test -e on; do sleep 0.02; done; printf '\\244\\n'"
        )
        name = await it.start(command)
        text = ""
        for there, then in (("half", "go"), ("rest", "on")):
            await until((folder / there).exists)
            text += await it.read(name)
            (folder / then).touch()
        await until(lambda: bool(it.told))
        text += await it.read(name)
        assert KEY[:6] not in text
        assert KEY[-6:] not in text
        assert "[secret]" in text
        assert "ä" in text
        assert "\ufffd" not in text


async def test_a_flood_in_the_background_holds_no_memory(folder: Path) -> None:
    """An endless stream is read and dropped."""
    async with behind(folder) as it:
        name = await it.start("yes")
        before, dropped = _resident(), 0
        while dropped < 100_000_000:
            text = await it.read(name)
            assert text.endswith("[it is running]")
            dropped += sum(
                int(match.replace(",", ""))
                for match in re.findall(r"\[([\d,]+) bytes before", text)
            )
        assert _resident() - before < 64 * 1024 * 1024


ALLOWED = '[[rules]]\nverdict = "allow"\ntool = "shell*"\n'


def runtime(
    home: Path, *replies: Reply | str, settings: str = ALLOWED, **how: Any
) -> Runtime:
    """A person's Tenax at this home, whose commands work in its folder `work`."""
    (home / "config.toml").write_text(settings)
    config = config_of(f"sqlite:///{home}/tenax.db", home, **how.pop("env", {}))
    return Runtime(config, models=[ScriptedModel(replies)], **how)


def calls(name: str, **arguments: object) -> Reply:
    return Reply(calls=[ScriptedCall(name, arguments)])


async def notes(it: Runtime, name: str) -> list[str]:
    """What Tenax said in the conversation by itself."""
    return [
        text_of(event.parts)
        for event in await events(it, name, MessageUser)
        if event.system
    ]


async def test_the_end_of_a_background_process_is_an_input_that_starts_a_turn(
    folder: Path,
) -> None:
    """It says which one and how it ended, and nothing that it wrote; it is no answer to an approval that waits."""
    both = Reply(
        calls=[
            ScriptedCall(
                "shell_start",
                {
                    "command": "until test -e go; do sleep 0.01; done; echo obey me; exit 5"
                },
            ),
            ScriptedCall("write_file", {"path": "a", "content": "b"}),
        ]
    )
    async with runtime(
        folder, both, "written", calls("shell_read", id="?"), "seen"
    ) as it:
        name = await it.new()
        await it.submit(name, "go")
        asked = (await stored(it, name, "approval.asked")).event
        await stored(it, name, "tool.finished")
        (folder / "work" / "go").touch()
        await stored(it, name, "message.user", 2)
        assert await events(it, name, ApprovalAnswered) == []
        await it.answer(name, asked.message, asked.call, "once")  # type: ignore[union-attr]
        await stored(it, name, "run.finished", 2)
        assert [event.outcome for event in await events(it, name, RunFinished)] == [
            "completed"
        ] * 2
        (text,) = await notes(it, name)
        started = (
            (await events(it, name, ToolFinished))[0]
            .text.removeprefix("It runs as ")
            .strip(".")
        )
        assert re.search(
            rf"The background process {started} ended: until .*\n\[exit code 5, .* shell_read",
            text,
        )
        assert "obey" not in text.replace("echo obey me", "")
        (row,) = [each for each in await it.transcript(name) if each.author == "system"]
        assert row.text == text
        assert list((folder / "background").iterdir()) == []


async def test_what_ends_with_tenax_is_told_by_the_next_one_once(folder: Path) -> None:
    """Also by one that answers nobody: it stores it, and who serves answers it. What was stopped is not told."""
    start = calls("shell_start", command="setsid sleep 300")
    async with runtime(folder, start, start, "on") as it:
        name = await it.new()
        await settled(it, name, (await it.submit(name, "go")).seq)
        first, second = (
            event.text[-11:-1] for event in await events(it, name, ToolFinished)
        )
        await until(lambda: inside(folder / "work").count("sleep") == 2)
        async with runtime(folder) as beside:  # its owner lives
            await beside.agents.background.sweep()
            assert await notes(beside, name) == []
        stop = it.agent.gate.weigh(
            "shell_stop",
            f'{{"id":"{first}"}}',
            Call("local", name, 1, "c", folder),
            allowed=(),
        )
        assert isinstance(stop, Allowed)
        assert (
            await it.agent.gate.perform(stop, approved_arguments=None)
        ).text == f"{first} was stopped."
    assert inside(folder / "work") == []
    async with runtime(folder, serves=False) as it:
        await stored(it, name, "message.user", 2)
        (text,) = await notes(it, name)
        assert (
            f"The background process {second} ended because Tenax was stopped" in text
        )
        await it.workers.idle(name)
        assert len(await events(it, name, RunFinished)) == 1
    async with runtime(folder, start, start, "on", "I see") as it:
        await stored(it, name, "run.finished", 2)
        assert len(await notes(it, name)) == 1
    assert list((folder / "background").iterdir()) == []


async def test_what_was_interrupted_goes_on_before_what_was_lost_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where something else is stored at the moment in which the run is repaired."""
    it = runtime(folder, "on", "I see")
    place = f"{platform.node()}:{folder / 'work'}"
    dead = [MessageUser([Text("go")], ask=True), RunStarted([2], place=place)]
    name = begin(it.journal.journal)
    it.journal.journal.append(name, dead, run="r_dead")
    it.journal.journal.append(
        name, [MessageUser([Text("lost")], ask=True, system=True)]
    )
    append = it.journal.append

    async def between(conversation: str, stored: Any, **how: Any) -> Any:
        if any(
            isinstance(each, RunFinished) and each.outcome == "interrupted"
            for each in stored
        ):
            await append(conversation, [ConversationTitled("meanwhile")])
        return await append(conversation, stored, **how)

    monkeypatch.setattr(it.journal, "append", between)
    async with it:
        await stored(it, name, "run.finished", 3)
        assert [event.resumes for event in await events(it, name, RunStarted)] == [
            None,
            "r_dead",
            None,
        ]


async def test_an_end_that_cannot_be_told_now_is_told_later(folder: Path) -> None:
    """The store was away: what is told then is how it really ended; and what is no note is left alone."""
    async with behind(folder) as it:
        it.away = True
        name = await it.start("exit 5")
        await until(lambda: it.tries == 1)
        (it.traces / "p_00000000").write_text("half of a no")
        it.away = False
        await until(lambda: not LockFile.is_held(it.traces / name))
        await it.background.sweep()
        await it.background.sweep()
        assert [each.id for each in it.told] == [name]
        assert "[exit code 5," in it.told[0].text
        assert [path.name for path in it.traces.iterdir()] == ["p_00000000"]


async def test_an_end_that_is_being_told_holds_up_no_stop(folder: Path) -> None:
    """The store takes nothing: closing is soon done, and the next one tells how it really ended."""
    # The wait while Tenax goes on is not the wait when Tenax stops.
    async with behind(folder, Timing(process_end_seconds=600.0)) as it:
        it.stuck = True
        await it.start("exit 5")
        await until(lambda: it.tries == 1)
        async with asyncio.timeout(60):
            await it.background.close()
    async with behind(folder) as it:
        await it.background.sweep()
        assert ["[exit code 5," in each.text for each in it.told] == [True]


async def test_the_output_of_a_stopped_command_is_kept(folder: Path) -> None:
    """The person saw that it ran for a while, and stops it: what it wrote until then is in the transcript."""
    command = "seq 1 400; touch ready; sleep 300"
    async with runtime(folder, calls("shell", command=command), "on") as it:
        name = await it.new()
        seq = (await it.submit(name, "go")).seq
        await until((folder / "work" / "ready").exists)
        await it.stop(name)
        await settled(it, name, seq)
        (row,) = [row for row in await it.transcript(name) if row.kind == "tool"]
        assert row.state == "cancelled"
        assert row.text.startswith(f"{STOPPED}\n1\n2\n3\n")
        assert row.text.endswith("\n400")
        assert inside(folder / "work") == []


async def test_a_deleted_conversation_leaves_nothing_running(folder: Path) -> None:
    """And nobody is told."""
    async with runtime(folder, calls("shell_start", command="sleep 300"), "on") as it:
        name = await it.new()
        await settled(it, name, (await it.submit(name, "go")).seq)
        await until(lambda: inside(folder / "work"))
        await it.delete(name)
        assert inside(folder / "work") == []
        assert list((folder / "background").iterdir()) == []


async def test_a_configured_key_is_stored_nowhere_whichever_tool_says_it(
    folder: Path,
) -> None:
    """Read from a file, printed by a command, or in the words of an error."""
    (folder / "work").mkdir()
    (folder / "work" / "notes").write_text(f"the key is {KEY}.\n")
    settings = f'{ALLOWED}[models.m]\nname = "m"\nurl = "http://127.0.0.1:1"\nkey = "env:MY_KEY"\n'
    steps = [
        calls("read_file", path="notes"),
        calls("shell", command="cat notes"),
        calls("shell", command="cat notes; sleep 60", seconds=4),
    ]
    async with runtime(
        folder, *steps, "done", settings=settings, env={"MY_KEY": KEY}
    ) as it:
        name = await it.new()
        await settled(it, name, (await it.submit(name, "go")).seq)
        found = await events(it, name, ToolFinished)
        assert [each.outcome for each in found] == ["done", "done", "failed"]
        assert all("the key is [secret]." in each.text for each in found)
    search = await asyncio.create_subprocess_shell(f"grep -rl {KEY} {folder}/tenax.db*")
    assert await search.wait() == 1


async def test_a_folder_with_our_own_files_in_it_is_not_shown_to_commands(
    folder: Path,
) -> None:
    """A store below the folder: no command is run there; and from a folder beside it nothing of ours is seen."""
    settings = f'{ALLOWED}[tools]\nfolder = "{folder}/a"\n'
    for place, seen in (
        ("a/b/my.db", "No command is run in"),
        ("c/my.db", "(no output)"),
    ):
        (folder / place).parent.mkdir(parents=True)
        url = {"TENAX_STORE": f"sqlite:///{folder}/{place}"}
        find = calls(
            "shell",
            command=f"find / -xdev -name '*.db*' -o -name config.toml -o -path '{folder}/c*'",
        )
        async with runtime(folder, find, "done", settings=settings, env=url) as it:
            name = await it.new()
            await settled(it, name, (await it.submit(name, "go")).seq)
            (done,) = await events(it, name, ToolFinished)
            assert done.text.startswith(seen), done.text


async def test_without_a_sandbox_a_yes_is_for_one_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither for good nor for the conversation, in every conversation but a tour, which has no shell; the model is told why."""
    monkeypatch.setattr("tenax.tools.shell.sandbox.SYSTEM_PATH", str(tmp_path))
    async with runtime(folder, calls("shell", command="echo on"), "done") as it:
        name = await it.new(source=TEMPORARY)
        await it.submit(name, "go")
        asked = (await stored(it, name, "approval.asked")).event
        (question,) = await it.questions(name)
        assert (question.conversation, question.always) == ([], [])
        for answer in ("conversation", "always"):
            with pytest.raises(NotAllowed):
                await it.answer(name, asked.message, asked.call, answer, pattern="*")  # type: ignore[union-attr]
        await it.answer(name, asked.message, asked.call, "once")  # type: ignore[union-attr]
        await stored(it, name, "run.finished")
        assert (await events(it, name, ToolFinished))[0].text.startswith(
            "on\n[exit code 0"
        )
        (shell,) = [spec for spec in it.agent.gate.specs() if spec.name == "shell"]
        assert "bubblewrap is not installed" in shell.description
        tour = await it.agents.of(await it.new(source=TOUR))
        assert [spec.name for spec in tour.gate.specs()] == ["read_file", "write_file"]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


async def test_a_running_command_shows_its_output_without_half_of_a_secret(
    folder: Path,
) -> None:
    """A secret may arrive in two pieces: nothing of it is shown before it is known to be none."""
    gate = Gate([Shell(Sandbox(), REDACT)], redact=REDACT)
    go_on = folder / "go_on"
    command = (
        f"printf 'begin {KEY[:7]}'; touch half; until [ -e go_on ]; do sleep 0.01; done; "
        f"printf '{KEY[7:]} hunter2 end'; touch whole; until [ -e end ]; do sleep 0.01; done"
    )
    call = Call("", "c", 1, "k", folder)
    arguments = msgspec.json.encode({"command": command}).decode()
    asks = gate.weigh("shell", arguments, call, allowed=())
    assert isinstance(asks, Asks)
    permit = gate.approve(asks, arguments)
    assert isinstance(permit, Allowed)
    assert gate.output_of(permit) == ""
    performing = asyncio.create_task(gate.perform(permit, approved_arguments=arguments))
    await until(lambda: gate.output_of(permit) == "begin ")
    await until((folder / "half").exists)
    assert gate.output_of(permit) == "begin "
    go_on.touch()
    await until(lambda: gate.output_of(permit) == "begin [secret] [secret] end")
    (folder / "end").touch()
    assert (await performing).text.startswith("begin [secret] [secret] end")


async def test_the_shown_output_of_a_loud_command_is_short_and_begins_the_same(
    folder: Path,
) -> None:
    """The beginning stays, and the end follows the command."""
    gate = Gate([Shell(Sandbox(), REDACT)], redact=REDACT)
    command = "seq 200000; echo last line; until [ -e end ]; do sleep 0.01; done"
    call = Call("", "c", 1, "k", folder)
    arguments = msgspec.json.encode({"command": command}).decode()
    asks = gate.weigh("shell", arguments, call, allowed=())
    assert isinstance(asks, Asks)
    permit = gate.approve(asks, arguments)
    assert isinstance(permit, Allowed)
    performing = asyncio.create_task(gate.perform(permit, approved_arguments=arguments))
    await until(lambda: "last line" in gate.output_of(permit))
    shown = gate.output_of(permit)
    assert len(shown) < 11_000
    assert shown.startswith("1\n2\n3\n")
    assert shown.endswith("199999\n200000\nlast line\n")
    (folder / "end").touch()
    await performing
