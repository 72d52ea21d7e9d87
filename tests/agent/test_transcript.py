"""What a person sees, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContextKept,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    ReplyThought,
    RunFinished,
    RunLate,
    RunRecovered,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolLate,
    ToolOutput,
    ToolStarted,
)
from tenax.journal import Journal
from tenax.parts import Part, Reasoning, Text, ToolCall
from tenax.testing import memory
from tenax.views.context import CUT_NOTE, NO_RESULT, Context
from tenax.views.transcript import Change, Grow, Put, Row, Transcript

NAME = "c_talk"


class Talk:
    """A conversation, and what is seen of it by a person and by a model."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.add(ConversationOpened(journal.user or "", "s_1"))

    def add(self, *events: Event, run: str | None = None) -> int:
        return self.journal.append(NAME, events, run=run)[-1].seq

    def ask(self, words: str, **more: str) -> int:
        return self.add(MessageUser([Text(words)], ask=True, **more))  # type: ignore[arg-type]

    def start(self, run: str, *inputs: int, resumes: str | None = None) -> None:
        self.add(RunStarted(list(inputs), resumes, int(resumes is not None)), run=run)

    def request(self, run: str, *inputs: int) -> int:
        head = self.journal.head(NAME).head
        return self.add(ModelRequested(head, "", "m", 1.0, list(inputs)), run=run)

    def answer(self, run: str, words: str, *calls: ToolCall) -> int:
        return self.add(
            MessageAssistant([Text(words), *calls], self.request(run)), run=run
        )

    def finish(self, run: str, outcome: str = "completed") -> None:
        self.add(RunFinished(outcome, "why"), run=run)  # type: ignore[arg-type]

    def fold(self) -> Transcript:
        shown = Transcript()
        for event in self.journal.read(NAME):
            shown.apply(event)
        return shown

    def rows(self) -> list[tuple[str, str, str]]:
        return [(row.kind, row.state, row.text) for row in self.fold().rows]

    def request_texts(self) -> list[str]:
        context = Context()
        for event in self.journal.read(NAME):
            context.apply(event)
        return [
            part.text
            for each in context.request(list(context.waiting))
            for part in each.parts
            if hasattr(part, "text")
        ]


@pytest.fixture
def talk() -> Iterator[Talk]:
    with memory() as journal:
        yield Talk(journal)


def test_an_input_that_waits_stands_at_the_end_and_then_where_it_was_taken(
    talk: Talk,
) -> None:
    """While an answer is written below the first question, the second one waits under it; a steer moves into the run."""
    talk.start("r1", talk.ask("first"))
    request = talk.request("r1")
    second = talk.ask("second")
    steer = talk.ask("and quickly", how="steer")
    talk.add(ReplyDelta(request, 0, "an answer"))
    assert talk.rows() == [
        ("user", "", "first"),
        ("assistant", "streaming", "an answer"),
        ("user", "queued", "second"),
        ("user", "steering", "and quickly"),
    ]
    talk.add(
        MessageAssistant([Text("an answer"), ToolCall("k", "clock", "{}")], request),
        run="r1",
    )
    talk.add(ToolFinished(talk.journal.head(NAME).head, "k", "done", "noon"), run="r1")
    again = talk.request("r1", steer)
    talk.add(MessageAssistant([Text("a quick answer")], again), run="r1")
    talk.finish("r1")
    talk.start("r2", second)
    talk.answer("r2", "another answer")
    talk.finish("r2")
    assert talk.rows() == [
        ("user", "", "first"),
        ("assistant", "", "an answer"),
        ("tool", "done", "noon"),
        ("user", "", "and quickly"),
        ("assistant", "", "a quick answer"),
        ("user", "", "second"),
        ("assistant", "", "another answer"),
    ]


@pytest.mark.parametrize("finish", ["length", "max_tokens"])
def test_an_answer_that_its_model_had_to_end_is_not_shown_as_whole(
    talk: Talk, finish: str
) -> None:
    """A model that reached the longest answer it may give stops in mid-sentence; both wire formats say so."""
    talk.start("r1", talk.ask("a long story"))
    talk.add(
        MessageAssistant([Text("There once was a")], talk.request("r1"), finish=finish),
        run="r1",
    )
    talk.finish("r1")
    assert talk.rows() == [
        ("user", "", "a long story"),
        ("assistant", "full", "There once was a"),
    ]


def interrupted(talk: Talk, run: str = "r1", words: str = "half an ans") -> int:
    """A run that was cut off in the middle of its answer."""
    asked = talk.ask("the question")
    talk.start(run, asked)
    request = talk.request(run)
    talk.add(ReplyDelta(request, 0, words))
    talk.add(
        MessagePartial([Text(words)], request),
        RunFinished("interrupted", "gone"),
        run=run,
    )
    return request


def test_late_output_stands_under_its_input_and_above_its_marker(talk: Talk) -> None:
    """Also when the run that went on has written below; and it does not start anything."""
    interrupted(talk)
    talk.add(RunRecovered("recovered"), run="r1")
    talk.start("r2", resumes="r1")
    request = talk.request("r2")
    talk.add(ReplyDelta(request, 0, "the whole"))
    talk.add(RunLate(0, "token", {"text": "wer, "}), run="r1")
    talk.add(RunLate(1, "tool", {"name": "clock", "args": {}}), run="r1")
    talk.add(RunLate(2, "tool_complete", {"name": "clock", "text": "noon"}), run="r1")
    talk.add(RunLate(3, "token", {"text": "and more"}), run="r1")
    assert talk.rows() == [
        ("user", "", "the question"),
        ("assistant", "cut", "half an ans"),
        ("assistant", "cut", "wer, "),
        ("tool", "done", "noon"),
        ("assistant", "cut", "and more"),
        ("marker", "resumed", "gone"),
        ("assistant", "streaming", "the whole"),
    ]
    talk.add(MessageAssistant([Text("the whole answer")], request), run="r2")
    talk.finish("r2")
    talk.add(RunLate(4, "token", {"text": " and the end"}), run="r1")
    assert [row[1] for row in talk.rows() if row[0] == "assistant"] == [
        "earlier"
    ] * 3 + [""]


def test_the_earlier_attempt_is_folded_away_only_when_the_next_one_has_answered(
    talk: Talk,
) -> None:
    """Two attempts that were cut off stay open to read until the third has come to its end."""
    interrupted(talk)
    talk.start("r2", resumes="r1")
    request = talk.request("r2")
    talk.add(
        MessagePartial([Text("again half")], request),
        RunFinished("interrupted", "gone"),
        run="r2",
    )
    assert [row[1] for row in talk.rows() if row[0] == "assistant"] == ["cut", "cut"]
    talk.start("r3", resumes="r2")
    talk.answer("r3", "the answer")
    assert [row[1] for row in talk.rows() if row[0] == "assistant"] == [
        "cut",
        "cut",
        "",
    ]
    talk.finish("r3")
    assert [row[1] for row in talk.rows() if row[0] == "assistant"] == [
        "earlier",
        "earlier",
        "",
    ]


def test_the_model_sees_cut_off_text_once_and_only_if_the_run_was_not_resumed(
    talk: Talk,
) -> None:
    """With what came late, marked as cut off; nothing of it when the step is asked again."""
    interrupted(talk)
    talk.add(RunLate(0, "token", {"text": "wer"}), run="r1")
    second = talk.ask("and now?")
    talk.start("r2", second)
    assert talk.request_texts() == [
        "the question",
        f"half an answer{CUT_NOTE}",
        "and now?",
    ]
    talk.add(RunLate(1, "token", {"text": " too late"}), run="r1")
    assert talk.request_texts() == [
        "the question",
        f"half an answer{CUT_NOTE}",
        "and now?",
    ]
    request = talk.request("r2")
    talk.add(
        MessagePartial([Text("cut again")], request),
        RunFinished("interrupted", "gone"),
        run="r2",
    )
    talk.start("r3", resumes="r2")
    assert talk.request_texts() == [
        "the question",
        f"half an answer{CUT_NOTE}",
        "and now?",
    ]


def test_late_text_of_a_run_that_had_none_is_seen_by_the_model_too(talk: Talk) -> None:
    """Nothing of it was stored when it was interrupted; all of it came late, before the next run."""
    talk.start("r1", talk.ask("the question"))
    talk.request("r1")
    talk.finish("r1", "interrupted")
    talk.add(RunLate(0, "token", {"text": "an answer after all"}), run="r1")
    talk.start("r2", talk.ask("well?"))
    assert talk.request_texts() == [
        "the question",
        f"an answer after all{CUT_NOTE}",
        "well?",
    ]


def test_finished_steps_of_an_interrupted_run_are_always_seen(talk: Talk) -> None:
    """A result that came is there; a call without one says so; one that came too late stands at the end, once."""
    talk.start("r1", talk.ask("the question"))
    step = talk.answer(
        "r1", "let me see", ToolCall("a", "clock", "{}"), ToolCall("b", "clock", "{}")
    )
    talk.add(ToolStarted(step, "a", "clock", "once", 5.0), run="r1")
    talk.add(ToolFinished(step, "a", "done", "noon"), run="r1")
    talk.finish("r1", "interrupted")
    talk.start("r2", talk.ask("well?"))
    before = ["the question", "let me see", "noon", NO_RESULT, "well?"]
    assert talk.request_texts() == before
    talk.request("r2")
    talk.add(ToolLate(step, "b", "done", "midnight"), run="r1")
    assert talk.request_texts()[:-1] == before
    assert "midnight" in talk.request_texts()[-1]


def test_what_others_write_while_a_tool_works_stands_after_its_result(
    talk: Talk,
) -> None:
    """Providers refuse a call that is not followed by its result."""
    talk.start("r1", talk.ask("the question"))
    step = talk.answer("r1", "let me see", ToolCall("a", "clock", "{}"))
    talk.add(MessageUser([Text("from elsewhere")]))
    talk.add(MessageAssistant([Text("and an answer from elsewhere")]))
    talk.add(ToolFinished(step, "a", "done", "noon"), run="r1")
    texts = [
        "the question",
        "let me see",
        "noon",
        "from elsewhere",
        "and an answer from elsewhere",
    ]
    assert talk.request_texts() == texts


def test_an_undo_in_the_middle_of_a_step_leaves_a_call_with_a_result(
    talk: Talk,
) -> None:
    """The call stays and its result is taken back: the model is told that there is none. Bringing it back brings it all."""
    talk.start("r1", talk.ask("the question"))
    step = talk.answer("r1", "let me see", ToolCall("a", "clock", "{}"))
    talk.add(ToolFinished(step, "a", "done", "noon"), run="r1")
    talk.answer("r1", "it is noon")
    talk.finish("r1")
    undone = talk.add(ConversationRewound(step))
    assert talk.request_texts() == ["the question", "let me see", NO_RESULT]
    talk.add(ConversationRestored(undone))
    assert talk.request_texts() == ["the question", "let me see", "noon", "it is noon"]


def test_a_tools_card_goes_through_its_states(talk: Talk) -> None:
    """Waiting, asked for, approved, running, and its outcome, at one place under one id."""
    talk.start("r1", talk.ask("the question"))
    step = talk.answer("r1", "let me see", ToolCall("a", "clock", '{"zone": 1}'))
    states = []
    events: list[Event] = [
        ApprovalAsked(step, "a", "clock", '{"zone": 1}', "the clock"),
        ApprovalAnswered(step, "a", "once"),
        ToolStarted(step, "a", "clock", "once", 5.0),
        ToolFinished(step, "a", "done", "noon"),
    ]
    for event in (None, *events):
        if event is not None:
            talk.add(event, run="r1")
        card = next(row for row in talk.fold().rows if row.kind == "tool")
        states.append((card.id, card.key, card.state))
    assert [state[2] for state in states] == [
        "waiting",
        "asks",
        "approved",
        "running",
        "done",
    ]
    assert len({state[:2] for state in states}) == 1


def open_calls(talk: Talk, run: str) -> int:
    """A step with a call in each state that is no outcome."""
    calls = [
        ToolCall(name, "write_file", "{}") for name in ("waits", "asks", "may", "runs")
    ]
    step = talk.answer(run, "hm", *calls)
    for name in ("asks", "may"):
        talk.add(ApprovalAsked(step, name, "write_file", "{}"), run=run)
    talk.add(ApprovalAnswered(step, "may", "once"), run=run)
    talk.add(ToolStarted(step, "runs", "write_file", "idempotent", 1.0), run=run)
    return step


def states(talk: Talk) -> list[str]:
    return [row.state for row in talk.fold().rows if row.kind == "tool"]


OPEN = ["waiting", "asks", "approved", "running"]
ENDED = ["skipped", "skipped", "skipped", "unknown"]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "interrupted", "completed"])
def test_calls_of_a_run_that_has_ended_are_under_way_no_more(
    talk: Talk, outcome: str
) -> None:
    """What was not begun was skipped; of what was begun nobody knows. An outcome that comes late is told."""
    talk.start("r1", talk.ask("write"))
    step = open_calls(talk, "r1")
    assert states(talk) == OPEN
    talk.finish("r1", outcome)
    assert states(talk) == ENDED
    talk.add(ToolLate(step, "runs", "done", "written"), run="r1")
    assert states(talk) == [*ENDED[:3], "done"]


def test_a_run_that_goes_on_takes_up_the_calls_that_were_left(talk: Talk) -> None:
    """They are as they were, so that what was asked can be answered; when that run ends too, they are under way no more."""
    talk.start("r1", talk.ask("write"))
    step = open_calls(talk, "r1")
    talk.finish("r1", "interrupted")
    talk.start("r2", resumes="r1")
    assert states(talk) == OPEN
    talk.add(ToolFinished(step, "runs", "done", "written"), run="r2")
    talk.finish("r2", "interrupted")
    assert states(talk) == [*ENDED[:3], "done"]
    talk.start("r3", resumes="r2")
    assert states(talk) == [*OPEN[:3], "done"]
    talk.finish("r3", "failed")
    assert states(talk) == [*ENDED[:3], "done"]


def test_a_late_call_without_an_end_is_not_shown_as_running_for_ever(
    talk: Talk,
) -> None:
    """Once no more output of its run comes."""
    talk.start("r1", talk.ask("write"))
    talk.finish("r1", "interrupted")
    talk.add(RunLate(0, "tool", {"name": "write_file"}), run="r1")
    assert states(talk) == ["running"]
    talk.add(RunSealed(), run="r1")
    assert states(talk) == ["unknown"]
    talk.add(
        RunLate(1, "tool_complete", {"name": "write_file", "text": "ok"}), run="r1"
    )
    assert states(talk) == ["done"]


def test_a_retry_is_told_while_it_waits_and_gone_when_it_is_made(talk: Talk) -> None:
    """So is a compaction that changed nothing, which stays."""
    talk.start("r1", talk.ask("the question"))
    failed = ModelFailed(talk.request("r1"), "server", "It is on fire.", 2.0)
    talk.add(failed, run="r1")
    assert talk.rows()[-1] == ("notice", "retrying", "It is on fire.")
    talk.add(ModelFailed(talk.request("r1"), "rate", "It is tired.", 3600.0), run="r1")
    assert talk.rows()[-1] == (
        "notice",
        "retrying",
        "It is tired. It asks to wait for 60 minutes.",
    )
    talk.add(ContextKept("It was no shorter.", 1), run="r1")
    talk.request("r1")
    assert talk.rows() == [
        ("user", "", "the question"),
        ("notice", "", "It was no shorter."),
    ]


def test_erased_text_is_in_no_row_and_does_not_come_back(talk: Talk) -> None:
    """A message, a tool's result, late words that joined others, and rows that an undo had taken away."""
    talk.add(MessageUser([Text("a secret of a person")]))
    talk.start("r1", talk.ask("the question"))
    step = talk.answer("r1", "let me see", ToolCall("a", "clock", "{}"))
    result = talk.add(ToolFinished(step, "a", "done", "a secret of a tool"), run="r1")
    talk.finish("r1", "interrupted")
    talk.add(RunLate(0, "token", {"text": "so "}), run="r1")
    late = talk.add(RunLate(1, "token", {"text": "a secret of a model"}), run="r1")
    shown, rows = Transcript(), dict[str, Row]()
    for event in talk.journal.read(NAME):
        _replay(rows, shown.apply(event))
    undone = talk.add(ConversationRewound(result - 1))
    talk.journal.erase(NAME, [2, result, late], by="ada")
    talk.add(ConversationRestored(undone))
    for event in talk.journal.read(NAME, after=undone - 1):
        _replay(rows, shown.apply(event))
    assert not any("secret" in row.text for row in [*rows.values(), *shown.rows])
    assert sum(row.erased for row in shown.rows) == 3


def _replay(rows: dict[str, Row], changes: list[Change]) -> None:
    for change in changes:
        if hasattr(change, "row"):
            rows[change.row.id] = change.row
        elif not hasattr(change, "offset"):
            rows.pop(change.id, None)


def test_reasoning_grows_like_the_text_and_keeps_its_duration(talk: Talk) -> None:
    """Each change carries only the new reasoning; the row has the duration when the text begins, and from the answer."""
    talk.start("r1", talk.ask("why?"))
    request = talk.request("r1")
    talk.add(ReplyThought(request, 0, "hm"))
    talk.add(ReplyThought(request, 2, ", so"))
    talk.add(ReplyThought(request, 2, ", so"))  # stored twice, shown once
    shown, changes = Transcript(), list[Change]()
    for event in talk.journal.read(NAME):
        changes = shown.apply(event) or changes
    assert changes == [Grow(str(request), 2, ", so", "thought")]
    (row,) = [row for row in shown.rows if row.kind == "assistant"]
    assert (row.thought, row.text, row.state) == ("hm, so", "", "streaming")
    assert row.thought_seconds == 0
    talk.add(ReplyDelta(request, 0, "Because."))
    row = talk.fold().rows[-1]
    assert (row.thought, row.text) == ("hm, so", "Because.")
    assert row.thought_seconds > 0
    answer: list[Part] = [Reasoning("hm, so", seconds=2.5), Text("Because.")]
    talk.add(MessageAssistant(answer, request), run="r1")
    row = talk.fold().rows[-1]
    assert (row.thought, row.thought_seconds) == ("hm, so", 2.5)


def test_reasoning_of_a_cut_off_answer_stays(talk: Talk) -> None:
    """Also without any text: the person has seen it. A model is not sent it."""
    talk.start("r1", talk.ask("why?"))
    parts: list[Part] = [Reasoning("hm", seconds=1.0)]
    request = talk.request("r1")
    talk.add(ReplyThought(request, 0, "hm"))
    talk.add(MessagePartial(parts, request), RunFinished("interrupted"), run="r1")
    row = talk.fold().rows[1]
    assert (row.state, row.thought, row.thought_seconds) == ("cut", "hm", 1.0)
    talk.ask("and now?")
    assert talk.request_texts() == ["why?", "and now?"]


def test_the_output_of_a_running_call_grows_and_its_end_may_be_replaced(
    talk: Talk,
) -> None:
    """The result replaces it. A row has the start and the duration of its call."""
    talk.start("r1", talk.ask("go"))
    message = talk.answer("r1", "", ToolCall("k", "shell", "{}"))
    talk.add(ToolOutput(message, "k", 0, "too early"), run="r1")
    talk.add(ToolStarted(message, "k", "shell", "once", 5.0), run="r1")
    row = talk.fold().rows[-1]
    assert (row.text, row.seconds) == ("", None)
    assert row.started > 0
    talk.add(ToolOutput(message, "k", 0, "one\n10 %"), run="r1")
    talk.add(ToolOutput(message, "k", 8, ", on it"), run="r1")
    shown, changes = Transcript(), list[Change]()
    for event in talk.journal.read(NAME):
        changes = shown.apply(event) or changes
    assert changes == [Grow(f"{message}:k", 8, ", on it")]
    talk.add(ToolOutput(message, "k", 4, "20 %"), run="r1")
    talk.add(ToolOutput(message, "k", 400, "no such place"), run="r1")
    (put,) = shown.apply(talk.journal.read(NAME)[-2])
    assert isinstance(put, Put)
    assert put.row.text == talk.fold().rows[-1].text == "one\n20 %"
    talk.add(ToolFinished(message, "k", "done", "all of it"), run="r1")
    row = talk.fold().rows[-1]
    assert (row.state, row.text) == ("done", "all of it")
    assert row.seconds is not None
    assert row.seconds > 0


def test_an_answer_has_the_time_of_its_request(talk: Talk) -> None:
    talk.start("r1", talk.ask("go"))
    request = talk.request("r1")
    asked_at = talk.journal.read(NAME)[-1].at
    talk.add(ReplyDelta(request, 0, "so"))
    assert talk.fold().rows[-1].started == asked_at
    talk.add(MessageAssistant([Text("so it is")], request), run="r1")
    row = talk.fold().rows[-1]
    assert row.started == asked_at
    assert row.at > asked_at
