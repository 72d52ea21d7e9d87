"""The channel of Matrix beside a fake homeserver: what comes in, what goes out, and who is heard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tenax.channels.base import (
    Chat,
    Deleted,
    Edited,
    OutgoingFile,
    Piece,
    Received,
    Update,
)
from tenax.channels.budget import Budget
from tenax.channels.ledger import Ledger, Target
from tenax.channels.matrix.channel import MatrixChannel
from tenax.channels.rows import AsyncChannelRows
from tenax.errors import ChannelRefused, NotAuthorized, SendUncertain
from tenax.events import ApprovalAnswered
from tenax.journal.aio import AsyncJournal
from tenax.models.scripted import Reply, ScriptedCall
from tests.support.matrix import ADA, BOB, SERVER, FakeMatrix, Message
from tests.support.matrix_world import MatrixWorld, connect_fast, settings_of

CLEO = f"@cleo:{SERVER}"
GROUP = f"!group:{SERVER}"
WRITES = [
    Reply(calls=[ScriptedCall("write_file", {"path": "a.txt", "content": "Hello\n"})]),
    Reply("It is written."),
]


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as matrix:
        yield matrix


@pytest.fixture
async def channel(matrix: FakeMatrix) -> AsyncIterator[MatrixChannel]:
    channel = connect_fast(settings_of(matrix))
    assert isinstance(channel, MatrixChannel)
    await channel.open()
    yield channel
    await channel.close()


async def first_cursor(channel: MatrixChannel) -> str:
    async with contextlib.aclosing(channel.receive("")) as batches:
        return (await anext(batches)).cursor


async def receive(channel: MatrixChannel, cursor: str) -> list[Update]:
    """Return the updates of the next batch with a new cursor."""
    async with contextlib.aclosing(channel.receive(cursor)) as batches:
        async for batch in batches:
            if batch.cursor != cursor:
                return list(batch.updates)
    raise AssertionError


# -- what comes in ---------------------------------------------------------------------


async def test_a_message_is_answered(matrix: FakeMatrix, tmp_path: Path) -> None:
    """A message in a private chat is stored once and answered there, with formatting."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("**Yes.**")]) as world:
        matrix.say("Hello")
        await world.shows("**Yes.**")
        assert world.words() == ["Hello"]
        (message,) = [found for found in matrix.messages() if found.from_bot]
        assert message.html == "<p><strong>Yes.</strong></p>"


async def test_the_same_events_five_times_are_stored_once(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """Repeated events have the same id."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        matrix.copies = 5
        matrix.say("One")
        await world.shows("Yes.")
        matrix.say("Two")
        await world.shows("Yes.", "Yes.")
        assert world.words() == ["One", "Two"]


async def test_events_in_the_wrong_order_are_all_stored(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """The order is the homeserver's; nothing is left out because of it."""
    matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    for number in range(3):
        matrix.say(f"Message {number}")
    matrix.is_reversed = True
    found = await receive(channel, cursor)
    texts = {update.text for update in found if isinstance(update, Received)}
    assert texts == {"Message 0", "Message 1", "Message 2"}


async def test_a_gap_is_filled(matrix: FakeMatrix, channel: MatrixChannel) -> None:
    """Of 350 missed messages the homeserver gives the last 100, and the channel asks for the others."""
    matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    for number in range(350):
        matrix.say(f"Message {number}")
    found = await receive(channel, cursor)
    texts = [update.text for update in found if isinstance(update, Received)]
    assert texts == [f"Message {number}" for number in range(350)]
    assert matrix.calls("messages") == 3


async def test_the_cursor_confirms_and_the_same_cursor_repeats(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """Before the caller asks for the next batch, nothing is confirmed."""
    matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    matrix.say("Hello")
    first = await receive(channel, cursor)
    assert not matrix.is_confirmed()
    assert await receive(channel, cursor) == first


async def test_what_was_written_before_the_first_start_is_no_news(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """The history of the rooms starts no run."""
    matrix.say("Long ago")
    async with contextlib.aclosing(channel.receive("")) as batches:
        assert (await anext(batches)).updates == ()


async def test_garbage_is_left_out(matrix: FakeMatrix, channel: MatrixChannel) -> None:
    """Events that cannot be read do not stop the events after them."""
    room = matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    matrix.say(content={"msgtype": 5, "body": ["x"]})
    matrix.say(content={"msgtype": "m.file", "body": "x", "url": {}, "info": 7})
    matrix.say(kind="m.reaction", content={"m.relates_to": "x"}, room=room)
    matrix.say(content={"m.relates_to": {"rel_type": "m.replace", "event_id": 4}})
    matrix.say("The end")
    found = await receive(channel, cursor)
    assert [update.text for update in found if isinstance(update, Received)] == [
        "The end"
    ]


async def test_edits_and_deletions_are_told(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """An edit has the new words, and a deletion the id. A foreign edit counts for nothing."""
    room = matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    message = matrix.say("One")
    matrix.edit(message, "Two")
    matrix.edit(message, "Forged", sender=BOB)
    first, edit = await receive(channel, cursor)
    assert isinstance(first, Received)
    assert isinstance(edit, Edited)
    assert (edit.message, edit.text, edit.sender.id) == (message, "Two", ADA)
    cursor = await first_cursor(channel)
    matrix.delete(message)
    (deletion,) = await receive(channel, cursor)
    assert isinstance(deletion, Deleted)
    assert (deletion.message, deletion.chat.id) == (message, room)


async def test_own_messages_and_notices_are_not_answered(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """A notice is what bots write."""
    room = matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    matrix.say("Hello", sender=matrix.bot, room=room)
    matrix.say(content={"msgtype": "m.notice", "body": "I am a bot"})
    matrix.say("Hello")
    (found,) = await receive(channel, cursor)
    assert isinstance(found, Received)
    assert found.sender.id == ADA


# -- who is heard ----------------------------------------------------------------------


async def test_a_stranger_gets_a_code_and_can_be_let_in(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """The invitation to a private chat is accepted, and the stranger gets a code and nothing else."""
    replies = [Reply("Yes.")]
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies, pair=False) as world:
        room = f"!new:{SERVER}"
        matrix.invite(room, ADA)
        await matrix.wait(lambda: matrix.members(room)[matrix.bot] == "join")
        matrix.say("Hello", room=room)
        await matrix.wait(lambda: len(world.texts(room=room)) == 1)
        assert "tenax pair" in world.texts(room=room)[0]
        (pairing,) = world.rows.pairings()
        world.rows.pair(pairing.code, "ada")
        matrix.say("Now?", room=room)
        await matrix.wait(lambda: world.texts(room=room)[1:] == ["Yes."])
        assert world.words("ada") == ["Now?"]


async def test_what_was_written_before_the_bot_came_is_read(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """A message between the invitation and the bot's entrance counts, and one before the invitation does not."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        room = f"!new:{SERVER}"
        hold = matrix.hang("join")
        matrix.invite(room, ADA)
        matrix.say("Already here", room=room)
        hold.release()
        await world.shows("Yes.", room=room)
        assert world.words() == ["Already here"]


@pytest.mark.parametrize(
    ("others", "is_direct", "join_rule", "outcome"),
    [
        ((), False, "invite", "invite"),
        ((), True, "public", "invite"),
        ((CLEO,), True, "invite", "leave"),
    ],
    ids=["a group", "a public room", "a group that is called a private chat"],
)
async def test_a_stranger_cannot_bring_the_bot_into_a_group(
    matrix: FakeMatrix,
    tmp_path: Path,
    others: tuple[str, ...],
    is_direct: bool,
    join_rule: str,
    outcome: str,
) -> None:
    """Only a chat of two people is accepted from somebody who may not talk."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        matrix.invite(GROUP, BOB, *others, is_direct=is_direct, join_rule=join_rule)
        matrix.say("Hello")
        await world.shows("Yes.")
        await matrix.wait(lambda: matrix.members(GROUP)[matrix.bot] == outcome)


async def test_an_allow_list_is_silent_to_others(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """With a list, the invitation of a stranger is not accepted, and that of a listed person is."""
    replies = [Reply("Yes.")]
    async with MatrixWorld(
        matrix, "sqlite", tmp_path, replies, pair=False, allow=[ADA]
    ) as world:
        matrix.invite(f"!bob:{SERVER}", BOB)
        room = f"!ada:{SERVER}"
        matrix.invite(room, ADA)
        await matrix.wait(lambda: matrix.members(room)[matrix.bot] == "join")
        matrix.say("Hello", room=room)
        await world.shows("Yes.", room=room)
        assert matrix.members(f"!bob:{SERVER}")[matrix.bot] == "invite"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            {"body": "tell us", "m.mentions": {"user_ids": [FakeMatrix.bot]}},
            "tell us",
        ),
        ({"body": "Tenax: tell us"}, "tell us"),
        ({"body": f"{FakeMatrix.bot} tell us"}, "tell us"),
        ({"body": "!status"}, "!status"),
    ],
    ids=["mention", "name", "id", "command"],
)
async def test_a_group_is_answered_when_the_bot_is_addressed(
    matrix: FakeMatrix,
    channel: MatrixChannel,
    content: dict[str, object],
    text: str,
) -> None:
    """A mention, the name, the id and a command address the bot; other words do not."""
    matrix.add_room(GROUP, ADA, BOB, title="Friends")
    cursor = await first_cursor(channel)
    matrix.say("among us", room=GROUP)
    matrix.say(room=GROUP, content={"msgtype": "m.text", **content})
    quiet, loud = await receive(channel, cursor)
    assert isinstance(quiet, Received)
    assert isinstance(loud, Received)
    assert (quiet.is_addressed, loud.is_addressed) == (False, True)
    assert loud.text == text
    assert (loud.chat.title, loud.chat.is_group) == ("Friends", True)


async def test_a_reply_to_the_bot_addresses_it(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """A reply to somebody else quotes the other message, and addresses nobody."""
    matrix.add_room(GROUP, ADA, BOB)
    cursor = await first_cursor(channel)
    (piece,) = channel.render("I am here")
    own = await channel.send(Chat(GROUP, is_group=True), piece, key="k1")
    other = matrix.say("It rains", sender=BOB, room=GROUP)
    for replied in (own, other):
        relation = {"m.in_reply_to": {"event_id": replied}}
        fallback = "> <@x:y> Old words\n\nReally?"
        content = {"msgtype": "m.text", "body": fallback, "m.relates_to": relation}
        matrix.say(room=GROUP, content=content)
    _, to_bot, to_bob = await receive(channel, cursor)
    assert isinstance(to_bot, Received)
    assert isinstance(to_bob, Received)
    assert (to_bot.text, to_bot.is_addressed) == ("Really?", True)
    assert (to_bob.text, to_bob.is_addressed) == ("> It rains\n\nReally?", False)


async def test_a_third_person_makes_a_group(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """A private chat that somebody joins is a group from then on."""
    room = matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    matrix.say("Alone")
    (alone,) = await receive(channel, cursor)
    assert not alone.chat.is_group
    cursor = await first_cursor(channel)
    matrix.enter(room, BOB)
    matrix.say("Not alone", room=room)
    (found,) = await receive(channel, cursor)
    assert found.chat.is_group


# -- what goes out ---------------------------------------------------------------------


async def test_a_repeated_key_sends_nothing_twice(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """The homeserver gives the first event for the same key."""
    chat = Chat(matrix.room_of(ADA))
    (piece,) = channel.render("Hello")
    first = await channel.send(chat, piece, key="k1")
    assert await channel.send(chat, piece, key="k1") == first
    assert await channel.send(chat, piece, key="k2") != first
    assert len(matrix.messages()) == 2


async def test_a_second_try_shows_the_newest_text(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """The homeserver keeps the text of the first try, so an edit follows: a preview never stands for the answer."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Unused.")]) as world:
        channel = connect_fast(settings_of(matrix))
        journal = AsyncJournal(world.journal)
        rows = AsyncChannelRows(journal)
        lease = await journal.claim("a test", await journal.instance(), 60.0)
        assert lease is not None

        async def store_wait(chat: str, until_us: int) -> None:
            raise AssertionError(chat, until_us)

        budget = Budget(channel.traits, journal.clock, store_wait)
        ledger = Ledger(channel, rows, budget, lambda: lease, lambda: None)
        target = Target(Chat(matrix.room_of(ADA)), "a:1:1", None, 1)
        matrix.drop_after("send")
        with pytest.raises(SendUncertain):
            await ledger.preview(target, channel.render("Hello wor"))
        await ledger.deliver(target, channel.render("Hello world."))
        assert world.texts() == ["Hello world."]
        assert world.rows.counts(world.account)["repeated"] == 0
        await channel.close()


async def test_a_file_goes_out(matrix: FakeMatrix, channel: MatrixChannel) -> None:
    """A picture is a picture, and everything else is a file with its name and type."""
    chat = Chat(matrix.room_of(ADA))
    picture = OutgoingFile("a.png", "image/png", b"PNG", is_picture=True)
    await channel.send_file(chat, picture, key="k1")
    file = OutgoingFile("b.csv", "text/csv", b"a,b")
    assert await channel.send_file(chat, file, key="k2") == await channel.send_file(
        chat, file, key="k2"
    )
    first, second = (message.content for message in matrix.messages())
    assert (first["msgtype"], second["msgtype"]) == ("m.image", "m.file")
    assert matrix.media[second["url"]] == (b"a,b", "")
    assert second["info"] == {"mimetype": "text/csv", "size": 3}


async def test_a_file_comes_in(matrix: FakeMatrix, tmp_path: Path) -> None:
    """The file is stored before the message is confirmed, also one of 20 MB."""
    large = b"x" * (20 * 1024 * 1024)
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        matrix.say("Look", file=("notes.txt", b"some notes", "text/plain"))
        await world.shows("Yes.")
        matrix.say("And this", file=("large.bin", large, "application/x-large"))
        await world.shows("Yes.", "Yes.")
        first, second = world.words()
        assert first.startswith("Look")
        assert second.startswith("And this")


async def test_a_file_that_is_gone_blocks_nothing(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """The message is stored, and says what is missing."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        message = {"msgtype": "m.file", "body": "gone.txt", "url": "mxc://fake.test/no"}
        matrix.say(content=message)
        await world.shows("Yes.")
        assert "gone.txt" in world.words()[0]


async def test_an_encrypted_room_without_keys_gets_no_readable_message(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """Without keys the message is refused, and the homeserver sees no words."""
    room = matrix.add_room(f"!secret:{SERVER}", ADA)
    matrix.set_encrypted(room)
    chat = Chat(room)
    (piece,) = channel.render("Hello")
    for _ in range(2):
        with pytest.raises(ChannelRefused, match="encrypted"):
            await channel.send(chat, piece, key="k1")
    with pytest.raises(ChannelRefused, match="encrypted"):
        await channel.edit(chat, "$x", piece)
    assert matrix.calls("send") + matrix.calls("edit") == 0


async def test_a_room_that_becomes_encrypted_gets_no_readable_message(
    matrix: FakeMatrix, channel: MatrixChannel
) -> None:
    """The channel learns of the encryption with the events of the room."""
    room = matrix.room_of(ADA)
    cursor = await first_cursor(channel)
    (piece,) = channel.render("Hello")
    await channel.send(Chat(room), piece, key="k1")
    matrix.set_encrypted(room)
    await receive(channel, cursor)
    with pytest.raises(ChannelRefused, match="encrypted"):
        await channel.send(Chat(room), piece, key="k2")
    assert matrix.calls("send") == 1


async def test_a_foreign_token_is_refused(matrix: FakeMatrix) -> None:
    """The settings name the user and the device, because a repeated message is recognised only on the same device."""
    settings = settings_of(matrix)
    matrix.device = "ANOTHER"
    channel = connect_fast(settings)
    with pytest.raises(NotAuthorized, match="Connect the account again"):
        await channel.open()
    await channel.close()


def test_a_shortened_text_ends_with_an_ellipsis(matrix: FakeMatrix) -> None:
    channel = connect_fast(settings_of(matrix))
    piece = Piece("one two three", None)
    assert channel.shorten(piece, 9).text == "one two…"
    assert channel.shorten(piece, 13).text == "one two three"
    asyncio.run(channel.close())


# -- approvals -------------------------------------------------------------------------


async def _question(matrix: FakeMatrix, room: str = "") -> Message:
    """Wait for a message with all its reactions."""
    found = await matrix.wait(
        lambda: next(
            (
                message
                for message in matrix.messages(room=room)
                if len(matrix.reactions(message.id)) >= 2
                and "❌" in matrix.reactions(message.id)
            ),
            None,
        )
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("emoji", "outcome", "exists"),
    [("✅", "Allowed once", True), ("❌", "Denied", False)],
)
async def test_a_reaction_answers_an_approval(
    matrix: FakeMatrix, tmp_path: Path, emoji: str, outcome: str, exists: bool
) -> None:
    """The bot reacts with the possible answers, and a person taps on one of them."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, WRITES) as world:
        matrix.say("Write it")
        question = await _question(matrix)
        assert "write_file" in question.text
        assert "✅ Allow once" in question.text
        assert "✅ Allow once" in question.html
        matrix.react(question.id, emoji)
        await matrix.wait(lambda: "It is written." in world.texts())
        await matrix.wait(lambda: outcome in matrix.messages()[1].text)
        assert "❌ Deny" not in matrix.messages()[1].text
        assert (world.config.tools_folder / "a.txt").exists() == exists


async def test_a_foreign_reaction_changes_nothing(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """In a group another person cannot answer, and an emoji that stands for no answer has no effect."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, WRITES) as world:
        matrix.add_room(GROUP, ADA, BOB)
        matrix.say("Tenax: write it", room=GROUP)
        question = await _question(matrix, GROUP)
        matrix.react(question.id, "✅", BOB)
        await matrix.wait(
            lambda: any("Only the person" in text for text in world.texts(room=GROUP))
        )
        matrix.react(question.id, "🎉")
        assert world.events(world.conversations()[0], ApprovalAnswered) == []
        matrix.react(question.id, "✅")
        await matrix.wait(lambda: "It is written." in world.texts(room=GROUP))
        matrix.react(question.id, "❌")
        await matrix.wait(
            lambda: any("already" in text for text in world.texts(room=GROUP))
        )


async def test_a_homeserver_that_refuses_keys_stops_no_open_room(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """Encrypted rooms stay closed then, and everything else goes on."""
    matrix.fail("query", 403, "M_FORBIDDEN", times=None)
    room = matrix.room_of(ADA)
    channel = connect_fast(settings_of(matrix, folder=str(tmp_path / "keys")))
    assert isinstance(channel, MatrixChannel)
    cursor = await first_cursor(channel)
    matrix.say("Hello")
    (found,) = await receive(channel, cursor)
    assert isinstance(found, Received)
    (piece,) = channel.render("Yes.")
    await channel.send(found.chat, piece, key="k1")
    matrix.set_encrypted(room)
    matrix.say(kind="m.room.encrypted", content={"ciphertext": "x"}, room=room)
    cursor = await first_cursor(channel)
    matrix.say("Open all the same", room=room)
    assert len(await receive(channel, cursor)) == 1
    await channel.close()


async def test_an_event_with_garbage_for_words_is_left_out(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """With keys, too, an encrypted event that no key can open does not stop the events after it."""
    room = matrix.room_of(ADA)
    channel = connect_fast(settings_of(matrix, folder=str(tmp_path / "keys")))
    assert isinstance(channel, MatrixChannel)
    cursor = await first_cursor(channel)
    for content in ({"ciphertext": "x"}, {"algorithm": "m.megolm.v1.aes-sha2"}, {}):
        matrix.say(kind="m.room.encrypted", content=content, room=room)
    matrix.say(
        kind="m.room.encrypted",
        room=room,
        content={
            "algorithm": "m.megolm.v1.aes-sha2",
            "ciphertext": "no base64",
            "device_id": "D",
            "sender_key": "K",
            "session_id": "S",
        },
    )
    matrix.say("The end")
    found = await receive(channel, cursor)
    texts = [update.text for update in found if isinstance(update, Received)]
    assert texts == ["The end"]
    await channel.close()


async def test_garbage_between_devices_stops_nothing(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """Anybody can send messages to the device of the bot. What cannot be read is left out."""
    matrix.room_of(ADA)
    channel = connect_fast(settings_of(matrix, folder=str(tmp_path / "keys")))
    assert isinstance(channel, MatrixChannel)
    cursor = await first_cursor(channel)
    key = matrix.device_keys["keys"][f"curve25519:{matrix.device}"]
    bodies = [{"type": kind, "body": "garbage"} for kind in (0, 1, 2, "x")]
    contents: list[object] = [{}, [], "x", None, {"algorithm": 7}]
    for body in [*bodies, {}, "x", {"type": 0, "body": 5}]:
        algorithm = "m.olm.v1.curve25519-aes-sha2"
        contents.append(
            {"algorithm": algorithm, "sender_key": "K", "ciphertext": {key: body}}
        )
    matrix.to_device = [
        {"type": kind, "sender": BOB, "content": content}
        for kind in ("m.room.encrypted", "m.room_key", "m.room_key_request", 5)
        for content in contents
    ] + [None, 5, "x", {}]
    matrix.say("Hello")
    (found,) = await receive(channel, cursor)
    assert isinstance(found, Received)
    await channel.close()
