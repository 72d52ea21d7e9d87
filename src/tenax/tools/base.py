"""The contract with a tool: what it is told, what it says of itself, and how it does blocking work.

A tool does one thing and returns what the model reads. It knows nothing of approvals, time limits or the length of its
output: those are the gate's (`gate.py`), which is the only one that calls `run`.
"""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tenax.concurrency import started
from tenax.errors import ToolFailed

__all__ = [
    "THREAD",
    "THREADS_MAX",
    "Call",
    "Effect",
    "Elsewhere",
    "Tool",
    "aside",
    "works_for",
]

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")

Effect = Literal["pure", "idempotent", "once"]
"""After a crash: `pure` may be run again, `idempotent` with the same key, `once` never unasked."""

THREADS_MAX = 32
"""Blocking calls of one user at a time. More of them than that hang only where a disk does."""
THREAD = "tenax-tool"
"""How the names of their threads begin."""
works_for: ContextVar[str] = ContextVar("works_for", default="")
"""The user whose call this is, where a tool runs."""


class Call(msgspec.Struct, frozen=True):
    """One call of a tool: who asked for it, and where it may work."""

    user: str
    conversation: str
    message: int
    """The seq of the answer that asked for it."""
    id: str
    folder: Path
    """The conversation's folder. It need not be there yet."""
    words: str = ""
    """What the person said, where the call was a question to them."""

    @property
    def key(self) -> str:
        """The same whenever this call is made again, and another one in a fork: the conversation is part of it."""
        return f"{self.conversation}:{self.message}:{self.id}"


class Elsewhere(Exception):
    """The call goes on in another conversation. It is made again whenever that one moved, and finds it there."""

    def __init__(self, conversation: str, *, asks: bool) -> None:
        super().__init__(conversation)
        self.conversation = conversation
        self.asks = asks
        """A person is asked something there."""


class Tool(abc.ABC, Generic[A]):
    """Something a model can ask for."""

    name: str
    description: str
    """For the model."""
    effect: Effect
    args: type[A]
    """What it takes, with `forbid_unknown_fields`. The model is told its JSON Schema."""
    schema: dict[str, Any] | None = None
    """The JSON Schema of a tool that is not ours: it takes a dictionary, and looks at it itself."""
    seconds: float
    """How long a call may take."""
    asks: bool
    """A person is asked, unless a rule allows it."""
    delegated: bool = True
    """A sub-agent has it too: not what goes on after its task, or is about other conversations and what is remembered."""
    paths: bool = False
    """What it touches is a path, so a rule may be about the folder that it is in."""
    line: bool = False
    """What it touches is a command line, so a rule that allows one allows no other behind it."""

    open_words: str = ""
    """What a pattern for this tool leaves open, for the button: "any content". Nothing is open in an exact text."""

    @abc.abstractmethod
    def touches(self, args: A, call: Call) -> str:
        """What this call would touch, in one line, for the person and the rules. Looks at nothing outside.

        Raises ToolFailed, InvalidInput or Refused where the call could never be done, so that nobody is asked in vain.
        """

    def exact(self, args: A) -> str:  # noqa: ARG002  (for tools that look at them)
        """The whole of what this call touches, where `touches` does not say all of it; else nothing."""
        return ""

    def always_asks(self, args: A) -> bool:  # noqa: ARG002  (for tools that look at them)
        """A person is asked for this call, whatever they allowed before: no rule stands for it, and none is offered."""
        return False

    @abc.abstractmethod
    async def run(self, args: A, call: Call) -> str:
        """Do it. What is returned is for the model. Raises as `touches` does, or Elsewhere."""


async def aside(
    work: Callable[[threading.Event], T],
    undo: Callable[[T], object] | None = None,
    *,
    user: str | None = None,
) -> T:
    """Run blocking work on a daemon thread of its own, so that a hung disk keeps neither the loop nor the process.

    The event is set once nobody waits for the work any more: look at it before doing what cannot be undone. What the work
    gives then is for `undo`: who waits may go in the very moment in which it ends.

    The threads of each user are counted apart: `user`, or whose call the running tool was given.
    """
    name = f"{THREAD} {(works_for.get() if user is None else user)!a}"
    if sum(thread.name == name for thread in threading.enumerate()) >= THREADS_MAX:
        raise ToolFailed(
            f"{THREADS_MAX} calls wait for the disk already, so this one was not begun.",
            hint="try again later",
        )
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits for it may go away; it goes on
    deserted = threading.Event()

    def call() -> None:
        try:
            future.set_result(work(deserted))
        except BaseException as error:  # noqa: BLE001  (it is raised where it is awaited)
            future.set_exception(error)

    if started(call, name) is None:
        raise ToolFailed(
            "The system gives no more threads, so this was not begun.",
            hint="try again later",
        )
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None:
            future.add_done_callback(
                lambda done: done.exception() or undo(done.result())
            )
        raise
    finally:
        deserted.set()
