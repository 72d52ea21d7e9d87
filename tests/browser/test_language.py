"""Every text of the page comes from the catalogue, longer texts fit, and the page turns for languages from right to left.

Two languages that are made from English show it: en-XA has accented letters, ar-XB has Arabic ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tenax.models import Reply, ScriptedCall
from tests.browser.test_settings import SECTIONS
from tests.support.browser import Chromium, Serve, Tab, client, expect
from tests.support.turns import set_up

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
DESKTOP = {"viewport": {"width": 1280, "height": 800}}
ANSWER = "# Häding\n\n1 2 3\n\n```\n0101\n```\n"
READ = ScriptedCall("read_file", {"path": "none.txt"})
WRITE = ScriptedCall("write_file", {"path": "note.txt", "content": "held"})

# What people and models write, what the server says, and code.
CONTENT = ".text, .prose .block :not(button), code, pre, time, h1[dir], a[dir], dl.arguments, .chip, .models, .lead strong, .devices strong, noscript, tbody th, tbody td"

FOREIGN = """
([skip, names]) => {
  const found = new Set();
  const check = (element, text) => {
    if (element.closest(skip) !== null || !element.checkVisibility()) return;
    for (const name of names) text = text.replaceAll(name, "");
    if (/[A-Za-z]{2}/.test(text) && !/^⟦.*⟧$/s.test(text.trim())) found.add(text.trim());
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) check(node.parentElement, node.data);
  for (const name of ["aria-label", "title", "placeholder", "alt"])
    for (const element of document.querySelectorAll(`[${name}]`)) check(element, element.getAttribute(name));
  return [...found];
}
"""

# Elements that reach beyond the window, and are not in a box that scrolls or hides.
BEYOND = """
() => {
  const boxed = (element) => {
    for (let box = element.parentElement; box !== null && box !== document.body; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible") return true;
    return false;
  };
  const wide = document.documentElement.clientWidth;
  const beyond = [...document.body.querySelectorAll("*")].filter((element) => {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.closest(".hidden, .sidebar") !== null) return false;
    const { left, right, width } = element.getBoundingClientRect();
    return width > 0 && (right > wide + 1 || left < -1) && !boxed(element);
  });
  const scrolls = document.documentElement.scrollWidth > wide ? ["the page scrolls sideways"] : [];
  return [...scrolls, ...beyond.map((element) => `${element.outerHTML.slice(0, 160)}`)];
}
"""

Look = Callable[[Tab, str], None]


# The program, an account on Telegram, the models, and what the server says about a call.
NAMES = [
    "Tenax",
    "@BotFather",
    "script",
    "whisper-1",
    "main",
    "(any content)",
    "changes a file",
]
# What the server says is English: the titles of offers, the version, the engine, and what the doctor found.
SERVER = """
async () => {
  const get = async (path) => (await fetch(path, { headers: { "Tenax-Key": localStorage.getItem("tenax.key") } })).json();
  const setup = await get("/api/setup");
  const health = await get("/api/findings");
  const issues = health.issues.map((issue) => issue.text);
  return [setup.version, health.engine, ...issues, ...setup.offers.flatMap((offer) => [offer.title, offer.detail])];
}
"""


def foreign(tab: Tab) -> list[str]:
    """The visible texts in plain English letters that are not content."""
    names = sorted([*NAMES, *tab.page.evaluate(SERVER)], key=len, reverse=True)
    found: list[str] = tab.page.evaluate(FOREIGN, [CONTENT, names])
    return found


def beyond(tab: Tab) -> list[str]:
    """What reaches beyond the sides of the window."""
    found: list[str] = tab.page.evaluate(BEYOND)
    return found


@contextmanager
def speaking(chromium: Chromium, language: str, **how: Any) -> Iterator[Any]:
    with chromium.window(reduced_motion="reduce", **how) as window:
        window.context.add_init_script(
            f"if (location.protocol === 'http:') localStorage.setItem('tenax.language', '{language}')"
        )
        yield window


def walk(window: Any, serve: Serve, look: Look) -> None:
    """Open the main screens, one after the other."""
    served = serve()
    tab = window.enter(served)
    page = tab.page
    expect(page.locator("button.offer").first).to_be_visible()
    look(tab, "first screen")
    set_up(
        served.home,
        [Reply("0", calls=[READ]), Reply(ANSWER), Reply("1", calls=[WRITE])],
    )
    other = client(served)
    name = other.new()
    other.say(name, "1 + 1?")
    page.goto(f"{served.url}/c/{name}")
    expect(tab.rows("assistant", "").locator("pre")).to_be_visible()
    page.locator("details.tool summary .verb").click()
    look(tab, "a conversation")
    page.locator(".composer textarea").fill("2 + 2?")
    page.locator(".composer textarea").press("Enter")
    expect(page.locator("section.approval button.main").first).to_be_visible()
    look(tab, "an approval")
    page.locator(".top .menu > button:not(.chip)").click()
    expect(page.locator(".sheet .meta")).to_be_visible()
    look(tab, "the menu")
    page.get_by_role("menuitem").last.click()
    expect(page.locator("dialog")).to_be_visible()
    look(tab, "a dialog that asks")
    page.keyboard.press("Escape")
    page.locator(".top .menu > button:not(.chip)").click()
    page.get_by_role("menuitem").first.click()
    expect(page.locator("dialog input")).to_be_visible()
    look(tab, "a dialog with a field")
    for section in SECTIONS:
        page.goto(f"{served.url}/settings/{section}")
        expect(page.locator(".section h1")).to_be_visible()
        for fold in page.locator(".section details.fold > summary").all():
            fold.click()
        look(tab, f"settings, {section}")
    page.goto(f"{served.url}/memory")
    expect(page.locator("section.card")).to_be_visible()
    look(tab, "an empty memory")
    page.locator(".tools button").first.click()
    page.locator("form.write textarea").fill("1 2 3")
    page.locator("form.write button.main").click()
    expect(page.locator("li[data-fact]")).to_be_visible()
    page.locator("details.how summary").click()
    look(tab, "the memory")


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_every_text_is_in_the_catalogue_and_fits(
    chromium: Chromium, serve: Serve, size: str
) -> None:
    wrong: dict[str, list[str]] = {}

    def look(tab: Tab, where: str) -> None:
        wrong[where] = foreign(tab) + beyond(tab)

    with speaking(
        chromium, "en-XA", **(PHONE if size == "phone" else DESKTOP)
    ) as window:
        walk(window, serve, look)
    assert not {where: what for where, what in wrong.items() if what}


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_page_turns_for_a_language_from_right_to_left(
    chromium: Chromium, serve: Serve, size: str
) -> None:
    wrong: dict[str, list[str]] = {}

    def look(tab: Tab, where: str) -> None:
        expect(tab.page.locator("html")).to_have_attribute("dir", "rtl")
        wrong[where] = beyond(tab)

        if size == "desktop":
            box = tab.page.locator(".sidebar").bounding_box()
            assert box is not None
            assert box["x"] > 640, "the sidebar is not at the right"

    with speaking(
        chromium, "ar-XB", **(PHONE if size == "phone" else DESKTOP)
    ) as window:
        walk(window, serve, look)
    assert not {where: what for where, what in wrong.items() if what}
