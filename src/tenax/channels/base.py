"""The contract between Tenax and a chat app.

A platform implements `Channel`. The rest of `tenax.channels` is the same for every platform: it stores updates, routes
chats to conversations, and delivers answers. A channel keeps nothing that must survive a restart: the caller stores the
cursor, the ids of sent messages and the waits.

Receiving: `receive` yields batches. The caller stores a batch and its cursor, and only then asks for the next batch. So
a channel confirms a batch to the platform, at the earliest, when it is asked for the next one.

Sending: the caller stores the intent, calls `send`, and stores the id that `send` returns. The errors (`ChannelError` in
`tenax.errors`) say what the caller knows afterwards. `edit` is idempotent: a platform's "nothing changed" is a success.

Requests: some platforms send HTTP requests to Tenax. Their channel is a `RequestChannel`, and its `receive` yields only
empty batches. The HTTP server answers a request after the update is stored. Any host may store it: only the deliveries
need the lease of the account.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

__all__ = [
    "About",
    "Batch",
    "Button",
    "Channel",
    "Chat",
    "Choice",
    "Deleted",
    "Edited",
    "Kind",
    "OutgoingFile",
    "Person",
    "Piece",
    "Received",
    "RemoteFile",
    "RequestChannel",
    "Tapped",
    "Traits",
    "Update",
]

Choice = Literal["once", "conversation", "no"]
"""The answers to an approval that a chat offers. A chat never offers "always"."""
Kind = Literal["answer", "question", "message", "end", "file", "notice"]
"""What goes out. `message` is a copy of a message that was written elsewhere, `end` the end of a run that failed or was
stopped, `notice` something that belongs to no conversation."""


class _Value(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


# -- what comes in -----------------------------------------------------------------------


class Chat(_Value, frozen=True):
    """A chat, or a thread in a chat that is a forum."""

    id: str
    thread: str = ""
    title: str = ""
    is_group: bool = False
    """Whether several people may read the chat."""


class Person(_Value, frozen=True):
    """The sender. Only `id`, the platform's stable id, identifies a person; the name is for display."""

    id: str
    name: str
    is_bot: bool = False
    is_owner: bool = False
    """Whether the message proves that the owner of Tenax has sent it, such as by a secret. An account with an allow list
    ignores this."""


class RemoteFile(_Value, frozen=True):
    """A file on the platform, for `Channel.fetch`."""

    id: str
    name: str
    size: int = 0
    """The size in bytes that the platform claims; 0 if unknown."""
    media_type: str = ""
    is_voice: bool = False


class Received(_Value, frozen=True, tag="message"):
    """A message of a person."""

    id: str
    """The id for deduplication: unique within the account, and the same for every repetition."""
    chat: Chat
    sender: Person
    message: str
    """The platform's id of the message, for edits, deletions and replies."""
    text: str = ""
    files: tuple[RemoteFile, ...] = ()
    is_addressed: bool = True
    """Whether the message is for the bot: every message in a private chat; in a group a mention, a reply to the bot, or
    a command."""
    reply_to: str = ""
    """The id of the message to which the person replies."""


class Edited(_Value, frozen=True, tag="edit"):
    """A person has changed a message."""

    id: str
    chat: Chat
    sender: Person
    message: str
    text: str


class Deleted(_Value, frozen=True, tag="delete"):
    """A person has deleted a message."""

    id: str
    chat: Chat
    message: str


class Tapped(_Value, frozen=True, tag="tap"):
    """A person has used a button, or a reaction that stands for a button."""

    id: str
    chat: Chat
    sender: Person
    message: str
    """The id of the message with the button."""
    choice: str
    """The `choice` of the button."""
    token: str = ""
    """What the platform needs for `answer_tap`."""


Update = Received | Edited | Deleted | Tapped


class Batch(_Value, frozen=True):
    """Updates in order, and the cursor to store after they are stored. An empty batch only says that the line is alive."""

    updates: tuple[Update, ...]
    cursor: str


# -- what goes out -----------------------------------------------------------------------


class About(_Value, frozen=True):
    """What a message belongs to, for a platform that tells the receiver."""

    kind: Kind
    conversation: str
    """The conversation; "" for a notice."""
    seq: int
    """The number of the event in the conversation; 0 for a notice."""
    at: int
    """The time of the event, in microseconds."""


class Piece(_Value, frozen=True):
    """A message as it goes out: the visible text, and the form that the platform takes."""

    text: str
    body: Any
    about: About | None = None
    """The caller of `send` sets it."""


class Button(_Value, frozen=True):
    """A possible answer under a message. A platform without buttons uses the emoji as a reaction."""

    choice: str
    label: str
    emoji: str


class OutgoingFile(_Value, frozen=True):
    """A file to send."""

    name: str
    media_type: str
    data: bytes
    is_picture: bool = False
    about: About | None = None
    """The caller of `send_file` sets it."""


class Traits(_Value, frozen=True):
    """The limits of a platform."""

    platform: str
    """The name as users read it: `Telegram`."""
    send_seconds: float
    """The pause between two sends or edits in a private chat."""
    group_seconds: float
    """The same in a group."""
    account_seconds: float
    """The pause between two sends or edits of the account, over all chats."""
    preview_seconds: float
    """The pause between two edits of a growing answer."""
    file_bytes_max: int
    """The largest file that can be sent."""
    fetch_bytes_max: int
    """The largest file that can be fetched."""
    edits: bool = True
    """Whether sent messages can be changed. Without edits a growing answer is not shown, a long text is sent at once, and
    the outcome of an approval is not shown."""
    buttons: bool = True
    typing_seconds: float = 0.0
    """How long the sign of a typing bot stays; 0 without such a sign."""
    key_seconds: float = 0.0
    """How long the platform recognises a repeated `key` of `send`; 0 if it never does."""
    can_find: bool = False
    """Whether `find` can look up what was sent."""
    mirrors: bool = True
    """Whether messages that were written elsewhere are shown."""


class Channel(Protocol):
    """An account on a platform. All methods run on the event loop, several at the same time."""

    account: str
    """PLATFORM:ID, where ID is the platform's stable id of the account. Known without a connection."""
    traits: Traits
    name: str
    """The name of the bot as people see it, such as @my_bot; "" before `open`."""

    async def open(self) -> None:
        """Check the token and learn the name. Raises `NotAuthorized` or `ChannelAway`."""

    def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        """Yield batches of updates after a cursor ("" at the first start). See the top of the module.

        Raises `ChannelAway`, `NotAuthorized`, `ReceivedElsewhere` or `FloodWait`. The caller calls `receive` again.
        An update that cannot be understood is left out and logged without its text. At least every `idle_seconds` a
        batch comes, so the caller notices a dead line.
        """

    idle_seconds: float

    def render(self, markdown: str) -> list[Piece]:
        """Return Markdown as messages of the right size. Without visible text: an empty list.

        A growing text changes only its last pieces.
        """

    def mark_repeated(self, piece: Piece) -> Piece:
        """Return the piece with a mark that says: this may have come before."""

    def shorten(self, piece: Piece, chars: int) -> Piece:
        """Return the first characters of a piece, without formatting, followed by an ellipsis."""

    async def send(
        self,
        chat: Chat,
        piece: Piece,
        *,
        key: str,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
    ) -> str:
        """Send a message and return its id. `key` identifies the message in repeated calls; at most 20 characters.

        Raises `ChannelAway`, `SendUncertain`, `FloodWait`, `ChannelRefused` or `NotAuthorized`.
        """

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        """Replace a sent message and its buttons. Raises the errors of `send`."""

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        """Send a file and return the id of the message. Raises the errors of `send`."""

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        """Look for a message that was sent with a key after a time (Unix seconds). Return its id, or `None`."""

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        """Tell the person who used a button a short result. Does nothing where a platform has no such thing."""

    async def show_typing(self, chat: Chat) -> None:
        """Show that the bot is typing."""

    async def fetch(self, file: RemoteFile) -> bytes:
        """Return the content of a file. Raises `ChannelAway`, or `ChannelRefused` if the file is gone or too large."""

    async def close(self) -> None:
        """Close the connections. Never raises."""


@runtime_checkable
class RequestChannel(Channel, Protocol):
    """A channel of a platform that sends HTTP requests to Tenax."""

    def read_request(self, headers: Mapping[str, str], body: bytes) -> Received:
        """Check the signature of a request, and return its message.

        The names of the headers are in lower case. Raises `NotAuthorized` with the reason for the log, or `InvalidInput`
        if a signed request has an invalid content. Also works before `open` and after `close`.
        """
