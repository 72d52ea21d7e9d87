"""The page is for people who do not see it, who use no mouse, who hold a phone, and whose line is slow."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply, ScriptedCall
from tenax.web.app import PAGE
from tests.support.browser import Chromium, Serve, Tab, Window, client, expect
from tests.support.turns import set_up

AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
RICH = "# Title\n\nA **bold** word, a [link](https://example.org) and `code`.\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
WRITE = ScriptedCall("write_file", {"path": "note.txt", "content": "held"})
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}
LOOKS = [
    ("light", "desktop"),
    ("dark", "phone"),
    pytest.param("light", "phone", marks=pytest.mark.nightly),
    pytest.param("dark", "desktop", marks=pytest.mark.nightly),
]
PAGE_BYTES_MAX = 300_000
FIRST_BYTES_MAX = 110_000
FIRST_REQUESTS_MAX = 10
REQUESTS_MAX = 15


END_TRANSITIONS = """
() => document.getAnimations()
    .filter((animation) => animation.effect.getComputedTiming().endTime !== Infinity)
    .forEach((animation) => animation.finish())
"""


def nothing_is_wrong(tab: Tab, where: str) -> None:
    """Check the page with axe for barriers, with transitions at their end: text that fades in has too little contrast."""
    assert AXE.exists(), "axe-core is not there: run npm ci in ui/"
    tab.page.evaluate(AXE.read_text())
    tab.page.evaluate(END_TRANSITIONS)
    found: list[Any] = tab.page.evaluate("async () => (await axe.run()).violations")
    wrong = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in found
    ]
    assert not wrong, f"{where}: {wrong}"


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_nothing_keeps_anybody_out(
    chromium: Chromium, serve: Serve, scheme: str, size: str
) -> None:
    """On the first screen, in a conversation, where an approval is asked, in a search, and in the menu."""
    how = {
        "color_scheme": scheme,
        "reduced_motion": "reduce",
        **(PHONE if size == "phone" else {}),
    }
    with chromium.window(**how) as window:
        served = serve()
        tab = window.enter(served)
        expect(tab.page.get_by_role("button", name="Take the tour")).to_be_visible()
        nothing_is_wrong(tab, "first screen")
        tab.page.get_by_role("button", name="Connect a model").click()
        nothing_is_wrong(tab, "connect another")
        set_up(served.home, [Reply(RICH), Reply("May I?", calls=[WRITE])])
        tab.page.goto(served.url)
        tab.say("Hello")
        expect(tab.rows("assistant", "").locator("table")).to_be_visible()
        nothing_is_wrong(tab, "conversation")
        tab.say("Write")
        expect(tab.button("Allow once")).to_be_visible()
        nothing_is_wrong(tab, "approval")
        tab.button("Menu").click()
        expect(tab.page.get_by_role("menuitem").first).to_be_visible()
        nothing_is_wrong(tab, "menu")
        tab.page.keyboard.press("Escape")
        tab.page.keyboard.press("Control+k")
        expect(tab.page.get_by_role("option").first).to_be_visible()
        nothing_is_wrong(tab, "palette")
        tab.page.get_by_role("combobox").fill("bold")
        tab.page.get_by_role("option", name="Search all messages").click()
        expect(tab.page.locator("a[data-hit]")).to_be_visible()
        nothing_is_wrong(tab, "search")
        if size == "phone":
            width = tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["viewport"]["width"], "it scrolls sideways"  # type: ignore[index]


def test_a_phone_has_everything_in_reach(chromium: Chromium, serve: Serve) -> None:
    """The header has the model and a new conversation, the menu has the files, and no name below is cut off."""
    with chromium.window(**PHONE) as window:
        tab = window.enter(serve("Hello."))
        tab.say("Hi")
        tab.answered("Hello.")
        expect(tab.page.get_by_role("button", name="Model: ")).to_have_count(1)
        tab.menu("Files")
        expect(tab.page.get_by_role("complementary", name="Files")).to_be_visible()
        tab.button("Close the files").click()
        tab.button("New conversation").click()
        expect(tab.page.get_by_text("What can I help with?")).to_be_visible()
        cut = "chip => chip.scrollWidth > chip.clientWidth"
        mode = tab.page.get_by_role("button", name="Mode: ").locator("span")
        assert not mode.evaluate(cut)


RIGHT_TO_LEFT = (
    "שלום!\n\n- פריט\n\n> ציטוט\n\n```python\nprint(1);\n```\n\nPlain English."
)


def test_words_from_right_to_left_stand_there_and_code_does_not(
    serve: Serve, window: Window
) -> None:
    """The mark of a list is beside its entry; code reads from the left; each paragraph has its own side."""
    tab = window.enter(serve(RIGHT_TO_LEFT))
    tab.box.fill("שלום")
    assert tab.box.evaluate("box => getComputedStyle(box).direction") == "rtl"
    tab.box.press("Enter")
    code = tab.rows("assistant", "").locator("pre")
    expect(code).to_have_css("direction", "ltr")
    expect(tab.page.locator(".prose ul")).to_have_css("padding-right", "24px")
    expect(tab.page.locator(".prose blockquote")).to_have_css(
        "border-right-width", "3px"
    )
    line = tab.page.locator(".prose p", has_text="Plain English.")
    left = line.evaluate("""line => {
      const words = document.createRange();
      words.selectNodeContents(line);
      return words.getBoundingClientRect().left - line.getBoundingClientRect().left;
    }""")
    assert left == 0


def test_a_conversation_weighs_less_than_a_photograph(
    serve: Serve, window: Window
) -> None:
    """All that the browser loads for it, as a server that compresses would send it."""
    served = serve(RICH)
    page = client(served)
    name = page.new()
    page.say(name, "Hello")
    tab = window.tab(f"{served.link}&to=/c/{name}")
    expect(tab.rows("assistant", "").locator("table")).to_be_visible()
    expect(tab.page.locator("pre .hljs-built_in, pre span").first).to_be_attached()
    asked = {
        request
        for request in window.requests
        if "/api/events" not in request and "/link#" not in request
    }
    # The service worker fetches its copy later, when the page stands.
    asked -= {f"{served.url}/service.js", f"{served.url}/"}
    # not told of
    asked |= {
        f"{served.url}/assets/{each.name}"
        for each in (PAGE / "assets").glob("worker-*")
    }
    assert any("/markdown-" in each for each in asked)
    weights = {each: len(gzip.compress(page.http.get(each).content)) for each in asked}
    assert sum(weights.values()) < PAGE_BYTES_MAX, weights
    assert len(weights) <= REQUESTS_MAX, weights


def test_the_first_load_is_small(serve: Serve, window: Window) -> None:
    """Without the font and the copy of the service worker, which are loaded when the page stands."""
    served = serve("Yes.")
    window.enter(served)
    before = len(window.requests)
    tab = window.tab(f"{served.url}/")
    expect(tab.box).to_be_visible()
    asked = {
        request
        for request in window.requests[before:]
        if not re.search(r"/api/events|\.woff2|/wght-|/service\.js", request)
    }
    http = client(served).http
    weights = {each: len(gzip.compress(http.get(each).content)) for each in asked}
    assert sum(weights.values()) <= FIRST_BYTES_MAX, weights
    assert len(weights) <= FIRST_REQUESTS_MAX, weights


def test_everything_can_be_done_with_the_keyboard(serve: Serve, window: Window) -> None:
    """Tab to the box, write, send, search and open what was found, leave with Escape, answer a question."""
    tab = window.enter(serve("Yes.", Reply("May I?", calls=[WRITE]), "Thank you."))
    keys = tab.page.keyboard
    expect(tab.box).to_be_visible()
    tab.page.evaluate("document.activeElement.blur()")
    press_until(tab, "Tab", is_in(tab, "textarea"))
    keys.type("Hello by hand")
    keys.press("Shift+Enter")
    keys.type("second line")
    keys.press("Enter")
    tab.answered("Yes.")
    assert tab.texts("user") == ["Hello by hand\nsecond line"]
    # not with Escape, which stops an answer that has not quite ended
    tab.page.evaluate("document.activeElement.blur()")
    keys.press("/")
    search = tab.page.get_by_label("Search all conversations")
    expect(search).to_be_focused()
    keys.type("hand")
    expect(tab.page.locator("a[data-hit]")).to_be_visible()
    keys.press("ArrowDown")
    expect(tab.page.locator("a[data-hit]")).to_be_focused()
    keys.press("Enter")
    expect(tab.page.locator(".row.hit")).to_be_in_viewport()
    tab.page.evaluate("document.activeElement.blur()")
    keys.press("/")
    # until then it takes the focus once more
    tab.page.evaluate("() => new Promise(requestAnimationFrame)")
    keys.press("Escape")
    expect(search).to_have_value("")
    keys.press("Escape")
    expect(search).not_to_be_focused()
    press_until(tab, "Tab", is_in(tab, "textarea"))
    keys.type("Write")
    keys.press("Enter")
    expect(tab.button("Allow once")).to_be_visible()
    press_until(tab, "Shift+Tab", is_on(tab, "Allow once"))
    keys.press("Enter")
    tab.answered("Thank you.")


Holds = Callable[[], bool]


def is_in(tab: Tab, name: str) -> Holds:
    return lambda: bool(
        tab.page.evaluate("name => document.activeElement?.matches(name)", name)
    )


def is_on(tab: Tab, words: str) -> Holds:
    return lambda: bool(
        tab.page.evaluate(
            "words => document.activeElement?.textContent.startsWith(words)", words
        )
    )


def press_until(tab: Tab, key: str, holds: Holds) -> None:
    """Press a key until this holds; within as many as a person would."""
    for _ in range(40):
        tab.page.keyboard.press(key)
        if holds():
            return
    raise AssertionError(f"{key} does not lead there")
