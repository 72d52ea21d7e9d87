"""A bot on Discord on the page: the steps are shown, and a wrong token is refused with advice."""

from __future__ import annotations

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, expect


def test_the_steps_of_discord_are_shown_and_a_wrong_token_is_refused(
    serve: Serve, window: Window
) -> None:
    """Discord is one of the chat apps to choose from, and nothing is saved without a valid token."""
    served = serve("Yes.")
    tab = window.enter(served)
    window.expects("/api/channels")
    tab.page.goto(f"{served.url}/settings/chats")
    tab.page.get_by_role("radio", name="Discord").check()
    steps = tab.page.locator(".steps")
    expect(steps).to_contain_text("Message Content Intent")
    nothing_is_wrong(tab, "chat apps")
    tab.page.get_by_label("Token").fill("123456789:AAF")
    tab.button("Connect").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("page Bot of the application")
