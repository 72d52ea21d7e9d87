"""`kill -9` of a gateway in every phase of a message: nothing is lost, and only first words come twice, with a mark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.chat_kills import (
    ADA,
    BOB,
    ChatStore,
    GatewayHome,
    GatewayProcess,
    Kind,
    Person,
    Talk,
    TelegramApp,
    kill_at,
    wait_until,
)
from tests.support.counts import repeat
from tests.support.telegram import Call, FakeTelegram, When

pytestmark = pytest.mark.crash

CLEO: Final = Person("7003", "Cleo")
"""A user of her own: she may talk because of the allow list. Ada and Bob are the owner."""
FLOOD_SECONDS: Final = 2
FIRST_WORDS: Final = 20
MORE_WORDS: Final = 60


class Victim(Talk):
    """People who talk to a gateway, which is killed and started again and again."""

    def __init__(
        self, app: TelegramApp, store: ChatStore, gateway: GatewayProcess
    ) -> None:
        super().__init__(app, store)
        self.telegram = app.telegram
        self.gateway = gateway


# Every phase kills the gateway once. It returns what the restart has to make of it: how many messages of the bot are
# there once more, and how many messages have the mark.
Outcome = tuple[int, int]
CLEAN: Final = (0, 0)
MARKED: Final = (0, 1)
REPEATED: Final = (1, 1)


class TooLateError(Exception):
    """The machine was so busy that the kill came after the phase."""


def kill_after_the_append(talk: Victim) -> Outcome:
    """The message is stored. The request that would confirm it was not accepted."""
    wait_until(lambda: talk.telegram.waiting_polls == 1, "no poll waits")
    with kill_at(talk.telegram, talk.gateway, "getUpdates", "before"):
        question = talk.ask()
    (update,) = talk.telegram.pending
    polls = [call for call in talk.telegram.log if call.method == "getUpdates"]
    assert polls[-1].integer("offset") == update + 1
    assert talk.stored(question) == 1
    return CLEAN


def kill_between_intent_and_send(talk: Victim, kind: Kind) -> Outcome:
    """The request with the message reached the server, and was not accepted."""
    with kill_at(talk.telegram, talk.gateway, "sendMessage", "before"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert not talk.shows(question)
    return MARKED


def kill_between_send_and_receipt(talk: Victim, kind: Kind) -> Outcome:
    """The message is in the chat. The gateway never hears of it."""
    with kill_at(talk.telegram, talk.gateway, "sendMessage", "after"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert talk.shows(question)
    return REPEATED


def kill_in_mid_edit(talk: Victim, when: When) -> Outcome:
    """The first words are in the chat. The edit to the whole answer was accepted, or was not."""
    with kill_at(talk.telegram, talk.gateway, "editMessageText", when):
        talk.ask("medium")
    assert talk.open_states() == ["placed"]
    return CLEAN


def kill_in_a_flood_wait(talk: Victim, method: str) -> Outcome:
    """Telegram has asked to wait, and the wait is stored."""
    description = f"Too Many Requests: retry after {FLOOD_SECONDS}"
    flood = talk.telegram.fail(
        method, 429, description=description, retry_after=FLOOD_SECONDS
    )
    talk.ask("medium")
    chat = talk.person
    wait_until(lambda: talk.store.wait_of(chat) > talk.store.now_us(), "no wait")
    talk.gateway.kill()
    assert flood.count == 1
    if talk.store.wait_of(chat) <= talk.store.now_us():
        raise TooLateError
    assert talk.open_states() == ["waiting" if method == "sendMessage" else "placed"]
    return CLEAN


def kill_in_catch_up(talk: Victim) -> Outcome:
    """Several messages of every chat have waited. One of them is stored, and the next one of its chat is not."""
    talk.gateway.kill()
    talk.gateway.home.allow_words(0)
    file = ("notes.txt", b"some notes")
    waiting = [
        talk.ask("short", person=person, file=file if (person, n) == (ADA, 1) else None)
        for n in range(3)
        for person in (ADA, BOB, CLEO)
    ]
    with kill_at(talk.telegram, talk.gateway, "getFile", "before"):
        talk.gateway.start()
    assert len(talk.telegram.pending) == len(waiting)
    of_ada = [talk.stored(question) for question in waiting if question.person == ADA]
    assert of_ada == [1, 0, 0]
    talk.gateway.home.allow_words()
    return CLEAN


def kill_in_a_preview(talk: Victim, when: When) -> Outcome:
    """The model has given the first words of an answer. They were accepted by the server, or were not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    with kill_at(talk.telegram, talk.gateway, "sendMessage", when):
        talk.ask("medium")
    assert talk.open_states() == ["sending"]
    talk.gateway.home.allow_words()
    return MARKED if when == "before" else REPEATED


def kill_in_an_edit_of_a_preview(talk: Victim, when: When) -> Outcome:
    """The first words are in the chat. The model has given more of them, and the edit was accepted, or was not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    question = talk.ask("medium")
    wait_until(lambda: talk.shows(question), "no preview")
    with kill_at(talk.telegram, talk.gateway, "editMessageText", when):
        talk.gateway.home.allow_words(MORE_WORDS)
    assert talk.open_states() == ["placed"]
    talk.gateway.home.allow_words()
    return CLEAN


PHASES: Final[dict[str, Callable[[Victim], Outcome]]] = {
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
    "in a flood wait before a send": partial(
        kill_in_a_flood_wait, method="sendMessage"
    ),
    "in a flood wait before an edit": partial(
        kill_in_a_flood_wait, method="editMessageText"
    ),
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
def test_a_gateway_killed_in_every_phase_loses_nothing_and_marks_what_comes_twice(
    store_url: str, tmp_path: Path
) -> None:
    """Every message is stored once, every answer is in its chat whole, and only first words come twice."""
    kills: Counter[str] = Counter()
    with FakeTelegram() as telegram, ExitStack() as stack:
        telegram.unlimit_rates()
        app = TelegramApp(telegram)
        app.add_people(ADA, BOB, CLEO)
        store = stack.enter_context(ChatStore(store_url, app))
        store.pair(ADA, BOB)
        home = GatewayHome(app, store_url, tmp_path / "home", allow=(CLEO,))
        talk = Victim(app, store, GatewayProcess(home))
        people = itertools.cycle((ADA, BOB, CLEO))
        phases = itertools.cycle(PHASES)
        with talk.gateway:
            while kills.total() < KILLS:
                name, talk.person = next(phases), next(people)
                if kill_once(talk, name):
                    kills[name] += 1
        store.check(talk.questions)
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert all(kills[name] for name in PHASES), kills


def kill_once(talk: Victim, name: str) -> bool:
    """Kill the gateway in a phase, start it again, and check what became of it. Return `False` for a late kill."""
    chats = (ADA, BOB, CLEO)
    before = [(talk.store.repeats(chat), talk.store.marks(chat)) for chat in chats]
    sent = len(talk.telegram.log)
    try:
        repeats, marks = PHASES[name](talk)
        is_in_time = True
    except TooLateError:
        is_in_time = False
    talk.gateway.start()
    talk.store.wait_settled(talk.gateway)
    check_flood(talk.telegram.log[sent:])
    after = [(talk.store.repeats(chat), talk.store.marks(chat)) for chat in chats]
    if is_in_time:
        more = [
            (now[0] - was[0], now[1] - was[1])
            for was, now in zip(before, after, strict=True)
        ]
        expected = [
            (repeats, marks) if chat == talk.person else CLEAN for chat in chats
        ]
        assert more == expected, name
    return is_in_time


def check_flood(calls: list[Call]) -> None:
    """Check that nothing goes to a chat that has to wait."""
    until: dict[int, float] = {}
    for call in calls:
        if call.method not in {"sendMessage", "editMessageText"}:
            continue
        assert call.chat is not None
        assert call.at >= until.get(call.chat, 0.0), call.describe()
        if "429" in call.outcome:
            until[call.chat] = call.at + FLOOD_SECONDS
