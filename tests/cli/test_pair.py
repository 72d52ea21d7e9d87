"""`tenax pair`: a stranger with a code becomes the owner or a user of their own, and nobody else does."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tenax as package
from tenax.channels.rows import ChannelRows, ChatPerson
from tests.cli.conftest import tenax
from tests.support.terminal import Terminal

ACCOUNT = "telegram:123456"


@contextmanager
def rows_in(home: Path) -> Iterator[ChannelRows]:
    with package.open(f"sqlite:///{home}/tenax.db") as journal:
        yield ChannelRows(journal)


def people_in(home: Path) -> list[ChatPerson]:
    with rows_in(home) as rows:
        return rows.people()


@pytest.fixture
def code(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code of a stranger who calls herself Ada. The commands have no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (home / "config.toml").write_text('[channels.tg]\nplatform = "telegram"\n')
    with rows_in(home) as rows:
        rows.put_value("label:tg", "account", ACCOUNT)
        code = rows.offer_pairing(ACCOUNT, "7001", "Ada \x1b[31m", "7001")
    assert code is not None
    return code


def test_the_owner_pairs_their_own_chat(
    home: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --me the chat has the conversations and the rights of the owner; the code may be typed in any way."""
    typed = f" {code[:4].lower()}-{code[4:]}"
    status, out, err = tenax(capsys, "pair", typed, "--me")
    assert (status, err) == (0, "")
    assert out == "Ada \ufffd[31m can now talk to tg, as you, the owner.\n"
    (ada,) = people_in(home)
    assert (ada.account, ada.person, ada.user) == (ACCOUNT, "7001", "local")


def test_somebody_else_becomes_a_user_of_their_own(
    home: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --other the user is named after the chat app and the id, never after the name."""
    status, out, _ = tenax(capsys, "pair", code, "--other")
    assert status == 0
    assert out.endswith(" can now talk to tg, as the user telegram-7001.\n")
    assert [person.user for person in people_in(home)] == ["telegram-7001"]


def test_without_a_terminal_the_person_has_to_be_named(
    home: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong guess would give a stranger the rights of the owner."""
    status, out, err = tenax(capsys, "pair", code)
    assert (status, out) == (2, "")
    assert "The code was sent to Ada \ufffd[31m, id 7001, by tg." in err
    assert "--me or --other" in err
    assert people_in(home) == []


@pytest.mark.parametrize(("number", "user"), [("1", "local"), ("2", "telegram-7001")])
def test_in_a_terminal_the_owner_is_asked_who_it_is(
    home: Path, code: str, number: str, user: str
) -> None:
    """The name and the id are shown first, and there is no default."""
    with Terminal("pair", code) as terminal:
        shown = terminal.wait_for("Number: ")
        assert "id 7001, by tg." in shown
        assert "\x1b" not in shown
        terminal.type("")
        terminal.wait_for("Number: ")
        terminal.type(number)
        terminal.wait_for("can now talk to tg")
        assert terminal.end() == 0
    assert [person.user for person in people_in(home)] == [user]


def test_a_code_works_once(
    home: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Afterwards it is unknown."""
    assert tenax(capsys, "pair", code, "--other")[0] == 0
    status, out, err = tenax(capsys, "pair", code, "--me")
    assert (status, out) == (1, "")
    assert err.startswith("tenax: No chat has this code.\nWrite to the bot")
    assert [person.user for person in people_in(home)] == ["telegram-7001"]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("wrong", ["", "ABCDEFGH", "\udcff", "7001"])
@pytest.mark.parametrize("flags", [(), ("--me",), ("--other",)])
def test_an_unknown_code_lets_nobody_in(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
    flags: tuple[str, ...],
) -> None:
    """The sentence says where codes come from."""
    status, out, err = tenax(capsys, "pair", wrong, *flags)
    assert (status, out) == (1, "")
    assert err.startswith("tenax: No chat has this code.\n")
    assert people_in(home) == []


def test_without_a_code_the_open_codes_are_listed(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the account, the id and the name of each stranger."""
    status, out, err = tenax(capsys, "pair")
    assert status == 0
    assert out.startswith(f"{code}  tg  7001  Ada \ufffd[31m  ")
    assert err == "To let somebody in: tenax pair CODE\n"


def test_without_strangers_there_is_nothing_to_list(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the list nor an unknown code creates a store."""
    status, out, err = tenax(capsys, "pair")
    assert (status, out) == (0, "")
    assert err.startswith("There are no open codes. Write to the bot")
    assert tenax(capsys, "pair", "ABCDEFGH", "--me")[0] == 1
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("args", [("X", "--me", "--other"), ("--me",), ("--other",)])
def test_flags_that_contradict_are_refused(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    """Before anything is looked up."""
    status, out, err = tenax(capsys, "pair", *args)
    assert (status, out) == (2, "")
    assert "--me and --other" in err
