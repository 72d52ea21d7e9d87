"""The fake Matrix homeserver as a chat app whose gateway is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tests.support.chat_kills import Person, Shown
from tests.support.matrix import SERVER, FakeMatrix

__all__ = ["ADA", "BOB", "CLEO", "MatrixApp"]

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
