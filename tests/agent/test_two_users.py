"""Two users of one Tenax: neither reaches what the other has, by any tool, nor in any other way that a turn has."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tenax import assembly
from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.clock import SystemClock
from tenax.concurrency import OWN_THREADS_MAX, run_in_own_thread
from tenax.config import Config
from tenax.config.schema import Memory
from tenax.errors import InvalidInput, NoSuchConversation, Refused
from tenax.events import (
    ApprovalAsked,
    ContextOpened,
    FileChange,
    FilesChanged,
    FileState,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.journal import LOCAL_USER
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel
from tenax.parts import File, Text
from tenax.runtime.runtime import open_store
from tenax.schedules.rows import Schedules
from tenax.tools.base import Call as Made
from tenax.tools.base import Tool
from tenax.tools.folders import folder_of
from tenax.tools.shell import sandbox
from tests.contract import mcp_server
from tests.support.bubblewrap import need_bwrap
from tests.support.runs import Hands, asked, config_of, told

SECONDS = 60.0
BOB = "bob"
CALLS_A_TURN = 9
WORDS = {LOCAL_USER: "aardvark", BOB: "wombat"}
HARMLESS = {"ask", "todo", "web_fetch"}
"""Tools that touch nothing that anybody has: a question, a list in the conversation, a page of the web."""
SERVER = f"""
[mcp.own]
command = ["{sys.executable}", "{mcp_server.__file__}"]
"""
SETTINGS = """
[[rules]]
verdict = "allow"
tool = "*"

[[rules]]
verdict = "deny"
tool = "read_file"
touches = "denied.txt"
"""


class Person:
    """One user with a runtime, and one of everything: each holds the word that the other may never see."""

    def __init__(
        self, config: Config, runtime: Runtime, model: ScriptedModel, user: str
    ) -> None:
        self.runtime, self.model, self.user = runtime, model, user
        self.word, self.folder = WORDS[user], folder_of(config, user)
        self.said = f"My word is {self.word}."
        self.talk, self.turn, self.blob, self.schedule, self.process, self.fact = (
            "",
            "",
            "",
            "",
            "",
            "",
        )

    async def do(self, *calls: ScriptedCall) -> tuple[str, list[ToolFinished]]:
        """Let the model make these calls in a new conversation, allow each that is asked for; what came of them."""
        self.model.script = Script(
            [*(Reply(calls=[call]) for call in calls), Reply("Done.")]
        )
        name = await self.runtime.new()
        seq = (await self.runtime.submit(name, "Go.")).seq
        async with asyncio.timeout(SECONDS):
            while True:
                await self.runtime.finished(name, seq)
                await self.runtime.workers.idle(name)
                questions = await self.runtime.questions(name)
                if not questions:
                    break
                for question in questions:
                    await self.runtime.answer(
                        name, question.message, question.call, "once"
                    )
        return name, await told(self.runtime, name, ToolFinished)

    async def settle_in(self) -> None:
        """Get one of everything."""
        said = self.said
        skill = self.folder / ".tenax" / "skills" / "one"
        skill.mkdir(parents=True, exist_ok=True)
        (skill / "SKILL.md").write_text(
            f"---\nname: skill-{self.user}\ndescription: {said}\n---\n{said}\n"
        )
        (self.folder / "AGENTS.md").write_text(f"{said}\n")
        for name in ("secret.txt", f"only-{self.user}.txt"):
            (self.folder / name).write_text(f"{said}\n")
        self.talk, (wrote, began) = await self.do(
            ScriptedCall("write_file", {"path": "note.txt", "content": said}),
            ScriptedCall("shell_start", {"command": f"echo {said}; sleep 300"}),
        )
        assert (wrote.outcome, began.outcome) == ("done", "done"), (wrote, began)
        self.process = began.text.removeprefix("It runs as ").rstrip(".")
        (changed,) = await self.runtime.changes(self.talk)
        assert [file.path for file in changed.files] == ["note.txt"]
        self.turn = changed.turn
        part = await self.runtime.attachments.put("plan.txt", said.encode())
        assert isinstance(part, File)
        self.blob = part.blob
        self.fact = (await self.runtime.memory.add(said, by="person"))[0].id
        made = await self.runtime.schedules.add(
            said, "every day at 8", conversation=self.talk, zone="UTC"
        )
        self.schedule = made.id

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(each.relative_to(self.folder)): each.read_bytes() for each in found}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    need_bwrap()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(SETTINGS)
    return config_of(f"sqlite:///{home / 'tenax.db'}", home)


@asynccontextmanager
async def people(config: Config) -> AsyncIterator[dict[str, Person]]:
    """The owner and Bob, each with one of everything."""
    async with AsyncExitStack() as undo:
        journal = None
        found: dict[str, Person] = {}
        for user in (LOCAL_USER, BOB):
            model = ScriptedModel([])
            mine = None if journal is None else journal.of(user)
            limits = Limits(pause=0.01)
            runtime = Runtime(
                config,
                user=user,
                journal=mine,
                models=[model],
                limits=limits,
                serves=False,
            )
            await undo.enter_async_context(runtime)
            journal = journal or runtime.journal.journal
            found[user] = Person(config, runtime, model, user)
            await found[user].settle_in()
        yield found


def tries(config: Config, other: Person) -> list[ScriptedCall]:
    """Every way that a tool has to the other's data."""
    data = config.directories.data
    up = "../../../.."
    paths = [f"only-{other.user}.txt", str(other.folder / "secret.txt"), f"{up}/work/secret.txt", "users/bob/files/secret.txt",
             "../users/bob/files/secret.txt", f".tenax/skills/{other.user}/SKILL.md"]  # fmt: skip
    places = [
        other.folder,
        other.folder.parent,
        data / "files",
        data / "users",
        data,
        data / "tenax.db",
    ]
    shown = " ".join(str(each) for each in places)
    look = f"cat {shown} {other.folder}/*; ls -laR {shown}; grep -rs 'My word' {shown} /tmp /home /root /srv /var; true"
    break_in = f"echo mine > {other.folder}/secret.txt; mkdir -p {other.folder}; rm -rf {other.folder}; ln -s {other.folder} way; cat way/secret.txt"
    return [
        *(ScriptedCall("read_file", {"path": path}) for path in paths),
        *(ScriptedCall("write_file", {"path": path, "content": "mine"}) for path in paths),
        *(ScriptedCall("edit_file", {"path": path, "old": "word", "new": "mine"}) for path in paths),
        *(ScriptedCall("find_files", {"pattern": "**", "in": place}) for place in ("", up, str(other.folder))),
        *(ScriptedCall("search_files", {"pattern": "My word", "in": place}) for place in ("", up, str(other.folder))),
        ScriptedCall("shell", {"command": look}),
        ScriptedCall("shell", {"command": break_in}),
        ScriptedCall("read_file", {"path": "way/secret.txt"}),
        ScriptedCall("write_file", {"path": "way/secret.txt", "content": "mine"}),
        ScriptedCall("shell_start", {"command": break_in}),
        ScriptedCall("shell_read", {"id": other.process}),
        ScriptedCall("shell_stop", {"id": other.process}),
        *(ScriptedCall("read_skill", {"name": f"skill-{other.user}", "file": file}) for file in ("SKILL.md", "../x")),
        ScriptedCall("schedule", {"action": "list"}),
        ScriptedCall("schedule", {"action": "remove", "schedule": other.schedule}),
        ScriptedCall("memory", {"action": "search", "text": "word"}),
        ScriptedCall("memory", {"action": "remove", "fact": other.fact}),
        ScriptedCall("memory", {"action": "replace", "fact": other.fact, "text": "mine now"}),
        ScriptedCall("search_conversations", {"words": "word"}),
        ScriptedCall("read_file", {"path": str(other.folder / "AGENTS.md")}),
        ScriptedCall("delegate", {"task": "Read it."}),
    ]  # fmt: skip


@pytest.mark.parametrize("user", [LOCAL_USER, BOB])
async def test_no_tool_of_one_user_reaches_anything_of_the_other(
    config: Config, user: str
) -> None:
    """Every tool there is, with the other's paths, ids and names: nothing is seen, nothing of it changes."""
    async with people(config) as both:
        me, other = both[user], both[BOB if user == LOCAL_USER else LOCAL_USER]
        calls = tries(config, other)
        tools = {tool.name for tool in me.runtime.agent.gate.tools()}
        assert tools == {call.name for call in calls} | HARMLESS, (
            "a new tool is tried here too"
        )
        files, head = other.files(), await other.runtime.journal.head(other.talk)
        *others, read, delegate = calls
        turns = [
            others[n : n + CALLS_A_TURN] for n in range(0, len(others), CALLS_A_TURN)
        ]
        # what its model does, the sub-agent does too
        for some in (*turns, [read, delegate]):
            name, results = await me.do(*some)
            assert len(results) == len(some)
            for call, result in zip(some, results, strict=True):
                assert other.word not in result.text, (call, result)
                assert "do not fit" not in result.text, (call, result)
        (child,) = await me.runtime.journal.delegated(name)
        assert [
            result.outcome for result in await told(me.runtime, child, ToolFinished)
        ] == ["failed"] * 2
        assert not [body for body in me.model.bodies if other.word.encode() in body]
        assert not [
            path
            for path, content in me.files().items()
            if other.word.encode() in content
        ]
        assert other.files() == files
        assert await other.runtime.journal.head(other.talk) == head
        assert [
            element.schedule.id for element in await other.runtime.schedules.all()
        ] == [other.schedule]
        assert [hit.text for hit in await other.runtime.memory.search("word")] == [
            other.said
        ]


@pytest.mark.parametrize("user", [LOCAL_USER, BOB])
async def test_a_prompt_holds_instructions_and_skills_of_ones_own_folder(
    config: Config, user: str
) -> None:
    """The first request of each has the own word, out of the file and out of the skill; never the other's."""
    async with people(config) as both:
        me = both[user]
        await me.do(ScriptedCall("read_skill", {"name": f"skill-{user}"}))
        first = next(body for body in me.model.bodies)
        assert f"- skill-{user}: {me.said}".encode() in first
        for name, word in WORDS.items():
            assert (word.encode() in first) == (name == user)


@pytest.mark.parametrize("user", [LOCAL_USER, BOB])
async def test_what_a_turn_left_belongs_to_its_user(config: Config, user: str) -> None:
    """Changes, undo for files, attachments, schedules: with the ids of the other there is nothing, and nothing moves."""
    async with people(config) as both:
        me, other = both[user], both[BOB if user == LOCAL_USER else LOCAL_USER]
        mine = me.runtime
        for refused in (mine.changes(other.talk), mine.changes(other.talk, other.turn), mine.put_back(other.talk, other.turn),
                        mine.transcript(other.talk), mine.schedules.remove(other.schedule),
                        mine.schedules.add("x", "every hour", conversation=other.talk)):  # fmt: skip
            with pytest.raises(NoSuchConversation):
                await refused
        for unknown in (
            mine.attachments.put_again(other.blob, "plan.txt"),
            mine.put_back(me.talk, other.turn),
        ):
            with pytest.raises(InvalidInput):
                await unknown
        assert await mine.journal.get_blob(other.blob) is None
        assert (await mine.put_back(me.talk, me.turn)).done == ["note.txt"]
        assert ("note.txt" in me.files(), "note.txt" in other.files()) == (False, True)


async def test_servers_and_what_rules_allow_are_the_owners_and_what_they_deny_is_everybodys(
    config: Config,
) -> None:
    """The owner is asked nothing, because a rule allows it; Bob is, and has no server."""
    config.file.write_text(SETTINGS + SERVER)
    config = config_of(config.store_url, config.directories.data)
    async with people(config) as both:
        owner, bob = both[LOCAL_USER], both[BOB]
        await owner.runtime.mcp.settled(SECONDS)
        assert [
            tool.name
            for tool in owner.runtime.agent.gate.tools()
            if tool.name.startswith("own__")
        ]
        assert not [
            tool.name
            for tool in bob.runtime.agent.gate.tools()
            if tool.name.startswith("own__")
        ]
        assert [each.name for each in owner.runtime.mcp.standing()] == ["own"]
        assert bob.runtime.mcp.standing() == []
        await bob.runtime.configure(config)
        assert bob.runtime.mcp.standing() == []
        for person, questions in ((owner, 0), (bob, 1)):
            (person.folder / "denied.txt").write_text(person.said)
            name, (wrote, denied) = await person.do(
                ScriptedCall("write_file", {"path": "a.txt", "content": "x"}),
                ScriptedCall("read_file", {"path": "denied.txt"}),
            )
            assert (wrote.outcome, denied.outcome) == ("done", "denied")
            assert len(await told(person.runtime, name, ApprovalAsked)) == questions


class WaitArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing."""


class Wait(Tool[WaitArgs]):
    """Changes a file, and the other user changes one of theirs before it ends."""

    name, description, args, effect, seconds, asks = (
        "wait",
        "Waits.",
        WaitArgs,
        "once",
        30.0,
        False,
    )

    def __init__(self, other: Path) -> None:
        self._other = other

    def touches(self, args: WaitArgs, call: Made) -> str:
        return "nothing"

    async def run(self, args: WaitArgs, call: Made) -> str:
        for folder in (call.folder, self._other):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"by-{folder.name}.txt").write_text("x")
        return "done"


@pytest.mark.parametrize("user", [LOCAL_USER, BOB])
async def test_what_the_other_changes_at_the_same_time_is_not_in_ones_journal(
    config: Config, user: str
) -> None:
    """A look around a call sees one folder; putting the turn back touches no other."""
    here, there = (
        folder_of(config, each)
        for each in (user, BOB if user == LOCAL_USER else LOCAL_USER)
    )
    model = ScriptedModel([Reply(calls=[ScriptedCall("wait", {})]), "Done."])
    async with Hands(
        config, user=user, models=[model], limits=Limits(pause=0.01)
    ) as runtime:
        runtime.with_tools(Wait(there))
        name = await runtime.new()
        await asked(runtime, name, "Go.")
        (turn,) = await runtime.changes(name)
        assert [file.path for file in turn.files] == [f"by-{here.name}.txt"]
        assert (await runtime.put_back(name, turn.turn)).done == [f"by-{here.name}.txt"]
        assert (here / f"by-{here.name}.txt").exists() is False
        assert (there / f"by-{there.name}.txt").exists() is True


class Hang(Tool[WaitArgs]):
    """Does blocking work as often as one user may at a time, until `release`."""

    name, description, args, effect, seconds, asks = (
        "hang",
        "Hangs.",
        WaitArgs,
        "pure",
        120.0,
        False,
    )

    def __init__(self) -> None:
        self.begun, self.release = threading.Semaphore(0), threading.Event()

    def touches(self, args: WaitArgs, call: Made) -> str:
        return "nothing"

    def _work(self) -> None:
        self.begun.release()
        self.release.wait(SECONDS)

    async def run(self, args: WaitArgs, call: Made) -> str:
        if call.user == BOB:
            await asyncio.gather(
                *(run_in_own_thread(self._work) for _ in range(OWN_THREADS_MAX))
            )
        return await run_in_own_thread(lambda: "done")


async def test_calls_of_one_user_that_hang_take_no_threads_from_the_other(
    config: Config,
) -> None:
    """Bob has as many as one may have; the owner's call is made all the same."""
    hang = Hang()
    script = [Reply(calls=[ScriptedCall("hang", {})]), Reply("Done.")]
    async with AsyncExitStack() as undo:
        journal = open_store(config)
        undo.callback(journal.close)
        both = {}
        for user in (BOB, LOCAL_USER):
            runtime = Hands(
                config,
                user=user,
                journal=journal.of(user),
                models=[ScriptedModel(script)],
            )
            both[user] = await undo.enter_async_context(runtime.with_tools(hang))
        undo.callback(hang.release.set)
        name = await both[BOB].new()
        seq = (await both[BOB].submit(name, "Go.")).seq
        for _ in range(OWN_THREADS_MAX):
            assert await asyncio.to_thread(hang.begun.acquire, timeout=SECONDS)
        hers = await both[LOCAL_USER].new()
        await asked(both[LOCAL_USER], hers, "Go.")
        (result,) = await told(both[LOCAL_USER], hers, ToolFinished)
        assert (result.outcome, result.text) == ("done", "done")
        hang.release.set()
        async with asyncio.timeout(SECONDS):
            await both[BOB].finished(name, seq)


async def test_a_turn_that_worked_in_the_owners_folder_cannot_be_put_back_by_another(
    config: Config,
) -> None:
    """As it stands in stores of earlier versions, where all users had one folder; nor can what was put back then."""
    file = config.tools_folder / "hers.txt"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    state = FileState(
        0o644, 1, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    )
    changed = FilesChanged(3, "c", [FileChange("hers.txt", None, state)], 1)
    async with Runtime(
        config, user=BOB, models=[ScriptedModel(["x"])], serves=False
    ) as runtime:
        mine = folder_of(config, BOB) / "hers.txt"
        mine.write_text("x")
        name = await runtime.new()
        place = f"{platform.node()}:{config.tools_folder}"
        append = runtime.journal.append
        (said,) = await append(name, [MessageUser([Text("q")])])
        await append(
            name,
            [RunStarted([said.seq], place=place), changed, RunFinished("completed")],
            run="r_old",
        )
        undone = FilesChanged(
            0, "u", [FileChange("hers.txt", state, None)], 1, undoes="r_old"
        )
        (undo,) = await append(name, [undone])
        again = FilesChanged(
            0, "v", [FileChange("hers.txt", None, state)], 1, undoes=str(undo.seq)
        )
        (redo,) = await append(name, [again])
        for turn in ("r_old", str(undo.seq), str(redo.seq)):
            with pytest.raises(Refused, match="worked in another folder"):
                await runtime.put_back(name, turn)
        assert (file.read_text(), mine.read_text()) == ("x", "x")
        shown = await runtime.changes(name)
        assert [each.turn for each in shown] == ["r_old", str(undo.seq), str(redo.seq)]
        for old in (*shown, *await runtime.changes(name, "r_old")):
            assert (old.files, "another folder" in old.missed) == ([], True), (
                "the files are the owner's"
            )


@pytest.mark.parametrize("how", ["moved", "linked"])
async def test_changes_in_a_home_that_was_moved_are_shown_and_put_back(
    tmp_path: Path, how: str
) -> None:
    """Also where it is reached by a link. In another home nothing is put back while the first one is there."""
    old, new, other = (tmp_path / name for name in ("old", "new", "other"))
    old.mkdir()
    write = ScriptedCall("write_file", {"path": "note.txt", "content": "x"})
    turns: dict[str, tuple[str, str]] = {}

    @asynccontextmanager
    async def using(home: Path, user: str) -> AsyncIterator[Person]:
        (home / "config.toml").write_text(SETTINGS)
        config, model = (
            config_of(f"sqlite:///{tmp_path / 'tenax.db'}", home),
            ScriptedModel([]),
        )
        async with Runtime(
            config, user=user, models=[model], limits=Limits(pause=0.01), serves=False
        ) as runtime:
            yield Person(config, runtime, model, user)

    for user in (LOCAL_USER, BOB):
        async with using(old, user) as person:
            name, _ = await person.do(write)
            (changed,) = await person.runtime.changes(name)
            turns[user] = name, changed.turn
    other.mkdir()
    for user, (name, turn) in turns.items():
        async with using(other, user) as person:
            (changed,) = await person.runtime.changes(name)
            assert [file.path for file in changed.files] == ["note.txt"]
            with pytest.raises(Refused, match="worked in another folder"):
                await person.runtime.put_back(name, turn)
    if how == "moved":
        old.rename(new)
    else:
        new.symlink_to(old)
    for user, (name, turn) in turns.items():
        async with using(new, user) as person:
            (changed,) = await person.runtime.changes(name)
            assert [file.path for file in changed.files] == ["note.txt"]
            assert (await person.runtime.put_back(name, turn)).done == ["note.txt"]
            assert person.files() == {}


async def test_a_prompt_that_was_opened_in_the_owners_folder_is_opened_anew_for_another(
    config: Config,
) -> None:
    """As it stands in stores of earlier versions: the owner's instructions and skills stay out of the next request."""
    hers = config.tools_folder
    (hers / ".tenax" / "skills" / "one").mkdir(parents=True)
    (hers / ".tenax" / "skills" / "one" / "SKILL.md").write_text(
        "---\nname: one\ndescription: aardvark\n---\n"
    )
    (hers / "AGENTS.md").write_text("Say aardvark.\n")
    (folder_of(config, BOB) / "AGENTS.md").write_text("Say wombat.\n")
    model = ScriptedModel(Script([Reply("Done.")], repeat=True))
    journal = open_store(config).of(BOB)
    name = ""
    for folder in (hers, None):
        with pytest.MonkeyPatch.context() as patch:
            if folder is not None:
                patch.setattr(assembly, "folder_of", lambda *_: hers)
            async with Runtime(
                config, user=BOB, journal=journal, models=[model], serves=False
            ) as runtime:
                name = name or await runtime.new()
                for _ in range(2):
                    await asked(runtime, name, "Go.")
                opened = await told(runtime, name, ContextOpened)
    journal.close()
    seen = [
        [word for word in WORDS.values() if word.encode() in body]
        for body in model.bodies
    ]
    assert seen == [["aardvark"]] * 2 + [["wombat"]] * 2
    assert [event.reason for event in opened] == ["start", "changed"], "and only once"


async def test_a_schedule_works_in_the_folder_of_its_user(config: Config) -> None:
    """What it asks is answered with the tools of who made it, and by nobody else's server."""
    write = ScriptedCall("write_file", {"path": "daily.txt", "content": "x"})
    async with people(config) as both:
        owner, bob = both[LOCAL_USER], both[BOB]
        for person in (owner, bob):
            person.model.script = Script([Reply(calls=[write]), Reply("Done.")])
        name = await bob.runtime.new()
        now = SystemClock().now_us()
        Schedules(bob.runtime.journal.journal).add(
            name, "Write.", "every hour", "UTC", now - 1
        )
        assert await owner.runtime.schedules.fire() == 0
        assert await bob.runtime.schedules.fire() == 1
        async with asyncio.timeout(SECONDS):
            await bob.runtime.workers.idle(name)
        (question,) = await bob.runtime.questions(name)
        await bob.runtime.answer(name, question.message, question.call, "once")
        async with asyncio.timeout(SECONDS):
            await bob.runtime.workers.idle(name)
        assert ("daily.txt" in bob.files(), "daily.txt" in owner.files()) == (
            True,
            False,
        )


PROVIDER = """
from pathlib import Path
from tenax.memory import MemoryProvider

class Plain(MemoryProvider):
    name = "plain"
    def is_available(self): return True
    def get_tool_schemas(self): return []
    def initialize(self, session_id, **about): self.file = Path(about["hermes_home"]) / "plain.txt"
    def sync_turn(self, said, answer, **more):
        with self.file.open("a") as writer: writer.write(said)
    def prefetch(self, words, **more): return self.file.read_text() if self.file.exists() else ""

def register(context): context.register_memory_provider(Plain())
"""


async def test_a_memory_provider_that_knows_no_users_keeps_them_apart(
    config: Config,
) -> None:
    """Each user has a provider with a folder of its own: what the owner said is recalled for the owner only."""
    place = config.directories.data / "plugins" / "plain"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(PROVIDER)
    config = dataclasses.replace(
        config, memory=Memory(providers=("plain",), review=False)
    )
    files = [
        home / "plain.txt"
        for home in (config.directories.data, config.directories.users / BOB)
    ]
    recalled = {}
    for user, word in WORDS.items():
        model = ScriptedModel(["Done.", "Done."])
        async with Runtime(
            config, user=user, models=[model], limits=Limits(pause=0.01)
        ) as runtime:
            async with asyncio.timeout(SECONDS):
                await runtime.memory.ready.wait()
                await asked(runtime, await runtime.new(), f"My word is {word}.")
                while not any(  # noqa: ASYNC110
                    word in file.read_text() for file in files if file.exists()
                ):
                    await asyncio.sleep(0.02)
                await asked(runtime, await runtime.new(), "What do you know?")
        recalled[user] = model.bodies[-1].decode()
    for user, own in WORDS.items():
        assert [word for word in WORDS.values() if word in recalled[user]] == [own]


async def test_a_folder_of_the_owner_among_the_programs_is_covered(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command sees /usr: for the test, another folder is of the system, and the owner works in there."""
    # a command has its own /tmp
    with tempfile.TemporaryDirectory(prefix="tenax-two-users-", dir="/var/tmp") as made:
        await see_the_system(config, Path(made), monkeypatch)


async def see_the_system(
    config: Config, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system / "work").mkdir()
    (system / "other").write_text("a program")
    monkeypatch.setattr(
        sandbox, "SYSTEM_FOLDERS", (*sandbox.SYSTEM_FOLDERS, str(system))
    )
    config.file.write_text(f'{SETTINGS}\n[tools]\nfolder = "{system / "work"}"\n')
    async with people(config_of(config.store_url, config.directories.data)) as both:
        look = ScriptedCall(
            "shell", {"command": f"cd {system}; find . -type f; cat work/secret.txt"}
        )
        _, (mine,) = await both[LOCAL_USER].do(look)
        _, (hers,) = await both[BOB].do(look)
        assert "./other" in hers.text
        assert (
            both[LOCAL_USER].word in mine.text,
            both[LOCAL_USER].word in hers.text,
        ) == (True, False)
        assert "secret.txt\n" not in hers.text
