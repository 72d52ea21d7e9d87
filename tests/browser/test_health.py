"""Settings, Data, Health: what is wrong, and a command that solves it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from tests.browser.test_for_everybody import PHONE, nothing_is_wrong
from tests.browser.test_settings import open_section
from tests.support.browser import Chromium, Serve, Tab, Window, expect
from tests.support.bubblewrap import need_bwrap
from tests.support.served import Served

AWAY = '\n[models.away]\nurl = "http://127.0.0.1:9/v1"\nname = "nobody"\n'


def open_health(tab: Tab, served: Served) -> Locator:
    section = open_section(tab, served, "data")
    expect(section.get_by_text("Free disk space")).to_be_visible()
    return section


def test_a_healthy_installation_has_nothing_to_do(serve: Serve, window: Window) -> None:
    need_bwrap(of_the_system=True)
    served = serve("Yes.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    served.tenax("backup")
    section = open_health(tab, served)
    expect(section.get_by_text("Nothing to do.")).to_be_visible()
    expect(section.get_by_role("list", name="What to do")).to_have_count(0)
    expect(section.locator("dl").first).to_contain_text("restored and verified then")
    expect(section.locator("dl").first).to_contain_text("SQLite")
    expect(section.get_by_text("Not verified yet.")).to_be_visible()


def test_every_issue_has_a_command_to_copy(serve: Serve, window: Window) -> None:
    """The models are asked only when the person wants that."""
    served = serve("Yes.")
    with (served.home / "config.toml").open("a") as file:
        file.write(AWAY)
    tab = window.enter(served)
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    section = open_health(tab, served)
    issues = section.get_by_role("list", name="What to do").get_by_role("listitem")
    backup = issues.filter(has_text="There is no backup.")
    expect(backup).to_be_visible()
    away = issues.filter(has_text="away (nobody): 127.0.0.1:9 cannot be reached")
    expect(away).to_have_count(0)
    section.get_by_role("button", name="Check now").click()
    expect(away).to_be_visible()
    expect(section.get_by_text("away: cannot be reached")).to_be_visible()
    backup.get_by_role("button", name="Copy command").click()
    expect(tab.page.locator(".toast", has_text="Copied.")).to_be_visible()
    command = tab.page.evaluate("navigator.clipboard.readText()")
    assert command.endswith("tenax backup")
    assert f"TENAX_HOME={served.home} " in command


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(
    chromium: Chromium, serve: Serve, scheme: str, size: str
) -> None:
    """Issues and commands fit, also on a phone."""
    served = serve("Yes.")
    with (served.home / "config.toml").open("a") as file:
        file.write(AWAY)
    how = {"color_scheme": scheme, **(PHONE if size == "phone" else {})}
    with chromium.window(**how) as window:
        tab = window.enter(served)
        section = open_health(tab, served)
        section.get_by_role("button", name="Check now").click()
        expect(section.get_by_text("away: cannot be reached")).to_be_visible()
        nothing_is_wrong(tab, "health")
        if folder := os.environ.get("TENAX_PICTURES"):
            tab.page.screenshot(path=Path(folder) / f"health-{scheme}-{size}.png")
