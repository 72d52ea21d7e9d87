"""The bot on Discord, against a fake that keeps the rules of the real one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

import pytest

from tenax.channels.base import (
    Button,
    Chat,
    Deleted,
    Edited,
    OutgoingFile,
    Received,
    RemoteFile,
    Tapped,
    Update,
)
from tenax.channels.discord.channel import DiscordChannel
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ChannelRefused,
    FloodWait,
    InvalidInput,
    NotAuthorized,
    SendUncertain,
)
from tests.support.discord import ADA, BOB, Attachment, FakeDiscord

SECRET: Final = FakeDiscord.token.rpartition(".")[2]
MEGABYTE: Final = 1024 * 1024
Fail = Callable[[FakeDiscord], object]


def connect(discord: FakeDiscord, **settings: Any) -> DiscordChannel:
    """Return a channel that uses the fake."""
    given = {"token": discord.token, "base_url": discord.url, **settings}
    return DiscordChannel(given.pop("token"), **given)


@contextlib.asynccontextmanager
async def opened(
    discord: FakeDiscord, **settings: Any
) -> AsyncIterator[DiscordChannel]:
    channel = connect(discord, **settings)
    try:
        await channel.open()
        yield channel
    finally:
        await channel.close()


class Listener:
    """Receives from a channel as the gateway does. `async with` starts and ends it."""

    def __init__(self, channel: DiscordChannel, cursor: str = "") -> None:
        self.updates: list[Update] = []
        self.cursor = cursor
        self.error: BaseException | None = None
        self._batches = channel.receive(cursor)
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._batches.aclose()

    async def _run(self) -> None:
        try:
            async for batch in self._batches:
                self.updates += batch.updates
                self.cursor = batch.cursor or self.cursor
                self._changed.set()
        except ChannelError as error:
            self.error = error
            self._changed.set()

    async def _wait(self, predicate: Callable[[], bool]) -> None:
        """Wait until something holds, or until the channel has failed."""
        async with asyncio.timeout(30):
            while not predicate() and self.error is None:
                self._changed.clear()
                await self._changed.wait()

    async def until(self, count: int) -> list[Update]:
        """Wait for so many different updates. The overlap of a catch-up repeats some."""
        await self._wait(lambda: len(self.different()) >= count)
        return self.different()

    def different(self) -> list[Update]:
        return list({update.id: update for update in self.updates}.values())

    async def connected(self) -> None:
        """Wait until the socket is open and the chats were read."""
        await self._wait(lambda: bool(self.cursor))


# -- the token -----------------------------------------------------------------------------


def test_the_account_is_known_without_a_connection(discord: FakeDiscord) -> None:
    """The first part of a token is the id of the bot. The word "Bot" before a token does no harm."""
    assert connect(discord).account == f"discord:{discord.bot_id}"
    assert connect(discord, token=f" Bot {discord.token} ").account.endswith(
        str(discord.bot_id)
    )


@pytest.mark.parametrize(
    "token",
    [
        "",
        "123456789:AAF",
        "one.two.three",
        f"{base64.b64encode(b'not a number at all').decode()}.Gtest_.{'x' * 38}",
    ],
)
def test_a_malformed_token_is_refused_without_showing_it(token: str) -> None:
    """The error says where the token is, and does not contain what was entered."""
    with pytest.raises(InvalidInput, match="page Bot") as caught:
        DiscordChannel(token)
    assert not token or token not in str(caught.value)


async def test_signing_in_learns_the_name_and_checks_the_intent(
    discord: FakeDiscord,
) -> None:
    """A bot that may not read messages is refused with the name of the switch."""
    async with opened(discord) as channel:
        assert channel.name == f"@{discord.username}"
        discord.may_read_content = False
        with pytest.raises(NotAuthorized, match="Message Content Intent"):
            await channel.open()
        discord.fail("getMe", 401)
        with pytest.raises(NotAuthorized, match="token"):
            await channel.open()
        discord.away()
        with pytest.raises(ChannelAway):
            await channel.open()


# -- receiving -----------------------------------------------------------------------------


async def test_what_was_written_before_the_first_start_is_left_out(
    discord: FakeDiscord,
) -> None:
    """A new account begins with the present. Its cursor is a place from the beginning."""
    general = discord.add_channel()
    discord.say("Long ago", chat=general, mention=True)
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        discord.say("Now", chat=general, mention=True)
        (update,) = await listener.until(1)
        assert isinstance(update, Received)
        assert update.text == "Now"
        cursor = json.loads(listener.cursor)
        assert cursor == {"since": int(update.message), "chats": cursor["chats"]}
        assert list(cursor["chats"]) == [str(general)]


async def test_a_message_has_its_parts(discord: FakeDiscord) -> None:
    """Names of people replace their ids, a reply quotes, stickers and forwarded messages are named."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        first = discord.say("Look at <:smile:123> <@7002>", mentions=[BOB.json()])
        discord.say("I do", reply_to=first)
        snapshot = {"message": {"content": "from elsewhere", "attachments": []}}
        discord.say(
            "",
            message_reference={"type": 1},
            message_snapshots=[snapshot],
            sticker_items=[{"id": "1", "name": "Wave"}],
        )
        updates = await listener.until(3)
        texts = [update.text for update in updates if isinstance(update, Received)]
        assert texts == [
            "Look at :smile: @Bob",
            "> Look at <:smile:123> <@7002>\n\nI do",
            "[Forwarded]\nfrom elsewhere\n[Sticker Wave]",
        ]
        assert isinstance(updates[1], Received)
        assert updates[1].reply_to == str(first)
        assert updates[0].chat == Chat(str(discord.chat_of(ADA)), title="Ada")


async def test_edits_deletions_and_taps(discord: FakeDiscord) -> None:
    """Each is an update with an id of its own. The preview of a link is no edit, and the bot's own edits are none."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        chat = Chat(str(discord.chat_of(ADA)))
        message = discord.say("Meet at 5")
        other = discord.say("Or not")
        discord.unfurl(message)
        discord.edit(message, "Meet at 6")
        discord.delete(message)
        discord.delete(message, other)
        [piece] = channel.render("May I?")
        button = Button("choice-1", "Allow once", "✅")
        sent = await channel.send(chat, piece, key="k", buttons=[button])
        await channel.edit(chat, sent, piece, buttons=[button])
        number = discord.tap(int(sent), "Allow once")
        updates = await listener.until(6)
        kinds = [type(update).__name__ for update in updates]
        assert kinds == [
            "Received",
            "Received",
            "Edited",
            "Deleted",
            "Deleted",
            "Tapped",
        ]
        edited, deleted, tapped = updates[2], updates[3], updates[5]
        assert isinstance(edited, Edited)
        assert edited.text == "Meet at 6"
        assert isinstance(deleted, Deleted)
        assert deleted.message == str(message)
        assert isinstance(tapped, Tapped)
        assert (tapped.choice, tapped.message) == ("choice-1", sent)
        await channel.answer_tap(tapped, "Done *now*")
        await channel.answer_tap(tapped, "Done again")
        assert discord.tap_answers == {number: r"Done \*now\*"}
        discord.expire_taps()
        await channel.answer_tap(tapped, "Too late")


async def test_the_cursor_moves_only_after_every_chat_was_read(
    discord: FakeDiscord,
) -> None:
    """While one chat cannot be read, the cursor stays, and everything comes again."""
    general = discord.add_channel()
    async with opened(discord) as channel:
        async with Listener(channel) as listener:
            await listener.connected()
            discord.say("One")
            discord.say("Two", chat=general, mention=True)
            await listener.until(2)
            cursor = listener.cursor
        discord.say("Three")
        discord.say("Four", chat=general, mention=True)
        discord.on("getMessages", lambda _: discord.fail("getMessages", 500, None))
        async with Listener(channel, cursor) as listener:
            await listener.until(99)
            assert isinstance(listener.error, ChannelAway)
            assert listener.cursor == cursor
        discord.clear_faults()
        async with Listener(channel, cursor) as listener:
            updates = await listener.until(4)
            texts = [update.text for update in updates if isinstance(update, Received)]
            assert sorted(texts) == ["Four", "One", "Three", "Two"]


async def test_a_chat_that_is_lost_stops_no_other(discord: FakeDiscord) -> None:
    """A channel that the bot may not see any more is left out."""
    general = discord.add_channel()
    async with opened(discord) as channel:
        async with Listener(channel) as listener:
            await listener.connected()
            discord.say("One", chat=general, mention=True)
            discord.say("Two")
            await listener.until(2)
        discord.block(general)
        discord.say("Three")
        async with Listener(channel, listener.cursor) as listener:
            updates = await listener.until(2)
            assert [u.text for u in updates if isinstance(u, Received)] == [
                "Two",
                "Three",
            ]


async def test_the_list_of_chats_is_bounded(discord: FakeDiscord) -> None:
    """The cursor keeps the 200 chats with the latest messages."""
    chats = {str(number): "" for number in range(200)}
    cursor = json.dumps({"since": discord.bot_id, "chats": chats})
    async with opened(discord) as channel, Listener(channel, cursor) as listener:
        await discord.wait(lambda: discord.calls("getMessages") == 200)
        discord.say("Hello")
        await listener.until(1)
        kept = list(json.loads(listener.cursor)["chats"])
        assert len(kept) == 200
        assert kept[0] == "1"
        assert kept[-1] == str(discord.chat_of(ADA))


async def test_a_bot_that_connects_too_often_waits(discord: FakeDiscord) -> None:
    """Discord takes the token away from a bot that signs in too often a day, so the channel stops before."""
    discord.identifies_left = 0
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.until(1)
        assert isinstance(listener.error, FloodWait)
        assert listener.error.seconds == 3600
        assert discord.signs == []


async def test_a_socket_that_ends_again_and_again_is_given_back(
    discord: FakeDiscord,
) -> None:
    """After some failures in a row the caller gets the error, and pauses."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        discord.fail("socket", 503, None)
        discord.cut_socket()
        await listener.until(1)
        assert isinstance(listener.error, ChannelAway)


@pytest.mark.parametrize(
    ("code", "error"),
    [(4004, NotAuthorized), (4014, NotAuthorized), (4011, ChannelAway)],
)
async def test_the_close_codes_of_the_socket(
    discord: FakeDiscord, code: int, error: type[ChannelError]
) -> None:
    """A refused token and refused intents need a person. Others are tried again."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        discord.cut_socket(code)
        await listener.until(1)
        assert type(listener.error) is error


async def test_a_heartbeat_is_a_sign_of_life(discord: FakeDiscord) -> None:
    """An empty batch comes with every answered heartbeat, so a dead line is noticed."""
    discord.heartbeat_seconds = 0.05
    async with opened(discord) as channel:
        batches = channel.receive("")
        async with asyncio.timeout(30):
            empty = 0
            while empty < 3:
                batch = await anext(batches)
                empty += not batch.updates
        await batches.aclose()


async def test_a_damaged_cursor_is_told(discord: FakeDiscord) -> None:
    """A cursor of something else is not guessed."""
    async with opened(discord) as channel:
        with pytest.raises(InvalidInput, match="cursor"):
            await anext(channel.receive("12345"))


# -- sending -------------------------------------------------------------------------------


async def test_a_key_is_recognised(discord: FakeDiscord) -> None:
    """The second send of a key changes the text of the first message instead. A deleted one is sent anew."""
    async with opened(discord) as channel:
        chat = Chat(str(discord.chat_of(ADA)))
        [short], [whole] = channel.render("First…"), channel.render("First words")
        key = "k" * 20
        sent = await channel.send(chat, short, key=key)
        assert await channel.send(chat, whole, key=key) == sent
        assert discord.texts() == ["First words"]
        assert await channel.find(chat, key, 0.0) is None
        discord.delete(int(sent))
        [other] = channel.render("Other words")
        again = await channel.send(chat, other, key=key)
        assert again != sent
        assert discord.texts() == ["Other words"]


async def test_a_message_mentions_nobody_and_shows_no_preview(
    discord: FakeDiscord,
) -> None:
    """Every message and edit forbids mentions, whatever the text contains."""
    async with opened(discord) as channel:
        chat = Chat(str(discord.chat_of(ADA)))
        [piece] = channel.render("@everyone look at https://example.org")
        sent = await channel.send(chat, piece, key="k", reply_to="5")
        await channel.edit(chat, sent, channel.render("@here")[0])
        for call in discord.log[-2:]:
            assert call.parameters["allowed_mentions"]["parse"] == []
            assert call.parameters["flags"] == 4


async def test_many_buttons_with_long_labels_fit(discord: FakeDiscord) -> None:
    """Discord takes 5 buttons in a row, and labels of 80 characters."""
    async with opened(discord) as channel:
        chat = Chat(str(discord.chat_of(ADA)))
        buttons = [Button(f"c{number}", "word " * 40, "✅") for number in range(6)]
        await channel.send(chat, channel.render("Choose")[0], key="k", buttons=buttons)
        (message,) = discord.messages()
        assert [name for _, name in message.buttons] == [f"c{n}" for n in range(6)]
        assert all(len(label) <= 80 for label, _ in message.buttons)


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (lambda discord: discord.drop_before("createMessage"), SendUncertain),
        (lambda discord: discord.drop_after("createMessage"), SendUncertain),
        (lambda discord: discord.garbage_reply("createMessage"), SendUncertain),
        (lambda discord: discord.fail("createMessage", 500), SendUncertain),
        (lambda discord: discord.hang("createMessage"), SendUncertain),
        (lambda discord: discord.away(), ChannelAway),
        (lambda discord: discord.flood("createMessage", 7), FloodWait),
        (lambda discord: discord.fail("createMessage", 401), NotAuthorized),
        (lambda discord: discord.fail("createMessage", 403, code=50013), ChannelRefused),
        (lambda discord: discord.fail("createMessage", 404, code=10003), ChannelRefused),
    ],
)  # fmt: skip
async def test_what_became_of_a_failed_send(
    discord: FakeDiscord,
    fail: Fail,
    error: type[ChannelError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each failure says whether the message may be there, and none shows the token. Nothing is repeated secretly."""
    caplog.set_level(logging.DEBUG)
    async with opened(discord, request_seconds=0.5) as channel:
        chat = Chat(str(discord.chat_of(ADA)))
        fail(discord)
        with pytest.raises(error) as caught:
            await channel.send(chat, channel.render("Hello")[0], key="k")
        assert SECRET not in str(caught.value) + caplog.text
        assert discord.calls("createMessage") <= 1
        if isinstance(caught.value, FloodWait):
            assert caught.value.seconds == 7
        discord.clear_faults()


async def test_an_empty_bucket_is_not_asked(discord: FakeDiscord) -> None:
    """After a 429 the same chat gets no request until the wait is over. Other chats go on."""
    async with opened(discord) as channel:
        chat, other = (Chat(str(discord.chat_of(who))) for who in (ADA, BOB))
        [piece] = channel.render("Hello")
        discord.flood("createMessage", 60)
        for _ in range(2):
            with pytest.raises(FloodWait):
                await channel.send(chat, piece, key="k")
        assert discord.calls("createMessage") == 1
        await channel.send(other, piece, key="k")


# -- files ---------------------------------------------------------------------------------


async def test_files_in_both_directions(discord: FakeDiscord) -> None:
    """A file is fetched from a fresh address without the token, and a sent file has a key too."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        discord.say(files=[Attachment("a b.txt", b"data", "text/plain; charset=utf-8")])
        (update,) = await listener.until(1)
        assert isinstance(update, Received)
        (file,) = update.files
        assert (file.name, file.size, file.media_type) == ("a b.txt", 4, "text/plain")
        assert await channel.fetch(file) == b"data"
        chat = update.chat
        outgoing = OutgoingFile("out.csv", "text/csv", b"1,2")
        sent = await channel.send_file(chat, outgoing, key="k")
        assert await channel.send_file(chat, outgoing, key="k") == sent
        assert len(discord.messages()) == 2
        discord.delete(int(update.message))
        with pytest.raises(ChannelRefused):
            await channel.fetch(file)


async def test_files_that_are_too_large(discord: FakeDiscord) -> None:
    """The limits are checked before a byte is moved, and the claimed size is not trusted."""
    async with opened(discord) as channel, Listener(channel) as listener:
        await listener.connected()
        chat = Chat(str(discord.chat_of(ADA)))
        large = OutgoingFile("a", "text/plain", b"x" * (11 * MEGABYTE))
        with pytest.raises(ChannelRefused, match="10 MB"):
            await channel.send_file(chat, large, key="k")
        with pytest.raises(ChannelRefused, match="20 MB"):
            await channel.fetch(RemoteFile("1/2/3", "a", size=21 * MEGABYTE))
        discord.say(files=[Attachment("a", b"x" * (21 * MEGABYTE), size=5)])
        (update,) = await listener.until(1)
        assert isinstance(update, Received)
        with pytest.raises(ChannelRefused, match="20 MB"):
            await channel.fetch(update.files[0])


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/a", "https://example.org/a", "file:///etc/passwd", "//x/a"],
)
async def test_a_file_at_a_foreign_address_is_not_fetched(
    discord: FakeDiscord, url: str
) -> None:
    """Only addresses of Discord are asked for files."""
    async with opened(discord) as channel:
        item = {"id": "3", "filename": "a", "url": url, "size": 1}
        message = discord.say("", attachments=[item])
        file = RemoteFile(f"{discord.chat_of(ADA)}/{message}/3", "a")
        with pytest.raises(ChannelRefused, match="address"):
            await channel.fetch(file)


async def test_typing_is_shown(discord: FakeDiscord) -> None:
    """The sign of a typing bot goes to the chat."""
    async with opened(discord) as channel:
        await channel.show_typing(Chat(str(discord.chat_of(ADA))))
        assert discord.typing == [discord.chat_of(ADA)]
