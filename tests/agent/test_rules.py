"""Rules and the answer "always": what is asked no more, for whom, and what never becomes a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.config import Config
from tenax.config.rules import Rule, escape_pattern, propose
from tenax.errors import InvalidInput, Refused
from tenax.events import ApprovalAnswered, ApprovalAsked, ToolFinished
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.runtime.approvals import Question
from tenax.text import replace_hidden
from tenax.tools.base import Call as Where
from tenax.tools.base import Tool
from tenax.tools.files.edit import EditFile, WriteFile
from tenax.tools.gate import Allowed, Asks, Gate
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Shell
from tenax.tools.shell.sandbox import Sandbox
from tenax.tools.web.fetch import FetchPage
from tests.support.runs import (
    Hands,
    Note,
    NoteArgs,
    config_of,
    events_of,
    lines,
    settled,
    told,
    until,
)

ODD = "a[1]/b*?.txt"
EXACT, FOLDER = "a[[]1]/b[*][?].txt", "a[[]1]/**"


def write(path: str, content: str = "x") -> Reply:
    return Reply(calls=[ScriptedCall("write_file", {"path": path, "content": content})])


def note(text: str) -> Reply:
    return Reply(calls=[ScriptedCall("note", {"text": text})])


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def hands(config: Config, script: list[Reply | str], *tools: Any, **more: Any) -> Hands:
    limits = Limits(pause=0.01, retries=2)
    runtime = Hands(config, models=[ScriptedModel(script)], limits=limits, **more)
    return runtime.with_tools(*(tools or (WriteFile(), EditFile())))


async def asked(
    runtime: Runtime, nth: int = 1, name: str = ""
) -> tuple[str, int, ApprovalAsked]:
    """A conversation in which an approval waits, its input, and what is asked."""
    seq = 0
    if not name:
        name = await runtime.new()
        seq = (await runtime.submit(name, "Write it down.")).seq
    await until(runtime, name, "approval.asked", nth)
    await runtime.workers.idle(name)
    return name, seq, (await told(runtime, name, ApprovalAsked))[-1]


async def test_always_makes_a_rule_and_the_call_is_made(config: Config) -> None:
    """For a name with brackets and stars in it: this very file asks no more anywhere, a file that only looks like it does."""
    async with hands(
        config, [write(ODD), write(ODD, "y"), write("a1/bxy.txt"), "Done."]
    ) as runtime:
        name, seq, ask = await asked(runtime)
        (question,) = await runtime.questions(name)
        patterns = [EXACT, FOLDER.replace("/**", "/*.txt"), FOLDER]
        assert question.conversation == question.always == patterns
        assert question.notes == [
            "any content",
            "every .txt file in a[1], any content",
            "every file in a[1] and below, any content",
        ]
        await runtime.answer(name, ask.message, ask.call, "always", pattern=EXACT)
        _, _, second = await asked(runtime, 2, name)
        assert second.touches == "a1/bxy.txt"
        assert (config.tools_folder / ODD).read_text() == "y"
        await runtime.answer(name, second.message, second.call, "no")
        await settled(runtime, name, seq)
        (answered, _) = await told(runtime, name, ApprovalAnswered)
        assert (answered.answer, answered.pattern, answered.by) == (
            "always",
            EXACT,
            "local",
        )
        assert runtime.rules() == (Rule("allow", "write_file", EXACT),)
        _, _, elsewhere = await asked(runtime)
        assert elsewhere.touches == "a1/bxy.txt"


async def test_a_folder_may_be_allowed_with_what_is_in_it(config: Config) -> None:
    """With the folders below. Nothing beside it; a rule for one tool is none for another."""
    edit = Reply(
        calls=[ScriptedCall("edit_file", {"path": "n/a.txt", "old": "x", "new": "y"})]
    )
    async with hands(
        config, [write("n/a.txt"), write("n/deep/b.txt"), edit]
    ) as runtime:
        name, _, ask = await asked(runtime)
        await runtime.answer(name, ask.message, ask.call, "always", pattern="n/**")
        _, _, second = await asked(runtime, 2, name)
        assert second.name == "edit_file"
        assert (config.tools_folder / "n" / "deep" / "b.txt").exists()


async def test_files_of_one_kind_may_be_allowed_in_one_folder(config: Config) -> None:
    """In the conversation: a file in a folder below asks again."""
    async with hands(
        config, [write("n/a.txt"), write("n/b.txt"), write("n/deep/c.txt")]
    ) as runtime:
        name, _, ask = await asked(runtime)
        await runtime.answer(
            name, ask.message, ask.call, "conversation", pattern="n/*.txt"
        )
        _, _, second = await asked(runtime, 2, name)
        assert second.touches == "n/deep/c.txt"
        assert (config.tools_folder / "n" / "b.txt").exists()


@pytest.mark.parametrize("pattern", ["", "other.txt", "a[1]/b*?.txt", "a/*", "\u202e*"])
async def test_a_pattern_that_does_not_fit_this_call_is_refused(
    config: Config, pattern: str
) -> None:
    """Nothing is stored, in the file or in the journal, and the question stays open."""
    async with hands(config, [write(ODD)]) as runtime:
        name, _, ask = await asked(runtime)
        with pytest.raises(
            InvalidInput, match=r"does not fit what this call touches|cannot be"
        ):
            await runtime.answer(name, ask.message, ask.call, "always", pattern=pattern)
        assert runtime.rules() == ()
        assert await told(runtime, name, ApprovalAnswered) == []
        assert len(await runtime.questions(name)) == 1


async def test_a_file_that_cannot_be_written_allows_this_call_only(
    config: Config,
) -> None:
    """The answer is stored without its rule, as after a crash in between. It is said that there is none."""
    async with hands(config, [write("a.txt"), write("a.txt"), "Done."]) as runtime:
        name, _, ask = await asked(runtime)
        config.file.write_text('rules = [{verdict = "deny", tool = "x"}]')
        with pytest.raises(
            Refused, match=r"This call is allowed, but .* cannot edit .* safely"
        ):
            await runtime.answer(name, ask.message, ask.call, "always", pattern="a.txt")
        await asked(runtime, 2, name)
        assert (config.tools_folder / "a.txt").exists()
        assert runtime.rules() == (Rule("deny", "x"),)


async def test_an_always_that_comes_too_late_makes_no_rule(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else says no after it was looked at, and before it is stored."""
    async with hands(config, [write("a.txt"), "Done."]) as runtime:
        name, seq, ask = await asked(runtime)
        append, said_no = runtime.journal.append, list[ApprovalAnswered]()

        async def append_no_first(conversation: str, events: Any, **how: Any) -> Any:
            if not said_no and isinstance(events[0], ApprovalAnswered):
                said_no.append(
                    msgspec.structs.replace(events[0], answer="no", pattern="")
                )
                await append(conversation, said_no, **how)
            return await append(conversation, events, **how)

        monkeypatch.setattr(runtime.journal, "append", append_no_first)
        with pytest.raises(InvalidInput, match="answered already"):
            await runtime.answer(name, ask.message, ask.call, "always", pattern="a.txt")
        assert (len(said_no), runtime.rules()) == (1, ())
        runtime.workers.wake(name)
        await settled(runtime, name, seq)
        assert not (config.tools_folder / "a.txt").exists()


async def test_an_answer_is_not_replayed_for_other_arguments(config: Config) -> None:
    """The same answer again is refused and makes no rule; the next call, with other arguments, asks."""
    async with hands(config, [write("a.txt"), write("b.txt"), "Done."]) as runtime:
        name, _, ask = await asked(runtime)
        await runtime.answer(name, ask.message, ask.call, "once")
        _, _, second = await asked(runtime, 2, name)
        for answer in ("once", "always"):
            with pytest.raises(InvalidInput, match="answered already"):
                await runtime.answer(
                    name, ask.message, ask.call, answer, pattern="a.txt"
                )
        with pytest.raises(InvalidInput, match="does not fit"):
            await runtime.answer(
                name, second.message, second.call, "always", pattern="a.txt"
            )
        assert runtime.rules() == ()
        assert not (config.tools_folder / "b.txt").exists()


async def test_only_the_local_user_makes_rules_and_only_theirs_allow(
    config: Config,
) -> None:
    """Another is offered none and refused one, asks as before whatever the rules allow, and heeds what they forbid."""
    async with hands(
        config, [write("a.txt"), write("b.txt"), "Done."], user="berta"
    ) as berta:
        name, seq, ask = await asked(berta)
        assert await berta.questions(name) == [
            Question(
                ask.message,
                ask.call,
                ["a.txt", "*.txt"],
                [],
                [
                    "any content",
                    "every .txt file in this folder, any content",
                ],
                "--- a.txt\n+++ a.txt\n@@ -0,0 +1,1 @@\n+x\n\\ No newline at end of file",
                "changes a file",
            )
        ]
        with pytest.raises(Refused, match="chooses its model"):
            await berta.use_model("other")
        with pytest.raises(Refused, match="Only the person who runs this Tenax"):
            await berta.answer(name, ask.message, ask.call, "always", pattern="a.txt")
        for change in (berta.add_rule, berta.remove_rule):
            with pytest.raises(Refused, match="Only the person who runs this Tenax"):
                await change(Rule("allow", "*"))
        async with hands(config, ["Hm."]) as owner:
            with pytest.raises(Refused):
                await owner.answer(name, ask.message, ask.call, "once")
            await owner.add_rule(Rule("allow", "*"))
            await owner.add_rule(Rule("deny", "write_file", "b.*"))
        assert berta.rules() == (Rule("deny", "write_file", "b.*"),)
        await berta.answer(name, ask.message, ask.call, "once")
        await settled(berta, name, seq)
        outcomes = [each.outcome for each in await told(berta, name, ToolFinished)]
        assert outcomes == ["done", "denied"]
        again, _, _ = await asked(berta)
        assert len(await berta.questions(again)) == 1


async def test_a_rule_holds_in_a_run_that_is_under_way(
    config: Config, tmp_path: Path
) -> None:
    """Another process adds it between two calls; what is denied wins over what the conversation allowed."""
    async with hands(
        config, [note("milk"), note("eggs"), "Done."], Note(tmp_path / "n", asks=True)
    ) as runtime:
        name, seq, ask = await asked(runtime)
        async with hands(config, ["Hm."]) as other:
            await other.add_rule(Rule("deny", "note", "eggs"))
        await runtime.answer(name, ask.message, ask.call, "conversation")
        await settled(runtime, name, seq)
        assert [line.split()[-1] for line in lines(tmp_path / "n")] == ["milk"]
        done = (await told(runtime, name, ToolFinished))[-1]
        assert (done.outcome, done.text) == (
            "denied",
            "A rule forbids note for this: eggs",
        )


async def test_what_is_forbidden_after_it_was_asked_is_not_done(config: Config) -> None:
    """Though the person says yes."""
    async with hands(config, [write("a.txt"), "Then not."]) as runtime:
        name, seq, ask = await asked(runtime)
        await runtime.add_rule(Rule("deny", "*", "a.txt"))
        await runtime.answer(name, ask.message, ask.call, "once")
        await settled(runtime, name, seq)
        assert not (config.tools_folder / "a.txt").exists()


class Careful(Note):
    """Asks every time."""

    def always_asks(self, args: NoteArgs) -> bool:
        return True


@pytest.mark.parametrize("how", ["conversation", "always", "rule"])
@pytest.mark.parametrize("no_first", [True, False])
async def test_a_no_stands_whatever_is_allowed_besides(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: str, no_first: bool
) -> None:
    """Of two calls that wait, one is allowed with a pattern that matches the other one too, which is denied."""
    calls = [
        ScriptedCall("write_file", {"path": f"src/{each}", "content": "x"}, id=each)
        for each in ("a", "b")
    ]
    async with hands(config, [Reply(calls=calls), "Done."]) as runtime:
        name, seq, ask = await asked(runtime, 2)

        async def allow() -> None:
            if how == "rule":
                await runtime.add_rule(Rule("allow", "write_file", "src/*"))
                await runtime.answer(name, ask.message, "a", "once")
            else:
                await runtime.answer(
                    name,
                    ask.message,
                    "a",
                    "always" if how == "always" else "conversation",
                    pattern="src/**",
                )

        if not no_first:
            # the run goes on when both are answered
            with monkeypatch.context() as patch:
                patch.setattr(runtime.workers, "wake", lambda _name: None)
                await allow()
        await runtime.answer(name, ask.message, "b", "no")
        await runtime.workers.idle(name)
        if no_first:
            await allow()
        await settled(runtime, name, seq)
        outcomes = {
            each.call: each.outcome for each in await told(runtime, name, ToolFinished)
        }
        assert outcomes == {"a": "done", "b": "denied"}
        assert not (config.tools_folder / "src" / "b").exists()


async def test_what_asks_every_time_can_be_allowed_once_only(
    config: Config, tmp_path: Path
) -> None:
    """Neither for the conversation nor for good is offered or taken, and no rule stands for it."""
    careful = Careful(tmp_path / "n", asks=True)
    async with hands(config, [note("milk"), note("milk"), "Done."], careful) as runtime:
        await runtime.add_rule(Rule("allow", "*"))
        name, _, ask = await asked(runtime)
        assert await runtime.questions(name) == [
            Question(ask.message, ask.call, [], [])
        ]
        for answer in ("conversation", "always"):
            with pytest.raises(Refused, match=r"once only|for good"):
                await runtime.answer(
                    name, ask.message, ask.call, answer, pattern="milk"
                )
        await runtime.answer(name, ask.message, ask.call, "once")
        await asked(runtime, 2, name)
        assert len(lines(tmp_path / "n")) == 1
        assert runtime.rule_for(name, "note", '{"text":"milk"}') is None


async def test_a_tour_asks_whatever_the_rules_allow(config: Config) -> None:
    """It shows what an approval is; and no rule is made in it."""
    async with Runtime(config) as runtime:
        await runtime.add_rule(Rule("allow", "*"))
        name = await runtime.new(source="tour")
        await runtime.submit(name, "Show me.")
        await until(runtime, name, "approval.asked")
        await runtime.workers.idle(name)
        (question,) = await runtime.questions(name)
        assert question.conversation
        assert question.always == []


class Lines(Note):
    """Takes command lines, as the shell does."""

    line = True

    def touches(self, args: NoteArgs, call: Where) -> str:
        return f"in the sandbox: {args.text}"


class Ready(Sandbox):
    """A sandbox that is there, wherever the test runs."""

    def why_not(self) -> str:
        return ""


LIST = "in the sandbox: ls -s"


async def answered_here(
    runtime: Hands, pattern: str = "", stored: ApprovalAnswered | None = None
) -> tuple[str, list[str]]:
    """Answer the first question for the conversation: its name, and what is asked there besides, once all is done."""
    name, seq, ask = await asked(runtime)
    if stored is None:
        await runtime.answer(
            name, ask.message, ask.call, "conversation", pattern=pattern
        )
    else:
        run = (await runtime.workers.turns(name)).run
        assert run is not None
        answer = msgspec.structs.replace(stored, message=ask.message, call=ask.call)
        await runtime.journal.append(name, [answer], run=run.id)
        runtime.workers.wake(name)
    for _ in range(20):
        await settled(runtime, name, seq)
        open_questions = await runtime.questions(name)
        if not open_questions:
            break
        for question in open_questions:
            await runtime.answer(name, question.message, question.call, "no")
    return name, [each.touches for each in await told(runtime, name, ApprovalAsked)][1:]


@pytest.mark.parametrize(
    ("pattern", "calls", "asks_again"),
    [
        ("", ["ls -s", "ls -s"], []),
        ("", ["ls -s", "rm -rf secret", "ls"], ["rm -rf secret", "ls"]),
        ("in the sandbox: ls *", ["ls -s", "ls --size -a"], []),
        (
            "in the sandbox: ls *",
            ["ls -s", "git -c alias.x='!rm x' x", "ls -s; rm x", "ls $(rm x)",
             "ls -s && ls -a", "ls -s\nrm x", "lsx"],
            ["git -c alias.x='!rm x' x", "ls -s; rm x", "ls $(rm x)",
             "ls -s && ls -a", "ls -s\ufffdrm x", "lsx"],
        ),
        ("", ["ls a && ls b", "ls a && ls b", "ls a", "ls a && ls c"], ["ls a", "ls a && ls c"]),
    ],
)  # fmt: skip
async def test_a_yes_for_the_conversation_allows_what_its_pattern_matches(
    config: Config,
    tmp_path: Path,
    pattern: str,
    calls: list[str],
    asks_again: list[str],
) -> None:
    """By default the exact call. Every other command line asks, and so does a second command in the same line."""
    tool = Lines(tmp_path / "n", name="shell", asks=True)
    script = [Reply(calls=[ScriptedCall("shell", {"text": text})]) for text in calls]
    async with hands(config, [*script, "Done."], tool) as runtime:
        name, again = await answered_here(runtime, pattern)
        assert again == [f"in the sandbox: {text}" for text in asks_again]
        assert len(lines(tmp_path / "n")) == len(calls) - len(asks_again)
        (first, *_) = await told(runtime, name, ApprovalAnswered)
        assert first.pattern == (
            pattern or escape_pattern(f"in the sandbox: {calls[0]}")
        )


@pytest.mark.parametrize("edit", ["undo", "clear"])
async def test_what_was_allowed_is_undone_and_comes_back(
    config: Config, tmp_path: Path, edit: str
) -> None:
    """With the answer that allowed it, also for who reads the journal again."""
    allows = lambda turns: [rule.touches for rule in turns.allowed_rules]  # noqa: E731
    async with hands(
        config, [note("milk"), "Done."], Note(tmp_path / "n", asks=True)
    ) as runtime:
        name, _ = await answered_here(runtime)
        assert allows(await runtime.workers.turns(name)) == ["milk"]
        await (runtime.undo if edit == "undo" else runtime.clear)(name)
        assert allows(await runtime.workers.turns(name)) == []
        taken = (
            await events_of(
                runtime, name, "conversation.rewound", "conversation.cleared"
            )
        )[-1].seq
        await runtime.restore(name, taken)
    async with hands(
        config, [note("milk"), "Done."], Note(tmp_path / "n", asks=True)
    ) as runtime:
        assert allows(await runtime.workers.turns(name)) == ["milk"]
        await (runtime.undo if edit == "undo" else runtime.clear)(name)
        await runtime.submit(name, "Once more.")
        await asked(runtime, 2, name)


@pytest.mark.parametrize("undone", [False, True])
async def test_what_was_allowed_is_erased_with_the_answer_that_asked(
    config: Config, tmp_path: Path, undone: bool
) -> None:
    """Its text is in no event any more, and the process that knew it asks again, as a new one does."""
    async with hands(
        config, [note("milk"), "Done."], Note(tmp_path / "n", asks=True)
    ) as runtime:
        name, _ = await answered_here(runtime)
        (answer,) = await told(runtime, name, ApprovalAnswered)
        (result,) = await events_of(runtime, name, "tool.finished")
        taken = await runtime.undo(name) if undone else 0
        assert (await runtime.erase(name, [answer.message, result.seq])).scrubbed
        if undone:
            await runtime.restore(name, taken)
        assert b"milk" not in b"".join(
            fact.body or b"" for fact in await runtime.journal.read(name)
        )
        assert (await runtime.workers.turns(name)).allowed_rules == []


async def test_a_stored_yes_without_a_pattern_is_good_for_its_own_call(
    config: Config, tmp_path: Path
) -> None:
    """Earlier versions stored the answer so, and it allowed the whole tool."""
    stored = ApprovalAnswered(0, "", "conversation", "local")
    script: list[Reply | str] = [note("milk"), note("milk"), note("eggs"), "Done."]
    async with hands(config, script, Note(tmp_path / "n", asks=True)) as runtime:
        _, again = await answered_here(runtime, stored=stored)
        assert again == ["milk", "eggs"]
        assert [line.split()[-1] for line in lines(tmp_path / "n")] == ["milk"]


@pytest.mark.parametrize(
    "pattern", ["*", "in the sandbox: git *", "in the sandbox: *", "ls *"]
)
async def test_only_an_offered_pattern_is_allowed_for_the_conversation(
    config: Config, tmp_path: Path, pattern: str
) -> None:
    """Nothing is stored, and the question stays open."""
    script: list[Reply | str] = [
        Reply(calls=[ScriptedCall("shell", {"text": "ls -s"})]),
        "Done.",
    ]
    async with hands(
        config, script, Lines(tmp_path / "n", name="shell", asks=True)
    ) as runtime:
        name, _, ask = await asked(runtime)
        (question,) = await runtime.questions(name)
        assert (
            question.conversation == question.always == [LIST, "in the sandbox: ls *"]
        )
        with pytest.raises(InvalidInput, match="was not offered for this call"):
            await runtime.answer(
                name, ask.message, ask.call, "conversation", pattern=pattern
            )
        assert await told(runtime, name, ApprovalAnswered) == []
        assert await runtime.questions(name) == [question]


@pytest.mark.parametrize(
    ("tool", "first", "others"),
    [
        (WriteFile(), {"path": "a.txt", "content": "x"}, [{"path": "b.txt", "content": "x"}]),
        (EditFile(), {"path": "a.txt", "old": "x", "new": "y"}, [{"path": "b", "old": "x", "new": "y"}]),
        (FetchPage(), {"url": "http://a.example/x?a=*"}, [{"url": f"http://{each}"} for each in (
            "b.example/x?a=*", "a.example:8/x?a=*", "a.example/y", "a.example/x?a=b", "a.example/xya=*")]),
        (Shell(Ready([]), Redact()), {"command": "echo harmless"},
         [{"command": "rm -rf secret"}, {"command": "echo harmless", "network": True}]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_every_tool_that_asks_is_allowed_by_its_exact_call(
    tool: Tool[Any], first: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    """The first pattern that is offered lets no other path, address, command, network or argument through."""
    gate, where = Gate([tool]), Where("local", "c", 1, "1", Path("/"))

    def weigh(arguments: dict[str, Any], *rules: Rule) -> Any:
        return gate.weigh(
            tool.name, msgspec.json.encode(arguments).decode(), where, allowed=rules
        )

    rule = Rule("allow", escape_pattern(tool.name), weigh(first).patterns[0])
    assert isinstance(weigh(first, rule), Allowed)
    assert [type(weigh(other, rule)) for other in others] == [Asks] * len(others)


def test_the_address_comes_first_and_a_pattern_for_hosts_is_about_hosts() -> None:
    """The host is the second pattern. What a pattern for hosts matches elsewhere in an address allows nothing."""
    gate, where = Gate([FetchPage()]), Where("local", "c", 1, "1", Path("/"))

    def weigh(url: str, *patterns: str) -> Any:
        rules = [Rule("allow", "web_fetch", pattern) for pattern in patterns]
        return gate.weigh(
            "web_fetch",
            msgspec.json.encode({"url": url}).decode(),
            where,
            allowed=rules,
        )

    asks = weigh("https://a.example/x")
    assert asks.patterns == ["https://a.example/x", "a.example"]
    assert asks.rule == Rule("allow", "web_fetch", "https://a.example/x")
    assert isinstance(weigh("https://a.example/y", "a.example"), Allowed)
    assert isinstance(
        weigh(
            "https://b.test/a.example", "*a.example", "https://*", "https://b.test/*"
        ),
        Asks,
    )
    assert weigh(f"https://a.example/{'x' * 2000}").patterns == []


async def test_what_a_pattern_leaves_open_is_said(config: Config) -> None:
    """Nothing for the whole address, and for the host that any page is allowed."""
    fetch = Reply(calls=[ScriptedCall("web_fetch", {"url": "https://a.example/x"})])
    async with hands(config, [fetch, "Done."], FetchPage()) as runtime:
        name, _, ask = await asked(runtime)
        (question,) = await runtime.questions(name)
        assert question.annotate_patterns(question.conversation) == [
            "https://a.example/x",
            "a.example (any page)",
        ]
        await runtime.answer(
            name, ask.message, ask.call, "always", pattern="https://a.example/x"
        )
        assert runtime.rules() == (Rule("allow", "web_fetch", "https://a.example/x"),)


@pytest.mark.parametrize(
    ("touches", "wider"),
    [
        ("in the sandbox: ls -l a", ["in the sandbox: ls *"]),
        ("in the sandbox: ls", ["in the sandbox: ls *"]),
        ("in the sandbox: wc -l", ["in the sandbox: wc *"]),
        ("in the sandbox: git log -p", ["in the sandbox: git log *"]),
        ("in the sandbox: git status", ["in the sandbox: git status *"]),
        ("in the sandbox: npm test -- -k x", ["in the sandbox: npm test *"]),
        ("in the sandbox: npm run build", ["in the sandbox: npm run build *"]),
        ("in the sandbox: cargo test", ["in the sandbox: cargo test *"]),
        *((f"in the sandbox: {command}", []) for command in (
            "git", "git -C /x status", "git -c alias.x=!sh x", "git rebase -x sh", "git bisect run sh", "git\tstatus", "git  status",
            "./git status", "GIT_PAGER=sh git log", "npm exec x", "npm run", "npm run ../x", "cargo run", "uv run x", "make test",
            "sh -c ls", "bash x", "python -c 1", "env ls", "sudo ls", "xargs ls", "find . -delete", "find . -exec rm {} +", "ssh x ls",
            "time ls", "nohup ls", "lsof x", " ls x", "\\ls x", "'ls' x",
            "ls x; rm x", "ls x && rm x", "ls x || rm x", "ls x & rm x", "ls $x", "ls $(rm x)", "ls `x`", "ls x > y", "ls < y", "ls x | sh",
            "cat <(rm x)", "ls x\nrm x")),
    ],
)  # fmt: skip
def test_a_wider_pattern_is_offered_for_few_commands_only(
    touches: str, wider: list[str]
) -> None:
    """Those whose arguments cannot name another command, and for one command in a line."""
    assert list(propose(touches, paths=False, line=True)) == [
        escape_pattern(touches),
        *wider,
    ]


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("git status", True), ("git status -s", True), ("git status a b/c", True), ("git status 'a b'", True),
        *((command, False) for command in (
            "git", "git statusx", "git stash", "git -c x=y status", "./git status", "git  status",
            "git status; rm x", "git status ;rm x", "git status && rm x", "git status || rm x", "git status & rm x", "git status | sh",
            "git status > x", "git status >> x", "git status < x", "git status $(rm x)", "git status `rm x`", "git status <(rm x)",
            "git status ${x}", "git status\nrm x", "git status\rrm x", "git status \u2028rm x", "git status (rm x)",
            "rm x; git status a", "sh -c 'git status a'", "x=git status a")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pattern", ["in the sandbox: git status *"])
def test_a_pattern_with_any_arguments_allows_no_second_command(
    pattern: str, command: str, *, allowed: bool
) -> None:
    """Nor a redirection, a substitution, another program of the same name, or the same command with network."""
    rule = Rule("allow", "shell", pattern)
    line = replace_hidden(f"in the sandbox: {command}")
    assert rule.matches("shell", line, line=True) is allowed
    for where in ("with network", "WITHOUT A SANDBOX"):
        assert not rule.matches("shell", f"{where}: {command}", line=True)


def editing(path: str, old: str, new: str) -> Reply:
    return Reply(
        calls=[ScriptedCall("edit_file", {"path": path, "old": old, "new": new})]
    )


async def test_an_edit_is_asked_for_with_its_diff(config: Config) -> None:
    """The diff is that of this moment: it follows the file, and is empty if the edit cannot succeed."""
    async with hands(config, [editing("a.txt", "two", "2"), "Done."]) as runtime:
        file = config.tools_folder / "a.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one\ntwo\nthree\n")
        name, seq, ask = await asked(runtime)
        (question,) = await runtime.questions(name)
        assert question.diff.splitlines()[2:] == ["@@ -1,3 +1,3 @@", " one", "-two", "+2", " three"]  # fmt: skip
        file.write_text("two\n")
        (question,) = await runtime.questions(name)
        assert question.diff.splitlines()[2:] == ["@@ -1,1 +1,1 @@", "-two", "+2"]
        file.write_text("nothing of the kind\n")
        (question,) = await runtime.questions(name)
        assert question.diff == ""
        assert file.read_text() == "nothing of the kind\n"
        await runtime.answer(name, ask.message, ask.call, "no")
        await settled(runtime, name, seq)


async def test_a_long_diff_is_cut_and_says_so(config: Config) -> None:
    content = "".join(f"line {n} of many\n" for n in range(3000))
    async with hands(config, [write("long.txt", content), "Done."]) as runtime:
        name, _, _ = await asked(runtime)
        (question,) = await runtime.questions(name)
        assert len(question.diff) < 20_100
        assert question.diff.endswith("characters of the diff are not shown ...]")


async def test_a_file_that_may_not_be_read_has_no_diff(tmp_path: Path) -> None:
    """The approval must not show what a rule forbids to read."""
    (tmp_path / "secret.txt").write_text("old secret")
    forbidden = Rule("deny", "read_file", "secret.txt")
    args = WriteFile.args(path="secret.txt", content="new")
    call = Where("", "c", 1, "k", tmp_path)
    assert await WriteFile(lambda: [forbidden]).preview(args, call) == ""
    assert "-old secret" in await WriteFile().preview(args, call)


async def test_the_model_reads_why_a_person_said_no(config: Config) -> None:
    """The reason is stored with the answer, and is the result of the call. Only a no has a reason, and it is short."""
    async with hands(config, [write("a.txt"), "Sorry."]) as runtime:
        name, seq, ask = await asked(runtime)
        where = (name, ask.message, ask.call)
        with pytest.raises(InvalidInput, match="Only a no"):
            await runtime.answer(*where, "once", why="because")
        with pytest.raises(InvalidInput, match="at most 2,000"):
            await runtime.answer(*where, "no", why="x" * 2001)
        await runtime.answer(*where, "no", why=" Use b.txt instead. ")
        await settled(runtime, name, seq)
        (answered,) = await told(runtime, name, ApprovalAnswered)
        assert (answered.answer, answered.why) == ("no", "Use b.txt instead.")
        (finished,) = await told(runtime, name, ToolFinished)
        assert finished.outcome == "denied"
        assert finished.text == "The person said no, and why: Use b.txt instead."
        assert not (config.tools_folder / "a.txt").exists()


@pytest.mark.parametrize("answer", ["once", "no"])
async def test_all_approvals_of_an_answer_are_answered_at_once(
    config: Config, answer: str
) -> None:
    """One append; not those of a later answer, which the person has not seen."""
    calls = [ScriptedCall("write_file", {"path": path, "content": "x"}) for path in "abc"]  # fmt: skip
    async with hands(config, [Reply(calls=calls), write("d"), "Done."]) as runtime:
        name, seq, ask = await asked(runtime, 3)
        assert len(await runtime.questions(name)) == 3
        await runtime.answer(name, ask.message, "call_1_2", "no")
        given = await runtime.answer_all(name, ask.message, answer)  # type: ignore[arg-type]
        assert given == 2
        _, _, later = await asked(runtime, 4, name)
        with pytest.raises(InvalidInput, match="answered already"):
            await runtime.answer_all(name, ask.message, answer)  # type: ignore[arg-type]
        assert len(await runtime.questions(name)) == 1
        made = [path for path in "abcd" if (config.tools_folder / path).exists()]
        assert made == (["a", "c"] if answer == "once" else [])
        await runtime.answer(name, later.message, later.call, "no")
        await settled(runtime, name, seq)


def test_a_badge_says_what_a_call_can_reach() -> None:
    """Also honestly that there is no sandbox."""
    shell = Shell(Sandbox(), Redact())
    bare = bool(Sandbox().why_not())
    for network, said in ((False, "sandbox, no network"), (True, "sandbox, network")):
        args = shell.args(command="ls", network=network)
        assert shell.badge(args) == (
            "no sandbox: all files and the network" if bare else said
        )
    assert FetchPage().badge(FetchPage.args(url="https://a.example/")) == "network"
