"""Signing in on a homeserver, when an account is connected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenax.channels.matrix.requests import Requests, Times, path_of
from tenax.errors import ChannelAway, ChannelRefused, InvalidInput, NotAuthorized

__all__ = ["sign_in"]

_TOKEN_CHARS_MIN: Final = 16


async def sign_in(values: Mapping[str, Any], secret: str) -> tuple[dict[str, str], str]:
    """Return the user, the device and the access token of an account.

    `secret` is an access token, or the password of the user in `values`. A known device is used again, because the
    homeserver recognises a repeated message by the device. Raises `InvalidInput` for a wrong secret, and `ChannelAway`.
    """
    url, user = str(values["url"]), str(values.get("user") or "")
    token = secret
    found = await _whoami(url, secret) if _may_be_token(secret) else None
    if found is None and not user:
        raise InvalidInput(
            "Matrix: the homeserver refuses the access token.",
            hint="Copy the whole access token again, or enter the user id and the password.",
        )
    if found is None:
        device = str(values.get("device") or "")
        found = await _log_in(url, user, secret, device)
        token = str(found.get("access_token", ""))
    found_user, found_device = found.get("user_id"), found.get("device_id")
    if not isinstance(found_user, str) or not isinstance(found_device, str):
        raise InvalidInput(
            "Matrix: the access token belongs to no device.",
            hint="Enter the user id and the password. Tenax then signs in as a device of its own.",
        )
    if user not in {"", found_user}:
        raise InvalidInput(
            f"Matrix: the access token belongs to {found_user:.100}, and not to {user:.100}.",
            hint="Enter the access token of this user, or the user id of this access token.",
        )
    return {"user": found_user, "device": found_device}, token


def _may_be_token(secret: str) -> bool:
    is_plain = secret.isascii() and secret.isprintable() and " " not in secret
    return is_plain and len(secret) >= _TOKEN_CHARS_MIN


async def _whoami(url: str, token: str) -> dict[str, Any] | None:
    """Return the account of an access token, or `None` if the homeserver does not know the token."""
    requests = Requests(url, token, Times())
    try:
        found = await requests.get(path_of("account", "whoami"), "sign in")
    except NotAuthorized:
        return None
    except ChannelRefused as refused:
        raise _no_homeserver(refused) from None
    finally:
        await requests.close()
    return dict(found)


async def _log_in(url: str, user: str, password: str, device: str) -> dict[str, Any]:
    content = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": user},
        "password": password,
        "initial_device_display_name": "Tenax",
    }
    if device:
        content["device_id"] = device
    requests = Requests(url, "", Times())
    try:
        found = await requests.post(path_of("login"), content, "sign in")
    except (ChannelRefused, NotAuthorized) as refused:
        code = getattr(refused, "code", "")
        if code in {"M_UNRECOGNIZED", "M_NOT_FOUND"}:
            raise _no_homeserver(refused) from None
        raise InvalidInput(
            "Matrix: the homeserver refuses the user id and the password.",
            hint="Check both. A homeserver without passwords needs an access token.",
        ) from None
    finally:
        await requests.close()
    return dict(found)


def _no_homeserver(refused: Exception) -> ChannelAway:
    return ChannelAway(
        f"{refused} Check the address: it is the address of the homeserver, such as https://matrix.example.org."
    )
