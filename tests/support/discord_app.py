"""A fake Discord as the chat app of tests that kill gateways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support import discord as fake
from tests.support.chat_kills import Person, Shown
from tests.support.discord import FakeDiscord

__all__ = ["DiscordApp"]

T = TypeVar("T")


class DiscordApp:
    """A fake Discord."""

    channel = "tenax.channels.discord.channel.DiscordChannel"

    def __init__(self, discord: FakeDiscord) -> None:
        self.discord = discord
        self.account = f"discord:{discord.bot_id}"
        self.secret = discord.token
        self.settings = f'platform = "discord"\nurl = "{discord.url}"'
        self.read_cursor: Callable[[], str] = str
        """Returns the cursor of the account in the store."""

    def add_people(self, *people: Person) -> None:
        """Open the private chats of people."""
        for person in people:
            self.discord.add_person(_to_discord(person))

    def chat_of(self, person: Person) -> str:
        return str(self.discord.chat_of(_to_discord(person)))

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        files = [fake.Attachment(*file, "text/plain")] if file else []
        writer = _to_discord(sender)
        return str(self.discord.say(text, sender=writer, files=files))

    def messages(self, person: Person) -> list[Shown]:
        return [
            Shown(str(message.id), message.text, message.from_bot)
            for message in self.discord.messages(int(self.chat_of(person)))
        ]

    def is_confirmed(self) -> bool:
        """Return whether the cursor is at the last message. Discord itself hears of no confirmation."""
        return self.stored_place() >= self.discord.last_of_people()

    def stored_place(self) -> int:
        """Return the id up to which everything is stored."""
        cursor: dict[str, Any] = json.loads(self.read_cursor() or "{}")
        return int(cursor.get("since", 0))

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        return self.discord.wait_for(predicate, seconds)


def _to_discord(person: Person) -> fake.Person:
    return fake.Person(int(person.id), person.name)
