"""Changes to the file: what a person wrote stays, keys stay apart, and a file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.clock import Timing
from tenax.config import load
from tenax.config.rules import Rule, escape_pattern, propose
from tenax.config.write import Rules, add_model, add_rule, choose_model, remove_rule
from tenax.errors import ConfigError, InvalidInput

KEY = "sk-hunter2-hunter2"
LOCAL = {"api": "openai", "url": "http://127.0.0.1:11434/v1", "name": "qwen3:8b"}
WRITTEN = """\
# My settings.
model = "old"   # the one I like

[store]
url = "sqlite" # stays here

[models.old]  # from last year
api = "openai"
url = "http://127.0.0.1:1/v1"
name = "m"

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


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_first_model_makes_file_and_folder(env: dict[str, str]) -> None:
    """For this person only; loaded again, the model is there and answers."""
    assert add_model(load(env), "ollama", LOCAL) == "ollama"
    config = load(env)
    assert config.model == "ollama"
    assert (config.models["ollama"].name, config.models["ollama"].url) == (
        LOCAL["name"],
        LOCAL["url"],
    )
    assert (mode(config.file), mode(config.file.parent)) == (0o600, 0o700)
    assert [path.name for path in config.file.parent.iterdir()] == ["config.toml"]


def test_comments_order_and_permissions_stay(env: dict[str, str]) -> None:
    """Every line that a person wrote is there afterwards, in its place, but for the model that was chosen."""
    file = write(env, WRITTEN)
    file.chmod(0o640)
    add_model(load(env), "ollama", LOCAL)
    lines = iter(file.read_text().splitlines())
    kept = [
        line.replace('"old"', '"ollama"') if line.startswith("model =") else line
        for line in WRITTEN.splitlines()
    ]
    assert all(line in lines for line in kept), file.read_text()
    assert mode(file) == 0o640
    assert load(env).models["old"].name == "m"


def test_a_label_that_is_taken_gets_a_number(env: dict[str, str]) -> None:
    """Unless it says the same: the same choice twice is one section."""
    assert add_model(load(env), "ollama", LOCAL) == "ollama"
    assert add_model(load(env), "ollama", LOCAL) == "ollama"
    assert add_model(load(env), "ollama", LOCAL | {"name": "other"}) == "ollama2"
    assert add_model(load(env), "ollama", LOCAL, choose=False) == "ollama"
    config = load(env)
    assert (config.model, list(config.models)) == ("ollama2", ["ollama", "ollama2"])


def test_a_label_may_be_any_text(env: dict[str, str]) -> None:
    """It is quoted where TOML wants it."""
    assert load(env).model is None
    label = add_model(load(env), 'my "own" model.v1', LOCAL)
    assert load(env).model == label


def test_a_key_goes_to_a_file_that_nobody_else_reads(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first moment on, whatever the umask; the settings only name it."""
    made: list[int] = []
    replace = os.replace

    def watch(source: Path, target: Path, **folders: Any) -> None:
        made.append(mode(source))
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", watch)
    before = os.umask(0)
    try:
        add_model(load(env), "groq", LOCAL, key=f"{KEY}\n")
    finally:
        os.umask(before)
    config = load(env)
    secrets = config.file.with_name("secrets.toml")
    assert (mode(secrets), made) == (0o600, [0o600, 0o600])
    assert KEY not in config.file.read_text()
    found = config.models["groq"].key
    assert found is not None
    assert found.reveal() == KEY
    add_model(config, "groq", LOCAL, key="another")
    add_model(load(env), "groq", LOCAL, key=KEY)
    config = load(env)
    revealed = {
        label: each.key.reveal() for label, each in config.models.items() if each.key
    }
    assert revealed == {"groq": KEY, "groq2": "another"}
    assert config.model == "groq"


def test_keys_that_others_could_read_are_closed_to_them(env: dict[str, str]) -> None:
    """And comments among the keys stay."""
    file = write(env, "").with_name("secrets.toml")
    file.write_text('# mine\nA = "b"\n')
    file.chmod(0o644)
    add_model(load(env), "x", LOCAL, key=KEY)
    assert mode(file) == 0o600
    assert file.read_text().startswith('# mine\nA = "b"\n')


@pytest.mark.parametrize("key", ["", "two words", "caf\xe9"])
def test_what_is_no_key_is_refused(env: dict[str, str], key: str) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="what was given"):
        add_model(load(env), "x", LOCAL, key=key)
    assert not load(env).file.exists()


def test_broken_secrets_are_never_quoted(env: dict[str, str]) -> None:
    """What stands there may be a key."""
    write(env, "").with_name("secrets.toml").write_text("A = hunter2")
    with pytest.raises(ConfigError, match="not valid TOML") as caught:
        add_model(load(env), "x", LOCAL, key=KEY)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_choosing_changes_one_line(env: dict[str, str]) -> None:
    """A model that is not there is refused, with those that are."""
    file = write(env, WRITTEN)
    add_model(load(env), "ollama", LOCAL)
    choose_model(load(env), "old")
    assert load(env).model == "old"
    assert "# the one I like" in file.read_text()
    with pytest.raises(ConfigError, match="no model 'oldd'") as caught:
        choose_model(load(env), "oldd")
    assert "old, ollama" in caught.value.hint


def test_what_a_variable_says_cannot_be_changed_here(env: dict[str, str]) -> None:
    """The sentence names it, and nothing is written."""
    file = write(env, WRITTEN)
    config = load(env | {"TENAX_MODEL": "old"})
    with pytest.raises(ConfigError, match="TENAX_MODEL chooses the model"):
        add_model(config, "ollama", LOCAL, key=KEY)
    with pytest.raises(ConfigError, match="TENAX_MODEL"):
        choose_model(config, "old")
    assert file.read_text() == WRITTEN
    assert not file.with_name("secrets.toml").exists()
    add_model(config, "ollama", LOCAL, choose=False)
    assert list(load(env).models) == ["old", "ollama"]


def test_a_full_disk_leaves_the_old_file(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence, and nothing half-written lies about."""
    file = write(env, WRITTEN)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        ConfigError, match=r"config\.toml cannot be written: No space left on device\."
    ):
        add_model(load(env), "ollama", LOCAL)
    assert file.read_text() == WRITTEN
    assert list(file.parent.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_told(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Something else in the way of the folder, or a file that was changed to nonsense meanwhile."""
    (tmp_path / "home").write_text("no folder")
    config = load({"TENAX_HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"cannot be (read|written): Not a directory"):
        add_model(replace(config, file=tmp_path / "home" / "config.toml"), "x", LOCAL)
    (tmp_path / "config.toml").write_text("= 5")
    with pytest.raises(ConfigError, match="not valid TOML"):
        add_model(config, "x", LOCAL)


def test_a_link_stays_a_link(env: dict[str, str], tmp_path: Path) -> None:
    """People keep their settings elsewhere and link to them."""
    real = tmp_path / "dotfiles.toml"
    real.write_text(WRITTEN)
    link = Path(env["TENAX_HOME"]) / "config.toml"
    link.parent.mkdir()
    link.symlink_to(real)
    add_model(load(env), "ollama", LOCAL)
    assert link.is_symlink()
    assert "ollama" in real.read_text()


@pytest.mark.parametrize(
    "text",
    [
        'models = {x = {name = "y", url = "http://h"}}\n',
        'models.x.name = "y"\nmodels.x.url = "http://h"\n',
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left(
    env: dict[str, str], text: str
) -> None:
    """TOML has many ways to say a thing; where the change would say another, the person is told to make it."""
    file = write(env, text)
    with pytest.raises(ConfigError, match="safely") as caught:
        add_model(load(env), "ollama", LOCAL)
    assert "by hand" in caught.value.hint
    assert file.read_text() == text


# -- rules --------------------------------------------------------------------------------------------------------

ODD = "a [b]*?/\"c'd\\ é.txt"
RULED = f"""{WRITTEN}
# what it must not
[[rules]]   # mine
verdict = "deny"
tool = "write_file"
touches = "secret/*"

# what it may
[[rules]]
verdict = "allow"
tool = "edit_file"
touches = "notes/*"

# the very end
[serve]
port = 9000
"""


def test_a_rule_is_added_and_taken_back_and_the_file_is_as_before(
    env: dict[str, str],
) -> None:
    """Whatever characters a name has; the same rule twice is one; what is gone cannot be taken back again."""
    file = write(env, WRITTEN)
    rules = [
        Rule("allow", "write_file", escape_pattern(ODD)),
        Rule("deny", "*", "x\\y"),
    ]
    for rule in [*rules, *rules]:
        add_rule(load(env), rule)
    assert load(env).rules == tuple(rules)
    assert file.read_text().startswith(WRITTEN)
    for rule in rules:
        remove_rule(load(env), rule)
    assert file.read_text().rstrip() == WRITTEN.rstrip()
    with pytest.raises(InvalidInput, match="This rule no longer exists"):
        remove_rule(load(env), rules[0])


def test_comments_around_a_rule_stay(env: dict[str, str]) -> None:
    """Only the lines of the rule itself go, and no other setting changes."""
    file = write(env, RULED)
    remove_rule(load(env), Rule("allow", "edit_file", "notes/*"))
    for line in (
        "# what it must not",
        "[[rules]]   # mine",
        "# what it may",
        "# the very end",
        "[serve]",
    ):
        assert line in file.read_text()
    config = load(env)
    assert (config.rules, config.serve.port) == (
        (Rule("deny", "write_file", "secret/*"),),
        9000,
    )
    remove_rule(config, config.rules[0])
    assert (load(env).rules, load(env).serve.port, load(env).model) == ((), 9000, "old")
    assert "# what it must not" in file.read_text()


def test_a_file_that_cannot_be_changed_without_harm_is_left(
    env: dict[str, str],
) -> None:
    """Rules in one line are read, and not rewritten; words that look like a rule are no rule."""
    inline = 'rules = [{verdict = "deny", tool = "x"}]\n'
    file = write(env, inline)
    assert load(env).rules == (Rule("deny", "x"),)
    for change in (add_rule, remove_rule):
        with pytest.raises(ConfigError, match=r"cannot edit .* safely") as caught:
            change(load(env), Rule("deny", "x" if change is remove_rule else "y"))
        assert "by hand" in caught.value.hint
    assert file.read_text() == inline
    tricky = f'[models.x]\nurl = \'http://h\'\nname = """\n[[rules]]\n"""\n{RULED[len(WRITTEN) :]}'
    write(env, tricky)
    with pytest.raises(ConfigError, match=r"cannot edit .* safely"):
        remove_rule(load(env), Rule("allow", "edit_file", "notes/*"))
    assert file.read_text() == tricky


@pytest.mark.parametrize(
    "rule", [Rule("allow", ""), Rule("allow", "x", " "), Rule("deny", "x", "a\u202eb")]
)
def test_what_can_be_no_rule_is_refused(env: dict[str, str], rule: Rule) -> None:
    """Nothing is written."""
    with pytest.raises(InvalidInput, match="cannot be a rule"):
        add_rule(load(env), rule)
    assert not (Path(env["TENAX_HOME"]) / "config.toml").exists()


def test_two_who_add_at_once_both_have_their_way(env: dict[str, str]) -> None:
    """No rule is lost: one changes the file at a time."""
    # The last thread waits for all others.
    config = replace(load(env), timing=Timing(settings_lock_seconds=60.0))
    rules = [Rule("deny", f"tool{n}") for n in range(12)]
    threads = [threading.Thread(target=add_rule, args=(config, rule)) for rule in rules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(load(env).rules) == set(rules)


def test_rules_are_as_the_file_says_now(
    env: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever changed it. One that is broken changes nothing; for others only what forbids holds."""
    config = load(env)
    mine, others = Rules(config), Rules(config, allows=False)
    assert (mine(), others()) == ((), ())
    allow, deny = Rule("allow", "x"), Rule("deny", "y")
    add_rule(config, allow)
    add_rule(config, deny)
    assert (mine(), others()) == ((allow, deny), (deny,))
    file = config.file
    file.write_text("= 5")
    assert mine() == (allow, deny)
    assert "The rules stay as they were" in caplog.text
    file.unlink()
    assert mine() == ()


def test_rules_that_could_not_be_read_for_a_moment_hold_from_the_next_one_on(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has no file left to open, for instance: the file is not taken for one that was read."""
    config, deny = load(env), Rule("deny", "y")
    rules = Rules(config)
    assert rules() == ()
    add_rule(config, deny)

    def full(*_given: object, **_named: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", full)
    assert rules() == ()
    monkeypatch.undo()
    assert rules() == (deny,)


def test_rules_that_an_editor_writes_within_a_tick_of_the_clock_hold(
    env: dict[str, str],
) -> None:
    """It empties the file and fills it again; who looked in between looks again, whatever the time of the file says."""
    config, deny = load(env), Rule("deny", "y")
    add_rule(config, deny)
    rules, text = Rules(config), config.file.read_text()
    config.file.write_text("")
    assert rules() == ()
    when = config.file.stat().st_mtime_ns
    config.file.write_text(text)
    os.utime(config.file, ns=(when, when))
    assert rules() == (deny,)


@pytest.mark.parametrize("touches", [ODD, "[!a]*", "plain.txt", "]", "a/b/../c"])
def test_an_exact_pattern_fits_its_text_and_no_other(touches: str) -> None:
    """Brackets and stars in it are what they are, and stand for nothing else."""
    rule = Rule("allow", escape_pattern("note"), escape_pattern(touches))
    assert rule.matches("note", touches)
    others = [
        touches + "x",
        touches.replace("*", "xx"),
        touches.replace("?", "x"),
        touches.replace("[b]", "b"),
    ]
    assert not any(rule.matches("note", other) for other in others if other != touches)


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("src/*.py", ["src/a.py", "src/.py"], ["src/deep/a.py", "a.py"]),
        ("*", ["a.py", "src/deep/a.py"], []),
        ("src/*", ["src/a.py"], ["src/deep/a.py", "src"]),
        ("src/**", ["src/a.py", "src/deep/er/a.py"], ["src", "other/src/a.py"]),
        ("src/**.py", ["src/a.py", "src/deep/a.py"], ["src/a.txt", "a.py"]),
        ("**/test_*", ["a/test_b", "a/b/test_c"], ["a/test_b/secret", "test_d"]),
        ("*/b/**", ["a/b/c", "a/b/c/d"], ["x/a/b/c"]),
        ("src[!a]a.py", ["src-a.py"], ["src/a.py"]),
        ("src?a.py", ["src-a.py"], ["src/a.py"]),
    ],
)
def test_a_star_for_files_stays_in_its_folder(
    pattern: str, matched: list[str], not_matched: list[str]
) -> None:
    """In an allow rule about paths, only `**` matches folders below. A lone `*` means every file."""
    allow = Rule("allow", "write_file", pattern)
    assert [p for p in matched if not allow.matches("write_file", p, paths=True)] == []
    assert [p for p in not_matched if allow.matches("write_file", p, paths=True)] == []


@given(
    st.text("ab/*?[]!", max_size=12).filter(str.strip),
    st.text("ab/", max_size=12),
)
def test_a_deny_rule_matches_at_least_what_an_allow_rule_matches(
    pattern: str, path: str
) -> None:
    """A deny rule about a path matches as it did before `**` had a meaning, and an allow rule never matches more."""
    deny, allow = (Rule(verdict, "*", pattern) for verdict in ("deny", "allow"))
    assert deny.matches("edit_file", path, paths=True) == fnmatchcase(path, pattern)
    if allow.matches("edit_file", path, paths=True):
        assert fnmatchcase(path, pattern)


def test_what_is_proposed_for_a_call() -> None:
    """The very thing; of a file also its folder; nothing where the line hides or is too long to be read."""
    assert propose("a[1]/b*/c.txt", paths=True) == {
        "a[[]1]/b[*]/c.txt": "",
        "a[[]1]/b[*]/*.txt": "every .txt file in a[1]/b*",
        "a[[]1]/b[*]/**": "every file in a[1]/b* and below",
    }
    assert propose("rm -r a/b", paths=False) == {"rm -r a/b": ""}
    assert propose("top.txt", paths=True) == {
        "top.txt": "",
        "*.txt": "every .txt file in this folder",
    }
    assert list(propose("n/.env", paths=True)) == ["n/.env", "n/**"]
    assert list(propose("Makefile", paths=True)) == ["Makefile"]
    for none in ("", " ", "a\ufffdb", "x" * 5000):
        assert propose(none, paths=True) == {}
