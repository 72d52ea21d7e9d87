"""The channel of Matrix on a real homeserver, Synapse, in rooms with and without encryption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.channels.rows import ChannelRows
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tests.support.matrix import FakeMatrix
from tests.support.matrix_program import Program
from tests.support.matrix_world import MatrixWorld
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


class SynapseWorld(MatrixWorld):
    """A gateway that serves an account on Synapse."""

    def __init__(
        self, bot: Account, owner: str, home: Path, replies: list[Reply]
    ) -> None:
        unused = FakeMatrix()
        super().__init__(unused, "sqlite", home, replies, pair=False)
        unused.close()
        self.account = f"matrix:{bot.user}"
        self.owner = owner
        settings = ChannelSettings(
            label="matrix",
            platform="matrix",
            token=Secret(bot.token, "a test"),
            url=bot.synapse.url,
            user=bot.user,
            device=bot.device,
            folder=str(home / "channels" / "matrix"),
        )
        self.config = self.with_channel(settings)

    async def before_start(self) -> None:
        ChannelRows(self.journal).add_person(
            self.account, self.owner, LOCAL_USER, "Ada"
        )


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
