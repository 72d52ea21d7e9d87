"""Webhooks: signed requests become messages once, and answers reach the receiver at least once, with the same id."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tenax.channels.states import read_states
from tenax.channels.webhook.channel import WebhookChannel
from tenax.channels.webhook.secret import is_secret, make_secret
from tenax.config.secret import Secret
from tenax.errors import InvalidInput, NotAuthorized, StoreUnavailable
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ConversationRouted,
    MessageUser,
)
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply, ScriptedCall, Trouble
from tests.support.chats import ChatWorld
from tests.support.telegram import FakeTelegram
from tests.support.webhooks import (
    OTHER_SECRET,
    SECRET,
    HookWorld,
    Inbox,
    event,
    sign,
)

LONG = " ".join(f"word{number}" for number in range(800))


@pytest.fixture
def channel() -> WebhookChannel:
    return WebhookChannel("hook", SECRET)


# -- requests ----------------------------------------------------------------------------


def test_a_signed_request_is_a_message_of_the_owner(channel: WebhookChannel) -> None:
    """The id is the webhook-id, and the chat has the label of the webhook."""
    body = event("Hello")
    message = channel.read_request(sign(body, "msg_1"), body)
    assert (message.id, message.text) == ("msg_1", "Hello")
    assert (message.chat.id, message.sender.is_owner) == ("hook", True)


def test_a_request_names_its_chat_and_its_sender(channel: WebhookChannel) -> None:
    """A named sender is a person with an id, and not the owner."""
    body = event("Hello", chat="deploys", sender={"id": "ci", "name": "CI"})
    message = channel.read_request(sign(body), body)
    assert message.chat.id == "deploys"
    assert (message.sender.id, message.sender.name) == ("ci", "CI")
    assert not message.sender.is_owner


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v2,AAAA"},
        {"webhook-signature": ""},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-timestamp": ""},
        {"webhook-id": "another"},
        {"webhook-id": ""},
    ],
)
def test_a_changed_header_is_refused(
    channel: WebhookChannel, change: dict[str, str]
) -> None:
    """Every header is part of the signature or has a form, and a wrong one raises nothing but the refusal."""
    body = event("Hello")
    with pytest.raises(NotAuthorized):
        channel.read_request(sign(body) | change, body)


def test_a_missing_header_is_refused(channel: WebhookChannel) -> None:
    """All three headers are needed."""
    body = event("Hello")
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        headers = sign(body)
        del headers[name]
        with pytest.raises(NotAuthorized):
            channel.read_request(headers, body)


def test_another_body_or_secret_is_refused(channel: WebhookChannel) -> None:
    """The signature is of this body, with this secret."""
    body = event("Hello")
    with pytest.raises(NotAuthorized):
        channel.read_request(sign(body), event("Goodbye"))
    with pytest.raises(NotAuthorized):
        channel.read_request(sign(body), b"\xff")
    with pytest.raises(NotAuthorized):
        channel.read_request(sign(body, secret=OTHER_SECRET), body)


def test_one_of_several_signatures_is_enough(channel: WebhookChannel) -> None:
    """A sender that changes its secret signs with both for a while."""
    body = event("Hello")
    headers = sign(body, "msg_1")
    other = sign(body, "msg_1", secret=OTHER_SECRET)["webhook-signature"]
    headers["webhook-signature"] = f"{other} {headers['webhook-signature']}"
    assert channel.read_request(headers, body).text == "Hello"


@pytest.mark.parametrize("seconds", [-310, 310])
def test_a_timestamp_more_than_five_minutes_off_is_refused(
    channel: WebhookChannel, seconds: int
) -> None:
    """A recorded request cannot be replayed later. A request of four minutes ago is accepted."""
    body = event("Hello")
    with pytest.raises(NotAuthorized, match="timestamp"):
        channel.read_request(sign(body, seconds=seconds), body)
    near = 240 if seconds > 0 else -240
    assert channel.read_request(sign(body, seconds=near), body).text == "Hello"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "invalid"),
        (b"{", "invalid"),
        (b"[]", "invalid"),
        (b'{"type": "message.created"}', "data"),
        (b'{"type": "push", "data": {}}', "message.created only"),
        (event(""), "text"),
        (event(" \n "), "text is empty"),
        (event("x" * 100_001), "text"),
        (event("Hello", chat="a\nb"), "cannot be printed"),
        (event("Hello", chat="x" * 101), "chat"),
        (event("Hello", sender={"name": "CI"}), "id"),
        (event("Hello", sender={"id": ""}), "id"),
    ],
)
def test_a_signed_request_with_an_invalid_body_is_explained(
    channel: WebhookChannel, body: bytes, sentence: str
) -> None:
    """The sentence says what is wrong, and repeats nothing of the body."""
    with pytest.raises(InvalidInput, match=sentence) as caught:
        channel.read_request(sign(body), body)
    assert "Hello" not in str(caught.value)


def test_a_long_id_is_refused(channel: WebhookChannel) -> None:
    """The id must fit into the store."""
    body = event("Hello")
    with pytest.raises(InvalidInput, match="webhook-id"):
        channel.read_request(sign(body, "x" * 201), body)


def test_a_secret_has_a_form() -> None:
    """A new secret has the form, and a short or broken one is refused without its text."""
    assert is_secret(make_secret())
    assert make_secret() != make_secret()
    for wrong in ("hunter2", "whsec_", "whsec_aHVudGVyMg==", "whsec_é", "whsec_!!!!"):
        assert not is_secret(wrong)
        with pytest.raises(InvalidInput, match="secret of hook") as caught:
            WebhookChannel("hook", wrong)
        assert "hunter2" not in str(caught.value)


# -- messages ----------------------------------------------------------------------------


async def test_a_message_is_answered_at_the_address(
    inbox: Inbox, tmp_path: Path
) -> None:
    """The answer is a signed event with the conversation, the number of the event and the Markdown as it is."""
    async with HookWorld(
        inbox.url, "sqlite", tmp_path, [Reply(f"**{LONG}**")]
    ) as world:
        await world.soon()
        assert await world.request("Hello", "msg_1")
        await world.until(inbox.taken)
        (name,) = world.conversations()
        (post,) = inbox.taken()
        assert post.type == "answer.finished"
        assert post.data["text"] == f"**{LONG}**"
        assert (post.data["conversation"], post.data["chat"]) == (name, "hook")
        (fact,) = [fact for fact in world.facts(name) if fact.seq == post.data["seq"]]
        assert fact.event.kind == "message.assistant"
        timestamp = json.loads(post.body)["timestamp"]
        assert timestamp.endswith("Z")
        assert post.headers["content-type"] == "application/json"
        (source,) = world.events(name, MessageUser)
        assert source.extra["chat"] == {
            "account": "webhook:hook",
            "chat": "hook",
            "thread": "",
            "message": "msg_1",
        }
        assert inbox.bad == []


async def test_a_repeated_message_is_stored_once(inbox: Inbox, tmp_path: Path) -> None:
    """A repetition is accepted like the first time, also after a restart and with another text."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        await world.soon()
        for _ in range(3):
            assert await world.request("Hello", "msg_1")
        await world.until(inbox.taken)
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        await world.soon()
        assert await world.request("Changed", "msg_1")
        assert await world.request("Next", "msg_2")
        await world.until(lambda: len(inbox.taken()) == 2)
        assert world.words() == ["Hello", "Next"]


async def test_commands_are_done_once(inbox: Inbox, tmp_path: Path) -> None:
    """/new begins another conversation, also if it comes twice, and its reply is an event."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        await world.soon()
        await world.request("Hello")
        await world.until(inbox.taken)
        for _ in range(2):
            assert await world.request("/new", "msg_new")
        await world.until(lambda: inbox.taken("notice.created"))
        await world.request("Again")
        await world.until(lambda: len(inbox.taken("answer.finished")) == 2)
        assert len(world.conversations()) == 2
        assert inbox.texts("notice.created") == ["New conversation."]


async def test_chats_have_conversations_of_their_own(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Requests of one chat that come at the same time go to one conversation."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        await world.soon()
        await asyncio.gather(
            *(
                world.request(f"{chat} {n}", chat=chat)
                for chat in "ab"
                for n in range(3)
            )
        )
        await world.until(
            lambda: {post.data["chat"] for post in inbox.taken()} == set("ab")
        )
        assert len(world.conversations()) == 2
        assert len(world.words()) == 6


async def test_without_an_address_nothing_goes_out(tmp_path: Path) -> None:
    """The message is answered in its conversation, and nothing waits for a delivery."""
    async with HookWorld("", "sqlite", tmp_path, [Reply("Yes.")]) as world:
        await world.soon()
        assert await world.request("Hello")
        await world.until(world.conversations)
        await world.until(lambda: not world.rows.news(world.account))
        assert world.rows.failed() == []
        assert world.rows.unfinished(world.account) == []


async def test_answers_of_a_chosen_conversation_go_out(
    inbox: Inbox, tmp_path: Path
) -> None:
    """A conversation of the page is routed to the webhook: its answers go out, and the person's words do not."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        name = await world.runtime.new()
        route = ConversationRouted(world.account, "hook", "")
        await world.runtime.journal.append(name, [route])
        for words in ("One", "Two"):
            asked = await world.runtime.submit(name, words)
            await world.runtime.finished(name, asked.seq)
        await world.until(lambda: len(inbox.taken()) == 2)
        assert {post.data["conversation"] for post in inbox.taken()} == {name}
        assert [post.type for post in inbox.posts] == ["answer.finished"] * 2


async def test_a_question_of_the_model_is_answered_with_a_message(
    inbox: Inbox, tmp_path: Path
) -> None:
    """The event has the choices, and a repeated answer is neither another answer nor a message."""
    arguments = {"question": "Which colour?", "choices": ["Red", "Blue"]}
    replies = [Reply(calls=[ScriptedCall("ask", arguments)]), Reply("Good.")]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies) as world:
        await world.soon()
        await world.request("Hello")
        (post,) = await world.until(lambda: inbox.taken("question.asked"))
        assert "Which colour?" in post.data["text"]
        assert post.data["choices"] == ["Red", "Blue"]
        for _ in range(3):
            assert await world.request("Blue", "msg_blue", chat=post.data["chat"])
        await world.until(lambda: inbox.taken("answer.finished"))
        (name,) = world.conversations()
        (answer,) = world.events(name, ApprovalAnswered)
        assert answer.words == "Blue"
        assert world.words() == ["Hello"]


async def test_an_approval_is_given_elsewhere(inbox: Inbox, tmp_path: Path) -> None:
    """The event asks, and the answer comes after the approval in the page."""
    arguments = {"path": "a.txt", "content": "Hello"}
    replies = [Reply(calls=[ScriptedCall("write_file", arguments)]), Reply("Done.")]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies) as world:
        await world.soon()
        await world.request("Write it")
        (post,) = await world.until(lambda: inbox.taken("question.asked"))
        assert "write_file" in post.data["text"]
        assert "choices" not in post.data
        (name,) = world.conversations()
        (asked,) = world.events(name, ApprovalAsked)
        await world.runtime.answer(name, asked.message, asked.call, "once")
        await world.until(lambda: "Done." in inbox.texts("answer.finished"))
        assert (world.config.tools_folder / "a.txt").read_text() == "Hello"
        types = [post.type for post in inbox.taken()]
        assert set(types) == {"question.asked", "answer.finished"}


async def test_no_message_allows_a_call(inbox: Inbox, tmp_path: Path) -> None:
    """A message after the question is a new message: the call is denied, whatever the words."""
    arguments = {"path": "a.txt", "content": "Hello"}
    replies = [
        Reply(calls=[ScriptedCall("write_file", arguments)]),
        Reply("Not done."),
        Reply("You are welcome."),
    ]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies) as world:
        await world.soon()
        await world.request("Write it")
        await world.until(lambda: inbox.taken("question.asked"))
        await world.request("yes")
        await world.until(lambda: "You are welcome." in inbox.texts("answer.finished"))
        (name,) = world.conversations()
        (answered,) = world.events(name, ApprovalAnswered)
        assert answered.answer == "no"
        assert not (world.config.tools_folder / "a.txt").exists()


async def test_files_and_the_end_of_a_run_are_events(
    inbox: Inbox, tmp_path: Path
) -> None:
    """A file comes in base64, and a failed answer says why."""
    replies = [
        Reply("See [the report](report.csv)."),
        Reply(trouble=Trouble("refused", "No.")),
    ]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies) as world:
        folder = world.config.tools_folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.csv").write_text("a,b\n")
        await world.soon()
        await world.request("The report, please")
        (file,) = await world.until(lambda: inbox.taken("file.created"))
        assert (file.data["name"], file.data["media_type"]) == (
            "report.csv",
            "text/csv",
        )
        assert base64.b64decode(file.data["content"]) == b"a,b\n"
        await world.request("Again")
        (end,) = await world.until(lambda: inbox.taken("answer.ended"))
        assert "failed" in end.data["text"]
        assert world.conversations() == [end.data["conversation"]]


# -- who may talk ------------------------------------------------------------------------


async def test_a_named_sender_is_a_stranger(inbox: Inbox, tmp_path: Path) -> None:
    """Nobody but the owner may talk at first; a paired sender is a user of their own."""
    sender = {"id": "ci", "name": "CI"}
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        await world.soon()
        for _ in range(3):
            assert not await world.request("Hello", sender=sender)
        await world.until(lambda: inbox.taken("notice.created"))
        (pairing,) = world.rows.pairings()
        assert pairing.code in inbox.texts("notice.created")[0]
        assert world.conversations() == []
        world.rows.pair(pairing.code, "webhook-ci")
        assert await world.request("Hello", sender=sender)
        await world.until(lambda: inbox.taken("answer.finished"))
        assert world.words() == []
        assert world.words("webhook-ci") == ["Hello"]


async def test_with_an_allow_list_the_secret_alone_is_not_enough(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the senders of the list talk, as users of their own. Others get no code and are logged once."""
    async with HookWorld(
        inbox.url, "sqlite", tmp_path, [Reply("Yes.")] * 3, allow=["ci"]
    ) as world:
        await world.soon()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert not await world.request("As the owner")
                assert not await world.request("Me too", sender={"id": "mallory"})
        assert await world.request("Hello", sender={"id": "ci"})
        await world.until(lambda: inbox.taken("answer.finished"))
        assert world.words() == []
        assert world.words("webhook-ci") == ["Hello"]
        assert world.rows.pairings() == []
        assert len([line for line in caplog.messages if "may not talk" in line]) == 2
        assert "Me too" not in caplog.text


async def test_a_bad_request_is_logged_once_without_its_content(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad signature, an old timestamp and an unknown label have the same error, and a line each."""
    body = event("hunter2")
    async with HookWorld(inbox.url, "sqlite", tmp_path) as world:
        await world.soon()
        requests = [
            ("hook", sign(body, "hunter2", secret=OTHER_SECRET)),
            ("hook", sign(body, "hunter2", seconds=-400)),
            ("hook", sign(body, "hunter2", seconds=400)),
            ("hunter2", sign(body)),
        ]
        errors = []
        for label, headers in requests * 3:
            with pytest.raises(NotAuthorized) as caught:
                await world.gateway.take_request(label, headers, body, "10.0.0.1")
            errors.append(str(caught.value))
        assert set(errors) == {"The request is not authorized."}
        lines = [line for line in caplog.messages if "refused" in line]
        assert len(lines) == len(requests)
        assert "hunter2" not in caplog.text
        assert world.conversations() == []
        assert inbox.posts == []


async def test_the_state_shows_both_directions(inbox: Inbox, tmp_path: Path) -> None:
    """The account is connected without a request, and shows when something last came in and went out."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        await world.soon()
        await world.request("Hello")
        await world.until(lambda: read_states(world.config, world.rows)[0].sent_at)
        (state,) = read_states(world.config, world.rows)
        assert (state.state, state.name) == ("connected", "hook")
        assert 0 < state.received_at <= state.sent_at
        assert world.rows.people() == []
        assert LOCAL_USER in world.runtimes


async def test_a_bot_takes_no_requests(telegram: FakeTelegram, tmp_path: Path) -> None:
    """The address of another kind of account gets the same answer as an unknown one."""
    body = event("Hello")
    async with ChatWorld(telegram, "sqlite", tmp_path) as world:
        await world.until(lambda: world.rows.is_served(world.account))
        with pytest.raises(NotAuthorized, match="request is not authorized"):
            await world.gateway.take_request("telegram", sign(body), body, "a test")
        assert world.conversations() == []


async def test_while_the_secret_is_broken_a_sender_tries_again(tmp_path: Path) -> None:
    """Nothing is accepted and nothing is lost: the error is that of a store that is away."""
    body = event("Hello")
    async with HookWorld("", "sqlite", tmp_path) as world:
        settings = world.config.channels["hook"]
        broken = msgspec.structs.replace(settings, token=Secret("hunter2", "a test"))
        await world.gateway.configure(replace(world.config, channels={"hook": broken}))
        await world.until(
            lambda: read_states(world.config, world.rows)[0].state == "broken"
        )
        with pytest.raises(StoreUnavailable):
            await world.gateway.take_request("hook", sign(body), body, "a test")
