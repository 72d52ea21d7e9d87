"""Schedules on the page: added, listed with their next time and conversation, and removed."""

from __future__ import annotations

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, client, expect


def test_a_schedule_is_added_listed_and_removed(serve: Serve, window: Window) -> None:
    """What is not understood keeps what was typed; the link leads to its conversation."""
    served = serve("So be it.")
    tab = window.enter(served)
    tab.page.goto(f"{served.url}/settings/schedules")
    section = tab.page.get_by_role("region", name="Schedules")
    window.expects("status of 400")
    section.get_by_text("Add a schedule").click()
    tab.page.get_by_label("When").fill("soonish")
    tab.page.get_by_label("Prompt").fill("Water the <b>plants</b>.")
    section.get_by_role("button", name="Add", exact=True).click()
    expect(tab.page.get_by_text("is not a time that is understood")).to_be_visible()
    tab.page.get_by_label("When").fill("every weekday at 8")
    section.get_by_role("button", name="Add", exact=True).click()
    listed = section.get_by_role("listitem")
    expect(listed).to_contain_text("Water the <b>plants</b>.every weekday at 08:00")
    nothing_is_wrong(tab, "schedules")
    (made,) = client(served).get("/schedules")["schedules"]
    listed.get_by_role("link").click()
    expect(tab.page).to_have_url(f"{served.url}/c/{made['conversation']}")
    tab.page.goto(f"{served.url}/settings/schedules")
    tab.button("Remove: Water the <b>plants</b>.").click()
    expect(section.get_by_text("No schedules yet.")).to_be_visible()
