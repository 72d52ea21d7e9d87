"""Configuration: places, the file, the environment, and what is said when something is wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tenax.config import Config, find_secrets, hide_password, load
from tenax.config.rules import Rule
from tenax.config.schema import VARIABLES, list_settings
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
    assert config.directories.config == Path("/home/ada/.config/tenax")
    assert config.directories.data == Path("/home/ada/.local/share/tenax")
    assert config.directories.state == Path("/home/ada/.local/state/tenax")
    assert config.file == Path("/home/ada/.config/tenax/config.toml")
    assert config.store_url == "sqlite:////home/ada/.local/share/tenax/tenax.db"
    assert config.log == "warning"
    assert not config.locked


def test_xdg_variables_are_honoured() -> None:
    """An absolute one moves its place; a relative one does not count."""
    config = load(
        {"HOME": "/home/ada", "XDG_DATA_HOME": "/data", "XDG_STATE_HOME": "state"}
    )
    assert config.directories.data == Path("/data/tenax")
    assert config.directories.state == Path("/home/ada/.local/state/tenax")


def test_tenax_home_puts_everything_under_one_folder() -> None:
    """Configuration, data and state share it."""
    places = load({"HOME": "/home/ada", "TENAX_HOME": "~/t"}).directories
    assert places.config == places.data == places.state == Path("/home/ada/t")


def test_a_profile_is_a_home_of_its_own() -> None:
    """It lies in profiles/ of TENAX_HOME, or of the data folder where there is no TENAX_HOME."""
    at_home = load({"TENAX_HOME": "/srv/tenax"}, profile="work")
    assert (
        at_home.directories.config
        == at_home.directories.state
        == Path("/srv/tenax/profiles/work")
    )
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
        (
            "sqlite:////var/lib/tenax/my store.db",
            "sqlite:////var/lib/tenax/my store.db",
        ),
        ("postgresql://ada@db/tenax", "postgresql://ada@db/tenax"),
        ("postgres://ada@db/tenax", "postgresql://ada@db/tenax"),
    ],
)
def test_the_file_names_the_store(env: dict[str, str], given: str, full: str) -> None:
    """A short form becomes a full URL; a relative path begins at the data folder."""
    write(env, f'[store]\nurl = "{given}"\n')
    assert load(env).store_url == full.format(home=env["TENAX_HOME"])


def test_the_environment_wins_and_says_so(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (
            "[kitchen]",
            "sets kitchen",
            "Known here: backup, budget, channels, context_files, fallback, mcp, memory, model, models, resume, rules, search, serve, speech, store, tools.",
        ),
        ("[store]\nurll = 1", r"sets store\.urll", "Did you mean store.url?"),
        ('store = "sqlite"', r"write \[store\]", ""),
        ("[store]\nurl = 5", r"store\.url .* must be text", ""),
        ("[store]\nurl = sqlite", "not valid TOML.*line 2", ""),
        (
            '[store]\nurl = "mysql://u:hunter2@db/x"',
            r"'mysql://u:\*\*\*@db/x'",
            "postgresql://",
        ),
        ('[store]\nurl = "sqlite://x.db"', "no store", "sqlite:///PATH"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    env: dict[str, str], text: str, said: str, hint: str
) -> None:
    """One sentence with the file, the name and, where it can be guessed, the name that was meant."""
    file = write(env, text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(env)
    assert str(file) in str(caught.value)
    assert hint in caught.value.hint


def test_a_file_that_cannot_be_read_is_named(
    env: dict[str, str], tmp_path: Path
) -> None:
    """A folder in its place, or bytes that are no text."""
    folder = env | {"TENAX_CONFIG": str(tmp_path)}
    with pytest.raises(ConfigError, match="cannot be read"):
        load(folder)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(env)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5000, "not valid TOML"),
        ("[serve]\nport = " + "9" * 5000, "not valid TOML"),
        ('[store]\nurl = "sqlite:///a\\u0000b"', "cannot be the path"),
        (f'[store]\nurl = "sqlite:///{"x" * 256}"', "cannot be the path"),
        ('[tools]\nfolder = "a\\u0000b"', "cannot be the path"),
        ('[models.s]\napi = "script"\nurl = "a\\u0000b"', "cannot be the path"),
        ('[models.x]\nname = "n"\nurl = "http://a..b/v1"', "is not an HTTP address"),
        (
            '[models.x]\nname = "n"\nurl = "http://\u2603.example/v1"',
            "is not an HTTP address",
        ),
        (
            '[models.x]\nname = "n"\nurl = "http://h/v1\\u0001"',
            "is not an HTTP address",
        ),
    ],
)
def test_what_nobody_would_write_by_hand_is_a_sentence_too(
    env: dict[str, str], text: str, said: str
) -> None:
    """A file that was damaged, or made by a program that was."""
    write(env, text)
    with pytest.raises(ConfigError, match=said):
        load(env)
    write(env, '[models.x]\nurl = "http://h"\nname = "n"\nkey = "secret:A"')
    secrets = Path(env["TENAX_HOME"]) / "secrets.toml"
    secrets.write_text("A = " + "[" * 5000)
    secrets.chmod(0o600)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(env)


def test_a_mark_at_the_beginning_of_the_file_is_no_matter(env: dict[str, str]) -> None:
    """Some editors write one, and nobody sees it."""
    write(env, '\ufeffmodel = "x"\n[models.x]\nurl = "http://h"\nname = "n"')
    assert load(env).model == "x"


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
        (
            "postgresql://ada:hunter2@db:5432/tenax",
            "postgresql://ada:***@db:5432/tenax",
        ),
        ("postgresql://ada:hun@ter/2?@db/tenax", "postgresql://ada:***@db/tenax"),
        ("postgresql://:hunter2@db/tenax", "postgresql://:***@db/tenax"),
        (
            "postgresql://db/t?user=a&password=hunter2&x=1",
            "postgresql://db/t?user=a&password=***&x=1",
        ),
        ("postgresql://db/t?sslpassword=hunter2", "postgresql://db/t?sslpassword=***"),
    ],
)
def test_a_password_is_never_shown(url: str, printed: str) -> None:
    """What is printed keeps the address and hides the password."""
    assert hide_password(url) == printed


def test_a_config_does_not_print_its_store(env: dict[str, str]) -> None:
    """A Config in a log line gives no password away."""
    assert "hunter2" not in repr(
        load(env | {"TENAX_STORE": "postgresql://ada:hunter2@db/tenax"})
    )


MODELS = """
model = "main"
fallback = ["cloud", "claude"]
resume = "ask"
[models.main]
url = "http://127.0.0.1:11434/v1/"
name = "qwen3:8b"
context = 32768
max_tokens = 4000
[models.cloud]
api = "openai"
name = "gpt"
key = "env:CLOUD_KEY"
price_input = 3
price_output = 12.5
[models.claude]
api = "anthropic"
name = "claude"
[models.demo]
api = "script"
url = "demo.json"
[tools]
folder = "~/work"
[budget]
day = 5
conversation = 0.5
"""


def test_the_file_names_the_models(env: dict[str, str]) -> None:
    """Which one answers, which stand in for it, how each is reached, and what it costs."""
    write(env, MODELS)
    config = load(
        env | {"HOME": "/home/ada", "CLOUD_KEY": "k1", "ANTHROPIC_API_KEY": "k2"}
    )
    assert (config.model, config.fallback, config.resume) == (
        "main",
        ("cloud", "claude"),
        "ask",
    )
    assert (config.budget.day, config.budget.conversation) == (5, 0.5)
    assert config.tools_folder == Path("/home/ada/work")
    main, cloud, claude, demo = (
        config.models[each] for each in ("main", "cloud", "claude", "demo")
    )
    assert (main.label, main.api, main.url, main.name) == (
        "main",
        "openai",
        "http://127.0.0.1:11434/v1",
        "qwen3:8b",
    )
    assert (main.key, main.context, main.max_tokens, main.price_input) == (
        None,
        32768,
        4000,
        None,
    )
    assert (cloud.url, cloud.price_input, cloud.price_output) == (
        "https://api.openai.com/v1",
        3,
        12.5,
    )
    assert cloud.key is not None
    assert cloud.key.reveal() == "k1"
    assert claude.url == "https://api.anthropic.com"
    assert claude.key is not None
    assert claude.key.reveal() == "k2"
    assert (demo.url, demo.name) == (f"{env['TENAX_HOME']}/demo.json", "demo")


def test_nothing_set_means_no_model_and_a_folder_for_tools() -> None:
    """An agent without a model can still list and search; its tools act in ~/tenax, or in a home of their own."""
    config = load({"HOME": "/home/ada"})
    assert (config.model, config.fallback, dict(config.models)) == (None, (), {})
    assert (config.resume, config.budget.day, config.budget.conversation) == (
        "auto",
        None,
        None,
    )
    assert config.tools_folder == Path("/home/ada/tenax")
    assert load({"TENAX_HOME": "/srv/tenax"}).tools_folder == Path("/srv/tenax/work")
    assert load({"TENAX_HOME": "/srv"}, profile="a").tools_folder == Path(
        "/srv/profiles/a/work"
    )


def test_a_server_finds_no_program_in_the_folder_of_the_tools(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Commands write there: entries of PATH that lie in it, lead into it or through it, and relative ones, are left out."""
    work = Path(env["TENAX_HOME"]) / "work"
    (work / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(work)
    (work / "out").symlink_to("/opt")
    write(env, '[mcp.a]\ncommand = ["npx", "x"]')
    left_out = [
        f"{work}/bin",
        f"{tmp_path}/link/bin",
        f"{work}/out",
        f"{work}/../work/bin",
        "bin",
        ".",
    ]
    path = ":".join([*left_out, "", "/usr/bin", f"{work}-other", "/bin"])
    assert (
        load(env | {"PATH": path}).mcp["a"].environment["PATH"]
        == f"/usr/bin:{work}-other:/bin"
    )
    assert load(env | {"PATH": "."}).mcp["a"].environment["PATH"] == os.defpath


def test_a_lone_model_needs_no_choice(env: dict[str, str]) -> None:
    """It is the one that was meant; of two, none is guessed."""
    write(env, '[models.x]\nurl = "http://h"\nname = "n"')
    assert load(env).model == "x"
    write(
        env,
        '[models.x]\nurl = "http://h"\nname = "n"\n[models.y]\nurl = "http://h"\nname = "n"',
    )
    assert load(env).model is None


def test_the_environment_chooses_a_model(env: dict[str, str]) -> None:
    """TENAX_MODEL beats the file, and must be one of its sections."""
    write(env, MODELS)
    home = env | {"HOME": "/home/ada"}
    config = load(
        home | {"TENAX_MODEL": "claude", "OPENAI_BASE_URL": "http://elsewhere"}
    )
    assert config.model == "claude"
    assert config.locked == {"model": "TENAX_MODEL"}
    with pytest.raises(
        ConfigError, match=r"TENAX_MODEL names 'claud', and there is no section"
    ) as caught:
        load(home | {"TENAX_MODEL": "claud"})
    assert caught.value.hint == "Did you mean claude?"


def test_two_variables_are_enough_for_a_model(env: dict[str, str]) -> None:
    """OPENAI_BASE_URL and TENAX_MODEL, without a file; the key is the usual one, if there is one."""
    given = env | {
        "OPENAI_BASE_URL": "http://127.0.0.1:8080/v1",
        "TENAX_MODEL": "org/llama:8b",
    }

    def chosen(config: Config) -> object:
        model = config.models[config.model or ""]
        return model.api, model.url, model.name, model.key and model.key.reveal()

    assert chosen(load(given)) == (
        "openai",
        "http://127.0.0.1:8080/v1",
        "org/llama:8b",
        None,
    )
    assert chosen(load(given | {"OPENAI_API_KEY": "k"}))[-1] == "k"  # type: ignore[index]
    assert load(given).locked == {"model": "TENAX_MODEL"}
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL is not an HTTP address"):
        load(given | {"OPENAI_BASE_URL": "localhost"})


def test_a_key_goes_to_its_own_provider_only(env: dict[str, str]) -> None:
    """The usual variable counts for the usual address; another address gets only a key that was named for it."""
    write(env, '[models.x]\nurl = "http://elsewhere"\nname = "n"')
    assert load(env | {"OPENAI_API_KEY": "k"}).models["x"].key is None


def keyed(env: dict[str, str], key: str) -> Path:
    return write(env, f'[models.x]\nurl = "http://h"\nname = "n"\nkey = "{key}"')


def test_a_secret_is_read_from_its_own_file(env: dict[str, str]) -> None:
    """secrets.toml stands beside the file, and nobody else may read it."""
    keyed(env, "secret:MINE")
    secrets = Path(env["TENAX_HOME"]) / "secrets.toml"
    secrets.write_text('MINE = "hunter2"\n')
    secrets.chmod(0o644)
    with pytest.raises(ConfigError, match="Others can read") as caught:
        load(env)
    assert "chmod 600" in caught.value.hint
    secrets.chmod(0o600)
    config = load(env)
    key = config.models["x"].key
    assert key is not None
    assert key.reveal() == "hunter2"
    assert "hunter2" not in repr(config) + str(key)
    secrets.write_text('MINE = hunter2"')
    with pytest.raises(ConfigError, match="not valid TOML") as caught:
        load(env)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("env:MINE", None, "There is no key in the environment variable MINE"),
        ("env:MINE", "  ", "There is no key in the environment variable MINE"),
        ("secret:MINE", None, r"There is no key in .*secrets\.toml under MINE"),
        ("env:MINE", "two words", "not allowed in keys"),
    ],
)
def test_a_missing_key_is_told_when_it_is_needed(
    env: dict[str, str], key: str, given: str | None, said: str
) -> None:
    """Loading is not needing: the rest of Tenax works without it."""
    keyed(env, key)
    found = load(env | ({"MINE": given} if given else {})).models["x"].key
    assert found is not None
    with pytest.raises(ConfigError, match=said):
        found.reveal()


@pytest.mark.parametrize(
    "key", ["sk-hunter2", "hunter2", "env:sk-hunter2", "secret:", "file:hunter2", ""]
)
def test_a_key_in_the_file_is_refused(env: dict[str, str], key: str) -> None:
    """And never repeated: what stands there may be the key."""
    file = keyed(env, key)
    with pytest.raises(ConfigError, match="never the key itself") as caught:
        load(env)
    assert str(file) in str(caught.value)
    assert "hunter2" not in str(caught.value) + caught.value.hint


DENY = '[[rules]]\nverdict = "deny"\ntool = "write_file"\n'
X = '[models.x]\nurl = "http://h"\nname = "n"\n'


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('modle = "x"', "sets modle", "Did you mean model?"),
        ("model = 5", "model .* must be text in quotes", ""),
        ('model = "main"', "names 'main', and there is no section", "models.NAME"),
        (f'fallback = "x"\n{X}', "fallback .* must be a list of names", ""),
        (f'fallback = ["y"]\n{X}', "fallback in .* names 'y'", "Known here: x."),
        ('resume = "never"', 'resume .* "ask" or "auto"', ""),
        ("models = 5", r"write \[models\.NAME\]", ""),
        ('models.x = "gpt"', r"write \[models\.x\]", ""),
        (f"{X}contxt = 5", r"sets models\.x\.contxt", "Did you mean models.x.context?"),
        (
            f"{X}context = 1.5",
            r"models\.x\.context .* whole number above 0: context = ",
            "",
        ),
        (f"{X}context = 0", "whole number above 0", ""),
        (f"{X}context = true", "whole number above 0", ""),
        (f"{X}price_input = -1", "a number, 0 or more", ""),
        (f"{X}price_input = nan", "a number, 0 or more", ""),
        (f'{X}price_input = "3"', "a number, 0 or more", ""),
        (
            f'{X}api = "smtp"',
            'must be "anthropic", "openai", "practice" or "script"',
            "",
        ),
        ('[models.x]\nurl = "http://h"', r"models\.x in .* has no name", "name ="),
        ('[models.x]\napi = "script"', r"models\.x in .* has no url", "JSON file"),
        (
            '[models.x]\nname = "n"\nurl = "127.0.0.1:80"',
            r"models\.x\.url in .* not an HTTP address",
            "http://",
        ),
        (
            '[models.x]\nname = "n"\nurl = "http://h:port"',
            "not an HTTP address",
            "http://",
        ),
        ("[budget]\nday = true", r"budget\.day .* must be a number", ""),
        ("[tools]\nfolder = 1", r"tools\.folder .* must be text", ""),
        (
            "[memory]\nreview = 1",
            r"memory\.review .* must be true or false: review = ",
            "",
        ),
        ('[memory]\nreview = "false"', r"memory\.review .* must be true or false", ""),
        (
            "[memory]\nproviders = true",
            r"memory\.providers .* must be a list of names",
            "",
        ),
        (
            "[memory]\nreviews = false",
            r"sets memory\.reviews",
            "Did you mean memory.review?",
        ),
        ('rules = "none"', r"write \[\[rules\]\] on a line of its own", ""),
        ('rules = ["x"]', r"write \[\[rules\]\] on a line of its own", ""),
        ('[rules]\ntool = "x"', r"write \[\[rules\]\] on a line of its own", ""),
        (
            f'{DENY}[[rules]]\ntool = "x"\n',
            r"rules\[2\] in .* has no verdict",
            '"allow" or "deny"',
        ),
        (
            f'{DENY}[[rules]]\nverdict = "ask"\n',
            r'rules\[2\]\.verdict .*"allow" or "deny"',
            "",
        ),
        (
            f'{DENY}[[rules]]\nverdict = "deny"\n',
            r"rules\[2\] in .* has no tool",
            'tool = "*"',
        ),
        (f"{DENY}touches = 5\n", r"rules\[1\]\.touches .* must be text", ""),
        (
            f'{DENY}touchs = "a"\n',
            r"sets rules\[1\]\.touchs",
            "Did you mean rules[1].touches?",
        ),
        (f'{DENY}touches = " "\n', r"rules\[1\] in .* its touches is empty", ""),
        (f'{DENY}touches = "a\\nb"\n', r"rules\[1\] in .* an invisible character", ""),
        (
            '[[rules]]\nverdict = "allow"\ntool = "\ufffd"\n',
            r"rules\[1\] in .* its tool contains U\+FFFD",
            "",
        ),
        (
            '[[rules]]\nverdict = "allow"\ntool = ""\n',
            r"rules\[1\] in .* its tool is empty",
            "",
        ),
    ],
)
def test_a_mistake_about_models_is_told(
    env: dict[str, str], text: str, said: str, hint: str
) -> None:
    """The same way as any other: the file, the name, and what was meant or is allowed."""
    file = write(env, text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(env)
    assert str(file) in str(caught.value)
    assert hint in caught.value.hint


def test_every_setting_is_documented() -> None:
    """The page names every setting and every variable, and each has a description."""
    page = (Path(__file__).parents[2] / "docs" / "CONFIGURATION.md").read_text("utf-8")
    names = {name for name, _ in list_settings()}
    assert {name for name in names if f"`{name}`" not in page} == set()
    variables = {setting.variable for _, setting in list_settings()} - {""}
    assert {
        name for name in variables | set(VARIABLES) if f"`{name}`" not in page
    } == set()
    assert all(setting.description.endswith(".") for _, setting in list_settings())


def test_memory_reviews_by_itself_and_loads_only_what_is_named(
    env: dict[str, str],
) -> None:
    """The file may say otherwise, and a variable wins over it and is shown as locked."""
    assert (load(env).memory.review, load(env).memory.providers) == (True, ())
    write(env, '[memory]\nreview = false\nproviders = ["b", "a", "b"]')
    assert (load(env).memory.review, load(env).memory.providers) == (False, ("b", "a"))
    config = load(
        env | {"TENAX_MEMORY_REVIEW": "True", "TENAX_MEMORY_PROVIDERS": " c, d,"}
    )
    assert (config.memory.review, config.memory.providers) == (True, ("c", "d"))
    assert config.locked == {
        "memory.review": "TENAX_MEMORY_REVIEW",
        "memory.providers": "TENAX_MEMORY_PROVIDERS",
    }
    with pytest.raises(
        ConfigError, match="TENAX_MEMORY_REVIEW is 'no'; it must be true or false"
    ):
        load(env | {"TENAX_MEMORY_REVIEW": "no"})


def test_the_page_is_served_on_loopback_unless_told_otherwise(
    env: dict[str, str],
) -> None:
    """The file may say another place, and a variable wins over it and is shown as locked."""
    assert (load(env).serve.host, load(env).serve.port) == ("127.0.0.1", 8629)
    write(env, '[serve]\nhost = "0.0.0.0"\nport = 80')
    assert (load(env).serve.host, load(env).serve.port) == ("0.0.0.0", 80)
    config = load(env | {"TENAX_HOST": "::1", "TENAX_PORT": "9000"})
    assert (config.serve.host, config.serve.port) == ("::1", 9000)
    assert config.locked == {"serve.host": "TENAX_HOST", "serve.port": "TENAX_PORT"}
    assert config.serve.proxies == ()
    write(env, '[serve]\nproxies = ["127.0.0.1", "::1"]')
    assert load(env).serve.proxies == ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("https://tenax.example.org", "https://tenax.example.org"),
        ("https://Tenax.Example.org:443/", "https://tenax.example.org"),
        ("HTTP://tenax.lan:80", "http://tenax.lan"),
        ("https://tenax.example.org:8443", "https://tenax.example.org:8443"),
        ("https://example.org/tenax/", "https://example.org/tenax"),
        ("https://example.org/a/b_c", "https://example.org/a/b_c"),
        ("https://[2001:DB8::1]:8443/", "https://[2001:db8::1]:8443"),
    ],
)
def test_the_public_address_is_read_as_browsers_write_it(
    env: dict[str, str], text: str, read: str
) -> None:
    assert load(env).serve.url == ""
    write(env, f'[serve]\nurl = "{text}"')
    assert load(env).serve.url == read


@pytest.mark.parametrize(
    "text",
    [
        "tenax.example.org",
        "ftp://tenax.example.org",
        "https://",
        "https:///tenax",
        "https://tenax.example.org:port",
        "https://tenax.example.org:99999",
        "https://anna:word@tenax.example.org",
        "https://tenax.example.org/?a=b",
        "https://tenax.example.org/#top",
        "https://tenax.example.org/a b",
        "https://tenax.example.org/a//b",
        "https://tenax.example.org/a/../b",
        "https://tenax.example.org/%61",
        "https://t\u00e4nax.example.org",
        "https://[2001:db8::1",
    ],
)
def test_a_public_address_that_cannot_be_is_told(
    env: dict[str, str], text: str
) -> None:
    """The sentence names the setting and shows an example, but no password."""
    write(env, f'[serve]\nurl = "{text}"')
    with pytest.raises(ConfigError, match=r"serve\.url in .* cannot be the") as told:
        load(env)
    assert 'url = "https://tenax.example.org"' in told.value.hint
    assert "word" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (
            "port = 65536",
            {},
            r"serve\.port in .* must be a whole number from 1 to 65535",
        ),
        ("port = 0", {}, r"serve\.port .* whole number from 1 to 65535"),
        ('port = "80"', {}, r"serve\.port .* whole number from 1 to 65535"),
        ("", {"TENAX_PORT": "http"}, "TENAX_PORT is 'http'; it must be a whole number"),
        ("", {"TENAX_PORT": "0"}, "TENAX_PORT is '0'"),
        (
            'host = "http://x"',
            {},
            r"serve\.host in .* must be the name or the address of a host",
        ),
        (
            'host = ""',
            {},
            r"serve\.host in .* must be the name or the address of a host",
        ),
        (
            "",
            {"TENAX_HOST": "my host"},
            "TENAX_HOST is 'my host'; it must be the name or the address of a host",
        ),
        (
            "",
            {"TENAX_URL": "tenax.example.org"},
            "TENAX_URL is 'tenax.example.org', which cannot be the address of the page",
        ),
        (
            'proxies = ["10.0.0.0/8"]',
            {},
            r"serve\.proxies in .* has '10\.0\.0\.0/8', which is not an IP address",
        ),
    ],
)
def test_a_place_that_cannot_be_is_told(
    env: dict[str, str], text: str, more: dict[str, str], said: str
) -> None:
    """A port is a number that a port can have, a host has no scheme and no space."""
    write(env, f"[serve]\n{text}")
    with pytest.raises(ConfigError, match=said):
        load(env | more)


def test_the_practice_model_needs_nothing_but_its_api(env: dict[str, str]) -> None:
    """No address, no key, no name: it is always called the same."""
    write(env, '[models.p]\napi = "practice"')
    config = load(env)
    assert config.model == "p"
    assert (
        config.models["p"].name,
        config.models["p"].url,
        config.models["p"].key,
    ) == ("practice", "", None)


def test_a_service_for_speech_is_named_by_its_address(env: dict[str, str]) -> None:
    """Without an address there is none, a wrong address is refused, and a key is never in the file."""
    assert load(env).speech.url is None
    write(env, '[speech]\nurl = "http://127.0.0.1:8000/v1"\nkey = "env:SPEECH"')
    speech = load(env | {"SPEECH": "s-1"}).speech
    assert (speech.url, speech.model) == ("http://127.0.0.1:8000/v1", "whisper-1")
    assert speech.key is not None
    assert speech.key.reveal() == "s-1"
    for text, refusal in (
        ('url = "whisper"', r"speech\.url .* must be an address that begins with http"),
        ('key = "s-1234"', r"speech\.key .* never the key itself"),
        ("timeout_seconds = 0", r"speech\.timeout_seconds"),
        ('speed = "fast"', r"speech\.speed"),
    ):
        write(env, f"[speech]\n{text}")
        with pytest.raises(ConfigError, match=refusal) as refused:
            load(env)
        assert "s-1234" not in str(refused.value)


def test_one_service_looks_things_up_in_the_web(env: dict[str, str]) -> None:
    """By an address, or by where its key is; none unless it is named."""
    assert (
        load(env).search.searxng,
        load(env).search.brave,
        load(env).search.tavily,
    ) == (None, None, None)
    write(env, '[search]\nsearxng = "http://127.0.0.1:8888"')
    assert load(env).search.searxng == "http://127.0.0.1:8888"
    write(env, '[search]\nbrave = "env:BRAVE"')
    found = load(env | {"BRAVE": "b-1"}).search.brave
    assert found is not None
    assert found.reveal() == "b-1"
    for text, said in (
        (
            'searxng = "localhost"',
            r"search\.searxng .* must be an address that begins with http",
        ),
        ('brave = "b-1234"', r"search\.brave .* never the key itself"),
        ('brave = "env:A"\ntavily = "env:B"', "names brave, tavily; choose one"),
        ('google = "x"', "google"),
    ):
        write(env, f"[search]\n{text}")
        with pytest.raises(ConfigError, match=said) as refused:
            load(env)
        assert "b-1234" not in str(refused.value)


def test_rules_are_read_in_their_order(env: dict[str, str]) -> None:
    """Of any tool, also one that is not there; without a pattern they are about everything that it touches."""
    assert load(env).rules == ()
    write(
        env, f'{DENY}[[rules]]\nverdict = "allow"\ntool = "mcp_*"\ntouches = "a/[[]*"\n'
    )
    assert load(env).rules == (
        Rule("deny", "write_file"),
        Rule("allow", "mcp_*", "a/[[]*"),
    )


def test_tools_never_work_on_what_is_tenaxs_own(env: dict[str, str]) -> None:
    """A folder that holds settings, keys or the store is refused; one beside or inside is not."""
    write(env, f'[tools]\nfolder = "{load(env).directories.data}"')
    with pytest.raises(ConfigError, match="holds Tenax's own files"):
        load(env)
    write(env, '[tools]\nfolder = "/"')
    with pytest.raises(ConfigError, match="holds Tenax's own files"):
        load(env)
    home = Path(env["TENAX_HOME"])
    (home / "link").symlink_to(home)
    for way_round in ("link", "work/.."):  # relative to the data folder
        write(env, f'[tools]\nfolder = "{way_round}"')
        with pytest.raises(ConfigError, match="holds Tenax's own files"):
            load(env)
    write(env, '[tools]\nfolder = "/srv/work"')
    assert str(load(env).tools_folder) == "/srv/work"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://ada:hunter%402@db/t", {"hunter%402", "hunter@2"}),
        ("postgresql://db/t?user=a&password=hunter2&x=1", {"hunter2"}),
        ("postgresql://ada@db/t", set()),
    ],
)
def test_the_password_in_an_address_is_a_secret_too(url: str, found: set[str]) -> None:
    """What tools say is searched for it, as it is written and as it is meant."""
    assert set(find_secrets(load({"HOME": "/home/ada", "TENAX_STORE": url}))) == found


def test_a_clone_in_the_default_folder_is_not_worked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever clones Tenax to ~/tenax and starts it there gets a folder in which no program of Tenax lies."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "tenax" / ".venv"))
    config = load({"HOME": str(tmp_path)})
    assert config.tools_folder == config.directories.data / "work"
    monkeypatch.undo()
    assert load({"HOME": str(tmp_path)}).tools_folder == tmp_path / "tenax"
