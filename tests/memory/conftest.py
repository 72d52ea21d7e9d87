"""What the tests of memories share: time."""

from __future__ import annotations

from functools import partial

import pytest

from tenax.memory import MemoryManager

SECONDS = 60.0


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory has all the time that it needs to answer: on a busy machine a quarter of a second may be too short."""
    monkeypatch.setattr("tenax.memory.memory.RECALL_SECONDS", SECONDS)
    monkeypatch.setattr(
        "tenax.memory.service.MemoryManager",
        partial(MemoryManager, recall_seconds=SECONDS),
    )


@pytest.fixture
def hurried(unhurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Providers from outside have the time that they have in earnest."""
    monkeypatch.setattr("tenax.memory.service.MemoryManager", MemoryManager)


@pytest.fixture
def unhurried_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that is closed waits for what it owes, however busy the machine is."""
    monkeypatch.setattr("tenax.runtime.runtime._CLOSE_SECONDS", SECONDS)
