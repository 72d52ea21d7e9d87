"""`kill -9` of a gateway on Matrix in every phase of a message: nothing is lost, and nothing at all comes twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.chat_kills import (
    ChatStore,
    GatewayHome,
    GatewayProcess,
    Kind,
    Talk,
    wait_until,
)
from tests.support.counts import repeat
from tests.support.matrix import Call, FakeMatrix, When
from tests.support.matrix_app import ADA, BOB, CLEO, MatrixApp, kill_at

pytestmark = pytest.mark.crash

FLOOD_SECONDS: Final = 2
FIRST_WORDS: Final = 20
MORE_WORDS: Final = 60


class Victim(Talk):
    """People who talk to a gateway, which is killed and started again and again."""

    def __init__(
        self, app: MatrixApp, store: ChatStore, gateway: GatewayProcess
    ) -> None:
        super().__init__(app, store)
        self.matrix = app.matrix
        self.gateway = gateway

    def kill_at(self, method: str, when: When) -> AbstractContextManager[None]:
        return kill_at(self.matrix, self.gateway, method, when)

    def wait_for_poll(self) -> None:
        wait_until(lambda: self.matrix.waiting_polls == 1, "no poll waits")


class TooLateError(Exception):
    """The machine was so busy that the kill came after the phase."""


def kill_after_the_append(talk: Victim) -> None:
    """The message is stored. The request that would confirm it was not accepted."""
    talk.wait_for_poll()
    with talk.kill_at("sync", "before"):
        question = talk.ask()
    assert not talk.matrix.is_confirmed()
    assert talk.stored(question) == 1


def kill_between_intent_and_send(talk: Victim, kind: Kind) -> None:
    """The request with the message reached the homeserver, and was not accepted."""
    with talk.kill_at("send", "before"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert not talk.shows(question)


def kill_between_send_and_receipt(talk: Victim, kind: Kind) -> None:
    """The message is in the room. The gateway never hears of it."""
    with talk.kill_at("send", "after"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert talk.shows(question)


def kill_in_mid_edit(talk: Victim, when: When) -> None:
    """The first words are in the room. The edit to the whole answer was accepted, or was not."""
    with talk.kill_at("edit", when):
        talk.ask("medium")
    assert talk.open_states() == ["placed"]


def kill_in_a_flood_wait(talk: Victim, method: str) -> None:
    """The homeserver has asked to wait, and the wait is stored."""
    flood = talk.matrix.flood(method, FLOOD_SECONDS)
    talk.ask("medium")
    chat = talk.person
    wait_until(lambda: talk.store.wait_of(chat) > talk.store.now_us(), "no wait")
    talk.gateway.kill()
    assert flood.count == 1
    if talk.store.wait_of(chat) <= talk.store.now_us():
        raise TooLateError
    assert talk.open_states() == ["waiting" if method == "send" else "placed"]


def kill_in_catch_up(talk: Victim) -> None:
    """Several messages of every room have waited. One of them is stored, and the next one of its room is not."""
    talk.gateway.kill()
    talk.gateway.home.allow_words(0)
    file = ("notes.txt", b"some notes")
    waiting = [
        talk.ask("short", person=person, file=file if (person, n) == (ADA, 1) else None)
        for n in range(3)
        for person in (ADA, BOB, CLEO)
    ]
    with talk.kill_at("download", "before"):
        talk.gateway.start()
    of_ada = [talk.stored(question) for question in waiting if question.person == ADA]
    assert of_ada == [1, 0, 0]
    assert not talk.matrix.is_confirmed()
    talk.gateway.home.allow_words()


def kill_in_a_preview(talk: Victim, when: When) -> None:
    """The model has given the first words of an answer. They were accepted by the homeserver, or were not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    with talk.kill_at("send", when):
        talk.ask("medium")
    assert talk.open_states() == ["sending"]
    talk.gateway.home.allow_words()


def kill_in_an_edit_of_a_preview(talk: Victim, when: When) -> None:
    """The first words are in the room. The model has given more of them, and the edit was accepted, or was not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    question = talk.ask("medium")
    wait_until(lambda: talk.shows(question), "no preview")
    with talk.kill_at("edit", when):
        talk.gateway.home.allow_words(MORE_WORDS)
    assert talk.open_states() == ["placed"]
    talk.gateway.home.allow_words()


PHASES: Final[dict[str, Callable[[Victim], None]]] = {
    "after the append, before the acknowledgement": kill_after_the_append,
    "between intent and send": partial(kill_between_intent_and_send, kind="long"),
    "between intent and send of a short answer": partial(
        kill_between_intent_and_send, kind="short"
    ),
    "between send and receipt": partial(kill_between_send_and_receipt, kind="long"),
    "between send and receipt of a short answer": partial(
        kill_between_send_and_receipt, kind="short"
    ),
    "in mid-edit, not accepted": partial(kill_in_mid_edit, when="before"),
    "in mid-edit, accepted": partial(kill_in_mid_edit, when="after"),
    "in a flood wait before a send": partial(kill_in_a_flood_wait, method="send"),
    "in a flood wait before an edit": partial(kill_in_a_flood_wait, method="edit"),
    "in catch-up": kill_in_catch_up,
    "in the first preview, not accepted": partial(kill_in_a_preview, when="before"),
    "in the first preview, accepted": partial(kill_in_a_preview, when="after"),
    "in an edit of a preview, not accepted": partial(
        kill_in_an_edit_of_a_preview, when="before"
    ),
    "in an edit of a preview, accepted": partial(
        kill_in_an_edit_of_a_preview, when="after"
    ),
}
KILLS: Final = repeat(len(PHASES), 200)
_TIMEOUT_SECONDS: Final = repeat(300, 3600)


@pytest.mark.timeout(_TIMEOUT_SECONDS)
def test_a_gateway_on_matrix_killed_in_every_phase_loses_and_doubles_nothing(
    store_url: str, tmp_path: Path
) -> None:
    """Every message is stored once, and every answer is in its room whole and once, without a mark."""
    kills: Counter[str] = Counter()
    with FakeMatrix() as matrix, ExitStack() as stack:
        app = MatrixApp(matrix)
        app.add_people(ADA, BOB, CLEO)
        store = stack.enter_context(ChatStore(store_url, app))
        store.pair(ADA, BOB)
        home = GatewayHome(app, store_url, tmp_path / "home", allow=(CLEO,))
        talk = Victim(app, store, GatewayProcess(home))
        people = itertools.cycle((ADA, BOB, CLEO))
        phases = itertools.cycle(PHASES)
        with talk.gateway:
            # What was written before the first connection is no news.
            talk.wait_for_poll()
            while kills.total() < KILLS:
                name, talk.person = next(phases), next(people)
                if kill_once(talk, name):
                    kills[name] += 1
        store.check(talk.questions)
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert all(kills[name] for name in PHASES), kills


def kill_once(talk: Victim, name: str) -> bool:
    """Kill the gateway in a phase, start it again, and check what became of it. Return `False` for a late kill."""
    sent = len(talk.matrix.log)
    try:
        PHASES[name](talk)
        is_in_time = True
    except TooLateError:
        is_in_time = False
    talk.gateway.start()
    talk.store.wait_settled(talk.gateway)
    check_flood(talk.matrix.log[sent:])
    for person in (ADA, BOB, CLEO):
        came_twice = (talk.store.repeats(person), talk.store.marks(person))
        assert came_twice == (0, 0), name
    return is_in_time


def check_flood(calls: list[Call]) -> None:
    """Check that nothing goes to a room that has to wait."""
    until: dict[str, float] = {}
    for call in calls:
        if call.method not in {"send", "edit"}:
            continue
        assert call.at >= until.get(call.room, 0.0), call.describe()
        if call.outcome == "429":
            until[call.room] = call.at + FLOOD_SECONDS
