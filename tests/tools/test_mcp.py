"""MCP servers, good and bad, over both transports: what is offered, what asks, what is refused, and what nothing harms."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax.tools.mcp.servers as module
from tenax.assembly import Runtime
from tenax.clock import Timing
from tenax.concurrency import write_atomically
from tenax.config import Config, McpSettings, find_secrets, load
from tenax.config.rules import Rule
from tenax.errors import ConfigError
from tenax.events import ApprovalAsked, ContextOpened, ToolFinished
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel
from tenax.tools.base import Call as Where
from tenax.tools.gate import Allowed, Asks, Done, Gate
from tenax.tools.mcp.servers import McpServers, McpTool, ServerStatus
from tests.contract import mcp_server
from tests.contract.mcp_server import KEY
from tests.models.talk import clock_ahead
from tests.support.children import Child, Teller
from tests.support.runs import config_of, events_of, settled, told, until, with_timing
from tests.support.served import Served, kept_port
from tests.support.turns import all_answered, new_conversation, set_up

SECONDS = 30.0
OWN = (sys.executable, mcp_server.__file__)
ALLOW = '[[rules]]\nverdict = "allow"\ntool = "own__*"\n'
SECTION = f"[mcp.own]\ncommand = {list(OWN)}\n"


@contextmanager
def over_http(*more: str) -> Iterator[str]:
    """Our own server, over HTTP; its address."""
    with subprocess.Popen(
        [*OWN, "--http", *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


@contextmanager
def own(transport: str, name: str = "own", **more: Any) -> Iterator[McpSettings]:
    if transport == "stdio":
        yield McpSettings(name=name, command=OWN, **more)
        return
    with over_http() as url:
        yield McpSettings(name=name, url=url, **more)


@asynccontextmanager
async def connected(
    tmp_path: Path, *servers: McpSettings, **seconds: float
) -> AsyncIterator[McpServers]:
    """Connect to these servers. `seconds` are fields of `Timing`."""
    timing = Timing(**{"mcp_retry_seconds": 0.05, **seconds})
    found = McpServers(tmp_path, tmp_path / "kept", timing)
    found.use({server.name: server for server in servers})
    try:
        await found.settled(SECONDS)
        yield found
    finally:
        await found.close()


async def done(
    servers: McpServers, tool: str, text: str = "hi", gate: Gate | None = None
) -> Done:
    """What comes of a call, through a gate that allows everything."""
    gate = gate or Gate(servers.tools(()), lambda: [Rule("allow", "*")])
    arguments = msgspec.json.encode({"text": text}).decode()
    permit = gate.weigh(
        tool, arguments, Where("local", "c", 1, "1", Path("/")), allowed=()
    )
    assert isinstance(permit, Allowed), permit
    return await gate.perform(permit, approved_arguments=None)


def standing(servers: McpServers, name: str) -> ServerStatus:
    return next(each for each in servers.standing() if each.name == name)


async def eventually(found: Callable[[], Any]) -> Any:
    """What this finds, once it does."""
    async with asyncio.timeout(2 * SECONDS):
        while not (what := found()):  # noqa: ASYNC110  (other processes set no event of ours)
            await asyncio.sleep(0.02)
        return what


def alive(process: int) -> bool:
    try:
        return (
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


# -- what is offered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tools_are_offered_with_what_they_may_do(
    tmp_path: Path, transport: str
) -> None:
    """Everything asks and is done once; what a trusted server says about its tools counts. Texts come cleaned."""
    with own(transport) as plain, own(transport, "sure", trusted=True) as trusted:
        async with connected(tmp_path, plain, trusted) as servers:
            ours, sure = (
                {tool.name: tool for tool in standing(servers, name).tools}
                for name in ("own", "sure")
            )
            assert {(our.effect, our.asks) for our in ours.values()} == {("once", True)}
            assert (sure["sure__echo"].effect, sure["sure__echo"].asks) == (
                "pure",
                False,
            )
            assert (sure["sure__again"].effect, sure["sure__again"].asks) == (
                "idempotent",
                True,
            )
            assert (sure["sure__note"].effect, sure["sure__note"].asks) == (
                "once",
                True,
            )
            assert ours["own__echo"].description == "Says it again."
            (odd,) = [name for name in ours if name.startswith("own__wei_e")]
            assert len(odd) == 64
            assert await done(servers, odd) == Done("done", "hi")
            assert await done(servers, "own__echo", "a\x07b") == Done(
                "done", "a\ufffdb"
            )
            assert await done(servers, "own__fail") == Done("failed", "hi")
            assert (await done(servers, "own__picture")).text == (
                "[image, not shown: image/png, about 3,000 bytes]\n[resource_link, not shown: file:///a]\nhi"
            )


@pytest.mark.parametrize(
    ("tool", "fits"),
    [
        ("*_file", False),
        ("*", True),
        ("own__*", True),
        ("*__write_file", True),
        ("[!x]*e", False),
    ],
)
def test_a_server_does_not_name_itself_into_a_rule_for_others(
    tool: str, *, fits: bool
) -> None:
    """A pattern for several tools allows those of a server only where it says so; what it forbids, it forbids there too."""
    touches = 'own: write_file {"path":"x"}'
    assert Rule("allow", tool).matches("own__write_file", touches) == fits
    assert Rule("deny", tool).matches("own__write_file", touches)


async def test_a_yes_for_the_conversation_is_for_these_arguments(
    tmp_path: Path,
) -> None:
    """Other arguments, more of them, and another tool ask."""
    with own("stdio") as settings:
        async with connected(tmp_path, settings) as servers:
            gate, where = (
                Gate(servers.tools(())),
                Where("local", "c", 1, "1", Path("/")),
            )
            first = gate.weigh("own__note", '{"text": "a[*]"}', where, allowed=())
            assert isinstance(first, Asks)
            assert first.rule is not None
            allowed = [first.rule]
            assert isinstance(
                gate.weigh("own__note", '{"text":"a[*]"}', where, allowed=allowed),
                Allowed,
            )
            for other in ('{"text":"a*"}', '{"text":"a[*]","to":"b"}', "{}"):
                assert isinstance(
                    gate.weigh("own__note", other, where, allowed=allowed), Asks
                )
            assert isinstance(
                gate.weigh("own__fail", '{"text": "a[*]"}', where, allowed=allowed),
                Asks,
            )


async def test_what_a_rule_forbids_is_forbidden_however_long_the_arguments_are(
    tmp_path: Path,
) -> None:
    """Also behind words that nobody asked for, which stand before it."""
    with own("stdio") as settings:
        async with connected(tmp_path, settings) as servers:
            gate = Gate(
                servers.tools(()),
                lambda: [Rule("deny", "own__*", "*secret*"), Rule("allow", "*")],
            )
            arguments = msgspec.json.encode(
                {"a": "x" * 5000, "text": "secret"}
            ).decode()
            found = gate.weigh(
                "own__note",
                arguments,
                Where("local", "c", 1, "1", Path("/")),
                allowed=(),
            )
            assert isinstance(found, Done)
            assert found.outcome == "denied"
            # an event has an end
            arguments = msgspec.json.encode({"text": "x" * 600_000}).decode()
            found = gate.weigh(
                "own__note",
                arguments,
                Where("local", "c", 1, "1", Path("/")),
                allowed=(),
            )
            assert isinstance(found, Done)


async def test_a_program_gets_only_what_it_is_given_and_a_key_goes_to_its_header(
    tmp_path: Path,
) -> None:
    """Nothing else of our environment; a wrong key and a variable that is not set are told, and not the key."""
    file = tmp_path / "config.toml"
    with over_http("--key") as url:
        file.write_text(
            f'{SECTION}env = ["SHOWN", "MISSING"]\n[mcp.far]\nurl = "{url}"\nkey = "env:K"\nheader = "x-key"\n'
        )
        env = {
            "TENAX_HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "SHOWN": "value-1",
            "HIDDEN": "x",
        }
        config = load(env | {"K": "wrong-key"})
        async with connected(tmp_path, *config.mcp.values()) as servers:
            assert (
                standing(servers, "own").error
                == "The variable MISSING, which it is to be given, is not set."
            )
            assert (
                standing(servers, "far").error
                == "It wants a key, or another one (HTTP 401)."
            )
            servers.use(load(env | {"K": KEY, "MISSING": "here"}).mcp)
            await servers.settled(SECONDS)
            assert (await done(servers, "far__echo")).outcome == "done"
            given = set((await done(servers, "own__env")).text.split())
            assert given - {"PWD", "LC_CTYPE", "_", "SHLVL", "OLDPWD"} == {
                "PATH",
                "SHOWN",
                "MISSING",
            }
    assert "wrong-key" not in repr(config)
    # so no tool's output holds them
    assert {"wrong-key", "value-1"} == set(find_secrets(config))


async def test_a_program_starts_where_no_command_writes(tmp_path: Path) -> None:
    """In a private folder, by the server and by `tenax mcp`: a module that a command planted is not run."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "planted.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')"
    )
    start = f"pwd >> {tmp_path}/where; exec {sys.executable} -m planted"
    config = home_of(
        tmp_path, section=f"[mcp.own]\ncommand = {['/bin/sh', '-c', start]}\n"
    )
    assert config.tools_folder == tmp_path / "work"
    async with Runtime(config, models=[ScriptedModel([])]) as runtime:
        await runtime.mcp.settled(SECONDS)
        assert "No module named planted" in runtime.mcp.standing()[0].error
    command = [sys.executable, "-P", "-m", "tenax", "mcp"]
    env = {**os.environ, "TENAX_HOME": str(tmp_path)}
    shown = await asyncio.to_thread(
        subprocess.check_output, command, env=env, text=True, timeout=SECONDS
    )
    assert "No module named planted" in shown
    assert set((tmp_path / "where").read_text().split()) == {str(tmp_path / "servers")}
    assert (tmp_path / "servers").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[mcp.a]\n", "needs either a command or a url"),
        (
            '[mcp.a]\ncommand = ["x"]\nurl = "http://x"',
            "needs either a command or a url",
        ),
        ('[mcp.a]\ncommand = ["x", ""]', "needs either a command or a url"),
        ('[mcp.A__b]\ncommand = ["x"]', "cannot be the name of a server"),
        ('[mcp.a]\nurl = "ftp://x"', "mcp.a.url in .* is not an HTTP address"),
        (
            '[mcp.a]\nurl = "http://x"\nkey = "sk-1"',
            'must be "env:NAME" or "secret:NAME"',
        ),
        ('[mcp.a]\nurl = "http://x"\nheader = "b"', "has header and no key"),
        ('[mcp.a]\nurl = "http://x"\nenv = ["b"]', "has env and no command"),
        ('[mcp.a]\ncommand = "x"', "must be a list"),
        ('[mcp.a]\ncomand = ["x"]', "not a setting of Tenax"),
        ("mcp = 1", "write .mcp.NAME. on a line of its own"),
    ],
)
def test_a_bad_section_is_told(tmp_path: Path, section: str, said: str) -> None:
    """With the place where it stands."""
    (tmp_path / "config.toml").write_text(section)
    with pytest.raises(ConfigError, match=said):
        load({"TENAX_HOME": str(tmp_path)})


async def test_a_prompt_is_not_filled_with_tools(tmp_path: Path) -> None:
    """What is left out is told."""
    many = McpSettings(name="many", command=(*OWN, "--many"))
    async with connected(tmp_path, many) as servers:
        found = standing(servers, "many")
        assert (len(found.tools), found.error) == (
            19,
            "Left out, too many or too long: 281 of its tools.",
        )
        assert len(msgspec.json.encode(Gate(servers.tools(())).specs())) < 100_000


async def test_without_its_package_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else is the worse for it."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(module, "import_module", missing)
    async with connected(tmp_path, McpSettings(name="own", command=OWN)) as servers:
        assert (
            standing(servers, "own").error
            == "Its package is not installed: pip install 'tenax[mcp]'"
        )


# -- what nothing harms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_that_misbehaves_harms_nobody_else(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, freezes, floods, sends no message, and dies: each call ends with a sentence, its neighbour answers meanwhile."""
    leap = clock_ahead(monkeypatch)
    lost = "The connection to own was lost. It may have done it, or a part of it."
    unread = "Its answer cannot be read, or is too long."
    late = f"own__hang was stopped because it took more than {McpTool.seconds:g} seconds. It may have done a part of it."
    said = {
        "hang": (late, ""),
        "complain": ("hi", ""),
        "garbage": ("hi", "") if transport == "stdio" else (unread, ""),
        "line": (lost, "It sent a message of more than 4,194,304 bytes.")
        if transport == "stdio"
        else (unread, ""),
        "flood": (
            lost,
            "It sent more than 2,000 messages in 10 seconds."
            if transport == "stdio"
            else "",
        ),
    }
    with own(transport) as bad, own("stdio", "good") as good:
        async with connected(tmp_path, bad, good, mcp_wait_seconds=SECONDS) as servers:
            gate = Gate(servers.tools(()), lambda: [Rule("allow", "*")])
            for tool, (sentence, error) in said.items():
                assert await beside(servers, gate, tool, leap) == sentence
                if error:
                    await eventually(
                        lambda error=error: standing(servers, "own").error.startswith(
                            error
                        )
                    )
                assert await done(servers, "own__echo", gate=gate) == Done(
                    "done", "hi"
                ), tool
            assert await beside(servers, gate, "die", leap) == lost
            if transport == "stdio":
                found = await eventually(lambda: standing(servers, "own").error)
                assert found == "It ended the connection. It said last: I was told to."
            else:
                await eventually(lambda: standing(servers, "own").state == "waiting")
                call = asyncio.create_task(done(servers, "own__echo", gate=gate))
                ended = await time_out(call, leap)
                assert ended.text.startswith("The server own cannot be reached.")
            assert await done(servers, "good__echo", gate=gate) == Done("done", "hi")


async def time_out(call: asyncio.Task[Done], leap: Callable[[float], None]) -> Done:
    """Put the clock forward until the call has ended."""
    while not call.done():
        leap(1.0)
        await asyncio.sleep(0.01)
    return await call


async def beside(
    servers: McpServers, gate: Gate, tool: str, leap: Callable[[float], None]
) -> str:
    """What the bad one says to this call, while its neighbour answers another."""
    call = asyncio.create_task(done(servers, f"own__{tool}", gate=gate))
    assert await done(servers, "good__echo", gate=gate) == Done("done", "hi")
    if tool == "hang":
        assert not call.done(), "the neighbour waited too"
        leap(McpTool.seconds)
    return (await call).text


async def test_a_server_that_froze_is_left_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for its tools before a call; where it does not answer, the call is not made."""
    leap = clock_ahead(monkeypatch)
    settings = McpSettings(name="own", command=OWN)
    async with connected(
        tmp_path, settings, mcp_fresh_seconds=0.0, mcp_wait_seconds=SECONDS
    ) as servers:
        frozen = asyncio.create_task(done(servers, "own__freeze"))
        said = ""
        # The first calls may be answered: the server does not freeze at once.
        while said != "The server own does not answer, so it was not called.":
            call = asyncio.create_task(done(servers, "own__echo"))
            await asyncio.wait({call}, timeout=0.3)
            said = (await time_out(call, leap)).text
        assert (await frozen).outcome == "failed"
        assert await done(servers, "own__echo") == Done("done", "hi")


async def test_a_call_that_comes_back_late_from_a_lost_connection_leaves_the_next_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk holds a call between its two words to a server, which is started again meanwhile."""
    from tenax.tools.mcp import wire

    begun, go_on = threading.Event(), threading.Event()
    opened = wire.opened

    def slow(file: Path, content: bytes) -> None:
        held = not begun.is_set()
        begun.set()
        if held:
            go_on.wait(SECONDS)
        write_atomically(file, content)

    def opened_deaf(
        settings: McpSettings, folder: Path, _changed: object, said: Any, **how: bool
    ) -> Any:
        """Ignore the notification of changed tools: the next call finds the change."""
        return opened(settings, folder, lambda: None, said, **how)

    monkeypatch.setattr(wire, "opened", opened_deaf)
    settings = McpSettings(name="own", command=OWN)
    async with connected(tmp_path, settings, mcp_fresh_seconds=-1.0) as servers:
        gate = Gate(servers.tools(()), lambda: [Rule("allow", "*")])
        assert (await done(servers, "own__change", gate=gate)).outcome == "done"
        monkeypatch.setattr(module, "write_atomically", slow)
        late = asyncio.create_task(done(servers, "own__echo", gate=gate))
        await eventually(begun.is_set)
        await eventually(
            lambda: [
                tool for tool in servers.tools(()) if "Changed" in tool.description
            ]
        )
        new = Gate(servers.tools(()), lambda: [Rule("allow", "*")])
        assert (await done(servers, "own__die", gate=new)).outcome == "failed"
        await eventually(lambda: standing(servers, "own").state == "waiting")
        await eventually(lambda: standing(servers, "own").state == "ready")
        go_on.set()
        assert (await late).text.startswith("The connection to own was lost.")
        assert await done(servers, "own__echo", gate=gate) == Done("done", "hi")


async def test_a_server_that_ends_when_it_is_asked_what_it_is_is_reached_the_old_way(
    tmp_path: Path,
) -> None:
    """With the second try."""
    async with connected(
        tmp_path, McpSettings(name="own", command=(*OWN, "--strict"))
    ) as servers:
        await eventually(lambda: standing(servers, "own").state == "ready")
        assert await done(servers, "own__echo") == Done("done", "hi")


async def test_closing_takes_no_time_and_leaves_no_process(tmp_path: Path) -> None:
    """Neither of a server that works, nor of its children, nor of one that heeds nothing."""
    deaf = f"trap '' TERM HUP INT; echo $$ > {tmp_path}/deaf; while :; do sleep 1; done"
    settings = [
        McpSettings(name="own", command=OWN),
        McpSettings(name="deaf", command=("/bin/sh", "-c", deaf)),
    ]
    servers = McpServers(tmp_path, tmp_path / "kept")
    servers.use({setting.name: setting for setting in settings})
    await eventually(lambda: standing(servers, "own").state == "ready")
    pids = [int(each) for each in (await done(servers, "own__child")).text.split()]
    pids.append(
        int(
            await eventually(
                lambda: (tmp_path / "deaf").exists() and (tmp_path / "deaf").read_text()
            )
        )
    )
    assert all(map(alive, pids))
    # One server ignores its end: a close that waited for it would wait for ever.
    async with asyncio.timeout(60):
        await servers.close()
    await eventually(lambda: not any(map(alive, pids)))


async def test_what_is_told_to_end_twice_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time while it waits for its process to go: a loop that ends tells everybody."""
    from tenax.tools.mcp import wire

    before, waits, wait_for_end = open_files(), asyncio.Event(), wire.wait_for_end

    async def held(process: Any) -> None:
        first = not waits.is_set()
        waits.set()
        await (asyncio.Event().wait() if first else wait_for_end(process))

    monkeypatch.setattr(wire, "wait_for_end", held)
    async with connected(tmp_path, McpSettings(name="own", command=OWN)) as servers:
        assert standing(servers, "own").state == "ready"
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "mcp own"]
        servers.use({})
        await waits.wait()
        task.cancel()
        await asyncio.wait({task})
        await eventually(lambda: open_files() <= before)


async def test_a_process_that_may_open_no_more_files_loses_none_with_every_try(
    tmp_path: Path,
) -> None:
    """The n-th file that is needed is refused, for every n, until the server is reached."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with connected(tmp_path, McpSettings(name="own", command=OWN)) as servers:
        assert standing(servers, "own").state == "ready"
    for n in count():
        before = open_files()
        free = (number for number in count() if number not in before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, n, None)), hard))
        try:
            async with connected(
                tmp_path, McpSettings(name="own", command=OWN)
            ) as servers:
                found = standing(servers, "own")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        await eventually(lambda before=before: open_files() <= before)
        if found.state == "ready":
            break
        assert "Too many open files" in found.error
    assert n > 3


def open_files() -> set[int]:
    found = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    # not the one of this look
    return {each for each in found if Path(f"/proc/self/fd/{each}").exists()}


# -- in a conversation ---------------------------------------------------------------------------------------


def home_of(tmp_path: Path, more: str = "", section: str = SECTION) -> Config:
    (tmp_path / "config.toml").write_text(section + more)
    return config_of(f"sqlite:///{tmp_path}/tenax.db", tmp_path)


def use(tool: str, text: str = "hi") -> Reply:
    return Reply(calls=[ScriptedCall(f"own__{tool}", {"text": text})])


async def test_nothing_is_called_without_the_gate(tmp_path: Path) -> None:
    """It waits for a person, who reads what it would do; a rule forbids; another user has no servers at all."""
    file = tmp_path / "notes"
    config = home_of(
        tmp_path,
        '[[rules]]\nverdict = "deny"\ntool = "own__*"\ntouches = "*forbidden*"\n',
    )
    script: list[Reply | str] = [
        use("note", str(file)),
        use("note", "forbidden"),
        "Done.",
    ]
    async with Runtime(config, models=[ScriptedModel(script)]) as runtime:
        await runtime.mcp.settled(SECONDS)
        name = await runtime.new()
        seq = (await runtime.submit(name, "Go.")).seq
        await until(runtime, name, "approval.asked")
        await runtime.workers.idle(name)
        (asked,) = await told(runtime, name, ApprovalAsked)
        assert asked.touches == f'own: note {{"text":"{file}"}}'
        assert not file.exists()
        await runtime.answer(name, asked.message, asked.call, "once")
        await settled(runtime, name, seq)
        first, second = await told(runtime, name, ToolFinished)
        assert (first.outcome, second.outcome) == ("done", "denied")
        assert len(file.read_text().splitlines()) == 1
        journal = runtime.journal.journal.of("berta")
        async with Runtime(
            config, user="berta", journal=journal, models=[ScriptedModel(["x"])]
        ) as other:
            assert other.mcp.standing() == []
            assert not [
                tool for tool in other.agent.gate.tools() if isinstance(tool, McpTool)
            ]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tools_that_change_in_a_turn_are_refused_until_the_next(
    tmp_path: Path, transport: str
) -> None:
    """Whether the server says so, as ours does over pipes, or not."""
    with own(transport) as settings:
        section = (
            SECTION if transport == "stdio" else f'[mcp.own]\nurl = "{settings.url}"\n'
        )
        script: list[Reply | str] = [
            use("change"),
            use("echo"),
            "Done.",
            use("echo"),
            "Done.",
        ]
        config = home_of(tmp_path, ALLOW, section)
        if transport == "http":
            config = with_timing(config, mcp_fresh_seconds=0.0)
        async with Runtime(config, models=[ScriptedModel(script)]) as runtime:
            await runtime.mcp.settled(SECONDS)
            name = await runtime.new()
            for _ in range(2):
                await settled(runtime, name, (await runtime.submit(name, "Go.")).seq)
            assert [
                (each.outcome, each.text)
                for each in await told(runtime, name, ToolFinished)
            ] == [
                ("done", "hi"),
                (
                    "failed",
                    "own was not called: its tools changed. (the next turn has the new ones)",
                ),
                ("done", "hi"),
            ]
            assert len(await told(runtime, name, ContextOpened)) == 2


async def test_nobody_waits_for_a_server(tmp_path: Path) -> None:
    """A turn is answered without it; the next has its tools; after a restart they are known before it is up."""
    go = tmp_path / "go"
    wait = f"while ! test -e {go}; do sleep 0.05; done; exec {' '.join(OWN)}"
    config = home_of(
        tmp_path, ALLOW, f"[mcp.own]\ncommand = {['/bin/sh', '-c', wait]}\n"
    )
    script: list[Reply | str] = ["One.", use("echo"), "Two.", use("echo"), "Three."]
    async with Runtime(config, models=[ScriptedModel(script)]) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "Go.")).seq)
        assert runtime.mcp.standing()[0].state == "starting"
        go.touch()
        await runtime.mcp.settled(SECONDS)
        await settled(runtime, name, (await runtime.submit(name, "Go.")).seq)
    go.unlink()
    async with Runtime(config, models=[ScriptedModel(script)]) as runtime:
        seq = (await runtime.submit(name, "Go.")).seq
        # the server is not up, and its tool is known
        await until(runtime, name, "tool.started", 2)
        go.touch()
        await settled(runtime, name, seq)
        assert [each.outcome for each in await told(runtime, name, ToolFinished)] == [
            "done",
            "done",
        ]
        assert len(await events_of(runtime, name, "context.opened")) == 2


async def test_tools_are_known_at_the_start_though_the_agent_was_made_before(
    tmp_path: Path,
) -> None:
    """As in `tenax -p`: the agent is looked at before the start, and the list of the last run is on the disk."""
    config = home_of(tmp_path, ALLOW)
    async with Runtime(config, models=[ScriptedModel([])]) as runtime:
        await runtime.mcp.settled(SECONDS)
        known = [tool.name for tool in runtime.agent.gate.tools()]
    runtime = Runtime(config, models=[ScriptedModel([])])
    before = [tool.name for tool in runtime.agent.gate.tools()]
    async with runtime:
        after = [tool.name for tool in runtime.agent.gate.tools()]
    assert "own__echo" not in before
    assert "own__echo" in after
    assert after == known


def serve(teller: Teller, url: str, home: str, conversation: str) -> None:
    """A Tenax that answers, for as long as it lives."""

    async def work() -> None:
        script = Script.read(Path(home) / "script.json")
        async with Runtime(
            config_of(url, Path(home)), models=[ScriptedModel(script)]
        ) as runtime:
            await runtime.mcp.settled(SECONDS)
            await runtime.submit(conversation, "Go.")
            await all_answered(runtime, conversation)

    asyncio.run(work())
    teller.tell("done")


@pytest.mark.parametrize(
    ("tool", "outcome", "calls"), [("slow", "unknown", 1), ("again", "done", 2)]
)
async def test_kill_9_in_the_middle_of_a_call(
    tmp_path: Path, tool: str, outcome: str, calls: int
) -> None:
    """What may be done once is not done again, and is unknown; what a trusted server may repeat is. Its processes are gone."""
    file = tmp_path / "notes"
    config = home_of(tmp_path, f"trusted = true\n{ALLOW}")
    script = Script([use(tool, str(file)), Reply("Done.")], repeat=True)
    (tmp_path / "script.json").write_bytes(msgspec.json.encode(script))
    name = new_conversation(config.store_url)
    victim = Child(serve, config.store_url, str(tmp_path), name)
    (process,) = await eventually(lambda: file.exists() and file.read_text().split())
    victim.process.kill()
    await eventually(lambda: not alive(int(process)))
    async with Runtime(config, models=[ScriptedModel(script)]) as runtime:
        await all_answered(runtime, name)
        assert [each.outcome for each in await told(runtime, name, ToolFinished)] == [
            outcome
        ]
    assert len(file.read_text().split()) == calls


# -- real ones, and what people see --------------------------------------------------------------------------


async def test_real_servers_over_both_transports(tmp_path: Path) -> None:
    """`mcp-server-time` over pipes, and `duckduckgo-mcp-server`, which refuses to look at this machine, over HTTP."""
    # one that no client is given, for it takes a while until the server is there
    kept = kept_port()
    port = kept.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "duckduckgo_mcp_server.server",
        "--transport",
        "streamable-http",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with kept, subprocess.Popen([*command, "--port", str(port)], **quiet) as process:  # type: ignore[call-overload]  # noqa: ASYNC220
        try:
            clock = McpSettings(
                name="time",
                command=(sys.executable, "-m", "mcp_server_time"),
                trusted=True,
            )
            web = McpSettings(name="web", url=f"http://127.0.0.1:{port}/mcp")
            async with connected(tmp_path, clock, web) as servers:
                await eventually(
                    lambda: {each.state for each in servers.standing()} == {"ready"}
                )
                gate = Gate(servers.tools(()), lambda: [Rule("allow", "*")])
                where = Where("local", "c", 1, "1", Path("/"))
                for tool, arguments, said in (
                    (
                        "time__get_current_time",
                        '{"timezone":"Europe/Paris"}',
                        '"timezone": "Europe/Paris"',
                    ),
                    (
                        "web__fetch_content",
                        '{"url":"http://127.0.0.1:9/"}',
                        "Refusing to fetch",
                    ),
                ):
                    permit = gate.weigh(tool, arguments, where, allowed=())
                    assert isinstance(permit, Allowed)
                    assert (
                        said
                        in (await gate.perform(permit, approved_arguments=None)).text
                    )
        finally:
            process.kill()


def test_servers_are_added_trusted_and_removed_while_it_serves(tmp_path: Path) -> None:
    """On the page, by the owner alone; the terminal lists them."""
    set_up(tmp_path, [Reply("Hello.")])
    with Served(tmp_path) as served:
        page = served.browser()
        berta = served.browser(served.tenax("link", "--user", "berta").stdout.strip())
        assert page.get("/mcp") == {"servers": []}
        body = {"name": "own", "command": list(OWN)}
        assert berta.http.get("/api/mcp").status_code == 409
        assert berta.http.post("/api/mcp", json=body).status_code == 409
        page.post("/mcp", {"name": "own", "url": "ftp://x"}, status=409)
        code = served.tenax("code").stdout.strip()
        page.post("/mcp", {**body, "code": code}, status=201)
        page.post("/mcp", body, status=409)
        until_ready(page)
        page.post("/mcp/trust", {"name": "own", "trusted": True}, status=200)
        until_ready(page)
        (found,) = page.get("/mcp")["servers"]
        assert (
            next(tool["asks"] for tool in found["tools"] if tool["name"] == "own__echo")
            is False
        )
        listed = served.tenax("mcp").stdout.splitlines()
        assert listed[0].startswith("own  ready, trusted  ")
        assert "    own__echo  read-only, does not ask" in listed
        assert "    own__note  not repeated, asks first" in listed
        assert page.http.delete("/api/mcp", params={"name": "own"}).json() == {
            "servers": []
        }
        assert "mcp" not in (tmp_path / "config.toml").read_text()


def until_ready(page: Any) -> None:
    until = time.monotonic() + SECONDS
    while page.get("/mcp")["servers"][0]["state"] != "ready":
        assert time.monotonic() < until
        time.sleep(0.05)
