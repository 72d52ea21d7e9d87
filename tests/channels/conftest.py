"""What the tests of chat apps may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.discord import FakeDiscord
from tests.support.telegram import FakeTelegram
from tests.support.webhooks import Inbox


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    """A fake Telegram without limits on the number of messages."""
    with FakeTelegram() as telegram:
        telegram.unlimit_rates()
        yield telegram


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """A receiver of webhooks."""
    with Inbox() as inbox:
        yield inbox


@pytest.fixture
def discord() -> Iterator[FakeDiscord]:
    """A fake Discord without limits on the number of messages."""
    with FakeDiscord() as discord:
        discord.unlimit_rates()
        yield discord
