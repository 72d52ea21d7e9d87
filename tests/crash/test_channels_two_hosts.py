"""Two gateways with the same bot on one PostgreSQL store: one of them serves the bot, and the other one takes over."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    Talk,
    TelegramApp,
    kill_at,
    wait_until,
)
from tests.support.telegram import FakeTelegram

pytestmark = pytest.mark.crash

PEOPLE: Final = (ADA, BOB)
RENEWALS: Final = 2
FIRST_WORDS: Final = 20


class Hosts:
    """Two gateways. One of them serves the bot, the other one stands by."""

    def __init__(
        self, app: TelegramApp, store: ChatStore, url: str, folder: Path
    ) -> None:
        self.app = app
        self.telegram = app.telegram
        self.store = store
        # An interrupted answer continues by itself only in the same folder of the tools.
        work = folder / "work"
        homes = [
            GatewayHome(app, url, folder / name, tools_folder=work)
            for name in ("one", "two")
        ]
        self.serving, self.standby = map(GatewayProcess, homes)

    def start(self) -> None:
        """Start a gateway that serves, and then one that stands by."""
        self.serving.start()
        wait_until(lambda: self.telegram.waiting_polls == 1, "nobody polls")
        self.start_standby()

    def start_standby(self) -> None:
        """Start the other gateway, and wait until it has tried to get the lease of the account."""
        lines = self.standby.starts()
        self.standby.start()
        wait_until(lambda: self.standby.starts() > lines, "it does not start")
        self.wait_for_renewals()

    def wait_for_renewals(self) -> None:
        """Wait longer than a gateway that stands by waits between two tries to get the lease."""
        for _ in range(RENEWALS):
            until = self.store.lease_until()
            is_renewed = partial(self._is_renewed, until)
            wait_until(is_renewed, "the lease is not renewed")

    def _is_renewed(self, until: float) -> bool:
        return self.store.lease_until() > until

    def allow_words(self, *count: int) -> None:
        for gateway in (self.serving, self.standby):
            gateway.home.allow_words(*count)

    def take_over(self) -> float:
        """Wait until the other gateway polls, after the serving one died. Return how long that took."""
        began = time.monotonic()
        polls = self.telegram.polls
        self.serving, self.standby = self.standby, self.serving
        self.telegram.wait_for(lambda: self.telegram.polls > polls)
        return time.monotonic() - began

    def close(self) -> None:
        self.serving.kill()
        self.standby.kill()


@pytest.fixture
def app() -> Iterator[TelegramApp]:
    with FakeTelegram() as telegram:
        telegram.unlimit_rates()
        app = TelegramApp(telegram)
        app.add_people(*PEOPLE)
        yield app


@pytest.fixture
def hosts(app: TelegramApp, postgres_url: str, tmp_path: Path) -> Iterator[Hosts]:
    with ChatStore(postgres_url, app) as store:
        store.pair(*PEOPLE)
        hosts = Hosts(app, store, postgres_url, tmp_path)
        try:
            hosts.start()
            yield hosts
        finally:
            hosts.close()


def kill_at_rest(hosts: Hosts, talk: Talk) -> int:
    talk.ask("medium")
    hosts.store.wait_settled(hosts.serving)
    hosts.serving.kill()
    talk.ask("medium")
    return 0


def kill_after_the_append(hosts: Hosts, talk: Talk) -> int:
    wait_until(lambda: hosts.telegram.waiting_polls == 1, "no poll waits")
    with kill_at(hosts.telegram, hosts.serving, "getUpdates", "before"):
        question = talk.ask("medium")
    assert talk.stored(question) == 1
    return 0


def kill_between_send_and_receipt(hosts: Hosts, talk: Talk) -> int:
    with kill_at(hosts.telegram, hosts.serving, "sendMessage", "after"):
        talk.ask("medium")
    return 1


def kill_in_an_answer(hosts: Hosts, talk: Talk) -> int:
    hosts.allow_words(FIRST_WORDS)
    question = talk.ask("medium")
    wait_until(lambda: talk.shows(question), "no preview")
    with kill_at(hosts.telegram, hosts.serving, "editMessageText", "before"):
        hosts.allow_words(2 * FIRST_WORDS)
    hosts.allow_words()
    return 0


def test_of_two_gateways_one_polls_and_the_other_one_goes_on_after_a_kill(
    hosts: Hosts,
) -> None:
    """Telegram never sees two polls at once, and after each kill the other gateway loses and doubles nothing."""
    talk = Talk(hosts.app, hosts.store)
    seconds = []
    kills = (
        kill_at_rest,
        kill_after_the_append,
        kill_between_send_and_receipt,
        kill_in_an_answer,
    )
    for number, kill in enumerate(kills):
        talk.person = PEOPLE[number % len(PEOPLE)]
        before = hosts.store.repeats(talk.person)
        opened = hosts.telegram.calls("getMe")
        expected = kill(hosts, talk)
        assert hosts.telegram.calls("getMe") == opened, "two gateways have served"
        seconds.append(hosts.take_over())
        hosts.store.wait_settled(hosts.serving)
        assert hosts.store.repeats(talk.person) - before == expected, kill.__name__
        hosts.start_standby()
    assert hosts.telegram.conflicts == 0
    hosts.store.check(talk.questions)
    shown = ", ".join(f"{passed:.1f}" for passed in seconds)
    print(f"The other gateway polled after {shown} seconds.")  # noqa: T201  (shown by `pytest -rP`)


def test_a_gateway_whose_machine_hangs_is_replaced_and_stands_back_afterwards(
    hosts: Hosts,
) -> None:
    """The lease runs out, and the message that was under way comes again with a mark; the old gateway sends nothing more."""
    talk = Talk(hosts.app, hosts.store)
    hanging = hosts.serving
    # The server acts, and the gateway does not hear of it.
    fault = hosts.telegram.on("sendMessage", lambda _: hanging.suspend())
    talk.ask("medium")
    hosts.telegram.wait_for(fault.reached.is_set)
    seconds = hosts.take_over()
    talk.ask("short")
    hosts.store.wait_settled(hosts.serving)
    hanging.resume()
    hosts.wait_for_renewals()
    for _ in range(3):
        talk.ask("medium")
        hosts.store.wait_settled(hosts.serving, hanging)
    assert hosts.store.repeats(talk.person) == 1
    hosts.store.check(talk.questions)
    print(f"The other gateway polled after {seconds:.1f} seconds.")  # noqa: T201  (shown by `pytest -rP`)
