"""`tenax restore --adopt`: a store that was restored by other means is verified, and nothing is sent twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tenax
from tenax.archive.service import Adopted, adopt, back_up, restore
from tenax.channels.rows import ChannelRows, Outgoing
from tenax.clock import Timing
from tenax.config import Config, load
from tenax.errors import InvalidInput, NoSuchConversation, StoreDamaged
from tenax.events import ConversationOpened, RunFinished, RunStarted
from tenax.journal import Journal
from tenax.journal.base import Reader
from tenax.journal.spool import HeldEvent, Spool
from tenax.journal.verify.store import verify
from tests.archive.conftest import ConfigFor, NewUrl, count_rows, read_tables
from tests.support.damage import break_events, copy_store, put_back
from tests.support.world import build, words

TURNS = Reader("memory:notes:sync", "turns", "now")


@pytest.fixture
def config(new_url: NewUrl, source: str, config_for: ConfigFor) -> Config:
    """An installation with a store that has every kind of event."""
    config = config_for(new_url(source))
    with tenax.open(config.store_url, user="ada") as journal:
        build(journal)
    return config


def test_an_adopted_store_has_the_same_rows_and_a_new_incarnation(
    config: Config,
) -> None:
    url = config.store_url
    with tenax.open(url, user="ada") as journal:
        incarnation = journal.incarnation
        lease = journal.claim("gateway:x", "h", 3600.0)
        assert lease is not None
    before = read_tables(url)
    adopted = adopt(config)
    assert (adopted.conversations, adopted.missing) == (5, [])
    assert adopted.events > 50
    assert read_tables(url) == before
    assert count_rows(url, "leases") == count_rows(url, "instances") == 0
    with tenax.open(url, user="ada") as journal:
        assert journal.incarnation != incarnation
        assert verify(journal).ok
        assert journal.claim("gateway:x", "other", 1.0) is not None
    assert adopt(config) == adopted


def test_nothing_owed_is_sent_again_by_itself(config: Config) -> None:
    """A delivery under way is uncertain, and a turn that a memory provider is owed is a dead letter."""
    url = config.store_url
    with tenax.open(url, user="local") as journal:
        journal.behind(TURNS, limit=1)
        _add_turn(journal)
        _add_turn(journal)
        _add_delivery(journal)
        assert len(journal.behind(TURNS)) == 1
    adopt(config)
    assert [row["state"] for row in read_tables(url)["deliveries"]] == ["uncertain"]
    with tenax.open(url, user="local") as journal:
        assert journal.behind(TURNS) == []
        letters = journal.letters(TURNS.name)
        assert [(row.conversation, row.seq) for row in letters] == [("c", 4), ("c", 7)]
        assert verify(journal).ok
        _add_turn(journal)
        assert len(journal.behind(TURNS)) == 1
        assert len(journal.letters(TURNS.name)) == 2


def test_a_damaged_store_is_not_changed(config: Config) -> None:
    break_events(config.store_url, "c_talk", "message.user")
    before, leases = (
        read_tables(config.store_url),
        count_rows(config.store_url, "instances"),
    )
    with pytest.raises(StoreDamaged, match=r"not changed: it has \d+ problem"):
        adopt(config)
    assert read_tables(config.store_url) == before
    assert count_rows(config.store_url, "instances") == leases


def test_it_is_refused_while_another_process_uses_the_store(config: Config) -> None:
    config = replace(config, timing=Timing(adopt_seconds=0.0))
    with tenax.open(config.store_url) as journal:
        assert journal.instance
        with pytest.raises(InvalidInput, match="uses the store") as refused:
            adopt(config)
    assert refused.value.hint == "Stop it first."
    adopt(config)


def test_without_a_store_there_is_nothing_to_adopt(
    new_url: NewUrl, source: str, config_for: ConfigFor
) -> None:
    with pytest.raises(NoSuchConversation, match="no store to adopt"):
        adopt(config_for(new_url(source)))


def test_an_older_copy_is_adopted_without_the_missing_events(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    """The missing events are named, and the store takes messages again."""
    config = config_for(new_url("sqlite"))
    url = config.store_url
    path = Path(url.removeprefix("sqlite:///"))
    with tenax.open(url) as journal:
        journal.append("c", [ConversationOpened("local", "s")])
    copy_store(path, tmp_path / "copy")
    with tenax.open(url) as journal:
        journal.append("c", [words("lost")])
    put_back(tmp_path / "copy", path)
    assert adopt(config) == Adopted(1, 1, ["c: event 2 was stored, and is missing."])
    with tenax.open(url) as journal:
        assert journal.missing == []
        assert journal.append("c", [words("new")])[0].seq == 2


@pytest.mark.parametrize("by", ["adopt", "restore"])
def test_the_output_in_a_spool_of_a_dead_process_is_not_forgotten(
    by: str, config: Config, new_url: NewUrl, source: str, tmp_path: Path
) -> None:
    """The next server replays the spools of known processes only."""
    folder = config.directories.data / "spool"
    with tenax.open(config.store_url) as journal:
        owner = journal.instance
    spool = Spool(folder, f"{owner}.1")
    spool.write(HeldEvent("local", "c", "r", "message.user", b"{}", 1))
    spool.close(remove=False)
    if by == "adopt":
        adopt(config)
    else:
        back_up(config, tmp_path / "backups", keep=None, version="test")
        home = tmp_path / "new"
        config = load({"TENAX_HOME": str(home), "TENAX_STORE": new_url(source)})
        restore(config, tmp_path / "backups")
        assert (config.directories.data / "spool" / f"{owner}.1" / "spool").exists()
    with tenax.open(config.store_url) as journal:
        found = [(row.id, row.alive) for row in journal.instances()]
    assert found == [(owner, False)]


def _add_turn(journal: Journal) -> None:
    if not journal.conversations():
        journal.append("c", [ConversationOpened("local", "s")])
    run = journal.ids.run()
    journal.append("c", [words("hello")])
    journal.append(
        "c", [RunStarted(instance=journal.instance), RunFinished("completed")], run=run
    )


def _add_delivery(journal: Journal) -> None:
    rows = ChannelRows(journal)
    num = rows.number("local", "c")
    sending = Outgoing("telegram:1", "7", "", "a:1:2", 0, num, 2, "sending", "k")
    rows.put_delivery(sending)
