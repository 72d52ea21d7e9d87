"""The public path of `tenax.compat.lifecycle`."""

from tenax.compat.lifecycle import (
    SessionLifecycle,
)

__all__ = ["SessionLifecycle"]
