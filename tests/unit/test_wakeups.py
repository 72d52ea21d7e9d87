"""Wake-ups inside the process."""

from __future__ import annotations

import pytest

from tenax.errors import StoreMisused
from tenax.journal.wakeups import Wakeups


def test_who_could_not_begin_to_listen_does_not_listen() -> None:
    """While anybody does, an engine looks for other processes many times a second."""
    wakeups = Wakeups()

    def refuse() -> None:
        raise StoreMisused("The store was closed.")

    wakeups.on_first = refuse
    with pytest.raises(StoreMisused), wakeups.listening(1, lambda: None):
        pass
    assert not wakeups.wanted
