"""The tool `ask`: a question to the person, with choices.

A question waits like an approval: the question survives restarts, and expires. The answer is only the result of the
call, and allows no further call.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tenax.errors import ToolFailed
from tenax.tools.base import Args, Call, Tool

__all__ = ["WORDS_CHARS_MAX", "Ask", "choices"]

# The longest answer.
WORDS_CHARS_MAX: Final = 4000
_Choice = Annotated[str, Meta(min_length=1, max_length=200)]


class AskArgs(Args):
    question: Annotated[
        str,
        Meta(min_length=1, max_length=1000, description="The question, in a sentence."),
    ]
    choices: Annotated[
        list[_Choice],
        Meta(
            min_length=2,
            max_length=6,
            description="Answers to choose from; other words are always possible.",
        ),
    ]


class Ask(Tool[AskArgs]):
    name = "ask"
    description = (
        "Ask the person a question and wait for the answer. For a decision that is theirs and that you cannot work out; "
        "never to be allowed something: tools ask for that themselves."
    )
    effect = "pure"
    args = AskArgs
    seconds = 10.0
    asks = True
    only_reads = True

    def touches(self, args: AskArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        choices = [choice.strip() for choice in args.choices]
        if (
            not args.question.strip()
            or not all(choices)
            or len(set(choices)) < len(choices)
        ):
            raise ToolFailed(
                "A question and its choices need words, each choice its own."
            )
        return " ".join(args.question.split())

    def always_asks(self, args: AskArgs) -> bool:  # noqa: ARG002  (the contract's signature)
        return True

    async def run(self, args: AskArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if not call.words:
            raise ToolFailed("The person gave no answer.")
        return f"The person answered:\n\n{call.words}"


def choices(name: str, arguments: str) -> list[str]:
    """Return the choices of a call of `ask`, or an empty list for another tool."""
    if name != Ask.name:
        return []
    try:
        return msgspec.json.decode(arguments, type=AskArgs).choices
    except msgspec.DecodeError:
        return []
