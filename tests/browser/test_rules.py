"""The answer "always": what it would allow is read first, and Settings list it and take it back."""

from __future__ import annotations

from tenax.config import load
from tenax.config.rules import Rule
from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, client, expect

WRITE = ScriptedCall("write_file", {"path": "a[1]/b*.txt", "content": "held"})


def test_always_is_shown_in_full_kept_and_taken_back(
    serve: Serve, window: Window
) -> None:
    """Nothing is kept before the pattern was read; then nothing asks, until it is taken back or forbidden."""
    served = serve(
        Reply(calls=[WRITE]),
        "So be it.",
        Reply(calls=[WRITE]),
        "Again.",
        Reply(calls=[WRITE]),
        "No more.",
    )
    rules = lambda: load({"TENAX_HOME": str(served.home)}).rules  # noqa: E731  (what the file says)
    tab = window.enter(served)
    tab.say("Write it down")
    tab.button("Always…").click()
    expect(
        tab.button("Always allow write_file a[[]1]/b[*].txt (any content)")
    ).to_be_visible()
    nothing_is_wrong(tab, "always")
    assert rules() == ()
    tab.page.get_by_role("button", name="Always allow write_file a[[]1]/** (").click()
    tab.answered("So be it.")
    assert rules() == (Rule("allow", "write_file", "a[[]1]/**"),)
    tab.say("Once more")
    tab.answered("Again.")
    here = tab.page.url
    tab.page.goto(f"{served.url}/settings/permissions")
    listed = tab.page.get_by_role("region", name="Rules").get_by_role("listitem")
    expect(listed).to_have_text("Allow write_file a[[]1]/**Remove")
    tab.page.get_by_text("Add a rule").click()
    tab.page.get_by_role("textbox", name="Tool").fill("*_file")
    tab.page.get_by_role("textbox", name="Target").fill("a[[]*")
    tab.button("Add").click()
    expect(listed).to_have_count(2)
    nothing_is_wrong(tab, "rules")
    tab.button("Remove: Allow write_file a[[]1]/**").click()
    expect(listed).to_have_text(["Deny *_file a[[]*Remove"])
    assert rules() == (Rule("deny", "*_file", "a[[]*"),)
    tab.page.goto(here)
    tab.say("And once more")
    tab.answered("No more.")
    expect(tab.rows("tool", "denied")).to_have_count(1)


def test_the_button_for_the_conversation_says_what_it_allows(
    serve: Serve, window: Window
) -> None:
    """A button for each pattern; another file asks again, and the same one does not."""
    other = ScriptedCall("write_file", {"path": "c.txt", "content": "held"})
    served = serve(
        Reply(calls=[WRITE]), Reply(calls=[WRITE]), Reply(calls=[other]), "So be it."
    )
    tab = window.enter(served)
    tab.say("Write it down")
    here = tab.page.locator(".patterns button", has_text="in this conversation")
    label = "Allow in this conversation: write_file {} (any content)"
    tab.button("Always…").click()
    expect(here.first).to_have_accessible_name(label.format("a[[]1]/b[*].txt"))
    nothing_is_wrong(tab, "patterns")
    here.first.click()
    expect(tab.rows("tool", "done")).to_have_count(2)
    tab.button("Always…").click()
    expect(here.first).to_have_accessible_name(label.format("c.txt"))
    tab.button("Deny").click()
    tab.answered("So be it.")


CLICK_AT_ONCE = """details => {
    window.details = details;
    const click = () => {
        const button = document.querySelector('.choices .main:not([data-tried])');
        if (!button) return;
        button.dataset.tried = 'yes';
        for (const detail of window.details) button.dispatchEvent(new MouseEvent('click', { bubbles: true, detail }));
    };
    new MutationObserver(click).observe(document, { childList: true, subtree: true });
}"""
"""Clicks on a card in the moment in which it appears, as the browser counts the clicks of a series."""


def test_a_click_that_was_meant_for_something_else_is_no_answer(
    serve: Serve, window: Window
) -> None:
    """One in the moment in which the card appears, and the second one of a double click. A key answers at once."""
    served = serve(Reply(calls=[WRITE]), "So be it.", Reply(calls=[WRITE]), "Again.")
    tab = window.enter(served)
    tab.page.evaluate(CLICK_AT_ONCE, [1, 2])
    tab.say("Write it down")
    expect(tab.page.locator(".choices .main[data-tried]")).to_be_enabled()
    tab.page.locator("body").dispatch_event("click", {"detail": 1})
    tab.button("Allow once").dispatch_event("click", {"detail": 2})
    tab.button("Deny").click()
    tab.answered("So be it.")
    expect(tab.rows("tool", "denied")).to_have_count(1)
    tab.page.evaluate("window.details = [0]")
    tab.say("Once more")
    tab.answered("Again.")
    expect(tab.rows("tool", "done")).to_have_count(1)


def test_clicks_in_a_series_answer_the_card_where_it_began_and_no_other(
    serve: Serve, window: Window
) -> None:
    """Who clicks again and again, from the moment the card appears, is heard once."""
    served = serve(Reply(calls=[WRITE]), Reply(calls=[WRITE]), "So be it.")
    tab = window.enter(served)
    tab.page.evaluate(CLICK_AT_ONCE, [1])
    tab.say("Write it down")
    expect(tab.page.locator(".choices .main[data-tried]")).to_be_enabled()
    tab.page.evaluate("window.details = [3]")
    tab.button("Allow once").dispatch_event("click", {"detail": 2})
    expect(tab.rows("tool", "done")).to_have_count(1)
    expect(tab.page.locator(".choices .main[data-tried]")).to_be_enabled()
    tab.button("Allow once").dispatch_event("click", {"detail": 4})
    tab.button("Deny").click()
    tab.answered("So be it.")
    tab.unfold()
    expect(tab.rows("tool", "denied")).to_have_count(1)


def test_a_rule_that_is_made_elsewhere_shows_on_return(
    serve: Serve, window: Window
) -> None:
    """The list of the rules is read again when the person comes back to the tab."""
    served = serve(
        Reply(calls=[ScriptedCall("write_file", {"path": "top.txt", "content": "x"})]),
        "Done.",
    )
    tab = window.enter(served)
    tab.say("Write it down")
    tab.button("Always…").click()
    expect(tab.button("Always allow write_file top.txt (any content)")).to_be_visible()
    tab.page.goto(f"{served.url}/settings/permissions")
    expect(tab.page.get_by_text("No rules yet.")).to_be_visible()
    client(served).post("/rules", {"verdict": "deny", "tool": "x"})
    tab.page.evaluate("window.dispatchEvent(new Event('focus'))")
    expect(
        tab.page.get_by_role("region", name="Rules").get_by_role("listitem")
    ).to_have_text("Deny x *Remove")
