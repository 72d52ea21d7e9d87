"""`tenax channel`: accounts are connected, shown and removed; failed messages and people are listed and changed."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import tenax as package
from tenax.channels.base import Chat
from tenax.channels.rows import ChannelRows, Outgoing
from tenax.channels.states import STATE, State, StoredState
from tenax.channels.units import make_key, notice
from tenax.channels.webhook.secret import make_secret
from tenax.config import load
from tenax.events import ConversationOpened
from tests.cli.conftest import tenax
from tests.support.needs import Missing
from tests.support.telegram import FakeTelegram
from tests.support.terminal import Terminal
from tests.support.webhooks import Inbox

ACCOUNT = f"telegram:{FakeTelegram.bot_id}"
OTHER_TOKEN = f"654321:hunter2-{'B' * 30}"
MINUTE_US = 60_000_000
Enter = Callable[[str], None]

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as fake:
        yield fake


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Gives the next command an input that is no terminal."""

    def set_input(text: str) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)

    return set_input


@contextmanager
def rows_in(home: Path) -> Iterator[ChannelRows]:
    with package.open(f"sqlite:///{home}/tenax.db") as journal:
        yield ChannelRows(journal)


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """Hold the lease of the account, as the process that serves the account does."""
    with package.open(f"sqlite:///{home}/tenax.db") as journal:
        assert journal.claim(f"gateway:{ACCOUNT}", journal.instance, 60) is not None
        yield


def configure(home: Path, *labels: str, more: str = "") -> None:
    """Write accounts without a token into the settings."""
    sections = [
        f'[channels.{label}]\nplatform = "telegram"\n{more}\n' for label in labels
    ]
    (home / "config.toml").write_text("".join(sections))


def store_state(
    rows: ChannelRows, state: State, label: str = "telegram", **fields: object
) -> None:
    """Store the state of an account, as the process that serves the account does."""
    rows.put_value(f"label:{label}", "account", ACCOUNT)
    stored = msgspec.structs.replace(
        StoredState(state, at=rows.now_us()), name="@tenax_test_bot", **fields
    )
    rows.put_value(ACCOUNT, STATE, msgspec.json.encode(stored).decode())


def store_delivery(
    rows: ChannelRows, unit: str, state: str, chat: str = "7001", **fields: object
) -> Outgoing:
    key = make_key(ACCOUNT, chat, "", unit, 0)
    first = notice(ACCOUNT, Chat(chat), unit, "hunter2")
    delivery = msgspec.structs.replace(
        first, unit=unit, key=key, state=state, at=rows.now_us(), **fields
    )
    rows.put_delivery(delivery)
    return delivery


def states_in(home: Path) -> dict[str, str]:
    """Return the state of the deliveries by unit."""
    with rows_in(home) as rows:
        return {
            unit: delivery.state
            for unit in ("a:1:4", "q:1:5:c", "n:x")
            for delivery in rows.unit(ACCOUNT, "7001", "", unit)
        }


# -- add ---------------------------------------------------------------------------------


def test_add_checks_the_token_and_saves_it(
    home: Path,
    telegram: FakeTelegram,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name of the bot and the next steps are printed; the token is in the file of keys only."""
    enter(f"{telegram.token}\n")
    code, out, err = tenax(capsys, "channel", "add", "telegram", "--url", telegram.url)
    assert (code, err) == (0, "Checking the token ...\n")
    assert out.startswith(
        f"Connected @tenax_test_bot. Saved in {home}/config.toml as [channels.telegram].\n"
    )
    assert "tenax serve" in out
    assert "Write a message to @tenax_test_bot" in out
    assert "tenax pair CODE" in out
    account = load(os.environ).channels["telegram"]
    assert account.token is not None
    assert account.token.reveal() == telegram.token
    assert (account.url, account.allow) == (telegram.url, ())
    assert telegram.token not in out + err + (home / "config.toml").read_text()
    assert not (home / "tenax.db").exists()


def test_add_in_a_terminal_says_how_to_create_the_bot(
    home: Path, telegram: FakeTelegram
) -> None:
    """The steps come before the question, and the terminal does not show the token."""
    with Terminal("channel", "add", "telegram", "--url", telegram.url) as terminal:
        steps = terminal.wait_for("Token (not shown): ")
        assert "1. Open @BotFather" in steps
        assert "2. Send /newbot" in steps
        assert "3. Copy the token" in steps
        terminal.type(telegram.token)
        terminal.wait_for("3. Run: tenax pair CODE")
        assert terminal.end() == 0
        assert telegram.token not in terminal.shown
    assert list(load(os.environ).channels) == ["telegram"]


def test_add_stores_the_ids_of_an_allow_list(
    telegram: FakeTelegram, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a list there are no codes, so the next steps do not mention them."""
    enter(telegram.token)
    args = ("--url", telegram.url, "--allow", "1", "--allow", "2", "--label", "home")
    code, out, _ = tenax(capsys, "channel", "add", "telegram", *args)
    assert code == 0
    assert load(os.environ).channels["home"].allow == ("1", "2")
    assert "tenax pair" not in out


def test_add_gives_an_account_a_new_token(
    telegram: FakeTelegram, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other settings of the account stay."""
    for args in (("--url", telegram.url, "--allow", "7"), ()):
        enter(telegram.token)
        assert tenax(capsys, "channel", "add", "telegram", *args)[0] == 0
    account = load(os.environ).channels["telegram"]
    assert (account.url, account.allow) == (telegram.url, ("7",))


@pytest.mark.parametrize(
    ("entered", "args", "sentence"),
    [
        ("", (), "No token was entered."),
        ("hunter2", (), "a token has the form NUMBER:LETTERS"),
        ("two words", (), "contains a space or a character that is not allowed"),
        (OTHER_TOKEN, (), "Unauthorized. The token is not valid."),
        (OTHER_TOKEN, ("--url", "http://127.0.0.1:9"), "check the network"),
        (OTHER_TOKEN, ("--url", "nothing"), "channels.telegram.url"),
        (OTHER_TOKEN, ("--label", "My bot"), "cannot be the name of an account"),
        (OTHER_TOKEN, ("--allow", "@ada"), "'@ada' is not the id of a person"),
    ],
)
def test_add_saves_nothing_that_does_not_work(
    home: Path,
    telegram: FakeTelegram,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
    entered: str,
    args: tuple[str, ...],
    sentence: str,
) -> None:
    """One sentence says what is wrong and what to do, without the token."""
    enter(entered)
    args = args if "--url" in args else ("--url", telegram.url, *args)
    code, out, err = tenax(capsys, "channel", "add", "telegram", *args)
    assert (code in {1, 3}, out) == (True, "")
    assert sentence in err
    assert list(home.iterdir()) == []


def test_add_refuses_a_bot_that_is_connected_already(
    telegram: FakeTelegram, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bot has one account, and an account has one bot."""
    enter(telegram.token)
    assert tenax(capsys, "channel", "add", "telegram", "--url", telegram.url)[0] == 0
    enter(telegram.token)
    args = ("--url", telegram.url, "--label", "second")
    code, _, err = tenax(capsys, "channel", "add", "telegram", *args)
    assert code == 1
    assert "This bot is connected already, as telegram.\n" in err
    enter(OTHER_TOKEN)
    code, _, err = tenax(capsys, "channel", "add", "telegram")
    assert code == 1
    assert "telegram is connected to another bot.\n" in err
    assert list(load(os.environ).channels) == ["telegram"]


def test_an_account_without_a_usable_token_is_no_obstacle(
    home: Path,
    telegram: FakeTelegram,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The account of an empty secret cannot be compared, so it is replaced or left alone."""
    configure(home, "telegram", "other", more='token = "secret:MISSING"')
    enter(telegram.token)
    code, out, _ = tenax(capsys, "channel", "add", "telegram", "--url", telegram.url)
    assert code == 0
    assert out.startswith("Connected @tenax_test_bot.")


def test_remove_leaves_the_conversations(
    home: Path,
    telegram: FakeTelegram,
    enter: Enter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the section and the token are removed; a second time there is nothing to remove."""
    with package.open(f"sqlite:///{home}/tenax.db") as journal:
        opened = ConversationOpened("local", "s_1", source="telegram")
        journal.append("c_1", [opened])
    enter(telegram.token)
    assert tenax(capsys, "channel", "add", "telegram", "--url", telegram.url)[0] == 0
    code, out, err = tenax(capsys, "channel", "remove", "telegram")
    assert (code, out, err) == (
        0,
        "Removed: telegram. Its conversations stay.\n",
        "",
    )
    assert load(os.environ).channels == {}
    assert telegram.token not in (home / "secrets.toml").read_text()
    assert "c_1" in tenax(capsys, "list")[1]
    code, _, err = tenax(capsys, "channel", "remove", "telegram")
    assert code == 1
    assert "The account telegram no longer exists." in err


# -- list --------------------------------------------------------------------------------


def test_without_an_account_the_list_says_how_to_connect_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking creates no store."""
    for args in (("channel",), ("channel", "list")):
        assert tenax(capsys, *args) == (
            0,
            "",
            "No chat app is connected. To connect one: tenax channel add telegram\n",
        )
    assert tenax(capsys, "channel", "--json")[1] == "[]\n"
    assert list(home.iterdir()) == []


def test_an_account_that_nobody_serves_is_off(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also before there is a store; the words name the two commands that serve it."""
    configure(home, "telegram")
    code, out, _ = tenax(capsys, "channel", "list")
    assert code == 0
    assert out.splitlines()[0] == (
        "telegram  Telegram  off: neither `tenax serve` nor `tenax gateway` is running"
    )
    assert not (home / "tenax.db").exists()
    with rows_in(home) as rows:
        store_state(rows, "connected")
        old = StoredState("connected", at=rows.now_us() - 10 * MINUTE_US)
        rows.put_value(ACCOUNT, STATE, msgspec.json.encode(old).decode())
    assert "off: neither" in tenax(capsys, "channel", "list")[1]


def test_the_list_shows_both_directions_and_what_is_left(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last message each way, the promise, the lag, the error, and the messages by state."""
    configure(home, "telegram")
    with rows_in(home) as rows:
        now = rows.now_us()
        store_state(rows, "connected", sent_at=now, error="Something \x1b[31mfailed.")
        store_delivery(rows, "a:1:1", "waiting")
        store_delivery(rows, "a:1:2", "delivered")
        store_delivery(rows, "a:1:3", "uncertain")
        store_delivery(rows, "a:1:4", "dead")
    with serving(home):
        code, out, _ = tenax(capsys, "channel", "list")
        listed = msgspec.json.decode(tenax(capsys, "channel", "list", "--json")[1])
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "telegram  @tenax_test_bot  connected"
    assert lines[1] == "    error          Something \ufffd[31mfailed."
    assert lines[2] == "    messages in    none yet (promise: exactly once)"
    assert lines[3].startswith("    messages out   last ")
    assert "(promise: at least once" in lines[3]
    assert lines[4].startswith("    not sent yet   1, the oldest since ")
    assert lines[5:] == [
        "    delivered      1",
        "    failed         1 uncertain, 1 dead. To see them: tenax channel failed",
    ]
    (account,) = listed
    assert account["label"] == "telegram"
    assert account["account"] == ACCOUNT
    assert account["state"] == "connected"
    assert account["counts"]["dead"] == 1
    assert account["received_at"] is None
    assert account["sent_at"].endswith("Z")
    assert account["oldest_unsent_at"].endswith("Z")
    assert account["lag_seconds"] >= 0
    assert account["promise_in"] == "exactly once"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("starting", "connecting"),
        ("connected", "connected"),
        ("deaf", "deaf: no messages come in"),
        ("away", "away: the chat app cannot be reached"),
        ("refused", "tenax channel add telegram --label telegram"),
        ("elsewhere", "elsewhere: another program receives the messages"),
        ("broken", "broken: the account cannot be used"),
    ],
)
def test_every_state_has_words(
    home: Path, capsys: pytest.CaptureFixture[str], state: State, words: str
) -> None:
    """The words say what happens next or what to do."""
    configure(home, "telegram")
    with rows_in(home) as rows:
        store_state(rows, state)
    with serving(home):
        first_line = tenax(capsys, "channel", "list")[1].splitlines()[0]
    assert words in first_line


# -- failed ------------------------------------------------------------------------------


@pytest.fixture
def failed(home: Path) -> list[Outgoing]:
    """An uncertain answer, a dead question and a dead notice."""
    configure(home, "telegram")
    with rows_in(home) as rows:
        store_state(rows, "connected")
        rows.add_person(ACCOUNT, "7001", "local", "Ada")
        return [
            store_delivery(rows, "a:1:4", "uncertain", error="No answer."),
            store_delivery(rows, "q:1:5:c", "dead", error="The bot was blocked."),
            store_delivery(rows, "n:x", "dead"),
        ]


def test_failed_messages_are_listed_without_their_text(
    failed: list[Outgoing], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a short id; the JSON has the whole id, and no text either."""
    code, out, err = tenax(capsys, "channel", "failed")
    assert code == 0
    assert f"{failed[0].key[:8]}  telegram  chat 7001  answer  uncertain  " in out
    assert f"{failed[1].key[:8]}  telegram  chat 7001  question  dead  " in out
    assert f"{failed[2].key[:8]}  telegram  chat 7001  notice  dead  " in out
    assert "The bot was blocked." in out
    assert "tenax channel retry ID|all" in err
    found = msgspec.json.decode(tenax(capsys, "channel", "failed", "--json")[1])
    assert {row["id"] for row in found} == {delivery.key for delivery in failed}
    assert {row["state"] for row in found} == {"uncertain", "dead"}


def test_without_failed_messages_the_list_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No store is created for it."""
    assert tenax(capsys, "channel", "failed") == (
        0,
        "",
        "No message is uncertain or dead.\n",
    )
    assert tenax(capsys, "channel", "retry", "all")[1] == (
        "To be sent again: 0 messages.\n"
    )
    assert list(home.iterdir()) == []


def test_a_message_is_sent_again_or_given_up(
    home: Path, failed: list[Outgoing], capsys: pytest.CaptureFixture[str]
) -> None:
    """The short id is enough; what was resolved has no id any more."""
    answer, question, _ = (delivery.key[:8] for delivery in failed)
    code, out, _ = tenax(capsys, "channel", "retry", answer)
    assert (code, out) == (0, "To be sent again: 1 message.\n")
    code, out, _ = tenax(capsys, "channel", "discard", question.upper())
    assert (code, out) == (0, "Discarded: 1 message.\n")
    assert states_in(home) == {
        "a:1:4": "waiting",
        "q:1:5:c": "discarded",
        "n:x": "dead",
    }
    for command in ("retry", "discard"):
        code, _, err = tenax(capsys, "channel", command, answer)
        assert code == 1
        assert f"No uncertain or dead message has the id {answer}." in err


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    ("command", "state"), [("retry", "waiting"), ("discard", "discarded")]
)
def test_all_messages_are_resolved_at_once(
    home: Path, capsys: pytest.CaptureFixture[str], command: str, state: str
) -> None:
    """The number of messages is printed."""
    code, out, _ = tenax(capsys, "channel", command, "all")
    assert code == 0
    assert ": 3 messages.\n" in out
    assert set(states_in(home).values()) == {state}


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("id", ["", "abc", "nothing", "\udcff"])
def test_an_unknown_id_changes_nothing(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    id: str,  # noqa: A002  (the argument of the command)
) -> None:
    """An empty id may come from a variable of a shell that is not set."""
    before = states_in(home)
    code, out, err = tenax(capsys, "channel", "discard", id)
    assert (code, out) == (1, "")
    assert "No uncertain or dead message has the id" in err
    assert states_in(home) == before


# -- people ------------------------------------------------------------------------------


def test_people_are_listed_and_forgotten(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first two columns are what `forget` takes; nobody else is affected."""
    configure(home, "telegram")
    with rows_in(home) as rows:
        store_state(rows, "connected")
        rows.add_person(ACCOUNT, "7001", "local", "Ada \x1b[31m")
        rows.add_person(ACCOUNT, "7002", "telegram-7002", "Bob")
    out = tenax(capsys, "channel", "people")[1]
    assert "telegram  7001  Ada \ufffd[31m  you  since " in out
    assert "telegram  7002  Bob  user telegram-7002  since " in out
    people = msgspec.json.decode(tenax(capsys, "channel", "people", "--json")[1])
    assert [person["label"] for person in people] == ["telegram", "telegram"]
    code, _, err = tenax(capsys, "channel", "forget", "telegram", "7003")
    assert code == 1
    assert "Nobody with the id 7003 may talk to telegram." in err
    assert tenax(capsys, "channel", "forget", "telegram", "7002") == (
        0,
        "Bob may not talk any more.\n",
        "",
    )
    assert tenax(capsys, "channel", "forget", ACCOUNT, "7001")[0] == 0
    assert tenax(capsys, "channel", "people")[1:] == (
        "",
        "Nobody. To let somebody in: tenax pair\n",
    )


def test_forgetting_somebody_of_the_allow_list_says_that_the_list_lets_them_in(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings are not changed."""
    configure(home, "telegram", more='allow = ["7001"]')
    with rows_in(home) as rows:
        store_state(rows, "connected")
        rows.add_person(ACCOUNT, "7001", "telegram-7001", "Ada")
    code, _, err = tenax(capsys, "channel", "forget", "telegram", "7001")
    assert code == 0
    assert "channels.telegram.allow" in err
    assert load(os.environ).channels["telegram"].allow == ("7001",)


# -- doctor ------------------------------------------------------------------------------


def test_doctor_has_no_section_without_chat_apps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody who uses no chat app reads about them."""
    assert "Chat apps" not in tenax(capsys, "doctor")[1]


@pytest.mark.usefixtures("failed")
def test_doctor_shows_the_accounts_and_what_failed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each account, and the command that shows the failed messages."""
    configure(home, "telegram", "second")
    with serving(home):
        code, out, _ = tenax(capsys, "doctor")
    assert code == 0
    section = out.partition("\nChat apps\n")[2].partition("\n\n")[0].splitlines()
    assert section == [
        "second       Telegram, off: neither `tenax serve` nor `tenax gateway` is running",
        "telegram     @tenax_test_bot, connected",
        "             Not delivered: 1 uncertain, 2 dead. To see them: tenax channel failed",
    ]
    found = msgspec.json.decode(tenax(capsys, "doctor", "--json")[1])
    assert [account["label"] for account in found["chat_apps"]] == [
        "second",
        "telegram",
    ]


def test_doctor_goes_on_if_a_state_is_damaged(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damage is one of the problems."""
    configure(home, "telegram")
    with rows_in(home) as rows:
        store_state(rows, "connected")
        rows.put_value(ACCOUNT, STATE, "{")
    code, out, _ = tenax(capsys, "doctor")
    assert code == 1
    assert "The state of the chat apps cannot be read: " in out
    assert out.endswith(": 1 problem\n")


# -- webhooks ----------------------------------------------------------------------------


def test_add_makes_the_secret_of_a_webhook(
    home: Path, enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """The secret, the address for messages and an example are printed. The settings do not contain the secret."""
    enter("")
    code, out, err = tenax(capsys, "channel", "add", "webhook")
    assert code == 0
    secret = secret_in(out)
    assert "http://127.0.0.1:8629/api/hooks/webhook" in out
    assert "takes no messages of webhooks" in out
    assert "Whoever has the secret can talk to Tenax as you." in err
    account = load(os.environ).channels["webhook"]
    assert account.token is not None
    assert account.token.reveal() == secret
    assert (account.url, account.allow) == (None, ())
    assert secret not in (home / "config.toml").read_text()
    code, out, _ = tenax(capsys, "channel")
    assert code == 0
    assert secret not in out
    assert "exactly once, by webhook-id" in out


def test_add_in_a_terminal_makes_a_secret_if_none_is_entered(home: Path) -> None:
    """The steps say so."""
    args = ("--url", "http://127.0.0.1:9/hook", "--label", "deploys")
    with Terminal("channel", "add", "webhook", *args) as terminal:
        assert "press Enter" in terminal.wait_for("Secret (not shown): ")
        terminal.type("")
        terminal.wait_for("api/hooks/deploys")
        terminal.wait_for("Whoever has the secret")
        assert terminal.end() == 0
        assert "whsec_" in terminal.shown
    account = load(os.environ).channels["deploys"]
    assert account.url == "http://127.0.0.1:9/hook"


def test_add_takes_a_secret_of_the_person_and_does_not_print_it(
    enter: Enter, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other side may have made it. A secret of another form is refused, and nothing is saved."""
    enter("hunter2")
    code, out, err = tenax(capsys, "channel", "add", "webhook")
    assert (code, out) == (1, "")
    assert "The secret of webhook cannot be used" in err
    assert "hunter2" not in err
    secret = make_secret()
    enter(secret)
    code, out, err = tenax(capsys, "channel", "add", "webhook", "--allow", "ci")
    assert code == 0
    assert secret not in out + err
    assert load(os.environ).channels["webhook"].allow == ("ci",)


def test_the_example_for_a_shell_signs_as_the_library_does(
    enter: Enter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The printed lines run in a shell, and send a request with a good signature."""
    for program in ("curl", "openssl"):
        if shutil.which(program) is None:
            raise Missing(program, "the example for a shell uses it")
    enter("")
    _, out, _ = tenax(capsys, "channel", "add", "webhook")
    secret = secret_in(out)
    example = out.partition("try it now:\n")[2].replace("whsec_...", secret)
    with Inbox(secret) as inbox:
        example = re.sub(r"http://\S+", inbox.url, example)
        done = subprocess.run(
            ["sh", "-ec", example], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        (post,) = inbox.posts
        assert (post.type, post.data) == ("message.created", {"text": "Hello"})
        assert inbox.bad == []


def secret_in(out: str) -> str:
    """Return the secret that a command has printed, which it prints once."""
    (secret,) = re.findall(r"whsec_[A-Za-z0-9+/=]{20,}", out)
    return str(secret)
