"""What a person does with one message or answer: copy, edit, retry, switch versions, branch, and try again."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Route

from tenax.models import Reply, Trouble
from tests.support.browser import Pace, Serve, Tab, Window, expect

SLOW = " ".join(f"word{n:03}" for n in range(60))


def act(tab: Tab, kind: str, name: str, nth: int = -1) -> None:
    """Press a button of a row."""
    rows = tab.rows(kind)
    row = rows.last if nth == -1 else rows.nth(nth)
    row.get_by_role("button", name=name, exact=True).click()


def test_an_edited_message_is_answered_again_and_both_versions_stay(
    serve: Serve, window: Window
) -> None:
    """Esc leaves the message alone. A second tab shows the same versions, and a reload too."""
    served = serve("One.", "Two.")
    tab = window.enter(served)
    tab.say("First")
    tab.answered("One.")
    tab.say("Second")
    tab.answered("Two.", count=2)
    other = window.tab(f"{served.url}/c/{tab.conversation}")
    other.answered("Two.", count=2)
    act(tab, "user", "Edit", 0)
    box = tab.page.get_by_label("Edited message")
    expect(box).to_be_focused()
    expect(box).to_have_value("First")
    box.fill("Something else")
    box.press("Escape")
    assert tab.texts("user") == ["First", "Second"]
    act(tab, "user", "Edit", 0)
    box.fill("First, but better")
    box.press("Enter")
    for each in (tab, other):
        each.answered("One.", count=1)
        assert each.texts("user") == ["First, but better"]
        expect(each.rows("user").locator(".versions")).to_have_text("2/2")
    act(other, "user", "Previous version")
    for each in (tab, other):
        each.answered("Two.", count=2)
        assert each.texts("user") == ["First", "Second"]
        expect(each.rows("user").first.locator(".versions")).to_have_text("1/2")
    tab.page.reload()
    tab.answered("Two.", count=2)
    act(tab, "user", "Next version", 0)
    tab.answered("One.", count=1)
    expect(tab.rows("user").locator(".versions")).to_have_text("2/2")


def test_a_queued_message_is_edited_and_cancelled(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Both reach every tab at once, while the answer goes on. Up edits the last queued message."""
    pace = Pace(tmp_path, 20)
    served = serve(Reply(SLOW, pause=0.03), "And that.", env=pace.env)
    tab = window.enter(served)
    tab.say("First")
    tab.shows("word005")
    tab.say("Second", "Queue")
    tab.say("Third", "Queue")
    other = window.tab(f"{served.url}/c/{tab.conversation}")
    for each in (tab, other):
        expect(each.rows("user", "queued")).to_have_count(2)
    act(tab, "user", "Cancel message")
    for each in (tab, other):
        expect(each.rows("user", "queued")).to_have_count(1)
        assert each.texts("user") == ["First", "Second"]
    other.box.press("ArrowUp")
    box = other.page.get_by_label("Edited message")
    expect(box).to_have_value("Second")
    box.fill("Second, but better")
    box.press("Enter")
    for each in (tab, other):
        expect(each.rows("user", "queued")).to_contain_text("Second, but better")
    pace.say()
    for each in (tab, other):
        each.answered("And that.")
        assert each.texts("user") == ["First", "Second, but better"]
        expect(each.rows("user").locator(".versions")).to_have_count(0)


def test_a_message_whose_answer_began_is_not_cancelled(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The tab did not hear yet that the answer began. One sentence says so."""
    pace = Pace(tmp_path, 20)
    tab = window.enter(serve(Reply(SLOW, pause=0.03), "And that.", env=pace.env))
    window.expects("409")
    tab.say("First")
    tab.shows("word005")
    tab.say("Second", "Queue")
    cancel = tab.rows("user", "queued").get_by_role("button", name="Cancel message")
    routes: list[Route] = []

    def hold(route: Route) -> None:
        routes.append(route)

    tab.page.route("**/withdraw", hold)
    cancel.click()
    pace.say()
    tab.answered("And that.")
    routes[0].continue_()
    sentence = "This message no longer waits: its answer has begun, or it was removed."
    expect(tab.page.locator(".toast", has_text=sentence)).to_be_visible()
    assert tab.texts("user") == ["First", "Second"]


def test_an_answer_is_given_again(serve: Serve, window: Window) -> None:
    """Retry keeps the earlier answer as a version."""
    tab = window.enter(serve("One."))
    tab.say("First")
    tab.answered("One.")
    act(tab, "assistant", "Retry")
    expect(tab.rows("user").locator(".versions")).to_have_text("2/2")
    tab.answered("One.", count=1)
    assert tab.texts("user") == ["First"]


def test_a_conversation_branches_at_an_answer(serve: Serve, window: Window) -> None:
    """The copy ends with that answer, and its title says that it is a copy."""
    served = serve("One.", "Two.")
    tab = window.enter(served)
    tab.say("First")
    tab.answered("One.")
    tab.say("Second")
    tab.answered("Two.", count=2)
    before = tab.conversation
    tab.menu("Rename")
    tab.page.get_by_label("Title").fill("Numbers")
    tab.page.get_by_label("Title").press("Enter")
    expect(tab.page.locator("h1")).to_have_text("Numbers")
    act(tab, "assistant", "Branch from here", 0)
    expect(tab.page.locator("h1")).to_have_text("Numbers (2)")
    tab.answered("One.", count=1)
    assert tab.texts("user") == ["First"]
    assert tab.conversation != before


def test_the_last_answer_keeps_its_actions_above_the_changed_files(
    serve: Serve, window: Window
) -> None:
    """Copy is visible although a row about files follows the answer."""
    tab = window.enter(serve("One."))
    tab.say("First")
    tab.answered("One.")
    actions = tab.rows("assistant").locator(".actions")
    expect(actions).to_have_css("opacity", "1")
    tab.page.evaluate(
        """() => {
          const row = document.createElement('li');
          row.className = 'row';
          row.dataset.kind = 'files';
          document.querySelector('ol.rows').append(row);
        }"""
    )
    tab.page.mouse.move(0, 0)
    expect(actions).to_have_css("opacity", "1")


def test_an_answer_that_failed_is_tried_again(serve: Serve, window: Window) -> None:
    """The error is a card with a way on, and the message is answered after all."""
    refusal = Trouble("refused", "The model is on holiday.", times=1)
    tab = window.enter(serve(Reply("Back again.", trouble=refusal)))
    tab.say("Hello")
    card = tab.page.get_by_role("region", name="Error")
    expect(card).to_contain_text("Something went wrong.")
    expect(card).to_contain_text("The model is on holiday.")
    expect(card.get_by_role("link", name="Open settings")).to_be_visible()
    card.get_by_role("button", name="Try again").click()
    tab.answered("Back again.")
    expect(card).to_have_count(0)
    assert tab.texts("user") == ["Hello"]


def test_a_message_and_an_answer_are_copied(serve: Serve, window: Window) -> None:
    tab = window.enter(serve("One."))
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.say("First")
    tab.answered("One.")
    for kind, text in (("user", "First"), ("assistant", "One.")):
        act(tab, kind, "Copy")
        expect(
            tab.rows(kind).get_by_role("button", name="Copied", exact=True)
        ).to_be_visible()
        assert tab.page.evaluate("navigator.clipboard.readText()") == text


def test_an_answer_at_the_maximum_length_is_continued(
    serve: Serve, window: Window
) -> None:
    """One click asks the model to go on."""
    tab = window.enter(serve(Reply("The first half", finish="length"), "The rest."))
    tab.say("Tell me all")
    line = tab.rows("assistant", "full")
    expect(line).to_contain_text("Reached the maximum length.")
    tab.button("Continue").click()
    tab.answered("The rest.")
    assert tab.texts("user") == ["Tell me all", "Continue."]
    expect(tab.button("Continue")).to_have_count(0)
