"""A model that plays a script, for tests and demonstrations.

A script is a list of replies. Which one is next is a function of the request alone: the reply's number is the count of
the assistant's messages in it. So a process that is killed and started again goes on where the script stands, two
processes agree, and an undo or a compaction, which takes messages out of the request, goes back in the script as well.
The one thing that is remembered is how often a trouble with `times` came; a new process begins to count again.

As a file it is JSON: `{"replies": [{"words": "Hello."}, {"calls": [{"name": "read", "arguments": {"path": "a"}}]}],
"repeat": true}`. With `repeat` the last reply is given again and again; without it, a script that is over is a Failure.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tenax.config import ModelSettings
from tenax.errors import ConfigError
from tenax.events import Usage
from tenax.models.base import (
    Answer,
    Beat,
    Failure,
    Piece,
    Thought,
    ToolSpec,
    Why,
    Words,
)
from tenax.models.render import NOTHING_READ, Contents, spelled_out
from tenax.parts import Part, Reasoning, Text, ToolCall
from tenax.views.context import Message

__all__ = [
    "Call",
    "Reply",
    "Script",
    "ScriptedModel",
    "Trouble",
    "pieces_of",
    "words_in",
]

BODIES_MAX: Final = 1000
_encode: Final = msgspec.json.Encoder().encode


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool. Arguments as text are sent exactly as written, valid or not."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Trouble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong, after the words that the reply has. `times` in one process; 0 is always."""

    why: Why
    message: str = ""
    status: int = 0
    retry_after: float | None = None
    limit: int | None = None
    times: int = 0


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer. `pause` seconds stand before each piece; `hang` says nothing more, for ever."""

    words: str = ""
    thoughts: str = ""
    calls: list[Call] = []
    trouble: Trouble | None = None
    hang: bool = False
    pause: float = 0.0
    finish: str = ""
    cost: float | None = None
    """In US dollars, as if the provider reported it."""
    raw: str = ""
    """For the fake provider only: its stream of events, exactly as written."""

    def tool_calls(self, turn: int) -> list[ToolCall]:
        """Its calls, with ids that are the same every time."""
        return [
            ToolCall(
                call.id or f"call_{turn + 1}_{number}",
                call.name,
                call.arguments
                if isinstance(call.arguments, str)
                else _encode(call.arguments).decode(),
            )
            for number, call in enumerate(self.calls, 1)
        ]


class _Role(msgspec.Struct):
    role: str


class _Request(msgspec.Struct):
    messages: list[_Role]


_decode_request: Final = msgspec.json.Decoder(_Request).decode


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """Replies in order."""

    replies: list[Reply]
    repeat: bool = False

    @classmethod
    def read(cls, file: Path) -> Script:
        """The script in a JSON file. What is wrong with it is a ConfigError."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(
                f"The script {file} cannot be read: {error.strerror}."
            ) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is no script: {error}.") from error

    def next(self, body: bytes, played: Counter[int]) -> tuple[int, Reply]:
        """The reply to this request, and its number. `played` counts troubles that come a number of times."""
        turn = sum(each.role == "assistant" for each in _decode_request(body).messages)
        if turn >= len(self.replies) and not (self.repeat and self.replies):
            over = f"The script has {len(self.replies)} replies, and all of them were given."
            return turn, Reply(trouble=Trouble("refused", over))
        reply = self.replies[min(turn, len(self.replies) - 1)]
        if reply.trouble and reply.trouble.times:
            played[turn] += 1
            if played[turn] > reply.trouble.times:
                return turn, msgspec.structs.replace(reply, trouble=None)
        return turn, reply


def pieces_of(text: str) -> list[str]:
    """A text in small pieces: words with the space that follows them."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def words_in(body: bytes) -> int:
    """How long a request is, for a model that has no tokens."""
    return len(body.split())


class ScriptedModel:
    """A model that plays `script`. `bodies` are the last thousand that it was sent.

    Its tokens are words: a request with more of them than `context` is an overflow, and the prices of `settings` count.
    """

    sees = False

    def __init__(
        self,
        script: Script | Sequence[Reply | str],
        *,
        name: str = "script",
        context: int | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        if not isinstance(script, Script):
            script = Script(
                [
                    Reply(words=each) if isinstance(each, str) else each
                    for each in script
                ]
            )
        self.name = name
        self.context = context
        self.script = script
        self.bodies: list[bytes] = []
        self._settings = settings
        self._played: Counter[int] = Counter()

    @classmethod
    def of(cls, settings: ModelSettings) -> ScriptedModel:
        """The model whose script is the file at `settings.url`."""
        return cls(
            Script.read(Path(settings.url)),
            name=settings.name,
            context=settings.context,
            settings=settings,
        )

    def message(self, message: Message, contents: Contents = NOTHING_READ) -> bytes:
        return _encode(Message(message.role, spelled_out(message.parts, contents)))

    def body(
        self,
        prompt: str,
        tools: Sequence[ToolSpec],
        messages: Sequence[bytes],
        settings: Mapping[str, Any],
    ) -> bytes:
        head = {
            "model": self.name,
            "settings": settings,
            "prompt": prompt,
            "tools": tools,
        }
        return b'%b,"messages":[%b]}' % (
            _encode(head)[:-1],
            b",".join(filter(None, messages)),
        )

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        self.bodies.append(body)
        del self.bodies[:-BODIES_MAX]
        words = words_in(body)
        if self.context and words > self.context:
            yield Failure(
                "overflow",
                f"{words} words do not fit into {self.context}.",
                limit=self.context,
            )
            return
        turn, reply = self.script.next(body, self._played)
        for piece in _begin(reply):
            await asyncio.sleep(min(reply.pause, silence))
            if reply.pause > silence:
                yield Failure(
                    "silent", f"The script has said nothing for {silence:g} seconds."
                )
                return
            yield piece
        if reply.hang or (reply.trouble and reply.trouble.why == "silent"):
            await asyncio.sleep(silence)
            yield Failure(
                "silent", f"The script has said nothing for {silence:g} seconds."
            )
        elif reply.trouble:
            yield _failure(reply.trouble)
        else:
            yield self._answer(turn, reply, words)

    async def close(self) -> None:
        """Nothing is open."""

    def _answer(self, turn: int, reply: Reply, words: int) -> Answer:
        parts: list[Part] = [Reasoning(reply.thoughts)] if reply.thoughts else []
        if reply.words:
            parts.append(Text(reply.words))
        parts += reply.tool_calls(turn)
        said = len(reply.thoughts.split()) + len(reply.words.split())
        finish = reply.finish or ("tool_calls" if reply.calls else "stop")
        cost = reply.cost
        if cost is None and self._settings is not None:
            cost = self._settings.cost(words, said)
        return Answer(parts, Usage(input=words, output=said, cost=cost), finish)


def _begin(reply: Reply) -> Iterator[Piece]:
    yield from map(Thought, pieces_of(reply.thoughts))
    yield from map(Words, pieces_of(reply.words))
    if not reply.trouble and not reply.hang:
        yield from (Beat() for _ in reply.calls)


def _failure(trouble: Trouble) -> Failure:
    return Failure(
        trouble.why,
        trouble.message or f"The script says: {trouble.why}.",
        status=trouble.status,
        retry_after=trouble.retry_after,
        limit=trouble.limit,
    )
