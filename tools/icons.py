"""Draws the icons of the installed page from ui/src/mark.svg:  python -m tools.icons

A system cuts a maskable icon into its own form, and keeps only the middle for sure. So the mark is smaller there, and
its colour fills the corners. Phones of Apple round the corners of their icon themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.support.browser import launched

ROOT: Final = Path(__file__).parents[1]
MARK: Final = ROOT / "ui" / "src" / "mark.svg"
TARGET: Final = ROOT / "ui" / "public" / "icons"
SAFE: Final = 0.8
"""The part of a maskable icon that every system shows."""
ICONS: Final = {"192": (192, False), "512": (512, False), "apple": (180, True), "maskable": (512, True)}  # fmt: skip
"""The size in pixels, and whether the colour fills the corners."""


def drawing(*, filled: bool) -> str:
    """Return the mark as SVG, with or without corners."""
    svg = MARK.read_text(encoding="utf-8")
    if not filled:
        return svg
    colour = re.search(r'fill="(#\w+)"', svg)
    inside = re.search(r"<rect[^>]*/>(.*)</svg>", svg, re.DOTALL)
    assert colour is not None, "the mark has no colour"
    assert inside is not None, "the mark has no ground"
    offset = 16 * (1 - SAFE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" fill="{colour[1]}"/>'
        f'<g transform="translate({offset:g} {offset:g}) scale({SAFE})">{inside[1]}</g></svg>'
    )


def main() -> None:
    """Draw all icons."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with (
        sync_playwright() as playwright,
        launched(playwright) as chromium,
        chromium.window() as window,
    ):
        page = window.context.new_page()
        for name, (size, filled) in ICONS.items():
            page.set_viewport_size({"width": size, "height": size})
            svg = drawing(filled=filled).replace("<svg ", f'<svg width="{size}" ')
            page.set_content(
                f"<style>body{{margin:0}}svg{{display:block}}</style>{svg}"
            )
            page.screenshot(path=TARGET / f"{name}.png", omit_background=True)


if __name__ == "__main__":
    main()
