"""Wake-ups inside the process."""

from __future__ import annotations

import pytest

from tenax.errors import StoreMisused
from tenax.journal.hub import Hub


def test_who_could_not_begin_to_listen_does_not_listen() -> None:
    """While anybody does, an engine looks for other processes many times a second."""
    hub = Hub()

    def refuse() -> None:
        raise StoreMisused("The store was closed.")

    hub.on_first = refuse
    with pytest.raises(StoreMisused), hub.listening(1, lambda: None):
        pass
    assert not hub.wanted
