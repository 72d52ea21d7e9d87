"""What a person sees when an older copy of the store was put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import Serve, Window, expect
from tests.support.damage import copy_store, put_back

pytestmark = pytest.mark.crash


def test_the_page_says_what_is_missing_and_what_to_do(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """A banner that stays until the loss is accepted. The rows of the other history are gone from the page."""
    served = serve("Yes.", "Again.")
    tab = window.enter(served)
    tab.say("First")
    tab.answered("Yes.")
    served.stop()
    copy_store(served.home / "tenax.db", tmp_path / "copy")
    served.start()
    tab.say("Second")
    tab.answered("Again.")
    served.stop()
    put_back(tmp_path / "copy", served.home / "tenax.db")
    # Nothing is stored until the loss is accepted, so the page's read mark is refused.
    window.expects("status of 503")
    served.start()
    banner = tab.banner
    expect(banner).to_contain_text("The store is an older copy from")
    expect(banner).to_contain_text("2 messages are missing")
    expect(banner).to_contain_text("tenax doctor --accept")
    expect(tab.rows("assistant")).to_have_count(1)
    expect(tab.rows("assistant")).to_contain_text("Yes.")
    assert served.tenax("doctor", "--accept").returncode == 0
    expect(banner).not_to_contain_text("put back")
