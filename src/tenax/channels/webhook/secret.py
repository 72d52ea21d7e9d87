"""The secret of a webhook, in the form of Standard Webhooks. Needs no package."""

from __future__ import annotations

import base64
import secrets
from typing import Final

__all__ = ["is_secret", "make_secret"]

_PREFIX: Final = "whsec_"
_BYTES: Final = 32
_BYTES_MIN: Final = 24
_BYTES_MAX: Final = 64


def make_secret() -> str:
    """Return a new random secret."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def is_secret(text: str) -> bool:
    """Return whether a text is a secret: `whsec_`, and 24 to 64 bytes in base64."""
    if not text.startswith(_PREFIX):
        return False
    try:
        decoded = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:
        return False
    return _BYTES_MIN <= len(decoded) <= _BYTES_MAX
