"""One frozen struct per kind of event, and the one way in and out of bytes.

The kind is the tag. It stands in the record's header, not in the body, so a body is stored once and hashed as it is.
`encode` validates: what comes out decodes to the same struct, or the event is refused before anything is stored.

A *fact* is chained and stays. A *partial* (`ReplyDelta`) is replaced by a later fact and may be pruned; its body is a
JSON array, because thousands of them are written per answer.

The page `docs/formats/events.md` is generated from this file.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from tenax.errors import InvalidInput, StoreDamaged, TooLarge, UnknownKind
from tenax.parts import NO_TEXT, Part

BODY_BYTES_MAX = 4 * 1024 * 1024
"""The largest body of one event. Larger things are blobs."""
TEMPORARY = "temporary"
"""The `source` of a conversation of which nothing is remembered, and into which nothing is recalled."""
DELEGATE = "delegate"
"""The `source` of a conversation in which a sub-agent does the task of a call of another one (`parent`)."""
Reason = Literal["new", "switch", "evicted", "idle", "compacted", "cleared", "shutdown"]
"""What kind of boundary memories are owed something at."""


class Event(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The base of all kinds."""

    kind: ClassVar[str]
    code: ClassVar[int] = 0
    """A partial's number in the store; 0 for facts."""
    person: ClassVar[bool] = False
    """Its text comes from a person: bad text is refused. Otherwise it is repaired and marked."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a fork comes from: the last event it took, and that event's digest in hex."""

    conversation: str
    seq: int
    digest: str


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of the store, by their hash."""

    blob: str


class Usage(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a call of a model took. `cost` in US dollars, where the provider says it or the person set a price."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float | None = None


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """`count` events of the origin, from `first` on, stand here from `at` on."""

    first: int
    count: int
    at: int


# -- the conversation as a whole ---------------------------------------------------------------------------


class ConversationOpened(Event, frozen=True):
    """The first event of every journal. Opens the first stretch.

    `parent` is the stretch that it comes from: for a sub-agent the one that handed the task on, and `extra` names the call.
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
    """The title in the list. `None` takes it away. `derived`: made from the words of the conversation."""

    kind: ClassVar[str] = "conversation.titled"
    person: ClassVar[bool] = True
    title: str | None
    derived: bool = False


class ConversationPinned(Event, frozen=True):
    """Kept at the top of the list, or no longer."""

    kind: ClassVar[str] = "conversation.pinned"
    pinned: bool


class ConversationArchived(Event, frozen=True):
    """Left out of the list (never out of search), or back in it."""

    kind: ClassVar[str] = "conversation.archived"
    archived: bool


class ConversationRewound(Event, frozen=True):
    """Undo: everything after `to` leaves transcript and context. `to` lies in the head stretch."""

    kind: ClassVar[str] = "conversation.rewound"
    to: int


class ConversationCleared(Event, frozen=True):
    """Everything before this leaves transcript and context."""

    kind: ClassVar[str] = "conversation.cleared"


class ConversationRestored(Event, frozen=True):
    """Takes back the rewind or clear at seq `of`."""

    kind: ClassVar[str] = "conversation.restored"
    of: int


class StretchEnded(Event, frozen=True):
    """The head stretch ends without a successor."""

    kind: ClassVar[str] = "stretch.ended"
    person: ClassVar[bool] = True
    stretch: str
    reason: str


class ContextSummarised(Event, frozen=True):
    """The words that stand for everything up to `covers_to`. An event of its own, so that they can be erased.

    The messages of people at the seqs in `kept` stay in the context word for word.
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
    """The stretch `parent` ends and `child` opens.

    The context is now the words at seq `summary` and what stands after `covers_to`. `folded_to` is the head that the
    summary was made from.
    """

    kind: ClassVar[str] = "context.compacted"
    person: ClassVar[bool] = True
    parent: str
    child: str
    summary: int
    covers_to: int
    folded_to: int


class ContentErased(Event, frozen=True):
    """The bodies of these events were taken away. Their hashes stay, so the chain still proves itself."""

    kind: ClassVar[str] = "content.erased"
    person: ClassVar[bool] = True
    seqs: list[int]
    by: str
    why: str = ""


class ContextOpened(Event, frozen=True):
    """An epoch begins: requests grow at their end only, until the next one.

    `prompt` and `tools` are blobs, and so is `memory`, the part of the prompt that says what is remembered and what instruction
    files say: it is the same as long as the stretch lasts. Tool results up to `trimmed_to` are shortened, because the context was too long.
    `settings` go into every request as they are. `signature` changes with what requests begin with; `shared`: several people write here;
    `sees`: pictures are shown to the model, and not only named.
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
    """A compaction was tried and changed nothing. None is tried by itself until something has changed."""

    kind: ClassVar[str] = "context.kept"
    why: str
    folded_to: int
    repaired: bool = False


# -- messages ----------------------------------------------------------------------------------------------


class MessageUser(Event, frozen=True):
    """A person's message. Only `ask` makes it an input that a run answers.

    `how` is what it does to a run that is busy: wait behind it, stand in its next request, or stop it. `system` marks
    an input of Tenax's own (a background process that ended).
    """

    kind: ClassVar[str] = "message.user"
    person: ClassVar[bool] = True
    parts: list[Part]
    author: str = ""
    ask: bool = False
    how: Literal["queue", "steer", "interrupt"] = "queue"
    system: bool = False
    extra: dict[str, Any] = {}


CUT_SHORT = frozenset({"length", "max_tokens"})
"""How an answer says in `finish` that its model had to end it, because it may be no longer."""


class MessageAssistant(Event, frozen=True):
    """An answer, whole. Replaces the partials of `request`."""

    kind: ClassVar[str] = "message.assistant"
    parts: list[Part]
    request: int = 0
    model: str = ""
    usage: Usage | None = None
    finish: str = ""
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessageSystem(Event, frozen=True):
    """An instruction that came from neither side of the talk."""

    kind: ClassVar[str] = "message.system"
    parts: list[Part]
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessageTool(Event, frozen=True):
    """What a tool answered."""

    kind: ClassVar[str] = "message.tool"
    parts: list[Part]
    extra: dict[str, Any] = {}
    repaired: bool = False


class MessagePartial(Event, frozen=True):
    """An answer that was cut off, sealed: it replaces the partials of `request` and stays for ever."""

    kind: ClassVar[str] = "message.partial"
    parts: list[Part]
    request: int
    repaired: bool = False


class ReplyDelta(Event, frozen=True, array_like=True):
    """Partial. Text of the answer to `request`, from character `offset` on."""

    kind: ClassVar[str] = "reply.delta"
    code: ClassVar[int] = 1
    request: int
    offset: int
    text: str


# -- runs --------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True):
    """A run takes these inputs. One run at a time.

    `resumes` is the interrupted run that it goes on with, for the `attempt`-th time. `place` is where its tools act,
    `instance` the process that runs it.
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
    """Somebody asks the open run to stop."""

    kind: ClassVar[str] = "run.stop"
    person: ClassVar[bool] = True
    by: str = ""


class ModelRequested(Event, frozen=True):
    """A model is asked: with what the events up to `folded_to` say, and with these inputs, named here first.

    `digest` is the SHA-256 of the body that is sent. Without a word for `deadline` seconds the call has failed.
    """

    kind: ClassVar[str] = "model.requested"
    folded_to: int
    digest: str
    model: str
    deadline: float
    inputs: list[int] = []


class ModelFailed(Event, frozen=True):
    """The call at `request` failed. It is made again after `wait` seconds; None: it is not."""

    kind: ClassVar[str] = "model.failed"
    request: int
    why: str
    message: str
    wait: float | None = None
    repaired: bool = False


class ModelUsed(Event, frozen=True):
    """A call of a model beside the talk (a summary, a title)."""

    kind: ClassVar[str] = "model.used"
    purpose: str
    model: str
    usage: Usage


class ApprovalAsked(Event, frozen=True):
    """A person is asked whether this call of the answer at seq `message` may be made, with exactly these arguments."""

    kind: ClassVar[str] = "approval.asked"
    message: int
    call: str
    name: str
    arguments: str
    touches: str = ""
    expires_at: int = 0
    repaired: bool = False


class ApprovalAnswered(Event, frozen=True):
    """The answer to an approval. It is good for one call; `always` made a rule of `pattern` for later ones.

    `conversation` allows later calls of the tool that match `pattern`, in this conversation; none if that is empty.
    `words` are what the person said to a question of the model: they allow nothing.
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
    """A call of the answer at seq `message` is made now. It has `deadline` seconds."""

    kind: ClassVar[str] = "tool.started"
    message: int
    call: str
    name: str
    effect: Literal["pure", "idempotent", "once"]
    deadline: float


class ToolHanded(Event, frozen=True):
    """The call goes on in another conversation, and the run waits for its end. `asks`: a person is asked something there."""

    kind: ClassVar[str] = "tool.handed"
    message: int
    call: str
    conversation: str
    asks: bool = False


class ToolFinished(Event, frozen=True):
    """What came of a call. `unknown`: it was begun, and nobody knows whether it was done."""

    kind: ClassVar[str] = "tool.finished"
    message: int
    call: str
    outcome: Literal["done", "failed", "denied", "cancelled", "unknown"]
    text: str
    cut: int = 0
    """How many characters of the output are not here."""
    repaired: bool = False


class ToolLate(Event, frozen=True):
    """What came of a call of a run that no longer has the conversation."""

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
    """A file at one time. `hash` tells it from others; `blob` is what it held, where that is kept."""

    mode: int
    size: int
    hash: str
    blob: str | None = None


class FileChange(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A file before and after; None: it was not there."""

    path: str
    before: FileState | None = None
    after: FileState | None = None


class FilesChanged(Event, frozen=True):
    """What a call changed in the conversation's folder, or what came about there while it ran.

    `total` is how many files its turn has changed so far, `missed` says what is not known. `undoes`: a person put back what
    that turn changed; then it is no call of a tool.
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
    """The open run ends. `planned`: its process was stopped in good order, so going on with it counts as no attempt."""

    kind: ClassVar[str] = "run.finished"
    outcome: Literal["completed", "failed", "cancelled", "interrupted"]
    why: str = ""
    planned: bool = False


class RunLate(Event, frozen=True):
    """Output of a run that no longer has the conversation, kept where it belongs. Once per `(run, index)`."""

    kind: ClassVar[str] = "run.late"
    index: int
    what: Literal["token", "tool", "tool_complete"]
    payload: dict[str, Any]
    repaired: bool = False


class RunSealed(Event, frozen=True):
    """No more output of this run will come."""

    kind: ClassVar[str] = "run.sealed"


class RunRecovered(Event, frozen=True):
    """What is to be shown of an interrupted run is settled: output of it was found, or there is none."""

    kind: ClassVar[str] = "run.recovered"
    state: Literal["recovered", "neutral"]


# -- memory ------------------------------------------------------------------------------------------------


class MemoryRecalled(Event, frozen=True):
    """What memories knew about the inputs of this run, by the name of the memory, and which of them did not answer in time.

    `facts` are those of the built-in memory.
    """

    kind: ClassVar[str] = "memory.recalled"
    texts: dict[str, str] = {}
    missed: list[str] = []
    facts: list[str] = []
    repaired: bool = False


class MemoryNoted(Event, frozen=True):
    """The built-in memory was changed from this conversation. `undone` takes back what the event at `of` says."""

    kind: ClassVar[str] = "memory.noted"
    fact: str
    version: int
    action: Literal["added", "replaced", "removed", "undone"]
    text: str = ""
    by: Literal["model", "review", "person"] = "model"
    of: int = 0
    repaired: bool = False


class MemoryDue(Event, frozen=True):
    """A boundary: memories are owed the end of `session`, up to `upto`. `owner` is whose providers owe it."""

    kind: ClassVar[str] = "memory.due"
    person: ClassVar[bool] = True
    session: str
    upto: int
    reason: Reason
    owner: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """An event of a later version, or an erased one: only its header can be read."""

    kind: str
    body: bytes | None


KINDS: dict[str, type[Event]] = {each.kind: each for each in Event.__subclasses__()}
PARTIALS: dict[int, type[Event]] = {
    each.code: each for each in KINDS.values() if each.code
}
FACTS: frozenset[str] = frozenset(kind for kind, each in KINDS.items() if not each.code)

_DECODERS = {kind: msgspec.json.Decoder(each) for kind, each in KINDS.items()}
_encode = msgspec.json.Encoder().encode
_NUL_IN_JSON = b"\\u0000"


def encode(event: Event) -> bytes:
    """The body's bytes, checked: they decode to the same event. Raises InvalidInput; stores nothing.

    A tuple is stored, and comes back, as a list. Nothing else may change on the way.
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
    """The event that these bytes are. A kind from a later version, and an erased body, come back as Unknown."""
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
    """The fields that came back as something else."""
    names = event.__struct_fields__
    return [
        name
        for name in names
        if getattr(decoded, name) != _with_lists(getattr(event, name))
    ]


def _with_lists(value: Any) -> Any:  # noqa: ANN401  (JSON of any shape)
    """The same with every tuple as a list."""
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
    """The event as it is stored, and its bytes."""
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
    """Refuse an event from elsewhere with a person's text that `encode` would refuse. Raises InvalidInput."""
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
    """The same event with every character that is no text replaced by U+FFFD, and marked."""
    fields = {name: _repair(getattr(event, name)) for name in event.__struct_fields__}
    return type(event)(
        **{name: name == "repaired" or value for name, value in fields.items()}
    )


def _repair(value: Any) -> Any:  # noqa: ANN401  (JSON of any shape)
    if isinstance(value, str):
        return NO_TEXT.sub("\ufffd", value)
    if isinstance(value, list | tuple):
        return [_repair(each) for each in value]
    if isinstance(value, dict):
        return {_repair(key): _repair(each) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        return type(value)(
            *(_repair(getattr(value, name)) for name in value.__struct_fields__)
        )
    return value


def _bad_text(value: Any) -> bool:  # noqa: ANN401  (JSON of any shape)
    if isinstance(value, str):
        return NO_TEXT.search(value) is not None
    if isinstance(value, dict):
        return any(_bad_text(key) or _bad_text(each) for key, each in value.items())
    return isinstance(value, list | tuple) and any(map(_bad_text, value))
