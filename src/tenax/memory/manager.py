"""MemoryManager: hands what happens in a conversation to every memory, and waits for none of them.

Each provider from outside has lanes of its own (`Lane`: a daemon thread, made when first needed): one for what is told to
it, in order, so that turn N comes before turn N+1 and the extraction at the end after both; one for recall and one for its
tools, so that a slow write delays no question. Every question has a deadline; a provider that lets one go by is asked no
other before it comes back, and after three of them none for a minute. The built-in memory is ours and quick: it is called in place, and no thread is made for it.

Whatever a provider does (raises, blocks for ever, returns something else, prints), its neighbours and the turn go on.
What fails is said in the log; so is what is refused at a bound, which is the newest.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import msgspec

from tenax.memory.providers.base import BUILT_IN, HOOKS, MemoryProvider
from tenax.memory.serial_thread import Lane, said

__all__ = ["MemoryManager", "Recalled", "Seat"]

log = logging.getLogger(__name__)

CALLS_MAX = 10_000  # told to one provider and not yet done
QUESTIONS_MAX = 8
TEXT_CHARS_MAX = 100_000  # of one answer
RECALL_SECONDS = 0.25
TOOL_SECONDS = 30.0
SHUTDOWN_SECONDS = 5.0
FLUSH_SECONDS_MAX = 300.0
_LAST_SECONDS = 1.0  # of SHUTDOWN_SECONDS, kept for the provider's own shutdown()
_MISSES_MAX = 3
_REST_SECONDS = 60.0
_FAILED: Any = object()
# a provider with a base of its own may lack them
_OPTIONAL = HOOKS | {"queue_prefetch"}


class Recalled(msgspec.Struct, frozen=True):
    """What came back in time, by provider, and who did not answer."""

    texts: dict[str, str] = {}
    missed: tuple[str, ...] = ()


class Seat:
    """One provider and its lanes. A `Follower` hands it what is durable."""

    def __init__(self, provider: MemoryProvider) -> None:
        self.provider = provider
        try:
            self.name = str(provider.name)
        except Exception:  # noqa: BLE001  (it is named by its class then)
            self.name = type(provider).__name__
        self.ours = self.name == BUILT_IN
        self.told = Lane(f"memory {self.name}", CALLS_MAX)
        self.asked = Lane(f"memory {self.name} recall", QUESTIONS_MAX)
        self.tools = Lane(f"memory {self.name} tools", QUESTIONS_MAX)
        self._lock = threading.Lock()
        self._misses = 0
        self._rests_until = 0.0
        # a question that nobody waits for any more
        self._late: Future[Any] | None = None

    def tell(self, method: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if self.ours:
            self.call(method, args, kwargs)
        elif self.told.give(lambda: self.call(method, args, kwargs)) is None:
            log.warning(
                "Memory %s was not given a %s: %d calls are waiting, or it is shut down. If it does not get on, turn it off.",
                self.name,
                method,
                self.told.waiting,
                extra={"action": "memory_refused"},
            )

    def hand(self, method: str, *args: Any, **kwargs: Any) -> Future[str] | None:  # noqa: ANN401
        """Tell it something, and what became of that: the error in a line, or "". None: its line is full or closed."""
        args, kwargs = _copied(args), _copied(kwargs)
        return self.told.give(lambda: self._made(method, args, kwargs)[1])

    def ask(
        self,
        lane: Lane,
        method: str,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Future[Any] | None:
        """A question on its way, or None where there is no use in asking."""
        if self.ours:
            answer: Future[Any] = Future()
            answer.set_result(self.call(method, args, kwargs))
            return answer
        rests = lane is self.asked and time.monotonic() < self._rests_until
        if rests or (self._late is not None and not self._late.done()):
            return None
        return lane.give(lambda: self.call(method, args, kwargs))

    def answer(self, asked: Future[Any] | None, until: float, kind: type) -> Any:  # noqa: ANN401
        """What came of a question, or None where nothing did in time."""
        if asked is None:
            return None
        wait([asked], timeout=max(0.0, until - time.monotonic()))
        if not asked.done():
            self._miss(asked)
            return None
        self._misses = 0
        found = asked.result()
        if found is _FAILED or isinstance(found, kind):
            return (
                None
                if found is _FAILED
                else _text(found)
                if isinstance(found, str)
                else found
            )
        self._fail(
            f"It gave {type(found).__name__} where {kind.__name__} was asked for"
        )
        return None

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Call the provider. An exit that it asks for counts as a failure like any other."""
        return self._made(method, args, kwargs)[0]

    def _made(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str]:
        try:
            if method in _OPTIONAL and not hasattr(self.provider, method):
                return None, ""
            function = getattr(self.provider, method)
            found = function(*args, **_taken(function, kwargs))
        except BaseException as error:
            if self.ours and not isinstance(error, Exception):
                raise
            return _FAILED, self._fail(f"{method}: {said(error)}")
        return found, ""

    def _fail(self, why: str) -> str:
        log.warning(
            "Memory %s failed. %s.", self.name, why, extra={"action": "memory_failed"}
        )
        return why

    def _miss(self, asked: Future[Any]) -> None:
        if not asked.cancel():
            self._late = asked
        with self._lock:
            self._misses += 1
            if self._misses >= _MISSES_MAX:
                self._misses = 0
                self._rests_until = time.monotonic() + _REST_SECONDS


class MemoryManager:
    """All memories of one agent."""

    def __init__(self, *, recall_seconds: float = RECALL_SECONDS) -> None:
        self._recall_seconds = recall_seconds
        self._lock = threading.Lock()
        self._seats: tuple[Seat, ...] = ()
        self._tools: dict[str, Seat] = {}
        self._shut = False

    def add_provider(self, provider: MemoryProvider) -> Seat:
        """From now on it is told what happens. Nothing of it is called here but its name."""
        return self.seat(Seat(provider))

    def seat(self, seat: Seat) -> Seat:
        """The same, where the seat is there already."""
        with self._lock:
            self._seats = (*self._seats, seat)
        return seat

    # -- telling: returns at once --------------------------------------------------------------------------------

    def sync_all(
        self,
        user: str,
        assistant: str,
        *,
        session_id: str = "",
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """A turn is finished."""
        self._tell(
            "sync_turn", user, assistant, session_id=session_id, messages=messages
        )

    def queue_prefetch_all(self, query: str, *, session_id: str = "") -> None:
        """The next turn may ask for this."""
        self._tell("queue_prefetch", query, session_id=session_id)

    def notify_all(self, hook: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Call one of the hooks that want no answer, after everything that was told before."""
        if hook not in HOOKS:
            raise ValueError(
                f"A memory has no hook {hook}: there are {', '.join(sorted(HOOKS))}."
            )
        self._tell(hook, *args, **kwargs)

    # -- asking: has a deadline ----------------------------------------------------------------------------------

    def recall(self, query: str, *, session_id: str = "") -> Recalled:
        """What every provider knows about this, as far as it says so in time."""
        found = self._ask("prefetch", query, kind=str, session_id=session_id)
        texts = {
            seat.name: text.strip()
            for seat, text in found
            if text is not None and text.strip()
        }
        return Recalled(texts, tuple(seat.name for seat, text in found if text is None))

    def prefetch_all(self, query: str, *, session_id: str = "") -> str:
        """The same as one text. It is not fenced yet (`fence`)."""
        return "\n\n".join(self.recall(query, session_id=session_id).texts.values())

    def system_prompt(self) -> str:
        """What the model is to know about its memories."""
        return _joined(self._ask("system_prompt_block", kind=str))

    def pre_compress(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What a summary of these messages must not leave out."""
        return _joined(self._ask("on_pre_compress", messages, kind=str))

    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools of all providers. Of two with one name the first counts."""
        tools: dict[str, tuple[Seat, dict[str, Any]]] = {}
        for seat, schemas in self._ask("get_tool_schemas", kind=list):
            for schema in schemas or ():
                if isinstance(schema, dict) and isinstance(schema.get("name"), str):
                    tools.setdefault(schema["name"], (seat, schema))
        with self._lock:
            self._tools.update({name: seat for name, (seat, _) in tools.items()})
        return [schema for _, schema in tools.values()]

    def handle_tool_call(
        self,
        tool_name: str,
        args: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """The answer of the provider that offered this tool in `tool_schemas`; a failure is an answer too."""
        seat = self._tools.get(tool_name)
        if seat is None or self._shut:
            return json.dumps({"error": f"No memory offers a tool {tool_name}."})
        asked = seat.ask(
            seat.tools, "handle_tool_call", tool_name, _copied(args), **kwargs
        )
        answer: str | None = seat.answer(asked, time.monotonic() + TOOL_SECONDS, str)
        if answer is None:
            return json.dumps({"error": f"The memory {seat.name} gave no answer."})
        return answer

    # -- waiting -------------------------------------------------------------------------------------------------

    def flush_pending(self, timeout: float | None = None) -> bool:
        """Wait until everything told so far is done, or failed. None waits five minutes. True once it is."""
        until = time.monotonic() + (FLUSH_SECONDS_MAX if timeout is None else timeout)
        return all(seat.told.flush(until - time.monotonic()) for seat in self._seats)

    def shutdown_all(self) -> None:
        """Finish what can be finished in five seconds, let every provider shut down, and go on without the rest."""
        with self._lock:
            if self._shut:
                return
            self._shut = True
        until = time.monotonic() + SHUTDOWN_SECONDS
        for seat in self._seats:
            if seat.ours:
                seat.call("shutdown", (), {})
            else:
                seat.told.give(partial(seat.call, "shutdown", (), {}), last=True)
        self.flush_pending(until - _LAST_SECONDS - time.monotonic())
        lost = [(seat, seat.told.drop(keep=1)) for seat in self._seats]
        self.flush_pending(until - time.monotonic())
        for seat, calls in lost:
            if calls or seat.told.waiting:
                log.warning(
                    "Memory %s was left behind at shutdown: %d calls were not begun%s.",
                    seat.name,
                    calls,
                    ", and one has not come back" if seat.told.waiting else "",
                    extra={"action": "memory_left_behind"},
                )

    def _tell(self, method: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        for seat in self._seats:
            seat.tell(method, *_copied(args), **_copied(kwargs))

    def _ask(
        self,
        method: str,
        *args: Any,  # noqa: ANN401
        kind: type,
        **kwargs: Any,  # noqa: ANN401
    ) -> list[tuple[Seat, Any]]:
        """Ask all at once, and wait for all together."""
        if self._shut:
            return []
        until = time.monotonic() + self._recall_seconds
        asked = [
            (seat, seat.ask(seat.asked, method, *_copied(args), **_copied(kwargs)))
            for seat in self._seats
        ]
        return [(seat, seat.answer(question, until, kind)) for seat, question in asked]


def _joined(found: list[tuple[Seat, Any]]) -> str:
    return "\n\n".join(
        text.strip() for _, text in found if text is not None and text.strip()
    )


def _text(words: str) -> str:
    """What can be stored and sent of somebody's words."""
    return words[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()


def _copied(value: Any) -> Any:  # noqa: ANN401
    """Lists and mappings of the provider's own: what it does to them, or the caller does later, changes nothing."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (
            type(value)(map(_copied, value)) if type(value) in {list, tuple} else value
        )
    return value


def _taken(function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those keywords that the signature takes: providers were written over years, and the list grew."""
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(function).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return {name: value for name, value in kwargs.items() if name in parameters}
    return kwargs
