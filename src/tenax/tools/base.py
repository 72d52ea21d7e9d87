"""The base class of tools.

A tool does one thing and returns a text for the model. The gate (`gate.py`) handles approvals, timeouts and the length
of the output, and is the only caller of `run`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, dataclass_transform

import msgspec

__all__ = [
    "Args",
    "Call",
    "Effect",
    "Elsewhere",
    "LiveOutput",
    "Tool",
]

A = TypeVar("A", bound=msgspec.Struct)

# After a crash a `pure` call is repeated, an `idempotent` call is repeated with the same key, and a `once` call is
# repeated only if a person agrees.
Effect = Literal["pure", "idempotent", "once"]


@dataclass_transform(frozen_default=True)
class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a tool, or a part of them. The model gets the JSON Schema. An unknown field is an error."""


class LiveOutput:
    """The output of a running call, for the person who watches it."""

    read: Callable[[], str] | None = None
    """Function that returns the output so far, in bounded length and time. A tool with live output sets it.

    Each output continues the output before, or replaces only its end. The tool holds back the end of the output if the
    end may be half of a secret.
    """


class Call(msgspec.Struct, frozen=True):
    """A call of a tool: its origin, and its working folder."""

    user: str
    conversation: str
    message: int
    """The seq of the answer containing the call."""
    id: str
    folder: Path
    """The folder of the conversation. The folder may not exist yet."""
    words: str = ""
    """The answer of the person, if the call was a question."""
    live: LiveOutput = msgspec.field(default_factory=LiveOutput)

    @property
    def key(self) -> str:
        """The idempotency key: a repeated call has the same key. A fork has a new key, as a separate conversation."""
        return f"{self.conversation}:{self.message}:{self.id}"


class Elsewhere(Exception):
    """The call continues in a child conversation, is repeated after every change there, and finds the result there."""

    def __init__(self, conversation: str, *, asks: bool) -> None:
        super().__init__(conversation)
        self.conversation = conversation
        # Whether a person must answer a question in the child conversation.
        self.asks = asks


class Tool(abc.ABC, Generic[A]):
    """A function that a model can call."""

    name: str
    description: str
    """The description for the model."""
    effect: Effect
    args: type[A]
    """The struct of the arguments, a subclass of `Args`."""
    schema: dict[str, Any] | None = None
    """The JSON Schema of a foreign tool. A foreign tool takes a dictionary and checks the dictionary itself."""
    seconds: float
    """The timeout of a call."""
    asks: bool
    """Whether a call needs approval, unless a rule allows the call."""
    delegated: bool = True
    """Whether sub-agents get the tool. False for tools that outlive a task or use other conversations or the memory."""
    only_reads: bool = False
    """Whether the tool changes nothing, or changes only what the person sees. Plan mode refuses every other tool."""
    edits: bool = False
    """Whether the tool changes only a file in the folder of the call. The mode `edits` allows such calls."""
    paths: bool = False
    """Whether `touches` returns a path. Then a rule can name the folder of the path."""
    line: bool = False
    """Whether `touches` returns a command line. Then a rule must not allow a second command in the line."""

    open_words: str = ""
    """The part of a call not restricted by a pattern, such as "any content". The button shows the text."""

    @abc.abstractmethod
    def touches(self, args: A, call: Call) -> str:
        """Return the target of the call in a single line, for the person and the rules, without I/O.

        Raises `ToolFailed`, `InvalidInput` or `Refused` if the call can never succeed, so that no person is asked in
        vain.
        """

    def exact(self, args: A) -> str:  # noqa: ARG002  (for tools that look at them)
        """Return the complete target of the call if `touches` is shortened; otherwise an empty text."""
        return ""

    def always_asks(self, args: A) -> bool:  # noqa: ARG002  (for tools that look at them)
        """Return whether the call always needs approval. Then no rule can allow the call, and no rule is offered."""
        return False

    def badge(self, args: A) -> str:  # noqa: ARG002  (for tools that look at them)
        """Return what the call can reach, in a few words for the person who approves it."""
        return ""

    async def preview(self, args: A, call: Call) -> str:  # noqa: ARG002  (for tools that change files)
        """Return the change of a file as a unified diff, or an empty text. Changes nothing."""
        return ""

    @abc.abstractmethod
    async def run(self, args: A, call: Call) -> str:
        """Perform the call and return a text for the model. Raises the errors of `touches`, or `Elsewhere`."""
