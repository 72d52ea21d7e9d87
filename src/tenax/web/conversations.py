"""`/api/conversations`: the list, and what a person does with a conversation."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tenax.errors import InvalidInput, Refused
from tenax.events import TEMPORARY
from tenax.journal.base import Dedup
from tenax.journal.place import ALL_SEQS
from tenax.listing import Listed
from tenax.parts import Text
from tenax.rules import PATTERN_CHARS_MAX
from tenax.runtime import Answer, How, Question, Runtime, Usage
from tenax.tools.ask import WORDS_CHARS_MAX
from tenax.views.transcript import Row
from tenax.web.api import endpoint
from tenax.web.attachments import Names
from tenax.web.house import runtime_of, user_of

Limit = Annotated[int, Meta(ge=1, le=200)]
Seq = Annotated[int, Meta(ge=0, lt=2**32)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]


class Page(msgspec.Struct, frozen=True):
    """Some conversations. `next` is where the list goes on."""

    conversations: list[Listed]
    next: str | None


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new conversation; `leaving` is the one that the person leaves for it."""

    leaving: Id | None = None
    temporary: bool = False
    """Nothing is remembered of it."""


class Opened(Listed, frozen=True):
    """A conversation, and what it took."""

    usage: Usage


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be otherwise."""

    title: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET


class Rows(msgspec.Struct, frozen=True):
    """A page of the transcript."""

    rows: list[Row]
    more: bool


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words of the person, and what goes with them."""

    text: str
    how: How = "queue"
    attachments: Names = []


class Stored(msgspec.Struct, frozen=True):
    """Where it stands in the journal."""

    seq: int


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take back what stands after `to`; without it, the last message and what followed."""

    to: Seq | None = None


class Restore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take back the undo or the clear at this seq."""

    of: Seq


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy up to this seq."""

    upto: Seq | None = None


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a question of a tool. `always` needs the pattern of the rule that it makes."""

    message: Seq
    call: Annotated[str, Meta(min_length=1, max_length=200)]
    answer: Answer
    pattern: Annotated[str, Meta(max_length=PATTERN_CHARS_MAX)] = ""
    words: Annotated[str, Meta(max_length=WORDS_CHARS_MAX)] = ""
    """What is said to a question of the model."""


class Questions(msgspec.Struct, frozen=True):
    """What tools wait to be allowed."""

    questions: list[Question]


class Said(msgspec.Struct, frozen=True):
    """A sentence."""

    said: str


async def shown(runtime: Runtime, conversation: str) -> Listed:
    """One conversation as the list shows it."""
    (found,) = await runtime.list.page([await runtime.journal.summary(conversation)])
    return found


@endpoint("GET", "/api/conversations")
async def list_conversations(
    call: Request, archived: bool = False, after: str | None = None, limit: Limit = 50
) -> Page:
    """Conversations, pinned first, then newest first."""
    runtime = await runtime_of(call)
    found = await runtime.conversations(archived=archived, after=_place(after), limit=limit)
    following = ".".join(map(str, found[-1].place)) if len(found) == limit else None
    return Page(await runtime.list.page(found), following)


def _place(after: str | None) -> tuple[int, int, int] | None:
    if after is None:
        return None
    try:
        pinned, updated, num = map(int, after.split("."))
    except ValueError:
        raise InvalidInput("This is no place in the list.", hint="Use `next` of the page before.") from None
    if max(map(abs, (pinned, updated, num))) >= 1 << 62:
        raise InvalidInput("This is no place in the list.", hint="Use `next` of the page before.")
    return pinned, updated, num


@endpoint("POST", "/api/conversations", 201)
async def open_conversation(call: Request, body: Opening) -> Listed:
    """Begin a conversation. The one that is left is named, because leaving is a boundary."""
    runtime = await runtime_of(call)
    source = TEMPORARY if body.temporary else "web"
    return await shown(runtime, await runtime.new(source=source, leaving=body.leaving))


@endpoint("GET", "/api/conversations/{id}")
async def get_conversation(call: Request, id: Id) -> Opened:  # noqa: A002  (its name in the path)
    """One conversation, and what it took so far."""
    runtime = await runtime_of(call)
    found = await shown(runtime, id)
    return Opened(**msgspec.structs.asdict(found), usage=await runtime.usage(id))


@endpoint("PATCH", "/api/conversations/{id}")
async def change_conversation(call: Request, id: Id, body: Change) -> Listed:  # noqa: A002
    """Rename, pin or archive it."""
    runtime = await runtime_of(call)
    if body.title is not UNSET:
        title = " ".join((body.title or "").split())
        await runtime.rename(id, title or None)
    if body.pinned is not UNSET:
        await runtime.pin(id, pinned=body.pinned)
    if body.archived is not UNSET:
        await runtime.archive(id, archived=body.archived)
    return await shown(runtime, id)


@endpoint("DELETE", "/api/conversations/{id}", 204)
async def delete_conversation(call: Request, id: Id) -> None:  # noqa: A002
    """Delete it for good. Only its tombstone is left."""
    await (await runtime_of(call)).delete(id)


@endpoint("GET", "/api/conversations/{id}/rows")
async def older_rows(call: Request, id: Id, before: Seq | None = None, limit: Limit = 50) -> Rows:  # noqa: A002
    """The last rows before a seq, or the last of all."""
    runtime = await runtime_of(call)
    rows = await runtime.transcript(id, before=before, limit=limit)
    first = min((row.key[0] if row.key[0] <= ALL_SEQS else int(row.id) for row in rows), default=0)
    more = bool(first and await runtime.journal.rows(id, before=first, limit=1))
    return Rows(rows, more)


@endpoint("POST", "/api/conversations/{id}/messages", 202)
async def send_message(call: Request, id: Id, key: str, body: NewMessage) -> Stored:  # noqa: A002
    """Say something. When this is answered, the message is safe; the same key again is the same message."""
    runtime = await runtime_of(call)
    once = Dedup(f"web:{user_of(call)}", key)
    parts = [Text(body.text)] if body.text.strip() or not body.attachments else []
    with_it = [await runtime.attachments.named(each.blob, each.name) for each in body.attachments]
    return Stored((await runtime.submit(id, [*parts, *with_it], how=body.how, dedup=once)).seq)


@endpoint("POST", "/api/conversations/{id}/stop", 202)
async def stop(call: Request, id: Id) -> None:  # noqa: A002
    """Stop the answer, wherever it is written."""
    await (await runtime_of(call)).stop(id)


@endpoint("POST", "/api/conversations/{id}/left", 202)
async def left(call: Request, id: Id) -> None:  # noqa: A002
    """The person goes on in another one."""
    await (await runtime_of(call)).left(id)


@endpoint("POST", "/api/conversations/{id}/resume", 202)
async def resume(call: Request, id: Id) -> None:  # noqa: A002
    """Go on with an answer that was interrupted."""
    runtime = await runtime_of(call)
    await runtime.journal.summary(id)
    await runtime.go_on(id)


@endpoint("POST", "/api/conversations/{id}/undo")
async def undo(call: Request, id: Id, body: Undo) -> Stored:  # noqa: A002
    """Take back the last message and what followed."""
    return Stored(await (await runtime_of(call)).undo(id, to=body.to))


@endpoint("POST", "/api/conversations/{id}/clear")
async def clear(call: Request, id: Id) -> Stored:  # noqa: A002
    """Everything so far leaves the transcript and the context; `restore` brings it back."""
    return Stored(await (await runtime_of(call)).clear(id))


@endpoint("POST", "/api/conversations/{id}/restore", 204)
async def restore(call: Request, id: Id, body: Restore) -> None:  # noqa: A002
    """Take back an undo or a clear."""
    await (await runtime_of(call)).restore(id, body.of)


@endpoint("POST", "/api/conversations/{id}/fork", 201)
async def fork(call: Request, id: Id, body: Fork) -> Listed:  # noqa: A002
    """A new conversation with what stands up to a seq."""
    runtime = await runtime_of(call)
    return await shown(runtime, await runtime.fork(id, upto=body.upto))


@endpoint("POST", "/api/conversations/{id}/compact")
async def compact(call: Request, id: Id) -> Said:  # noqa: A002
    """Shorten the context now. Nothing leaves the transcript."""
    return Said((await (await runtime_of(call)).compact(id)).said)


@endpoint("GET", "/api/conversations/{id}/approvals")
async def list_questions(call: Request, id: Id) -> Questions:  # noqa: A002
    """What waits for a yes or a no, and what may be answered besides."""
    return Questions(await (await runtime_of(call)).questions(id))


@endpoint("POST", "/api/conversations/{id}/approvals", 202)
async def answer_approval(call: Request, id: Id, body: Approval) -> None:  # noqa: A002
    """Allow what a tool asks for, or not."""
    try:
        runtime = await runtime_of(call)
        more = {"pattern": body.pattern, "words": body.words}
        await runtime.answer(id, body.message, body.call, body.answer, **more)
    except InvalidInput as error:
        raise Refused(str(error)) from error


@endpoint("GET", "/api/conversations/{id}/seen/{seq}")
async def what_the_model_saw(call: Request, id: Id, seq: Seq) -> Response:  # noqa: A002
    """The body that the model was sent for the request at this seq."""
    return Response(await (await runtime_of(call)).seen(id, seq), media_type="application/json")
