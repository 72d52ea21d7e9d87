"""Two gateways with the same account on Matrix and one PostgreSQL store: one serves it, and the other one takes over.

The rooms have no encryption: the keys of an account belong to one host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.chat_kills import (
    ChatStore,
    GatewayHome,
    GatewayProcess,
    Talk,
    wait_until,
)
from tests.support.matrix import FakeMatrix
from tests.support.matrix_app import ADA, BOB, MatrixApp, kill_at

pytestmark = pytest.mark.crash

PEOPLE: Final = (ADA, BOB)
FIRST_WORDS: Final = 20


class Hosts:
    """Two gateways. One of them serves the account, the other one stands by."""

    def __init__(
        self, app: MatrixApp, store: ChatStore, url: str, folder: Path
    ) -> None:
        self.app = app
        self.matrix = app.matrix
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
        has_cursor = lambda: self.store.rows.value(self.app.account, "cursor")  # noqa: E731
        wait_until(has_cursor, "no first sync was stored")
        self.start_standby()

    def start_standby(self) -> None:
        lines = self.standby.starts()
        self.standby.start()
        wait_until(lambda: self.standby.starts() > lines, "it does not start")

    def allow_words(self, *count: int) -> None:
        for gateway in (self.serving, self.standby):
            gateway.home.allow_words(*count)

    def take_over(self) -> float:
        """Wait until the other gateway asks for messages, after the serving one died. Return how long that took."""
        began = time.monotonic()
        self.serving, self.standby = self.standby, self.serving
        syncs = self.matrix.calls("sync")
        self.matrix.wait_for(lambda: self.matrix.calls("sync") > syncs)
        return time.monotonic() - began

    def close(self) -> None:
        self.serving.kill()
        self.standby.kill()


@pytest.fixture
def hosts(postgres_url: str, tmp_path: Path) -> Iterator[Hosts]:
    with FakeMatrix() as matrix:
        app = MatrixApp(matrix)
        app.add_people(*PEOPLE)
        with ChatStore(postgres_url, app) as store:
            store.pair(*PEOPLE)
            hosts = Hosts(app, store, postgres_url, tmp_path)
            try:
                hosts.start()
                yield hosts
            finally:
                hosts.close()


def kill_at_rest(hosts: Hosts, talk: Talk) -> None:
    hosts.serving.kill()
    talk.ask("medium")


def kill_between_send_and_receipt(hosts: Hosts, talk: Talk) -> None:
    with kill_at(hosts.matrix, hosts.serving, "send", "after"):
        talk.ask("medium")


def kill_in_an_answer(hosts: Hosts, talk: Talk) -> None:
    hosts.allow_words(FIRST_WORDS)
    question = talk.ask("medium")
    wait_until(lambda: talk.shows(question), "no preview")
    with kill_at(hosts.matrix, hosts.serving, "edit", "before"):
        hosts.allow_words(2 * FIRST_WORDS)
    hosts.allow_words()


def test_of_two_gateways_one_serves_and_the_other_one_goes_on_after_a_kill(
    hosts: Hosts,
) -> None:
    """After each kill the other gateway asks for messages, and loses and doubles nothing."""
    talk = Talk(hosts.app, hosts.store)
    for person in PEOPLE:
        talk.ask("short", person=person)
    hosts.store.wait_settled(hosts.serving)
    seconds = []
    kills = (kill_at_rest, kill_between_send_and_receipt, kill_in_an_answer)
    for number, kill in enumerate(kills):
        talk.person = PEOPLE[number % len(PEOPLE)]
        kill(hosts, talk)
        seconds.append(hosts.take_over())
        hosts.store.wait_settled(hosts.serving)
        assert hosts.store.repeats(talk.person) == 0, kill.__name__
        hosts.start_standby()
    hosts.store.check(talk.questions)
    shown = ", ".join(f"{passed:.1f}" for passed in seconds)
    print(f"The other gateway asked after {shown} seconds.")  # noqa: T201  (shown by `pytest -rP`)
