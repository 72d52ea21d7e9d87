"""An approval by keyboard: the card takes the focus, 1, 2, 3 and Esc answer, and the composer gets the focus back."""

from __future__ import annotations

import pytest

from tenax.models import Reply, ScriptedCall
from tests.support.browser import Serve, Tab, Window, expect

WRITE = ScriptedCall("write_file", {"path": "hello.txt", "content": "hi"})


def asks(serve: Serve, window: Window) -> Tab:
    """Wait for an approval that accepts answers."""
    tab = window.enter(serve(Reply(calls=[WRITE]), "Done."))
    tab.say("Write it")
    expect(tab.button("Allow once")).to_be_visible()
    expect(tab.button("Allow once")).not_to_have_attribute("aria-disabled", "true")
    return tab


@pytest.mark.parametrize(
    ("key", "state"), [("1", "done"), ("3", "denied"), ("Escape", "denied")]
)
def test_a_key_answers_and_the_composer_gets_the_focus_back(
    serve: Serve, window: Window, key: str, state: str
) -> None:
    tab = asks(serve, window)
    expect(tab.page.get_by_role("region", name="Approval needed")).to_be_focused()
    expect(tab.page).to_have_title("(1) Write it · Tenax")
    tab.page.keyboard.press(key)
    tab.answered("Done.")
    expect(tab.page).to_have_title("Write it · Tenax")
    expect(tab.rows("tool", state)).to_have_count(1)
    expect(tab.box).to_be_focused()


def test_two_shows_what_can_always_be_allowed(serve: Serve, window: Window) -> None:
    tab = asks(serve, window)
    expect(tab.button("Always…")).not_to_have_attribute("aria-disabled", "true")
    tab.page.keyboard.press("2")
    expect(
        tab.page.get_by_role("button", name="Always allow write_file hello.txt")
    ).to_be_visible()
    expect(tab.rows("tool", "asks")).to_have_count(1)


def test_a_person_who_writes_keeps_the_focus(serve: Serve, window: Window) -> None:
    """What is typed goes into the composer and answers nothing."""
    tab = window.enter(serve(Reply("Thinking.", calls=[WRITE], pause=0.1), "Done."))
    tab.say("Write it")
    tab.box.fill("By the way, ")
    expect(tab.button("Allow once")).to_be_visible()
    expect(tab.button("Allow once")).not_to_have_attribute("aria-disabled", "true")
    tab.page.keyboard.type("131")
    expect(tab.box).to_have_value("By the way, 131")
    expect(tab.rows("tool", "asks")).to_have_count(1)
