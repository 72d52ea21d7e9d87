"""`/api/conversations`: the list, and what a person does with a conversation."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tenax.config.rules import PATTERN_CHARS_MAX
from tenax.errors import InvalidInput
from tenax.events import TEMPORARY
from tenax.journal.base import Dedup
from tenax.parts import Text
from tenax.runtime.conversation_list import Listed
from tenax.runtime.runtime import Answer, How, Question, Runtime, Usage
from tenax.tools.ask import WORDS_CHARS_MAX
from tenax.views.pages import Page as RowPage
from tenax.views.transcript import Row
from tenax.web.api import Id, endpoint
from tenax.web.attachments import Names
from tenax.web.house import user_of
from tenax.web.problems import or_refused

Limit = Annotated[int, Meta(ge=1, le=200)]
_Number = Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)]
T = TypeVar("T")
Seq = Annotated[int, Meta(ge=0, lt=2**32)]


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
    """A page of the transcript. `next` is where the page above ends; the last page has the inputs that wait."""

    rows: list[Row]
    waiting: list[Row]
    next: str | None

    @classmethod
    def of(cls, page: RowPage) -> Rows:
        following = None if page.next is None else ".".join(map(str, page.next))
        return cls(page.rows, page.waiting, following)


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
    runtime: Runtime,
    archived: bool = False,
    after: str | None = None,
    limit: Limit = 50,
) -> Page:
    """Conversations, pinned first, then newest first."""
    place = place_in("list", after, tuple[_Number, _Number, _Number])
    found = await runtime.conversations(archived=archived, after=place, limit=limit)
    following = ".".join(map(str, found[-1].place)) if len(found) == limit else None
    return Page(await runtime.list.page(found), following)


def place_in(what: str, text: str | None, kind: type[T]) -> T | None:
    """Where a page begins: `next` of the page before it."""
    if text is None:
        return None
    try:
        return msgspec.convert(text.split("."), kind, strict=False)
    except msgspec.ValidationError:
        hint = "Use `next` of the page before."
        raise InvalidInput(f"This is no place in the {what}.", hint=hint) from None


@endpoint("POST", "/api/conversations", 201)
async def open_conversation(runtime: Runtime, body: Opening) -> Listed:
    """Begin a conversation. The one that is left is named, because leaving is a boundary."""
    source = TEMPORARY if body.temporary else "web"
    return await shown(runtime, await runtime.new(source=source, leaving=body.leaving))


@endpoint("GET", "/api/conversations/{id}")
async def get_conversation(runtime: Runtime, id: Id) -> Opened:  # noqa: A002  (its name in the path)
    """One conversation, and what it took so far."""
    found = await shown(runtime, id)
    return Opened(**msgspec.structs.asdict(found), usage=await runtime.usage(id))


@endpoint("PATCH", "/api/conversations/{id}")
async def change_conversation(runtime: Runtime, id: Id, body: Change) -> Listed:  # noqa: A002
    """Rename, pin or archive it."""
    if body.title is not UNSET:
        title = " ".join((body.title or "").split())
        await runtime.rename(id, title or None)
    if body.pinned is not UNSET:
        await runtime.pin(id, pinned=body.pinned)
    if body.archived is not UNSET:
        await runtime.archive(id, archived=body.archived)
    return await shown(runtime, id)


@endpoint("DELETE", "/api/conversations/{id}", 204)
async def delete_conversation(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Delete it for good. Only its tombstone is left."""
    await runtime.delete(id)


@endpoint("GET", "/api/conversations/{id}/rows")
async def list_rows(
    runtime: Runtime,
    id: Id,  # noqa: A002
    before: str | None = None,
    limit: Limit = 50,
) -> Rows:
    """The last rows before a place in the transcript, which is `next` of the page below, or the last of all."""
    place = place_in("transcript", before, tuple[Seq, _Number, _Number])
    return Rows.of(await runtime.page(id, before=place, limit=limit))


@endpoint("POST", "/api/conversations/{id}/messages", 202)
async def send_message(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    key: str,
    body: NewMessage,
) -> Stored:
    """Say something. When this is answered, the message is safe; the same key again is the same message."""
    once = Dedup(f"web:{user_of(call)}", key)
    parts = [Text(body.text)] if body.text.strip() or not body.attachments else []
    with_it = [
        await runtime.attachments.named(each.blob, each.name)
        for each in body.attachments
    ]
    return Stored(
        (await runtime.submit(id, [*parts, *with_it], how=body.how, dedup=once)).seq
    )


@endpoint("POST", "/api/conversations/{id}/stop", 202)
async def stop(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Stop the answer, wherever it is written."""
    await runtime.stop(id)


@endpoint("POST", "/api/conversations/{id}/left", 202)
async def left(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """The person goes on in another one."""
    await runtime.left(id)


@endpoint("POST", "/api/conversations/{id}/resume", 202)
async def resume(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Go on with an answer that was interrupted."""
    await runtime.journal.summary(id)
    await runtime.go_on(id)


@endpoint("POST", "/api/conversations/{id}/undo")
async def undo(runtime: Runtime, id: Id, body: Undo) -> Stored:  # noqa: A002
    """Take back the last message and what followed."""
    return Stored(await runtime.undo(id, to=body.to))


@endpoint("POST", "/api/conversations/{id}/clear")
async def clear(runtime: Runtime, id: Id) -> Stored:  # noqa: A002
    """Everything so far leaves the transcript and the context; `restore` brings it back."""
    return Stored(await runtime.clear(id))


@endpoint("POST", "/api/conversations/{id}/restore", 204)
async def restore(runtime: Runtime, id: Id, body: Restore) -> None:  # noqa: A002
    """Take back an undo or a clear."""
    await runtime.restore(id, body.of)


@endpoint("POST", "/api/conversations/{id}/fork", 201)
async def fork(runtime: Runtime, id: Id, body: Fork) -> Listed:  # noqa: A002
    """A new conversation with what stands up to a seq."""
    return await shown(runtime, await runtime.fork(id, upto=body.upto))


@endpoint("POST", "/api/conversations/{id}/compact")
async def compact(runtime: Runtime, id: Id) -> Said:  # noqa: A002
    """Shorten the context now. Nothing leaves the transcript."""
    return Said((await runtime.compact(id)).said)


@endpoint("GET", "/api/conversations/{id}/approvals")
async def list_questions(runtime: Runtime, id: Id) -> Questions:  # noqa: A002
    """What waits for a yes or a no, and what may be answered besides."""
    return Questions(await runtime.questions(id))


@endpoint("POST", "/api/conversations/{id}/approvals", 202)
async def answer_approval(runtime: Runtime, id: Id, body: Approval) -> None:  # noqa: A002
    """Allow what a tool asks for, or not."""
    more = {"pattern": body.pattern, "words": body.words}
    await or_refused(runtime.answer(id, body.message, body.call, body.answer, **more))


@endpoint("GET", "/api/conversations/{id}/seen/{seq}")
async def what_the_model_saw(runtime: Runtime, id: Id, seq: Seq) -> Response:  # noqa: A002
    """The body that the model was sent for the request at this seq."""
    return Response(await runtime.seen(id, seq), media_type="application/json")
