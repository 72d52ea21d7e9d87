"""The palette: conversations, commands and settings by the keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Locator

from tests.support.browser import Serve, Tab, Window, client, expect


def open_palette(tab: Tab) -> Locator:
    """Open the palette and return its input."""
    tab.page.keyboard.press("Control+k")
    box = tab.page.get_by_role("combobox", name="Commands and conversations")
    expect(box).to_be_focused()
    return box


def option(tab: Tab, name: str) -> Locator:
    return tab.page.get_by_role("option", name=name)


def chosen(tab: Tab) -> Locator:
    """The option that a screen reader names: the input points to it."""
    box = tab.page.get_by_role("combobox")
    expect(box).to_have_attribute("aria-activedescendant", re.compile("."))
    found = tab.page.locator(f"#{box.get_attribute('aria-activedescendant')}")
    expect(found).to_have_attribute("aria-selected", "true")
    return found


def test_the_palette_opens_a_conversation_by_its_title(
    serve: Serve, window: Window
) -> None:
    """Without words the most recent conversations are first. The letters may be few, if their order is right."""
    served = serve("Yes.")
    page = client(served)
    names = {}
    for title in ("Garden plan", "Boat trip", "Tax papers"):
        names[title] = page.new()
        page.say(names[title], title)
    tab = window.enter(served)
    expect(tab.page.locator("a[data-item]")).to_have_count(3)
    box = open_palette(tab)
    recent = tab.page.get_by_role("group", name="Recent conversations")
    expect(recent.get_by_role("option")).to_have_count(3)
    expect(chosen(tab)).to_contain_text("Tax papers")
    box.press("ArrowDown")
    expect(chosen(tab)).to_contain_text("Boat trip")
    box.fill("gplan")
    expect(chosen(tab)).to_contain_text("Garden plan")
    box.press("Enter")
    expect(box).to_have_count(0)
    tab.page.wait_for_url(f"**/c/{names['Garden plan']}")


def test_a_command_of_the_palette_works_on_the_open_conversation(
    serve: Serve, window: Window
) -> None:
    tab = window.enter(serve("Yes."))
    tab.say("Hello")
    tab.answered("Yes.")
    box = open_palette(tab)
    box.fill("rena")
    box.press("Enter")
    tab.page.get_by_label("Title").fill("Okapi")
    tab.page.get_by_label("Title").press("Enter")
    expect(tab.page.locator("h1")).to_have_text("Okapi")
    box = open_palette(tab)
    box.fill("keyboard")
    box.press("Enter")
    expect(tab.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    tab.page.keyboard.press("Escape")
    box = open_palette(tab)
    box.fill("theme dark")
    box.press("Enter")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    box = open_palette(tab)
    box.fill("export mark")
    with tab.page.expect_download() as saved:
        box.press("Enter")
    assert saved.value.suggested_filename.endswith("Okapi.md")


def test_the_palette_finds_messages_and_settings(serve: Serve, window: Window) -> None:
    tab = window.enter(serve("A giraffe sleeps standing."))
    tab.say("Hello")
    tab.answered("A giraffe sleeps standing.")
    box = open_palette(tab)
    box.fill("giraffe")
    found = tab.page.get_by_role("group", name="Messages").get_by_role("option")
    expect(found).to_have_count(2)
    found.first.click()
    expect(tab.page.locator(".row.hit")).to_be_in_viewport()
    box = open_palette(tab)
    box.fill("giraffe")
    option(tab, "Search all messages for “giraffe”").click()
    expect(tab.page.get_by_label("Search all conversations")).to_be_focused()
    expect(tab.page.locator("a[data-hit]")).to_be_visible()
    box = open_palette(tab)
    box.fill("devices")
    box.press("Enter")
    tab.page.wait_for_url("**/settings/devices")
    expect(tab.page.get_by_role("region", name="Devices")).to_be_in_viewport()


def test_escape_closes_the_palette_and_gives_the_focus_back(
    serve: Serve, window: Window
) -> None:
    """The same keys close it too."""
    tab = window.enter(serve("Yes."))
    expect(tab.box).to_be_focused()
    for keys in ("Escape", "Control+k"):
        box = open_palette(tab)
        box.press(keys)
        expect(box).to_have_count(0)
        expect(tab.box).to_be_focused()
