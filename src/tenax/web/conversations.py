"""`/api/conversations`: the list, and the actions on a conversation."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tenax.assembly import Runtime
from tenax.config.rules import PATTERN_CHARS_MAX
from tenax.errors import InvalidInput
from tenax.events import TEMPORARY, Mode
from tenax.journal.base import Dedup
from tenax.parts import Part, Text
from tenax.runtime.approvals import WHY_CHARS_MAX, Answer, Question
from tenax.runtime.list_entry import Listed
from tenax.runtime.runtime import How, Usage
from tenax.tools.ask import WORDS_CHARS_MAX
from tenax.views.pages import Page as RowPage
from tenax.views.transcript import Row
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.attachments import Names
from tenax.web.problems import or_refused
from tenax.web.server_state import user_of

Limit = Annotated[int, Meta(ge=1, le=200)]
_Number = Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)]
T = TypeVar("T")
Seq = Annotated[int, Meta(ge=0, lt=2**32)]
Choice = Annotated[str, Meta(max_length=200)]


class Page(ResponseBody):
    """A page of the list. Pass `next` as `after` to get the following page."""

    conversations: list[Listed]
    next: str | None


class Opening(RequestBody):
    """A new conversation. `leaving` is the conversation left by the person."""

    leaving: Id | None = None
    temporary: bool = False
    """If true, the conversation adds nothing to the memory."""
    model: Choice = ""
    """The label of a model in the settings. Empty: the default."""
    mode: Mode = "ask"
    project: Choice = ""
    """The id of a project, or empty."""


class Opened(Listed, frozen=True):
    """A conversation with its token usage and cost."""

    usage: Usage
    note: str = ""
    """A sentence for the person if the chosen model is no longer in the settings."""


class Change(RequestBody):
    """The fields to change."""

    title: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    model: Choice | UnsetType = UNSET
    """The label of a model in the settings. Empty: the default."""
    mode: Mode | UnsetType = UNSET
    project: Choice | UnsetType = UNSET
    """The id of a project. Empty: none."""


class Read(RequestBody):
    """The person has read the conversation up to `seq`."""

    seq: Annotated[int, Meta(ge=1, lt=2**32)]


class Rows(ResponseBody):
    """A page of the transcript. Pass `next` as `before` for the page above. The last page has the queued messages."""

    rows: list[Row]
    waiting: list[Row]
    next: str | None

    @classmethod
    def of(cls, page: RowPage) -> Rows:
        following = None if page.next is None else ".".join(map(str, page.next))
        return cls(page.rows, page.waiting, following)


class NewMessage(RequestBody):
    """A message with its attachments."""

    text: str
    how: How = "queue"
    attachments: Names = []  # noqa: RUF012  (msgspec copies it)


class NewVersion(RequestBody):
    """A further version of a message. Without `text`, the same message again."""

    text: str | None = None
    attachments: Names = []  # noqa: RUF012  (msgspec copies it)
    model: Choice | None = None
    """The label of another model for the conversation. Empty: the default."""


class Stored(ResponseBody):
    """The number of the stored event."""

    seq: int


class Undo(RequestBody):
    """Remove everything after `to`; without `to`, the last message and the messages after it."""

    to: Seq | None = None


class Restore(RequestBody):
    """Undo the undo or clear with the given seq."""

    of: Seq


class Fork(RequestBody):
    """A copy up to the given seq."""

    upto: Seq | None = None


class Approval(RequestBody):
    """The answer to an approval. `always` needs the pattern of the new rule."""

    message: Seq
    call: Annotated[str, Meta(min_length=1, max_length=200)]
    answer: Answer
    pattern: Annotated[str, Meta(max_length=PATTERN_CHARS_MAX)] = ""
    words: Annotated[str, Meta(max_length=WORDS_CHARS_MAX)] = ""
    """The answer to a question of the model."""
    why: Annotated[str, Meta(max_length=WHY_CHARS_MAX)] = ""
    """The reason for a no. The model reads it."""


class AllApprovals(RequestBody):
    """The answer to all open approvals for the calls of the model's answer at `message`."""

    message: Seq
    answer: Literal["once", "no"]
    why: Annotated[str, Meta(max_length=WHY_CHARS_MAX)] = ""


class Questions(ResponseBody):
    """The open approvals and questions."""

    questions: list[Question]


class Said(ResponseBody):
    """A sentence for the person."""

    said: str


async def shown(runtime: Runtime, conversation: str) -> Listed:
    """Return a conversation in the format of the list."""
    (found,) = await runtime.list.page([await runtime.journal.summary(conversation)])
    return found


@endpoint("GET", "/api/conversations")
async def list_conversations(
    runtime: Runtime,
    archived: bool = False,
    after: str | None = None,
    limit: Limit = 50,
) -> Page:
    """List conversations, pinned first, then newest first."""
    position = parse_position("list", after, tuple[_Number, _Number, _Number])
    found = await runtime.conversations(archived=archived, after=position, limit=limit)
    following = ".".join(map(str, found[-1].place)) if len(found) == limit else None
    return Page(await runtime.list.page(found), following)


def parse_position(what: str, text: str | None, kind: type[T]) -> T | None:
    """Parse the position of a page: `next` of the preceding page."""
    if text is None:
        return None
    try:
        return msgspec.convert(text.split("."), kind, strict=False)
    except msgspec.ValidationError:
        hint = "Use `next` of the previous page."
        raise InvalidInput(
            f"This is not a position in the {what}.", hint=hint
        ) from None


@endpoint("POST", "/api/conversations", 201)
async def open_conversation(runtime: Runtime, body: Opening) -> Listed:
    """Create a conversation. `leaving` tells the memory that the person left a conversation."""
    source = TEMPORARY if body.temporary else "web"
    name = await runtime.new(
        source=source,
        leaving=body.leaving,
        model=body.model,
        mode=body.mode,
        project=body.project,
    )
    return await shown(runtime, name)


@endpoint("GET", "/api/conversations/{id}")
async def get_conversation(runtime: Runtime, id: Id) -> Opened:  # noqa: A002  (its name in the path)
    """Return a conversation with its token usage and cost."""
    found = await shown(runtime, id)
    note = runtime.agents.explain_model(await runtime.agents.setting(id))
    usage = await runtime.usage(id)
    return Opened(**msgspec.structs.asdict(found), usage=usage, note=note)


@endpoint("PATCH", "/api/conversations/{id}")
async def change_conversation(runtime: Runtime, id: Id, body: Change) -> Listed:  # noqa: A002
    """Rename, pin or archive a conversation, or choose its model, mode and project."""
    choices = {"model": body.model, "mode": body.mode, "project": body.project}
    given = {name: value for name, value in choices.items() if value is not UNSET}
    if given:
        # The choice comes first: an unknown model or project refuses the whole request.
        await runtime.choices.configure(id, **given)  # type: ignore[arg-type]
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
    """Delete a conversation permanently. Only a tombstone remains."""
    await runtime.delete(id)


@endpoint("GET", "/api/conversations/{id}/rows")
async def list_rows(
    runtime: Runtime,
    id: Id,  # noqa: A002
    before: str | None = None,
    limit: Limit = 50,
) -> Rows:
    """List the last rows of the transcript, or the last rows before a position (`next` of the page below)."""
    position = parse_position("transcript", before, tuple[Seq, _Number, _Number])
    return Rows.of(await runtime.page(id, before=position, limit=limit))


@endpoint("POST", "/api/conversations/{id}/messages", 202)
async def send_message(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    key: str,
    body: NewMessage,
) -> Stored:
    """Send a message. The response means that the message is stored; the same key again is the same message."""
    once = Dedup(f"web:{user_of(call)}", key)
    parts = await _parts_of(runtime, body.text, body.attachments)
    stored = await runtime.submit(id, parts, how=body.how, dedup=once)
    return Stored(stored.seq)


@endpoint("POST", "/api/conversations/{id}/messages/{seq}/replace", 202)
async def replace_message(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    seq: Seq,
    key: str,
    body: NewVersion,
) -> Stored:
    """Replace a message and the later messages. The earlier version stays; `choose` brings the version back.

    A waiting message is only exchanged: it keeps no version, and the new message is the last of the waiting messages.
    """
    once = Dedup(f"web:{user_of(call)}", key)
    parts = None
    if body.text is not None:
        parts = await _parts_of(runtime, body.text, body.attachments)
    stored = await runtime.replace(id, seq, parts, model=body.model, dedup=once)
    return Stored(stored.seq)


@endpoint("POST", "/api/conversations/{id}/messages/{seq}/withdraw", 204)
async def withdraw_message(runtime: Runtime, id: Id, seq: Seq) -> None:  # noqa: A002
    """Cancel a message that waits for its answer. 409 if the answer has begun."""
    await runtime.withdraw(id, seq)


@endpoint("POST", "/api/conversations/{id}/messages/{seq}/choose", 204)
async def choose_version(runtime: Runtime, id: Id, seq: Seq) -> None:  # noqa: A002
    """Show another version of a message, with the later messages of the version."""
    await runtime.choose_version(id, seq)


async def _parts_of(runtime: Runtime, text: str, attachments: Names) -> list[Part]:
    words = [Text(text)] if text.strip() or not attachments else []
    files = [
        await runtime.attachments.put_again(attachment.blob, attachment.name)
        for attachment in attachments
    ]
    return [*words, *files]


@endpoint("POST", "/api/conversations/{id}/stop", 202)
async def stop(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Stop the answer, also if another process writes the answer."""
    await runtime.stop(id)


@endpoint("POST", "/api/conversations/{id}/left", 202)
async def left(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Note that the person has left the conversation."""
    await runtime.left(id)


@endpoint("POST", "/api/conversations/{id}/read", 204)
async def mark_read(runtime: Runtime, id: Id, body: Read) -> None:  # noqa: A002
    """Note how far the person has read. The mark only grows."""
    await runtime.choices.mark_read(id, body.seq)


@endpoint("POST", "/api/conversations/{id}/resume", 202)
async def resume(runtime: Runtime, id: Id) -> None:  # noqa: A002
    """Continue an interrupted answer."""
    await runtime.journal.summary(id)
    await runtime.go_on(id)


@endpoint("POST", "/api/conversations/{id}/undo")
async def undo(runtime: Runtime, id: Id, body: Undo) -> Stored:  # noqa: A002
    """Remove the last message and the messages after it."""
    return Stored(await runtime.undo(id, to=body.to))


@endpoint("POST", "/api/conversations/{id}/clear")
async def clear(runtime: Runtime, id: Id) -> Stored:  # noqa: A002
    """Clear the transcript and the context. `restore` undoes the clear."""
    return Stored(await runtime.clear(id))


@endpoint("POST", "/api/conversations/{id}/restore", 204)
async def restore(runtime: Runtime, id: Id, body: Restore) -> None:  # noqa: A002
    """Undo an undo or a clear."""
    await runtime.restore(id, body.of)


@endpoint("POST", "/api/conversations/{id}/fork", 201)
async def fork(runtime: Runtime, id: Id, body: Fork) -> Listed:  # noqa: A002
    """Copy a conversation, up to a seq, into a new conversation."""
    return await shown(runtime, await runtime.fork(id, upto=body.upto))


@endpoint("POST", "/api/conversations/{id}/compact")
async def compact(runtime: Runtime, id: Id) -> Said:  # noqa: A002
    """Summarise older messages in the context now. The transcript stays the same."""
    return Said((await runtime.compact(id)).said)


@endpoint("GET", "/api/conversations/{id}/approvals")
async def list_questions(runtime: Runtime, id: Id) -> Questions:  # noqa: A002
    """List the open approvals and questions, with the patterns offered for a rule."""
    return Questions(await runtime.questions(id))


@endpoint("POST", "/api/conversations/{id}/approvals", 202)
async def answer_approval(runtime: Runtime, id: Id, body: Approval) -> None:  # noqa: A002
    """Answer an approval or a question."""
    answering = runtime.answer(
        id,
        body.message,
        body.call,
        body.answer,
        pattern=body.pattern,
        words=body.words,
        why=body.why,
    )
    await or_refused(answering)


@endpoint("POST", "/api/conversations/{id}/approvals/all", 202)
async def answer_all_approvals(runtime: Runtime, id: Id, body: AllApprovals) -> None:  # noqa: A002
    """Allow once, or deny, all open approvals of one answer of the model at once. Questions stay open."""
    await or_refused(runtime.answer_all(id, body.message, body.answer, why=body.why))


@endpoint("GET", "/api/conversations/{id}/seen/{seq}")
async def what_the_model_saw(runtime: Runtime, id: Id, seq: Seq) -> Response:  # noqa: A002
    """Return the request body sent to the model for the answer at a seq."""
    return Response(await runtime.seen(id, seq), media_type="application/json")
