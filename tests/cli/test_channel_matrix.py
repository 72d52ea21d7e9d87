"""`tenax channel add matrix`: an account is connected with a password or an access token."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenax.config import load
from tests.cli.conftest import tenax
from tests.support.matrix import FakeMatrix
from tests.support.terminal import Terminal

Enter = Callable[[str], None]
PASSWORD = "secret words"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as fake:
        yield fake


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Gives the next command an input that is no terminal."""

    def set_input(text: str) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)

    return set_input


def test_a_password_is_used_once_and_not_saved(
    home: Path,
    matrix: FakeMatrix,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The settings have the user and the device, the file of keys has the access token, and the password is nowhere."""
    enter(f"{PASSWORD}\n")
    code, out, err = tenax(
        capsys, "channel", "add", "matrix", "--url", matrix.url, "--user", matrix.bot
    )
    assert (code, err) == (0, "Checking the token ...\n")
    assert out.startswith(f"Connected {matrix.bot}. ")
    account = load(os.environ).channels["matrix"]
    assert account.token is not None
    assert account.token.reveal() == matrix.token
    assert (account.user, account.device) == (matrix.bot, matrix.device)
    texts = [file.read_text() for file in home.iterdir() if file.suffix == ".toml"]
    assert not any(PASSWORD in text for text in texts)


def test_an_access_token_needs_no_user(
    matrix: FakeMatrix, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """The homeserver says whose token it is, and of which device."""
    enter(f"{matrix.token}\n")
    code, _, _ = tenax(capsys, "channel", "add", "matrix", "--url", matrix.url)
    assert code == 0
    account = load(os.environ).channels["matrix"]
    assert (account.user, account.device) == (matrix.bot, matrix.device)


def test_a_new_password_keeps_the_device(
    matrix: FakeMatrix, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the device, the homeserver recognises a repeated message, so a second sign-in uses the same device."""
    for _ in range(2):
        enter(f"{PASSWORD}\n")
        code, _, _ = tenax(
            capsys,
            "channel",
            "add",
            "matrix",
            "--url",
            matrix.url,
            "--user",
            matrix.bot,
        )
        assert code == 0
    logins = [call.content for call in matrix.log if call.method == "login"]
    assert "device_id" not in logins[0]
    assert logins[1]["device_id"] == matrix.device


@pytest.mark.parametrize(
    ("entered", "more", "expected"),
    [
        ("wrong\n", ("--user", FakeMatrix.bot), "refuses the user id and the password"),
        ("syt_" + "wrong" * 5, (), "refuses the access token"),
        (PASSWORD, ("--user", "tenax"), "an id has the form @NAME:SERVER"),
    ],
)
def test_wrong_entries_are_refused(
    matrix: FakeMatrix,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
    entered: str,
    more: tuple[str, ...],
    expected: str,
) -> None:
    """The error says what to check, and nothing is saved."""
    enter(entered)
    code, _, err = tenax(capsys, "channel", "add", "matrix", "--url", matrix.url, *more)
    assert code == 1
    assert expected in err
    assert not load(os.environ).channels


def test_the_address_of_the_homeserver_is_needed(
    enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal to ask in, the error shows what an address looks like."""
    enter(PASSWORD)
    code, _, err = tenax(capsys, "channel", "add", "matrix")
    assert code == 1
    assert "https://matrix.example.org" in err


def test_a_terminal_asks_for_everything(matrix: FakeMatrix) -> None:
    """The steps come first; the terminal does not show the password."""
    with Terminal("channel", "add", "matrix") as terminal:
        steps = terminal.wait_for("Address of the homeserver: ")
        assert "Create an account for Tenax" in steps
        terminal.type(matrix.url)
        terminal.wait_for("User id: ")
        terminal.type(matrix.bot)
        terminal.wait_for("Password or access token (not shown): ")
        terminal.type(PASSWORD)
        terminal.wait_for("3. Run: tenax pair CODE")
        assert terminal.end() == 0
        assert PASSWORD not in terminal.shown
