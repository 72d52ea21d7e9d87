"""`kill -9` of the real server in the middle of what tools do: nothing is repeated, nothing is left running, and it is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tenax
from tenax.events import MessageUser, ToolFinished, ToolStarted
from tenax.journal import LOCAL_USER
from tenax.journal.verify.store import verify
from tenax.models import Reply, ScriptedCall
from tenax.parts import text_of
from tests.support.bubblewrap import inside, need_bwrap
from tests.support.served import Served
from tests.support.turns import SECONDS, journal_of, rows_of, set_up

pytestmark = pytest.mark.crash

BEHIND = "echo x >> behind; setsid sleep 300"
AHEAD = "echo x >> ahead; (setsid sleep 300 &); sleep 300"
ALLOWED = '[[rules]]\nverdict = "allow"\ntool = "shell*"\n'


def wait(done: Callable[[], object], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_commands_die_with_the_server_and_the_conversation_is_told(
    store_url: str, tmp_path: Path
) -> None:
    """A call of the shell is `unknown` and not made again; a background process is told as lost, once."""
    need_bwrap(of_the_system=True)
    calls = [
        ScriptedCall("shell_start", {"command": BEHIND}),
        ScriptedCall("shell", {"command": AHEAD}),
    ]
    set_up(tmp_path, [Reply(calls=[call]) for call in calls] + [Reply("I see.")])
    with (tmp_path / "config.toml").open("a") as file:
        file.write(ALLOWED)
    folder = tmp_path / "work"
    with Served(tmp_path, env={"TENAX_STORE": store_url}) as served:
        page = served.browser()
        name = page.new()

        def ended(count: int) -> bool:
            return (
                sum(each.kind == "run.finished" for each in journal_of(store_url, name))
                >= count
            )

        page.say(name, "go")
        wait((folder / "ahead").exists, "the command did not begin")
        wait(
            lambda: inside(folder).count("sleep") == 3,
            f"not all began: {inside(folder)}",
        )
        served.kill_server()
        wait(lambda: not inside(folder), "a command outlived the server")
        # interrupted, resumed, and the answer to what was lost
        wait(lambda: ended(3), "it was not gone on with")
    events = [each.event for each in journal_of(store_url, name)]
    started = [event.name for event in events if isinstance(event, ToolStarted)]
    outcomes = [event.outcome for event in events if isinstance(event, ToolFinished)]
    assert (started, outcomes) == (["shell_start", "shell"], ["done", "unknown"])
    assert [(folder / each).read_text() for each in ("behind", "ahead")] == [
        "x\n",
        "x\n",
    ]
    (process,) = [
        event.text.split()[-1].strip(".")
        for event in events
        if isinstance(event, ToolFinished) and event.outcome == "done"
    ]
    (told,) = [
        text_of(event.parts)
        for event in events
        if isinstance(event, MessageUser) and event.system
    ]
    assert f"The background process {process} ended because Tenax was stopped" in told
    assert list((tmp_path / "background").iterdir()) == []
    assert inside(folder) == []


def test_output_that_was_seen_before_the_kill_is_in_the_outcome(
    store_url: str, tmp_path: Path
) -> None:
    """A command shows its output while it runs; after `kill -9` and a restart the row of the call still has it."""
    need_bwrap(of_the_system=True)
    command = "echo seen before; echo and this; sleep 300"
    calls = [ScriptedCall("shell", {"command": command})]
    set_up(tmp_path, [Reply(calls=calls), Reply("I see.")])
    with (tmp_path / "config.toml").open("a") as file:
        file.write(ALLOWED)
    with Served(tmp_path, env={"TENAX_STORE": store_url}) as served:
        page = served.browser()
        name = page.new()
        page.say(name, "go")

        def kinds() -> list[str]:
            return [each.kind for each in journal_of(store_url, name)]

        wait(lambda: "tool.output" in kinds(), "no output was stored")
        (before,) = [
            row
            for row in rows_of(journal_of(store_url, name)).rows
            if row.kind == "tool"
        ]
        assert (before.state, before.text) == ("running", "seen before\nand this\n")
        served.kill_server()
        wait(lambda: kinds().count("run.finished") == 2, "it was not gone on with")
    events = journal_of(store_url, name)
    (after,) = [row for row in rows_of(events).rows if row.kind == "tool"]
    assert after.state == "unknown"
    assert before.text in after.text
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        assert "tool.output" not in kinds(), "replaced output is dropped"
        assert verify(journal).ok
