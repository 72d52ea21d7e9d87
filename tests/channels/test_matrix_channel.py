"""The channel of Matrix beside a fake homeserver: what comes in, what goes out, and who is heard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenax.models.scripted import Reply
from tests.support.matrix import FakeMatrix
from tests.support.matrix_world import MatrixWorld


@pytest.fixture
def matrix() -> Iterator[FakeMatrix]:
    with FakeMatrix() as matrix:
        yield matrix


async def test_a_message_is_answered(matrix: FakeMatrix, tmp_path: Path) -> None:
    """A message in a private chat is stored once and answered there, with formatting."""
    async with MatrixWorld(matrix, "sqlite", tmp_path, [Reply("**Yes.**")]) as world:
        matrix.say("Hello")
        await world.shows("**Yes.**")
        assert world.words() == ["Hello"]
        (message,) = [found for found in matrix.messages() if found.from_bot]
        assert message.html == "<p><strong>Yes.</strong></p>"
