"""The numbers in README.md, taken from docs/BENCHMARKS.md: `python -m tools.numbers` puts them in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "BENCHMARKS.md"
SHOWN = {
    "turn-peer-10": "a turn with 10 messages of history, beside hermes-agent 0.19",
    "turn-peer-4000": "the same with 4,000",
    "turn-own-4000": "what of that turn is ours and not the model's server",
    "first-word-sqlite": "from a model's first word to another process that shows it, stored between",
    "restart-sqlite": "from a restart after `kill -9` to the repaired transcript, 10,000 conversations",
    "page-open": "a conversation of 20,000 messages in Chromium, from its address to the last answer",
    "web-done": "from the last words of an answer in the page to its end",
    "append-sqlite": "one durable append, beside a bare insert and commit",
    "append-sqlite-flush": "the same where a flush takes 2 ms longer",
    "callers-sqlite-flush": "64 callers there, beside one",
    "flat-sqlite-list": "a page of the list among 100,000 conversations, beside 100",
    "bytes-sqlite-pruned": "bytes stored for each byte of an answer, once it is finished",
}
_BLOCK = re.compile(r"(<!-- numbers -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """The rows, with the date and the machine."""
    page = BENCHMARKS.read_text("utf-8")
    found = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \|", page, re.MULTILINE))
    facts = dict(re.findall(r"^\| (date|processor) \| ([^|]+) \|", page, re.MULTILINE))
    rows = "".join(
        f"| {what} | {found[key].strip()} |\n" for key, what in SHOWN.items()
    )
    return f"| {facts['date'].strip()}, {facts['processor'].strip()} | |\n|---|---|\n{rows}"


def page() -> str:
    """README.md with the numbers of the last run."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}{table()}{found[2]}", README.read_text("utf-8")
    )


if __name__ == "__main__":
    README.write_text(page(), "utf-8")
