"""Wrote the golden stores, with the code of commit 6e95d48. It is kept to show how they came about, and is not run again.

A store that a later version writes would prove nothing about the stores that people have. So a new commit never writes these
stores anew; it may add another folder, written by a script like this one, and leaves the old folders as they are.

    python -m tests.golden.write     (it writes tests/golden/sqlite and tests/golden/postgresql)

Processes that die are real ones, ended by SIGKILL. The clock and the ids are made up, so that two runs differ little.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import apsw
from tenax.agent.compact import INSTRUCTION
from tenax.journal.facts import Facts
from tenax.memory.follow import Follower

import tenax
from tenax.clock import Ids, SystemClock
from tenax.events import (
    TEMPORARY,
    MemoryDue,
    MessageAssistant,
    MessageUser,
    ReplyDelta,
    RunFinished,
    RunStarted,
    ToolStarted,
)
from tenax.journal import LOCAL_USER, Journal
from tenax.memory import MemoryManager
from tenax.models import Piece, Reply, Script, ScriptedCall, ScriptedModel, Trouble
from tenax.parts import Text, ToolCall
from tenax.recovery import mend
from tenax.runtime import Runtime
from tenax.sessions import SessionDB
from tenax.tools.delegate import BRIEF
from tests.golden import stores
from tests.golden.stores import BOB, HOST, PROVIDER, Expected, Place, Requests
from tests.support.children import Child, Teller
from tests.support.postgres import PostgresServer, find_programs
from tests.support.remembering import Ledger

COMMIT = "6e95d48"
FIRST_US = 1_790_000_000_000_000
SECONDS = 60.0
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf500f00038101805ac9a3c20000000049454e44ae426082"
)
SUMMARY = "They plan a trip to the harbour. The boat leaves at nine. Open: who brings the food?"


class SteppingClock(SystemClock):
    """A wall clock that moves by a millisecond each time that somebody looks at it."""

    def __init__(self, first_us: int) -> None:
        self._now_us = first_us

    def now_us(self) -> int:
        self._now_us += 1000
        return self._now_us

    def jump(self, seconds: float) -> None:
        self._now_us += int(seconds * 1e6)

    def boot_id(self) -> str:
        return "golden-boot"


class Actor(ScriptedModel):
    """Plays the script of the scene; a summary or a sub-agent's task has a script of its own. Bodies are written to a file."""

    def __init__(self, file: Path) -> None:
        super().__init__([])
        self._file = file

    def play(self, *replies: Reply | str) -> None:
        self.scene = Script(
            [Reply(words=each) if isinstance(each, str) else each for each in replies]
        )

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        with self._file.open("a") as file:
            file.write(json.dumps(body.decode()) + "\n")
        if json.dumps(INSTRUCTION.splitlines()[0])[1:-1].encode() in body:
            self.script = Script([Reply(words=SUMMARY)], repeat=True)
        elif json.dumps(BRIEF.splitlines()[0])[1:-1].encode() in body:
            first = Reply(calls=[ScriptedCall("read_file", {"path": "plan.txt"})])
            self.script = Script([first, Reply(words="The plan has two lines.")])
        else:
            self.script = self.scene
        async for piece in super().stream(body, silence=silence):
            yield piece


def steady(seed: int) -> None:
    """The same ids each time, and the same host."""
    chance = random.Random(seed)
    Ids.salt = lambda _self: chance.randbytes(16)  # type: ignore[method-assign, assignment]
    platform.node = lambda: HOST


class Writer:
    """The scenes, in the order in which they happen."""

    def __init__(
        self,
        runtime: Runtime,
        journal: Journal,
        model: Actor,
        place: Place,
        clock: SteppingClock,
    ) -> None:
        self.runtime, self.journal, self.model, self.place, self.clock = (
            runtime,
            journal,
            model,
            place,
            clock,
        )
        self.names: dict[str, tuple[str, str]] = {}

    async def new(self, label: str, source: str = "api") -> str:
        name = await self.runtime.new(source=source)
        self.names[label] = (self.journal.user or "", name)
        return name

    async def ask(self, name: str, words: Any, **more: Any) -> int:
        stored = await self.runtime.submit(name, words, **more)
        await self.settled(name, stored.seq)
        return int(stored.seq)

    async def settled(self, name: str, seq: int) -> None:
        async with asyncio.timeout(SECONDS):
            await self.runtime.finished(name, seq)
            await self.runtime.workers.idle(name)

    async def decide(self, name: str, answer: Any, **more: Any) -> None:
        (question,) = await self.runtime.questions(name)
        seq = (await self.runtime.journal.head(name)).head
        await self.runtime.answer(name, question.message, question.call, answer, **more)
        async with asyncio.timeout(SECONDS):
            while (await self.runtime.journal.head(name)).head <= seq + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await self.runtime.workers.idle(name)

    async def tools(self) -> None:
        """Files written, read and put back; approvals that are given once, for the conversation, and denied."""
        name = await self.new("tools")
        write = ScriptedCall(
            "write_file",
            {"path": "plan.txt", "content": "Boat at nine.\nBring food.\n"},
        )
        edit = ScriptedCall(
            "edit_file", {"path": "plan.txt", "old": "nine", "new": "ten"}
        )
        again = ScriptedCall("write_file", {"path": "list.txt", "content": "bread\n"})
        self.model.play(
            Reply(words="I write the plan down.", calls=[write]),
            Reply(
                thoughts="It has to be read again.",
                calls=[ScriptedCall("read_file", {"path": "plan.txt"})],
            ),
            "The plan is written.",
            Reply(calls=[edit]),
            "The boat leaves at ten.",
            Reply(words="And a list.", calls=[again]),
            "No list then.",
            Reply(
                calls=[
                    ScriptedCall(
                        "todo", {"items": [{"text": "buy bread", "state": "open"}]}
                    )
                ]
            ),
            "Noted.",
        )
        await self.ask(name, "Write down a plan for the harbour.")
        await self.decide(name, "once")
        await self.ask(name, "The boat leaves at ten.")
        await self.decide(name, "conversation")
        await self.ask(name, "Write a list of what we buy.")
        await self.decide(name, "no")
        await self.ask(name, "Keep a list of what is to be done.")
        turns = await self.runtime.changes(name)
        await self.runtime.put_back(name, turns[-1].turn)
        await self.runtime.rename(name, "The harbour")
        await self.runtime.pin(name)
        fork = await self.runtime.fork(name)
        self.names["fork"] = (self.journal.user or "", fork)
        self.model.play(*["unused"] * 9, "A fork has its own answer.")
        await self.ask(fork, "And in another life?")

    async def asking(self) -> None:
        """A question that a person answers with words, and an approval that nobody has answered yet."""
        name = await self.new("asking")
        question = {
            "question": "Which boat?",
            "choices": ["the red one", "the blue one"],
        }
        self.model.play(
            Reply(calls=[ScriptedCall("ask", question)]),
            "The red one it is.",
            Reply(
                calls=[
                    ScriptedCall("write_file", {"path": "boat.txt", "content": "red\n"})
                ]
            ),
            "It is written.",
        )
        await self.ask(name, "Choose a boat for us.")
        await self.decide(name, "once", words="the red one")
        await self.ask(name, "Write that down.")
        await self.runtime.submit(name, "And hurry, please.", wake=False)

    async def delegates(self) -> None:
        name = await self.new("delegates")
        tasks = [
            ScriptedCall("delegate", {"task": f"Read the {part} of the plan."})
            for part in ("first", "second")
        ]
        self.model.play(
            Reply(words="I hand this on.", calls=tasks), "Both have read it."
        )
        await self.ask(name, "Have the plan read, twice.")
        for number, child in enumerate(self.journal.delegated(name), 1):
            self.names[f"sub-agent {number}"] = (self.journal.user or "", child)

    async def compacted(self) -> None:
        """Two compactions, with turns before, between and after."""
        name = await self.new("compacted")
        self.model.play(
            *[f"Answer {number} about the harbour." for number in range(1, 9)]
        )
        for number in range(1, 4):
            await self.ask(
                name, f"Question {number} about the harbour and its lighthouse?"
            )
        await self.runtime.compact(name)
        for number in range(4, 6):
            await self.ask(name, f"Question {number}, after the summary?")
        await self.runtime.compact(name)
        await self.ask(name, "And the last question?")

    async def edited(self) -> None:
        """Undo and restore; clear and restore; clear and go on."""
        name = await self.new("edited")
        self.model.play(*[f"Reply {number}." for number in range(1, 9)])
        await self.ask(name, "The first question?")
        await self.ask(name, "A question about the cat, which is regretted?")
        undone = await self.runtime.undo(name)
        await self.runtime.restore(name, undone)
        await self.runtime.undo(name)
        await self.ask(name, "A better question?")
        cleared = await self.runtime.clear(name)
        await self.runtime.restore(name, cleared)
        await self.ask(name, "Still there?")
        name = await self.new("cleared")
        await self.ask(name, "Words that leave the page, about a forgotten cat.")
        await self.runtime.clear(name)
        await self.ask(name, "Words after that.")
        await self.runtime.archive(name)

    async def failed(self) -> None:
        name = await self.new("failed")
        self.model.play(
            Reply(
                words="I begin, and",
                trouble=Trouble("refused", "The key is not valid."),
            )
        )
        await self.ask(name, "Can you answer?")

    async def erased(self) -> None:
        name = await self.new("erased")
        self.model.play(*[f"I keep secret {number}." for number in range(1, 9)])
        first = await self.ask(name, "The first secret is 1234.")
        await self.ask(name, "Something that stays.")
        seqs = [
            first,
            *(
                each.seq
                for each in self.journal.read(name)
                if each.kind == "message.assistant"
            ),
        ][:2]
        await self.runtime.erase(name, seqs, why="it was a secret")
        name = await self.new("deleted")
        await self.ask(name, "This goes altogether.")
        await self.runtime.delete(name)

    async def attached(self) -> None:
        name = await self.new("attached")
        self.model.play("A picture and a text about a lighthouse.")
        picture = await self.runtime.attachments.put("dot.png", PICTURE)
        text = await self.runtime.attachments.put(
            "notes.txt", b"The lighthouse is white.\n"
        )
        await self.ask(name, [Text("Look at these."), picture, text])

    async def remembered(self) -> None:
        """Facts from the model and from the person, recalled in another conversation."""
        name = await self.new("remembered")
        self.model.play(
            Reply(
                calls=[
                    ScriptedCall(
                        "memory", {"action": "add", "text": "Has a cat called Miu."}
                    )
                ]
            ),
            "I remember that.",
        )
        await self.ask(name, "Remember that my cat is called Miu.")
        facts = Facts(self.journal)
        (fact,) = facts.standing()
        facts.change(fact.id, was=fact.version, text="Has a cat called Mia.")
        facts.add("Lives near the harbour.", about="profile")
        facts.remove(facts.add("Has a dog.").id, was=1)
        name = await self.new("recalled")
        self.model.play("She is called Mia.")
        await self.ask(name, "What is my cat called?")
        name = await self.new("temporary", TEMPORARY)
        self.model.play("This is not remembered.")
        await self.ask(name, "Between us: I am tired of the cat.")

    async def scheduled(self) -> None:
        add = self.runtime.schedules.add
        name = await self.new("scheduled")
        self.model.play("The weather is fine.")
        await self.ask(name, "How is the weather?")
        await add(
            "How is the weather?", "every day at 08:00", conversation=name, zone="UTC"
        )
        made = await add(
            "Is the boat there?", "every monday at 09:30", zone="Europe/Berlin"
        )
        self.names["made by a schedule"] = (self.journal.user or "", made.conversation)
        await self.runtime.schedules.remove(
            (await add("Never.", "every hour", zone="UTC")).id
        )
        await add("Is it raining?", "in 5 minutes", conversation=name, zone="UTC")
        self.clock.jump(360)
        self.model.play("unused", "It is not.")
        assert await self.runtime.schedules.fire() == 1
        await self.settled(name, self.journal.head(name).unanswered)
        self.due("scheduled")

    def due(self, label: str) -> None:
        """A boundary: memories are owed the end of what was said so far."""
        _, name = self.names[label]
        head = self.journal.head(name)
        self.journal.append(name, [MemoryDue(head.stretch or "", head.turns, "switch")])

    async def stopped(self) -> None:
        """A run that the person stopped, and words that steer one."""
        name = await self.new("stopped")
        self.model.play(Reply(words="I could go on for ever, and", hang=True))
        await answered(self.runtime, name)
        await self.runtime.stop(name)
        await self.runtime.workers.idle(name)
        name = await self.new("steered")
        write = ScriptedCall("write_file", {"path": "sign.txt", "content": "HARBOUR\n"})
        self.model.play(Reply(calls=[write]), "It is written in capital letters.")
        await self.ask(name, "Write a sign.")
        await self.runtime.submit(name, "In capital letters, please.", how="steer")
        await self.decide(name, "once")

    async def killed(self, bodies: Path) -> None:
        """Processes that die. Of the first, one run is ended, one gone on with, and words of one come late. The second
        leaves two runs open, and holds the words of one in its spool, as it does while the store is away.
        """
        await self.die(["interrupted", "resumed", "late"], bodies, spools=False)
        for label in ("interrupted", "resumed", "late"):
            _, name = self.names[label]
            await self.runtime.transcript(name)
            assert self.journal.head(name).run is None
        run = next(each.run for each in self.journal.read(name) if each.run is not None)
        db = SessionDB(journal=self.journal)
        stretch = self.journal.head(name).stretch or ""
        db.append_run_event(stretch, run, "token", {"text": " there is "})
        db.append_run_event(stretch, run, "token", {"text": "more to tell."})
        db.append_run_event(stretch, run, "tool_complete", {"name": "read_file"})
        db.append_run_event(stretch, run, "stream_end")
        self.model.play("The tide comes at noon, and it is high.", "The tide is high.")
        _, name = self.names["resumed"]
        await self.runtime.go_on(name)
        async with asyncio.timeout(SECONDS):
            async for each in self.runtime.journal.tail(name):
                if (
                    isinstance(each.event, RunFinished)
                    and each.event.outcome == "completed"
                ):
                    break
            await self.runtime.workers.idle(name)
        await self.die(["spooled", "open"], bodies, spools=True)

    async def die(self, labels: list[str], bodies: Path, *, spools: bool) -> None:
        names = [await self.new(label) for label in labels]
        first_us = self.journal.clock.now_us() + 1_000_000
        child = Child(
            die,
            self.place.url,
            str(self.place.home),
            names,
            str(bodies),
            spools,
            first_us,
        )
        assert child.finish() == -signal.SIGKILL, child.lines
        self.clock.jump(3)

    async def unknown(self) -> None:
        """A call that may have been made, and must not be made twice."""
        name = await self.new("unknown")
        asked = self.journal.append(
            name, [MessageUser([Text("Send the letter.")], ask=True)]
        )[-1].seq
        self.journal.append(name, [RunStarted([asked])], run="r_unknown")
        call = MessageAssistant(
            [Text("I send it."), ToolCall("call_1", "shell", '{"command":"send"}')]
        )
        message = self.journal.append(name, [call], run="r_unknown")[-1].seq
        started = ToolStarted(message, "call_1", "shell", "once", 60.0)
        self.journal.append(name, [started], run="r_unknown")
        mend(self.journal, name, "r_unknown")

    async def sessions(self) -> None:
        """A conversation of the contract's names."""
        db = SessionDB(journal=self.journal)
        db.create_session("a-session", "telegram", model="m", user_id="7")
        self.names["session"] = (
            self.journal.user or "",
            str(db.get_session("a-session")["conversation_id"]),
        )  # type: ignore[index]
        db.append_message("a-session", role="user", content="Hello from the harbour.")
        calls = [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "clock", "arguments": "{}"},
            }
        ]
        db.append_message("a-session", role="assistant", content="", tool_calls=calls)
        db.append_message(
            "a-session",
            role="tool",
            content="noon",
            tool_call_id="c1",
            tool_name="clock",
        )
        db.append_message(
            "a-session",
            role="assistant",
            content="It is noon.",
            reasoning="A clock was read.",
        )
        db.append_message(
            "a-session", role="user", content=[{"type": "text", "text": "In parts."}]
        )
        db.set_title("a-session", "From a chat")
        db.create_session("ended-session", "telegram")
        ended = str(db.get_session("ended-session")["conversation_id"])  # type: ignore[index]
        self.names["ended"] = (self.journal.user or "", ended)
        db.append_message("ended-session", role="user", content="Goodbye.")
        db.end_session("ended-session", "reset")

    async def provider(self, file: Path) -> None:
        """A provider takes what it is owed so far. What is said later waits for it."""
        manager = MemoryManager()
        follower = Follower(self.runtime.journal, manager.add_provider(Ledger(file)))
        follower.start()
        async with asyncio.timeout(SECONDS):
            while (standing := await follower.standing()).behind or standing.owed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await follower.close(SECONDS)
        await self.runtime.journal.threads.run(manager.shutdown_all)

    def buried(self) -> None:
        """The provider gives up on one turn."""
        _, name = self.names["compacted"]
        reader = PROVIDER[0]
        (behind,) = [
            each for each in self.journal.behind(reader) if each.conversation == name
        ]
        lease = self.journal.claim(f"reader:{reader.name}:{name}", "golden", 60)
        assert lease is not None
        self.journal.bury(
            reader,
            name,
            behind.to,
            was=behind.at,
            error="It could not be kept.",
            lease=lease,
        )
        self.journal.release(lease)

    async def bob(self) -> None:
        """Another user."""
        name = await self.new("of bob")
        self.model.play("Hello Bob.")
        picture = await self.runtime.attachments.put("dot.png", PICTURE)
        await self.ask(name, [Text("I am Bob, and the harbour is mine."), picture])
        Facts(self.journal).add("Is called Bob.", about="profile")


def die(
    _teller: Teller,
    url: str,
    home: str,
    names: list[str],
    bodies: str,
    spools: bool,
    first_us: int,
) -> None:
    """Answer in this process until words are stored in each conversation, hold more of the first, and die by SIGKILL."""
    steady(first_us)

    async def work() -> None:
        place = Place(url, Path(home))
        journal = tenax.open(url, user=LOCAL_USER, clock=SteppingClock(first_us))
        model = Actor(Path(bodies))
        model.play(Reply(words="The tide comes at noon, and", hang=True))
        async with Runtime(
            place.config, journal=journal, models=[model], serves=False
        ) as runtime:
            for name in reversed(names):
                request = await answered(runtime, name)
            if spools:
                run, at = (
                    (await runtime.journal.head(name)).run or "",
                    len("The tide comes at noon, and"),
                )
                for text in (" the boat ", "leaves at ten."):
                    await runtime.spool.hold(name, run, ReplyDelta(request, at, text))
                    at += len(text)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(work())


async def answered(runtime: Runtime, name: str) -> int:
    """Ask, and wait until all words are stored; where the model was asked."""
    stored = await runtime.submit(name, "When does the tide come?")
    said = ""
    async for each in runtime.journal.tail(name, stored.seq):
        if isinstance(each.event, ReplyDelta):
            said += each.event.text
            if said.endswith("and"):
                return each.event.request
    raise AssertionError


async def write(place: Place, bodies: Path) -> dict[str, tuple[str, str]]:
    """Write one store; the names of its conversations."""
    steady(1)
    clock = SteppingClock(FIRST_US)
    journal = tenax.open(place.url, user=LOCAL_USER, clock=clock)
    place.config.tools_folder.mkdir(parents=True, exist_ok=True)
    (place.config.tools_folder / "AGENTS.md").write_text("Answer in English.\n")
    model = Actor(bodies)
    names: dict[str, tuple[str, str]] = {}
    async with Runtime(
        place.config, journal=journal, models=[model], serves=False
    ) as runtime:
        writer = Writer(runtime, journal, model, place, clock)
        for reader in PROVIDER:
            journal.behind(reader)  # from here on it is owed what is said
        await writer.tools()
        await writer.asking()
        await writer.delegates()
        await writer.edited()
        writer.due("edited")
        await writer.provider(place.home / "ledger")
        (place.home / "ledger").unlink()
        await writer.compacted()
        writer.buried()
        await writer.failed()
        await writer.erased()
        await writer.attached()
        await writer.remembered()
        await writer.scheduled()
        await writer.stopped()
        await writer.unknown()
        await writer.sessions()
        names |= writer.names
    bob = journal.of(BOB)
    async with Runtime(
        place.config, user=BOB, journal=bob, models=[model], serves=False
    ) as runtime:
        of_bob = Writer(runtime, bob, model, place, clock)
        await of_bob.bob()
        names |= of_bob.names
    async with Runtime(
        place.config, journal=journal, models=[model], serves=False
    ) as runtime:
        writer = Writer(runtime, journal, model, place, clock)
        await writer.killed(bodies)  # the last: whoever starts next hands in the spool
        names |= writer.names
    journal.close()
    return names


def freeze(place: Place, folder: Path) -> None:
    """Put the store and what lies beside it into its folder, without the room that spools take in advance."""
    home = folder / "home"
    if place.url.startswith("sqlite"):
        for name in ("tenax.db", "tenax.db-search"):
            connection = apsw.Connection(str(place.home / name))
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
            connection.close()
    else:
        dump = [
            str(find_programs() / "pg_dump"),
            "--inserts",
            "--no-owner",
            "--no-privileges",
            place.url,
        ]
        text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
        # A server need not have the extension pg_trgm; opening the store makes its index where there is one.
        left_out = re.compile(r"^$|^--|^\\|pg_trgm|gin_trgm_ops")
        kept = [line for line in text.splitlines() if not left_out.search(line)]
        (folder / "store.sql.gz").write_bytes(
            gzip.compress("\n".join(kept).encode(), mtime=0)
        )
    shutil.copytree(place.home, home, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    for file in home.glob("tenax.db*"):
        if file.is_file() and file.stat().st_size:
            file.with_name(f"{file.name}.gz").write_bytes(
                gzip.compress(file.read_bytes(), mtime=0)
            )
            file.unlink()
    for spool in (home / "spool").glob("*/spool"):
        spool.write_bytes(spool.read_bytes().rstrip(b"\0") + bytes(8))


async def record(
    engine: str,
    names: dict[str, tuple[str, str]],
    sent: list[bytes],
    server: PostgresServer,
) -> None:
    """Write down what this version says about a copy."""
    now_us = FIRST_US + 3_600_000_000

    def copy(number: int, folder: Path) -> Place:
        return stores.copy_of(engine, folder / str(number), server.create_database())

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        facts = await stores.describe(copy(1, folder), now_us, names)
        opened = await stores.repaired(copy(2, folder), now_us, names)
        expected = Expected(COMMIT, now_us, names, facts, opened)
        stores.write_json(stores.HERE / engine / "expected.json", expected)
        named = await stores.digests(copy(3, folder), now_us, names)
        requests = Requests()
        requests.sent = [
            requests.put(body)
            for body in sent
            if hashlib.sha256(body).hexdigest() in named
        ]
        stores.write_json(stores.HERE / engine / "requests.json", requests)
        await stores.refresh(engine, copy(4, folder), copy(5, folder))


def main() -> None:
    with stores.on_the_same_host(), PostgresServer() as server:
        scratch = Path("/tmp/tenax-golden")  # its name stands in the prompts
        for engine in stores.ENGINES:
            home = scratch / engine
            home.mkdir(parents=True)
            url = (
                f"sqlite:///{home / 'tenax.db'}"
                if engine == "sqlite"
                else server.create_database()
            )
            bodies = scratch / f"{engine}.bodies"
            names = asyncio.run(write(Place(url, home), bodies))
            folder = stores.HERE / engine
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            freeze(Place(url, home), folder)
            sent = [
                json.loads(line).encode() for line in bodies.read_text().splitlines()
            ]
            asyncio.run(record(engine, names, sent, server))
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
