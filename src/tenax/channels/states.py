"""The state of the accounts, as the process that serves an account stores it. Every process can read it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tenax.channels.platforms import PLATFORMS
from tenax.channels.rows import ChannelRows
from tenax.config import Config
from tenax.config.schema import ChannelSettings

__all__ = ["STATE", "AccountState", "State", "StoredState", "read_states"]

STATE: Final = "state"
"""The name of the stored value."""
_STALE_US: Final = 120_000_000
"""A process that serves an account stores the state more often than this."""

State = Literal[
    "off", "starting", "connected", "deaf", "away", "refused", "elsewhere", "broken"
]
"""off: no process serves the account.
starting: the first request is under way.
connected: messages come in and go out.
deaf: nothing can come in, although messages may go out. Tenax connects again by itself.
away: the platform cannot be reached.
refused: the platform refuses the token.
elsewhere: another program receives the messages of the account.
broken: a setting is wrong, or a package is missing."""


class StoredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an account. The times are in microseconds; 0 if there was no such moment."""

    state: State = "off"
    error: str = ""
    name: str = ""
    """The name of the bot as people see it, such as @my_bot."""
    heard_at: int = 0
    """When the platform last answered a request for updates."""
    received_at: int = 0
    """When a message last came in."""
    sent_at: int = 0
    """When a message last went out."""
    at: int = 0
    """When the state was stored."""


class AccountState(msgspec.Struct, frozen=True):
    """The state of a configured account, for the page and the terminal."""

    label: str
    """The name in the settings: `[channels.LABEL]`."""
    platform: str
    account: str
    """PLATFORM:ID, or "" before the account was served for the first time."""
    state: State
    error: str
    name: str
    heard_at: int
    received_at: int
    sent_at: int
    oldest_unsent_at: int
    """When the oldest message that has not gone out was stored; 0 if everything has gone out."""
    counts: dict[str, int]
    """The number of messages by state of delivery, and `repeated`: those that may have come twice."""
    promise_in: str
    promise_out: str


def read_states(config: Config, rows: ChannelRows) -> list[AccountState]:
    """Return the state of every configured account."""
    return [
        _read_state(settings, rows) for _, settings in sorted(config.channels.items())
    ]


def _read_state(settings: ChannelSettings, rows: ChannelRows) -> AccountState:
    account = rows.value(f"label:{settings.label}", "account")
    stored = StoredState()
    text = rows.value(account, STATE) if account else ""
    if text:
        stored = msgspec.json.decode(text, type=StoredState)
    state = stored.state
    is_stale = rows.now_us() - stored.at > _STALE_US
    is_kept = state in {"refused", "broken"} and not is_stale
    if not is_kept and (is_stale or not rows.is_served(account)):
        # The process has ended or hangs.
        state = "off"
    info = PLATFORMS[settings.platform]
    return AccountState(
        settings.label,
        settings.platform,
        account,
        state,
        stored.error,
        stored.name,
        stored.heard_at,
        stored.received_at,
        stored.sent_at,
        rows.oldest_unsent(account) if account else 0,
        rows.counts(account) if account else {},
        info.promise_in,
        info.promise_out,
    )
