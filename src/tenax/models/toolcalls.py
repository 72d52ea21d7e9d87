"""Tool calls of one answer, gathered from the pieces that a stream brings."""

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
    """Calls in the order in which they began."""

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
        """A piece of the call at `index`.

        Without an index, a name begins a call and anything else belongs to the last one. Another id at the same index
        begins another call: some servers number all of them 0.
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
        """The calls, each with an id of its own and its arguments exactly as written; nothing written is `{}`."""
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
