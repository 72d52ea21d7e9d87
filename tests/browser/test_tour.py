"""The tour: a person without a model sees a server die in the middle of an answer, and the answer go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.browser import Serve, Tab, Window, expect

pytestmark = pytest.mark.crash

# Python runs this when it starts: the same tour, told more than twice as fast. test_newcomer.py takes it as it is.
HURRIED = """
import sys
if "tenax.web" in sys.orig_argv:
    from tenax.agent import tour
    unhurried = tour.Reply
    tour.Reply = lambda *said, pause, **more: unhurried(*said, pause=pause * 0.4, **more)
"""


def pull_the_plug(tab: Tab) -> str:
    """From the first screen to the answer that goes on after a kill; what stood there before it."""
    tab.page.get_by_role("button", name="Take the tour").click()
    asks = tab.rows("tool", "asks")
    expect(asks).to_contain_text("tour/hello.md")
    expect(asks).to_contain_text(
        "Tenax asked before it wrote this file, and you said yes."
    )
    tab.button("Allow once").click()
    tab.shows("Readers that hold a number")
    before = tab.seen[-1]
    tab.button("Pull the plug").click()
    tab.hears("The server was killed. Your work is saved.")
    tab.hears("Reconnected.")
    expect(tab.rows("marker", "resumed")).to_have_count(1)
    return before


def take_the_tour(tab: Tab) -> None:
    """From the first screen to the card at the end, with the plug pulled on the way."""
    before = pull_the_plug(tab)
    expect(tab.rows("assistant").last).to_contain_text(
        "That is all I hold on to: everything.", timeout=60_000
    )
    expect(tab.page.get_by_role("heading", name="Nothing was lost.")).to_be_visible()
    # What stood there before the kill still does, to the letter.
    rows = tab.read_all()
    answers = [text for kind, text, _ in rows if kind == "assistant"]
    assert before in "|".join(answers[:-1]), "a word that was shown is missing"
    assert [kind for kind, _, _ in rows].count("tool") == 1
    tab.button("Verify data").click()
    proof = tab.page.locator(".proof")
    expect(proof).to_contain_text("All data verified.")
    assert "bad" not in (proof.get_attribute("class") or "")


def test_the_tour_is_taken_to_its_end_with_the_plug_pulled(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Nothing shown is gone, nothing is asked or written twice, the store proves itself, and a terminal is one line away."""
    window.expects(r"net::ERR_")
    (tmp_path / "sitecustomize.py").write_text(HURRIED)
    served = serve(env={"PYTHONPATH": str(tmp_path)})
    tab = window.enter(served)
    before = served.server()
    take_the_tour(tab)
    assert served.server() != before
    assert (
        (served.home / "work" / "tour" / "hello.md")
        .read_text()
        .startswith("# Written on the tour")
    )
    command = tab.page.locator(".card .command code").inner_text()
    assert re.search(rf"tenax -c {tab.conversation}$", command)
    shown = served.tenax("show", tab.conversation).stdout
    assert "That is all I hold on to: everything." in shown
