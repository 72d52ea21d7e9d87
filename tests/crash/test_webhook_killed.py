"""`kill -9` of a server with a webhook in every phase of a message: nothing is lost, and what comes twice has one id."""

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
    Kind,
    Person,
    Talk,
    wait_until,
)
from tests.support.counts import repeat
from tests.support.served import kept_port
from tests.support.webhook_kills import (
    HookApp,
    HookHome,
    ServeProcess,
    kill_at_a_post,
)
from tests.support.webhooks import Inbox, Post, Sender

pytestmark = pytest.mark.crash

CLEO: Final = Person("7003", "Cleo")
PEOPLE: Final = (ADA, BOB, CLEO)
FLOOD_SECONDS: Final = 2


class Victim(Talk):
    """A program that talks to a server, which is killed and started again and again."""

    def __init__(
        self, app: HookApp, store: ChatStore, home: HookHome, server: ServeProcess
    ) -> None:
        super().__init__(app, store)
        self.inbox = app.inbox
        self.home = home
        self.server = server


# Every phase kills the server once. It returns how many events come to the receiver once more after the restart.
CLEAN: Final = 0
REPEATED: Final = 1


class TooLateError(Exception):
    """The machine was so busy that the kill came after the phase."""


def kill_after_the_append(talk: Victim) -> int:
    """The message is stored, and the sender has no answer."""
    # A word of the answer would be sent while the request still waits.
    talk.home.allow_words(0)
    talk.home.hold()
    question = talk.ask("short")
    wait_until(lambda: talk.stored(question) == 1, "the message is not stored")
    talk.server.kill()
    assert not talk.app.is_confirmed()
    talk.home.go_on()
    talk.home.allow_words()
    return CLEAN


def kill_between_intent_and_send(talk: Victim, kind: Kind) -> int:
    """The request reached the receiver, which did not take the event."""
    with kill_at_a_post(talk.inbox, talk.server, "before"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert not talk.shows(question)
    return CLEAN


def kill_between_send_and_receipt(talk: Victim, kind: Kind) -> int:
    """The receiver has taken the event. The server never hears of it."""
    with kill_at_a_post(talk.inbox, talk.server, "after"):
        question = talk.ask(kind)
    assert talk.open_states() == ["sending"]
    assert talk.shows(question)
    return REPEATED


def kill_in_a_flood_wait(talk: Victim, status: int) -> int:
    """The receiver has asked to wait, and the wait is stored."""
    talk.inbox.answer(status, retry_after=str(FLOOD_SECONDS))
    talk.ask("medium")
    chat = talk.person
    wait_until(lambda: talk.store.wait_of(chat) > talk.store.now_us(), "no wait")
    talk.server.kill()
    if talk.store.wait_of(chat) <= talk.store.now_us():
        raise TooLateError
    assert talk.open_states() == ["waiting"]
    return CLEAN


def kill_in_catch_up(talk: Victim) -> int:
    """Several messages of every chat have waited. The first one of a chat is stored, and the next one is not."""
    talk.server.kill()
    talk.home.allow_words(0)
    talk.home.hold()
    waiting = [talk.ask("short", person=person) for _ in range(3) for person in PEOPLE]
    talk.server.start()
    first, second = waiting[0], waiting[len(PEOPLE)]
    wait_until(lambda: talk.stored(first) == 1, "the first message is not stored")
    talk.server.kill()
    assert talk.stored(second) == 0
    talk.home.go_on()
    talk.home.allow_words()
    return CLEAN


PHASES: Final[dict[str, Callable[[Victim], int]]] = {
    "after the append, before the answer 202": kill_after_the_append,
    "between intent and send": partial(kill_between_intent_and_send, kind="long"),
    "between intent and send of a short answer": partial(
        kill_between_intent_and_send, kind="short"
    ),
    "between send and receipt": partial(kill_between_send_and_receipt, kind="long"),
    "between send and receipt of a short answer": partial(
        kill_between_send_and_receipt, kind="short"
    ),
    "in a flood wait after a status 429": partial(kill_in_a_flood_wait, status=429),
    "in a flood wait after a status 503": partial(kill_in_a_flood_wait, status=503),
    "in catch-up": kill_in_catch_up,
}
KILLS: Final = repeat(len(PHASES), 200)
_TIMEOUT_SECONDS: Final = repeat(300, 3600)


@pytest.mark.timeout(_TIMEOUT_SECONDS)
def test_a_server_killed_in_every_phase_loses_nothing_and_repeats_with_one_id(
    store_url: str, tmp_path: Path
) -> None:
    """Every message is stored once, every answer reaches the receiver whole, and a repetition has the same id and body."""
    kills: Counter[str] = Counter()
    with Inbox() as inbox, ExitStack() as stack:
        home: list[HookHome] = []
        sender = stack.enter_context(Sender(lambda: home[0].hook))
        app = HookApp(inbox, sender)
        store = stack.enter_context(ChatStore(store_url, app))
        port = stack.enter_context(kept_port()).getsockname()[1]
        home.append(HookHome(app, store_url, tmp_path / "home", port))
        server = ServeProcess(home[0])
        talk = Victim(app, store, home[0], server)
        people = itertools.cycle(PEOPLE)
        phases = itertools.cycle(PHASES)
        with server:
            while kills.total() < KILLS:
                name, talk.person = next(phases), next(people)
                if kill_once(talk, name):
                    kills[name] += 1
        store.check(talk.questions)
        check_repetitions(inbox)
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert all(kills[name] for name in PHASES), kills


def kill_once(talk: Victim, name: str) -> bool:
    """Kill the server in a phase, start it again, and check what became of it. Return `False` for a late kill."""
    before = count_repeats(talk.inbox)
    seen = len(talk.inbox.posts)
    try:
        repeats = PHASES[name](talk)
        is_in_time = True
    except TooLateError:
        is_in_time = False
    talk.server.start()
    talk.store.wait_settled(talk.server)
    check_flood(talk.inbox.posts[seen:])
    if is_in_time:
        assert count_repeats(talk.inbox) - before == repeats, name
    return is_in_time


def count_repeats(inbox: Inbox) -> int:
    """Return how many events the receiver has taken that it had already."""
    accepted = [post.id for post in inbox.posts if post.accepted]
    return len(accepted) - len(set(accepted))


def check_repetitions(inbox: Inbox) -> None:
    """Check that every try of an event has the same body, and that every signature was good."""
    assert inbox.bad == []
    bodies: dict[str, bytes] = {}
    for post in inbox.posts:
        assert bodies.setdefault(post.id, post.body) == post.body
        assert post.type == "answer.finished"


def check_flood(posts: list[Post]) -> None:
    """Check that nothing goes to a chat that has to wait."""
    until: dict[str, float] = {}
    for post in posts:
        chat = post.data["chat"]
        assert post.at >= until.get(chat, 0.0), post
        if post.answer in {"429", "503"}:
            until[chat] = post.at + FLOOD_SECONDS
