"""How often the crash tests repeat what they do: a few times in `make proof`, often in `make nightly`."""

from __future__ import annotations

import os

FULL = os.environ.get("TENAX_COUNTS") == "full"
"""Whether the crash tests run with the full counts. The target `nightly` of the Makefile sets the variable."""


def repeat(usual: int, full: int) -> int:
    """Return the usual count, or the full count if the tests run with the full counts."""
    return full if FULL else usual
