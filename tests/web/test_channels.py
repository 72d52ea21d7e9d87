"""Chat apps over HTTP: accounts, codes, people, failed messages, and the chats of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply
from tests.support.served import Page, Served
from tests.support.telegram import ADA, BOB, FakeTelegram, Person
from tests.support.turns import set_up

CLARA = Person(7003, "Clara", "clara_immerwahr")


class World:
    """A server, its owner's page, and a Telegram."""

    def __init__(self, telegram: FakeTelegram, served: Served) -> None:
        self.telegram = telegram
        self.served = served
        self.page = served.browser()

    def channels(self) -> Any:
        return self.page.get("/channels")

    def wait_for(self, condition: Callable[[Any], object]) -> Any:
        """Wait until the chat apps are as wanted."""
        return self.telegram.wait_for(
            lambda: found if condition(found := self.channels()) else None
        )

    def add(self, **more: Any) -> Any:
        """Try to connect the bot."""
        bot = {
            "platform": "telegram",
            "token": self.telegram.token,
            "url": self.telegram.url,
        }
        return self.page.http.post("/api/channels", json={**bot, **more})

    def connect(self) -> None:
        """Connect the bot, and wait until messages come in."""
        answer = self.add()
        assert answer.status_code == 201, answer.text
        self.telegram.wait_for(lambda: self.telegram.waiting_polls)

    def hears(self, text: str, chat: int = ADA.id) -> None:
        """Wait until the bot has written these words in a chat."""
        self.telegram.wait_for(
            lambda: any(text in said for said in self.telegram.texts(chat))
        )

    def pair(self, person: Person, *, me: bool) -> Any:
        """Let a stranger write to the bot, and let the stranger in."""
        self.telegram.say("Who are you?", sender=person)
        (code,) = self.wait_for(lambda found: found["codes"])["codes"]
        self.hears(code["code"], person.id)
        return self.page.post("/channels/pair", {"code": code["code"], "me": me})

    def talk(self, person: Person, *, me: bool) -> None:
        """Let a person in, and let the person have a conversation."""
        self.pair(person, me=me)
        self.telegram.say("Hello", sender=person)
        self.hears("Forty-two.", person.id)

    def login(self, user: str) -> Page:
        return self.served.browser(
            self.served.tenax("link", "--user", user).stdout.strip()
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    set_up(tmp_path, [Reply("Forty-two.")])
    with FakeTelegram() as telegram, Served(tmp_path) as served:
        telegram.unlimit_rates()
        yield World(telegram, served)


def conversations(page: Page) -> list[Any]:
    found: list[Any] = page.get("/conversations")["conversations"]
    return found


def one_of(page: Page, source: str) -> str:
    """Return the id of the only conversation with a source."""
    (found,) = [entry for entry in conversations(page) if entry["source"] == source]
    return str(found["id"])


def has_failed(found: Any) -> bool:
    return bool(found["failed"])


def place_of(person: Person, telegram: FakeTelegram) -> dict[str, str]:
    return {
        "account": f"telegram:{telegram.bot_id}",
        "chat": str(person.id),
        "thread": "",
    }


# -- accounts --------------------------------------------------------------------------


def test_an_account_is_checked_stored_and_served(world: World) -> None:
    """The answer names the account and never the token, and the bot receives without a restart."""
    answer = world.add()
    assert answer.status_code == 201
    assert [account["label"] for account in answer.json()["accounts"]] == ["telegram"]
    found = world.wait_for(lambda found: found["accounts"][0]["state"] == "connected")
    (account,) = found["accounts"]
    assert account["name"] == f"@{world.telegram.username}"
    assert account["account"] == f"telegram:{world.telegram.bot_id}"
    assert (account["failed"], account["waiting"], account["error"]) == (0, 0, "")
    assert account["promise_in"] == "exactly once"
    for text in (answer.text, str(found)):
        assert world.telegram.token not in text
        assert "test-token" not in text
    settings = (world.served.home / "config.toml").read_text()
    assert "[channels.telegram]" in settings
    assert "test-token" not in settings


def test_a_wrong_token_is_refused_and_nothing_is_saved(world: World) -> None:
    """A malformed token and a token that Telegram refuses each give a sentence without the token."""
    before = (world.served.home / "config.toml").read_text()
    for token in ("hello", f"{world.telegram.bot_id}:wrong-{'B' * 30}", "x " * 300):
        answer = world.add(token=token)
        assert answer.status_code == 400, answer.text
        assert "token" in answer.json()["detail"]
        assert "BBBB" not in answer.text
    assert world.channels()["accounts"] == []
    assert (world.served.home / "config.toml").read_text() == before


def test_a_telegram_that_is_away_is_told_and_nothing_is_saved(world: World) -> None:
    """The sentence says that Telegram cannot be reached."""
    world.telegram.away()
    answer = world.add()
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("Telegram")
    assert answer.json()["detail"].endswith("Nothing was saved.")
    assert world.channels()["accounts"] == []
    world.telegram.back()
    assert world.add().status_code == 201


def test_a_setting_that_cannot_be_used_is_refused(world: World) -> None:
    """An address that is no address, an unknown platform, and a label that cannot be a name."""
    assert world.add(url="telegram").status_code == 400
    assert world.add(platform="smoke signals").status_code == 400
    assert world.add(label="No Label").status_code == 400
    assert world.channels()["accounts"] == []


def test_a_bot_has_one_account(world: World) -> None:
    """A second account with the same bot is refused; the same account takes a new token."""
    world.connect()
    for label in (None, "second"):
        answer = world.add(label=label)
        assert answer.status_code == 409
        assert "telegram" in answer.json()["detail"]
    assert world.add(label="telegram").status_code == 201
    other = f"99:{'C' * 30}"
    answer = world.add(label="telegram", token=other)
    assert answer.status_code == 409
    assert "another bot" in answer.json()["detail"]
    assert len(world.channels()["accounts"]) == 1


def test_a_removed_account_is_forgotten_with_its_token(world: World) -> None:
    """The conversations stay, and the bot receives nothing any more."""
    world.connect()
    world.talk(ADA, me=True)
    answer = world.page.http.delete("/api/channels/telegram")
    assert answer.status_code == 200
    assert answer.json()["accounts"] == []
    world.telegram.wait_for(lambda: not world.telegram.waiting_polls)
    files = world.served.home.rglob("*.toml")
    assert not any(world.telegram.token in file.read_text() for file in files)
    name = one_of(world.page, "telegram")
    assert world.page.get(f"/conversations/{name}/routes")["available"] == []
    assert world.page.http.delete("/api/channels/telegram").status_code == 409


def test_only_the_owner_sees_and_changes_chat_apps(world: World) -> None:
    """Every endpoint of the accounts refuses another user."""
    berta = world.login("berta")
    body = {"platform": "telegram", "token": world.telegram.token}
    for method, path, sent in [
        ("GET", "", None),
        ("POST", "", body),
        ("DELETE", "/telegram", None),
        ("POST", "/pair", {"code": "ABCDEFGH", "me": True}),
        ("POST", "/deliveries/retry", None),
        ("POST", "/deliveries/discard", None),
        ("POST", "/deliveries/x/retry", None),
        ("POST", "/deliveries/x/discard", None),
    ]:
        answer = berta.http.request(method, f"/api/channels{path}", json=sent)
        assert answer.status_code == 409, path
        assert "Only the owner" in answer.json()["detail"]
    person = {"account": "telegram:1", "person": "1"}
    answer = berta.http.delete("/api/chat-people", params=person)
    assert answer.status_code == 409


# -- people ----------------------------------------------------------------------------


def test_the_owner_lets_oneself_in(world: World) -> None:
    """The person of the code talks as the owner, and the conversation is in the owner's list."""
    world.connect()
    found = world.pair(ADA, me=True)
    assert found["codes"] == []
    (person,) = found["people"]
    assert (person["name"], person["person"]) == ("Ada", str(ADA.id))
    assert person["owner"] is True
    world.telegram.say("What is it?")
    world.hears("Forty-two.")
    name = one_of(world.page, "telegram")
    texts = [row.get("text") for row in world.page.rows(name)]
    assert texts == ["What is it?", "Forty-two."]


def test_somebody_else_becomes_a_user(world: World) -> None:
    """The conversations of the person are not the owner's."""
    world.connect()
    world.talk(BOB, me=False)
    (person,) = world.channels()["people"]
    assert (person["owner"], person["user"]) == (False, f"telegram-{BOB.id}")
    assert conversations(world.page) == []
    bob = world.login(person["user"])
    assert one_of(bob, "telegram")


def test_a_code_is_good_once_and_an_unknown_code_lets_nobody_in(world: World) -> None:
    """Both are refused with a sentence."""
    world.connect()
    world.telegram.say("Who are you?")
    (code,) = world.wait_for(lambda found: found["codes"])["codes"]
    shown = f"{code['code'][:4]}-{code['code'][4:]}".lower()
    for wrong in ("", "????", "AAAAAAAA", code["person"]):
        sent = {"code": wrong, "me": True}
        answer = world.page.http.post("/api/channels/pair", json=sent)
        assert answer.status_code in {400, 409}
    assert world.channels()["people"] == []
    world.page.post("/channels/pair", {"code": f" {shown} ", "me": True})
    sent = {"code": code["code"], "me": True}
    assert world.page.http.post("/api/channels/pair", json=sent).status_code == 409
    assert len(world.channels()["people"]) == 1


def test_a_removed_person_is_a_stranger_again(world: World) -> None:
    """The next message of the person gets no answer, and the chat is not offered any more."""
    world.connect()
    world.talk(ADA, me=True)
    name = one_of(world.page, "telegram")
    place = place_of(ADA, world.telegram)
    person = {"account": place["account"], "person": str(ADA.id)}
    answer = world.page.http.delete("/api/chat-people", params=person)
    assert answer.json()["people"] == []
    world.telegram.say("Still there?")
    world.wait_for(lambda found: found["codes"])
    texts = [row.get("text") for row in world.page.rows(name)]
    assert "Still there?" not in texts
    other = world.page.new()
    assert world.page.get(f"/conversations/{other}/routes")["available"] == []
    refused = world.page.http.post(f"/api/conversations/{other}/routes", json=place)
    assert refused.status_code == 409


def test_a_person_of_the_allow_list_is_removed_in_the_settings(world: World) -> None:
    """The refusal names the setting, because the list would let the person in again."""
    assert world.add(allow=[str(ADA.id)]).status_code == 201
    world.telegram.say("Hello")
    world.hears("Forty-two.")
    (person,) = world.channels()["people"]
    query = {"account": person["account"], "person": person["person"]}
    answer = world.page.http.delete("/api/chat-people", params=query)
    assert answer.status_code == 409
    assert "channels.telegram.allow" in answer.json()["detail"]
    assert len(world.channels()["people"]) == 1


# -- messages that did not go out ------------------------------------------------------


def fail_an_answer(world: World) -> str:
    """Let an answer be refused by Telegram, and return its conversation."""
    world.connect()
    world.talk(ADA, me=True)
    name = one_of(world.page, "telegram")
    world.telegram.block(ADA.id)
    world.page.say(name, "And the question?")
    world.wait_for(has_failed)
    return name


def test_a_dead_message_is_shown_and_sent_again(world: World) -> None:
    """The list says which chat, what, and why; after a retry the message is in the chat."""
    name = fail_an_answer(world)
    # The question of the page and the answer. The two figures are read one after the other.
    found = world.wait_for(
        lambda found: found["accounts"][0]["failed"] == len(found["failed"]) == 2
    )
    (failed,) = [row for row in found["failed"] if row["kind"] == "answer"]
    assert failed["state"] == "dead"
    assert failed["title"]
    assert failed["error"]
    assert failed["conversation"] == name
    before = len(world.telegram.texts())
    world.telegram.unblock(ADA.id)
    path = f"/channels/deliveries/{failed['id']}/retry"
    left = world.page.post(path)["failed"]
    assert failed["id"] not in [row["id"] for row in left]
    world.telegram.wait_for(lambda: len(world.telegram.texts()) > before)
    assert world.telegram.texts()[-1] == "Forty-two."
    assert world.page.http.post(f"/api{path}").status_code == 409


def test_a_dead_message_is_discarded(world: World) -> None:
    """It is not listed any more, and its words stay in the conversation."""
    name = fail_an_answer(world)
    found = world.wait_for(
        lambda found: "answer" in [row["kind"] for row in found["failed"]]
    )
    for failed in found["failed"]:
        world.page.post(f"/channels/deliveries/{failed['id']}/discard")
    assert world.channels()["failed"] == []
    assert world.channels()["accounts"][0]["failed"] == 0
    assert world.page.rows(name)[-1]["text"] == "Forty-two."
    path = f"/api/channels/deliveries/{found['failed'][0]['id']}/retry"
    assert world.page.http.post(path).status_code == 409


def test_all_failed_messages_are_handled_at_once(world: World) -> None:
    """First all are sent again and fail again, then all are discarded."""
    fail_an_answer(world)
    found = world.wait_for(lambda found: len(found["failed"]) == 2)
    tries = world.telegram.calls("sendMessage")
    world.page.post("/channels/deliveries/retry")
    world.telegram.wait_for(lambda: world.telegram.calls("sendMessage") >= tries + 2)
    again = world.wait_for(lambda found: len(found["failed"]) == 2)
    ids = [{row["id"] for row in one["failed"]} for one in (found, again)]
    assert ids[0] == ids[1]
    assert world.page.post("/channels/deliveries/discard")["failed"] == []


def test_the_owner_does_not_see_whose_message_failed_where(world: World) -> None:
    """A failed message of another user names no conversation."""
    world.connect()
    world.talk(BOB, me=False)
    world.telegram.block(BOB.id)
    bob = world.login(f"telegram-{BOB.id}")
    bob.say(one_of(bob, "telegram"), "And now?")
    found = world.wait_for(has_failed)
    assert {row["conversation"] for row in found["failed"]} == {None}


# -- the chats of a conversation -------------------------------------------------------


def test_a_conversation_continues_in_a_chat_and_leaves_it(world: World) -> None:
    """The chat belongs to one conversation at a time; after the disconnection it belongs to none."""
    world.connect()
    world.talk(ADA, me=True)
    first, second = one_of(world.page, "telegram"), world.page.new()
    place = place_of(ADA, world.telegram)
    routes = world.page.get(f"/conversations/{first}/routes")
    assert [chat["title"] for chat in routes["connected"]] == ["Ada"]
    assert routes["available"] == []
    routes = world.page.get(f"/conversations/{second}/routes")
    assert routes["connected"] == []
    (offered,) = routes["available"]
    assert {name: offered[name] for name in place} == place
    assert (offered["platform"], offered["group"]) == ("telegram", False)
    routes = world.page.post(f"/conversations/{second}/routes", place)
    assert ([len(routes[name]) for name in ("connected", "available")]) == [1, 0]
    assert world.page.get(f"/conversations/{first}/routes")["connected"] == []
    world.telegram.say("In the second one.")
    world.telegram.wait_for(
        lambda: any(
            row.get("text") == "In the second one." for row in world.page.rows(second)
        )
    )
    path = f"/api/conversations/{second}/routes"
    answer = world.page.http.delete(path, params=place)
    assert answer.status_code == 200
    assert answer.json()["connected"] == []
    assert world.page.http.delete(path, params=place).status_code == 409
    world.telegram.say("In a third one.")
    world.telegram.wait_for(lambda: len(conversations(world.page)) == 3)


def test_what_is_written_on_the_page_is_in_the_connected_chat(world: World) -> None:
    """Question and answer both arrive there."""
    world.connect()
    world.talk(ADA, me=True)
    name = world.page.new()
    place = place_of(ADA, world.telegram)
    world.page.post(f"/conversations/{name}/routes", place)
    world.page.say(name, "From the page.")
    world.hears("From the page.")
    world.telegram.wait_for(lambda: world.telegram.texts().count("Forty-two.") == 2)


def test_nobody_sees_or_uses_the_chats_of_another_user(world: World) -> None:
    """The chat of the owner is not offered to Bob, nor Bob's to the owner, and neither can be named."""
    world.connect()
    world.talk(ADA, me=True)
    world.talk(BOB, me=False)
    bob = world.login(f"telegram-{BOB.id}")
    clara = world.login("clara")
    chats = {world.page: ADA, bob: BOB}
    for page, own in chats.items():
        name = page.new()
        routes = page.get(f"/conversations/{name}/routes")
        assert [chat["chat"] for chat in routes["available"]] == [str(own.id)]
        for person in {ADA, BOB, CLARA} - {own}:
            foreign = place_of(person, world.telegram)
            path = f"/api/conversations/{name}/routes"
            assert page.http.post(path, json=foreign).status_code == 409
            assert page.http.delete(path, params=foreign).status_code == 409
        assert page.get(f"/conversations/{name}/routes") == routes
    name = clara.new()
    nothing: dict[str, list[object]] = {"connected": [], "available": []}
    assert clara.get(f"/conversations/{name}/routes") == nothing
    owners = one_of(world.page, "telegram")
    path = f"/api/conversations/{owners}/routes"
    mine = place_of(BOB, world.telegram)
    assert bob.http.get(path).status_code == 404
    assert bob.http.post(path, json=mine).status_code == 404
    assert bob.http.delete(path, params=mine).status_code == 404


def test_a_conversation_that_was_deleted_has_no_chats(world: World) -> None:
    """It is gone, for reading and for connecting."""
    name = world.page.new()
    world.page.http.delete(f"/api/conversations/{name}")
    path = f"/api/conversations/{name}/routes"
    place = place_of(ADA, world.telegram)
    assert world.page.http.get(path).status_code == 410
    assert world.page.http.post(path, json=place).status_code == 410
