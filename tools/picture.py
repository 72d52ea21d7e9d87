"""Draws docs/picture.svg: one journal, and readers that hold a number.  python -m tools.picture"""

from __future__ import annotations

from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "picture.svg"
FACTS = ["hello", "run", "...", "...", "answer", "undo", "hello", "answer"]
PARTIALS = {2, 3}
READERS = [("browser", 7), ("terminal", 7), ("memory", 4), ("search", 6)]
WIDTH, CELL, LEFT, TOP = 860, 84, 94, 74


def picture() -> str:
    """The drawing as text. It looks the same on light and dark pages."""
    cells = [_cell(index, word) for index, word in enumerate(FACTS)]
    readers = [_reader(row, name, at) for row, (name, at) in enumerate(READERS)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 300" font-family="sans-serif" font-size="15">',
            "<title>A conversation is one numbered journal. Everything else is a reader that holds a number.</title>",
            f'<rect width="{WIDTH}" height="300" rx="12" fill="#10202b"/>',
            '<text x="24" y="40" fill="#e8eef2" font-size="19">one conversation = one journal</text>',
            '<text x="836" y="40" fill="#9fb3c0" text-anchor="end">append -&gt;</text>',
            *cells,
            *readers,
            "</svg>\n",
        ]
    )


def _cell(index: int, word: str) -> str:
    x = LEFT + index * (CELL + 8)
    fill, dash = (
        ("#10202b", ' stroke-dasharray="4 3"') if index in PARTIALS else ("#1d5c63", "")
    )
    return (
        f'<rect x="{x}" y="{TOP}" width="{CELL}" height="48" rx="7" fill="{fill}" stroke="#57b8ad"{dash}/>'
        f'<text x="{x + CELL / 2}" y="{TOP + 29}" fill="#e8eef2" text-anchor="middle">{word}</text>'
        f'<text x="{x + CELL / 2}" y="{TOP + 66}" fill="#9fb3c0" font-size="12" text-anchor="middle">{index + 1}</text>'
    )


def _reader(row: int, name: str, at: int) -> str:
    y = TOP + 102 + row * 28
    x = LEFT + at * (CELL + 8) + CELL / 2
    return (
        f'<text x="24" y="{y + 5}" fill="#9fb3c0">{name}</text>'
        f'<line x1="{LEFT}" y1="{y}" x2="{x}" y2="{y}" stroke="#f2b66d" stroke-width="2"/>'
        f'<circle cx="{x}" cy="{y}" r="5" fill="#f2b66d"/>'
        f'<text x="{x + 12}" y="{y + 5}" fill="#f2b66d" font-size="12">{at + 1}</text>'
    )


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
