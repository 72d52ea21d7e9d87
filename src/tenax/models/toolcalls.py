"""Assembles the tool calls of an answer from the pieces of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenax.parts import ToolCall

__all__ = ["Calls"]


@dataclass(slots=True)
class _Growing:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class Calls:
    """The calls, in the order of the first pieces."""

    def __init__(self) -> None:
        self._at: dict[int, _Growing] = {}
        self._all: list[_Growing] = []

    def add(
        self,
        index: int | None,
        call: str | None,
        name: str | None,
        arguments: str | None,
    ) -> None:
        """Add a piece of the call at `index`.

        Without an index, a piece with a name starts a new call, and a piece without a name belongs to the last call. A
        different id at the same index starts a new call, because some servers give the index 0 to all calls.
        """
        if index is None:
            index = len(self._all) if name or not self._all else len(self._all) - 1
        growing = self._at.get(index)
        if growing is None or (call and growing.id and call != growing.id):
            growing = self._at[index] = _Growing("", "")
            self._all.append(growing)
        growing.id = growing.id or call or ""
        growing.name = growing.name or name or ""
        growing.arguments.append(arguments or "")

    def gathered(self) -> list[ToolCall]:
        """Return the calls with unique ids and with the arguments as written. Empty arguments become `{}`."""
        given = {call.id for call in self._all}
        used: set[str] = set()
        calls: list[ToolCall] = []
        for number, call in enumerate(self._all, 1):
            name = call.id
            if not name or name in used:
                name = f"call_{number}"
                while name in given or name in used:
                    name += "_"
            used.add(name)
            calls.append(ToolCall(name, call.name, "".join(call.arguments) or "{}"))
        return calls
