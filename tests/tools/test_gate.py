"""The gate: what may be called, what has to be asked for, and what becomes of a call."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from tenax.clock import Timing
from tenax.config.rules import Rule
from tenax.errors import ConfigError, InvalidInput, Refused, TenaxError, ToolFailed
from tenax.tools import gate
from tenax.tools.base import Call, Tool
from tenax.tools.gate import CHARS_MAX, Allowed, Asks, Done, Gate
from tenax.tools.redact import Redact

CALL = Call("ada", "c_1", 7, "call_a", Path("nowhere"))
SOON = Timing(tool_stop_seconds=0.05)


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line for a book."""

    book: str
    line: Annotated[int, msgspec.Meta(ge=1)] = 1


class Book(Tool[Note]):
    """A tool whose work is whatever a test wants."""

    description = "Write into a book."
    effect = "once"
    args = Note
    seconds = 5.0

    def __init__(
        self,
        work: Callable[[], Awaitable[Any]] | None = None,
        *,
        name: str = "note",
        asks: bool = True,
        seconds: float = 5.0,
    ) -> None:
        self.name, self.asks, self.seconds = name, asks, seconds
        self.work = work
        self.calls: list[tuple[Note, Call]] = []

    def touches(self, args: Note, call: Call) -> str:
        if args.book == "burnt":
            raise ToolFailed("That book is burnt.")
        if args.book == "cursed":
            raise LookupError("password=hunter2")
        return f"book {args.book}"

    async def run(self, args: Note, call: Call) -> str:
        self.calls.append((args, call))
        if self.work is not None:
            return await self.work()  # type: ignore[no-any-return]
        return "noted"


def permit(
    gate: Gate, arguments: str = '{"book":"red"}', name: str = "note"
) -> Allowed:
    given = gate.weigh(name, arguments, CALL, allowed=[Rule("allow", name)])
    assert isinstance(given, Allowed)
    return given


async def outcome(
    work: Callable[[], Awaitable[Any]],
    seconds: float = 5.0,
    timing: Timing = Timing(),
) -> Done:
    gate = Gate([Book(work, seconds=seconds)], timing=timing)
    return await gate.perform(permit(gate), approved_arguments=None)


async def test_a_secret_is_taken_out_before_an_output_is_cut() -> None:
    """Of what a tool returns and of what it raises; no half of it is left where the middle is not shown."""
    key = "sk-0123456789abcdef"

    async def say(words: str, *, fails: bool) -> str:
        if fails:
            raise ToolFailed(words, hint=f"try {key}")
        return words

    for before in (0, 19_990, 20_000, 50_000):
        for fails in (False, True):
            book = Book(
                lambda before=before, fails=fails: say(
                    f"{'x' * before}{key}{'y' * 40_000}", fails=fails
                )
            )
            its = Gate([book], redact=Redact(lambda: [key, "x"]))
            done = await its.perform(permit(its), approved_arguments=None)
            assert done.outcome == ("failed" if fails else "done")
            assert key[:6] not in done.text
            assert ("[secret]" in done.text) or not fails


def test_a_model_is_told_the_schema_of_every_tool() -> None:
    """Name, description and a schema with the object at its top, in the order of the tools."""
    first, second = Gate([Book(name="b"), Book(name="a")]).specs()
    assert (first.name, second.name, first.description) == (
        "b",
        "a",
        "Write into a book.",
    )
    assert first.parameters == {
        "type": "object",
        "properties": {
            "book": {"type": "string"},
            "line": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["book"],
        "additionalProperties": False,
    }


class Loose(msgspec.Struct, frozen=True):
    """Arguments that swallow what they do not know."""


class Swallow(Book):
    """A tool made in a wrong way."""

    args = Loose  # type: ignore[assignment]


def test_tools_that_cannot_be_told_apart_or_checked_are_no_gate() -> None:
    """Two of one name, and arguments that ignore what they do not know."""
    with pytest.raises(ValueError, match="two tools of the name note"):
        Gate([Book(), Book()])
    with pytest.raises(ValueError, match="must forbid unknown fields"):
        Gate([Swallow()])


def test_an_unknown_tool_is_refused_with_the_nearest_name() -> None:
    """The model reads which tool it may have meant, or which there are."""
    gate = Gate([Book(), Book(name="forget")])
    near = gate.weigh("notes", "{}", CALL, allowed=())
    far = gate.weigh("xyz" * 100, "{}", CALL, allowed=())
    assert near == Done("failed", "There is no tool 'notes'. Did you mean note?")
    assert isinstance(far, Done)
    assert far.text.endswith("There are: note, forget.")
    assert len(far.text) < 200


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "are not JSON"),
        ("[1]", "Expected `object`, got `array`. It takes: book, line."),
        ('{"book":7}', "Expected `str`, got `int` - at `$.book`"),
        ('{"book":"a","line":0}', "at `$.line`"),
        ('{"book":"a","page":2}', "unknown field `page`"),
        ("", "missing required field `book`"),
        ('{"book":"\ud800"}', "surrogate"),
        ('{"book":' * 100_000, "book"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_is_wrong(
    arguments: str, says: str
) -> None:
    """No tool and no person sees them; the model reads what to change."""
    weighed = Gate([Book()]).weigh(
        "note", arguments, CALL, allowed=[Rule("allow", "note")]
    )
    assert isinstance(weighed, Done)
    assert weighed.outcome == "failed"
    assert says in weighed.text


def test_a_tool_without_arguments_may_be_called_with_no_text() -> None:
    """Some models write nothing where they mean an empty object."""

    class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        pass

    class Ping(Book):
        args = Nothing  # type: ignore[assignment]

        def touches(self, args: Any, call: Call) -> str:
            return "nothing"

    assert isinstance(
        Gate([Ping(asks=False)]).weigh("note", "", CALL, allowed=()), Allowed
    )


def test_a_call_that_could_never_be_done_asks_nobody() -> None:
    """What a tool says against it before it is run is a refusal; a surprise there is one too, without its words."""
    gate = Gate([Book()])
    assert gate.weigh("note", '{"book":"burnt"}', CALL, allowed=()) == Done(
        "failed", "That book is burnt."
    )
    cursed = gate.weigh("note", '{"book":"cursed"}', CALL, allowed=())
    assert isinstance(cursed, Done)
    assert "hunter2" not in cursed.text


@pytest.mark.parametrize(
    ("rules", "asks", "allowed", "verdict"),
    [
        ([], True, (), Asks),
        ([], False, (), Allowed),
        ([], True, [Rule("allow", "note")], Allowed),
        ([], True, [Rule("allow", "note", "book red")], Allowed),
        ([], True, [Rule("allow", "note", "book r")], Asks),
        ([], True, [Rule("allow", "other")], Asks),
        ([Rule("allow", "note")], True, (), Allowed),
        ([Rule("allow", "note", "book r*")], True, (), Allowed),
        ([Rule("allow", "note", "book b*")], True, (), Asks),
        ([Rule("allow", "other")], True, (), Asks),
        (
            [Rule("deny", "note", "book red"), Rule("allow", "*")],
            True,
            [Rule("allow", "note")],
            Done,
        ),
        (
            [Rule("allow", "*"), Rule("deny", "n*")],
            False,
            [Rule("allow", "note")],
            Done,
        ),
    ],
)
def test_deny_rules_win_then_whatever_allows_else_a_person_is_asked(
    rules: list[Rule], asks: bool, allowed: Sequence[Rule], verdict: type
) -> None:
    """Deny, then a tool that does not ask, an allow rule or the conversation's own list, then the person."""
    weighed = Gate([Book(asks=asks)], lambda: rules).weigh(
        "note", '{"book":"red"}', CALL, allowed=allowed
    )
    assert type(weighed) is verdict
    if isinstance(weighed, Done):
        assert weighed == Done("denied", "A rule forbids note for this: book red")


def test_what_a_person_reads_is_one_line_that_hides_nothing() -> None:
    """Line breaks, escapes and marks that turn the direction of writing are shown as what they are."""
    asks = Gate([Book()]).weigh(
        "note", '{"book":"a\\nb\\u001b[2K\\u202ec\\u2028"}', CALL, allowed=()
    )
    assert isinstance(asks, Asks)
    assert asks.touches == "book a\ufffdb\ufffd[2K\ufffdc\ufffd"


async def test_what_was_approved_is_done_once_with_the_call_it_belongs_to() -> None:
    """The tool gets the parsed arguments and the call, with a key that is the same whenever it is made again."""
    book = Book()
    gate = Gate([book])
    asks = gate.weigh("note", '{"book": "red"}', CALL, allowed=())
    assert isinstance(asks, Asks)
    approved = gate.approve(asks, '{"book": "red"}')
    assert isinstance(approved, Allowed)
    assert await gate.perform(approved, approved_arguments='{"book": "red"}') == Done(
        "done", "noted"
    )
    assert book.calls == [(Note("red"), CALL)]
    assert CALL.key == "c_1:7:call_a"

    again = await gate.perform(approved, approved_arguments='{"book": "red"}')
    assert again.outcome == "denied"
    assert gate.approve(asks, '{"book": "red"}').__class__ is Done
    assert len(book.calls) == 1


async def test_an_approval_is_bound_to_the_exact_text_of_the_arguments() -> None:
    """Other arguments are refused, even where they mean the same, at the approval and at the call."""
    book = Book()
    gate = Gate([book])
    for replayed in ('{"book":"blue"}', '{"book": "red"}', ""):
        asks = gate.weigh("note", '{"book":"red"}', CALL, allowed=())
        assert isinstance(asks, Asks)
        refused = gate.approve(asks, replayed)
        assert isinstance(refused, Done)
        assert refused.outcome == "denied"
    for claimed in ('{"book":"blue"}', None):
        asks = gate.weigh("note", '{"book":"red"}', CALL, allowed=())
        assert isinstance(asks, Asks)
        approved = gate.approve(asks, '{"book":"red"}')
        assert isinstance(approved, Allowed)
        assert (
            await gate.perform(approved, approved_arguments=claimed)
        ).outcome == "denied"
    unasked = permit(gate)
    assert (
        await gate.perform(unasked, approved_arguments='{"book":"red"}')
    ).outcome == "denied"
    assert book.calls == []


async def test_a_permit_that_the_gate_did_not_give_opens_nothing() -> None:
    """Neither one made by hand, nor a changed copy, nor one of another gate."""
    book = Book()
    gate = Gate([book])
    asks = gate.weigh("note", '{"book":"red"}', CALL, allowed=())
    assert isinstance(asks, Asks)
    forged = [
        Allowed(book, Note("red"), "{}", CALL, "book red"),
        msgspec.structs.replace(permit(gate), args=Note("blue")),
        permit(Gate([book])),
        asks,
    ]
    for each in forged:
        assert (await gate.perform(each, approved_arguments=None)).outcome == "denied"  # type: ignore[arg-type]
    assert book.calls == []


@pytest.mark.parametrize("error", [ToolFailed, ConfigError, InvalidInput, Refused])
async def test_a_failure_is_told_in_the_words_of_the_tool(
    error: type[TenaxError],
) -> None:
    """With the way on, where there is one; also where it is not the tool's own, but one that people read."""

    async def fail() -> str:
        raise error("The ink is dry.", hint="buy some")

    assert await outcome(fail) == Done("failed", "The ink is dry. (buy some)")


async def test_a_surprise_is_logged_with_its_cause_and_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception's own text may hold a secret; the log keeps all of it."""

    async def surprise() -> str:
        raise ValueError("password=hunter2") from KeyError("cause")

    done = await outcome(surprise)
    assert done.outcome == "failed"
    assert "ValueError" in done.text
    assert "hunter2" not in done.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert isinstance(record.exc_info[1].__cause__, KeyError)


async def test_a_tool_cannot_end_the_process_or_its_caller() -> None:
    """Neither by leaving nor by cancelling itself."""

    async def leave() -> str:
        sys.exit(3)

    async def cancel() -> str:
        raise asyncio.CancelledError

    assert (await outcome(leave)).outcome == "failed"
    assert (await outcome(cancel)).outcome == "failed"


async def test_long_output_keeps_its_head_and_its_tail() -> None:
    """And says how much is missing; what is kept and what is cut add up."""

    async def much() -> str:
        return "a" * 50_000 + "b" * 50_000

    async def just() -> str:
        return "a" * CHARS_MAX

    done = await outcome(much)
    assert done.outcome == "done"
    assert len(done.text) <= CHARS_MAX
    assert done.text.startswith("a" * 20_000)
    assert done.text.endswith("b" * 9_900)
    assert done.text.count("a") - 2 + done.text.count("b") + done.cut >= 100_000 - 2
    assert f"{done.cut:,} characters are not shown" in done.text
    assert await outcome(just) == Done("done", "a" * CHARS_MAX)


async def test_a_failure_can_be_no_longer_than_an_output() -> None:
    """The sentence of a tool is held to the same length."""

    async def fail() -> str:
        raise ToolFailed("x" * 100_000)

    done = await outcome(fail)
    assert len(done.text) <= CHARS_MAX
    assert done.cut > 0


async def test_output_is_text() -> None:
    """Control characters, NUL and half surrogates are replaced; line breaks and tabs stay."""

    async def dirty() -> str:
        return "a\x00b\ud800c\x1b[1md\te\r\nf\rg\x85h\x7f"

    assert (
        await outcome(dirty)
    ).text == "a\ufffdb\ufffdc\ufffd[1md\te\nf\ng\ufffdh\ufffd"


async def test_a_call_past_its_time_is_stopped_and_has_failed() -> None:
    """It is told how long it had, and what the tool still said."""
    stopped: list[str] = []

    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")
        return "never"

    async def slow_and_says() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "half of it"
        return "never"

    done = await outcome(slow, seconds=0.02)
    assert done.outcome == "failed"
    assert "took more than 0.02 seconds" in done.text
    assert stopped == ["stopped"]
    said = await outcome(slow_and_says, seconds=0.02)
    assert said.outcome == "failed"
    assert said.text.endswith("\nhalf of it")


async def stubborn(until: asyncio.Event) -> str:
    """Do not stop before the test lets it."""
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue
    return "at last"


async def test_a_tool_that_ignores_being_stopped_does_not_hold_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller goes on after the limit and the grace, and it is said that the tool may still be at work."""
    assert Timing().tool_stop_seconds == 5.0
    until = asyncio.Event()
    # The tool ends only after `until`, which is set below: a caller that waited for the tool would wait for ever.
    async with asyncio.timeout(60):
        done = await outcome(lambda: stubborn(until), seconds=0.02, timing=SOON)
    assert done.outcome == "failed"
    assert "may still be at work" in done.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    until.set()


async def test_a_cancelled_caller_stops_the_tool_and_is_held_no_longer_than_the_grace() -> (
    None
):
    """Whether or not the tool stops."""
    until, begun = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def polite() -> str:
        begun.set()
        try:
            return str(await until.wait())
        finally:
            ended.append("polite")

    async def rude() -> str:
        begun.set()
        return await stubborn(until)

    for work in (polite, rude):
        begun.clear()
        caller = asyncio.create_task(outcome(work, timing=SOON))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(caller, 60)
    assert ended == ["polite"]
    until.set()


async def test_calls_that_never_stop_are_bounded() -> None:
    """With so many that hang no other is begun, and once they have ended calls are made again."""
    until = asyncio.Event()
    book = Book(lambda: stubborn(until), seconds=0.001)
    held = Gate([book], timing=Timing(tool_stop_seconds=0.0))
    for _ in range(gate.STUCK_MAX + 2):
        done = await held.perform(permit(held), approved_arguments=None)
        assert done.outcome == "failed"
    assert len(book.calls) == gate.STUCK_MAX
    assert "was not begun" in done.text
    until.set()
    while "was not begun" in done.text:
        done = await held.perform(permit(held), approved_arguments=None)
        await asyncio.sleep(0)
    assert len(book.calls) > gate.STUCK_MAX


def test_rules_are_looked_up_for_each_call() -> None:
    """One that is made meanwhile holds for the next call, and one that is taken back no longer."""
    rules: list[Rule] = []
    gate = Gate([Book()], lambda: rules)
    found = []
    for each in (
        [],
        [Rule("allow", "note", "book red")],
        [Rule("deny", "note"), Rule("allow", "*")],
        [],
    ):
        rules[:] = each
        found.append(type(gate.weigh("note", '{"book":"red"}', CALL, allowed=())))
    assert found == [Asks, Allowed, Done, Asks]


async def test_what_is_forbidden_while_a_call_waits_is_not_done() -> None:
    """Also where it was allowed, or approved by a person, before."""
    rules: list[Rule] = []
    book = Book()
    gate = Gate([book], lambda: rules)
    asks = gate.weigh("note", '{"book":"red"}', CALL, allowed=())
    assert isinstance(asks, Asks)
    approved = gate.approve(asks, '{"book":"red"}')
    assert isinstance(approved, Allowed)
    given = [(permit(gate), None), (approved, '{"book":"red"}')]
    rules.append(Rule("deny", "note", "book r?d"))
    for each, arguments in given:
        done = await gate.perform(each, approved_arguments=arguments)
        assert done == Done("denied", "A rule forbids note for this: book red")
    assert book.calls == []


class Careful(Book):
    """Asks every time for one book."""

    def always_asks(self, args: Note) -> bool:
        return args.book == "black"


def test_a_call_that_always_asks_is_allowed_by_nothing_but_a_person() -> None:
    """No rule and no conversation stands for it; and it can still be forbidden."""
    gate = Gate(
        [Careful(asks=False)],
        lambda: [Rule("allow", "*"), Rule("deny", "note", "* white")],
    )
    black = gate.weigh(
        "note", '{"book":"black"}', CALL, allowed=[Rule("allow", "note")]
    )
    assert isinstance(black, Asks)
    assert not black.standing
    assert isinstance(gate.weigh("note", '{"book":"red"}', CALL, allowed=()), Allowed)
    assert isinstance(
        gate.weigh("note", '{"book":"white"}', CALL, allowed=[Rule("allow", "note")]),
        Done,
    )
