"""A place of its own for every command, and what a command said there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.clock import Timing
from tenax.models import Reply, Script, Trouble

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own, with nothing in it."""
    for name in (
        "TENAX_STORE",
        "TENAX_CONFIG",
        "TENAX_LOG",
        "TENAX_MODEL",
        "OPENAI_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[str]:
    """The address of a provider that accepts no key."""
    script = tmp_path / "refusing.json"
    script.write_bytes(
        msgspec.json.encode(Script([Reply(trouble=Trouble("key"))], repeat=True))
    )
    args = [sys.executable, "-m", "tenax.testing.provider", "--script", str(script)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def tenax(
    capsys: pytest.CaptureFixture[str], *args: str, timing: Timing | None = None
) -> tuple[int, str, str]:
    """Run a command. Return the exit code, stdout and stderr."""
    capsys.readouterr()
    code = run(command, args, timing)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "hunter2" not in out + err
    return code, out, err
