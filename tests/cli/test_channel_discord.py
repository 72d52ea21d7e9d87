"""`tenax channel add discord`: a bot on Discord is connected."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tenax.config import load
from tests.cli.conftest import tenax
from tests.support.discord import FakeDiscord
from tests.support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("home")


def enter(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Give the next command an input that is no terminal."""
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)


def test_add_checks_the_token_and_saves_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the bot and the next steps are printed; the token is in the file of keys only."""
    with FakeDiscord() as discord:
        enter(monkeypatch, f"{discord.token}\n")
        code, out, err = tenax(
            capsys, "channel", "add", "discord", "--url", discord.url
        )
    assert (code, err) == (0, "Checking the token ...\n")
    assert out.startswith(
        f"Connected @tenax_test_bot. Saved in {home}/config.toml as [channels.discord].\n"
    )
    account = load(os.environ).channels["discord"]
    assert account.platform == "discord"
    assert account.token is not None
    assert account.token.reveal() == discord.token
    assert discord.token not in out + err + (home / "config.toml").read_text()


def test_add_says_how_to_create_the_bot() -> None:
    """In a terminal the steps come first, and the token is not shown."""
    with (
        FakeDiscord() as discord,
        Terminal("channel", "add", "discord", "--url", discord.url) as terminal,
    ):
        steps = terminal.wait_for("Token (not shown): ")
        assert "Message Content Intent" in steps
        terminal.type(discord.token)
        terminal.wait_for("3. Run: tenax pair CODE")
        assert terminal.end() == 0
        assert discord.token not in terminal.shown
    assert list(load(os.environ).channels) == ["discord"]


def test_add_names_the_switch_that_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bot that may not read messages is not saved, and the error says where the switch is."""
    with FakeDiscord() as discord:
        discord.may_read_content = False
        enter(monkeypatch, discord.token)
        code, _, err = tenax(capsys, "channel", "add", "discord", "--url", discord.url)
    assert code != 0
    assert "Message Content Intent" in err
    assert load(os.environ).channels == {}
