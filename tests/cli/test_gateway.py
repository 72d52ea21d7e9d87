"""`tenax gateway`: the chat apps without the page, from the first message to the end of the process."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import pytest

from tenax.models import Reply, Script
from tests.cli.conftest import tenax
from tests.support.served import environment
from tests.support.telegram import FakeTelegram

SECONDS = 60.0


class Running:
    """`tenax gateway` as a process of its own, until the end of the block."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenax", "gateway"],
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, words: str) -> str:
        """Wait for a line with some words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line.rstrip()
        raise AssertionError(f"It ended first: {self.process.communicate()[1]}")

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal, and return the exit code and stderr."""
        self.process.send_signal(number)
        err = self.process.communicate(timeout=SECONDS)[1]
        return self.process.returncode, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as fake:
        yield fake


@pytest.fixture
def connected(
    home: Path,
    telegram: FakeTelegram,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A home with a bot, and with a model that always gives the same answer."""
    script = Script([Reply(words="I am here.")], repeat=True)
    (home / "answers.json").write_bytes(msgspec.json.encode(script))
    (home / "config.toml").write_text(
        '[models.main]\napi = "script"\nname = "m"\nurl = "answers.json"\n'
        "[memory]\nreview = false\n"
    )
    stdin = io.TextIOWrapper(io.BytesIO(telegram.token.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    args = ("channel", "add", "telegram", "--url", telegram.url)
    assert tenax(capsys, *args)[0] == 0
    return home


def test_a_stranger_becomes_the_owner_and_gets_an_answer(
    connected: Path, telegram: FakeTelegram, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way of the how-to page; the list then shows the account as connected, and the log has no token."""
    telegram.say("hello")
    with Running(connected) as gateway:
        line = gateway.wait_for("connected")
        assert line == "telegram  @tenax_test_bot  connected"
        found = telegram.wait_for(
            lambda: re.search(r"tenax pair ([A-Z0-9]{8})", "".join(telegram.texts()))
        )
        assert found is not None
        code, out, _ = tenax(capsys, "pair", found[1], "--me")
        assert (code, out) == (0, "Ada can now talk to telegram, as you, the owner.\n")
        telegram.say("hello again")
        telegram.wait_for(lambda: "I am here." in telegram.texts())
        assert "hello again" in tenax(capsys, "list")[1]
        assert "telegram  @tenax_test_bot  connected\n" in tenax(capsys, "channel")[1]
        code, err = gateway.end(signal.SIGINT)
    assert code == 0
    assert err.splitlines() == [
        "Serving the chat apps. Ctrl-C stops the gateway.",
        "Stopped. Unfinished answers continue at the next start.",
    ]
    log = (connected / "log" / "gateway.log").read_text()
    assert telegram.token not in log
    assert "hello" not in log
    assert "off: neither" in tenax(capsys, "channel")[1]


def test_an_account_that_stops_working_is_a_line(
    connected: Path, telegram: FakeTelegram
) -> None:
    """A refused token is printed with what to do, and SIGTERM ends the gateway too."""
    telegram.say("hello")
    with Running(connected) as gateway:
        gateway.wait_for("connected")
        telegram.fail("getUpdates", 401, times=None, description="Unauthorized")
        # The waiting poll of the bot ends with an update.
        telegram.say("hello")
        line = gateway.wait_for("refused")
        assert "tenax channel add telegram --label telegram" in line
        assert telegram.token not in line
        assert gateway.end(signal.SIGTERM)[0] == 0


def test_an_account_that_is_removed_or_added_is_noticed(
    connected: Path,
    telegram: FakeTelegram,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A running gateway follows the settings by itself."""
    telegram.say("hello")
    with Running(connected) as gateway:
        gateway.wait_for("connected")
        assert tenax(capsys, "channel", "remove", "telegram")[0] == 0
        assert gateway.wait_for("removed") == "telegram  removed"
        telegram.say("hello")
        stdin = io.TextIOWrapper(io.BytesIO(telegram.token.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        args = ("channel", "add", "telegram", "--url", telegram.url, "--label", "new")
        assert tenax(capsys, *args)[0] == 0
        line = gateway.wait_for("connected")
        assert line == "new  @tenax_test_bot  connected"
        assert gateway.end(signal.SIGINT)[0] == 0


@pytest.mark.usefixtures("home")
def test_without_an_account_the_gateway_does_not_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence says how to connect a chat app."""
    assert tenax(capsys, "gateway") == (
        3,
        "",
        "tenax: No chat app is connected.\nTo connect one: tenax channel add telegram\n",
    )


def test_a_webhook_takes_no_messages_here(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has no HTTP server, and says which command takes the messages."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert tenax(capsys, "channel", "add", "webhook")[0] == 0
    with Running(home) as gateway:
        line = gateway.wait_for("webhook")
        assert line == "webhook  messages come in only through `tenax serve`"
        gateway.wait_for("webhook  webhook  connected")
        assert gateway.end(signal.SIGTERM)[0] == 0
