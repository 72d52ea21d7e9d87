"""The modes of a conversation at the gate: plan mode refuses what changes something, `edits` accepts changes of files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.assembly import Runtime
from tenax.config.rules import Rule
from tenax.events import Mode
from tenax.models import Reply, ScriptedModel
from tenax.tools.base import Call, Effect, Tool
from tenax.tools.files.edit import EditFile, ReadFile, WriteFile
from tenax.tools.gate import Allowed, Asks, Done, Gate
from tests.support.runs import config_of

READING = {
    "ask",
    "find_files",
    "read_file",
    "read_skill",
    "search_conversations",
    "search_files",
    "shell_read",
    "todo",
    "web_search",
}
"""The tools that plan mode allows."""
ALL = Rule("allow", "*", "*")
WRITE = '{"path":"notes.txt","content":"milk"}'


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Act(Tool[Nothing]):
    """A tool that says of itself what a test wants."""

    name = "act"
    description = "Act."
    args = Nothing
    seconds = 5.0
    done = 0

    def __init__(self, effect: Effect, *, reads: bool, edits: bool) -> None:
        self.effect, self.only_reads, self.edits = effect, reads, edits
        self.asks = True

    def touches(self, args: Nothing, call: Call) -> str:
        return "all of it"

    def always_asks(self, args: Nothing) -> bool:
        return self.done < 0

    async def run(self, args: Nothing, call: Call) -> str:
        self.done += 1
        return "done"


@pytest.fixture
def call(tmp_path: Path) -> Call:
    return Call("ada", "c_1", 7, "call_a", tmp_path)


def weigh(
    gate: Gate, call: Call, mode: Mode, name: str = "act", arguments: str = "{}"
) -> Allowed | Asks | Done:
    return gate.weigh(name, arguments, call, allowed=[ALL], mode=mode)


@pytest.mark.parametrize(
    ("effect", "reads", "edits"),
    list(
        itertools.product(["pure", "idempotent", "once"], [False, True], [False, True])
    ),
)
def test_plan_mode_refuses_every_tool_that_does_not_only_read(
    call: Call, effect: Effect, *, reads: bool, edits: bool
) -> None:
    """Also with a rule that allows everything, in the settings and in the conversation; both words are needed."""
    gate = Gate([Act(effect, reads=reads, edits=edits)], lambda: [ALL])
    verdict = weigh(gate, call, "plan")
    if effect == "pure" and reads:
        assert isinstance(verdict, Allowed)
    else:
        assert isinstance(verdict, Done)
        assert verdict.outcome == "denied"
        assert "plan mode: describe the change instead" in verdict.text


async def test_a_permit_does_not_outlive_a_switch_of_the_mode(call: Call) -> None:
    """Neither a permit of a rule nor an approval counts in plan mode; one of the mode `edits` counts in it only."""
    act = Act("once", reads=False, edits=True)
    gate = Gate([act])
    free = weigh(gate, call, "ask")
    asks = gate.weigh("act", "{}", call, allowed=())
    assert isinstance(free, Allowed)
    assert isinstance(asks, Asks)
    approved = gate.approve(asks, "{}")
    assert isinstance(approved, Allowed)
    for permit, arguments in ((free, None), (approved, "{}")):
        done = await gate.perform(permit, approved_arguments=arguments, mode="plan")
        assert (done.outcome, "plan mode" in done.text) == ("denied", True)
    for mode, outcome in (("ask", "denied"), ("plan", "denied"), ("edits", "done")):
        permit = gate.weigh("act", "{}", call, allowed=(), mode="edits")  # type: ignore[assignment]
        done = await gate.perform(permit, approved_arguments=None, mode=mode)  # type: ignore[arg-type]
        assert done.outcome == outcome
    assert act.done == 1


def test_accepted_edits_are_those_of_files_and_nothing_else(call: Call) -> None:
    """A deny rule takes precedence, and what always asks still asks."""
    tools: list[Tool[Any]] = [WriteFile(), EditFile(), ReadFile()]
    gate = Gate([*tools, Act("once", reads=False, edits=False)])
    given = {"write_file": WRITE, "edit_file": '{"path":"a","old":"b","new":"c"}'}
    for name, arguments in given.items():
        for mode, verdict in (("ask", Asks), ("edits", Allowed), ("plan", Done)):
            found = gate.weigh(name, arguments, call, allowed=(), mode=mode)  # type: ignore[arg-type]
            assert isinstance(found, verdict)
    assert isinstance(gate.weigh("act", "{}", call, allowed=(), mode="edits"), Asks)
    denied = Gate([WriteFile()], lambda: [Rule("deny", "write_file", "notes*")])
    found = denied.weigh("write_file", WRITE, call, allowed=(), mode="edits")
    assert isinstance(found, Done)
    always = Act("once", reads=False, edits=True)
    always.done = -1
    assert isinstance(weigh(Gate([always]), call, "edits"), Asks)


@pytest.mark.parametrize("path", ["../up.txt", "a/../../up.txt", "/etc/x", ".git/x"])
def test_accepted_edits_do_not_leave_the_folder(call: Call, path: str) -> None:
    """A path out of the folder is refused before anybody is asked."""
    arguments = msgspec.json.encode({"path": path, "content": "x"}).decode()
    found = Gate([WriteFile()]).weigh(
        "write_file", arguments, call, allowed=(), mode="edits"
    )
    assert isinstance(found, Done)
    assert found.outcome == "failed"


async def test_accepted_edits_follow_no_link(call: Call, tmp_path: Path) -> None:
    """Neither a link to a folder nor to a file, in any part of the path."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (work, outside):
        folder.mkdir()
    (outside / "file").write_text("mine")
    (work / "folder").symlink_to(outside)
    (work / "file").symlink_to(outside / "file")
    gate = Gate([WriteFile()])
    here = msgspec.structs.replace(call, folder=work)
    for path in ("folder/file", "folder/new", "file"):
        arguments = msgspec.json.encode({"path": path, "content": "x"}).decode()
        permit = gate.weigh("write_file", arguments, here, allowed=(), mode="edits")
        assert isinstance(permit, Allowed)
        done = await gate.perform(permit, approved_arguments=None, mode="edits")
        assert done.outcome == "failed"
    assert [file.name for file in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "mine"


async def test_the_tools_that_plan_mode_allows_are_these(tmp_path: Path) -> None:
    """A new tool is refused until somebody decides."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[search]\nsearxng = "http://127.0.0.1:9"\n')
    config = config_of(f"sqlite:///{home}/tenax.db", home)
    async with Runtime(config, models=[ScriptedModel([Reply("Hi.")])]) as runtime:
        gate = runtime.agent.gate
        call = Call("local", "c_1", 7, "call_a", tmp_path)
        allowed = set()
        for tool in gate.tools():
            verdict = gate.weigh(tool.name, "{}", call, allowed=[ALL], mode="plan")
            if "plan mode" not in getattr(verdict, "text", ""):
                allowed.add(tool.name)
    assert allowed == READING
