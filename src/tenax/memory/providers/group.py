"""ProviderGroup: the memory providers of an agent, asked in parallel with a common deadline."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tenax.clock import Timing
from tenax.memory.providers.base import HOOKS
from tenax.memory.providers.handle import ProviderHandle

__all__ = ["ProviderGroup", "Recalled"]

log = logging.getLogger(__name__)

TOOL_SECONDS = 30.0
SHUTDOWN_SECONDS = 5.0
FLUSH_SECONDS_MAX = 300.0
_OWN_SHUTDOWN_SECONDS = 1.0
"""The part of `SHUTDOWN_SECONDS` reserved for the shutdown methods of the providers."""


class Recalled(msgspec.Struct, frozen=True):
    """The texts received in time, by provider, and the providers without an answer."""

    texts: dict[str, str] = {}
    missed: tuple[str, ...] = ()


class ProviderGroup:
    """The providers of an agent. Safe to use from any thread."""

    def __init__(
        self, *, recall_seconds: float = Timing.provider_recall_seconds
    ) -> None:
        self._recall_seconds = recall_seconds
        self._lock = threading.Lock()
        self._handles: tuple[ProviderHandle, ...] = ()
        self._tools: dict[str, ProviderHandle] = {}
        self._is_shut_down = False

    def add(self, handle: ProviderHandle) -> None:
        """Add a provider without calling the provider."""
        with self._lock:
            self._handles = (*self._handles, handle)

    def notify_all(self, hook: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Queue a hook that needs no answer, after every earlier delivery. Returns at once."""
        if hook not in HOOKS:
            raise ValueError(
                f"A memory has no hook {hook}: there are {', '.join(sorted(HOOKS))}."
            )
        self.deliver_all(hook, *args, **kwargs)

    def deliver_all(self, method: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Queue a call for every provider. Returns at once."""
        for handle in self._handles:
            handle.deliver(method, *args, **kwargs)

    # -- questions, with a deadline --------------------------------------------------------------------------

    def recall(self, query: str, *, session_id: str = "") -> Recalled:
        """Return the texts recalled by the providers for a query within the deadline."""
        texts: dict[str, str] = {}
        missed: list[str] = []
        for handle, text in self._ask("prefetch", query, kind=str, session_id=session_id):  # fmt: skip
            if text is None:
                missed.append(handle.name)
            elif text.strip():
                texts[handle.name] = text.strip()
        return Recalled(texts, tuple(missed))

    def system_prompt(self) -> str:
        """Return the descriptions of the memories for the model."""
        return _join(self._ask("system_prompt_block", kind=str))

    def pre_compress(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return text to be included in a summary of the messages."""
        return _join(self._ask("on_pre_compress", messages, kind=str))

    def tool_schemas(self) -> list[dict[str, Any]]:
        """Return the tools of the providers. Of two tools with the same name, the first counts."""
        tools: dict[str, tuple[ProviderHandle, dict[str, Any]]] = {}
        for handle, schemas in self._ask("get_tool_schemas", kind=list):
            for schema in schemas or ():
                if isinstance(schema, dict) and isinstance(schema.get("name"), str):
                    tools.setdefault(schema["name"], (handle, schema))
        with self._lock:
            self._tools.update({name: handle for name, (handle, _) in tools.items()})
        return [schema for _, schema in tools.values()]

    def handle_tool_call(
        self,
        tool_name: str,
        args: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """Return the answer of the provider with the tool, known from `tool_schemas`. A failure is an answer too."""
        handle = self._tools.get(tool_name)
        if handle is None or self._is_shut_down:
            return json.dumps({"error": f"No memory offers a tool {tool_name}."})
        question = handle.ask("handle_tool_call", tool_name, args, **kwargs)
        until = time.monotonic() + TOOL_SECONDS
        answer: str | None = handle.wait_for(question, until, str)
        if answer is None:
            return json.dumps({"error": f"The memory {handle.name} gave no answer."})
        return answer

    def _ask(
        self,
        method: str,
        *args: Any,  # noqa: ANN401
        kind: type,
        **kwargs: Any,  # noqa: ANN401
    ) -> list[tuple[ProviderHandle, Any]]:
        """Ask every provider at once, and wait for the answers with a common deadline."""
        if self._is_shut_down:
            return []
        until = time.monotonic() + self._recall_seconds
        questions = [
            (handle, handle.ask(method, *args, **kwargs)) for handle in self._handles
        ]
        return [
            (handle, handle.wait_for(question, until, kind))
            for handle, question in questions
        ]

    # -- the end ---------------------------------------------------------------------------------------------

    def flush_pending(self, timeout: float | None = None) -> bool:
        """Wait until every queued delivery is finished or failed.

        `None` waits five minutes. Return False on timeout.
        """
        seconds = FLUSH_SECONDS_MAX if timeout is None else timeout
        until = time.monotonic() + seconds
        return all(
            handle.deliveries.flush(until - time.monotonic())
            for handle in self._handles
        )

    def shutdown_all(self) -> None:
        """Finish deliveries and shut the providers down within five seconds, and abandon unfinished calls."""
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
        until = time.monotonic() + SHUTDOWN_SECONDS
        for handle in self._handles:
            handle.shut_down()
        self.flush_pending(until - _OWN_SHUTDOWN_SECONDS - time.monotonic())
        dropped = [(handle, handle.drop_deliveries()) for handle in self._handles]
        self.flush_pending(until - time.monotonic())
        for handle, calls in dropped:
            if calls or handle.deliveries.waiting:
                log.warning(
                    "Memory %s was left behind at shutdown: %d calls were not begun%s.",
                    handle.name,
                    calls,
                    ", and one has not come back" if handle.deliveries.waiting else "",
                    extra={"action": "memory_left_behind"},
                )


def _join(answers: list[tuple[ProviderHandle, Any]]) -> str:
    texts = [text.strip() for _, text in answers if text is not None]
    return "\n\n".join(text for text in texts if text)
