"""The sections [channels.LABEL]: how they are read, written and removed, and where the token is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tenax.config import load
from tenax.config.write import set_channel
from tenax.errors import ConfigError, InvalidInput

TOKEN = f"123456:hunter2-{'A' * 30}"
NEW_TOKEN = f"123456:hunter2-{'B' * 30}"
BOT = {"platform": "telegram"}
WRITTEN = """\
# My settings.
resume = "ask"   # I want to be asked

[channels.home]  # the bot of the family
platform = "telegram"
token = "env:HOME_BOT"
allow = ["1"]

[tools]
folder = "~/t"
# the end
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"TENAX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}


def write(env: dict[str, str], text: str) -> Path:
    file = Path(env["TENAX_HOME"]) / "config.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def token_of(env: dict[str, str], label: str) -> str:
    token = load(env).channels[label].token
    assert token is not None
    return token.reveal()


# -- reading -----------------------------------------------------------------------------


def test_a_section_is_an_account(env: dict[str, str]) -> None:
    """The label is the name of the section, and the token is not printed."""
    write(env, WRITTEN)
    account = load(env | {"HOME_BOT": TOKEN}).channels["home"]
    assert (account.label, account.platform) == ("home", "telegram")
    assert (account.url, account.allow) == (None, ("1",))
    assert account.token is not None
    assert account.token.reveal() == TOKEN
    assert "hunter2" not in repr(account)


def test_without_a_section_there_is_no_account(env: dict[str, str]) -> None:
    """No chat app is connected by default."""
    assert load(env).channels == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("channels = 1", "channels in .* are sections"),
        ("[channels]\nhome = 1", r"channels\.home in .* is a section"),
        ("[channels.home]", r"channels\.home in .* has no platform"),
        (
            '[channels.home]\nplatform = "icq"',
            r'channels\.home\.platform in .* must be .*"telegram"',
        ),
        (
            '[channels.home]\nplatform = "telegram"\ntokn = "env:A"',
            r"sets channels\.home\.tokn, which is not a setting",
        ),
        (
            '[channels.home]\nplatform = "telegram"\ntoken = "1:hunter2"',
            r'channels\.home\.token in .* must be "env:NAME" or "secret:NAME"',
        ),
        (
            '[channels.home]\nplatform = "telegram"\nallow = [1]',
            r"channels\.home\.allow in .* must be a list of names in quotes",
        ),
        (
            '[channels.home]\nplatform = "telegram"\nurl = "ftp://h"',
            r"channels\.home\.url in .* must be an address that begins with http",
        ),
        (
            '[channels.home]\nplatform = "telegram"\nurl = "http://"',
            r"channels\.home\.url in .* is not an HTTP address",
        ),
        (
            '[channels."My bot"]\nplatform = "telegram"',
            r"channels\.My bot in .* cannot be the name of an account",
        ),
        (
            f'[channels.{"a" * 33}]\nplatform = "telegram"',
            "cannot be the name of an account",
        ),
    ],
)
def test_a_bad_section_is_refused_in_a_sentence(
    env: dict[str, str], text: str, sentence: str
) -> None:
    """The sentence names the setting and the file, and quotes no token."""
    write(env, text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load(env)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


# -- writing -----------------------------------------------------------------------------


def test_a_new_account_is_written_with_its_token_in_the_file_of_keys(
    env: dict[str, str],
) -> None:
    """Only the owner can read the token, and the settings only name it."""
    set_channel(load(env), "tele-gram", BOT | {"allow": ["7"]}, token=f"{TOKEN}\n")
    config = load(env)
    assert config.channels["tele-gram"].allow == ("7",)
    assert token_of(env, "tele-gram") == TOKEN
    assert "hunter2" not in config.file.read_text()
    assert 'token = "secret:KEY_CHANNEL_TELE_GRAM"' in config.file.read_text()
    secrets = config.file.with_name("secrets.toml")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600


def test_everything_else_in_the_file_stays(env: dict[str, str]) -> None:
    """A second account changes no line that is there, and its removal restores the file."""
    file = write(env, WRITTEN)
    set_channel(load(env), "work", BOT, token=TOKEN)
    lines = iter(file.read_text().splitlines())
    assert all(line in lines for line in WRITTEN.splitlines()), file.read_text()
    assert list(load(env).channels) == ["home", "work"]
    set_channel(load(env), "work", None, token=None)
    assert file.read_text().split() == WRITTEN.split()
    assert list(load(env).channels) == ["home"]


def test_a_change_without_a_token_keeps_the_token(env: dict[str, str]) -> None:
    """Settings that the new values leave out are removed, and the comment stays."""
    file = write(env, WRITTEN)
    set_channel(load(env), "home", BOT | {"url": "http://127.0.0.1:1"}, token=None)
    config = load(env | {"HOME_BOT": TOKEN})
    account = config.channels["home"]
    assert (account.url, account.allow) == ("http://127.0.0.1:1", ())
    assert account.token is not None
    assert account.token.reveal() == TOKEN
    assert "[channels.home]  # the bot of the family" in file.read_text()


def test_a_new_token_replaces_the_old_one(env: dict[str, str]) -> None:
    """The old token is in no file any more."""
    set_channel(load(env), "home", BOT, token=TOKEN)
    set_channel(load(env), "home", BOT, token=NEW_TOKEN)
    assert token_of(env, "home") == NEW_TOKEN
    assert TOKEN not in load(env).file.with_name("secrets.toml").read_text()


def test_a_token_that_two_accounts_use_stays_until_both_are_removed(
    env: dict[str, str],
) -> None:
    """A removed account takes along only a token that nothing else names."""
    set_channel(load(env), "home", BOT, token=TOKEN)
    shared = {"platform": "telegram", "token": "secret:KEY_CHANNEL_HOME"}
    set_channel(load(env), "work", shared, token=None)
    set_channel(load(env), "home", None, token=None)
    assert token_of(env, "work") == TOKEN
    set_channel(load(env), "work", None, token=None)
    assert load(env).channels == {}
    assert "hunter2" not in load(env).file.with_name("secrets.toml").read_text()


def test_an_account_that_is_not_there_cannot_be_removed(env: dict[str, str]) -> None:
    """The file stays as it is."""
    file = write(env, WRITTEN)
    with pytest.raises(InvalidInput, match="The account work no longer exists"):
        set_channel(load(env), "work", None, token=None)
    assert file.read_text() == WRITTEN


@pytest.mark.parametrize(
    ("label", "values", "token", "sentence"),
    [
        ("My bot", BOT, TOKEN, "cannot be the name of an account"),
        ("work", {"platform": "icq"}, TOKEN, r"channels\.work\.platform"),
        ("work", BOT | {"url": "h"}, TOKEN, r"channels\.work\.url"),
        ("work", BOT | {"color": "red"}, TOKEN, r"channels\.work\.color"),
        ("work", BOT, "two words", "what was given contains a space"),
        ("work", BOT, "", "There is no key in what was given"),
    ],
)
def test_what_cannot_be_read_again_is_not_written(
    env: dict[str, str],
    label: str,
    values: dict[str, object],
    token: str,
    sentence: str,
) -> None:
    """Neither the settings nor the token are saved."""
    file = write(env, WRITTEN)
    with pytest.raises(ConfigError, match=sentence):
        set_channel(load(env), label, values, token=token)
    assert file.read_text() == WRITTEN
    assert not file.with_name("secrets.toml").exists()
