"""The fake Matrix homeserver as a chat app whose gateway is killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from tests.support.chat_kills import SECONDS, GatewayProcess, Person, Shown
from tests.support.matrix import SERVER, Call, FakeMatrix, When

__all__ = ["ADA", "BOB", "CLEO", "MatrixApp", "kill_at"]

T = TypeVar("T")

ADA: Final = Person(f"@ada:{SERVER}", "Ada")
BOB: Final = Person(f"@bob:{SERVER}", "Bob")
CLEO: Final = Person(f"@cleo:{SERVER}", "Cleo")


class MatrixApp:
    """See `tests.support.chat_kills.ChatApp`."""

    channel = "tenax.channels.matrix.channel.MatrixChannel"

    def __init__(self, matrix: FakeMatrix) -> None:
        self.matrix = matrix
        self.account = f"matrix:{matrix.bot}"
        self.secret = matrix.token
        self.settings = f'platform = "matrix"\nurl = "{matrix.url}"\nuser = "{matrix.bot}"\ndevice = "{matrix.device}"'

    def add_people(self, *people: Person) -> None:
        """Open the private chats of people."""
        for person in people:
            self.matrix.room_of(person.id)

    def chat_of(self, person: Person) -> str:
        return self.matrix.room_of(person.id)

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        sent = (*file, "text/plain") if file is not None else None
        return self.matrix.say(text, sender.id, file=sent)

    def messages(self, person: Person) -> list[Shown]:
        return [
            Shown(message.id, message.text, message.from_bot)
            for message in self.matrix.messages(person.id)
        ]

    def is_confirmed(self) -> bool:
        return self.matrix.is_confirmed()

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        return self.matrix.wait_for(predicate, seconds)


@contextlib.contextmanager
def kill_at(
    matrix: FakeMatrix, gateway: GatewayProcess, method: str, when: When
) -> Iterator[None]:
    """Kill the gateway at the next request of a kind: before the homeserver acts, or before its answer.

    With `before`, the homeserver never acts. The block causes the request; at its end the gateway is dead.
    """
    killed = threading.Event()

    def kill(_call: Call) -> None:
        gateway.kill()
        killed.set()

    matrix.on(method, kill, when)
    if when == "before":
        matrix.drop_before(method)
    yield
    if not killed.wait(SECONDS):
        raise TimeoutError(f"No {method} came.\n{gateway.describe()}")
