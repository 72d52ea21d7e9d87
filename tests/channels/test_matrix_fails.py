"""The homeserver is away, answers errors, is slow, or asks to wait: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenax.channels.states import read_states
from tenax.models.scripted import Reply
from tests.support.matrix import BOB, FakeMatrix, Fault
from tests.support.matrix_world import MatrixWorld

LONG = " ".join(f"word{number}" for number in range(80))
REPLIES = [Reply("One."), Reply(LONG), Reply("Three.")]


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as matrix:
        yield matrix


def _state(world: MatrixWorld) -> str:
    (state,) = read_states(world.config, world.rows)
    return state.state


FAULTS: dict[str, Callable[[FakeMatrix], list[Fault]]] = {
    "500 to sync": lambda matrix: [matrix.fail("sync", 500, times=3)],
    "500 to send": lambda matrix: [matrix.fail("send", 500, times=3)],
    "502 to edit": lambda matrix: [matrix.fail("edit", 502, times=3)],
    "drops before send": lambda matrix: [matrix.drop_before("send", 3)],
    "drops after send": lambda matrix: [matrix.drop_after("send", 3)],
    "drops after edit": lambda matrix: [matrix.drop_after("edit", 3)],
    "drops sync": lambda matrix: [
        matrix.drop_before("sync", 2),
        matrix.drop_after("sync", 2),
    ],
    "garbage to sync": lambda matrix: [matrix.garbage_reply("sync", 2)],
    "garbage to send": lambda matrix: [matrix.garbage_reply("send", 2)],
    "garbage instead of sending": lambda matrix: [
        matrix.garbage_reply("send", 2, "before")
    ],
    "asks to wait": lambda matrix: [
        matrix.flood("send", 0.5, 2),
        matrix.flood("edit", 0.5, 2),
        matrix.flood("sync", 0.5, 1),
    ],
    "slow": lambda matrix: [matrix.slow("", 0.3, 20)],
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_loses_and_doubles_nothing(
    matrix: FakeMatrix, tmp_path: Path, name: str
) -> None:
    """Every message is stored once and answered once, without a mark: the homeserver recognises a repeated request."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, REPLIES) as world:
        matrix.say("First")
        await world.shows("One.")
        faults = FAULTS[name](matrix)
        matrix.say("Second")
        await world.shows("One.", LONG)
        matrix.say("Third")
        await world.shows("One.", LONG, "Three.")
        assert world.words() == ["First", "Second", "Third"]
        assert any(fault.count for fault in faults)
        assert world.rows.counts(world.account)["repeated"] == 0
        assert world.rows.failed() == []


async def test_errors_about_a_room_are_tried_again(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """Until the people of a room are known, its messages wait: nobody can say whether the room is a group."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        matrix.fail("members", 500, times=2)
        matrix.fail("state", 500, times=2)
        matrix.say("Hello")
        await world.shows("Yes.")
        assert world.words() == ["Hello"]


async def test_the_homeserver_is_away(matrix: FakeMatrix, tmp_path: Path) -> None:
    """What is written on both sides meanwhile arrives later, once and in order."""
    replies = [Reply("One."), Reply("Two."), Reply("Three.")]
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies) as world:
        matrix.say("Hello")
        await world.shows("One.")
        matrix.away()
        (name,) = world.conversations()
        asked = await world.runtime.submit(name, "From the page")
        await world.runtime.finished(name, asked.seq)
        await world.until(lambda: _state(world) in {"away", "deaf"})
        matrix.say("From the room")
        matrix.back()
        await matrix.wait(lambda: len(world.texts()) == 4)
        assert "From the page" in world.texts()[1]
        assert world.texts()[2:] == ["Two.", "Three."]
        assert world.words() == ["Hello", "From the page", "From the room"]
        await world.until(lambda: _state(world) == "connected")


async def test_a_restart_delivers_what_is_left(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """An answer that could not go out before the end of the process goes out after the next start, once."""
    replies = [Reply("One."), Reply("Two.")]
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies) as world:
        matrix.say("Hello")
        await world.shows("One.")
        matrix.away()
        (name,) = world.conversations()
        asked = await world.runtime.submit(name, "Meanwhile")
        await world.runtime.finished(name, asked.seq)
    matrix.back()
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies) as world:
        await matrix.wait(lambda: world.texts()[-1:] == ["Two."])
        assert len(world.texts()) == 3


async def test_messages_of_an_outage_are_caught_up(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """Messages that came while no process was there are stored in order at the next start."""
    replies = [Reply("Yes.")] * 9
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies) as world:
        matrix.say("Before")
        await world.shows("Yes.")
    for number in range(5):
        matrix.say(f"Meanwhile {number}")
    async with MatrixWorld(matrix, "sqlite", tmp_path, replies) as world:
        await world.shows(*["Yes."] * 6)
        expected = [f"Meanwhile {number}" for number in range(5)]
        assert world.words() == ["Before", *expected]


async def test_a_wait_concerns_one_room(matrix: FakeMatrix, tmp_path: Path) -> None:
    """While a room has to wait, another one is answered."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")] * 2) as world:
        world.rows.add_person(world.account, BOB, "bob", "Bob")
        matrix.room_of(BOB)
        matrix.flood("send", 2, room=matrix.room_of())
        matrix.say("Hello")
        await matrix.wait(lambda: matrix.calls("send") == 1)
        matrix.say("Hello", BOB)
        await world.shows("Yes.", person=BOB)
        assert world.texts() == []
        await world.shows("Yes.")
        first, second = [
            call
            for call in matrix.log
            if call.method == "send" and call.room == matrix.room_of()
        ]
        assert second.at - first.at >= 2.0


async def test_a_hanging_homeserver_does_not_stop_the_page(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """While no message goes out, a conversation goes on in the page, and everything arrives afterwards."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        matrix.say("Hello")
        await world.shows("Yes.")
        fault = matrix.hang("send")
        (name,) = world.conversations()
        async with asyncio.timeout(30):
            for number in range(3):
                asked = await world.runtime.submit(name, f"Page {number}")
                await world.runtime.finished(name, asked.seq)
        fault.release()
        await matrix.wait(lambda: len(world.texts()) == 7)


async def test_a_refused_token_is_told(matrix: FakeMatrix, tmp_path: Path) -> None:
    """The state says that the token is refused, and the account goes on with a valid one."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        fault = matrix.fail("", 401, "M_UNKNOWN_TOKEN", times=None)
        matrix.say("Hello")
        await world.until(lambda: _state(world) == "refused")
        fault.release()
        await world.shows("Yes.")


async def test_a_room_that_the_bot_has_left_delays_nobody(
    matrix: FakeMatrix, tmp_path: Path
) -> None:
    """A message to a room without the bot is dead, and can be tried again later."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        world.rows.add_person(world.account, BOB, "bob", "Bob")
        matrix.say("Hello", BOB)
        await world.shows("Yes.", person=BOB)
        fault = matrix.fail("send", 403, "M_FORBIDDEN", None, room=matrix.room_of(BOB))
        runtime = await world.runtime_of("bob")
        (name,) = world.conversations("bob")
        await runtime.submit(name, "From the page")
        await world.until(lambda: len(world.rows.failed()) == 2)
        matrix.say("Hello")
        await world.shows("Yes.")
        fault.release()
        for row in world.rows.failed():
            assert world.rows.retry(row)
        world.gateway.wake()
        await matrix.wait(lambda: len(world.texts(BOB)) == 3)
        assert world.rows.failed() == []
