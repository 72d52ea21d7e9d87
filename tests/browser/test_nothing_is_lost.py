"""An answer is read once, from its first word to its last, whatever happens to the page, the network or the server."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tenax.models import Reply
from tests.support.browser import (
    SECONDS,
    Beside,
    Pace,
    Serve,
    Tab,
    Window,
    Wire,
    client,
    expect,
)

ANSWER = " ".join(f"word{n:03}" for n in range(90))
SLOW = Reply(ANSWER, pause=0.05)
LOST = "Reconnecting… Your work is saved."
CUT = r"net::ERR_|Failed to load resource"

pytestmark = pytest.mark.crash


def words(tab: Tab, number: int) -> str:
    """Wait until the answer has so many words; all that is shown of it."""
    tab.shows(f"word{number:03}")
    return tab.seen[-1]


def only_grew(texts: list[str], answer: str = ANSWER) -> None:
    """No repeat and no hole: each text is the beginning of the answer, and none is shorter than the one before."""
    assert texts
    for text in texts:
        assert answer.startswith(text)
    assert texts == sorted(texts, key=len)


def test_an_answer_streams_and_a_reload_goes_on_where_it_was(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The first text after the reload is at least what was read before."""
    pace = Pace(tmp_path, 1)
    tab = window.enter(serve(SLOW, env=pace.env))
    tab.say("Count.")
    for n in range(15):  # each word is shown before the next is said
        pace.say(n + 1)
        words(tab, n)
    pace.say(30)
    before = words(tab, 20)
    only_grew(tab.seen)
    assert len(tab.seen) > 10, "it did not stream"
    tab.page.reload()
    pace.say()
    words(tab, 40)
    assert len(tab.seen[0]) >= len(before)
    tab.answered(ANSWER, count=1)
    only_grew(tab.seen)
    assert tab.texts("user") == ["Count."]


def test_without_network_a_message_waits_and_is_sent_once_by_itself(
    serve: Serve, window: Window, beside: Beside, tmp_path: Path
) -> None:
    """The page says that it is cut off; what was typed is marked, and the answer goes on when the network is back."""
    window.expects(CUT)
    pace = Pace(tmp_path, 30)
    served = serve(SLOW, "And more.", env=pace.env)
    wire = beside.enter(Wire(served))
    tab = window.tab(wire.link(served))
    tab.say("Count.")
    words(tab, 10)
    beside.run(wire.cut())
    window.context.set_offline(True)
    expect(tab.banner).to_have_attribute("data-connection", "lost")
    tab.say("And then?")
    unsent = tab.rows("user", "unsent")
    expect(unsent).to_contain_text("Not sent yet. Will send when the server responds.")
    other = client(served)
    before = tab.seen[-1]  # what had arrived is rendered in its own time
    pace.say()
    rows = other.rows(tab.conversation)
    deadline = time.monotonic() + SECONDS
    while rows[-1].get("state") == "streaming":  # the server goes on without a reader
        assert time.monotonic() < deadline
        time.sleep(0.05)
        rows = other.rows(tab.conversation)
    assert [row["kind"] for row in rows] == ["user", "assistant"]
    assert tab.seen[-1] == before
    beside.run(wire.mend())
    window.context.set_offline(False)
    tab.hears("Reconnected.")
    tab.answered("And more.", count=2)
    only_grew([each for each in tab.seen if "|" not in each])
    assert tab.texts("user") == ["Count.", "And then?"]
    assert [row["kind"] for row in other.rows(tab.conversation)] == [
        "user",
        "assistant",
    ] * 2


def test_what_is_written_while_a_new_conversation_waits_for_the_network_stays_in_the_box(
    serve: Serve, window: Window, beside: Beside
) -> None:
    """The next message, half written, goes along to the conversation that is opened; with what is attached to it."""
    window.expects(CUT)
    served = serve("Yes.")
    wire = beside.enter(Wire(served))
    tab = window.tab(wire.link(served))
    expect(tab.box).to_be_visible()
    tab.page.get_by_label("Files to attach").set_input_files(
        {"name": "note.txt", "mimeType": "text/plain", "buffer": b"held"}
    )
    chips = tab.page.get_by_label("Attachments").get_by_role("listitem")
    expect(chips.get_by_role("progressbar")).to_have_count(0)
    beside.run(wire.cut())
    tab.say("The first.")
    tab.page.get_by_label("Files to attach").set_input_files(
        {"name": "next.txt", "mimeType": "text/plain", "buffer": b"next"}
    )
    tab.box.fill("Half of the sec")
    expect(chips).to_contain_text("next.txt was not uploaded")
    beside.run(wire.mend())
    tab.answered("Yes.", count=1)
    expect(tab.box).to_have_value("Half of the sec")
    chips.get_by_role("button", name="Try again").click()
    expect(chips).to_contain_text("next.txt 1 KB")
    # A message is not sent while an attachment is being uploaded.
    expect(chips.get_by_role("progressbar")).to_have_count(0)
    tab.say("Half of the second.")
    expect(tab.rows("user", "").last).to_contain_text("next.txt")
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(tab.box).to_have_value("")
    expect(chips).to_have_count(0)


def test_the_first_message_opens_its_conversation_also_if_another_tab_sends_it(
    serve: Serve, window: Window
) -> None:
    """The tabs share the unsent messages. The tab that sends the message stays where it is."""
    window.expects(CUT)
    served = serve("Yes.")
    tab = window.enter(served)
    other = window.tab(served.url)
    expect(other.box).to_be_visible()
    tab.page.route(
        "**/api/conversations",
        lambda route: (
            route.abort() if route.request.method == "POST" else route.continue_()
        ),
    )
    with tab.page.expect_event("requestfailed"):
        tab.say("Hello")
    other.page.evaluate("dispatchEvent(new Event('online'))")
    tab.answered("Yes.")
    assert tab.texts("user") == ["Hello"]
    assert not other.page.url.startswith(f"{served.url}/c/")


def test_half_a_message_that_the_browser_has_no_room_for_is_there_while_the_page_is(
    serve: Serve, window: Window
) -> None:
    """As one that is longer than all that a browser keeps: a look at another conversation does not cost it."""
    tab = window.enter(serve("Yes."))
    tab.say("The first.")
    tab.answered("Yes.")
    tab.page.evaluate("""() => {
      for (let size = 2 ** 22; size >= 1; size = size / 2)
        for (let n = 0; n < 2; n++) try { localStorage.setItem(`${size} ${n}`, "x".repeat(size)); } catch {}
    }""")
    tab.box.fill("Half of the sec")
    tab.page.get_by_role("link", name="New conversation", exact=True).click()
    expect(tab.box).to_have_value("")
    tab.page.go_back()
    expect(tab.box).to_have_value("Half of the sec")
    tab.box.press("Enter")
    expect(tab.rows("user", "").last).to_contain_text("Half of the sec")
    expect(tab.box).to_have_value("")


def test_a_page_that_slept_goes_on(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """As when a laptop sleeps: what was written meanwhile comes at once, and goes on."""
    pace = Pace(tmp_path, 12)
    served = serve(SLOW, env=pace.env)
    other, tab = client(served), window.enter(served)
    tab.say("Count.")
    tab.page.evaluate(
        "window.__beats = []; setInterval(() => __beats.push(performance.now()), 20)"
    )
    name, before = tab.conversation, words(tab, 10)
    with window.asleep(), other.stream(f"-~{name}:") as stream:
        pace.say()
        stream.read_until(
            name, lambda _rows: len(stream.text(name)) > len(before) + 8 * 30
        )
    tab.answered(ANSWER, count=1)
    only_grew(tab.seen)
    beats: list[float] = tab.page.evaluate("window.__beats")
    assert max(after - before for before, after in pairwise(beats)) > 500, (
        "it was not asleep"
    )


def test_eight_tabs_are_live_and_each_can_send(serve: Serve, window: Window) -> None:
    """More than a browser has connections for, if each tab took one."""
    served = serve("Yes.")
    first = window.enter(served)
    first.say("From tab 0")
    first.answered("Yes.")
    tabs = [
        first,
        *(window.tab(f"{served.url}/c/{first.conversation}") for _ in range(7)),
    ]
    for number, tab in enumerate(tabs[1:], 1):
        expect(tab.rows("assistant", "")).to_have_count(number)
        tab.say(f"From tab {number}")
    for tab in tabs:
        expect(tab.rows("assistant", "")).to_have_count(8)
        assert tab.texts("user") == [f"From tab {number}" for number in range(8)]
        assert tab.texts("assistant") == ["Yes."] * 8


def test_every_character_shown_before_a_kill_stands_after_it(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """`kill -9` of the server in mid-answer, with two tabs open: both say so, and that it is back."""
    window.expects(CUT)
    pace = Pace(tmp_path, 30)
    served = serve(SLOW, env=pace.env)
    tabs = [window.enter(served)]
    tabs[0].say("Count.")
    tabs.append(window.tab(f"{served.url}/c/{tabs[0].conversation}"))
    for tab in tabs:
        words(tab, 20)
    served.kill_server()
    pace.say()
    for tab in tabs:
        tab.hears("Reconnected.")
        assert tab.told == [LOST, "Reconnected."]
    for tab in tabs:
        expect(tab.rows("marker", "resumed")).to_have_count(1)
        expect(tab.rows("assistant", "")).to_have_count(1)
        tab.answered(ANSWER)
        kept = tab.texts("assistant")[:-1]
        assert len(kept) == 1
        alone = [each for each in tab.seen if "|" not in each]
        only_grew(alone)
        assert kept[0].startswith(alone[-1]), "a word that was shown is missing"
        assert ANSWER.startswith(kept[0])
    rows = client(served).rows(tabs[0].conversation)
    assert [row["text"].strip() for row in rows if row["kind"] == "assistant"] == [
        kept[0],
        ANSWER,
    ]


def test_the_banner_tells_that_the_server_is_gone(serve: Serve, window: Window) -> None:
    """A server that is ended and started again: lost, then back, without a click."""
    window.expects(CUT)
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    expect(tab.button("Send")).to_be_visible()
    assert served.stop()[0] == 0
    tab.hears(LOST)
    served.start()
    tab.hears("Reconnected.")
    tab.say("Still there?")
    tab.answered("Yes.", count=2)
