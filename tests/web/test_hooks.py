"""`/api/hooks/LABEL`: a signed request is stored before it is answered, and any other request gets no answer of Tenax."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenax.models import Reply
from tests.docs.test_how_to import PAGES, blocks
from tests.support.served import SECONDS, Page, Served, kept_port
from tests.support.turns import set_up
from tests.support.webhooks import OTHER_SECRET, SECRET, Inbox, event, sign

KIB = 1024
(PAGE,) = [page for page in PAGES if page.stem == "webhooks"]


class World:
    """A server with a webhook, and a receiver of its answers."""

    def __init__(self, served: Served, inbox: Inbox) -> None:
        self.served = served
        self.inbox = inbox
        self.page = served.browser()

    def connect(self, **more: Any) -> Any:
        """Try to connect the webhook."""
        account = {"platform": "webhook", "token": SECRET, "url": self.inbox.url}
        return self.page.http.post("/api/channels", json=account | more)

    def wait_served(self, label: str = "webhook") -> None:
        """Wait until the server serves the webhook."""

        def is_served() -> bool:
            accounts = self.page.get("/channels")["accounts"]
            states = {account["label"]: account["state"] for account in accounts}
            return states.get(label) == "connected"

        self.inbox.wait_for(is_served)

    def post(
        self,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        label: str = "webhook",
        change: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request as a program does: without a cookie, under any name."""
        url = f"{self.served.url}/api/hooks/{label}"
        signed = {**(sign(body) if headers is None else headers), **(change or {})}
        return httpx.post(
            url, content=body, headers=signed, trust_env=False, timeout=SECONDS
        )

    def texts(self) -> list[str]:
        """Return what people have said in the conversations of the owner."""
        return said_in(self.page)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    set_up(tmp_path, [Reply("Forty-two.")])
    with Inbox() as inbox, Served(tmp_path) as served:
        world = World(served, inbox)
        answer = world.connect()
        assert answer.status_code == 201, answer.text
        world.wait_served()
        yield world


def said_in(page: Page) -> list[str]:
    names = [entry["id"] for entry in page.get("/conversations")["conversations"]]
    rows = [row for name in reversed(names) for row in page.rows(name)]
    return [row["text"] for row in rows if row["kind"] == "user"]


def has_status(answer: httpx.Response, status: int) -> bool:
    assert answer.status_code == status, answer.text
    return True


def test_a_signed_request_is_stored_and_answered(world: World) -> None:
    """The status is 202 without a body, the message is in the list of conversations, and the answer goes out."""
    answer = world.post(event("What is it?"))
    assert (answer.status_code, answer.content) == (202, b"")
    assert world.texts() == ["What is it?"]
    (post,) = world.inbox.wait_for(world.inbox.taken)
    assert (post.type, post.data["text"]) == ("answer.finished", "Forty-two.")
    (entry,) = world.page.get("/conversations")["conversations"]
    assert entry["source"] == "webhook"
    assert entry["id"] == post.data["conversation"]


def test_a_repeated_request_is_answered_alike_and_stored_once(world: World) -> None:
    """Also after a restart of the server."""
    body = event("Once")
    headers = sign(body)
    statuses = [world.post(body, headers).status_code for _ in range(3)]
    world.served.kill_server()
    again = sign(body, headers["webhook-id"])

    def is_accepted() -> bool:
        try:
            return world.post(body, again).status_code == 202
        except httpx.HTTPError:
            return False

    world.inbox.wait_for(is_accepted)
    assert statuses == [202, 202, 202]
    assert world.texts() == ["Once"]
    world.inbox.wait_for(world.inbox.taken)
    assert len(world.inbox.taken()) == 1


def test_a_request_may_come_under_any_name(world: World) -> None:
    """A proxy has another name, and a program sends no header of a browser. The page stays closed under such a name."""
    body = event("Hello")
    other = {"host": "hooks.example.org", "origin": "https://elsewhere.example"}
    assert world.post(body, change=other).status_code == 202
    answer = httpx.get(
        f"{world.served.url}/api/setup",
        headers={"host": "hooks.example.org"},
        trust_env=False,
    )
    assert answer.status_code == 403


def test_refused_requests_get_one_neutral_answer(world: World) -> None:
    """Bad signature, old or future timestamp, missing headers and unknown label: one answer, nothing stored or sent.

    Each is logged once, without its content.
    """
    body = event("hunter2")
    bad = [
        ("webhook", sign(body, "hunter2", secret=OTHER_SECRET)),
        ("webhook", sign(body, "hunter2", seconds=-310)),
        ("webhook", sign(body, "hunter2", seconds=310)),
        ("webhook", {"content-type": "application/json"}),
        ("unknown", sign(body, "hunter2")),
        ("hunter2", sign(body, "hunter2")),
        ("a%2Fb", sign(body, "hunter2")),
    ]
    answers = [world.post(body, headers, label=label) for label, headers in bad * 2]
    assert {answer.status_code for answer in answers[:-1]} <= {401, 404}
    found = {answer.text for answer in answers if answer.status_code == 401}
    assert len(found) == 1
    assert len([answer for answer in answers if answer.status_code == 401]) >= 12
    assert world.texts() == []
    assert world.inbox.posts == []
    log = (world.served.home / "log").glob("*.log")
    lines = [line for file in log for line in file.read_text().splitlines()]
    refused = [line for line in lines if "was refused" in line]
    assert len(refused) == 5
    assert not any("hunter2" in line for line in lines)


def test_requests_with_a_wrong_form_are_refused(world: World) -> None:
    """Another method, another type of content, and a body that is no message."""
    body = event("Hello")
    url = f"{world.served.url}/api/hooks/webhook"
    assert has_status(httpx.get(url, trust_env=False), 405)
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        assert has_status(world.post(body, change={"content-type": kind}), 415)
    assert has_status(world.post(b"{}"), 400)
    assert has_status(world.post(b'{"type": "ping", "data": {}}'), 400)
    utf = {"content-type": "application/json; charset=utf-8"}
    assert has_status(world.post(body, change=utf), 202)


def test_a_large_body_is_refused(world: World) -> None:
    """The limit holds for a body of known and of unknown length, also without a good signature."""
    body = event("x" * (257 * KIB))
    assert has_status(world.post(body), 413)
    assert has_status(world.post(body, label="unknown"), 413)
    url = f"{world.served.url}/api/hooks/webhook"
    pieces = iter([body[: 200 * KIB], body[200 * KIB :]])
    answer = httpx.post(url, content=pieces, headers=sign(body), trust_env=False)
    assert has_status(answer, 413)
    assert world.texts() == []


def test_a_sender_that_may_not_talk_is_told(world: World) -> None:
    """Who holds the secret gets a sentence: the sender needs a code or a place in the list."""
    body = event("Hello", sender={"id": "ci", "name": "CI"})
    answer = world.post(body)
    assert has_status(answer, 403)
    assert "tenax pair" in answer.json()["hint"]
    (code,) = world.page.get("/channels")["codes"]
    assert (code["person"], code["name"]) == ("ci", "CI")
    world.page.post("/channels/pair", {"code": code["code"], "me": False})
    assert has_status(world.post(body), 202)
    assert world.texts() == []


def test_many_requests_at_once_are_stored_once_each(world: World) -> None:
    """Every message of several chats is stored once, and every chat has one conversation."""
    bodies = [event(f"{chat} {n}", chat=chat) for chat in "abc" for n in range(5)]
    statuses: list[int] = []

    def send(body: bytes) -> None:
        headers = sign(body)
        statuses.extend(world.post(body, headers).status_code for _ in range(2))

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [202] * 30
    assert sorted(world.texts()) == sorted(
        f"{chat} {n}" for chat in "abc" for n in range(5)
    )
    assert len(world.page.get("/conversations")["conversations"]) == 3


# -- the page ----------------------------------------------------------------------------


def test_the_answers_of_any_conversation_can_go_out(world: World) -> None:
    """The page offers the webhook for every conversation of the owner, several at once, and a request answers there."""
    names = [world.page.new() for _ in range(2)]
    for name in names:
        (place,) = world.page.get(f"/conversations/{name}/routes")["available"]
        assert (place["title"], place["platform"]) == ("webhook", "webhook")
        body = {key: place[key] for key in ("account", "chat", "thread")}
        found = world.page.post(f"/conversations/{name}/routes", body)
        assert (found["connected"], found["available"]) == ([place], [])
        world.page.say(name, "From the page")
    world.inbox.wait_for(lambda: len(world.inbox.taken()) == 2)
    assert {post.data["conversation"] for post in world.inbox.taken()} == set(names)
    for post in world.inbox.taken():
        reply = event("And then?", chat=post.data["chat"])
        assert has_status(world.post(reply), 202)
    for name in names:
        texts = [row["text"] for row in world.page.rows(name) if row["kind"] == "user"]
        assert texts == ["From the page", "And then?"]
    query = {"account": "webhook:webhook", "chat": names[0], "thread": ""}
    path = f"/api/conversations/{names[0]}/routes"
    left = world.page.http.delete(path, params=query).json()
    assert left["connected"] == []
    assert len(left["available"]) == 1


def test_only_the_owner_is_offered_the_webhook(world: World) -> None:
    """Another user of this Tenax sends nothing to the address of the owner."""
    link = world.served.tenax("link", "--user", "berta").stdout.strip()
    berta = world.served.browser(link)
    name = berta.new()
    assert berta.get(f"/conversations/{name}/routes")["available"] == []
    place = {"account": "webhook:webhook", "chat": name, "thread": ""}
    answer = berta.http.post(f"/api/conversations/{name}/routes", json=place)
    assert has_status(answer, 409)


def test_an_account_without_an_address_is_not_offered(world: World) -> None:
    """There is nowhere to send the answers."""
    answer = world.connect(label="inward", url="")
    assert answer.status_code == 201, answer.text
    world.wait_served("inward")
    assert has_status(world.post(event("Hello"), label="inward"), 202)
    name = world.page.new()
    (place,) = world.page.get(f"/conversations/{name}/routes")["available"]
    assert place["account"] == "webhook:webhook"


def test_a_bad_secret_is_refused_and_nothing_is_saved(world: World) -> None:
    """The sentence says the form of a secret, and repeats nothing of it."""
    for secret in ("hunter2", "whsec_hunter2", "whsec_aHVudGVyMg=="):
        answer = world.connect(label="second", token=secret)
        assert has_status(answer, 400)
        assert "hunter2" not in answer.text
        assert "aHVu" not in answer.text
    assert len(world.page.get("/channels")["accounts"]) == 1


def test_a_new_secret_replaces_the_old_one(world: World) -> None:
    """The same account takes another secret, and refuses the old one at once."""
    answer = world.connect(label="webhook", token=OTHER_SECRET)
    assert answer.status_code == 201, answer.text
    world.wait_served()
    body = event("Hello")
    assert has_status(world.post(body), 401)
    again = sign(body, secret=OTHER_SECRET)
    world.inbox.wait_for(lambda: world.post(body, again).status_code == 202)


# -- the programs of the how-to page -----------------------------------------------------


def test_the_programs_of_the_page_send_and_receive(
    world: World, tmp_path: Path
) -> None:
    """`send.py` and `receive.py` of docs/how-to/webhooks.md talk to a real server."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for block in blocks(PAGE):
        if block.language == "python":
            (folder / block.title).write_text(block.text)
    env = {**os.environ, "WEBHOOK_SECRET": SECRET}
    with kept_port() as place:
        port = str(place.getsockname()[1])
        receiver = subprocess.Popen(
            [sys.executable, "receive.py", port],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with receiver:
            try:
                url = f"http://127.0.0.1:{port}/answers"
                assert has_status(world.connect(label="webhook", url=url), 201)
                address = f"{world.served.url}/api/hooks/webhook"
                sent = subprocess.run(
                    [sys.executable, "send.py", address, "What is it?"],
                    cwd=folder,
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    check=True,
                )
                assert sent.stdout == "202\n"
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == "answer.finished Forty-two.\n"
            finally:
                receiver.kill()
