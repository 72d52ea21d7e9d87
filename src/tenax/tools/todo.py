"""The tool `todo`: the task list of a model. Every call contains the whole list, and the last call counts.

Only the call itself is stored. The call stays in the context until a summary replaces it. The summary then ends with
the list (`with_list`), so the model always sees the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tenax.parts import Part, ToolCall
from tenax.tools.base import Args, Call, Tool

__all__ = ["Entry", "Todo", "with_list"]

_SIGNS: Final = {"open": " ", "doing": "~", "done": "x"}
_TITLE: Final = "## The list of what there is to do, as it stood then"
_KEPT: Final = re.compile(rf"^{_TITLE}\n(?:- \[[ ~x]\] .*\n?)*", re.MULTILINE)


class Entry(Args):
    """One thing to do."""

    text: Annotated[str, Meta(min_length=1, max_length=200)]
    state: Literal["open", "doing", "done"] = "open"


class TodoArgs(Args):
    entries: Annotated[
        list[Entry],
        Meta(max_length=50, description="All of them, in order; none clears the list."),
    ]


class Todo(Tool[TodoArgs]):
    name = "todo"
    description = (
        "Keep a list of what there is to do in this conversation, for a task of several steps; the person sees it. Give the "
        "whole list each time, when a step is begun or done."
    )
    effect = "pure"
    args = TodoArgs
    seconds = 10.0
    asks = False
    only_reads = True

    def touches(self, args: TodoArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        done = sum(entry.state == "done" for entry in args.entries)
        return f"{done} of {len(args.entries)} done"

    async def run(self, args: TodoArgs, call: Call) -> str:
        return f"{self.touches(args, call)}."


def with_list(summary: str, earlier: str, covered: Iterable[Part]) -> str:
    """Return the summary with the list of the last call in `covered`, or else of the earlier summary."""
    kept = _KEPT.search(earlier)
    found = kept[0].strip() if kept else ""
    for part in covered:
        if isinstance(part, ToolCall) and part.name == Todo.name:
            try:
                entries = msgspec.json.decode(part.arguments, type=TodoArgs).entries
            except msgspec.DecodeError:
                # The gate refused this call.
                continue
            lines = [
                f"- [{_SIGNS[entry.state]}] {' '.join(entry.text.split())}"
                for entry in entries
            ]
            found = "\n".join([_TITLE, *lines]) if lines else ""
    return f"{_KEPT.sub('', summary).strip()}\n\n{found}".strip()
