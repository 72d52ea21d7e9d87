"""A Matrix account over HTTP: it is connected with a password, and talks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply
from tests.support.matrix import ADA, FakeMatrix
from tests.support.served import Served
from tests.support.turns import set_up

PASSWORD = "secret words"


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as matrix:
        yield matrix


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    set_up(tmp_path, [Reply("Forty-two.")])
    with Served(tmp_path) as served:
        yield served


def account_of(matrix: FakeMatrix, **more: Any) -> dict[str, Any]:
    entered = {
        "platform": "matrix",
        "url": matrix.url,
        "user": matrix.bot,
        "token": PASSWORD,
    }
    return {**entered, **more}


def test_an_account_is_connected_with_a_password_and_talks(
    matrix: FakeMatrix, served: Served
) -> None:
    """The password is in no answer and no file; a person is let in with a code and gets an answer."""
    page = served.browser()
    answer = page.http.post("/api/channels", json=account_of(matrix))
    assert answer.status_code == 201, answer.text
    matrix.wait_for(lambda: matrix.waiting_polls)
    room = f"!new:{matrix.bot.partition(':')[2]}"
    matrix.invite(room, ADA)
    matrix.say("Hello", room=room)
    (code,) = matrix.wait_for(lambda: page.get("/channels")["codes"])
    assert code["person"] == ADA
    page.post("/channels/pair", {"code": code["code"], "me": True})
    matrix.say("What is it?", room=room)
    matrix.wait_for(lambda: matrix.messages(room=room)[-1].text == "Forty-two.")
    (account,) = page.get("/channels")["accounts"]
    assert (account["name"], account["platform"]) == (matrix.bot, "matrix")
    files = [file.read_text() for file in served.home.glob("*.toml")]
    assert not any(PASSWORD in text for text in [*files, answer.text])


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({"token": "wrong"}, 400, "refuses the user id and the password"),
        ({"user": "tenax"}, 400, "not the id of a user"),
        ({"url": ""}, 400, "needs the address of the homeserver"),
    ],
)
def test_a_wrong_entry_is_refused_and_nothing_is_saved(
    matrix: FakeMatrix, served: Served, more: dict[str, str], status: int, reason: str
) -> None:
    """The answer says which entry is wrong."""
    page = served.browser()
    before = (served.home / "config.toml").read_text()
    answer = page.http.post("/api/channels", json=account_of(matrix, **more))
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["detail"]
    assert (served.home / "config.toml").read_text() == before


def test_a_homeserver_that_is_away_is_told(matrix: FakeMatrix, served: Served) -> None:
    """Nothing is saved while nobody can check the password."""
    page = served.browser()
    matrix.away()
    answer = page.http.post("/api/channels", json=account_of(matrix))
    assert answer.status_code == 409, answer.text
    assert "Nothing was saved" in answer.json()["detail"]
