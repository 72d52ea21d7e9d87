"""Requests come to any host: each is stored there, and the host with the lease sends the answers. Also while the store is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.chat_kills import ADA, BOB, ChatStore, Person, Question, wait_until
from tests.support.postgres import PostgresServer
from tests.support.served import SECONDS, kept_port
from tests.support.webhook_kills import HookApp, HookHome, ServeProcess
from tests.support.webhooks import Inbox, Sender, event, sign

pytestmark = pytest.mark.crash

ROUNDS: Final = 3


class Hosts:
    """Servers with the same webhook on one store. The sender sends to all of them in turn."""

    def __init__(
        self, inbox: Inbox, url: str, folder: Path, stack: ExitStack, count: int
    ) -> None:
        self.inbox = inbox
        self.app = HookApp(inbox, stack.enter_context(Sender(self.next_hook)))
        self.store = stack.enter_context(ChatStore(url, self.app))
        self.questions: list[Question] = []
        self._turn = 0
        # An interrupted answer continues by itself only in the same folder of the tools.
        work = folder / "work"
        self.servers = []
        for number in range(count):
            port = stack.enter_context(kept_port()).getsockname()[1]
            home = HookHome(
                self.app, url, folder / str(number), port, tools_folder=work
            )
            self.servers.append(stack.enter_context(ServeProcess(home)))

    def next_hook(self) -> str:
        """Return the address of the next server."""
        self._turn += 1
        return self.servers[self._turn % len(self.servers)].home.hook

    def ask(self, person: Person) -> None:
        number = len(self.questions) + 1
        text = f"question {number} short"
        message = self.app.say(text, person, None)
        self.questions.append(Question(person, message, text, number))

    def post(
        self, body: bytes, headers: dict[str, str], number: int = 0
    ) -> httpx.Response:
        hook = self.servers[number].home.hook
        return httpx.post(
            hook, content=body, headers=headers, trust_env=False, timeout=SECONDS
        )

    def wait_open(self) -> None:
        """Wait until every server takes requests."""
        for number in range(len(self.servers)):
            wait_until(lambda: self._is_open(number), "the server does not start")  # noqa: B023

    def _is_open(self, number: int) -> bool:
        try:
            # A server that serves the account refuses this request, and any other one is not ready.
            return self.post(b"{}", sign(b"{}"), number).status_code == 400
        except httpx.HTTPError:
            return False


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_requests_to_two_hosts_are_stored_once_and_answered_once(
    postgres_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    """Also while the host with the lease is killed: the other one takes requests at once, and sends the answers soon."""
    inbox = stack.enter_context(Inbox())
    hosts = Hosts(inbox, postgres_url, tmp_path, stack, 2)
    hosts.wait_open()
    for _ in range(ROUNDS):
        hosts.ask(ADA)
        hosts.ask(BOB)
    hosts.store.wait_settled(*hosts.servers)
    body = event("question 900 short", chat=ADA.id)
    headers = sign(body)
    assert [hosts.post(body, headers, n).status_code for n in (0, 1, 0)] == [202] * 3
    said = Question(ADA, headers["webhook-id"], "question 900 short", 900)
    hosts.questions.append(said)
    hosts.store.wait_settled(*hosts.servers)
    for server in hosts.servers:
        server.kill()
        hosts.ask(ADA)
        hosts.store.wait_settled(*hosts.servers)
        server.start()
        hosts.wait_open()
    hosts.store.check(hosts.questions)
    ids = [post.id for post in inbox.posts]
    assert len(ids) == len(set(ids)) == len(hosts.questions)


def test_a_sender_is_asked_to_wait_while_the_store_is_away(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The status is 503 with a time to wait, a bad signature is still refused, and afterwards the request is stored once."""
    inbox = stack.enter_context(Inbox())
    with PostgresServer({"fsync": "off"}) as database:
        url = database.create_database()
        hosts = Hosts(inbox, url, tmp_path, stack, 1)
        hosts.wait_open()
        database.stop("immediate")
        body = event("question 1 short", chat=ADA.id)
        headers = sign(body)
        answer = hosts.post(body, headers)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) > 0
        bad = headers | {"webhook-id": "another"}
        assert hosts.post(body, bad).status_code == 401
        database.start()
        wait_until(
            lambda: hosts.post(body, headers).status_code == 202, "it is not accepted"
        )
        hosts.questions.append(
            Question(ADA, headers["webhook-id"], "question 1 short", 1)
        )
        hosts.store.wait_settled(*hosts.servers)
        hosts.store.check(hosts.questions)
        # The test's own handle ends before the database.
        stack.close()
