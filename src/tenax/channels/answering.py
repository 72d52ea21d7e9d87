"""Answers to approvals and to questions of the model, from buttons, reactions and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

from tenax.assembly import Runtime
from tenax.channels.base import Choice, Tapped
from tenax.channels.people import People
from tenax.channels.rows import AsyncChannelRows
from tenax.channels.units import WORDS, parse_question
from tenax.errors import InvalidInput, TenaxError
from tenax.events import ApprovalAsked
from tenax.journal.base import Dedup
from tenax.tools.ask import Ask, choices

__all__ = ["Answers"]

_FOREIGN: Final = "Only the person whose conversation this is can answer."
_EXPIRED: Final = "This was answered already, or has expired."
_ANSWERED: Final = {
    "once": "Allowed once.",
    "conversation": "Allowed in this conversation.",
    "no": "Denied.",
}


class Answers:
    """Resolves what people answer in the chats of an account."""

    def __init__(
        self,
        account: str,
        rows: AsyncChannelRows,
        people: People,
        runtime_of: Callable[[str], Awaitable[Runtime]],
    ) -> None:
        self._account = account
        self._rows = rows
        self._people = people
        self._runtime_of = runtime_of

    async def resolve(self, tap: Tapped) -> str:
        """Answer the approval of a button. Return the outcome in a sentence, for the person."""
        user = await self._people.user_of(tap.sender)
        if tap.sender.is_bot or user is None:
            self._people.log_once(tap.sender)
            return _FOREIGN
        key, _, choice = tap.choice.partition(":")
        delivery = await self._rows.delivery_of_question(self._account, key)
        if delivery is None or delivery.chat != tap.chat.id:
            return _EXPIRED
        name = await self._rows.conversation_of(delivery.conversation, user)
        if name is None:
            return _FOREIGN
        runtime = await self._runtime_of(user)
        message, call = parse_question(delivery.unit)
        for approval in await _waiting_approvals(runtime, name):
            if (approval.message, approval.call) == (message, call):
                return await self._answer(runtime, name, approval, choice)
        return _EXPIRED

    async def _answer(
        self, runtime: Runtime, name: str, approval: ApprovalAsked, choice: str
    ) -> str:
        where = (name, approval.message, approval.call)
        try:
            if choice in _ANSWERED:
                await runtime.answer(*where, cast("Choice", choice))
                return _ANSWERED[choice]
            offered = choices(approval.name, approval.arguments)
            number = choice.removeprefix(WORDS)
            if number.isdecimal() and int(number) < len(offered):
                words = offered[int(number)]
                await runtime.answer(*where, "once", words=words)
                return f"Answered: {words}"
        except InvalidInput:
            return _EXPIRED
        except TenaxError as error:
            return str(error)
        return _EXPIRED

    async def answer_question(
        self, runtime: Runtime, name: str, words: str, dedup: Dedup
    ) -> bool:
        """Use a message as the answer if the conversation waits for exactly one answer in words."""
        waits = await _waiting_approvals(runtime, name)
        if len(waits) != 1 or waits[0].name != Ask.name:
            return False
        try:
            where = (name, waits[0].message, waits[0].call)
            await runtime.answer(*where, "once", words=words, dedup=dedup)
        except TenaxError:
            return False
        return True


async def _waiting_approvals(runtime: Runtime, name: str) -> list[ApprovalAsked]:
    run = (await runtime.workers.turns(name)).run
    return [
        open_call.approval
        for open_call in (run.waits if run is not None else ())
        if open_call.approval is not None
    ]
