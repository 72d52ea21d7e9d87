"""How answers and tool calls look: formulas, and commands that failed."""

from __future__ import annotations

from tenax.models import Reply, ScriptedCall
from tests.support.browser import Serve, Window, expect

MATH = r"""Energy: \(E = mc^2\), and a price of $5 to $6.

\[
\int_0^1 x\,dx = \frac{1}{2}
\]

Broken: \(\frac{1\)
"""


def test_formulas_are_drawn_and_nothing_of_them_is_lost(
    serve: Serve, window: Window
) -> None:
    """A formula that is not valid shows its source, backslashes included."""
    tab = window.enter(serve(MATH))
    tab.say("Show me")
    answer = tab.rows("assistant", "")
    expect(answer.locator("math")).to_have_count(2)
    expect(answer.locator("math mfrac")).to_have_count(1)
    expect(answer).to_contain_text("a price of $5 to $6.")
    expect(answer).to_contain_text(r"Broken: \(\frac{1\)")


def test_a_command_that_fails_is_red_and_open(serve: Serve, window: Window) -> None:
    """Its exit code stands in its line. A command that succeeds shows only its time."""
    calls = [
        ScriptedCall("shell", {"command": "echo fine"}),
        ScriptedCall("shell", {"command": "echo lost; exit 3"}),
    ]
    tab = window.enter(serve(Reply(calls=calls), "Done."))
    tab.say("Run it")
    for command in ("echo fine", "echo lost; exit 3"):
        card = tab.page.get_by_role("region", name="Approval needed")
        card = card.filter(has_text=command)
        # A click in the first moments is ignored: it may be meant for what was there before.
        once = card.get_by_role("button", name="Allow once")
        expect(once).not_to_have_attribute("aria-disabled", "true")
        once.click()
        expect(card).to_have_count(0)
    tab.answered("Done.")
    good, bad = tab.rows("tool").nth(0), tab.rows("tool").nth(1)
    expect(bad.locator(".ending")).to_contain_text("exit 3")
    expect(bad.locator("pre.output")).to_contain_text("lost")
    expect(bad.locator("details")).to_have_attribute("open", "")
    expect(good.locator(".ending")).not_to_contain_text("exit")
    expect(good.locator("details")).not_to_have_attribute("open", "")
