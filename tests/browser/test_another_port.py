"""A hostile server on another port of the host gets the owner's cookie from the browser, and can do nothing with it."""

from __future__ import annotations

import re
import sys

import httpx
import pytest

from tenax.web.app import endpoints
from tests.support.browser import SECONDS, Chromium, Serve, Window, client, expect
from tests.support.neighbour import Neighbour


def test_another_port_gets_the_cookie_and_can_do_nothing_with_it(
    serve: Serve, window: Window
) -> None:
    """Neither its server, which sends what it likes, nor its page in the same browser."""
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    window.expects("CORS|ERR_FAILED|ERR_BLOCKED|status of 40[13]")
    with Neighbour(served.url) as neighbour:
        theirs = window.context.new_page()
        theirs.goto(neighbour.url)
        expect(theirs.locator("#tried")).to_have_text(
            "read:|stream:|write:|sign in:|storage:|picture:"
        )
        (stolen,) = {cookie for cookie in neighbour.cookies if cookie}
    assert stolen.startswith("tenax_"), (
        "browsers send the cookies of a host to all its ports"
    )
    # The server is no browser: it says what the page would say, and has all but the key.
    headers = {"cookie": stolen, "Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(
        base_url=served.url,
        headers=headers,
        trust_env=False,
        verify=False,
        timeout=SECONDS,
    ) as http:
        server = {"name": "mine", "command": [sys.executable, "-c", "0"]}
        assert http.post("/api/mcp", json=server).status_code == 401
        for endpoint in endpoints():
            if not endpoint.public:
                path = re.sub(r"{\w+}", "1", endpoint.path)
                answer = http.request(
                    endpoint.method, path, json={} if endpoint.body else None
                )
                assert answer.status_code == 401, endpoint.path
                assert "key" not in answer.json()
        signed = http.post("/api/sign-in", json={"code": "x" * 24})
        assert (signed.status_code, "key" in signed.json()) == (403, False)
    assert len(client(served).get("/conversations")["conversations"]) == 1
    tab.say("Still there?")
    tab.answered("Yes.", count=2)


def test_a_second_tab_and_a_reload_need_no_link(serve: Serve, window: Window) -> None:
    """The key is kept for this port, and the shared worker learns it from whichever tab comes."""
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    tab.page.reload()
    tab.answered("Yes.")
    second = window.tab(tab.page.url)
    second.answered("Yes.")
    tab.page.close()
    second.say("And here?")
    second.answered("Yes.", count=2)
    assert "code=" not in second.page.url


def test_without_the_key_the_page_says_how_to_come_in(
    serve: Serve, window: Window
) -> None:
    """So does a browser with a cookie of an earlier version: one sentence, and the command."""
    window.expects("status of 401")
    served = serve("Yes.")
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    tab.page.evaluate("localStorage.removeItem('tenax.key')")
    tab.page.reload()
    expect(tab.page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    expect(
        tab.page.get_by_text("This browser was signed out, or its sign-in has expired.")
    ).to_be_visible()
    expect(tab.page.get_by_text("tenax link", exact=True)).to_be_visible()
    tab.page.goto(served.tenax("link").stdout.strip())
    expect(tab.box).to_be_visible()


def test_somebody_elses_link_asks_before_it_replaces_ones_own_sign_in(
    serve: Serve, window: Window
) -> None:
    """Staying changes nothing, and the link stays good."""
    # what the other tab showed is not of the new user
    window.expects("status of 40[14]")
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    link = served.tenax("link", "--user", "berta").stdout.strip()
    theirs = window.context.new_page()
    theirs.goto(link)
    expect(theirs.get_by_role("heading", name="Sign in as berta?")).to_be_visible()
    theirs.get_by_role("button", name="Stay signed in as local").click()
    theirs.wait_for_url(re.compile(r"/$"))
    expect(theirs.get_by_role("link", name=re.compile("Hello"))).to_be_visible()
    theirs.goto(link)
    theirs.get_by_role("button", name="Sign in as berta").click()
    theirs.wait_for_url(re.compile(r"/$"))
    expect(theirs.get_by_label("Message", exact=True)).to_be_visible()
    expect(theirs.get_by_role("link", name=re.compile("Hello"))).to_have_count(0)
    expect(tab.page.get_by_role("link", name=re.compile("Hello"))).to_have_count(0)


def test_somebody_elses_link_asks_also_where_another_port_deleted_the_cookie(
    serve: Serve, window: Window
) -> None:
    """The page remembers whose browser it is. Its own link needs no question."""
    window.expects("status of 401")
    served = serve("Yes.")
    expect(window.enter(served).box).to_be_visible()
    window.context.clear_cookies()
    theirs = window.context.new_page()
    theirs.goto(served.tenax("link", "--user", "berta").stdout.strip())
    theirs.get_by_role("button", name="Stay signed in as local").click()
    expect(theirs.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    theirs.goto(served.tenax("link").stdout.strip())
    expect(theirs.get_by_label("Message", exact=True)).to_be_visible()


def test_a_new_link_works_in_the_tab_that_refused_an_old_one(
    serve: Serve, window: Window
) -> None:
    """Only the fragment differs, and the browser loads nothing by itself."""
    window.expects("status of 403")
    served = serve("Yes.")
    served.browser(served.link)
    page = window.context.new_page()
    page.goto(served.link)
    expect(
        page.get_by_role("heading", name=re.compile("This link was used"))
    ).to_be_visible()
    page.goto(served.tenax("link").stdout.strip())
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


@pytest.mark.parametrize("name", ["localhost", "0.0.0.0"])
def test_a_link_under_another_name_of_the_machine_leads_to_the_address(
    serve: Serve, window: Window, name: str
) -> None:
    """Nothing is kept under that name, where another program may answer; and somebody else's link asks as always."""
    # the browser ignores it in the redirect from 0.0.0.0
    window.expects("Cross-Origin-Opener-Policy")
    served = serve("Yes.")
    tab = window.tab(served.link.replace("127.0.0.1", name))
    expect(tab.box).to_be_visible()
    assert tab.page.url == f"{served.url}/"
    theirs = window.context.new_page()
    theirs.goto(
        served.tenax("link", "--user", "berta")
        .stdout.strip()
        .replace("127.0.0.1", name)
    )
    expect(theirs.get_by_role("heading", name="Sign in as berta?")).to_be_visible()
    kept = window.context.storage_state()
    assert {origin["origin"] for origin in kept["origins"]} == {served.url}
    assert {cookie["domain"] for cookie in kept["cookies"]} == {"127.0.0.1"}
    elsewhere = [url for url in window.requests if not url.startswith(served.url)]
    assert {url.replace(name, "127.0.0.1") for url in elsewhere} == {
        f"{served.url}/link"
    }
    window.requests[:] = [url for url in window.requests if url not in elsewhere]


def test_the_question_fits_a_phone_and_a_reload_says_what_to_do(
    serve: Serve, chromium: Chromium
) -> None:
    """However long the name is. A link that was used before begins no tour."""
    served = serve("Yes.")
    with chromium.window(viewport={"width": 360, "height": 640}) as phone:
        expect(phone.enter(served).box).to_be_visible()
        page = phone.context.new_page()
        page.goto(served.tenax("link", "--user", "W" * 100).stdout.strip())
        button = page.get_by_role("button", name=re.compile("^Sign in as W"))
        expect(button).to_be_visible()
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 360
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.reload()
        expect(page.get_by_role("heading", name="Open the link again.")).to_be_visible()
        link = served.tenax("link").stdout.strip()
        for to in ("", "&to=/tour"):
            page.goto(link + to)
            expect(page.get_by_label("Message", exact=True)).to_be_visible()
        assert page.url == f"{served.url}/"
        assert client(served).get("/conversations")["conversations"] == []


_WORKERS = "navigator.serviceWorker.getRegistrations().then(all => all.map(one => one.active?.scriptURL))"


@pytest.mark.parametrize("script", ["hostile.js", "service.js"])
def test_a_service_worker_that_another_program_left_is_removed_before_the_code_is_used(
    serve: Serve, window: Window, script: str
) -> None:
    """It would see the key of every request. It may also have the address of the worker of Tenax."""
    served = serve("Yes.")
    seen: list[str] = []
    listens = "addEventListener('fetch', event => fetch('/seen?' + event.request.headers.get('Tenax-Key')))"
    body = f"addEventListener('activate', event => event.waitUntil(clients.claim())); {listens}"
    window.context.route(
        f"**/{script}",
        lambda route: route.fulfill(content_type="text/javascript", body=body),
    )
    window.context.route(
        "**/hostile", lambda route: route.fulfill(content_type="text/html", body="mine")
    )
    window.context.on("request", lambda request: seen.append(request.url))
    page = window.context.new_page()
    page.goto(f"{served.url}/hostile")
    page.evaluate(
        f"navigator.serviceWorker.register('/{script}').then(() => navigator.serviceWorker.ready).then(() => 0)"
    )
    window.context.unroute(f"**/{script}")
    seen.clear()
    page.goto(served.link)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    assert page.evaluate(_WORKERS) == [f"{served.url}/service.js"]
    assert [
        url for url in seen if "/seen?" in url and not url.endswith("/seen?null")
    ] == []


def test_a_browser_is_signed_out_from_another(
    serve: Serve, window: Window, chromium: Chromium
) -> None:
    """The list of devices names both; whoever is signed out sees that it needs a link, without a reload."""
    served = serve("Yes.")
    window.expects("status of 401")
    tab = window.enter(served)
    expect(tab.box).to_be_visible()
    with chromium.window() as other:
        second = other.tab(served.tenax("link").stdout.strip())
        second.page.goto(f"{served.url}/settings/devices")
        devices = second.page.get_by_label("Devices", exact=True)
        expect(devices.get_by_role("listitem")).to_have_count(2)
        devices.get_by_role(
            "button", name=re.compile("^Sign out: .*(?<!this browser)$")
        ).click()
        expect(devices.get_by_role("listitem")).to_have_count(1)
        expect(devices).to_contain_text("This browser")
        expect(
            tab.page.get_by_role("heading", name="Sign in", exact=True)
        ).to_be_visible()
        other.expects("status of 401")
        devices.get_by_role("button", name="Sign out everywhere…").click()
        devices.get_by_role("button", name="Sign out everywhere", exact=True).click()
        expect(
            second.page.get_by_role("heading", name="Sign in", exact=True)
        ).to_be_visible()


def test_after_ones_own_sign_out_somebody_elses_link_asks_nothing(
    serve: Serve, window: Window
) -> None:
    """Nobody is signed in who could stay: after one browser was signed out, and after all were."""
    served = serve("Yes.")
    window.expects("status of 401")
    page = window.enter(served).page
    ways: dict[str, list[str | re.Pattern[str]]] = {
        "berta": [re.compile("^Sign out: .*this browser$")],
        "carla": ["Sign out everywhere…", re.compile("^Sign out everywhere$")],
    }
    for name, buttons in ways.items():
        page.goto(f"{served.url}/settings/devices")
        for button in buttons:
            page.get_by_label("Devices", exact=True).get_by_role(
                "button", name=button
            ).click()
        expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
        page.goto(served.tenax("link", "--user", name).stdout.strip())
        expect(page.get_by_label("Message", exact=True)).to_be_visible()
