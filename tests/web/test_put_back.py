"""An older copy of the store is put back while a page is open: it is told, and never mixes two histories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenax.models import Reply
from tests.support.damage import copy_store, put_back, put_back_in_place
from tests.support.served import Served, is_done
from tests.support.turns import set_up

pytestmark = pytest.mark.crash


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    home = tmp_path / "home"
    home.mkdir()
    set_up(home, [Reply("Yes."), Reply("Again.")])
    with Served(home) as served:
        yield served


def test_a_page_is_told_what_is_missing_until_that_is_accepted(
    served: Served, tmp_path: Path
) -> None:
    """The server starts, shows what there is, and refuses messages with a way out; then it takes them again."""
    page = served.browser()
    name = page.new()
    with page.stream(f"-~{name}:") as stream:
        page.say(name, "First.")
        stream.read_until(name, is_done)
    served.stop()
    path = served.home / "tenax.db"
    copy_store(path, tmp_path / "copy")
    served.start()
    with page.stream(f"-~{name}:") as stream:
        page.say(name, "Second.")
        stream.read_until(
            name, lambda rows: "Again." in {row.get("text") for row in rows.values()}
        )
        cursor = stream.cursor
    served.stop()
    put_back(tmp_path / "copy", path)
    served.start()
    with page.stream(cursor) as stream:
        assert stream.until("hello")["incarnation"] != cursor.partition("~")[0]
        lacks = stream.until("store")["lacks"]
        assert (lacks["messages"], lacks["conversations"]) == (2, 1)
        assert lacks["to"]
        # a snapshot, and not what came after a number of another history
        stream.until("rows")
        texts = {row.get("text") for row in stream.rows[name].values()}
        assert {"First.", "Yes."} <= texts
        assert not texts & {"Second.", "Again."}
        key = {"Idempotency-Key": "third"}
        refused = page.post(
            f"/conversations/{name}/messages", {"text": "Third."}, status=503, **key
        )
        assert "tenax doctor --accept" in refused["hint"]
        accepted = served.tenax("doctor", "--accept")
        assert accepted.returncode == 0, accepted.stdout + accepted.stderr
        assert stream.until("store")["lacks"] is None
        page.say(name, "Third.")
        stream.read_until(
            name, lambda rows: "Third." in {row.get("text") for row in rows.values()}
        )


def test_an_open_page_takes_back_what_was_lost_under_it(
    served: Served, tmp_path: Path
) -> None:
    """The copy is put back into the file that the server has open. The page is told once the server has noticed."""
    page = served.browser()
    name = page.new()
    url = f"sqlite:///{served.home / 'tenax.db'}"
    with page.stream(f"-~{name}:") as stream:
        page.say(name, "First.")
        stream.read_until(name, is_done)
        with put_back_in_place(url, tmp_path / "copy"):
            page.say(name, "Second.")
            stream.read_until(
                name,
                lambda rows: (
                    is_done(rows)
                    and "Again." in {row.get("text") for row in rows.values()}
                ),
            )
        key = {"Idempotency-Key": "third"}
        page.post(
            f"/conversations/{name}/messages", {"text": "Third."}, status=503, **key
        )
        stream.read_until(
            name,
            lambda rows: "Second." not in {row.get("text") for row in rows.values()},
        )
        assert "First." in {row.get("text") for row in stream.rows[name].values()}
