"""What needs the person is seen elsewhere: in the title and the icon of the tab, and in notifications."""

from __future__ import annotations

import re

from playwright.sync_api import Locator

from tenax.models import Reply
from tests.browser.test_for_everybody import WRITE
from tests.support.browser import Serve, Tab, Window, client, expect

AMBER = re.compile("^data:image/svg.*23e0ad3c")
# A browser without a screen hides no page and shows no notification.
HIDDEN = """
Object.defineProperty(document, 'hidden', { get: () => window.__hidden === true });
window.__shown = [];
window.Notification = class {
  static permission = 'default';
  static asked = 0;
  static async requestPermission() { this.asked++; return (this.permission = 'granted'); }
  constructor(title, { body }) { window.__shown.push([title, body]); window.__last = this; }
  close() {}
};
"""


def icon(tab: Tab) -> Locator:
    return tab.page.locator("link[rel=icon]")


def test_the_title_counts_and_the_icon_marks_what_waits(
    serve: Serve, window: Window
) -> None:
    """In every tab, also of another conversation."""
    served = serve(Reply("May I?", calls=[WRITE]), "Thank you.")
    page = client(served)
    tab = window.enter(served)
    expect(tab.page).to_have_title("Tenax")
    expect(icon(tab)).to_have_attribute("href", re.compile("^/assets/mark"))
    for n in (1, 2):
        page.say(page.new(), f"Question {n}")
        expect(tab.page).to_have_title(f"({n}) Tenax")
    expect(icon(tab)).to_have_attribute("href", AMBER)
    tab.page.get_by_role("link", name="Question 1").click()
    expect(tab.page).to_have_title("(2) Question 1 · Tenax")
    tab.button("Allow once").click()
    expect(tab.page).to_have_title("(1) Question 1 · Tenax")
    tab.page.get_by_role("link", name="Question 2").click()
    tab.button("Allow once").click()
    expect(tab.page).to_have_title("Question 2 · Tenax")
    expect(icon(tab)).not_to_have_attribute("href", AMBER)


def test_a_notification_is_shown_only_to_somebody_who_wants_it_and_looks_elsewhere(
    serve: Serve, window: Window
) -> None:
    """The browser is asked for its permission only when the person turns notifications on. A click opens the conversation."""
    served = serve(Reply("May I?", calls=[WRITE]))
    window.context.add_init_script(HIDDEN)
    page = client(served)
    tab = window.enter(served)

    def ask(words: str) -> str:
        """Have a conversation wait for the person, and return its id."""
        name = page.new()
        page.say(name, words)
        return str(name)

    tab.page.evaluate("window.__hidden = true")
    ask("Before")
    expect(tab.page).to_have_title("(1) Tenax")
    assert tab.page.evaluate("[Notification.asked, window.__shown.length]") == [0, 0]
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_role("combobox").fill("notifications")
    tab.page.get_by_role("combobox").press("Enter")
    expect(tab.page.get_by_text("Notifications are on")).to_be_visible()
    assert tab.page.evaluate("Notification.asked") == 1
    tab.page.evaluate("window.__hidden = false")
    ask("Seen")
    expect(tab.page).to_have_title("(2) Tenax")
    assert tab.page.evaluate("window.__shown") == []
    tab.page.evaluate("window.__hidden = true")
    name = ask("Elsewhere")
    expect(tab.page).to_have_title("(3) Tenax")
    assert tab.page.evaluate("window.__shown") == [["Elsewhere", "Needs your answer"]]
    tab.page.evaluate("window.__last.onclick()")
    tab.page.wait_for_url(f"**/c/{name}")
