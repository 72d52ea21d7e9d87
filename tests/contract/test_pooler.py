"""A pooler between Tenax and PostgreSQL: one that hands out whole sessions works, one that shares them is named."""

from __future__ import annotations

import pytest

import tenax
from tenax.errors import CannotOpen
from tenax.journal.verify.store import verify
from tests.contract.engine.base import begin, said, say
from tests.support.pooler import Pooler


def test_a_pooler_that_hands_out_whole_sessions_works(postgres_url: str) -> None:
    """Writing, reading, leases and the news of other processes, although startup options are refused there."""
    with Pooler(postgres_url, "session") as pooler, tenax.open(pooler.url) as journal:
        name = begin(journal, say("one"))
        lease = journal.claim("work", "me", 5.0)
        assert lease is not None
        with tenax.open(pooler.url) as other:
            other.append(name, [say("two")])
            assert journal.wait(name, 2, seconds=60)
            assert other.holder("work") == "me"
        assert said(journal, name) == ["one", "two"]
        assert verify(journal).problems == []


def test_a_pooler_that_shares_sessions_is_refused_by_name(postgres_url: str) -> None:
    """Also where the store is there already. The error names the pooler, and the way out."""
    with Pooler(postgres_url, "transaction") as pooler:
        with pytest.raises(CannotOpen, match="pooler that shares sessions") as caught:
            tenax.open(pooler.url)
        assert "session" in caught.value.hint
        with tenax.open(postgres_url) as journal:
            name = begin(journal, say("one"))
            with pytest.raises(CannotOpen, match="pooler that shares sessions"):
                tenax.open(pooler.url)
            assert said(journal, name) == ["one"]
