"""A conversation of 20,000 messages stays usable: few nodes in the document, no jump, every message reachable."""

from __future__ import annotations

from pathlib import Path

import tenax
from tenax.events import (
    Event,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
)
from tenax.journal import LOCAL_USER
from tenax.parts import Text
from tests.support.browser import Serve, Window, expect
from tests.support.turns import new_conversation

MESSAGES = 20_000
BATCH = 500
NODES_MAX = 1500
SCREENS = 120
"""Enough screens to load many pages above."""

# Scroll up screen by screen. Note the number of nodes, and by how much the first row of the screen moved although nobody scrolled it.
SCROLL_UP = """async (screens) => {
  const box = document.querySelector('.transcript');
  const frame = () => new Promise(requestAnimationFrame);
  const edge = box.getBoundingClientRect().top;
  const visible = () => [...box.querySelectorAll('ol.rows > [data-row]')].find(
    (row) => row.getBoundingClientRect().bottom > edge && row.getBoundingClientRect().top < edge + box.clientHeight);
  let [nodes, jump, blank] = [0, 0, 0];
  for (let n = 0; n < screens; n++) {
    box.scrollTop -= box.clientHeight * 0.8;
    await frame();
    await frame();
    const row = visible();
    if (row === undefined) blank++;
    const top = row?.getBoundingClientRect().top ?? 0;
    for (let wait = 0; wait < 6; wait++) await frame();
    if (row?.isConnected) jump = Math.max(jump, Math.abs(row.getBoundingClientRect().top - top));
    nodes = Math.max(nodes, document.querySelectorAll('*').length);
  }
  return { nodes, jump, blank };
}"""


def long_talk(home: Path) -> str:
    """Write the conversation into the store."""
    url = f"sqlite:///{home / 'tenax.db'}"
    name = new_conversation(url)
    with tenax.open(url, user=LOCAL_USER) as journal:
        for first in range(0, MESSAGES // 2, BATCH):
            run = f"r_{first}"
            begin = MessageUser([Text(f"begin {first}")], ask=True)
            asked = journal.append(name, [begin])[0].seq
            events: list[Event] = [RunStarted([asked])]
            for n in range(first, first + BATCH):
                request = asked + len(events) + 2
                answer = f"answer {n} " + "word " * (n % 60)
                events += [
                    MessageUser([Text(f"question {n}")], ask=False),
                    ModelRequested(1, "", "m", 1.0, []),
                    MessageAssistant([Text(answer)], request),
                ]
            journal.append(name, [*events, RunFinished("completed")], run=run)
    return name


def test_twenty_thousand_messages_stay_scrollable(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    name = long_talk(tmp_path)
    served = serve("Yes.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    tab.shows(f"answer {MESSAGES // 2 - 1}")
    seen = tab.page.evaluate(SCROLL_UP, SCREENS)
    assert seen["nodes"] <= NODES_MAX
    assert seen["jump"] < 2
    assert seen["blank"] == 0

    # a message far above, which is not loaded
    tab.page.goto(f"{served.url}/c/{name}#user-3")
    expect(tab.rows("user").filter(has_text="question 0").first).to_be_in_viewport()
    assert tab.page.locator("*").count() <= NODES_MAX
    tab.button("Jump to the end").click()
    expect(tab.rows("assistant").last).to_be_in_viewport()
    tab.shows(f"answer {MESSAGES // 2 - 1}")
    assert tab.page.locator("*").count() <= NODES_MAX
