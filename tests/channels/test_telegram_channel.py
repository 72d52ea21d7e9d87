"""The bot on Telegram, against a fake Bot API that keeps the rules of the real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from tenax.channels.base import (
    Button,
    Chat,
    Edited,
    Invited,
    OutgoingFile,
    Person,
    Piece,
    Received,
    RemoteFile,
    Tapped,
    Update,
)
from tenax.channels.telegram.channel import TelegramChannel
from tenax.channels.telegram.format import Body, Entity
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ChannelRefused,
    ConfigError,
    FloodWait,
    InvalidInput,
    NotAuthorized,
    ReceivedElsewhere,
    SendUncertain,
)
from tests.support.telegram import ADA, BOB, Attachment, FakeTelegram, entity
from tests.support.telegram import Person as User

SECRET: Final = FakeTelegram.token.partition(":")[2]
BOT: Final = f"@{FakeTelegram.username}"
ADAS: Final = Chat(str(ADA.id), title="Ada")
MEGABYTE: Final = 1024 * 1024
PNG: Final = b"\x89PNG\r\n\x1a\n and some pixels"
OTHER_BOT: Final = User(9001, "Robot", "other_bot", is_bot=True)
Fail = Callable[[FakeTelegram], object]


def connect(telegram: FakeTelegram, **settings: Any) -> TelegramChannel:
    """Return a channel that uses the fake."""
    given_settings = {
        "token": telegram.token,
        "base_url": f"{telegram.url}/bot",
        "base_file_url": f"{telegram.url}/file/bot",
        **settings,
    }
    return TelegramChannel(**given_settings)


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as fake:
        yield fake


@pytest.fixture
async def channel(telegram: FakeTelegram) -> AsyncIterator[TelegramChannel]:
    """An open channel; Ada has started the bot."""
    telegram.add_person(ADA)
    found = connect(telegram)
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def hasty(telegram: FakeTelegram) -> AsyncIterator[TelegramChannel]:
    """A channel that waits for an answer only for a moment."""
    telegram.add_person(ADA)
    found = connect(telegram, poll_seconds=0, request_seconds=0.3)
    yield found
    await found.close()


async def receive(channel: TelegramChannel, cursor: str = "") -> list[Update]:
    """Return the updates of the next batch. Nothing is confirmed."""
    batches = channel.receive(cursor)
    try:
        return list((await anext(batches)).updates)
    finally:
        await batches.aclose()


async def receive_message(channel: TelegramChannel) -> Received:
    """Return the last message of the next batch."""
    found = (await receive(channel))[-1]
    assert isinstance(found, Received)
    return found


async def send(
    channel: TelegramChannel, markdown: str, chat: Chat = ADAS, **more: Any
) -> str:
    [piece] = channel.render(markdown)
    return await channel.send(chat, piece, key="k", **more)


@contextlib.asynccontextmanager
async def answering(
    *replies: bytes, times: int = 1
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that gives the replies in turn, with `PATH` for the path of the request. Yields its address."""
    left = list(replies * times)
    asked: list[bytes] = []

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head)
            path = head.split()[1]
            writer.write(left.pop(0).replace(b"PATH", path))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}", asked


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def result_answer(result: object) -> bytes:
    return http_answer(json.dumps({"ok": True, "result": result}).encode())


# -- sign in ---------------------------------------------------------------------------


async def test_signing_in_learns_the_name_and_sets_the_menu(
    telegram: FakeTelegram,
) -> None:
    """The account is known without a connection; the name and the menu of commands need one."""
    channel = connect(telegram, commands=[("new", "Start a new conversation")])
    assert (channel.account, channel.name) == (f"telegram:{telegram.bot_id}", "")
    await channel.open()
    assert channel.name == BOT
    assert telegram.commands == [
        {"command": "new", "description": "Start a new conversation"}
    ]
    await channel.close()


async def test_a_wrong_token_is_refused_with_advice(telegram: FakeTelegram) -> None:
    """Telegram does not know the token."""
    channel = connect(telegram, token=f"{telegram.bot_id}:{'B' * 35}")
    with pytest.raises(NotAuthorized, match="Set the token that @BotFather shows"):
        await channel.open()
    await channel.close()


@pytest.mark.parametrize(
    "token", ["", "hello", SECRET, f"123:{SECRET} x", f"bot123:{SECRET}", "123:short"]
)
def test_what_is_no_token_is_refused_at_once(token: str) -> None:
    """No connection is needed to see that a text is no token, and the error does not repeat the text."""
    with pytest.raises(InvalidInput, match="Copy the whole token") as raised:
        TelegramChannel(token)
    assert SECRET not in str(raised.value)


async def test_a_token_may_have_white_space_around(telegram: FakeTelegram) -> None:
    """A token copied with a line end works."""
    channel = connect(telegram, token=f" {telegram.token}\n")
    await channel.open()
    await channel.close()


async def test_an_absent_telegram_is_said_and_comes_back(
    telegram: FakeTelegram,
) -> None:
    """The same channel signs in when Telegram is there again."""
    channel = connect(telegram)
    telegram.away()
    with pytest.raises(ChannelAway, match="check the network"):
        await channel.open()
    telegram.back()
    await channel.open()
    assert channel.name == BOT
    await channel.close()


@pytest.mark.parametrize(
    "fail",
    [
        lambda telegram: telegram.fail("getMe", 500),
        lambda telegram: telegram.fail("getMe", 502),
        lambda telegram: telegram.fail("getMe", 400, description="Logged out"),
        lambda telegram: telegram.garbage_reply("getMe"),
        lambda telegram: telegram.drop_before("getMe"),
        lambda telegram: telegram.drop_after("getMe"),
        lambda telegram: telegram.fail("setMyCommands", 500),
    ],
)
async def test_every_disorder_at_the_sign_in_is_a_telegram_that_is_away(
    telegram: FakeTelegram, fail: Fail
) -> None:
    """Nothing that Telegram answers in disorder counts as a refused token."""
    fail(telegram)
    channel = connect(telegram, commands=[("new", "Start")])
    with pytest.raises(ChannelAway):
        await channel.open()
    await channel.open()
    await channel.close()


async def test_a_refused_menu_does_not_stop_the_bot(
    telegram: FakeTelegram, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its menu the bot works all the same, and the log says so."""
    channel = connect(telegram, commands=[("Not A Command", "x")])
    await channel.open()
    assert "cannot set the menu of commands" in caplog.text
    assert channel.name == BOT
    await channel.close()


# -- the token stays secret --------------------------------------------------------------


def assert_hidden(error: BaseException, log: str, *secrets: str) -> None:
    """Assert that neither an error with all its causes nor the log shows a secret."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + log
    for secret in secrets or (SECRET,):
        assert secret not in shown


@pytest.mark.parametrize(
    "fail",
    [
        lambda telegram: telegram.fail(status=500, description=telegram.token),
        lambda telegram: telegram.fail(
            status=400, description=f"/bot{telegram.token}/"
        ),
        lambda telegram: telegram.fail(status=401, description=f"bot123456%3A{SECRET}"),
        lambda telegram: telegram.fail(status=502),
        lambda telegram: telegram.fail(status=429),
        lambda telegram: telegram.garbage_reply(),
        lambda telegram: telegram.drop_before(),
        lambda telegram: telegram.away(),
        lambda telegram: telegram.away(reset=True),
    ],
)
async def test_no_failure_shows_the_token(
    telegram: FakeTelegram,
    hasty: TelegramChannel,
    caplog: pytest.LogCaptureFixture,
    fail: Fail,
) -> None:
    """Neither the errors of a failed request nor the most detailed logs of all libraries show the token."""
    caplog.set_level(logging.NOTSET)
    calls = [hasty.open(), receive(hasty), send(hasty, "Hello")]
    for call in calls:
        telegram.clear_faults()
        fail(telegram)
        with pytest.raises(ChannelError) as raised:
            await call
        assert_hidden(raised.value, caplog.text)
    assert "httpcore" in caplog.text
    assert SECRET not in repr(hasty)


async def test_the_logs_do_not_show_what_people_write(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even the most detailed logs of the libraries have the text of a message or of an answer."""
    caplog.set_level(logging.NOTSET)
    telegram.say("private words")
    await receive(channel)
    await send(channel, "private answer")
    assert "httpcore" in caplog.text
    assert "private" not in caplog.text


@pytest.mark.parametrize("location", ["https://api.test", "http://[", ""])
async def test_a_redirect_does_not_show_the_token_and_is_not_followed(
    caplog: pytest.LogCaptureFixture, location: str
) -> None:
    """A server in between that redirects repeats the address with the token."""
    caplog.set_level(logging.NOTSET)
    reply = http_answer(b"", "302 Found", f"Location: {location}PATH")
    async with answering(reply, times=3) as (url, asked):
        channel = TelegramChannel(
            FakeTelegram.token, base_url=f"{url}/bot", base_file_url=f"{url}/file/bot"
        )
        for call in (channel.open(), receive(channel), send(channel, "Hello")):
            with pytest.raises((ChannelAway, SendUncertain)) as raised:
                await call
            assert_hidden(raised.value, caplog.text)
        assert SECRET.encode() in asked[0]
        assert len(asked) == 3
        await channel.close()


async def test_a_proxy_is_used_and_shows_neither_token_nor_password(
    telegram: FakeTelegram,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The proxy of the environment carries the requests to other machines."""
    caplog.set_level(logging.NOTSET)
    proxy = telegram.url.replace("://", "://me:hunter22@")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    channel = connect(telegram, base_url="http://api.test/bot")
    await channel.open()
    assert channel.name == BOT
    await channel.close()
    # The fake makes no tunnels, so the request is not sent.
    channel = connect(telegram, base_url="https://api.test/bot")
    with pytest.raises(ChannelAway) as raised:
        await send(channel, "Hello")
    assert_hidden(raised.value, caplog.text, SECRET, "hunter22")
    await channel.close()


@pytest.mark.parametrize(
    "proxy", ["socks9://me:hunter22@h:1", "http://me:hunter22@h:x"]
)
async def test_an_unusable_proxy_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """The error names the setting, and not the address with the password."""
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as raised:
        TelegramChannel(FakeTelegram.token)
    assert_hidden(raised.value, "", "hunter22", SECRET)


# -- receiving -------------------------------------------------------------------------


async def test_a_message_comes_with_its_chat_and_its_sender(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The ids are Telegram's, as texts; the name is for display."""
    number = telegram.say("Hello 🙂", sender=BOB)
    assert await receive(channel) == [
        Received(
            id=f"m:{BOB.id}:{number}",
            chat=Chat(str(BOB.id), title="Bob"),
            sender=Person(str(BOB.id), "Bob"),
            message=str(number),
            text="Hello 🙂",
        )
    ]


async def test_a_batch_is_confirmed_only_when_the_next_one_is_requested(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A program that ends between two batches gets the first one again."""
    telegram.say("one")
    telegram.say("two")
    batches = channel.receive("")
    first = await anext(batches)
    assert telegram.confirmed == 0
    assert len(telegram.pending) == 2
    await batches.aclose()
    again = connect(telegram)
    batches = again.receive("")
    assert await anext(batches) == first
    waiting = asyncio.ensure_future(anext(batches))
    await telegram.wait(lambda: telegram.confirmed == telegram.last_update + 1)
    assert telegram.pending == []
    telegram.say("three")
    [third] = (await waiting).updates
    assert isinstance(third, Received)
    assert third.text == "three"
    await batches.aclose()
    await again.close()


async def test_receiving_goes_on_after_the_stored_cursor(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """What the caller has stored does not come again, and what came since the cursor does."""
    telegram.say("one")
    batches = channel.receive("")
    cursor = (await anext(batches)).cursor
    await batches.aclose()
    telegram.say("two")
    [second] = await receive(channel, cursor)
    assert isinstance(second, Received)
    assert second.text == "two"
    assert telegram.confirmed == int(cursor)


async def test_many_waiting_messages_come_in_batches_and_in_order(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram gives at most 100 updates at once."""
    for number in range(230):
        telegram.say(str(number))
    texts = []
    async for batch in channel.receive(""):
        texts += [
            update.text for update in batch.updates if isinstance(update, Received)
        ]
        if len(texts) >= 230:
            break
    assert texts == [str(number) for number in range(230)]
    assert telegram.polls == 3


async def test_a_repeated_update_has_the_same_id(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A message, an edit and a tap that come five times are five times the same value."""
    number = telegram.say("one")
    telegram.edit(number, "two")
    telegram.tap(number, data="yes")
    telegram.repeat_updates(5)
    found = await receive(channel)
    assert len(found) == 15
    assert len({update.id for update in found}) == 3
    assert len({msgspec.json.encode(update) for update in found}) == 3


async def test_an_old_update_that_comes_again_moves_nothing(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A confirmed update may come again; the later ones follow all the same."""
    telegram.say("one")
    first = telegram.last_update
    telegram.say("two")
    batches = channel.receive("")
    await anext(batches)
    telegram.repeat(first)
    assert [update.id for update in (await anext(batches)).updates] == [f"m:{ADA.id}:1"]
    telegram.say("three")
    assert [update.id for update in (await anext(batches)).updates] == [f"m:{ADA.id}:3"]
    await batches.aclose()


async def test_updates_in_the_wrong_order_are_put_in_order(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The cursor is after the last one, whatever the order in the answer is."""
    for text in ("one", "two", "three"):
        telegram.say(text)
    telegram.reverse_updates()
    batches = channel.receive("")
    batch = await anext(batches)
    await batches.aclose()
    assert [
        update.text for update in batch.updates if isinstance(update, Received)
    ] == [
        "one",
        "two",
        "three",
    ]
    assert batch.cursor == str(telegram.last_update + 1)


async def test_update_ids_may_start_again_at_a_low_number(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """After a week without updates the ids start anywhere; the stored cursor is far above them then."""
    telegram.say("low", update_id=1000)
    batches = channel.receive("500000002")
    batch = await anext(batches)
    assert [update.id for update in batch.updates] == [f"m:{ADA.id}:1"]
    assert batch.cursor == "1001"
    waiting = asyncio.ensure_future(anext(batches))
    await telegram.wait(lambda: telegram.pending == [])
    telegram.say("next")
    assert (await waiting).cursor == "1002"
    await batches.aclose()


async def test_an_update_without_a_usable_id_never_becomes_the_cursor(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A negative offset would make Telegram forget updates that nobody has stored."""
    telegram.push("message", {"text": "bad"}, update_id=-5)
    with pytest.raises(ChannelAway, match="unknown form"):
        await receive(channel)
    telegram.say("good", update_id=7)
    batches = channel.receive("")
    batch = await anext(batches)
    assert (len(batch.updates), batch.cursor) == (1, "8")
    await batches.aclose()


async def test_updates_that_cannot_be_read_are_left_out_and_logged_without_their_text(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Garbage between messages stops nothing, and is confirmed like everything else."""
    caplog.set_level(logging.INFO)
    telegram.say("before")
    telegram.garbage()
    telegram.push("message", {"message_id": "secret words", "date": []})
    telegram.push("message", ["secret words"])
    telegram.push("callback_query", {"id": 1, "data": "secret words"})
    telegram.push("edited_message", None)
    telegram.say("after")
    batches = channel.receive("")
    batch = await anext(batches)
    await batches.aclose()
    texts = [update.text for update in batch.updates if isinstance(update, Received)]
    assert texts == ["before", "after"]
    assert batch.cursor == str(telegram.last_update + 1)
    assert "Cannot read update" in caplog.text
    assert "of an unknown kind" in caplog.text
    assert "secret words" not in caplog.text


def test_every_idle_poll_gives_an_empty_batch(telegram: FakeTelegram) -> None:
    """An empty batch says that the line is alive, and leaves the cursor as it is."""

    async def poll() -> None:
        channel = connect(telegram, poll_seconds=0)
        batches = channel.receive("17")
        for _ in range(3):
            batch = await anext(batches)
            assert (batch.updates, batch.cursor) == ((), "17")
        await batches.aclose()
        await channel.close()

    asyncio.run(poll())


@pytest.mark.parametrize("cursor", ["-5", "1e3", "abc", "٣", " 1"])
async def test_a_cursor_that_is_no_number_is_refused(
    telegram: FakeTelegram, channel: TelegramChannel, cursor: str
) -> None:
    """Nothing is requested with such a cursor."""
    with pytest.raises(InvalidInput, match="Start again with an empty cursor"):
        await receive(channel, cursor)
    assert telegram.polls == 0


async def test_a_second_program_with_the_token_is_said(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram ends the first of two polls. The one that goes on gets the updates."""
    first = asyncio.ensure_future(receive(channel))
    await telegram.wait(lambda: telegram.waiting_polls == 1)
    other = connect(telegram)
    second = asyncio.ensure_future(receive(other))
    with pytest.raises(ReceivedElsewhere, match="Stop the other program"):
        await first
    telegram.say("hello")
    assert len(await second) == 1
    assert telegram.conflicts == 1
    await other.close()


async def test_a_webhook_of_the_bot_is_said(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """With a webhook, Telegram gives a poll nothing; the advice names the way out."""
    why = "Conflict: can't use getUpdates method while webhook is active"
    telegram.fail("getUpdates", 409, description=why)
    with pytest.raises(ReceivedElsewhere, match="deleteWebhook"):
        await receive(channel)


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (lambda telegram: telegram.fail("getUpdates", 401), NotAuthorized),
        (lambda telegram: telegram.fail("getUpdates", 400), ChannelAway),
        (lambda telegram: telegram.fail("getUpdates", 500), ChannelAway),
        (lambda telegram: telegram.fail("getUpdates", 502), ChannelAway),
        (lambda telegram: telegram.drop_before("getUpdates"), ChannelAway),
        (lambda telegram: telegram.drop_after("getUpdates"), ChannelAway),
        (lambda telegram: telegram.garbage_reply("getUpdates"), ChannelAway),
    ],
)
async def test_a_failed_poll_loses_nothing(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    fail: Fail,
    error: type[ChannelError],
) -> None:
    """The next poll brings what the failed one did not."""
    telegram.say("hello")
    fail(telegram)
    with pytest.raises(error):
        await receive(channel)
    assert len(await receive(channel)) == 1


async def test_a_poll_ends_when_telegram_goes_away(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A waiting poll notices that the connection is gone."""
    waiting = asyncio.ensure_future(receive(channel))
    await telegram.wait(lambda: telegram.waiting_polls == 1)
    telegram.away()
    with pytest.raises(ChannelAway):
        await waiting


async def test_a_poll_that_hangs_is_given_up(
    telegram: FakeTelegram, hasty: TelegramChannel
) -> None:
    """Without any answer the poll ends by itself, and the next one works."""
    fault = telegram.hang("getUpdates")
    with pytest.raises(ChannelAway, match="Timeout"):
        await receive(hasty)
    fault.release()
    assert await receive(hasty) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"null",
        b"[]",
        b'{"ok": true}',
        b'{"ok": true, "result": {"a": 1}}',
        b'{"ok": true, "result": ["x", 3, null]}',
        b'{"ok": true, "result": [{"update_id": true}]}',
        b'{"ok": true, "result": [{"update_id": 1e999}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"",
    ],
)
async def test_an_answer_of_another_form_is_a_telegram_that_is_away(
    answer: bytes,
) -> None:
    """Whatever a server in between answers, it confirms nothing and breaks nothing."""
    async with answering(http_answer(answer)) as (url, _):
        channel = TelegramChannel(FakeTelegram.token, base_url=f"{url}/bot")
        with pytest.raises(ChannelAway):
            await receive(channel)
        await channel.close()


async def test_closing_ends_a_poll_and_refuses_the_rest(
    telegram: FakeTelegram,
) -> None:
    """A closed channel raises the errors of the contract, and may be closed again."""
    channel = connect(telegram)
    waiting = asyncio.ensure_future(receive(channel))
    await telegram.wait(lambda: telegram.waiting_polls == 1)
    await channel.close()
    with pytest.raises(ChannelAway):
        await waiting
    with pytest.raises(ChannelAway, match="closed"):
        await send(channel, "Hello")
    await channel.close()


# -- what people write -------------------------------------------------------------------


async def test_a_command_and_code_and_links_become_markdown(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """What the formatting says and the text does not, is kept as Markdown."""
    text = "🙂 run ls -l or see the docs:\nprint(1)"
    telegram.say(
        text,
        entities=[
            entity("code", text, "ls -l"),
            entity("text_link", text, "docs", url="https://example.com/a b"),
            entity("bold", text, "run"),
            entity("pre", text, "print(1)", language="python"),
        ],
    )
    assert (await receive_message(channel)).text == (
        "🙂 run `ls -l` or see the [docs](https://example.com/a%20b):\n```python\nprint(1)\n```"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{BOT} hello", "hello"),
        (f"{BOT.upper()}, hello", "hello"),
        (f"hello {BOT}", "hello"),
        (f"/new{BOT} now", "/new now"),
        ("/new@other_bot now", "/new@other_bot now"),
        ("mail me@tenax_test_bot.example", "mail me@tenax_test_bot.example"),
        (BOT, ""),
    ],
)
async def test_the_name_of_the_bot_is_no_part_of_the_text(
    telegram: FakeTelegram, channel: TelegramChannel, text: str, shown: str
) -> None:
    """A mention only says who is meant."""
    telegram.say(text)
    assert (await receive_message(channel)).text == shown


async def test_what_is_quoted_or_forwarded_is_said(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A reply quotes a message of a person, and not one of the bot; a forwarded message names its origin."""
    mine = await send(channel, "I am the bot")
    first = telegram.say("The plan\nis old")
    telegram.say("Is it?", reply_to=first)
    telegram.say("Are you?", reply_to=int(mine))
    replied = [
        update for update in await receive(channel) if isinstance(update, Received)
    ]
    assert [update.text for update in replied[-2:]] == [
        "> The plan\n> is old\n\nIs it?",
        "Are you?",
    ]
    assert [update.reply_to for update in replied[-2:]] == [str(first), mine]


FORWARDS: Final = [
    ({"type": "user", "sender_user": BOB.json()}, "Bob"),
    ({"type": "hidden_user", "sender_user_name": "X [ok]\nY"}, "X (ok) Y"),
    ({"type": "chat", "sender_chat": {"id": -5, "type": "group", "title": "G"}}, "G"),
    (
        {
            "type": "channel",
            "chat": {"id": -6, "type": "channel", "title": "News"},
            "message_id": 3,
        },
        "News",
    ),
]
CONTENTS: Final = [
    (
        "location",
        {"latitude": 48.1, "longitude": 11.5},
        "[Location: 48.100000, 11.500000]",
    ),
    (
        "contact",
        {"phone_number": "+1", "first_name": "Eve", "last_name": "]x["},
        "[Contact: Eve )x(, +1]",
    ),
    ("dice", {"emoji": "🎲", "value": 4}, "[Dice: 🎲 4]"),
    (
        "sticker",
        {
            "file_id": "s",
            "file_unique_id": "u",
            "type": "regular",
            "width": 1,
            "height": 1,
            "is_animated": False,
            "is_video": False,
            "emoji": "👍",
        },
        "[Sticker 👍]",
    ),
]


def message_of(telegram: FakeTelegram, **more: Any) -> dict[str, Any]:
    """Return a message of Ada in the form of the Bot API."""
    chat = {"id": ADA.id, "type": "private", "first_name": ADA.first_name}
    telegram.add_person(ADA)
    return {"message_id": 900, "date": 1, "from": ADA.json(), "chat": chat, **more}


@pytest.mark.parametrize(("origin", "name"), FORWARDS)
async def test_a_forwarded_message_names_its_origin(
    telegram: FakeTelegram, channel: TelegramChannel, origin: dict[str, Any], name: str
) -> None:
    """The name is written by somebody else, so it cannot end the line."""
    origin = {"date": 1, **origin}
    telegram.push("message", message_of(telegram, text="Hi", forward_origin=origin))
    assert (await receive_message(channel)).text == f"[Forwarded from {name}]\nHi"


@pytest.mark.parametrize(("field", "value", "line"), CONTENTS)
async def test_other_contents_are_described_in_a_line(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    field: str,
    value: dict[str, Any],
    line: str,
) -> None:
    """The model reads what a picture of a phone would show."""
    telegram.push("message", message_of(telegram, **{field: value}))
    assert (await receive_message(channel)).text == line


@pytest.mark.parametrize(
    "change",
    [
        {"new_chat_title": "x"},
        {"new_chat_members": [BOB.json()]},
        {"left_chat_member": BOB.json()},
        {"migrate_to_chat_id": -100},
        {},
    ],
)
async def test_changes_of_a_chat_are_no_messages(
    telegram: FakeTelegram, channel: TelegramChannel, change: dict[str, Any]
) -> None:
    """Nobody has said something."""
    telegram.push("message", message_of(telegram, **change))
    assert await receive(channel) == []


async def test_an_edit_has_an_id_of_its_own(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Each of two edits within a second is an update; the message is the same."""
    number = telegram.say("one")
    telegram.edit(number, "two")
    telegram.edit(number, "three")
    first, second, third = await receive(channel)
    assert isinstance(first, Received)
    assert isinstance(second, Edited)
    assert isinstance(third, Edited)
    assert (second.message, second.text) == (first.message, "two")
    assert (third.message, third.text) == (first.message, "three")
    assert len({first.id, second.id, third.id}) == 3
    assert second.sender.id == str(ADA.id)


async def test_an_edited_caption_is_an_edit_and_a_moving_location_is_none(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram reports both as edits."""
    number = telegram.say("old", files=[Attachment.photo(b"x")])
    telegram.edit(number, "new")
    moved = message_of(telegram, location={"latitude": 1.0, "longitude": 2.0})
    telegram.push("edited_message", {**moved, "edit_date": 5})
    _, edited = await receive(channel)
    assert isinstance(edited, Edited)
    assert edited.text == "new"


async def test_a_deleted_account_still_has_an_id(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A deleted account has no name: its id is shown instead."""
    ghost = {"id": 666, "is_bot": False, "first_name": ""}
    chat = {"id": 666, "type": "private"}
    message = message_of(telegram, text="Boo") | {"from": ghost, "chat": chat}
    telegram.push("message", message)
    told = {"type": "user", "date": 1, "sender_user": ghost}
    telegram.push("message", {**message, "message_id": 901, "forward_origin": told})
    first, second = await receive(channel)
    assert isinstance(first, Received)
    assert isinstance(second, Received)
    assert first.chat == Chat("666")
    assert first.sender == Person("666", "666")
    assert second.text == "[Forwarded from an unknown sender]\nBoo"


async def test_names_and_texts_of_people_are_storable(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Half a surrogate pair, NUL and line ends in a name do no harm."""
    person = User(7003, "A\ud83d\nb\u202e", "mallory")
    telegram.say("x\x00y\ud83d", sender=person)
    found = await receive_message(channel)
    assert found.text == "x\ufffdy\ufffd"
    assert found.sender.name == "A\ufffd b\ufffd"
    assert found.chat.title == "A\ufffd b\ufffd"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Received) == found


JSON_VALUES: Final = [
    None,
    0,
    -1,
    "",
    "x",
    "\ud800",
    [],
    {},
    [None],
    {"id": 1},
    True,
    3.5,
    1e308,
    10**18,
]


def places_in(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON value."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places_in(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places_in(inner, (*path, index))


def replaced(value: Any, path: Sequence[Any], new: object) -> Any:
    """Return a JSON value with another value at a path."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = json.loads(json.dumps(new))
    return copy


RICH: Final[dict[str, Any]] = {
    "message_id": 5,
    "date": 1,
    "edit_date": 2,
    "message_thread_id": 4,
    "is_topic_message": True,
    "from": ADA.json(),
    "chat": {"id": -100, "type": "supergroup", "title": "G", "is_forum": True},
    "text": f"/new hello {BOT} link",
    "entities": [
        {"type": "bot_command", "offset": 0, "length": 4},
        {"type": "mention", "offset": 11, "length": len(BOT)},
        {"type": "text_link", "offset": 28, "length": 4, "url": "https://a.b"},
    ],
    "reply_to_message": {
        "message_id": 3,
        "date": 1,
        "from": BOB.json(),
        "chat": {"id": -100, "type": "supergroup", "title": "G"},
        "text": "Before",
    },
    "quote": {"text": "Bef", "position": 0},
    "forward_origin": {"type": "user", "date": 1, "sender_user": BOB.json()},
    "document": {
        "file_id": "f",
        "file_unique_id": "u",
        "file_name": "a",
        "file_size": 3,
    },
    "photo": [{"file_id": "p", "file_unique_id": "q", "width": 3, "height": 4}],
}
TAP: Final[dict[str, Any]] = {
    "id": "9",
    "from": ADA.json(),
    "chat_instance": "1",
    "data": "a:1",
    "message": {key: RICH[key] for key in ("message_id", "date", "from", "chat")},
}
UPDATES: Final = [("message", RICH), ("edited_message", RICH), ("callback_query", TAP)]
PLACES: Final = [
    (kind, content, path)
    for kind, content in UPDATES
    for path in places_in(content)
    if path
]


async def test_no_damaged_update_stops_the_others(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Whatever is wrong in an update, the message after it comes, and every value can be stored."""
    for kind, content, path in PLACES:
        for new in JSON_VALUES:
            telegram.push(kind, replaced(content, path, new))
    telegram.say("the end")
    found: list[Update] = []
    async for batch in channel.receive(""):
        found += batch.updates
        if batch.cursor == str(telegram.last_update + 1):
            break
    last = found.pop()
    assert isinstance(last, Received)
    assert last.text == "the end"
    assert len(found) > len(PLACES)
    for update in found:
        stored = msgspec.json.encode(update)
        assert msgspec.json.decode(stored, type=type(update)) == update
        assert not isinstance(update, Invited)
        ids = [update.chat.id, update.message]
        assert all(number.lstrip("-").isdecimal() for number in ids)


# -- groups and topics -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_addressed"),
    [
        ("hello", False),
        (f"hello {BOT}", True),
        (f"hello {BOT.upper()}!", True),
        ("hello @other_bot", False),
        (f"hello {BOT}x", False),
        ("/new", True),
        (f"/new{BOT}", True),
        (f"/NEW{BOT.upper()}", True),
        ("/new@other_bot", False),
        (f"/new@other_bot {BOT}", False),
        ("please /new", False),
    ],
)
async def test_a_group_addresses_the_bot_by_mention_or_command(
    telegram: FakeTelegram, channel: TelegramChannel, text: str, is_addressed: bool
) -> None:
    """A command for another bot is not for this one, and neither is what people say to each other."""
    group = telegram.add_group("Friends")
    telegram.say(text, chat=group, sender=BOB)
    found = await receive_message(channel)
    assert found.is_addressed == is_addressed
    assert found.chat == Chat(str(group), title="Friends", is_group=True)


async def test_a_reply_to_the_bot_addresses_the_bot(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A reply to somebody else does not."""
    group = telegram.add_group()
    mine = await send(channel, "I am here", Chat(str(group), is_group=True))
    other = telegram.say("me too", chat=group, sender=BOB)
    telegram.say("good", chat=group, reply_to=int(mine))
    telegram.say("good", chat=group, reply_to=other)
    _, to_bot, to_bob = await receive(channel)
    assert isinstance(to_bot, Received)
    assert isinstance(to_bob, Received)
    assert (to_bot.is_addressed, to_bot.reply_to) == (True, mine)
    assert (to_bob.is_addressed, to_bob.reply_to) == (False, str(other))


async def test_a_mention_in_a_caption_or_by_name_addresses_the_bot(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A caption counts like a text; a mention may also be a name with the id of the bot."""
    group = telegram.add_group()
    photo = [Attachment.photo(b"x")]
    telegram.say(f"{BOT} what is this?", chat=group, files=photo)
    telegram.say("just a photo", chat=group, files=photo)
    bot = {"id": telegram.bot_id, "is_bot": True, "first_name": "Tenax"}
    named = [entity("text_mention", "Tenax, hello", "Tenax", user=bot)]
    telegram.say("Tenax, hello", chat=group, entities=named)
    first, second, third = await receive(channel)
    assert isinstance(first, Received)
    assert isinstance(second, Received)
    assert isinstance(third, Received)
    assert (first.is_addressed, first.text) == (True, "what is this?")
    assert not second.is_addressed
    assert (third.is_addressed, third.text) == (True, "hello")


async def test_a_forwarded_command_is_no_command_in_a_group(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Somebody else gave the command, somewhere else."""
    group = telegram.add_group()
    message = message_of(
        telegram, text="/new", entities=[entity("bot_command", "/new", "/new")]
    )
    message["chat"] = {"id": group, "type": "supergroup", "title": "Group"}
    origin = {"type": "user", "date": 1, "sender_user": BOB.json()}
    telegram.push("message", {**message, "forward_origin": origin})
    found = await receive_message(channel)
    assert not found.is_addressed
    assert not found.text.startswith("/")


async def test_bots_and_nameless_senders_are_marked(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Another bot, an anonymous administrator and a channel are no people to whom the bot answers."""
    group = telegram.add_group()
    telegram.say(f"{BOT} hello", chat=group, sender=OTHER_BOT)
    message = message_of(telegram, text="hello")
    message["chat"] = {"id": group, "type": "supergroup", "title": "Group"}
    telegram.push("message", {**message, "sender_chat": message["chat"]})
    del message["from"]
    telegram.push("message", message)
    found = [
        update for update in await receive(channel) if isinstance(update, Received)
    ]
    assert [update.sender for update in found] == [
        Person(str(OTHER_BOT.id), "Robot", is_bot=True),
        Person(str(group), "Group", is_bot=True),
    ]


async def test_a_topic_of_a_forum_is_a_thread(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The first message in a topic is no reply, a reply inside stays in the thread, and answers go there."""
    forum = telegram.add_group("Forum", forum=True)
    topic = telegram.add_topic(forum, "Plans")
    telegram.say("general", chat=forum)
    first = telegram.say("inside", chat=forum, thread=topic)
    telegram.say("reply", chat=forum, thread=topic, reply_to=first)
    found = [
        update for update in await receive(channel) if isinstance(update, Received)
    ]
    assert [update.chat.thread for update in found] == ["", str(topic), str(topic)]
    assert [update.reply_to for update in found] == ["", "", str(first)]
    await send(channel, "answer", found[1].chat)
    await channel.show_typing(found[1].chat)
    assert telegram.messages(forum)[-1].thread == topic
    assert telegram.sent[-1].integer("message_thread_id") == topic


async def test_a_reply_in_an_ordinary_group_is_in_no_thread(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram numbers the threads of replies everywhere; only those of a forum are topics."""
    group = telegram.add_group()
    first = telegram.say("one", chat=group)
    telegram.say("two", chat=group, reply_to=first)
    assert telegram.messages(group)[-1].thread == first
    assert {update.chat.thread for update in await receive(channel)} == {""}


@pytest.mark.parametrize(
    ("is_forum", "more"), [(True, {}), (False, {"is_topic_message": True})]
)
async def test_a_stray_thread_number_is_no_thread(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    is_forum: bool,
    more: dict[str, Any],
) -> None:
    """A thread needs a forum and a message in a topic; a reply in the general topic only has a number."""
    message = message_of(telegram, text="hello", message_thread_id=5, **more)
    chat = {"id": -100, "type": "supergroup", "title": "G", "is_forum": is_forum}
    telegram.push("message", {**message, "chat": chat})
    assert (await receive_message(channel)).chat == Chat("-100", "", "G", is_group=True)


async def test_a_topic_of_a_private_chat_is_a_thread(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Bots can have topics in private chats, too."""
    topic = telegram.add_topic(name="Work")
    telegram.say("hello", thread=topic)
    found = await receive_message(channel)
    assert found.chat == Chat(str(ADA.id), str(topic), "Ada")
    assert found.is_addressed
    await send(channel, "answer", found.chat)
    assert telegram.messages()[-1].thread == topic


async def test_a_topic_that_is_gone_is_refused(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The answer cannot be written there any more."""
    forum = telegram.add_group(forum=True)
    with pytest.raises(ChannelRefused, match="topic"):
        await send(channel, "answer", Chat(str(forum), "77", is_group=True))


# -- files that people send --------------------------------------------------------------


async def test_a_document_a_photo_and_a_voice_note_can_be_fetched(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Each has a name, a size and a type; of a photo the largest size counts."""
    telegram.say("see", files=[Attachment.document("a.txt", b"words", "text/plain")])
    telegram.say(files=[Attachment.photo(b"many pixels")])
    telegram.say(files=[Attachment.voice(b"sound")])
    found = [
        update for update in await receive(channel) if isinstance(update, Received)
    ]
    files = [update.files[0] for update in found]
    assert [
        (file.name, file.size, file.media_type, file.is_voice) for file in files
    ] == [
        ("a.txt", 5, "text/plain", False),
        ("photo-2.jpg", 11, "image/jpeg", False),
        ("voice-3.oga", 5, "audio/ogg", True),
    ]
    assert [update.text for update in found] == ["see", "", ""]
    assert [await channel.fetch(file) for file in files] == [
        b"words",
        b"many pixels",
        b"sound",
    ]


async def test_an_album_is_a_message_for_every_file(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram sends an album as single messages, the caption on the first one."""
    telegram.say("trip", files=[Attachment.photo(b"1"), Attachment.photo(b"2")])
    found = [
        update for update in await receive(channel) if isinstance(update, Received)
    ]
    assert [update.text for update in found] == ["trip", ""]
    assert [await channel.fetch(update.files[0]) for update in found] == [b"1", b"2"]
    assert len({update.id for update in found}) == 2


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../../etc/passwd", "passwd"), ("a\nb\u202e.txt", "a b .txt"), ("..", "unnamed")],
)
async def test_a_file_name_is_only_a_name(
    telegram: FakeTelegram, channel: TelegramChannel, name: str, shown: str
) -> None:
    """A name of a person cannot be a path."""
    telegram.say(files=[Attachment.document(name, b"x")])
    assert (await receive_message(channel)).files[0].name == shown


async def test_a_file_that_is_too_large_is_refused_before_it_is_requested(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Bots can fetch 20 MB; the error says both sizes."""
    telegram.say(files=[Attachment.document("film.mp4", b"x", size=21 * MEGABYTE)])
    [file] = (await receive_message(channel)).files
    with pytest.raises(ChannelRefused, match=r"at most 20 MB, and the file has 21 MB"):
        await channel.fetch(file)
    assert telegram.calls("getFile") == 0
    unknown = msgspec.structs.replace(file, size=0)
    with pytest.raises(ChannelRefused, match="Use a smaller file"):
        await channel.fetch(unknown)


async def test_a_file_of_twenty_megabytes_comes_and_a_larger_one_is_cut_off(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A file may be larger than Telegram says; no more than the limit is read."""
    whole = b"x" * (20 * MEGABYTE)
    telegram.say(files=[Attachment.document("whole", whole)])
    telegram.say(files=[Attachment.document("liar", whole + b"x", size=10)])
    first, second = (
        update for update in await receive(channel) if isinstance(update, Received)
    )
    assert await channel.fetch(first.files[0]) == whole
    with pytest.raises(ChannelRefused, match="too big"):
        await channel.fetch(second.files[0])


@pytest.mark.parametrize(
    ("fail", "error", "advice"),
    [
        (lambda telegram: telegram.fail("download", 404), ChannelRefused, "again"),
        (lambda telegram: telegram.fail("download", 502), ChannelAway, "Wait"),
        (lambda telegram: telegram.fail("download", 500), ChannelAway, "Wait"),
        (lambda telegram: telegram.drop_before("download"), ChannelAway, "Wait"),
        (lambda telegram: telegram.fail("getFile", 500), ChannelAway, "Wait"),
        (
            lambda telegram: telegram.fail(
                "getFile",
                400,
                description="Bad Request: wrong file_id or the file is temporarily unavailable",
            ),
            ChannelAway,
            "Wait",
        ),
        (
            lambda telegram: telegram.fail(
                "getFile", 400, description="invalid file_id"
            ),
            ChannelRefused,
            "Send the file again",
        ),
    ],
)
async def test_a_failed_download_says_whether_it_may_work_later(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    fail: Fail,
    error: type[ChannelError],
    advice: str,
) -> None:
    """A file that is gone stays gone; everything else is worth another try."""
    telegram.say(files=[Attachment.document("a", b"words")])
    [file] = (await receive_message(channel)).files
    fail(telegram)
    with pytest.raises(error, match=advice):
        await channel.fetch(file)
    assert await channel.fetch(file) == b"words"


@pytest.mark.parametrize("status", ["302 Found", "403 Forbidden", "407 Proxy"])
async def test_a_page_instead_of_a_file_is_a_telegram_that_is_away(status: str) -> None:
    """A proxy that wants a password says nothing about the file."""
    found = {"file_id": "f", "file_unique_id": "u", "file_path": "a/b"}
    page = http_answer(b"<html>", status, "Location: http://wifi.test/")
    async with answering(result_answer(found), page) as (url, _):
        channel = TelegramChannel(
            FakeTelegram.token, base_url=f"{url}/bot", base_file_url=f"{url}/file/bot"
        )
        with pytest.raises(ChannelAway):
            await channel.fetch(RemoteFile("f", "name"))
        await channel.close()


@pytest.mark.parametrize("path", ["/etc/hostname", "", None])
async def test_a_path_on_this_machine_is_never_read(path: str | None) -> None:
    """A Bot API server of one's own may answer with the path of a local file."""
    found = {"file_id": "f", "file_unique_id": "u", "file_path": path}
    async with answering(result_answer(found), http_answer(b"", "404 Not Found")) as (
        url,
        asked,
    ):
        channel = TelegramChannel(
            FakeTelegram.token, base_url=f"{url}/bot", base_file_url=f"{url}/file/bot"
        )
        with pytest.raises(ChannelRefused):
            await channel.fetch(RemoteFile("f", "name"))
        assert len(asked) == 1
        await channel.close()


# -- sending ---------------------------------------------------------------------------


async def test_a_message_goes_out_with_its_formatting(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The chat shows formatted text without a preview of links."""
    number = await send(channel, "🙂 **Hello** [Ada](https://a.example)")
    [message] = telegram.messages()
    assert (str(message.id), message.text) == (number, "🙂 Hello Ada")
    assert [found["type"] for found in message.entities] == ["bold", "text_link"]
    assert telegram.sent[-1].parameters["link_preview_options"] == {"is_disabled": True}


async def test_a_reply_goes_out_even_if_its_message_is_gone(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The message to which the bot replies may have been deleted in the meantime."""
    first = telegram.say("one")
    await send(channel, "first", reply_to=str(first))
    telegram.delete(first)
    await send(channel, "second", reply_to=str(first))
    found = {message.text: message.reply_to for message in telegram.messages()}
    assert found == {"first": first, "second": None}


REFUSALS: Final[list[tuple[Fail, type[ChannelError], str, int]]] = [
    (lambda telegram: telegram.away(), ChannelAway, "check the network", 0),
    (lambda telegram: telegram.fail("sendMessage", 401), NotAuthorized, "BotFather", 0),
    (lambda telegram: telegram.fail("sendMessage", 500), SendUncertain, "Look into", 0),
    (lambda telegram: telegram.fail("sendMessage", 502), SendUncertain, "Look into", 0),
    (
        lambda telegram: telegram.drop_before("sendMessage"),
        SendUncertain,
        "no answer",
        0,
    ),
    (
        lambda telegram: telegram.drop_after("sendMessage"),
        SendUncertain,
        "no answer",
        1,
    ),
    (
        lambda telegram: telegram.garbage_reply("sendMessage"),
        SendUncertain,
        "no answer",
        1,
    ),
    (lambda telegram: telegram.flood(ADA.id, 17), FloodWait, "17 seconds", 0),
    (lambda telegram: telegram.fail("sendMessage", 429), FloodWait, "10 seconds", 0),
    (lambda telegram: telegram.block(), ChannelRefused, "Start the bot again", 0),
    (
        lambda telegram: telegram.fail(
            "sendMessage", 403, description="Forbidden: user is deactivated"
        ),
        ChannelRefused,
        "Start the bot again",
        0,
    ),
    (
        lambda telegram: telegram.fail(
            "sendMessage",
            403,
            description="Forbidden: bot can't initiate conversation with a user",
        ),
        ChannelRefused,
        "write to the bot first",
        0,
    ),
    (
        lambda telegram: telegram.fail(
            "sendMessage",
            400,
            description="Bad Request: not enough rights to send text",
        ),
        ChannelRefused,
        "Allow the bot to write",
        0,
    ),
]


@pytest.mark.parametrize(("fail", "error", "advice", "arrived"), REFUSALS)
async def test_a_failed_send_says_whether_it_may_have_arrived(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    fail: Fail,
    error: type[ChannelError],
    advice: str,
    arrived: int,
) -> None:
    """Only where the message may be in the chat is the send uncertain."""
    fail(telegram)
    with pytest.raises(ChannelError, match=advice) as raised:
        await send(channel, "Hello")
    assert type(raised.value) is error or error is ChannelRefused
    assert isinstance(raised.value, error)
    assert len(telegram.texts()) == arrived


async def test_a_send_that_hangs_is_uncertain(
    telegram: FakeTelegram, hasty: TelegramChannel
) -> None:
    """Telegram may act after the channel has given up."""
    fault = telegram.hang("sendMessage")
    with pytest.raises(SendUncertain, match="Timeout"):
        await send(hasty, "Hello")
    fault.release()
    await telegram.wait(lambda: telegram.texts() == ["Hello"])


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [
        ({"retry_after": 35}, 35),
        ({"retry_after": 7740}, 7740),
        ({"retry_after": -1}, 10),
        ({"retry_after": 1e300}, 86_400),
        ({}, 10),
    ],
)
async def test_a_flood_wait_has_a_sensible_time(
    parameters: dict[str, Any], seconds: float
) -> None:
    """The time of Telegram counts, from anything else comes a usual one."""
    body = {
        "ok": False,
        "error_code": 429,
        "description": "x",
        "parameters": parameters,
    }
    reply = http_answer(json.dumps(body).encode(), "429 Too Many Requests")
    async with answering(reply) as (url, _):
        channel = TelegramChannel(FakeTelegram.token, base_url=f"{url}/bot")
        with pytest.raises(FloodWait) as raised:
            await send(channel, "Hello")
        assert raised.value.seconds == seconds
        await channel.close()


async def test_a_flood_while_receiving_says_how_long_to_wait(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Polls have a flood limit, too."""
    telegram.fail("getUpdates", 429, retry_after=6)
    with pytest.raises(FloodWait) as raised:
        await receive(channel)
    assert raised.value.seconds == 6


async def test_a_group_that_became_a_supergroup_names_its_new_id() -> None:
    """The old id is refused for good."""
    body = {
        "ok": False,
        "error_code": 400,
        "description": "Bad Request: group chat was upgraded to a supergroup chat",
        "parameters": {"migrate_to_chat_id": -100123},
    }
    reply = http_answer(json.dumps(body).encode(), "400 Bad Request")
    async with answering(reply) as (url, _):
        channel = TelegramChannel(FakeTelegram.token, base_url=f"{url}/bot")
        with pytest.raises(ChannelRefused, match="-100123"):
            await send(channel, "Hello", Chat("-5", is_group=True))
        await channel.close()


async def test_a_group_without_the_bot_is_refused(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The bot was removed, or never was in the chat."""
    group = telegram.add_group()
    telegram.block(group)
    for chat in (Chat(str(group), is_group=True), Chat("424242")):
        with pytest.raises(ChannelRefused, match="Add the bot to the chat"):
            await send(channel, "Hello", chat)


@pytest.mark.parametrize("method", ["send", "edit"])
async def test_refused_formatting_is_left_out(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    """A text arrives without its formatting rather than not at all."""
    number = await send(channel, "before")
    body = Body("Hello", (Entity("bold", 0, 99),))
    piece = Piece("Hello", body)
    if method == "send":
        await channel.send(ADAS, piece, key="k")
    else:
        await channel.edit(ADAS, number, piece)
        await channel.edit(ADAS, number, piece)
    assert telegram.texts()[-1] == "Hello"
    assert telegram.messages()[-1].entities == ()
    assert "sent without formatting" in caplog.text


async def test_the_typing_sign_is_shown(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A failure to show the sign is no uncertain send."""
    await channel.show_typing(ADAS)
    assert telegram.sent[-1].parameters["action"] == "typing"
    telegram.fail("sendChatAction", 500)
    with pytest.raises(ChannelAway):
        await channel.show_typing(ADAS)


async def test_sent_messages_cannot_be_looked_up(channel: TelegramChannel) -> None:
    """The Bot API shows no messages, and the channel says so."""
    await send(channel, "Hello")
    assert await channel.find(ADAS, "k", 0.0) is None
    assert not channel.traits.can_find
    assert channel.traits.key_seconds == 0


# -- edits -----------------------------------------------------------------------------


async def test_an_edit_replaces_text_and_buttons(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """An edit without buttons removes the buttons."""
    buttons = [Button("a:1", "Allow once", "✅")]
    number = await send(channel, "May I?", buttons=buttons)
    [piece] = channel.render("**Allowed**")
    await channel.edit(ADAS, number, piece)
    [message] = telegram.messages()
    assert (message.text, message.buttons) == ("Allowed", ())
    assert message.texts == ("May I?", "Allowed")


@pytest.mark.parametrize(
    "text", ["Hello", "**Hello** [Ada](https://a.example)", "- a\n- b"]
)
async def test_an_edit_can_be_repeated(
    telegram: FakeTelegram, channel: TelegramChannel, text: str
) -> None:
    """An edit that changes nothing is a success, also after a lost answer."""
    number = await send(channel, "before")
    [piece] = channel.render(text)
    telegram.drop_after("editMessageText")
    with pytest.raises(SendUncertain):
        await channel.edit(ADAS, number, piece)
    await channel.edit(ADAS, number, piece)
    await channel.edit(ADAS, number, piece)
    [message] = telegram.messages()
    assert (message.text, message.edits) == (piece.text, 1)


async def test_an_edit_of_what_is_gone_is_refused(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A deleted message and a foreign one cannot be edited: the caller sends a new one."""
    number = await send(channel, "before")
    theirs = telegram.say("mine")
    telegram.delete(int(number))
    [piece] = channel.render("after")
    for message in (number, str(theirs)):
        with pytest.raises(ChannelRefused, match="Send it again"):
            await channel.edit(ADAS, message, piece)


async def test_an_edit_in_a_flood_says_how_long_to_wait(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Edits count like messages."""
    number = await send(channel, "before")
    telegram.flood(ADA.id, 35)
    [piece] = channel.render("after")
    with pytest.raises(FloodWait) as raised:
        await channel.edit(ADAS, number, piece)
    assert raised.value.seconds == 35


# -- buttons ---------------------------------------------------------------------------


async def test_a_tap_brings_the_choice_of_the_button(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The tap names the chat, the person and the message, and can be answered once."""
    choice = "a:" + "ä" * 31
    buttons = [Button(choice, "Allow once", "✅"), Button("no", "Deny", "❌")]
    number = await send(channel, "May I?", buttons=buttons)
    telegram.tap(int(number), "Allow once", sender=BOB)
    [tap] = await receive(channel)
    assert isinstance(tap, Tapped)
    assert (tap.chat, tap.sender.id, tap.message, tap.choice) == (
        ADAS,
        str(BOB.id),
        number,
        choice,
    )
    await channel.answer_tap(tap, "Allowed")
    assert telegram.sent[-1].parameters["text"] == "Allowed"


async def test_a_button_with_more_than_64_bytes_is_refused(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram takes 64 bytes of a choice, and no message appears with more."""
    buttons = [Button("a" * 65, "Allow once", "✅")]
    with pytest.raises(ChannelRefused, match="BUTTON_DATA_INVALID"):
        await send(channel, "May I?", buttons=buttons)
    assert telegram.texts() == []


async def test_an_expired_tap_is_answered_without_an_error(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Nobody sees the answer any more, and the approval counts all the same."""
    number = await send(channel, "May I?", buttons=[Button("yes", "Yes", "✅")])
    telegram.tap(int(number), "Yes")
    [tap] = await receive(channel)
    assert isinstance(tap, Tapped)
    telegram.expire_taps()
    await channel.answer_tap(tap, "Allowed")
    assert telegram.calls("answerCallbackQuery") == 1


async def test_a_long_answer_to_a_tap_is_cut(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Telegram shows 200 characters."""
    number = await send(channel, "May I?", buttons=[Button("yes", "Yes", "✅")])
    telegram.tap(int(number), "Yes")
    [tap] = await receive(channel)
    assert isinstance(tap, Tapped)
    await channel.answer_tap(tap, "word 🙂 " * 100)
    text = telegram.sent[-1].parameters["text"]
    assert text.endswith("…")
    assert len(text.encode("utf-16-le")) // 2 <= 200


async def test_a_tap_under_a_deleted_message_or_in_a_topic_still_counts(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """Of a deleted message Telegram knows only the number."""
    number = await send(channel, "May I?", buttons=[Button("yes", "Yes", "✅")])
    telegram.delete(int(number))
    telegram.tap(int(number), data="yes")
    forum = telegram.add_group(forum=True)
    topic = telegram.add_topic(forum)
    chat = Chat(str(forum), str(topic), "Group", is_group=True)
    inside = await send(channel, "May I?", chat, buttons=[Button("yes", "Yes", "✅")])
    telegram.tap(int(inside), "Yes", chat=forum)
    deleted, in_topic = await receive(channel)
    assert isinstance(deleted, Tapped)
    assert isinstance(in_topic, Tapped)
    assert (deleted.message, deleted.choice) == (number, "yes")
    assert deleted.chat.id == ADAS.id
    assert in_topic.chat == chat


async def test_a_tap_without_a_choice_is_left_out(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The button of a game has no data, and a button in a foreign chat has no message."""
    for more in ({"game_short_name": "g"}, {"inline_message_id": "i", "data": "x"}):
        tap = {"id": "1", "from": ADA.json(), "chat_instance": "1", **more}
        telegram.push("callback_query", tap)
    assert await receive(channel) == []


# -- files that the bot sends --------------------------------------------------------------


async def test_a_file_is_sent_as_a_document(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The chat shows the name and the bytes as they are."""
    file = OutgoingFile('../ä "b".txt', "text/plain", b"words\r\n--x")
    number = await channel.send_file(ADAS, file, key="k")
    [message] = telegram.messages()
    assert str(message.id) == number
    assert (message.file_name, message.file_bytes) == ("ä _b_.txt", b"words\r\n--x")
    assert telegram.calls("sendDocument") == 1


async def test_a_picture_is_sent_as_a_photo_into_its_topic(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """A picture is shown, not offered for download."""
    forum = telegram.add_group(forum=True)
    topic = telegram.add_topic(forum)
    chat = Chat(str(forum), str(topic), is_group=True)
    file = OutgoingFile("a.png", "image/png", PNG, is_picture=True)
    await channel.send_file(chat, file, key="k")
    assert telegram.sent[-1].method == "sendPhoto"
    assert telegram.messages(forum)[-1].thread == topic


@pytest.mark.parametrize(
    ("media_type", "data", "photos"),
    [
        ("image/svg+xml", b"<svg/>", 1),
        ("image/png", PNG + b"x" * 10 * MEGABYTE, 0),
        ("image/gif", b"GIF89a moving", 0),
    ],
)
async def test_a_picture_that_telegram_does_not_show_is_sent_as_a_document(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    media_type: str,
    data: bytes,
    photos: int,
) -> None:
    """A format without photos, more than 10 MB, and a picture that would no longer move."""
    file = OutgoingFile("picture", media_type, data, is_picture=True)
    await channel.send_file(ADAS, file, key="k")
    [message] = telegram.messages()
    assert message.file_bytes == data
    assert telegram.calls("sendPhoto") == photos
    assert telegram.sent[-1].method == "sendDocument"


async def test_a_file_of_more_than_fifty_megabytes_is_not_sent(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The error says both sizes."""
    file = OutgoingFile("film.mp4", "video/mp4", bytes(51 * MEGABYTE))
    with pytest.raises(ChannelRefused, match=r"at most 50 MB, and the file has 51 MB"):
        await channel.send_file(ADAS, file, key="k")
    assert telegram.calls("sendDocument") == 0


@pytest.mark.parametrize(
    ("fail", "error", "advice"),
    [
        (
            lambda telegram: telegram.fail("sendPhoto", 413),
            ChannelRefused,
            "smaller file",
        ),
        (lambda telegram: telegram.fail("sendPhoto", 500), SendUncertain, "Look into"),
        (lambda telegram: telegram.drop_after("sendPhoto"), SendUncertain, "Look into"),
        (lambda telegram: telegram.flood(ADA.id, 5), FloodWait, "5 seconds"),
        (lambda telegram: telegram.block(), ChannelRefused, "Start the bot again"),
        (lambda telegram: telegram.away(), ChannelAway, "network"),
    ],
)
async def test_a_failed_picture_is_not_sent_again_as_a_document(
    telegram: FakeTelegram,
    channel: TelegramChannel,
    fail: Fail,
    error: type[ChannelError],
    advice: str,
) -> None:
    """Only a picture that Telegram refuses as a picture is a document."""
    fail(telegram)
    file = OutgoingFile("a.png", "image/png", PNG, is_picture=True)
    with pytest.raises(error, match=advice):
        await channel.send_file(ADAS, file, key="k")
    assert telegram.calls("sendDocument") == 0


# -- pieces ----------------------------------------------------------------------------


async def test_a_repeated_piece_is_marked_and_fits(
    telegram: FakeTelegram, channel: TelegramChannel
) -> None:
    """The mark moves the formatting, and the longest piece with the mark still fits a message."""
    longest = channel.render("a" * 9000)[0]
    await channel.send(ADAS, channel.mark_repeated(longest), key="k")
    pieces = channel.render("**🙂 bold** " + "word " * 2000)
    marked = channel.mark_repeated(pieces[0])
    await channel.send(ADAS, marked, key="k")
    message = telegram.messages()[-1]
    assert message.text == f"↻ {pieces[0].text}"
    assert message.entities == ({"type": "bold", "offset": 2, "length": 7},)


@pytest.mark.parametrize(
    ("text", "chars", "short"),
    [
        ("Hello", 5, "Hello"),
        ("Hello world", 8, "Hello…"),
        ("**Hello** world", 8, "Hello…"),
        ("🙂🙂🙂🙂", 3, "🙂…"),
        ("🙂🙂🙂🙂", 1, "…"),
        ("Hello", 2, "…"),
        ("…", 1, "…"),
    ],
)
def test_a_piece_is_shortened_after_a_word(text: str, chars: int, short: str) -> None:
    """A shortened piece has no formatting, and never more characters than asked for."""
    channel = TelegramChannel(FakeTelegram.token)
    [piece] = channel.render(text)
    found = channel.shorten(piece, chars)
    assert found.text == short
    assert found == Piece(short, Body(short))


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\u200b", "[]()"])
def test_nothing_visible_is_no_piece(text: str) -> None:
    """Telegram would refuse an empty message."""
    assert TelegramChannel(FakeTelegram.token).render(text) == []
