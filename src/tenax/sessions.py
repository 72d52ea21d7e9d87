"""The public path of `tenax.compat.sessions`."""

from tenax.compat.sessions import (
    AsyncSessionDB,
    Compacted,
    SessionDB,
    StoredMessage,
    Superseded,
    messages_of,
)

__all__ = [
    "AsyncSessionDB",
    "Compacted",
    "SessionDB",
    "StoredMessage",
    "Superseded",
    "messages_of",
]
