"""`kill -9` of a gateway in every phase of a message on Discord: nothing is lost, and nothing comes twice."""

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
    kill_at,
    wait_until,
)
from tests.support.counts import repeat
from tests.support.discord import Call, FakeDiscord, When
from tests.support.discord_app import DiscordApp

pytestmark = pytest.mark.crash

CLEO: Final = Person("7003", "Cleo")
"""A user of her own: she may talk because of the allow list. Ada and Bob are the owner."""
FLOOD_SECONDS: Final = 2
FIRST_WORDS: Final = 20
MORE_WORDS: Final = 60
_FILE: Final = ("notes.txt", b"some notes")


class Victim(Talk):
    """People who talk to a gateway, which is killed and started again and again."""

    def __init__(
        self, app: DiscordApp, store: ChatStore, gateway: GatewayProcess
    ) -> None:
        super().__init__(app, store)
        self.discord = app.discord
        self.discord_app = app
        self.gateway = gateway

    def wait_connected(self) -> None:
        """Wait until the socket is open, and the chats were read."""
        self.discord.wait_for(lambda: self.discord.sockets == 1)


class TooLateError(Exception):
    """The machine was so busy that the kill came after the phase."""


def kill_after_the_append(talk: Victim) -> None:
    """The first message is stored. The second one is not, because its file was not fetched."""
    talk.gateway.suspend()
    try:
        with kill_at(talk.discord, talk.gateway, "getMessage", "before"):
            first = talk.ask("short")
            second = talk.ask("short", file=_FILE)
            talk.gateway.resume()
    finally:
        talk.gateway.kill()
    assert (talk.stored(first), talk.stored(second)) == (1, 0)
    assert talk.discord_app.stored_place() < int(second.message)


def kill_between_intent_and_send(talk: Victim, kind: Kind) -> None:
    """The request with the message reached the server, and was not accepted."""
    with kill_at(talk.discord, talk.gateway, "createMessage", "before"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert not talk.shows(question)


def kill_between_send_and_receipt(talk: Victim, kind: Kind) -> None:
    """The message is in the chat. The gateway never hears of it."""
    with kill_at(talk.discord, talk.gateway, "createMessage", "after"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert talk.shows(question)


def kill_in_mid_edit(talk: Victim, when: When) -> None:
    """The first words are in the chat. The edit to the whole answer was accepted, or was not."""
    with kill_at(talk.discord, talk.gateway, "editMessage", when):
        talk.ask("medium")
    assert talk.open_states() == ["placed"]


def kill_in_a_flood_wait(talk: Victim, method: str) -> None:
    """Discord has asked to wait, and the wait is stored."""
    flood = talk.discord.flood(method, FLOOD_SECONDS)
    talk.ask("medium")
    chat = talk.person
    wait_until(lambda: talk.store.wait_of(chat) > talk.store.now_us(), "no wait")
    talk.gateway.kill()
    assert flood.count == 1
    if talk.store.wait_of(chat) <= talk.store.now_us():
        raise TooLateError
    assert talk.open_states() == ["waiting" if method == "createMessage" else "placed"]


def kill_in_catch_up(talk: Victim) -> None:
    """Several messages of every chat have waited. One of Ada's is stored, and the next one is not."""
    talk.gateway.kill()
    talk.gateway.home.allow_words(0)
    waiting = [
        talk.ask(
            "short", person=person, file=_FILE if (person, n) == (ADA, 1) else None
        )
        for n in range(3)
        for person in (ADA, BOB, CLEO)
    ]
    before = talk.discord_app.stored_place()
    with kill_at(talk.discord, talk.gateway, "getMessage", "before"):
        talk.gateway.start()
    of_ada = [talk.stored(question) for question in waiting if question.person == ADA]
    assert of_ada == [1, 0, 0]
    assert talk.discord_app.stored_place() == before
    talk.gateway.home.allow_words()


def kill_while_the_chats_are_read(talk: Victim) -> None:
    """The socket was cut for good. A new session is there, and the request for old messages got no answer."""
    with kill_at(talk.discord, talk.gateway, "getMessages", "after"):
        talk.discord.end_sessions()
        question = talk.ask("short")
    assert talk.stored(question) == 0


def kill_in_a_preview(talk: Victim, when: When) -> None:
    """The model has given the first words of an answer. They were accepted by the server, or were not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    with kill_at(talk.discord, talk.gateway, "createMessage", when):
        talk.ask("medium")
    assert talk.open_states() == ["sending"]
    talk.gateway.home.allow_words()


def kill_in_an_edit_of_a_preview(talk: Victim, when: When) -> None:
    """The first words are in the chat. The model has given more of them, and the edit was accepted, or was not."""
    talk.gateway.home.allow_words(FIRST_WORDS)
    question = talk.ask("medium")
    wait_until(lambda: talk.shows(question), "no preview")
    with kill_at(talk.discord, talk.gateway, "editMessage", when):
        talk.gateway.home.allow_words(MORE_WORDS)
    assert talk.open_states() == ["placed"]
    talk.gateway.home.allow_words()


PHASES: Final[dict[str, Callable[[Victim], None]]] = {
    "after the append, before the cursor is stored": kill_after_the_append,
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
        kill_in_a_flood_wait, method="createMessage"
    ),
    "in a flood wait before an edit": partial(
        kill_in_a_flood_wait, method="editMessage"
    ),
    "in catch-up": kill_in_catch_up,
    "while the chats are read in a new session": kill_while_the_chats_are_read,
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
def test_a_gateway_killed_in_every_phase_loses_nothing_and_repeats_nothing(
    store_url: str, tmp_path: Path
) -> None:
    """Every message is stored once, and every answer is in its chat once and whole: Discord recognises the keys."""
    kills: Counter[str] = Counter()
    with FakeDiscord() as discord, ExitStack() as stack:
        discord.unlimit_rates()
        app = DiscordApp(discord)
        app.add_people(ADA, BOB, CLEO)
        store = stack.enter_context(ChatStore(store_url, app))
        app.read_cursor = lambda: store.rows.value(app.account, "cursor")
        store.pair(ADA, BOB)
        home = GatewayHome(app, store_url, tmp_path / "home", allow=(CLEO,))
        talk = Victim(app, store, GatewayProcess(home))
        people = itertools.cycle((ADA, BOB, CLEO))
        phases = itertools.cycle(PHASES)
        with talk.gateway:
            greet(talk)
            while kills.total() < KILLS:
                name, talk.person = next(phases), next(people)
                if kill_once(talk, name):
                    kills[name] += 1
        store.check(talk.questions)
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert all(kills[name] for name in PHASES), kills


def greet(talk: Victim) -> None:
    """Let everybody write once: only then their chats are known, because Discord lists no private chats."""
    wait_until(talk.discord_app.stored_place, "the socket was not opened")
    for person in (ADA, BOB, CLEO):
        talk.ask("short", person=person)
    talk.store.wait_settled(talk.gateway)


def kill_once(talk: Victim, name: str) -> bool:
    """Kill the gateway in a phase, start it again, and check what became of it. Return `False` for a late kill."""
    talk.wait_connected()
    sent = len(talk.discord.log)
    try:
        PHASES[name](talk)
        is_in_time = True
    except TooLateError:
        is_in_time = False
    talk.gateway.start()
    talk.store.wait_settled(talk.gateway)
    check_flood(talk.discord.log[sent:])
    for person in (ADA, BOB, CLEO):
        assert (talk.store.repeats(person), talk.store.marks(person)) == (0, 0), name
    return is_in_time


def check_flood(calls: list[Call]) -> None:
    """Check that nothing goes to a chat that has to wait."""
    until: dict[int, float] = {}
    for call in calls:
        if call.method not in {"createMessage", "editMessage"}:
            continue
        assert call.at >= until.get(call.chat, 0.0), call.describe()
        if call.outcome.startswith("429"):
            until[call.chat] = call.at + FLOOD_SECONDS
