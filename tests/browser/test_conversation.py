"""What a person does in a conversation: queue, steer, stop, take back, rename, search, scroll."""

from __future__ import annotations

import re
from pathlib import Path

import tenax
from tenax.events import Event, MessageAssistant, MessageUser
from tenax.journal import LOCAL_USER
from tenax.models import Call, Reply
from tenax.parts import Text
from tests.support.browser import Serve, Tab, Window, expect
from tests.support.turns import new_conversation

SLOW = " ".join(f"word{n:03}" for n in range(60))
MESSAGES = 2000


def said(tab: Tab) -> list[str]:
    """All rows, as `kind: text`."""
    found: list[str] = tab.page.eval_on_selector_all(
        "[data-row]",
        "rows => rows.map(row => `${row.dataset.kind}: ${row.querySelector('.text')?.textContent.trim() ?? ''}`)",
    )
    return found


def test_a_message_queues_behind_the_answer(serve: Serve, window: Window) -> None:
    """It is marked as waiting, and answered after what is being written."""
    tab = window.enter(serve(Reply(SLOW, pause=0.03), "And that."))
    tab.say("First")
    tab.shows("word005")
    tab.say("Second", "Queue")
    expect(tab.rows("user", "queued")).to_contain_text("Queued: it is answered after what is being written.")
    tab.answered("And that.")
    assert said(tab) == ["user: First", f"assistant: {SLOW}", "user: Second", "assistant: And that."]
    expect(tab.button("Send")).to_be_visible()


def test_a_message_steers_the_next_step(serve: Serve, window: Window) -> None:
    """It stands after the tool that ran meanwhile, and before the words that heed it."""
    read = Call("read_file", {"path": "nothing.txt"})
    tab = window.enter(serve(Reply(SLOW, pause=0.03, calls=[read]), "Heeded."))
    tab.say("First")
    tab.shows("word005")
    tab.say("Mind the gap", "Steer")
    expect(tab.rows("user", "steering")).to_contain_text("Steering: it goes in with the next step.")
    tab.answered("Heeded.")
    kinds = [each.partition(":")[0] for each in said(tab)]
    assert kinds == ["user", "assistant", "tool", "user", "assistant"]
    assert said(tab)[3] == "user: Mind the gap"
    assert tab.rows("user", "steering").count() == 0


def test_stop_ends_the_answer_where_it_is(serve: Serve, window: Window) -> None:
    """What was written stays, the turn says so, and the next message is answered."""
    tab = window.enter(serve(Reply(SLOW, pause=0.05), "On we go."))
    tab.say("First")
    tab.shows("word005")
    tab.button("Stop").click()
    expect(tab.rows("marker", "stopped")).to_have_text(re.compile("^Stopped."))
    kept = tab.texts("assistant")[0]
    assert SLOW.startswith(kept)
    assert len(kept) < len(SLOW)
    assert kept.startswith(tab.seen[-1])
    expect(tab.button("Send")).to_be_visible()
    tab.say("Go on")
    tab.answered("On we go.")
    assert tab.texts("assistant")[0] == kept


def test_a_draft_is_kept_over_a_reload_for_each_conversation(serve: Serve, window: Window) -> None:
    """And is gone once it was sent."""
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    address = f"{served.url}/c/{tab.conversation}"
    tab.box.fill("half a\nthought")
    tab.page.goto(served.url)
    expect(tab.box).to_have_value("")
    tab.box.fill("another")
    tab.page.goto(address)
    expect(tab.box).to_have_value("half a\nthought")
    tab.page.reload()
    expect(tab.box).to_have_value("half a\nthought")
    tab.box.press("Enter")
    tab.answered("Yes.", count=2)
    assert tab.texts("user") == ["Hello", "half a\nthought"]
    tab.page.reload()
    tab.answered("Yes.", count=2)
    expect(tab.box).to_have_value("")


def test_what_is_taken_back_can_be_restored(serve: Serve, window: Window) -> None:
    """The last message, or all of it; a second tab sees the same."""
    served = serve("One.", "Two.")
    tab = window.enter(served)
    tab.say("First")
    tab.answered("One.")
    tab.say("Second")
    tab.answered("Two.", count=2)
    other = window.tab(f"{served.url}/c/{tab.conversation}")
    other.answered("Two.", count=2)
    whole = said(tab)
    for item, left in (("Undo the last message", whole[:2]), ("Clear", [])):
        expect(tab.button("Send")).to_be_visible()
        tab.menu(item)
        for each in (tab, other):
            expect(each.rows()).to_have_count(len(left))
            assert said(each) == left
        tab.button("Undo that").click()
        for each in (tab, other):
            expect(each.rows()).to_have_count(len(whole))
            assert said(each) == whole


def test_a_new_title_stands_everywhere(serve: Serve, window: Window) -> None:
    """In the list, above the conversation, in the tab's name, and in another tab."""
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    other = window.tab(served.url)
    tab.menu("Rename")
    title = tab.page.get_by_label("Title")
    title.fill("Matters of state")
    title.press("Enter")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Matters of state")
    expect(tab.page).to_have_title("Matters of state · Tenax")
    for each in (tab, other):
        expect(each.page.locator("[data-conversation] .title")).to_have_text("Matters of state")


def long_talk(home: Path) -> str:
    """A conversation of two thousand messages, in a store that nothing serves yet."""
    events: list[Event] = []
    for n in range(MESSAGES // 2):
        events += [
            MessageUser([Text(f"Question {n}")]),
            MessageAssistant([Text(f"Answer {n}.\n\n- " + "a line\n- " * (n % 7))]),
        ]
    url = f"sqlite:///{home / 'tenax.db'}"
    name = new_conversation(url)
    with tenax.open(url, user=LOCAL_USER) as journal:
        for at in range(0, MESSAGES, 200):
            journal.append(name, events[at : at + 200])
    return name


def test_a_long_conversation_opens_at_its_end_and_loads_upwards_without_jumping(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Two thousand messages: the last is in sight at once, and what one looks at stays while older rows come."""
    name = long_talk(tmp_path)
    served = serve("Yes.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/c/{name}")
    expect(tab.rows("assistant").last).to_contain_text(f"Answer {MESSAGES // 2 - 1}.")
    expect(tab.rows("assistant").last).to_be_in_viewport()
    for _ in range(3):
        loaded, moved = tab.page.evaluate(SCROLL_UP)
        assert loaded > 0
        assert abs(moved) <= 2, f"what was in sight jumped by {moved} pixels"
    numbers = [int(re.findall(r"\d+", each)[0]) for each in tab.texts("user")]
    assert numbers == list(range(numbers[0], MESSAGES // 2)), "a hole, or a repeat"
    tab.button("Jump to the end").click()
    expect(tab.rows("assistant").last).to_be_in_viewport()
    tab.say("One more")
    tab.answered("Yes.")
    expect(tab.rows("assistant").last).to_be_in_viewport()


# Scroll to the first row; then wait until rows are above it, and say how many, and how far the first one moved.
SCROLL_UP = """async () => {
  const box = document.querySelector('.transcript');
  const frame = () => new Promise(requestAnimationFrame);
  const first = box.querySelector('[data-row]');
  const before = box.querySelectorAll('[data-row]').length;
  for (let n = 0; n < 3; n++) await frame();
  box.scrollTop = 100;
  const top = first.getBoundingClientRect().top;
  for (let n = 0; n < 600 && box.querySelectorAll('[data-row]').length === before; n++) await frame();
  for (let n = 0; n < 10; n++) await frame();
  return [box.querySelectorAll('[data-row]').length - before, first.getBoundingClientRect().top - top];
}"""


def test_a_search_opens_the_conversation_at_the_message(serve: Serve, window: Window, tmp_path: Path) -> None:
    """Far up in a long conversation: it is in sight, and marked."""
    long_talk(tmp_path)
    tab = window.enter(serve("Yes."))
    tab.page.keyboard.press("Control+k")
    search = tab.page.get_by_label("Search all conversations")
    expect(search).to_be_focused()
    search.fill('"Question 417"')
    hit = tab.page.locator("a[data-hit]")
    expect(hit).to_have_count(1)
    expect(hit).to_contain_text("You: Question 417")
    hit.click()
    found = tab.page.locator(".row.hit")
    found.wait_for()  # to expect more of so long a page takes Playwright seconds, each time
    assert found.locator(".text").text_content() == "Question 417"
    expect(found).to_be_in_viewport()
