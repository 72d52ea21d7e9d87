"""`tenax completion`, tried in a real bash; zsh and fish get the script that click writes for them."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tests.cli.conftest import tenax
from tests.support.runs import config_of
from tests.support.turns import set_up

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None, reason="bash is not installed"
)


def conversations(home: Path, *titles: str) -> list[str]:
    """New conversations with these titles, as ids."""

    async def make() -> list[str]:
        config = config_of(f"sqlite:///{home / 'tenax.db'}", home)
        async with Runtime(config, serves=False) as runtime:
            names = [await runtime.new(source="cli") for _ in titles]
            for name, title in zip(names, titles, strict=True):
                await runtime.rename(name, title)
            return names

    return asyncio.run(make())


def offered(home: Path, line: str) -> list[str]:
    """What bash offers after this line and a Tab."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "tenax"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tenax "$@"\n')
    program.chmod(0o700)
    words = [*line.split(" ")]
    script = f"""
eval "$(tenax completion bash)"
function=$(complete -p tenax | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
COMP_CWORD={len(words) - 1}
$function tenax
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path, "TENAX_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_conversations(home: Path) -> None:
    """An id by its beginning, or by a word that is in one title only; nothing where nothing fits."""
    set_up(home, [])
    pears, apples = conversations(home, "About pears", "About apples")
    assert offered(home, "tenax sh") == ["show"]
    assert "--changes" in offered(home, "tenax show --ch")
    assert offered(home, "tenax completion z") == ["zsh"]
    assert sorted(offered(home, "tenax show c_")) == sorted([pears, apples])
    assert offered(home, f"tenax export {pears[:-1]}") == [pears]
    assert offered(home, "tenax -c PEAR") == [pears]
    assert offered(home, "tenax show about") == []


def test_bash_gets_no_error_into_its_line(home: Path) -> None:
    """Without a store, and with a configuration that cannot be read."""
    assert offered(home, "tenax show c_") == []
    assert not (home / "tenax.db").exists()
    (home / "config.toml").write_text("model = [")
    assert offered(home, "tenax show c_") == []


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o nosort -F _tenax_completion tenax"),
        ("zsh", "#compdef tenax"),
        ("fish", "complete --no-files --command tenax"),
    ],
)
def test_every_shell_has_a_script(
    capsys: pytest.CaptureFixture[str], shell: str, line: str
) -> None:
    code, out, err = tenax(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert line in out
    assert f"_TENAX_COMPLETE={shell}_complete" in out


def test_a_tab_loads_neither_the_agent_nor_the_page(home: Path) -> None:
    """The shell starts `tenax` at every Tab."""
    code = """
import sys
from tenax.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    slow = {"asyncio", "httpx", "prompt_toolkit", "tenax.agent", "tenax.assembly", "tenax.models", "tenax.web"}  # fmt: skip
    set_up(home, [])
    (name,) = conversations(home, "About pears")
    for words, found in {"tenax s": "show", "tenax show c_": name}.items():
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "_TENAX_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"plain,{found}\n" in done.stdout
        assert not slow & set(done.stderr.split())
