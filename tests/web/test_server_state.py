"""One server's insides: whose runtimes there are, and with which settings they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tenax
from tenax.cli.serve import links_of
from tenax.config import Config, load
from tenax.errors import CannotOpen, ConfigError
from tenax.events import MessageUser, RunFinished, RunStarted
from tenax.journal import LOCAL_USER
from tenax.models import Reply
from tenax.parts import Text
from tenax.runtime.workers import Policy
from tenax.web.problems import answer_to
from tenax.web.server_state import ServerState
from tests.contract.engine.base import begin
from tests.support.runs import config_of
from tests.support.turns import set_up


async def test_settings_that_cannot_be_read_for_a_moment_are_looked_at_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By whoever comes next, although the file is as it was; it is said once. What changes while it is read counts too."""
    set_up(tmp_path, [Reply("Yes.")])
    env = {"TENAX_HOME": str(tmp_path)}
    config = load(env)
    answers: list[Callable[[], Config]] = []

    def answer() -> Config:
        return answers.pop(0)()

    state = ServerState(config, links_of(config), answer)

    def away() -> Config:
        raise ConfigError("The settings cannot be read.")

    def changing() -> Config:
        found = load(env)
        config.file.write_text(config.file.read_text() + "\n# more\n")
        return found

    try:
        await state.look_at_settings()
        config.file.write_text(config.file.read_text() + "\n# touched\n")
        answers = [away, away, changing, lambda: load(env)]
        for _ in range(5):
            await state.look_at_settings()
        assert answers == []
    finally:
        await state.close()
    assert [
        record.message for record in caplog.records if "are not used" in record.message
    ] == ["The changed settings are not used: The settings cannot be read."]


async def test_who_comes_while_settings_are_read_gets_them_too(tmp_path: Path) -> None:
    """One more user, in the midst of telling the others."""
    config = config_of(f"sqlite:///{tmp_path}/tenax.db", tmp_path)
    state = ServerState(config, links_of(config), lambda: replace(config, resume="ask"))
    try:
        await state.runtime("ada")
        _, runtime = await asyncio.gather(state.reload(), state.runtime("bob"))
        assert [
            each.config.resume for each in (runtime, await state.runtime("ada"))
        ] == ["ask", "ask"]
    finally:
        await state.close()


async def test_what_a_server_left_of_others_goes_on_at_its_next_start(
    tmp_path: Path,
) -> None:
    """Also for who has not come yet: a run that was interrupted in good order is not open."""
    config = config_of(f"sqlite:///{tmp_path}/tenax.db", tmp_path)
    with tenax.open(config.store_url, user="ada") as journal:
        started = RunStarted([2], place=Policy(config.tools_folder).workdir_id)
        cut = [
            MessageUser([Text("go")], ask=True),
            started,
            RunFinished("interrupted", "stopped", planned=True),
        ]
        journal.append(begin(journal), cut, run="r_1")
    state = ServerState(config, links_of(config), lambda: config)
    try:
        await state.start()
        assert state.runtimes.keys() == {LOCAL_USER, "ada"}
    finally:
        await state.close()


async def test_a_folder_of_one_user_that_cannot_be_made_stops_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the start of the server nor a change of the settings; it is logged, and works once the folder does."""
    config = config_of(f"sqlite:///{tmp_path}/tenax.db", tmp_path)
    for user in ("ada", "bob"):
        with tenax.open(config.store_url, user=user) as journal:
            cut = [
                MessageUser([Text("go")], ask=True),
                RunStarted([2]),
                RunFinished("interrupted", planned=True),
            ]
            journal.append(begin(journal), cut, run="r_1")
    config.directories.users.mkdir()
    broken = config.directories.users / "bob"
    broken.write_text("in the way")
    state = ServerState(config, links_of(config), lambda: replace(config, resume="ask"))
    try:
        await state.start()
        with pytest.raises(
            CannotOpen, match="users/bob/files cannot be made"
        ) as caught:
            await state.runtime("bob")
        told = answer_to(caught.value).body
        assert not [word for word in (b"store", b"TENAX_HOME") if word in told], told
        await state.reload()
        for user in (LOCAL_USER, "ada"):
            assert (await state.runtime(user)).config.resume == "ask"
        broken.unlink()
        assert (await state.runtime("bob")).config.resume == "ask"
    finally:
        await state.close()
    logged = [
        record.message
        for record in caplog.records
        if "Cannot serve user bob" in record.message
    ]
    assert len(logged) == 2
