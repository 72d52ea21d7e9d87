"""Memory providers that behave, and such that do not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tenax.memory import MemoryProvider


class Notebook(MemoryProvider):
    """Writes down every call. What it is to do in one is given by name."""

    def __init__(self, name: str = "notebook", **acts: Callable[..., Any]) -> None:
        self._name = name
        self._acts = acts
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[threading.Thread] = set()

    def __getattribute__(self, key: str) -> Any:
        found = super().__getattribute__(key)
        if (
            key.startswith("_")
            or key in {"name", "calls", "threads"}
            or not callable(found)
        ):
            return found

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.threads.add(threading.current_thread())
            try:
                return (
                    self._acts[key](*args, **kwargs)
                    if key in self._acts
                    else found(*args, **kwargs)
                )
            finally:
                self.calls.append((key, *args))

        return noted

    @property
    def name(self) -> str:
        return self._name

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        pass

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{self._name}_search",
                "description": "Search.",
                "parameters": {"type": "object"},
            }
        ]

    def handle_tool_call(
        self, tool_name: str, args: dict[str, Any], **kwargs: Any
    ) -> str:
        return f"found {args['query']}"


class Gate:
    """Stands in the way of a call until it is opened; knows when somebody has come to it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        assert self.opened.wait(60)
