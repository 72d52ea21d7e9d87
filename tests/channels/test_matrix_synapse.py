"""The channel of Matrix on a real homeserver, Synapse, in rooms with and without encryption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

import pytest

from tenax.channels.base import Batch, Channel, Chat, Received, Update
from tenax.channels.matrix.channel import MatrixChannel
from tenax.channels.matrix.requests import Times
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.errors import ChannelRefused
from tenax.events import MessageUser
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply, ScriptedCall
from tenax.parts import File
from tests.support.chats import GatewayWorld
from tests.support.matrix import Answer, Call, MatrixProxy
from tests.support.matrix_program import Program
from tests.support.matrix_world import connect_fast
from tests.support.needs import Missing
from tests.support.synapse import Account, Synapse, python_of_synapse

encrypted = pytest.mark.parametrize(
    "encrypted", [False, True], ids=["open", "encrypted"]
)
LONG = " ".join(f"word{number}" for number in range(80))


@pytest.fixture(scope="module")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    python = python_of_synapse()
    if python is None:
        raise Missing("Synapse", "python -m tools.synapse installs it")
    with Synapse(python, tmp_path_factory.mktemp("synapse")) as synapse:
        yield synapse


class SynapseWorld(GatewayWorld):
    """A gateway that serves an account on Synapse."""

    def __init__(
        self, bot: Account, owner: str, home: Path, replies: list[Reply]
    ) -> None:
        settings = ChannelSettings(
            label="matrix",
            platform="matrix",
            token=Secret(bot.token, "a test"),
            url=bot.synapse.url,
            user=bot.user,
            device=bot.device,
            folder=str(home / "channels" / "matrix"),
        )
        account = f"matrix:{bot.user}"
        super().__init__(settings, account, "sqlite", home, replies)
        self.owner = owner

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # What was written before the first connection is no news.
        await self.until(lambda: self.rows.value(self.account, "cursor"))
        return self

    def prepare(self) -> None:
        self.rows.add_person(self.account, self.owner, LOCAL_USER, "Ada")

    def connect(self, settings: ChannelSettings) -> Channel:
        return connect_fast(settings)


class Scene:
    """A bot and the program of Ada on a homeserver, with names that no other test uses."""

    def __init__(self, synapse: Synapse, name: str, folder: Path) -> None:
        self.bot = synapse.register(f"tenax-{name}")
        self.ada = synapse.register(f"ada-{name}")
        self.folder = folder

    def program(self) -> Program:
        return Program(self.ada, self.folder / "program")

    def world(self, *replies: Reply) -> SynapseWorld:
        return SynapseWorld(
            self.bot, self.ada.user, self.folder / "home", list(replies)
        )


@pytest.fixture
def scene(synapse: Synapse, request: Any, tmp_path: Path) -> Scene:
    name = "".join(char for char in request.node.name.lower() if char.isalnum())
    return Scene(synapse, name[-60:], tmp_path)


def events_of(scene: Scene, room: str) -> list[dict[str, Any]]:
    """Return the events of the bot in a room, as the homeserver has them."""
    path = f"/rooms/{room}/messages?dir=b&limit=100"
    chunk = scene.ada.call("GET", path)["chunk"]
    return [
        event
        for event in reversed(chunk)
        if event["sender"] == scene.bot.user and "state_key" not in event
    ]


@encrypted
async def test_a_conversation_on_synapse(scene: Scene, *, encrypted: bool) -> None:
    """An invitation is accepted, a message is answered and edited, and an encrypted room has no readable event."""
    async with scene.program() as ada:
        async with scene.world(Reply("Yes."), Reply(LONG)) as world:
            room = await ada.create_room(scene.bot.user, encrypted=encrypted)
            await ada.joined(room, scene.bot.user)
            await ada.say(room, "Hello")
            await ada.until(lambda: ada.texts(room, scene.bot.user) == ["Yes."])
            await ada.say(room, "And?")
            await ada.until(lambda: ada.texts(room, scene.bot.user)[1:] == [LONG])
            assert world.words() == ["Hello", "And?"]
        assert ada.unreadable == []
    kinds = {event["type"] for event in events_of(scene, room)}
    assert kinds == ({"m.room.encrypted"} if encrypted else {"m.room.message"})


@encrypted
async def test_files_on_synapse(scene: Scene, *, encrypted: bool) -> None:
    """A file of a person is stored, and a file of an answer is shown; an encrypted room gets encrypted files."""
    async with (
        scene.program() as ada,
        scene.world(Reply("Here: [data](data.csv)")) as world,
    ):
        room = await ada.create_room(scene.bot.user, encrypted=encrypted)
        await ada.joined(room, scene.bot.user)
        world.config.tools_folder.mkdir(parents=True, exist_ok=True)
        (world.config.tools_folder / "data.csv").write_bytes(b"a,b")
        await ada.send_file(room, "notes.txt", b"some notes", encrypted=encrypted)
        await ada.until(lambda: len(ada.texts(room, scene.bot.user)) == 2)
        sent = ada.messages(room)[-1].content
        assert sent["filename"] == "data.csv"
        assert ("file" in sent) == encrypted
        assert await ada.fetch(sent) == b"a,b"
        (name,) = world.conversations()
        (said,) = world.events(name, MessageUser)
        (part,) = [part for part in said.parts if isinstance(part, File)]
        assert await world.runtime.journal.get_blob(part.blob) == b"some notes"


@encrypted
async def test_an_approval_on_synapse(scene: Scene, *, encrypted: bool) -> None:
    """The bot reacts with the possible answers, and a tap on one of them allows the call."""
    call = ScriptedCall("write_file", {"path": "a.txt", "content": "Hello\n"})
    async with (
        scene.program() as ada,
        scene.world(Reply(calls=[call]), Reply("It is written.")) as world,
    ):
        room = await ada.create_room(scene.bot.user, encrypted=encrypted)
        await ada.joined(room, scene.bot.user)
        await ada.say(room, "Write it")
        await ada.until(lambda: len(ada.messages(room)) == 2)
        question = ada.messages(room)[1]
        assert "write_file" in question.text
        await ada.until(lambda: "❌" in ada.reactions(room, question.id))
        relation = {
            "rel_type": "m.annotation",
            "event_id": question.id,
            "key": "✅",
        }
        await ada.say(room, content={"m.relates_to": relation}, kind="m.reaction")
        await ada.until(lambda: "It is written." in ada.texts(room, scene.bot.user))
        assert (world.config.tools_folder / "a.txt").read_text() == "Hello\n"


# -- keys ------------------------------------------------------------------------------


def channel_of(scene: Scene, url: str = "", notice: float = 60.0) -> MatrixChannel:
    return MatrixChannel(
        scene.bot.token,
        url=url or scene.bot.synapse.url,
        user=scene.bot.user,
        device=scene.bot.device,
        folder=scene.folder / "keys",
        times=Times(poll=1.0, notice=notice),
    )


async def join_by_hand(scene: Scene, ada: Program) -> str:
    """Return an encrypted room with Ada and the bot."""
    room = await ada.create_room(scene.bot.user, encrypted=True)
    scene.bot.call("POST", f"/rooms/{room}/join", {})
    await ada.joined(room, scene.bot.user)
    return room


async def next_updates(batches: AsyncGenerator[Batch], count: int = 1) -> list[Update]:
    """Return the next updates."""
    found: list[Update] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += (await anext(batches)).updates
    return found


def words_of(updates: list[Update]) -> list[str]:
    return [update.text for update in updates if isinstance(update, Received)]


async def test_keys_survive_a_crash_before_the_cursor_is_stored(scene: Scene) -> None:
    """The keys of an answer are stored; the same answer comes again, and the message can be read again."""
    async with scene.program() as ada:
        first = channel_of(scene)
        async with aclosing(first.receive("")) as batches:
            cursor = (await anext(batches)).cursor
        room = await join_by_hand(scene, ada)
        await ada.say(room, "Secret")
        async with aclosing(first.receive(cursor)) as batches:
            before = await next_updates(batches)
        await first.close()
        # The process has died: nobody has stored a cursor after the first one.
        second = channel_of(scene)
        async with aclosing(second.receive(cursor)) as batches:
            again = await next_updates(batches)
            assert words_of(before) == words_of(again) == ["Secret"]
            assert [update.id for update in before] == [update.id for update in again]
            await ada.say(room, "And another")
            assert words_of(await next_updates(batches)) == ["And another"]
        await second.close()
    modes = {file.stat().st_mode & 0o777 for file in (scene.folder / "keys").iterdir()}
    assert modes == {0o600}
    assert (scene.folder / "keys").stat().st_mode & 0o777 == 0o700


class SlowKeys(MatrixProxy):
    """A homeserver whose messages between devices come late."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.kept: list[Any] = []
        self.is_late = True

    def _act(self, call: Call, body: bytes) -> Answer:
        answer = super()._act(call, body)
        if call.method != "sync" or answer.status != 200:
            return answer
        found = json.loads(answer.body)
        self.kept += found.pop("to_device", {}).get("events", [])
        if not self.is_late:
            found["to_device"] = {"events": self.kept}
            self.kept = []
        return Answer(200, json.dumps(found).encode())


async def test_a_message_waits_for_its_key(scene: Scene) -> None:
    """A message without a key waits across a restart; people are told once; when the key comes, the message is read."""
    with SlowKeys(scene.bot.synapse.url) as proxy:
        async with scene.program() as ada:
            channel = channel_of(scene, url=proxy.url, notice=0.0)
            batches = channel.receive("")
            cursor = (await anext(batches)).cursor
            room = await join_by_hand(scene, ada)
            await ada.say(room, "Secret")
            while not ada.texts(room, scene.bot.user):
                batch = await anext(batches)
                assert words_of(list(batch.updates)) == []
                cursor = batch.cursor
            assert "cannot read" in ada.texts(room, scene.bot.user)[0]
            await batches.aclose()
            await channel.close()
            channel = channel_of(scene, url=proxy.url, notice=0.0)
            batches = channel.receive(cursor)
            proxy.is_late = False
            assert words_of(await next_updates(batches)) == ["Secret"]
            # It is stored now, so it does not come again.
            await ada.say(room, "Next")
            assert words_of(await next_updates(batches)) == ["Next"]
            assert len(ada.texts(room, scene.bot.user)) == 1
            await batches.aclose()
            await channel.close()


async def test_another_host_does_not_replace_the_keys(scene: Scene) -> None:
    """Without the keys of the device, encrypted rooms stay closed, and the keys on the homeserver stay as they are."""
    async with scene.program() as ada:
        first = channel_of(scene)
        async with aclosing(first.receive("")) as batches:
            await anext(batches)
        room = await join_by_hand(scene, ada)
        await first.close()
        (scene.folder / "keys").rename(scene.folder / "other host")
        second = channel_of(scene)
        async with aclosing(second.receive("")) as batches:
            await anext(batches)
            (piece,) = second.render("Hello")
            with pytest.raises(ChannelRefused, match="another host"):
                await second.send(Chat(room), piece, key="k1")
        await second.close()
    assert events_of(scene, room) == []


async def test_a_new_device_can_read_what_comes_after_it(scene: Scene) -> None:
    """A person who signs in on another device gets the key of the next message there."""
    async with scene.program() as ada:
        channel = channel_of(scene)
        batches = channel.receive("")
        await anext(batches)
        room = await join_by_hand(scene, ada)
        chat = Chat(room)
        (piece,) = channel.render("One")
        await channel.send(chat, piece, key="k1")
        again = scene.ada.log_in()
        async with Program(again, scene.folder / "second") as phone:
            await ada.say(room, "New phone")
            await next_updates(batches)
            (piece,) = channel.render("Two")
            await channel.send(chat, piece, key="k2")
            await phone.until(lambda: "Two" in phone.texts(room, scene.bot.user))
            await ada.until(lambda: ada.texts(room, scene.bot.user) == ["One", "Two"])
        await batches.aclose()
        await channel.close()
