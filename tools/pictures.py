"""Screenshots for the documents, of the real page in a real Chromium: `python -m tools.pictures` puts them into docs/img/.

The documents decide which pictures are taken: a picture that no document shows is deleted. The name of a picture is
SCREEN-SIZE-SCHEME.png. What is on a picture happens while it is taken: the tour, the kill, the answer. A script plays the model.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from playwright.sync_api import sync_playwright

from tenax.models import Reply, Script, ScriptedCall
from tests.support.browser import Chromium, Tab, client, expect, launched
from tests.support.served import Served

ROOT: Final = Path(__file__).resolve().parent.parent
TO: Final = ROOT / "docs" / "img"
BYTES_MAX: Final = 150_000
SHOWN: Final = re.compile(r"img/([\w-]+)\.png")
SIZES: Final[dict[str, dict[str, Any]]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
    },
}
SCHEMES: Final = ("light", "dark")

PRICES: Final = """\
def with_discount(cents: int, percent: int) -> int:
    \"\"\"Return the price after a discount, in cents.\"\"\"
    return cents * (100 - percent) // 100
"""
FILES: Final = {
    "README.md": "# Shop\n\nPrices are whole cents. `make test` runs the tests.\n",
    "notes/rounding.md": "# Rounding\n\nRound half up, in favour of nobody.\n",
    "shop/prices.py": PRICES,
    "tests/test_prices.py": "def test_half_a_cent_is_rounded_up():\n    assert with_discount(999, 50) == 500\n",
}
ANSWER: Final = r"""The price was rounded **down**, so half a cent was lost. Two prices of the list, before and now:

| price | discount | before | now |
|--:|--:|--:|--:|
| 9.99 | 50 % | 4.99 | **5.00** |
| 19.90 | 25 % | 14.92 | **14.93** |

The function now adds half of the divisor before it divides, which rounds half up:

```python
def with_discount(cents: int, percent: int) -> int:
    return (cents * (100 - percent) + 50) // 100
```

In a formula: $p = \lfloor (c \cdot (100 - d) + 50) / 100 \rfloor$. The test in `tests/test_prices.py` covers it."""
TASK: Final = (
    "The discount of some prices is wrong by a cent. Find out why, and correct it."
)
OTHERS: Final = {
    "Plan a week in Lisbon, by train": "Seven days, and no plane.",
    "Which of these two contracts is cheaper?": "The second one, from the third year on.",
    "Explain the borrow checker with a library": "A book is lent to one reader who writes, or to many who only read.",
}
MODELS: Final = """\
model = "qwen"
fallback = ["gpt-oss"]
[models.qwen]
api = "openai"
url = "http://127.0.0.1:11434/v1"
name = "qwen3:8b"
[models.gpt-oss]
api = "openai"
url = "http://127.0.0.1:1234/v1"
name = "gpt-oss-20b"
"""


class Shots(NamedTuple):
    """The pictures of one size and one colour scheme that the documents show."""

    kind: str
    shown: frozenset[str]

    def wants(self, *screens: str) -> bool:
        return any(f"{screen}-{self.kind}" in self.shown for screen in screens)

    def take(self, tab: Tab, screen: str) -> None:
        """Take one picture, once everything on it stands still."""
        if not self.wants(screen):
            return
        tab.page.mouse.move(0, 0)
        tab.page.evaluate("document.fonts.ready")
        file = TO / f"{screen}-{self.kind}.png"
        tab.page.screenshot(path=file, scale="css", animations="disabled", caret="hide")
        size = file.stat().st_size
        if size > BYTES_MAX:
            sys.stderr.write(f"{file} has {size:,} bytes.\n")


def main() -> int:
    """Take every picture that a document shows, and delete the others."""
    TO.mkdir(parents=True, exist_ok=True)
    shown = shown_pictures()
    for file in TO.glob("*.png"):
        if file.stem not in shown:
            file.unlink()
    with sync_playwright() as playwright, launched(playwright) as chromium:
        for size, how in SIZES.items():
            for scheme in SCHEMES:
                shots = Shots(f"{size}-{scheme}", shown)
                window = {**how, "color_scheme": scheme}
                if shots.wants("start", "plug-pulled", "answer-back"):
                    take_tour(chromium, shots, window)
                if shots.wants("conversation", "tools", "approval", "files", "palette", "usage", "appearance"):  # fmt: skip
                    take_talk(chromium, shots, window)
                if shots.wants("models"):
                    take_models(chromium, shots, window)
    missing = [name for name in shown if not (TO / f"{name}.png").exists()]
    sys.stderr.writelines(f"No screen has the name {name}.\n" for name in missing)
    return len(missing)


def shown_pictures() -> frozenset[str]:
    """Return the names of the pictures that the documents show."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return frozenset(
        name for page in pages for name in SHOWN.findall(page.read_text("utf-8"))
    )


def take_tour(chromium: Chromium, shots: Shots, how: dict[str, Any]) -> None:
    """The first screen, the plug pulled, and the answer back."""
    with opened(chromium, how) as (_, tab):
        expect(tab.page.get_by_role("button", name="Take the tour")).to_be_visible()
        shots.take(tab, "start")
        tab.page.get_by_role("button", name="Take the tour").click()
        tab.button("Allow once").click()
        tab.shows("Readers that hold a number")
        tab.button("Pull the plug").click()
        expect(tab.banner).to_have_attribute("data-connection", "lost")
        shots.take(tab, "plug-pulled")
        expect(tab.banner).to_have_attribute("data-connection", "back")
        expect(tab.rows("marker", "resumed")).to_have_count(1)
        expect(tab.rows("assistant", "streaming")).to_contain_text("One journal")
        shots.take(tab, "answer-back")


def take_talk(chromium: Chromium, shots: Shots, how: dict[str, Any]) -> None:
    """A conversation of a project: tools, an approval, an answer with code, a table and a formula, and the panels beside it."""
    reads = [
        ScriptedCall("read_file", {"path": path})
        for path in ("shop/prices.py", "tests/test_prices.py")
    ]
    edit = ScriptedCall(
        "edit_file",
        {
            "path": "shop/prices.py",
            "old": "return cents * (100 - percent) // 100",
            "new": "return (cents * (100 - percent) + 50) // 100",
        },
    )
    replies = {
        "demo-model": [
            Reply(calls=reads, cost=0.0021),
            Reply("The rounding is the reason.", calls=[edit], cost=0.0034),
            Reply(ANSWER, thoughts="Integer division rounds down.", cost=0.0052),
        ],
        "small-model": [Reply(text, cost=0.0008) for text in OTHERS.values()],
    }
    with opened(chromium, how, scripts=replies) as (served, tab):
        fill(served)
        tab.page.goto(f"{served.url}/")
        tab.page.get_by_role("button", name="Project: ").click()
        tab.page.get_by_role("menuitem", name="Shop").click()
        tab.say(TASK)
        expect(tab.button("Allow once")).not_to_have_attribute("aria-disabled", "true")
        expect(tab.page.locator(".asks .diff, .diff").first).to_be_visible()
        shots.take(tab, "approval")
        tab.button("Allow once").click()
        expect(tab.rows("assistant", "").last).to_contain_text("covers it.")
        expect(tab.button("Send")).to_be_visible()
        expect(tab.page.locator("math").first).to_be_visible()
        to_top(tab)
        shots.take(tab, "conversation")
        tab.unfold()
        to_top(tab)
        shots.take(tab, "tools")
        if shots.wants("files"):
            tab.button("Files").click()
            panel = tab.page.get_by_role("complementary", name="Files")
            panel.get_by_text("shop", exact=True).click()
            expect(panel.get_by_role("button", name="prices.py")).to_be_visible()
            shots.take(tab, "files")
            tab.button("Close the files").click()
        if shots.wants("palette"):
            tab.page.keyboard.press("Control+k")
            palette = tab.page.get_by_role("dialog", name="Commands and conversations")
            expect(palette.get_by_role("option").first).to_be_visible()
            shots.take(tab, "palette")
            tab.page.keyboard.press("Escape")
        for section, landmark in (("usage", "By model"), ("appearance", "Theme")):
            if shots.wants(section):
                tab.page.goto(f"{served.url}/settings/{section}")
                expect(tab.page.get_by_text(landmark, exact=True).first).to_be_visible()
                shots.take(tab, section)


def fill(served: Served) -> None:
    """Add a project with files, and a few conversations that are answered."""
    folder = served.home / "shop"
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    page = client(served)
    key: Any = {"Idempotency-Key": "shop"}
    page.post("/projects", {"name": "Shop", "folder": str(folder)}, **key)
    for question in OTHERS:
        conversation = page.new()
        page.http.patch(
            f"/api/conversations/{conversation}", json={"model": "small-model"}
        ).raise_for_status()
        page.say(conversation, question)


def take_models(chromium: Chromium, shots: Shots, how: dict[str, Any]) -> None:
    """The models in Settings. Nobody asks them."""
    with opened(chromium, how, settings=MODELS) as (served, tab):
        expect(tab.box).to_be_visible()
        tab.page.goto(f"{served.url}/settings/models")
        listed = tab.page.get_by_role("list", name="Connected models")
        expect(listed.get_by_role("listitem")).to_have_count(2)
        tab.page.get_by_role("button", name="Favourite: qwen3:8b").click()
        expect(tab.page.get_by_text("Looking for models")).to_have_count(0)
        shots.take(tab, "models")


def to_top(tab: Tab) -> None:
    """Scroll to the first message."""
    tab.rows("user").first.evaluate("row => row.scrollIntoView()")


@contextmanager
def opened(
    chromium: Chromium,
    how: dict[str, Any],
    *,
    scripts: dict[str, list[Reply]] | None = None,
    settings: str = "",
) -> Iterator[tuple[Served, Tab]]:
    """A Tenax of its own, and a tab on it. The first script is the active model."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        place = home / ".config" / "tenax"
        place.mkdir(parents=True)
        for label, replies in (scripts or {}).items():
            file = place / f"{label}.json"
            file.write_bytes(msgspec.json.encode(Script(replies, repeat=True)))
            if not settings:
                settings = f'model = "{label}"\n'
            settings += f'[models.{label}]\napi = "script"\nurl = "{file}"\nname = "{label}"\ncontext = 32000\n'
        if settings:
            (place / "config.toml").write_text(settings)
        # As a person has it: everything where it usually is, and `tenax` on the way that a shell looks.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        served = stack.enter_context(
            Served(home, env={"HOME": folder, "TENAX_HOME": "", "PATH": path})
        )
        with chromium.window(**how) as window:
            window.expects("net::ERR_")
            yield served, window.enter(served)


if __name__ == "__main__":
    sys.exit(main())
