"""The names and the texts of what is delivered.

A unit is one thing to deliver: an answer, a question, a mirrored message, the end of a run, a notice. Its name is stored,
and says what it is:

    a:NUM:REQUEST            the answer to a request, in conversation number NUM
    q:NUM:MESSAGE:CALL       the question whether a call may run
    m:NUM:SEQ                a message that was written elsewhere
    e:NUM:SEQ                the end of a run that a person stopped, or that failed
    f:NUM:REQUEST:N          the file number N of an answer
    n:ID                     a notice, such as the reply to a command
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Any, Final

from tenax.channels.base import Button, Chat, Kind
from tenax.channels.platforms import platform_name
from tenax.channels.rows import Outgoing
from tenax.events import ApprovalAsked
from tenax.text import make_storable, to_one_line
from tenax.tools.ask import choices

__all__ = [
    "ANSWER",
    "FILE",
    "QUESTION",
    "WORDS",
    "answer_unit",
    "approval_buttons",
    "approval_text",
    "chat_of",
    "end_unit",
    "file_unit",
    "kind_of",
    "make_key",
    "message_id",
    "mirror_text",
    "mirror_unit",
    "notice",
    "parse_question",
    "question_unit",
]

ANSWER: Final = "a:"
QUESTION: Final = "q:"
FILE: Final = "f:"
NOTICE: Final = "n:"
WORDS: Final = "word:"
"""The choice of a button with an answer in words, before the number of the answer."""
_KINDS: Final[dict[str, Kind]] = {
    "a": "answer",
    "q": "question",
    "m": "message",
    "e": "end",
    "f": "file",
    "n": "notice",
}
"""What a unit is, by the beginning of its name."""
_KEY_CHARS: Final = 20
_MIRROR_CHARS: Final = 300
_DIFF_CHARS: Final = 1500
_TOUCHES_CHARS: Final = 1500
_DIGITS: Final = ("1️⃣", "2️⃣", "3️⃣", "4️⃣", "5️⃣", "6️⃣")


def answer_unit(num: int, request: int) -> str:
    return f"{ANSWER}{num}:{request}"


def question_unit(num: int, message: int, call: str) -> str:
    return f"{QUESTION}{num}:{message}:{call}"


def parse_question(unit: str) -> tuple[int, str]:
    """Return the seq of the answer and the id of the call that a question is about."""
    _, _, message, call = unit.split(":", 3)
    return int(message), call


def mirror_unit(num: int, seq: int) -> str:
    return f"m:{num}:{seq}"


def end_unit(num: int, seq: int) -> str:
    return f"e:{num}:{seq}"


def file_unit(num: int, request: int, number: int) -> str:
    return f"{FILE}{num}:{request}:{number}"


def kind_of(unit: str) -> Kind:
    """Return what a unit is."""
    return _KINDS.get(unit.partition(":")[0], "message")


def make_key(account: str, chat: str, thread: str, unit: str, piece: int) -> str:
    """Return the id of a message towards the platform: the same after a restart, and unique in the account."""
    name = "\n".join((account, chat, thread, unit, str(piece)))
    digest = hashlib.sha256(name.encode()).digest()
    return b32encode(digest).decode().lower()[:_KEY_CHARS]


def message_id(chat: Chat, message: str) -> str:
    """Return the id for deduplication of a message. A channel names its messages in the same way."""
    return f"m:{chat.id}:{message}"


def chat_of(account: str, chat: Chat) -> dict[str, str]:
    """Return how a stored message names its chat."""
    return {"account": account, "chat": chat.id, "thread": chat.thread}


def notice(account: str, chat: Chat, id: str, text: str) -> Outgoing:  # noqa: A002  (the field's name)
    """Return a message that is no part of a conversation, such as the reply to a command."""
    unit = f"{NOTICE}{id}"
    key = make_key(account, chat.id, chat.thread, unit, 0)
    return Outgoing(
        account,
        chat.id,
        chat.thread,
        unit,
        0,
        None,
        0,
        "waiting",
        key,
        text=make_storable(text),
    )


def mirror_text(extra: dict[str, Any], text: str) -> str:
    """Return a message that was written elsewhere, as a quote."""
    source = extra.get("chat")
    account = source.get("account", "") if isinstance(source, dict) else ""
    platform = str(account).partition(":")[0]
    where = f"From {platform_name(platform)}" if platform else "Written in Tenax"
    short = text.strip()
    if len(short) > _MIRROR_CHARS:
        short = f"{short[:_MIRROR_CHARS].rstrip()} …"
    quoted = "\n".join(f"> {line}" for line in short.splitlines())
    return f"> **{where}:**\n{quoted}"


def approval_text(asked: ApprovalAsked, diff: str, badge: str) -> str:
    """Return the question whether a call may run, as Markdown."""
    if choices(asked.name, asked.arguments):
        return f"❓ {asked.touches}\n\nChoose an answer, or write one."
    lines = [f"🔐 **May `{to_one_line(asked.name)}` run?**"]
    if badge:
        lines.append(f"({badge})")
    if asked.touches:
        lines.append(_fenced(asked.touches, _TOUCHES_CHARS))
    if diff:
        lines.append(_fenced(diff, _DIFF_CHARS, "diff"))
    return "\n\n".join(lines)


def approval_buttons(
    asked: ApprovalAsked, key: str, *, conversation: bool
) -> list[Button]:
    """Return the possible answers. `conversation` is whether the call can be allowed in the whole conversation.

    A choice begins with the key of the question: a person may use a button before the platform's id of the message is
    stored.
    """
    offered = choices(asked.name, asked.arguments)
    if offered:
        return [
            Button(f"{key}:{WORDS}{number}", words, _DIGITS[number])
            for number, words in enumerate(offered)
        ]
    buttons = [Button(f"{key}:once", "Allow once", "✅")]
    if conversation:
        in_conversation = f"{key}:conversation"
        buttons.append(Button(in_conversation, "Allow in this conversation", "♾️"))
    return [*buttons, Button(f"{key}:no", "Deny", "❌")]


def _fenced(text: str, chars_max: int, language: str = "") -> str:
    shown = text if len(text) <= chars_max else f"{text[:chars_max]}\n…"
    fence = "```"
    while fence in shown:
        fence += "`"
    return f"{fence}{language}\n{shown}\n{fence}"
