"""Event kinds as frozen structs, and the conversion to and from bytes.

The kind is the tag. The record's header holds the kind, so the body is stored once and
hashed unchanged. `encode` validates: the bytes decode to an equal struct, or the event
is refused before the first write.

A *fact* is part of the hash chain and permanent. A *partial* (`ReplyDelta`,
`ReplyThought`, `ToolOutput`) is replaced by a later fact and may be pruned. The body of a
partial is a JSON array, because an answer has thousands of partials.

The term *segment* in the docstrings means a conversation between two compactions. The
stored name of a segment is `stretch`.

The page `docs/formats/events.md` is generated from this file.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from tenax.errors import InvalidInput, StoreDamaged, TooLarge, UnknownKind
from tenax.parts import Part
from tenax.text import is_storable, make_storable

BODY_BYTES_MAX = 4 * 1024 * 1024
"""The largest body of an event. Larger data goes into blobs."""
TEMPORARY = "temporary"
"""The `source` of a conversation without memory: nothing is remembered from the
conversation or recalled into the conversation.
"""
DELEGATE = "delegate"
"""The `source` of a sub-agent's conversation. The conversation works on a tool call of
its `parent`.
"""
IMPORTED_RUN = "import-"
"""The beginning of the id of a run that belongs to an imported conversation."""
Reason = Literal["new", "switch", "evicted", "idle", "compacted", "cleared", "shutdown"]
"""The kind of boundary at which work is owed to memory providers."""
Mode = Literal["ask", "edits", "plan"]
"""The mode of approvals: ask as the rules say, accept changes of files, or only plan."""


class Event(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The base class of every kind."""

    kind: ClassVar[str]
    code: ClassVar[int] = 0
    """The number of a partial's kind in the store; 0 for facts."""
    person: ClassVar[bool] = False
    """Whether a person wrote the text. Invalid text of a person is refused; other
    invalid text is repaired and marked.
    """


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of a fork: the last copied event, and the digest of the event in hex."""

    conversation: str
    seq: int
    digest: str


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes in the store, named by hash."""

    blob: str


class Usage(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The usage of a model call. `cost` is in US dollars, if the provider reports a
    cost or the person set a price.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float | None = None


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """A range of copied events: `count` events of the origin, starting at `first`, are
    stored here starting at `at`.
    """

    first: int
    count: int
    at: int


# -- the conversation as a whole ---------------------------------------------------------------------------


class ConversationOpened(Event, frozen=True):
    """The first event of a conversation. Opens the first segment.

    `parent` is the segment of origin. For a sub-agent, `parent` is the segment with the
    delegating call, and `extra` names the call.
    """

    kind: ClassVar[str] = "conversation.opened"
    person: ClassVar[bool] = True
    user: str
    stretch: str
    source: str = ""
    parent: str | None = None
    origin: Origin | None = None
    copied: list[Copied] = []
    extra: dict[str, Any] = {}


class ConversationTitled(Event, frozen=True):
    """Set the title in the list. `None` removes the title. `derived`: a model made the
    title from the conversation.
    """

    kind: ClassVar[str] = "conversation.titled"
    person: ClassVar[bool] = True
    title: str | None
    derived: bool = False


class ConversationPinned(Event, frozen=True):
    """Pin or unpin the conversation at the top of the list."""

    kind: ClassVar[str] = "conversation.pinned"
    pinned: bool


class ConversationArchived(Event, frozen=True):
    """Archive or unarchive the conversation. An archived conversation is not listed,
    but search finds archived messages.
    """

    kind: ClassVar[str] = "conversation.archived"
    archived: bool


class ConversationConfigured(Event, frozen=True):
    """What the person chose for the conversation: the label of a model in the settings,
    the mode of approvals, and the id of a project.

    `None` leaves a choice as it is. An empty model or project is the default; so is the
    mode `ask`. `edits` accepts changes of files, `plan` allows no change.
    """

    kind: ClassVar[str] = "conversation.configured"
    person: ClassVar[bool] = True
    model: str | None = None
    mode: Mode | None = None
    project: str | None = None


class ConversationRouted(Event, frozen=True):
    """Connect the conversation with a chat of a chat app, or with `closed` end the
    connection.

    `account` is the account of Tenax on the platform, as PLATFORM:ID. `thread` is a
    thread of the chat, or empty. The latest connection of a chat with a user counts.
    `shared`: several people may read the chat.
    """

    kind: ClassVar[str] = "conversation.routed"
    person: ClassVar[bool] = True
    account: str
    chat: str
    thread: str = ""
    shared: bool = False
    closed: bool = False


class ConversationRewound(Event, frozen=True):
    """Undo: remove the events after `to` from transcript and context. `to` lies in the
    head segment.

    With `replaced`, the next event is a further version of the message at `to` + 1.
    """

    kind: ClassVar[str] = "conversation.rewound"
    to: int
    replaced: bool = False


class ConversationCleared(Event, frozen=True):
    """Remove the earlier events from transcript and context."""

    kind: ClassVar[str] = "conversation.cleared"


class ConversationRestored(Event, frozen=True):
    """Take back the rewind or clear at seq `of`."""

    kind: ClassVar[str] = "conversation.restored"
    of: int


class SegmentEnded(Event, frozen=True):
    """End the head segment without a successor."""

    kind: ClassVar[str] = "stretch.ended"
    person: ClassVar[bool] = True
    stretch: str
    reason: str


class ContextSummarised(Event, frozen=True):
    """The summary of the events up to `covers_to`. The summary is a separate event, so
    erasing the summary is possible.

    The user messages at the seqs in `kept` stay in the context verbatim.
    """

    kind: ClassVar[str] = "context.summarised"
    parts: list[Part]
    covers_to: int
    tokens_before: int | None = None
    tokens_after: int | None = None
    model: str | None = None
    kept: list[int] = []
    repaired: bool = False


class ContextCompacted(Event, frozen=True):
    """End the segment `parent` and open `child`.

    The context consists of the summary at seq `summary` and the events after
    `covers_to`. `folded_to` is the head at the time of the summary.
    """

    kind: ClassVar[str] = "context.compacted"
    person: ClassVar[bool] = True
    parent: str
    child: str
    summary: int
    covers_to: int
    folded_to: int


class ContentErased(Event, frozen=True):
    """Erase the bodies of the events at `seqs`. The hashes stay, so the chain remains
    verifiable.
    """

    kind: ClassVar[str] = "content.erased"
    person: ClassVar[bool] = True
    seqs: list[int]
    by: str
    why: str = ""


class ContextOpened(Event, frozen=True):
    """Begin an epoch: until the next epoch, requests only grow at the end.

    `prompt`, `tools` and `memory` are blobs. `memory` is the part of the prompt with
    memories and instruction files, and is constant within a segment. Tool results up to
    `trimmed_to` are shortened, because the context was too long. `settings` go into the
    requests unchanged. `signature` identifies the common beginning of the requests.
    `shared`: several people write in the conversation. `sees`: the model receives
    images, not only their names.
    """

    kind: ClassVar[str] = "context.opened"
    reason: Literal["start", "changed", "trimmed"]
    model: str
    prompt: Blob
    tools: Blob
    settings: dict[str, Any] = {}
    renderer: int = 1
    trimmed_to: int = 0
    memory: Blob | None = None
    signature: str = ""
    shared: bool = False
    sees: bool = False


class ContextKept(Event, frozen=True):
    """A compaction failed to shrink the context. Automatic compaction pauses until the
    context changes.
    """

    kind: ClassVar[str] = "context.kept"
    why: str
    folded_to: int
    repaired: bool = False


# -- messages ----------------------------------------------------------------------------------------------


class MessageUser(Event, frozen=True):
    """A message from a person. A run answers the message only if `ask` is set.

    `how` selects the effect on a busy run: wait in the queue, join the next request, or
    interrupt the run. `system` marks an input from Tenax (a background process ended).
    """

    kind: ClassVar[str] = "message.user"
    person: ClassVar[bool] = True
    parts: list[Part]
    author: str = ""
    ask: bool = False
    how: Literal["queue", "steer", "interrupt"] = "queue"
    system: bool = False
    extra: dict[str, Any] = {}


class MessageWithdrawn(Event, frozen=True):
    """Withdraw the message at seq `of`, which waits for a run. No run takes the message.

    The message leaves the transcript for good: no `conversation.restored` brings it back.
    """

    kind: ClassVar[str] = "message.withdrawn"
    of: int


CUT_SHORT = frozenset({"length", "max_tokens"})
"""The values of `finish` for an answer cut off at the length limit of the model."""


class MessageAssistant(Event, frozen=True):
    """A complete answer. Replaces the partials of `request`."""

    kind: ClassVar[str] = "message.assistant"
    parts: list[Part]
    request: int = 0
    model: str = ""
    usage: Usage | None = None
    finish: str = ""
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessageSystem(Event, frozen=True):
    """An instruction from neither the person nor the model."""

    kind: ClassVar[str] = "message.system"
    parts: list[Part]
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessageTool(Event, frozen=True):
    """The result of a tool."""

    kind: ClassVar[str] = "message.tool"
    parts: list[Part]
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessagePartial(Event, frozen=True):
    """An interrupted answer, sealed. Replaces the partials of `request` permanently."""

    kind: ClassVar[str] = "message.partial"
    parts: list[Part]
    request: int
    repaired: bool = False


class ReplyDelta(Event, frozen=True, array_like=True):
    """Partial. Text of the answer to `request`, starting at character `offset`."""

    kind: ClassVar[str] = "reply.delta"
    code: ClassVar[int] = 1
    request: int
    offset: int
    text: str


class ReplyThought(Event, frozen=True, array_like=True):
    """Partial. Reasoning before the answer to `request`, starting at character `offset`."""

    kind: ClassVar[str] = "reply.thought"
    code: ClassVar[int] = 2
    request: int
    offset: int
    text: str


# -- runs --------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True):
    """Start a run for these inputs. A conversation has at most one open run.

    `resumes` names the interrupted run, and `attempt` counts the attempts to resume.
    `place` is the working directory of the tools, as HOST:FOLDER. `instance` is the
    process of the run.
    """

    kind: ClassVar[str] = "run.started"
    inputs: list[int] = []
    resumes: str | None = None
    attempt: int = 0
    place: str = ""
    instance: str = ""

    @property
    def folder(self) -> str:
        """The folder of `place`, without the host."""
        return self.place.partition(":")[2]


class RunStop(Event, frozen=True):
    """A person asks the open run to stop."""

    kind: ClassVar[str] = "run.stop"
    person: ClassVar[bool] = True
    by: str = ""


class ModelRequested(Event, frozen=True):
    """Send a request to a model. The request holds the context of the events up to
    `folded_to` and the new `inputs`.

    `digest` is the SHA-256 of the request body. The call fails after `deadline` seconds
    of silence.
    """

    kind: ClassVar[str] = "model.requested"
    folded_to: int
    digest: str
    model: str
    deadline: float
    inputs: list[int] = []


class ModelFailed(Event, frozen=True):
    """The call at `request` failed. The next attempt follows after `wait` seconds;
    `None` means no further attempt. `attempt` counts the failures of the model in a row.
    """

    kind: ClassVar[str] = "model.failed"
    request: int
    why: str
    message: str
    wait: float | None = None
    repaired: bool = False
    attempt: int = 0


class ModelUsed(Event, frozen=True):
    """Usage of a model call outside the conversation (summary, title)."""

    kind: ClassVar[str] = "model.used"
    purpose: str
    model: str
    usage: Usage


class ApprovalAsked(Event, frozen=True):
    """Ask a person to approve a call of the answer at seq `message`, with exactly these
    arguments.
    """

    kind: ClassVar[str] = "approval.asked"
    message: int
    call: str
    name: str
    arguments: str
    touches: str = ""
    expires_at: int = 0
    repaired: bool = False


class ApprovalAnswered(Event, frozen=True):
    """The answer to an approval, valid for a single call. With `always`, `pattern`
    became a rule for later calls.

    `conversation` allows later calls of the tool in the conversation if they match
    `pattern`; an empty pattern matches nothing. `words` is the person's reply to a
    question of the model and allows nothing.
    """

    kind: ClassVar[str] = "approval.answered"
    person: ClassVar[bool] = True
    message: int
    call: str
    answer: Literal["once", "conversation", "always", "no"]
    by: str = ""
    why: str = ""
    pattern: str = ""
    words: str = ""


class ToolStarted(Event, frozen=True):
    """Start a call of the answer at seq `message`. The call has `deadline` seconds."""

    kind: ClassVar[str] = "tool.started"
    message: int
    call: str
    name: str
    effect: Literal["pure", "idempotent", "once"]
    deadline: float


class ToolOutput(Event, frozen=True, array_like=True):
    """Partial. Output of a running call: `text` replaces the output so far from character
    `offset` on.
    """

    kind: ClassVar[str] = "tool.output"
    code: ClassVar[int] = 3
    message: int
    call: str
    offset: int
    text: str


class ToolHanded(Event, frozen=True):
    """The call continues in another conversation, and the run waits for the result.
    `asks`: the sub-agent waits for a person.
    """

    kind: ClassVar[str] = "tool.handed"
    message: int
    call: str
    conversation: str
    asks: bool = False


class ToolFinished(Event, frozen=True):
    """The result of a call. `unknown`: the call started, but the outcome is not known."""

    kind: ClassVar[str] = "tool.finished"
    message: int
    call: str
    outcome: Literal["done", "failed", "denied", "cancelled", "unknown"]
    text: str
    cut: int = 0
    """The number of omitted characters of the output."""
    repaired: bool = False


class ToolLate(Event, frozen=True):
    """The result of a call from a run without the lease of the conversation."""

    kind: ClassVar[str] = "tool.late"
    message: int
    call: str
    outcome: Literal["done", "failed", "denied", "cancelled", "unknown"]
    text: str
    cut: int = 0
    repaired: bool = False


class FileState(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The state of a file at a point in time. `hash` identifies the content; `blob`
    holds the content, if stored.
    """

    mode: int
    size: int
    hash: str
    blob: str | None = None


class FileChange(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A file before and after. `None` means the file did not exist."""

    path: str
    before: FileState | None = None
    after: FileState | None = None


class FilesChanged(Event, frozen=True):
    """File changes in the working directory during a call.

    `total` is the number of files changed so far in the turn. `missed` describes
    changes of unknown content. `undoes` names the turn if a person reverted the turn's
    changes; such an event belongs to no tool call.
    """

    kind: ClassVar[str] = "files.changed"
    message: int
    call: str
    files: list[FileChange]
    total: int
    missed: str = ""
    undoes: str = ""
    repaired: bool = False


class RunFinished(Event, frozen=True):
    """End the open run. `planned`: the process shut down in order, so resuming does not
    count as an attempt.
    """

    kind: ClassVar[str] = "run.finished"
    outcome: Literal["completed", "failed", "cancelled", "interrupted"]
    why: str = ""
    planned: bool = False


class RunLate(Event, frozen=True):
    """Output of a run without the lease, stored with the run. Unique by `(run, index)`."""

    kind: ClassVar[str] = "run.late"
    index: int
    what: Literal["token", "tool", "tool_complete"]
    payload: dict[str, Any]
    repaired: bool = False


class RunSealed(Event, frozen=True):
    """Declare the output of a run complete."""

    kind: ClassVar[str] = "run.sealed"


class RunRecovered(Event, frozen=True):
    """Settle the display of an interrupted run: late output was found, or no output
    exists.
    """

    kind: ClassVar[str] = "run.recovered"
    state: Literal["recovered", "neutral"]


# -- memory ------------------------------------------------------------------------------------------------


class MemoryRecalled(Event, frozen=True):
    """Recalled memories for the inputs of the run, by provider, and the providers
    without a timely answer.

    `facts` are the ids of recalled built-in memories.
    """

    kind: ClassVar[str] = "memory.recalled"
    texts: dict[str, str] = {}
    missed: list[str] = []
    facts: list[str] = []
    repaired: bool = False


class MemoryNoted(Event, frozen=True):
    """A change of the built-in memory from the conversation. `undone` reverts the event
    at `of`.
    """

    kind: ClassVar[str] = "memory.noted"
    fact: str
    version: int
    action: Literal["added", "replaced", "removed", "undone"]
    text: str = ""
    by: Literal["model", "review", "person"] = "model"
    of: int = 0
    repaired: bool = False


class MemoryDue(Event, frozen=True):
    """A boundary: memory providers are owed the end of `session`, up to `upto`. `owner`
    names the owner of the providers.
    """

    kind: ClassVar[str] = "memory.due"
    person: ClassVar[bool] = True
    session: str
    upto: int
    reason: Reason
    owner: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """An event of a later version, or an erased event. Only the header is readable."""

    kind: str
    body: bytes | None


KINDS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
PARTIALS: dict[int, type[Event]] = {
    event.code: event for event in KINDS.values() if event.code
}
FACTS: frozenset[str] = frozenset(
    kind for kind, event in KINDS.items() if not event.code
)

_DECODERS = {kind: msgspec.json.Decoder(event) for kind, event in KINDS.items()}
_encode = msgspec.json.Encoder().encode
_NUL_IN_JSON = b"\\u0000"


def encode(event: Event) -> bytes:
    """Return the body as bytes. The bytes decode to an equal event. Raises
    `InvalidInput` and stores nothing.

    A tuple comes back as a list; nothing else may change.
    """
    kind = getattr(event, "kind", "")
    if not isinstance(kind, str) or type(event) is not KINDS.get(kind):
        raise UnknownKind(
            f"{type(event).__name__} is not an event of this version of Tenax."
        )
    try:
        event, body = _encode_text(event)
    except (
        AttributeError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise InvalidInput(
            f"This {kind} holds something that is not JSON: {error}."
        ) from error
    if len(body) > BODY_BYTES_MAX and isinstance(event, MessageUser):
        raise TooLarge(
            f"This message is too long: it has {len(body):,} bytes, and may have {BODY_BYTES_MAX:,}.",
            hint="Send it in several pieces.",
        )
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(
            f"A {event.kind} of {len(body):,} bytes is larger than the {BODY_BYTES_MAX:,} that one event may have.",
            hint="store it as a blob and name the blob",
        )
    try:
        decoded = _DECODERS[event.kind].decode(body)
        changed = () if decoded == event else _changed(decoded, event)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(
            f"This {event.kind} does not fit its schema: {error}."
        ) from error
    if changed:
        raise InvalidInput(
            f"This {event.kind} would be stored changed: JSON cannot hold its {' and '.join(changed)}.",
            hint="use text, finite numbers, true, false, none, lists, and mappings whose keys are text",
        )
    return body


def decode(kind: str, body: bytes | None) -> Event | Unknown:
    """Return the event for the bytes, or `Unknown` for an erased body or a kind of a
    later version.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None or body is None:
        return Unknown(kind, body)
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"A stored {kind} cannot be read: {error}.", hint="run: tenax doctor"
        ) from error


def _changed(decoded: Event, event: Event) -> list[str]:
    """Return the names of the fields with a different value after decoding."""
    names = event.__struct_fields__
    return [
        name
        for name in names
        if getattr(decoded, name) != _with_lists(getattr(event, name))
    ]


def _with_lists(value: Any) -> Any:  # noqa: ANN401  (JSON of any shape)
    """Return the value with lists in place of tuples."""
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return type(value)(
            *(_with_lists(getattr(value, name)) for name in value.__struct_fields__)
        )
    return value


def _encode_text(event: Event) -> tuple[Event, bytes]:
    """Return the event in stored form, and the bytes."""
    try:
        body = _encode(event)
        if _NUL_IN_JSON not in body or not _bad_text(msgspec.to_builtins(event)):
            return event, body
    except UnicodeEncodeError:
        pass
    if event.person:
        raise _no_text()
    repaired = _repaired(event)
    return repaired, _encode(repaired)


def check_text(event: Event | Unknown) -> None:
    """Raise `InvalidInput` for an imported event with personal text that `encode` would
    refuse.
    """
    if (
        isinstance(event, Event)
        and event.person
        and _bad_text(msgspec.to_builtins(event))
    ):
        raise _no_text()


def _no_text() -> InvalidInput:
    return InvalidInput(
        "The text holds a NUL or half of a surrogate pair, which is no text.",
        hint="remove the invalid characters and send it again",
    )


def _repaired(event: Event) -> Event:
    """Return the event with U+FFFD in place of invalid characters, and marked as
    repaired.
    """
    fields = {name: _repair(getattr(event, name)) for name in event.__struct_fields__}
    return type(event)(
        **{name: name == "repaired" or value for name, value in fields.items()}
    )


def _repair(value: Any) -> Any:  # noqa: ANN401  (JSON of any shape)
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, list | tuple):
        return [_repair(item) for item in value]
    if isinstance(value, dict):
        return {_repair(key): _repair(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return type(value)(
            *(_repair(getattr(value, name)) for name in value.__struct_fields__)
        )
    return value


def _bad_text(value: Any) -> bool:  # noqa: ANN401  (JSON of any shape)
    if isinstance(value, str):
        return not is_storable(value)
    if isinstance(value, dict):
        return any(_bad_text(key) or _bad_text(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_bad_text, value))
