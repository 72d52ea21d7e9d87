"""`kill -9` of a gateway on a real homeserver, Synapse, in an open and in an encrypted room."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.chat_kills import (
    SECONDS,
    ChatStore,
    GatewayHome,
    GatewayProcess,
    Person,
    Shown,
)
from tests.support.matrix import MatrixProxy, When
from tests.support.matrix_program import Program
from tests.support.needs import Missing
from tests.support.synapse import Account, Synapse, python_of_synapse

pytestmark = pytest.mark.crash

T = TypeVar("T")
KILLS: list[tuple[str, When]] = [
    ("sync", "before"),
    ("send", "before"),
    ("send", "after"),
    ("edit", "before"),
    ("edit", "after"),
]


class SynapseApp:
    """An account on Synapse, behind a proxy that knows the moments. See `tests.support.chat_kills.ChatApp`."""

    channel = "tenax.channels.matrix.channel.MatrixChannel"

    def __init__(self, proxy: MatrixProxy, bot: Account) -> None:
        self.account = f"matrix:{bot.user}"
        self.secret = bot.token
        self.settings = f'platform = "matrix"\nurl = "{proxy.url}"\nuser = "{bot.user}"\ndevice = "{bot.device}"'

    def chat_of(self, person: Person) -> str:
        raise NotImplementedError(person)

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        raise NotImplementedError(text, sender, file)

    def messages(self, person: Person) -> list[Shown]:
        raise NotImplementedError(person)

    def is_confirmed(self) -> bool:
        return True

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        raise NotImplementedError(predicate, seconds)


@pytest.fixture
async def synapse(tmp_path: Path) -> AsyncIterator[Synapse]:
    python = python_of_synapse()
    if python is None:
        raise Missing("Synapse", "python -m tools.synapse installs it")
    with Synapse(python, tmp_path / "synapse") as synapse:
        yield synapse


async def kill_at(
    proxy: MatrixProxy,
    gateway: GatewayProcess,
    method: str,
    when: When,
    cause: Callable[[], Any],
) -> None:
    """Kill the gateway at the next request of a kind: before the homeserver gets it, or before its answer."""
    killed = threading.Event()

    def kill(_: object) -> None:
        gateway.kill()
        killed.set()

    proxy.on(method, kill, when)
    if when == "before":
        proxy.drop_before(method)
    await cause()
    assert await asyncio.to_thread(killed.wait, SECONDS), gateway.describe()


@pytest.mark.parametrize("encrypted", [False, True], ids=["open", "encrypted"])
@pytest.mark.timeout(400)
async def test_a_gateway_killed_on_synapse_loses_and_doubles_nothing(
    synapse: Synapse, tmp_path: Path, *, encrypted: bool
) -> None:
    """Every message is stored once and answered once, and in an encrypted room everything can be read."""
    bot, person = synapse.register("tenax"), synapse.register("ada")
    with MatrixProxy(synapse.url) as proxy:
        app = SynapseApp(proxy, bot)
        store_url = f"sqlite:///{tmp_path}/tenax.db"
        home = GatewayHome(
            app, store_url, tmp_path / "home", allow=(Person(person.user, "Ada"),)
        )
        gateway = GatewayProcess(home)
        with ChatStore(store_url, app) as store, gateway:
            async with Program(person, tmp_path / "program") as ada:
                room = await ada.create_room(bot.user, encrypted=encrypted)
                await ada.joined(room, bot.user)
                asked = 0

                async def ask() -> None:
                    await ada.say(room, f"question {asked} medium")

                for method, when in KILLS:
                    asked += 1
                    await kill_at(proxy, gateway, method, when, ask)
                    await asyncio.to_thread(gateway.start)
                    is_answered = partial(_is_answered, ada, room, bot.user, asked)
                    await ada.until(is_answered)
                texts = ada.texts(room, bot.user)
                assert ada.unreadable == []
            # Nothing is under way: the last answer is whole, and its delivery is stored.
            await asyncio.to_thread(_wait_settled, store, gateway)
            asks = [f"question {number} medium" for number in range(1, asked + 1)]
            assert [text for _, _, text in store.inbound()] == asks
            assert store.rows.counts(store.account)["repeated"] == 0
        numbers = [int(text.split()[1].rstrip(".")) for text in texts]
        assert numbers == sorted(set(numbers)), "an answer came twice"
        assert all(
            text.rstrip().endswith(f"End {n}.")
            for text, n in zip(texts, numbers, strict=True)
        )


def _is_answered(ada: Program, room: str, bot: str, number: int) -> bool:
    texts = ada.texts(room, bot)
    return bool(texts) and texts[-1].rstrip().endswith(f"End {number}.")


def _wait_settled(store: ChatStore, gateway: GatewayProcess) -> None:
    deadline = threading.Event()
    for _ in range(int(SECONDS * 20)):
        if store.is_settled():
            return
        deadline.wait(0.05)
    raise TimeoutError(gateway.describe())
