"""Configuration: places, the file, the environment, and what is said when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenax.config import load, shown
from tenax.errors import ConfigError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"TENAX_HOME": str(tmp_path)}


def write(env: dict[str, str], text: str) -> Path:
    file = Path(env["TENAX_HOME"]) / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_set_means_sqlite_in_the_usual_places() -> None:
    """Without a file or a variable everything has its XDG place."""
    config = load({"HOME": "/home/ada"})
    assert config.places.config == Path("/home/ada/.config/tenax")
    assert config.places.data == Path("/home/ada/.local/share/tenax")
    assert config.places.state == Path("/home/ada/.local/state/tenax")
    assert config.file == Path("/home/ada/.config/tenax/config.toml")
    assert config.store_url == "sqlite:////home/ada/.local/share/tenax/tenax.db"
    assert config.log == "warning"
    assert not config.locked


def test_xdg_variables_are_honoured() -> None:
    """An absolute one moves its place; a relative one does not count."""
    config = load({"HOME": "/home/ada", "XDG_DATA_HOME": "/data", "XDG_STATE_HOME": "state"})
    assert config.places.data == Path("/data/tenax")
    assert config.places.state == Path("/home/ada/.local/state/tenax")


def test_tenax_home_puts_everything_under_one_folder() -> None:
    """Configuration, data and state share it."""
    places = load({"HOME": "/home/ada", "TENAX_HOME": "~/t"}).places
    assert places.config == places.data == places.state == Path("/home/ada/t")


def test_a_profile_is_a_home_of_its_own() -> None:
    """It lies in profiles/ of TENAX_HOME, or of the data folder where there is no TENAX_HOME."""
    at_home = load({"TENAX_HOME": "/srv/tenax"}, profile="work")
    assert at_home.places.config == at_home.places.state == Path("/srv/tenax/profiles/work")
    assert at_home.store_url == "sqlite:////srv/tenax/profiles/work/tenax.db"
    usual = load({"HOME": "/home/ada"}, profile="work")
    assert usual.file == Path("/home/ada/.local/share/tenax/profiles/work/config.toml")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a:b", "Work", "-x", "a\n"])
def test_a_profile_name_cannot_leave_its_folder(name: str) -> None:
    """A name is a plain word: it becomes a folder and a part of route keys."""
    with pytest.raises(ConfigError, match="profile"):
        load({"TENAX_HOME": "/srv/tenax"}, profile=name)


def test_no_home_at_all_is_a_sentence() -> None:
    """Without HOME and TENAX_HOME there is no place to guess."""
    with pytest.raises(ConfigError, match="HOME is not set") as caught:
        load({"HOME": ""})
    assert "TENAX_HOME" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("sqlite", "sqlite:///{home}/tenax.db"),
        ("sqlite:///notes.db", "sqlite:///{home}/notes.db"),
        ("sqlite:////var/lib/tenax/my store.db", "sqlite:////var/lib/tenax/my store.db"),
        ("postgresql://ada@db/tenax", "postgresql://ada@db/tenax"),
        ("postgres://ada@db/tenax", "postgresql://ada@db/tenax"),
    ],
)
def test_the_file_names_the_store(env: dict[str, str], given: str, full: str) -> None:
    """A short form becomes a full URL; a relative path begins at the data folder."""
    write(env, f'[store]\nurl = "{given}"\n')
    assert load(env).store_url == full.format(home=env["TENAX_HOME"])


def test_the_environment_wins_and_says_so(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable beats the file and is recorded; its relative path begins where the person stands."""
    write(env, '[store]\nurl = "postgresql://db/tenax"\n')
    monkeypatch.chdir(env["TENAX_HOME"])
    config = load(env | {"TENAX_STORE": "sqlite:///here.db", "TENAX_LOG": "DEBUG"})
    assert config.store_url == f"sqlite:///{env['TENAX_HOME']}/here.db"
    assert config.locked == {"store.url": "TENAX_STORE"}
    assert config.log == "debug"


def test_tenax_config_names_the_file(env: dict[str, str], tmp_path: Path) -> None:
    """Another file is read; one that is not there is an error."""
    other = tmp_path / "other.toml"
    with pytest.raises(ConfigError, match=r"other\.toml.*no such file"):
        load(env | {"TENAX_CONFIG": str(other)})
    other.write_text('store.url = "postgresql://db/other"')
    assert load(env | {"TENAX_CONFIG": str(other)}).store_url == "postgresql://db/other"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[stoer]", "sets stoer", "Did you mean store?"),
        ("[Store]", "sets Store", "Did you mean store?"),
        ("[kitchen]", "sets kitchen", "Known here: store."),
        ("[store]\nurll = 1", r"sets store\.urll", "Did you mean store.url?"),
        ('store = "sqlite"', r"write \[store\]", ""),
        ("[store]\nurl = 5", r"store\.url .* must be text", ""),
        ("[store]\nurl = sqlite", "not valid TOML.*line 2", ""),
        ('[store]\nurl = "mysql://u:hunter2@db/x"', r"'mysql://u:\*\*\*@db/x'", "postgresql://"),
        ('[store]\nurl = "sqlite://x.db"', "no store", "sqlite:///PATH"),
    ],
)
def test_a_mistake_in_the_file_is_named(env: dict[str, str], text: str, said: str, hint: str) -> None:
    """One sentence with the file, the name and, where it can be guessed, the name that was meant."""
    file = write(env, text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(env)
    assert str(file) in str(caught.value)
    assert hint in caught.value.hint


def test_a_file_that_cannot_be_read_is_named(env: dict[str, str], tmp_path: Path) -> None:
    """A folder in its place, or bytes that are no text."""
    folder = env | {"TENAX_CONFIG": str(tmp_path)}
    with pytest.raises(ConfigError, match="cannot be read"):
        load(folder)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(env)


def test_an_unknown_log_level_is_refused(env: dict[str, str]) -> None:
    """The levels are named."""
    with pytest.raises(ConfigError, match="debug, info, warning, error"):
        load(env | {"TENAX_LOG": "loud"})


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("postgresql://db:5432/tenax", "postgresql://db:5432/tenax"),
        ("postgresql://ada@db/tenax", "postgresql://ada@db/tenax"),
        ("postgresql://ada:hunter2@db:5432/tenax", "postgresql://ada:***@db:5432/tenax"),
        ("postgresql://ada:hun@ter/2?@db/tenax", "postgresql://ada:***@db/tenax"),
        ("postgresql://:hunter2@db/tenax", "postgresql://:***@db/tenax"),
        ("postgresql://db/t?user=a&password=hunter2&x=1", "postgresql://db/t?user=a&password=***&x=1"),
        ("postgresql://db/t?sslpassword=hunter2", "postgresql://db/t?sslpassword=***"),
    ],
)
def test_a_password_is_never_shown(url: str, printed: str) -> None:
    """What is printed keeps the address and hides the password."""
    assert shown(url) == printed


def test_a_config_does_not_print_its_store(env: dict[str, str]) -> None:
    """A Config in a log line gives no password away."""
    assert "hunter2" not in repr(load(env | {"TENAX_STORE": "postgresql://ada:hunter2@db/tenax"}))
