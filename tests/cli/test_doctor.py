"""`tenax doctor`: the places, the versions, and whether the store can prove itself."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import apsw
import msgspec
import pytest

import tenax
from tenax.channels.rows import ChannelRows, Outgoing
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.clock import Timing
from tenax.config import load
from tenax.events import (
    ApprovalAsked,
    ConversationOpened,
    MessageUser,
    RunFinished,
    RunStarted,
)
from tenax.journal import Journal
from tenax.journal.base import Reader
from tenax.journal.devices import Devices
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.spool import HeldEvent, Spool
from tenax.parts import Text
from tenax.tools.folders import folder_of
from tests.support.bubblewrap import need_bwrap
from tests.support.damage import copy_store, damage, put_back
from tests.support.world import build

pytestmark = pytest.mark.usefixtures("home")

Said = Callable[[], tuple[str, str]]


@pytest.fixture
def store(home: Path) -> Path:
    """A healthy store."""
    path = home / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        build(journal)
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def said() -> tuple[str, str]:
        out, err = capsys.readouterr()
        return out, err

    return said


def test_without_a_store_it_says_so_and_makes_none(home: Path, said: Said) -> None:
    """On a new machine nothing is wrong; the places are told, and stay empty."""
    assert run(command, ["doctor"]) == 0
    out, err = said()
    assert f"store        sqlite:///{home}/tenax.db\n" in out
    assert (
        f"config       {home}/config.toml (does not exist; the defaults apply)\n" in out
    )
    assert f"folder       {home}/work\n" in out, "where tools work"
    assert out.endswith("No store yet. The first conversation creates it.\n")
    assert err == ""
    assert list(home.iterdir()) == []


def test_it_lists_the_folders_of_other_users(home: Path, said: Said) -> None:
    """One that is made; their names as they are called."""
    folder = folder_of(load({"TENAX_HOME": str(home)}), "Bob")
    assert run(command, ["doctor"]) == 0
    assert (
        f"folder       {home}/work\nfolder       {folder} (of the user Bob)\n"
        in said()[0]
    )
    assert run(command, ["doctor", "--json"]) == 0
    assert msgspec.json.decode(said()[0])["places"]["users"] == {"Bob": str(folder)}


def test_it_says_whether_commands_run_in_a_sandbox(
    home: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bubblewrap its name; without it why not, and what follows from that."""
    need_bwrap(of_the_system=True)
    assert run(command, ["doctor"]) == 0
    assert "sandbox      bubblewrap\n" in said()[0]
    monkeypatch.setattr("tenax.tools.shell.sandbox.SYSTEM_PATH", str(home))
    assert run(command, ["doctor"]) == 0
    assert "sandbox      There is no sandbox: bubblewrap is not installed" in (
        told := said()[0]
    )
    assert "Every shell command needs approval.\n" in told
    assert run(command, ["doctor", "--json"]) == 0
    assert "not installed" in msgspec.json.decode(said()[0])["sandbox"]


def test_a_healthy_store_is_ok(store: Path, said: Said) -> None:
    """Places, versions, schema, incarnation, and what was proved."""
    assert run(command, ["doctor"]) == 0
    out, err = said()
    assert (
        f"engine       SQLite {apsw.sqlite_lib_version()}, schema {SCHEMA_VERSION}\n"
        in out
    )
    assert "incarnation  " in out
    assert out.splitlines()[-1].startswith("5 conversations, ")
    assert out.endswith("3 blobs: ok\n")
    assert err == ""


def test_what_is_wrong_is_told_where_it_is(store: Path, said: Said) -> None:
    """Each problem names its conversation; the exit code is 1."""
    damage(
        store,
        "update heads set messages = 99 where conversation = (select num from conversations where id = 'c_talk')",
    )
    assert run(command, ["doctor"]) == 1
    out, _ = said()
    assert "c_talk: The head row has messages 99, and the events say " in out
    assert out.endswith(": 1 problem\n")


@pytest.mark.parametrize("column", ["id", "name"])
def test_a_damaged_row_of_a_device_is_told_with_a_way_out(
    store: Path, said: Said, column: str
) -> None:
    """The command that signs the browser out, or all of them if its id is damaged too."""
    with tenax.open(f"sqlite:///{store}") as journal:
        id = Devices(journal, days=90).add("bob", "His", 80).device.id  # noqa: A001
    damage(store, f"update devices set {column} = cast(x'ff' as text)")
    assert run(command, ["doctor"]) == 1
    out, _ = said()
    revoked = "all" if column == "id" else id
    assert f" with: tenax link --revoke {revoked}\n" in out
    assert out.endswith(": 1 problem\n")
    assert run(command, ["link", "--revoke", revoked]) == 0
    assert said() == ("Signed out: 1 browser.\n", "")
    assert run(command, ["doctor"]) == 0


def test_json_is_for_programs(store: Path, said: Said) -> None:
    """The same, whole, healthy or not."""
    assert run(command, ["doctor", "--json"]) == 0
    found = msgspec.json.decode(said()[0])
    assert found["ok"]
    assert found["store"]["schema"] == SCHEMA_VERSION
    assert found["checked"]["conversations"] == 5
    assert found["problems"] == []
    damage(store, "delete from mentions")
    assert run(command, ["doctor", "--json"]) == 1
    found = msgspec.json.decode(said()[0])
    assert not found["ok"]
    assert found["problems"][0].keys() == {"user", "conversation", "seq", "what"}


def test_json_without_a_store(home: Path, said: Said) -> None:
    """There is nothing to prove, and nothing wrong."""
    assert run(command, ["doctor", "--json"]) == 0
    found = msgspec.json.decode(said()[0])
    assert (found["ok"], found["store"], found["checked"]) == (True, None, None)
    assert found["places"]["folder"] == f"{home}/work"


def test_a_file_that_is_no_store_is_told_in_a_sentence(home: Path, said: Said) -> None:
    """After the places, so that a person sees which file."""
    (home / "tenax.db").write_bytes(b"this is a letter" * 100)
    assert run(command, ["doctor"]) == 1
    out, err = said()
    assert f"store        sqlite:///{home}/tenax.db\n" in out
    assert err.startswith(f"tenax: {home}/tenax.db is not a SQLite database.\n")
    assert run(command, ["doctor", "--json"]) == 1
    found = msgspec.json.decode(said()[0])
    assert (found["ok"], found["error"]) == (
        False,
        f"{home}/tenax.db is not a SQLite database.",
    )


def test_a_password_is_not_shown(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the place nor in the error."""
    monkeypatch.setenv("TENAX_STORE", "postgresql://ada:secret@127.0.0.1:1/tenax")
    assert run(command, ["doctor"]) == 1
    out, err = said()
    assert (
        "store        postgresql://ada:***@127.0.0.1:1/tenax (set by TENAX_STORE)\n"
        in out
    )
    assert "secret" not in out + err
    assert err.startswith("tenax: There is no PostgreSQL at 127.0.0.1:1/tenax")


def test_a_database_without_a_store_stays_without(
    postgres_url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL as well, doctor and list make nothing."""
    monkeypatch.setenv("TENAX_STORE", postgres_url)
    for _ in range(2):
        assert run(command, ["list"]) == 0
        assert said() == ("", "No conversations yet.\n")
        assert run(command, ["doctor"]) == 0
        assert said()[0].endswith("No store yet. The first conversation creates it.\n")


def test_a_store_on_postgresql_is_proved(
    postgres_url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the version of its server, and whoever uses it."""
    monkeypatch.setenv("TENAX_STORE", postgres_url)
    with tenax.open(postgres_url) as journal:
        journal.append(
            "c_1", [ConversationOpened("local", "s_1"), MessageUser([Text("hello")])]
        )
        alive = journal.instance
        assert run(command, ["doctor"]) == 0
    out, _ = said()
    assert "engine       PostgreSQL 1" in out
    assert f"running      {alive} on " in out
    assert "1 conversation, 2 events, 0 blobs: ok\n" in out
    assert run(command, ["list"]) == 0
    assert said()[0].startswith("c_1  hello  1  ")


def test_a_large_store_tells_how_far_it_is(store: Path, said: Said) -> None:
    """Stderr gets whole lines if stderr is not a terminal. Stdout gets no progress."""
    timing = Timing(verify_quiet_seconds=0.0, verify_log_seconds=0.0)
    assert run(command, ["doctor"], timing) == 0
    out, err = said()
    assert "verifying" not in out
    assert err.splitlines()[-1] == "verifying the store: 100 %, 5 conversations"


def test_it_says_what_is_missing_and_goes_on_without_it_when_told(
    home: Path, said: Said, tmp_path: Path
) -> None:
    """An older copy was put back: every conversation that lacks events is named, and what to do."""
    path = home / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        journal.append("c-short", [ConversationOpened("ada", "s")])
    copy_store(path, tmp_path / "copy")
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        journal.append(
            "c-short", [MessageUser([Text("first")]), MessageUser([Text("second")])]
        )
        journal.append("c-gone", [ConversationOpened("ada", "t")])
    put_back(tmp_path / "copy", path)
    for _ in range(2):  # looking changes nothing
        assert run(command, ["doctor"]) == 1
        out, err = said()
        assert "\nc-gone: event 1 was stored, and is missing.\n" in out
        assert "\nc-short: events 2 to 3 were stored, and are missing.\n" in out
        assert "tenax doctor --accept\n" in out
        assert err == ""
    assert run(command, ["doctor", "--json"]) == 1
    told = msgspec.json.decode(said()[0])
    assert [each["conversation"] for each in told["missing"]] == ["c-gone", "c-short"]
    assert not told["accepted"]
    assert run(command, ["doctor", "--accept"]) == 0
    assert "Accepted. " in said()[0]
    assert run(command, ["doctor"]) == 0
    assert "are missing" not in said()[0]
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        journal.append("c-short", [MessageUser([Text("third")])])


def test_a_store_whose_file_is_gone_is_missed(home: Path, said: Said) -> None:
    """There was a store here: that is not a new machine."""
    path = home / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        journal.append("c-1", [ConversationOpened("ada", "s")])
    for name in ("tenax.db", "tenax.db-wal", "tenax.db-shm"):
        (home / name).unlink(missing_ok=True)
    assert run(command, ["doctor"]) == 1
    assert "c-1: event 1 was stored, and is missing.\n" in said()[0]


class _Server(BaseHTTPRequestHandler):
    """A provider: /good/v1 lists a model, /strict/v1 accepts no key."""

    def do_GET(self) -> None:
        status = 401 if self.path.startswith("/strict") else 200
        body = b'{"data": [{"id": "m"}]}' if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it_says_which_models_answer(
    home: Path, provider: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused key, a missing key and a server that is away are told apart. They are warnings: the exit code is 0."""
    monkeypatch.setenv("GOOD_KEY", "hunter2-key")
    labels = {
        "good": (f"{provider}/good/v1", "GOOD_KEY"),
        "strict": (f"{provider}/strict/v1", "GOOD_KEY"),
        "keyless": (f"{provider}/good/v1", "NO_SUCH_KEY"),
        "away": ("http://127.0.0.1:9/v1", "GOOD_KEY"),
    }
    sections = [
        f'[models.{label}]\nurl = "{url}"\nname = "m"\nkey = "env:{key}"\n'
        for label, (url, key) in labels.items()
    ]
    (home / "config.toml").write_text('model = "good"\n' + "".join(sections))
    assert run(command, ["doctor", "--json"]) == 0
    out, _ = said()
    assert "hunter2" not in out
    found = msgspec.json.decode(out)
    states = {model["label"]: model["state"] for model in found["models"]}
    assert states == {
        "good": "answers", "strict": "key", "keyless": "key", "away": "away",
    }  # fmt: skip
    assert len(found["issues"]) == 3
    assert run(command, ["doctor"]) == 0
    out, _ = said()
    assert "model        good (default): m at 127.0.0.1:" in out
    assert ", answers\n" in out
    assert "warning      keyless (m): There is no key in the environment" in out
    assert "\n               tenax setup\n" in out


def test_the_screen_of_a_healthy_store_is_short(
    store: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with what is to do, and says when the store was verified before."""
    monkeypatch.setattr(os, "nice", lambda _: 0)
    assert run(command, ["backup"]) == 0
    said()
    assert run(command, ["doctor"]) == 0
    first, _ = said()
    assert "verified     now, for the first time here\n" in first
    assert first.startswith(
        "warning      No model is set up.\n               tenax setup\n"
    )
    assert " ago), restored and verified then; 1 in " in first
    assert "There is no backup" not in first
    assert "owed         nothing\n" in first
    assert run(command, ["doctor"]) == 0
    second, _ = said()
    assert re.search(
        r"verified     now; before on 20\d\d-\d\d-\d\d \d\d:\d\d UTC", second
    )
    assert second.count("\n") <= 24
    assert run(command, ["doctor", "--json"]) == 0
    assert msgspec.json.decode(said()[0])["verified_before"]


def test_problems_come_before_warnings_and_facts(store: Path, said: Said) -> None:
    damage(store, "delete from mentions")
    assert run(command, ["doctor"]) == 1
    out, _ = said()
    lines = out.splitlines()
    assert lines[0].startswith("problem      The verification found ")
    assert lines[1].strip() == "tenax export --all"
    assert lines[2] == "warning      There is no backup."


def test_it_says_what_waits_for_the_owner(home: Path, said: Said) -> None:
    """An approval, a message that may not have arrived, a failed memory delivery, and output that is not stored."""
    (home / "config.toml").write_text(
        '[channels.home]\nplatform = "telegram"\ntoken = "env:NO_TOKEN"\n'
    )
    with tenax.open(f"sqlite:///{home}/tenax.db") as journal:
        _leave_work(journal)
    spool = Spool(home / "spool", "dead.1")
    spool.write(HeldEvent("local", "c", "r", "message.user", b"{}", 1))
    spool.close(remove=False)
    assert run(command, ["doctor", "--json"]) == 0
    found = msgspec.json.decode(said()[0])
    assert found["owed"] == {
        "approvals": 1,
        "approval": "c",
        "waiting": 0,
        "failed": 1,
        "memory": [{"provider": "notes", "conversations": 0, "letters": 1}],
        "spools": [str(home / "spool" / "dead.1")],
    }
    commands = [issue["command"] for issue in found["issues"]]
    for wanted in ("channel failed", "-c c", "memory retry notes", "serve"):
        assert f"tenax {wanted}" in commands


def _leave_work(journal: Journal) -> None:
    reader = Reader("memory:notes:sync", "turns", "now")
    journal.behind(reader, limit=1)
    run_1, run_2 = journal.ids.run(), journal.ids.run()
    journal.append(
        "c", [ConversationOpened("local", "s"), MessageUser([Text("hello")])]
    )
    turn = [RunStarted(instance=journal.instance), RunFinished("completed")]
    end = journal.append("c", turn, run=run_1)[-1].seq
    lease = journal.claim("memory:notes", "holder", 60.0)
    assert lease is not None
    journal.bury(reader, "c", end, was=0, error="It was refused.", lease=lease)
    asked = [RunStarted(), ApprovalAsked(2, "call", "shell", "{}")]
    journal.append("c", asked, run=run_2)
    rows = ChannelRows(journal)
    rows.put_value("label:home", "account", "telegram:1")
    num = rows.number("local", "c")
    rows.put_delivery(Outgoing("telegram:1", "7", "", "a:1:2", 0, num, 2, "dead", "k"))
