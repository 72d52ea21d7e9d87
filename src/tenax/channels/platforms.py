"""The chat apps that Tenax knows. A chat app is imported when an account of it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, NamedTuple

from tenax.channels.base import Channel
from tenax.channels.webhook.secret import make_secret
from tenax.config.schema import ChannelSettings, Platform
from tenax.errors import ConfigError, InvalidInput

__all__ = [
    "HOOKS",
    "PLATFORMS",
    "PlatformInfo",
    "check_people",
    "connect",
    "platform_name",
]

HOOKS: Final = "/api/hooks/"
"""The path of `tenax serve` that takes the requests to an account, before the label."""


class PlatformInfo(NamedTuple):
    """A chat app, without an import of its packages."""

    name: str
    """The name as users read it."""
    module: str
    """The module below `tenax.channels` with the function `connect`, which takes the settings of an account."""
    steps: str
    """How a person gets an account for Tenax, for the terminal."""
    asks_for: str
    """What `tenax channel add` asks for, such as `Token`."""
    person: str
    """The pattern of the ids of people."""
    person_about: str
    """What an id of a person looks like, for an error."""
    promise_in: str
    promise_out: str
    makes_token: Callable[[], str] | None = None
    """Returns a new token, if Tenax makes the token and not the platform."""
    takes_requests: bool = False
    """Whether messages come in as HTTP requests, which only `tenax serve` takes."""
    has_any_chat: bool = False
    """Whether the owner can continue a conversation there before anybody has written: in a chat with the id of the
    conversation. The account needs an address for this."""


PLATFORMS: Final[Mapping[Platform, PlatformInfo]] = {
    "telegram": PlatformInfo(
        name="Telegram",
        module="telegram.channel",
        steps="""\
Tenax talks as a bot of your own. To create one:

  1. Open @BotFather in Telegram, and press Start.
  2. Send /newbot. Enter a name, and a username that ends in "bot".
  3. Copy the token from the answer. It looks like 123456789:AAF... Show it to nobody.
""",
        asks_for="Token",
        person=r"[0-9]+",
        person_about="an id is a number",
        promise_in="exactly once",
        promise_out="at least once; only the first words can come twice, marked",
    ),
    "discord": PlatformInfo(
        name="Discord",
        module="discord.channel",
        steps="""\
Tenax talks as a bot of your own. To create one:

  1. Open https://discord.com/developers/applications, and press New Application.
  2. On the page Bot, switch on Message Content Intent, and save.
  3. On the page Bot, press Reset Token, and copy the token. Show it to nobody.
  4. On the page Installation, open the install link. Add the bot to a server, or to your account
     to write to it in private.
""",
        asks_for="Token",
        person=r"[0-9]+",
        person_about="an id is a number",
        promise_in="exactly once while Discord keeps the messages of the chat",
        promise_out="once within 2 minutes; after a longer outage the first words can come twice, marked",
    ),
    "webhook": PlatformInfo(
        name="Webhook",
        module="webhook.channel",
        steps="""\
A program sends messages to Tenax, and Tenax sends answers to an address of yours. Both sides sign with one secret.
To use a secret that you have already, enter it. To let Tenax make one, press Enter.
""",
        asks_for="Secret",
        person=r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}",
        person_about="an id has letters, digits and any of . _ @ + -",
        promise_in="exactly once, by webhook-id",
        promise_out="at least once, with the same webhook-id",
        makes_token=make_secret,
        takes_requests=True,
        has_any_chat=True,
    ),
}


def connect(settings: ChannelSettings) -> Channel:
    """Return the channel of an account. No request is made. Raises `ConfigError` if a setting or a package is missing."""
    platform = settings.platform
    if settings.token is None:
        raise ConfigError(
            f"channels.{settings.label} has no token.",
            hint=f"Set it with: tenax channel add {platform} --label {settings.label}",
        )
    info = PLATFORMS[platform]
    try:
        module = import_module(f"tenax.channels.{info.module}")
    except ImportError as error:
        raise ConfigError(
            f"{info.name} needs a package that is not installed.",
            hint=f"Install it with: pip install 'tenax[{platform}]'",
        ) from error
    create: Callable[[ChannelSettings], Channel] = module.connect
    return create(settings)


def platform_name(platform: str) -> str:
    """Return the name of a chat app as users read it, also for an unknown one."""
    for known, info in PLATFORMS.items():
        if known == platform:
            return info.name
    return platform.capitalize()


def check_people(platform: Platform, people: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse names: only the id of a person stays the same, and anybody can take a free name."""
    info = PLATFORMS[platform]
    for person in people:
        if not re.fullmatch(info.person, person, re.ASCII):
            raise InvalidInput(
                f"{person!r:.60} is not the id of a person on {info.name}: {info.person_about}.",
                hint="Leave the id out, and use `tenax pair` instead: it needs no id.",
            )
    return people
