"""Titles for conversations, written by the model that gave the answer.

The model is asked after the first answer, outside the conversation: a failure changes nothing in the conversation. A
title given by a person in the meantime stays. A title is never made from text that was undone or erased in the
meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Final

from tenax.agent.compaction import redacted
from tenax.errors import HeadMoved
from tenax.events import ConversationTitled, MessageAssistant, MessageUser, ModelUsed
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Expect
from tenax.models.base import Answer, Failure, Model, Words
from tenax.parts import Text, text_of
from tenax.text import replace_hidden
from tenax.views.context import Message

__all__ = ["ask", "give_title", "title_of_copy"]

log = logging.getLogger(__name__)

TITLE_CHARS_MAX: Final = 80
_SAID_CHARS_MAX: Final = 4000
_QUOTED_CHARS_MAX: Final = 1500
_TRIES_MAX: Final = 5
_QUOTES: Final = " \t*_#`\"'«»„“”\u201a\u2018\u2019"
_ASK: Final = """\
Give the talk below a title of at most six words, in the language of the talk. Write only the title: no quotes, no full
stop, nothing before or after it. Do not answer the talk.

The person: {asked}

The answer: {answered}"""


_NUMBERED: Final = re.compile(r"(.*) \((\d{1,4})\)")


def title_of_copy(title: str) -> str:
    """Return the title of a copy: "Rome" becomes "Rome (2)", and "Rome (2)" becomes "Rome (3)"."""
    match = _NUMBERED.fullmatch(title)
    name, number = (match[1], int(match[2])) if match else (title, 1)
    return f"{name} ({number + 1})"


async def give_title(
    journal: AsyncJournal, model: Model, conversation: str, *, silence: float
) -> str | None:
    """Ask for a title and store the title if the conversation still has none. Return the stored title, or `None`.

    `silence` is the total time limit in seconds. The caller makes sure that the model is a real model.
    """
    since = (await journal.head(conversation)).head
    if (await journal.summary(conversation)).title is not None:
        return None
    standing = await journal.messages(conversation, upto=since)
    question = next(
        (recorded for recorded in standing if _is_question(recorded.event)), None
    )
    answer_event = next(
        (recorded for recorded in standing if _is_answer(recorded.event)), None
    )
    if question is None or answer_event is None:
        return None
    request = _ASK.format(
        asked=_first_words(question.event), answered=_first_words(answer_event.event)
    )
    answer = await ask(
        model, request, "title", silence=silence, chars_max=_SAID_CHARS_MAX
    )
    if answer is None:
        return None
    if answer.usage is not None:
        await journal.append(
            conversation, [ModelUsed("title", model.name, answer.usage)]
        )
    title = clean(text_of(answer.parts))
    return (
        await _store_title(journal, conversation, title, (answer_event.seq, since))
        if title
        else None
    )


async def ask(
    model: Model, request: str, purpose: str, *, silence: float, chars_max: int
) -> Answer | None:
    """Ask a model outside the conversation.

    Return `None` if the model fails, takes longer than `silence` seconds in total, or writes more than `chars_max`
    characters.
    """
    message = model.message(Message("user", (Text(request),)))
    body = model.body("", [], [message], model.parameters)
    stream, chars = model.stream(body, silence=silence), 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(silence), contextlib.aclosing(stream) as pieces:
            async for piece in pieces:
                match piece:
                    case Answer():
                        return piece
                    case Failure():
                        log.info(
                            "No %s: %s",
                            purpose,
                            piece.message,
                            extra={"action": f"no_{purpose}"},
                        )
                        return None
                    case Words(text=text):
                        chars += len(text)
                if chars > chars_max:
                    return None
    return None


async def _store_title(
    journal: AsyncJournal, conversation: str, title: str, unedited: tuple[int, int]
) -> str | None:
    """Append the title if there is none yet. Retry a few times if the conversation moves meanwhile."""
    for _ in range(_TRIES_MAX):
        head = (await journal.head(conversation)).head
        if (await journal.summary(conversation)).title is not None:
            return None
        expect = Expect(head=head, unedited=unedited)
        with contextlib.suppress(HeadMoved):
            await journal.append(
                conversation, [ConversationTitled(title, derived=True)], expect=expect
            )
            return title
    return None


def clean(text: str) -> str:
    """Turn the model's text into a title: a short single line without surrounding quotes or hidden characters."""
    text = re.sub(r"(?s)<think>.*?</think>", "", redacted(text))
    line = next(
        filter(None, (quoted.strip(_QUOTES) for quoted in text.splitlines())), ""
    )
    line = re.sub(r"(?i)^(?:title|titel)\s*[:\-]\s*", "", line).strip(_QUOTES)
    line = " ".join(replace_hidden(line, " ").split()).rstrip(".").strip(_QUOTES)
    if len(line) > TITLE_CHARS_MAX:
        line = line[: TITLE_CHARS_MAX - 1].rsplit(" ", 1)[0].rstrip(" ,;:") + "…"
    return line


def _is_question(event: object) -> bool:
    return isinstance(event, MessageUser) and not event.system


def _is_answer(event: object) -> bool:
    return isinstance(event, MessageAssistant) and bool(text_of(event.parts).strip())


def _first_words(event: object) -> str:
    assert isinstance(event, MessageUser | MessageAssistant)
    return text_of(event.parts).strip()[:_QUOTED_CHARS_MAX]
