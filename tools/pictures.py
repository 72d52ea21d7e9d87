"""Screenshots for the documents, of the real page in a real Chromium: `python -m tools.pictures` puts them into docs/img/.

Each in two sizes and two colour schemes. What is on them happens while they are taken: the tour, the kill, the answer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from tenax.models import Reply, ScriptedCall
from tests.support.browser import Chromium, Tab, expect, launched
from tests.support.served import Served
from tests.support.turns import set_up

TO: Final = Path(__file__).resolve().parent.parent / "docs" / "img"
BYTES_MAX: Final = 150_000
SIZES: Final[dict[str, dict[str, Any]]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
    },
}
_LONG: Final = """\
A journal is a list that only grows. Each entry holds the digest of the one before it, so nobody can change an old one \
without changing all that follow.

```python
import hashlib

def chain(entries: list[bytes]) -> str:
    digest = b""
    for entry in entries:
        digest = hashlib.sha256(digest + entry).digest()
    return digest.hex()
```

Three ways to keep a talk, side by side:

| way | after a power cut | two readers |
|---|---|---|
| in memory | gone | one of them is stale |
| a file, written at the end | the last answer is gone | they overwrite each other |
| **a journal** | every word that was shown | each holds a number |

So the rule is: *store, then show*."""
_QUESTIONS: Final = (
    "What is a hash chain good for?",
    "Write down what you found in notes/journal.md, please.",
    "And in one sentence?",
)


def main() -> int:
    """Take them all."""
    TO.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, launched(playwright) as chromium:
        for size, how in SIZES.items():
            for scheme in ("light", "dark"):
                take_tour(chromium, f"{size}-{scheme}", {**how, "color_scheme": scheme})
                take_talk(chromium, f"{size}-{scheme}", {**how, "color_scheme": scheme})
    return 0


def take_tour(chromium: Chromium, kind: str, how: dict[str, Any]) -> None:
    """The first screen, the approval, the plug pulled, and the answer back."""
    with opened(chromium, how) as (_, tab):
        expect(tab.page.get_by_role("button", name="Take the tour")).to_be_visible()
        shoot(tab, f"first-screen-{kind}")
        tab.page.get_by_role("button", name="Take the tour").click()
        expect(tab.button("Allow once")).to_be_visible()
        shoot(tab, f"approval-{kind}")
        tab.button("Allow once").click()
        tab.shows("Readers that hold a number")
        tab.button("Pull the plug").click()
        expect(tab.banner).to_have_attribute("data-connection", "lost")
        shoot(tab, f"plug-pulled-{kind}")
        expect(tab.banner).to_have_attribute("data-connection", "back")
        expect(tab.rows("marker", "resumed")).to_have_count(1)
        expect(tab.rows("assistant", "streaming")).to_contain_text("One journal")
        shoot(tab, f"answer-back-{kind}")


def take_talk(chromium: Chromium, kind: str, how: dict[str, Any]) -> None:
    """A conversation with code, a table and a tool."""
    write = ScriptedCall(
        "write_file", {"path": "notes/journal.md", "content": "store, then show\n"}
    )
    replies = [
        Reply(_LONG),
        Reply("I will.", calls=[write]),
        Reply("Done."),
        Reply("Store, then show."),
    ]
    with opened(chromium, how, replies) as (_, tab):
        for at, question in enumerate(_QUESTIONS):
            tab.say(question)
            if at == 1:
                tab.button("Allow once").click()
            expect(tab.rows("assistant", "").last).to_contain_text(
                ("store, then show", "Done.", "Store, then show.")[at]
            )
            expect(tab.button("Send")).to_be_visible()
        tab.page.locator("pre").first.evaluate(
            "code => code.closest('[data-row]').scrollIntoView()"
        )
        expect(tab.button("Jump to the end")).to_be_visible()
        shoot(tab, f"conversation-{kind}")


@contextmanager
def opened(
    chromium: Chromium, how: dict[str, Any], replies: list[Reply] | None = None
) -> Iterator[tuple[Served, Tab]]:
    """A Tenax of its own, and a tab on it."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        place = home / ".config" / "tenax"
        place.mkdir(parents=True)
        if replies:
            set_up(place, replies)
        # As a person has it: everything where it usually is, and `tenax` on the way that a shell looks.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        served = stack.enter_context(
            Served(home, env={"HOME": folder, "TENAX_HOME": "", "PATH": path})
        )
        with chromium.window(**how) as window:
            window.expects("net::ERR_")
            yield served, window.enter(served)


def shoot(tab: Tab, name: str) -> None:
    """One picture, once everything on it stands still."""
    tab.page.evaluate("document.fonts.ready")
    file = TO / f"{name}.png"
    tab.page.screenshot(path=file, scale="css", animations="disabled", caret="hide")
    if file.stat().st_size > BYTES_MAX:
        sys.stderr.write(f"{file} has {file.stat().st_size:,} bytes.\n")


if __name__ == "__main__":
    sys.exit(main())
