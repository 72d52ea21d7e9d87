"""What a person does in a conversation: queue, steer, stop, take back, rename, search, scroll."""

from __future__ import annotations

import re
from pathlib import Path

import tenax
from tenax.events import Event, MessageAssistant, MessageUser
from tenax.journal import LOCAL_USER
from tenax.models import Reply, ScriptedCall
from tenax.parts import Text
from tests.support.browser import Chromium, Pace, Serve, Tab, Window, client, expect
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


def test_a_message_queues_behind_the_answer(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """It is marked as waiting, and answered after what is being written."""
    pace = Pace(tmp_path, 20)
    tab = window.enter(serve(Reply(SLOW, pause=0.03), "And that.", env=pace.env))
    tab.say("First")
    tab.shows("word005")
    tab.say("Second", "Queue")
    expect(tab.rows("user", "queued")).to_contain_text(
        "Queued. Sends when the current answer is done."
    )
    pace.say()
    tab.answered("And that.")
    assert said(tab) == [
        "user: First",
        f"assistant: {SLOW}",
        "user: Second",
        "assistant: And that.",
    ]
    expect(tab.button("Send")).to_be_visible()


def test_a_message_steers_the_next_step(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """It stands after the tool that ran meanwhile, and before the words that heed it."""
    read = ScriptedCall("read_file", {"path": "nothing.txt"})
    pace = Pace(tmp_path, 20)
    tab = window.enter(
        serve(Reply(SLOW, pause=0.03, calls=[read]), "Heeded.", env=pace.env)
    )
    tab.say("First")
    tab.shows("word005")
    tab.say("Mind the gap", "Steer")
    expect(tab.rows("user", "steering")).to_contain_text(
        "Will be read at the next step, or after this answer"
    )
    pace.say()
    tab.answered("Heeded.")
    kinds = [each.partition(":")[0] for each in said(tab)]
    assert kinds == ["user", "assistant", "tool", "user", "assistant"]
    assert said(tab)[3] == "user: Mind the gap"
    assert tab.rows("user", "steering").count() == 0


def test_stop_ends_the_answer_where_it_is(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """What was written stays, the turn says so, and the next message is answered."""
    tab = window.enter(
        serve(Reply(SLOW, pause=0.05), "On we go.", env=Pace(tmp_path, 20).env)
    )
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


def test_a_draft_is_kept_over_a_reload_for_each_conversation(
    serve: Serve, window: Window
) -> None:
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
    for item, left in (("Remove last message", whole[:2]), ("Clear", [])):
        expect(tab.button("Send")).to_be_visible()
        tab.menu(item)
        for each in (tab, other):
            expect(each.rows()).to_have_count(len(left))
            assert said(each) == left
        tab.button("Undo").click()
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
        expect(each.page.locator("[data-conversation] .title")).to_have_text(
            "Matters of state"
        )


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
        assert loaded > 600
        assert abs(moved) <= 2, f"what was in sight jumped by {moved} pixels"
    numbers = [int(re.findall(r"\d+", text)[0]) for text in tab.texts("user")]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a hole, or a repeat"
    tab.button("Jump to the end").click()
    expect(tab.rows("assistant").last).to_be_in_viewport()
    tab.say("One more")
    tab.answered("Yes.")
    expect(tab.rows("assistant").last).to_be_in_viewport()


# Scroll up; then wait until rows are above, and say how many pixels they take, and how far the first row in sight moved.
SCROLL_UP = """async () => {
  const box = document.querySelector('.transcript');
  const frame = () => new Promise(requestAnimationFrame);
  const edge = box.getBoundingClientRect().top;
  const inSight = () => [...box.querySelectorAll('[data-row]')].find(
    (row) => row.getBoundingClientRect().bottom > edge && row.getBoundingClientRect().top < edge + box.clientHeight);
  for (let n = 0; n < 3; n++) await frame();
  box.scrollTop = 100;
  for (let n = 0; n < 600 && inSight() === undefined; n++) await frame();
  const first = inSight();
  const top = first.getBoundingClientRect().top;
  for (let n = 0; n < 600 && box.scrollTop < 600; n++) await frame();
  for (let n = 0; n < 10; n++) await frame();
  return [box.scrollTop, first.isConnected ? first.getBoundingClientRect().top - top : NaN];
}"""


def test_only_the_messages_scroll(serve: Serve, window: Window) -> None:
    """However long they are, the page itself is as tall as the window, also for the headings that nobody sees."""
    tab = window.enter(serve(Reply("A line.\n\n" * 12)))
    for count in (1, 2, 3):
        tab.say(f"Message {count}")
        expect(tab.rows("assistant", "")).to_have_count(count)
    tab.rows("user").first.evaluate("row => row.scrollIntoView()")
    expect(tab.rows("user").first).to_be_in_viewport()
    more = "document.documentElement.scrollHeight - window.innerHeight"
    assert tab.page.evaluate(more) == 0
    assert tab.page.evaluate("window.scrollY") == 0


def test_a_search_opens_the_conversation_at_the_message(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Far up in a long conversation: it is in sight, and marked."""
    long_talk(tmp_path)
    tab = window.enter(serve("Yes."))
    expect(tab.box).to_be_focused()  # from here on the page listens
    tab.box.press("Escape")
    tab.page.keyboard.press("/")
    search = tab.page.get_by_label("Search all conversations")
    expect(search).to_be_focused()
    search.fill('"Question 417"')
    hit = tab.page.locator("a[data-hit]")
    expect(hit).to_have_count(1)
    expect(hit).to_contain_text("You: Question 417")
    hit.click()
    found = tab.page.locator(".row.hit")
    # to expect more of so long a page takes Playwright seconds, each time
    found.wait_for()
    assert found.locator(".text").text_content() == "Question 417"
    expect(found).to_be_in_viewport()


def test_a_hit_that_is_chosen_again_is_shown_again(
    serve: Serve, window: Window
) -> None:
    """Somebody scrolled away from it meanwhile."""
    tab = window.enter(serve("line\n\n" * 80))
    tab.say("The giraffe")
    tab.shows("line")
    tab.page.get_by_label("Search all conversations").fill("giraffe")
    hit = tab.page.locator("a[data-hit]", has_text="You:")
    for _ in range(2):
        hit.click()
        expect(tab.page.locator(".row.hit")).to_be_in_viewport()
        tab.button("Jump to the end").click()
        expect(tab.page.locator(".row.hit")).not_to_be_in_viewport()


def test_a_search_that_fails_says_why(serve: Serve, window: Window) -> None:
    """Also the first one, before anything was found."""
    window.expects("Failed to load resource")
    tab = window.enter(serve("Yes."))
    tab.page.get_by_label("Search all conversations").fill("x" * 1001)
    expect(tab.page.get_by_role("navigation")).to_contain_text(
        "A search takes at most 1,000 characters"
    )


def test_an_address_that_is_none_says_that_nothing_is_there(
    serve: Serve, window: Window
) -> None:
    """One that was cut in the middle of a character, say, in a mail."""
    served = serve("Yes.")
    window.enter(served)
    tab = window.tab(f"{served.url}/c/%E0%A4%A")
    expect(
        tab.page.get_by_text("This conversation was deleted or does not exist")
    ).to_be_visible()


def test_what_is_asked_next_is_in_sight_for_who_only_watches(
    chromium: Chromium, serve: Serve
) -> None:
    """A tall question gives way to a line, and then the next one comes: the end is followed all the same."""
    calls = [
        ScriptedCall("write_file", {"path": f"{n}.md", "content": "line\n" * 40})
        for n in range(6)
    ]
    served = serve(*(Reply(calls=[call]) for call in calls), "Done.")
    with chromium.window(viewport={"width": 390, "height": 800}) as window:
        tab = window.enter(served)
        slow = window.context.new_cdp_session(tab.page)
        # as a phone: two changes come in one frame
        slow.send("Emulation.setCPUThrottlingRate", {"rate": 8})
        tab.say("Write them")
        other = client(served)
        for n in range(6):
            asked = tab.page.get_by_role("region", name="Approval needed").filter(
                has_text=f"{n}.md"
            )
            expect(asked.get_by_role("button", name="Allow once")).to_be_in_viewport()
            [question] = other.get(f"/conversations/{tab.conversation}/approvals")[
                "questions"
            ]
            named = {"message": question["message"], "call": question["call"]}
            other.post(
                f"/conversations/{tab.conversation}/approvals",
                {**named, "answer": "once"},
            )
        tab.answered("Done.")


def test_what_is_as_tall_as_before_after_a_change_is_still_followed(
    serve: Serve, window: Window
) -> None:
    """Something gives way and as much comes, within one frame: the browser moved the page meanwhile, nobody else did."""
    tab = window.enter(serve("line\n\n" * 80))
    tab.say("Go on")
    tab.answered("line " * 79 + "line")
    assert tab.page.evaluate(GIVE_WAY) < 2
    expect(tab.button("Jump to the end")).to_have_count(0)


# Take the answer away and put it back, with a look at the page between; then say how far from the end one is.
GIVE_WAY = """async () => {
  const box = document.querySelector('.transcript');
  const answer = [...box.querySelectorAll('[data-kind=assistant]')].pop();
  const frame = () => new Promise(requestAnimationFrame);
  for (let n = 0; n < 3; n++) await frame();
  answer.style.display = 'none';
  box.scrollTop;
  answer.style.display = '';
  for (let n = 0; n < 3; n++) await frame();
  return box.scrollHeight - box.scrollTop - box.clientHeight;
}"""


def test_a_finger_that_goes_up_slowly_is_let_go_while_an_answer_grows(
    chromium: Chromium, serve: Serve
) -> None:
    """Each word more would pull the end back under it: the first pixel upwards is the wish to stay."""
    words = "\n\n".join(
        f"Paragraph {n} has words enough for two lines of a phone." for n in range(90)
    )
    served = serve(Reply(words, pause=0.02))
    with chromium.window(
        viewport={"width": 390, "height": 600}, has_touch=True
    ) as window:
        tab = window.enter(served)
        tab.say("Tell me")
        tab.shows("Paragraph 12 ")
        finger = window.context.new_cdp_session(tab.page)
        for y in range(200, 400, 5):
            touch = {
                "type": "touchMove" if y > 200 else "touchStart",
                "touchPoints": [{"x": 190, "y": y}],
            }
            finger.send("Input.dispatchTouchEvent", touch)
            tab.page.wait_for_timeout(20)
        finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        expect(tab.button("Jump to the end")).to_be_visible()
        tab.button("Jump to the end").click()
        expect(tab.button("Jump to the end")).to_have_count(0)


def test_a_list_that_is_scrolled_to_its_end_goes_on(
    serve: Serve, window: Window
) -> None:
    """However many conversations there are, one look at the end brings the next of them."""
    served = serve("Yes.")
    other = client(served)
    oldest = other.new()
    for _ in range(119):
        other.new()
    tab = window.enter(served)
    items = tab.page.get_by_role("navigation").locator("[data-conversation]")
    expect(items).to_have_count(50)
    for count in (100, 120):
        items.last.scroll_into_view_if_needed()
        expect(items).to_have_count(count)
    expect(items.last).to_have_attribute("data-conversation", oldest)


def test_the_way_back_leaves_a_question_behind(serve: Serve, window: Window) -> None:
    """What is asked of one conversation is not answered in front of another; and a link that leads here adds no step."""
    tab = window.enter(serve("Yes."))
    tab.say("The first")
    tab.answered("Yes.")
    first = tab.conversation
    new = tab.page.get_by_role("link", name="New conversation", exact=True)
    new.click()
    new.click()
    tab.say("The second")
    tab.answered("Yes.")
    tab.menu("Delete")
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    tab.page.go_back()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("The first")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert tab.conversation == first


def test_a_toast_with_a_word_without_end_fits_the_screen(
    serve: Serve, window: Window
) -> None:
    """So that the button which takes it away can be reached."""
    name = "Pneumono" * 20 + ".md"
    served = serve(
        Reply(calls=[ScriptedCall("write_file", {"path": name, "content": "held"})]),
        "Done.",
    )
    client(served).post(
        "/rules", {"verdict": "allow", "tool": "*_file", "touches": "*"}
    )
    tab = window.enter(served)
    tab.say("Write it")
    tab.answered("Done.")
    tab.rows("files").locator("summary").click()
    tab.button("Revert changes").click()
    expect(
        tab.page.locator(".toast", has_text="Reverted: ").get_by_role(
            "button", name="Dismiss"
        )
    ).to_be_in_viewport(ratio=1)
