"""ProviderHandle: the only way to call a memory provider.

A provider is foreign code. Whatever the provider does (raise, block forever, return garbage, print), the other
providers and the turn continue. The handle logs failed calls, and calls refused because too many calls are waiting.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from tenax.concurrency import SerialThread
from tenax.memory.providers.base import BUILT_IN, HOOKS, MemoryProvider
from tenax.text import describe_error

__all__ = ["ProviderHandle"]

log = logging.getLogger(__name__)

CALLS_MAX = 10_000
"""The most waiting deliveries of a provider."""
QUESTIONS_MAX = 8
TEXT_CHARS_MAX = 100_000
"""The longest answer of a provider."""
_MISSES_MAX = 3
_REST_SECONDS = 60.0
_FAILED: Any = object()
_OPTIONAL = HOOKS | {"queue_prefetch"}
"""Optional methods, missing in providers with a base class from elsewhere."""


class ProviderHandle:
    """A provider and its threads.

    Deliveries run in order on a single thread, so that turn N comes before turn N+1 and the end of a session after
    both. Recall and tools have separate threads, so that a slow delivery delays no question. A thread starts with its
    first call.

    After a missed deadline, the provider gets no further question until the late answer arrives. After three misses the
    provider gets no question for a minute. The built-in memory is quick: the handle calls the built-in memory directly,
    without a thread.
    """

    def __init__(self, provider: MemoryProvider) -> None:
        self.provider = provider
        try:
            self.name = str(provider.name)
        except Exception:  # noqa: BLE001  (foreign code)
            self.name = type(provider).__name__
        self._is_built_in = self.name == BUILT_IN
        self.deliveries = SerialThread(f"memory {self.name}", CALLS_MAX)
        self._recalls = SerialThread(f"memory {self.name} recall", QUESTIONS_MAX)
        self._tool_calls = SerialThread(f"memory {self.name} tools", QUESTIONS_MAX)
        self._lock = threading.Lock()
        self._misses = 0
        self._rests_until = 0.0
        self._late_answer: Future[Any] | None = None
        """The pending answer to a question after its deadline."""

    # -- deliveries ------------------------------------------------------------------------------------------

    def deliver(
        self,
        method: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Future[str] | None:
        """Queue a call that needs no answer. Return a future with the error, or "" on success.

        Return `None` if the call is refused, because too many calls wait or the provider is shut down.
        """
        args, kwargs = _copy(args), _copy(kwargs)

        def call() -> str:
            return self._call_provider(method, args, kwargs)[1]

        delivered = self._submit(self.deliveries, call)
        if delivered is None:
            log.warning(
                "Memory %s was not given a %s: %d calls are waiting, or it is shut down. If it makes no progress, turn it off.",
                self.name,
                method,
                self.deliveries.waiting,
                extra={"action": "memory_refused"},
            )
        return delivered

    def shut_down(self) -> None:
        """Queue the shutdown of the provider as the last call."""

        def call() -> None:
            self._call_provider("shutdown", (), {})

        if self._is_built_in:
            call()
        else:
            self.deliveries.submit(call, last=True)

    def drop_deliveries(self) -> int:
        """Cancel the waiting deliveries, except the shutdown. Return the number of cancelled deliveries."""
        return self.deliveries.drop(keep=1)

    # -- questions -------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Future[Any] | None:
        """Start a question or a call of a provider's tool.

        Return `None` if the provider has not answered an earlier question. A resting provider gets no question, but the
        model may still call its tools.
        """
        is_tool = method == "handle_tool_call"
        is_resting = time.monotonic() < self._rests_until and not is_tool
        is_late = self._late_answer is not None and not self._late_answer.done()
        if is_resting or is_late:
            return None
        args, kwargs = _copy(args), _copy(kwargs)
        thread = self._tool_calls if is_tool else self._recalls
        return self._submit(
            thread, lambda: self._call_provider(method, args, kwargs)[0]
        )

    def wait_for(self, question: Future[Any] | None, until: float, kind: type) -> Any:  # noqa: ANN401
        """Return the answer to a question, or `None` without a usable answer in time."""
        if question is None:
            return None
        wait([question], timeout=max(0.0, until - time.monotonic()))
        if not question.done():
            self._count_miss(question)
            return None
        self._misses = 0
        answer = question.result()
        if answer is _FAILED:
            return None
        if not isinstance(answer, kind):
            self._log_failure(
                f"It gave {type(answer).__name__} where {kind.__name__} was asked for"
            )
            return None
        return _storable(answer) if isinstance(answer, str) else answer

    def _count_miss(self, question: Future[Any]) -> None:
        if not question.cancel():
            self._late_answer = question
        with self._lock:
            self._misses += 1
            if self._misses >= _MISSES_MAX:
                self._misses = 0
                self._rests_until = time.monotonic() + _REST_SECONDS

    # -- calls -----------------------------------------------------------------------------------------------

    def _submit(
        self, thread: SerialThread, call: Callable[[], Any]
    ) -> Future[Any] | None:
        if not self._is_built_in:
            return thread.submit(call)
        done: Future[Any] = Future()
        done.set_result(call())
        return done

    def _call_provider(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str]:
        """Call the provider.

        Return its answer and "", or `_FAILED` and the error. `SystemExit` also counts as a failure.
        """
        try:
            if method in _OPTIONAL and not hasattr(self.provider, method):
                return None, ""
            function = getattr(self.provider, method)
            answer = function(*args, **_known_keywords(function, kwargs))
        except BaseException as error:
            if self._is_built_in and not isinstance(error, Exception):
                raise
            return _FAILED, self._log_failure(f"{method}: {describe_error(error)}")
        return answer, ""

    def _log_failure(self, why: str) -> str:
        log.warning(
            "Memory %s failed. %s.", self.name, why, extra={"action": "memory_failed"}
        )
        return why


def _storable(text: str) -> str:
    """Return a provider's text without characters that cannot be stored or sent, cut to the maximum length."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()


def _copy(value: Any) -> Any:  # noqa: ANN401
    """Copy lists and mappings, so that provider and caller cannot change each other's data."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(_copy, value))
    return value


def _known_keywords(
    function: Callable[..., Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the keywords accepted by a function.

    The interface gained keywords over the years, and old providers lack them.
    """
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(function).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return {name: value for name, value in kwargs.items() if name in parameters}
    return kwargs
