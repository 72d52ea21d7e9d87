"""Approvals: the calls that wait for a person, the possible answers, and storing an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from tenax.agent.tour import TOUR
from tenax.config.rules import Rule, escape_pattern, find_mistake
from tenax.errors import InvalidInput, Refused, TenaxError
from tenax.events import ApprovalAnswered, ApprovalAsked
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup
from tenax.runtime.agents import Agents
from tenax.runtime.at_head import Planned, append_at_head
from tenax.runtime.workers import Workers
from tenax.tools.ask import WORDS_CHARS_MAX, Ask
from tenax.tools.base import Call
from tenax.tools.gate import Allowed, Asks, Done

__all__ = ["WHY_CHARS_MAX", "Answer", "Approvals", "Question"]

WHY_CHARS_MAX = 2_000
"""The longest reason of a person for a "no"."""
_NOT_ASKED = "Nothing was asked there, or it was answered already."
Answer = Literal["once", "conversation", "always", "no"]


class Question(msgspec.Struct, frozen=True):
    """A waiting approval, and the possible answers besides `once` and `no`."""

    message: int
    call: str
    conversation: list[str]
    """Patterns to allow in the conversation, the exact call first. Empty if the call can be allowed only once."""
    always: list[str]
    """Patterns of rules to allow the call always. Empty for calls with an approval every time, and for users without
    the right to make rules.
    """
    notes: list[str] = []
    """The part of the call left open by every pattern, such as "any content" of a file; "" for the exact call."""
    diff: str = ""
    """The change of a file as a unified diff, computed now; "" if the call changes no file, or cannot succeed."""
    badge: str = ""
    """What the call can reach, such as "sandbox, no network"."""

    def annotate_patterns(self, patterns: list[str]) -> list[str]:
        """Return some of the patterns, followed by their notes."""
        notes = dict(zip(self.conversation, self.notes, strict=False))
        return [
            f"{pattern} ({notes[pattern]})" if notes.get(pattern) else pattern
            for pattern in patterns
        ]


def _check_reason(answer: Answer, why: str) -> None:
    if why.strip() and answer != "no":
        raise InvalidInput("Only a no takes a reason.")
    if len(why) > WHY_CHARS_MAX:
        raise InvalidInput(f"A reason has at most {WHY_CHARS_MAX:,} characters.")


class Approvals:
    """The approvals of a user's conversations. `add_rule` stores a rule in the settings."""

    def __init__(
        self,
        journal: AsyncJournal,
        agents: Agents,
        workers: Workers,
        add_rule: Callable[[Rule], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._agents = agents
        self._workers = workers
        self._add_rule = add_rule

    async def questions(self, conversation: str) -> list[Question]:
        """Return the waiting approvals with the possible answers."""
        run = (await self._workers.turns(conversation)).run
        return [
            await self._make_question(conversation, open_call.approval, shown=True)
            for open_call in (run.waits if run is not None else ())
            if open_call.approval is not None
        ]

    async def _make_question(
        self, conversation: str, approval: ApprovalAsked, *, shown: bool = False
    ) -> Question:
        """Return an approval with the possible answers. With `shown`, also what a person sees before answering."""
        setting = await self._agents.setting(conversation)
        folder = self._agents.folder_of(setting)
        gate = self._agents.agent_of(setting).gate
        verdict = gate.weigh(
            approval.name,
            approval.arguments,
            Call(
                self._journal.user or "",
                conversation,
                approval.message,
                approval.call,
                folder,
            ),
            allowed=(),
        )
        offers: dict[str, str] = {}
        diff = badge = ""
        if not isinstance(verdict, Done) and verdict.touches == approval.touches:
            if isinstance(verdict, Allowed) or verdict.standing:
                offers = verdict.offers
            badge = verdict.tool.badge(verdict.args)
            diff = await gate.preview(verdict) if shown else ""
        patterns, notes = list(offers), list(offers.values())
        always = (
            patterns
            if isinstance(verdict, Asks)
            and self._agents.owner
            and setting.source != TOUR
            else []
        )
        return Question(
            approval.message, approval.call, patterns, always, notes, diff, badge
        )

    async def answer(
        self,
        conversation: str,
        message: int,
        call: str,
        answer: Answer,
        *,
        pattern: str = "",
        words: str = "",
        why: str = "",
        dedup: Dedup | None = None,
    ) -> None:
        """Answer an approval. Raises `InvalidInput` if no approval waits, or the approval was already answered.

        `conversation` allows matching calls in the conversation from now on. The pattern is an offered pattern, or by
        default the exact call. `always` also makes a rule of the pattern. The pattern has to match the call. If making
        the rule fails, the call raises `Refused`, and the tool call is still allowed. Only the local user can answer
        `always`, because the rules belong to the person running Tenax. `once` with `words`, or `no`, answers a question
        of the model. `no` takes a reason, `why`, and the model reads the reason.
        """
        _check_reason(answer, why)
        _, approval = await self._find_approval(conversation, message, call)
        if (approval.name == Ask.name and answer != "no") != bool(words.strip()) or len(
            words
        ) > WORDS_CHARS_MAX:
            raise InvalidInput(
                f"The answer to a question has words, at most {WORDS_CHARS_MAX:,} characters. The answer to an approval has none."
            )
        rule = (
            await self._make_always_rule(conversation, approval, pattern)
            if answer == "always"
            else None
        )
        if answer == "conversation":
            pattern = await self._choose_pattern(conversation, approval, pattern)
        allowed_pattern = pattern if answer in {"always", "conversation"} else ""
        by = self._journal.user or ""
        reason = why.strip()
        if approval.name == Ask.name and answer == "no":
            reason = f"The person gave no answer. {reason}".strip()
        answered = ApprovalAnswered(
            message, call, answer, by, reason, allowed_pattern, words.strip()
        )
        await self._append_answer(conversation, answered, dedup)
        try:
            # The rule comes after the answer, so a late answer makes no rule.
            if rule is not None:
                await self._make_rule(rule)
        finally:
            self._workers.wake(conversation)

    async def answer_all(
        self,
        conversation: str,
        message: int,
        answer: Literal["once", "no"],
        *,
        why: str = "",
    ) -> int:
        """Answer all waiting approvals for the calls of one answer of the model. Return the number of answers.

        Questions of the model stay open. Raises `InvalidInput` if no approval waits there.
        """
        _check_reason(answer, why)
        by = self._journal.user or ""

        async def find_answers(_head: int) -> Planned:
            run = (await self._workers.turns(conversation)).run
            answers = [
                ApprovalAnswered(message, open_call.call.id, answer, by, why.strip())
                for open_call in (run.waits if run is not None else ())
                if open_call.approval is not None
                and open_call.approval.message == message
                and open_call.approval.name != Ask.name
            ]
            if run is None or not answers:
                raise InvalidInput(_NOT_ASKED)
            return answers, run.id

        count = await append_at_head(self._journal, conversation, find_answers)
        self._workers.wake(conversation)
        return count

    async def _make_rule(self, rule: Rule) -> None:
        try:
            await self._add_rule(rule)
        except TenaxError as error:
            message = f"This call is allowed, but later ones ask again: no rule was made. {error}"
            raise Refused(message, hint=error.hint) from error

    async def _find_approval(
        self, conversation: str, message: int, call: str
    ) -> tuple[str, ApprovalAsked]:
        """Return the waiting run and the approval. Raises `InvalidInput` if no run waits for the approval."""
        run = (await self._workers.turns(conversation)).run
        waits = (
            [
                open_call.approval
                for open_call in run.waits
                if open_call.approval is not None
            ]
            if run is not None
            else []
        )
        approval = next(
            (
                approval
                for approval in waits
                if (approval.message, approval.call) == (message, call)
            ),
            None,
        )
        if run is None or approval is None:
            raise InvalidInput(_NOT_ASKED)
        return run.id, approval

    async def _append_answer(
        self, conversation: str, answered: ApprovalAnswered, dedup: Dedup | None
    ) -> None:
        """Store an answer if the approval still waits. Of several concurrent answers exactly one is stored."""

        async def check(_head: int) -> Planned:
            run, _ = await self._find_approval(
                conversation, answered.message, answered.call
            )
            return [answered], run

        await append_at_head(self._journal, conversation, check, dedup=dedup)

    async def _choose_pattern(
        self, conversation: str, approval: ApprovalAsked, pattern: str
    ) -> str:
        """Return the pattern allowed by the answer `conversation`."""
        offered = (await self._make_question(conversation, approval)).conversation
        if not offered:
            raise Refused("This call can be allowed once only.", hint="Allow it once.")
        if pattern and pattern not in offered:
            raise InvalidInput(
                f"The pattern {pattern} was not offered for this call.",
                hint=f"Use {' or '.join(offered)}",
            )
        return pattern or offered[0]

    async def _make_always_rule(
        self, conversation: str, approval: ApprovalAsked, pattern: str
    ) -> Rule:
        """Return the rule made by the answer `always`."""
        rule = Rule("allow", escape_pattern(approval.name), pattern)
        self._agents.require_owner()
        offered = (await self._make_question(conversation, approval)).always
        if not offered:
            raise Refused("This cannot be allowed for good.", hint="Allow it once.")
        if pattern not in offered and not rule.matches(approval.name, approval.touches):
            raise InvalidInput(
                f"The pattern {pattern} does not fit what this call touches: {approval.touches}"
            )
        if mistake := find_mistake(rule):
            raise InvalidInput(f"This cannot be a rule: its {mistake}.")
        return rule
