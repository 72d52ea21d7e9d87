"""A served Tenax that most tests share, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenax.models import Call, Reply
from tests.support.served import Page, Served
from tests.support.turns import set_up

SLOW = "word " * 60


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for what does not end it. It answers each first message at once."""
    home = tmp_path_factory.mktemp("served")
    set_up(home, [Reply("Forty-two, I think.")])
    with Served(home) as served:
        yield served


@pytest.fixture(scope="session")
def page(shared: Served) -> Page:
    return shared.browser()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Served]:
    """A server of the test's own, which takes seconds to answer."""
    set_up(tmp_path, [Reply(SLOW, pause=0.05)])
    with Served(tmp_path) as served:
        yield served


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Served]:
    """A server whose model wants to write a file."""
    write = Call("write_file", {"path": "a/note.txt", "content": "held"})
    set_up(tmp_path, [Reply("May I?", calls=[write]), Reply("Thank you.")])
    with Served(tmp_path) as served:
        yield served
