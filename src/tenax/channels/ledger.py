"""Brings messages to a chat: the intent is stored before a send, and the receipt after it.

A long text is placed with its first words and then edited to the whole, because an edit is idempotent: after a crash
only the first words can come twice. What may have come twice carries a mark. At the end every message is delivered,
uncertain or dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from tenax.channels.base import (
    About,
    Button,
    Channel,
    Chat,
    OutgoingFile,
    Piece,
)
from tenax.channels.budget import Budget
from tenax.channels.rows import OPEN_STATES, AsyncChannelRows, Outgoing
from tenax.channels.units import make_key
from tenax.errors import ChannelAway, ChannelRefused, FloodWait, SendUncertain
from tenax.journal.base import Lease

__all__ = ["Ledger", "Target"]

log = logging.getLogger(__name__)

UNCERTAIN_TRIES_MAX: Final = 4
"""After so many sends without an answer, a message is given up as uncertain."""
PLACED_CHARS: Final = 160
"""A longer text is placed with at most so many characters."""
_FLOOD_SECONDS_MIN: Final = 1.0
_SHOWN_MAX: Final = 2000


class Target(msgspec.Struct, frozen=True):
    """A unit of a chat to deliver."""

    chat: Chat
    unit: str
    num: int | None
    """The number of the conversation."""
    seq: int
    about: About | None = None


class Ledger:
    """The deliveries of an account. `lease` returns the lease of the account."""

    def __init__(
        self,
        channel: Channel,
        rows: AsyncChannelRows,
        budget: Budget,
        lease: Callable[[], Lease],
        note_sent: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._rows = rows
        self._budget = budget
        self._lease = lease
        self._note_sent = note_sent
        self._shown: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By chat and message id, the text that the message has now."""
        self._chat_locks: dict[str, asyncio.Lock] = {}

    async def deliver(
        self, target: Target, pieces: Sequence[Piece], buttons: Sequence[Button] = ()
    ) -> None:
        """Deliver the pieces of a unit. When it returns, every piece has a final state.

        Raises `ChannelAway`, `SendUncertain` or `FloodWait` if the caller has to try again later.
        """
        rows = await self._rows_of(target)
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            row = rows.get(number) or self._new(target, number)
            if row.state in OPEN_STATES:
                named = msgspec.structs.replace(piece, about=target.about)
                await self._finish(target.chat, row, named, buttons if last else ())
        for number, row in rows.items():
            if number >= len(pieces) and row.state in OPEN_STATES:
                await self._withdraw(target.chat, row, pieces)

    async def preview(self, target: Target, pieces: Sequence[Piece]) -> None:
        """Show a growing unit, as far as the budget allows. Its last piece still changes."""
        rows = await self._rows_of(target)
        for number, piece in enumerate(pieces):
            row = rows.get(number) or self._new(target, number)
            if row.state not in OPEN_STATES:
                continue
            if number < len(pieces) - 1:
                await self._finish(target.chat, row, piece)
                continue
            chat = target.chat
            if row.state == "placed":
                shown = self._shown.get((chat.id, row.message))
                changed = self._marked(row, piece).text != shown
                if changed and self._budget.take_if_free(
                    chat.id, is_group=chat.is_group
                ):
                    await self._edit(chat, row, piece)
            elif self._budget.is_free(chat.id):
                await self._place(chat, row, piece)

    async def deliver_file(self, target: Target, file: OutgoingFile) -> None:
        """Deliver a file. A file whose first send is uncertain is sent again only if the platform recognises it."""
        row = (await self._rows_of(target)).get(0) or self._new(target, 0)
        if row.state not in OPEN_STATES:
            return
        chat = target.chat
        named = msgspec.structs.replace(file, about=target.about)
        if row.state == "sending":
            # The wait may outlast the time in which the platform recognises the key.
            await self._budget.wait_until_free(chat.id)
            if not await self._may_repeat(chat, row):
                await self._save(row, state="uncertain")
                return

        async def send(begun: Outgoing) -> str:
            return await self._channel.send_file(chat, named, key=begun.key)

        await self._send(chat, row, send, "delivered")

    async def replace(self, chat: Chat, row: Outgoing, piece: Piece) -> None:
        """Replace the text of a delivered message and remove its buttons. Does nothing if that is done already."""
        if not row.message or row.text or not self._channel.traits.edits:
            return
        await self._budget.wait(chat.id, is_group=chat.is_group)
        try:
            await self._edit(chat, row, piece)
        except ChannelRefused as error:
            log.info("A message was not updated: %s", error)
        await self._save(row, text="resolved")

    async def settle(self, row: Outgoing) -> None:
        """Give a message without an event its final state: a preview of an answer that never came to an end."""
        states = {"placed": "delivered", "sending": "uncertain", "waiting": "discarded"}
        await self._save(row, state=states[row.state])

    def is_free(self, chat: Chat) -> bool:
        """Return whether a message may go out to the chat now."""
        return self._budget.is_free(chat.id)

    # -- one message -------------------------------------------------------------------

    async def _finish(
        self, chat: Chat, row: Outgoing, piece: Piece, buttons: Sequence[Button] = ()
    ) -> None:
        """Bring a message to its final text and state."""
        placed = row
        if row.state != "placed":
            is_short = len(piece.text) <= PLACED_CHARS
            is_whole = is_short or not self._channel.traits.edits
            placed = await self._place(
                chat, row, piece, buttons if is_whole else (), whole=is_whole
            )
            if placed.state not in OPEN_STATES:
                return
        marked = self._marked(placed, piece)
        if self._shown.get((chat.id, placed.message)) != marked.text or buttons:
            await self._budget.wait(chat.id, is_group=chat.is_group)
            try:
                await self._edit(chat, placed, piece, buttons)
            except ChannelRefused as error:
                await self._bury(chat, placed, piece, error)
                return
        await self._save(placed, state="delivered", error="")

    async def _bury(
        self, chat: Chat, placed: Outgoing, piece: Piece, error: ChannelRefused
    ) -> None:
        """Send a text as a new message, because the placed message cannot be edited any more."""
        log.info("A placed message cannot be edited: %s", error)
        fresh = msgspec.structs.replace(placed, state="waiting", message="")
        row = await self._place(chat, fresh, piece, whole=True)
        if row.state in OPEN_STATES:
            await self._save(row, state="delivered", error="")

    async def _withdraw(
        self, chat: Chat, row: Outgoing, pieces: Sequence[Piece]
    ) -> None:
        """Empty a message that was shown while the answer was longer."""
        if row.state == "placed" and pieces:
            dots = self._channel.shorten(
                msgspec.structs.replace(pieces[0], text="…"), 1
            )
            await self._budget.wait(chat.id, is_group=chat.is_group)
            try:
                await self._edit(chat, row, dots)
            except ChannelRefused as error:
                log.info("A message was not emptied: %s", error)
        await self._save(row, state="delivered")

    async def _place(
        self,
        chat: Chat,
        row: Outgoing,
        piece: Piece,
        buttons: Sequence[Button] = (),
        *,
        whole: bool = False,
    ) -> Outgoing:
        """Send a message, by default with its first words only. Return the changed row."""
        if row.state == "sending":
            # The wait may outlast the time in which the platform recognises the key.
            await self._budget.wait_until_free(chat.id)
            found = await self._find(chat, row)
            if found:
                return await self._save(row, state="placed", message=found)
            if not await self._may_repeat(chat, row):
                row = msgspec.structs.replace(row, repeated=1)
        marked = self._marked(row, piece)
        short = marked
        if not whole and len(marked.text) > PLACED_CHARS:
            short = self._channel.shorten(marked, PLACED_CHARS)

        async def send(begun: Outgoing) -> str:
            message = await self._channel.send(
                chat, short, key=begun.key, buttons=buttons
            )
            self._note_shown(chat, message, short.text)
            return message

        complete = whole and (bool(buttons) or short is marked)
        return await self._send(chat, row, send, "delivered" if complete else "placed")

    async def _send(
        self,
        chat: Chat,
        row: Outgoing,
        send: Callable[[Outgoing], Awaitable[str]],
        reached: str,
    ) -> Outgoing:
        """Store the intent, send, and store the receipt."""
        was_uncertain = row.state == "sending"
        await self._budget.wait(chat.id, is_group=chat.is_group)
        begun = await self._begin(row)
        try:
            message = await send(begun)
        except FloodWait as error:
            await self._take_back(begun, was_uncertain, str(error))
            await self._postpone(chat, error)
            raise
        except ChannelAway as error:
            await self._take_back(begun, was_uncertain, str(error))
            raise
        except SendUncertain as error:
            tries = begun.tries + 1
            repeats = not await self._may_repeat(chat, begun)
            if tries >= UNCERTAIN_TRIES_MAX and repeats:
                # Every further try could bring the message once more.
                return await self._save(
                    begun, state="uncertain", tries=tries, error=str(error)
                )
            await self._save(begun, tries=tries, error=str(error))
            raise
        except ChannelRefused as error:
            state = "uncertain" if was_uncertain else "dead"
            log.warning("A message was refused: %s", error, extra={"action": "refused"})
            return await self._save(begun, state=state, error=str(error))
        self._note_sent()
        return await self._save(begun, state=reached, message=message, error="")

    async def _postpone(self, chat: Chat, error: FloodWait) -> None:
        seconds = max(error.seconds, _FLOOD_SECONDS_MIN)
        await self._budget.postpone(chat.id, seconds)

    async def _begin(self, row: Outgoing) -> Outgoing:
        """Store the intent to send."""
        begun = msgspec.structs.replace(row, state="sending")
        if row.at == 0:
            begun = msgspec.structs.replace(begun, at=self._rows.now_us())
            await self._rows.put_delivery(begun, self._lease())
        else:
            await self._rows.change_delivery(begun, self._lease())
        return begun

    async def _take_back(
        self, begun: Outgoing, was_uncertain: bool, error: str
    ) -> None:
        """Note that a send had no effect. An earlier uncertain send stays uncertain."""
        state = "sending" if was_uncertain else "waiting"
        await self._save(begun, state=state, error=error)

    async def _edit(
        self, chat: Chat, row: Outgoing, piece: Piece, buttons: Sequence[Button] = ()
    ) -> None:
        marked = self._marked(row, piece)
        try:
            await self._channel.edit(chat, row.message, marked, buttons=buttons)
        except FloodWait as error:
            await self._postpone(chat, error)
            raise
        self._note_sent()
        self._note_shown(chat, row.message, marked.text)

    async def _find(self, chat: Chat, row: Outgoing) -> str | None:
        """Look up a message whose send is uncertain, where the platform allows it."""
        if not self._channel.traits.can_find:
            return None
        return await self._channel.find(chat, row.key, row.at / 1e6)

    async def _may_repeat(self, chat: Chat, row: Outgoing) -> bool:
        """Return whether a second send of the message has no second effect, or the first had none."""
        del chat
        traits = self._channel.traits
        age_seconds = (self._rows.now_us() - row.at) / 1e6
        return traits.can_find or age_seconds < traits.key_seconds

    # -- rows --------------------------------------------------------------------------

    async def _rows_of(self, target: Target) -> dict[int, Outgoing]:
        chat = target.chat
        rows = await self._rows.unit(
            self._channel.account, chat.id, chat.thread, target.unit
        )
        return {row.piece: row for row in rows}

    def _new(self, target: Target, number: int) -> Outgoing:
        account, chat = self._channel.account, target.chat
        key = make_key(account, chat.id, chat.thread, target.unit, number)
        return Outgoing(
            account,
            chat.id,
            chat.thread,
            target.unit,
            number,
            target.num,
            target.seq,
            "waiting",
            key,
        )

    async def _save(self, row: Outgoing, **fields: object) -> Outgoing:
        changed = msgspec.structs.replace(row, **fields)
        await self._rows.change_delivery(changed, self._lease())
        return changed

    def _marked(self, row: Outgoing, piece: Piece) -> Piece:
        return self._channel.mark_repeated(piece) if row.repeated else piece

    def _note_shown(self, chat: Chat, message: str, text: str) -> None:
        self._shown[chat.id, message] = text
        if len(self._shown) > _SHOWN_MAX:
            self._shown.popitem(last=False)
