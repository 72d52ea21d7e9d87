"""A moved store has every row, and the old store is the truth until the settings name the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenax
from tenax.archive.service import move
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.journal.verify.store import verify
from tests.archive.conftest import ConfigFor, NewUrl, read_tables


def test_a_moved_store_has_every_row_and_can_move_back(
    world_url: str, target: str, source: str, new_url: NewUrl, config_for: ConfigFor
) -> None:
    before = read_tables(world_url)
    url, back = new_url(target), new_url(source)
    switched: list[str] = []
    moved = move(config_for(world_url), url, switch=lambda: switched.append(url))
    assert moved.conversations == 5
    assert switched == [url]
    move(config_for(url), back, switch=lambda: switched.append(back))
    assert read_tables(url) == before
    assert read_tables(back) == before
    assert read_tables(world_url) == before
    with tenax.open(back, user="ada") as journal:
        assert verify(journal).ok
        assert journal.search("first").unindexed >= 0


def test_a_running_tenax_is_named(
    new_url: NewUrl, config_for: ConfigFor, source: str
) -> None:
    """A process that might still write keeps the store where it is."""
    url = new_url(source)
    with tenax.open(url) as journal:
        assert journal.claim("turn", "holder", 60) is not None
        with pytest.raises(InvalidInput, match="Tenax is running on"):
            move(config_for(url), new_url("sqlite"), switch=lambda: None)


def test_a_place_with_a_store_is_refused(
    world_url: str, new_url: NewUrl, config_for: ConfigFor, target: str
) -> None:
    url = new_url(target)
    tenax.open(url).close()
    with pytest.raises(InvalidInput, match="There is a store already"):
        move(config_for(world_url), url, switch=lambda: None)


def test_there_must_be_a_store(new_url: NewUrl, config_for: ConfigFor) -> None:
    url = new_url("sqlite")
    with pytest.raises(NoSuchConversation, match="no store to move"):
        move(config_for(url), new_url("sqlite"), switch=lambda: None)
    assert not Path(url.removeprefix("sqlite:///")).exists()
