"""Open on my phone: a QR code, or the reason why a phone cannot reach the server."""

from __future__ import annotations

import json

from playwright.sync_api import Locator, Route

from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Tab, Window, expect


def open_on_phone(tab: Tab, url: str) -> Locator:
    """Open the part of the settings, and return it."""
    tab.page.goto(f"{url}/settings/devices")
    devices = tab.page.get_by_role("region", name="Devices")
    devices.get_by_role("button", name="Open on my phone").click()
    return devices


def test_a_server_on_this_machine_only_says_how_to_change_it(
    serve: Serve, window: Window
) -> None:
    """And makes no link that cannot work."""
    served = serve("Yes.")
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    devices = open_on_phone(tab, served.url)
    expect(devices).to_contain_text("a phone cannot reach it")
    expect(devices).to_contain_text("tenax serve --host 0.0.0.0")
    expect(devices.get_by_role("img")).to_have_count(0)
    assert not [url for url in window.requests if "/devices/links" in url]


def test_the_code_is_drawn_by_the_page(serve: Serve, window: Window) -> None:
    """A new one on request. The link is in no request."""
    served = serve("Yes.")
    codes: list[str] = []

    def reachable(route: Route) -> None:
        answer = route.fetch()
        body = {**answer.json(), "address": "http://192.0.2.7:8629"}
        route.fulfill(status=200, body=json.dumps(body))

    def note(route: Route) -> None:
        answer = route.fetch()
        codes.append(answer.json()["code"])
        route.fulfill(response=answer)

    window.context.route("**/api/devices", reachable)
    window.context.route("**/api/devices/links", note)
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    devices = open_on_phone(tab, served.url)
    devices.get_by_role("button", name="Show the code").click()
    code = devices.get_by_role("img", name="QR code")
    expect(code).to_be_visible()
    expect(devices).to_contain_text("It opens http://192.0.2.7:8629")
    nothing_is_wrong(tab, "QR code")
    first = code.locator("path").get_attribute("d")
    devices.get_by_role("button", name="Make a new code").click()
    expect(code.locator("path")).not_to_have_attribute("d", first or "")
    assert len(set(codes)) == 2
    assert not [url for url in window.requests if any(one in url for one in codes)]
