"""The chat apps that Tenax knows. A chat app is imported when an account of it is used."""

from __future__ import annotations

from tenax.channels.base import Channel
from tenax.channels.commands import COMMANDS
from tenax.config.schema import ChannelSettings
from tenax.errors import ConfigError

__all__ = ["connect"]


def connect(settings: ChannelSettings) -> Channel:
    """Return the channel of an account. No request is made. Raises `ConfigError` if a setting or a package is missing."""
    if settings.token is None:
        raise ConfigError(
            f"channels.{settings.label} has no token.",
            hint=f"Set it with: tenax channel add {settings.platform} --label {settings.label}",
        )
    token = settings.token.reveal()
    try:
        from tenax.channels.telegram.channel import TelegramChannel  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError(
            f"{settings.platform.capitalize()} needs a package that is not installed.",
            hint=f"Install it with: pip install 'tenax[{settings.platform}]'",
        ) from error
    url = (settings.url or "").rstrip("/")
    return TelegramChannel(
        token,
        base_url=f"{url}/bot" if url else "",
        base_file_url=f"{url}/file/bot" if url else "",
        commands=COMMANDS,
    )
