"""A model that plays a script, for tests and demonstrations.

A script is a list of replies. The request alone decides which reply is next: the number of the reply is the number of
assistant messages in the request. A restarted process therefore continues at the right reply, two processes agree, and an
undo or a compaction, which removes messages from the request, also goes back in the script. The model only remembers how
often a trouble with `times` was played; a new process starts to count again.

A script file is JSON: `{"replies": [{"words": "Hello."}, {"calls": [{"name": "read", "arguments": {"path": "a"}}]}],
"repeat": true}`. With `repeat` the last reply is repeated; otherwise a request after the last reply is a Failure.
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
from tenax.models.render import NOTHING_READ, Contents, body_of, spelled_out
from tenax.parts import Part, Reasoning, Text, ToolCall
from tenax.views.context import Message

__all__ = [
    "Reply",
    "Script",
    "ScriptedCall",
    "ScriptedModel",
    "Trouble",
    "pieces_of",
    "words_in",
]

BODIES_MAX: Final = 1000
_encode: Final = msgspec.json.Encoder().encode


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool. Arguments that are text are sent as written, even if they are invalid."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""


class Trouble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure after the words of the reply, `times` times per process; 0 means always."""

    why: Why
    message: str = ""
    status: int = 0
    retry_after: float | None = None
    limit: int | None = None
    times: int = 0


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer. `pause` is the number of seconds before each piece; with `hang` the stream never ends."""

    words: str = ""
    thoughts: str = ""
    calls: list[ScriptedCall] = []
    trouble: Trouble | None = None
    hang: bool = False
    pause: float = 0.0
    finish: str = ""
    cost: float | None = None
    """Cost in US dollars, as if reported by the provider."""
    raw: str = ""
    """For the fake provider only: the bytes of the stream of events."""

    def tool_calls(self, turn: int) -> list[ToolCall]:
        """Return the calls with stable ids."""
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
        """Read a script from a JSON file. Raises `ConfigError` if the file is invalid."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(
                f"The script {file} cannot be read: {error.strerror}."
            ) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is no script: {error}.") from error

    def next(self, body: bytes, played: Counter[int]) -> tuple[int, Reply]:
        """Return the number of the next reply, and the reply. `played` counts the troubles with `times`."""
        messages = _decode_request(body).messages
        turn = sum(message.role == "assistant" for message in messages)
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
    """Split a text into words, each with the following space."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def words_in(body: bytes) -> int:
    """Return the number of words in a request: the scripted model counts words as tokens."""
    return len(body.split())


class ScriptedModel:
    """A model that plays `script`. `bodies` holds the last thousand requests.

    A token is a word: a request with more words than `context` is an overflow, and the prices of `settings` apply.
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
                    Reply(words=reply) if isinstance(reply, str) else reply
                    for reply in script
                ]
            )
        self.name = name
        self.context = context
        self.script = script
        self.bodies: list[bytes] = []
        self._settings = settings
        self.parameters: Mapping[str, Any] = {}
        if settings is not None:
            names = ("max_tokens", "temperature", "effort")
            self.parameters = {
                name: getattr(settings, name)
                for name in names
                if getattr(settings, name) is not None
            }
        self._played: Counter[int] = Counter()

    @classmethod
    def of(cls, settings: ModelSettings) -> ScriptedModel:
        """Return a model with the script in the file `settings.url`."""
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
        return body_of(head, messages)

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
        for piece in _first_pieces(reply):
            await asyncio.sleep(min(reply.pause, silence))
            if reply.pause > silence:
                yield Failure(
                    "silent", f"The script has sent nothing for {silence:g} seconds."
                )
                return
            yield piece
        if reply.hang or (reply.trouble and reply.trouble.why == "silent"):
            await asyncio.sleep(silence)
            yield Failure(
                "silent", f"The script has sent nothing for {silence:g} seconds."
            )
        elif reply.trouble:
            yield _failure(reply.trouble)
        else:
            yield self._build_answer(turn, reply, words)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _build_answer(self, turn: int, reply: Reply, words: int) -> Answer:
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


def _first_pieces(reply: Reply) -> Iterator[Piece]:
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
