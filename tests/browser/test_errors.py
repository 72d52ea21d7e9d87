"""What goes wrong is told on the page in a sentence of ours, with what to do; nobody sees a traceback.

What keeps Tenax from starting is told in the terminal: tests/web/test_serving.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tenax.models import Reply, Script, Trouble
from tenax.testing import Provider
from tests.support.browser import Beside, Pace, Serve, Window, expect
from tests.support.served import Served

KEY = "sk-hunter2-hunter2-hunter2"
CONFIG = """model = "main"
[models.main]
api = "openai"
url = "{url}"
name = "large-1"
key = "env:MAIN_KEY"
"""
NO_CREDIT = Trouble(
    "refused", "You exceeded your current quota: insufficient credits.", status=402
)
UNKNOWN = Trouble("refused", "The model `large-1` does not exist.", status=404)
REFUSALS = {
    "wrong key": (
        Trouble("key", f"Incorrect API key provided: {KEY}"),
        "rejected the API key.",
    ),
    "no credit": (NO_CREDIT, "has no credit left."),
    "unknown model": (UNKNOWN, "has no model large-1."),
}


def no_traceback(served: Served, *texts: str) -> None:
    """Neither on the page, nor in what the commands say, nor in the log, where nothing is an error either."""
    log = served.home / "log" / "tenax.log"
    written = log.read_text() if log.exists() else ""
    _, said, _ = served.stop()
    for text in (*texts, written, said):
        assert "Traceback" not in text
        assert "hunter2" not in text
    assert " ERROR " not in written, written


def told(
    served: Served, window: Window, sentence: str, *, seconds: float = 30.0
) -> None:
    """Ask in a terminal and on the page: both tell the sentence, and the page stays usable."""
    command = [sys.executable, "-m", "tenax", "-p", "Hello there"]
    terminal = subprocess.Popen(
        command, env=served.env, stdout=PIPE, stderr=PIPE, text=True
    )
    tab = window.enter(served)
    tab.say("Hello there")
    marker = tab.rows("marker", "failed")
    expect(marker).to_contain_text(sentence, timeout=seconds * 1000)
    expect(marker).to_contain_text("Something went wrong.")
    expect(tab.button("Send")).to_be_visible()
    assert tab.texts("user") == ["Hello there"]
    out, err = terminal.communicate(timeout=seconds)
    assert terminal.returncode != 0
    assert sentence in " ".join(err.split())
    no_traceback(served, tab.page.inner_text("body"), out, err)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_provider_that_refuses_is_told(
    serve: Serve, window: Window, beside: Beside, tmp_path: Path, name: str
) -> None:
    """In our words; what the provider said of the key is not repeated."""
    trouble, sentence = REFUSALS[name]
    provider = beside.enter(Provider(Script([Reply(trouble=trouble)], repeat=True)))
    (tmp_path / "config.toml").write_text(CONFIG.format(url=f"{provider.url}/v1"))
    told(serve(env={"MAIN_KEY": KEY}), window, sentence)


# Python runs this when it starts: a server that is away is asked again as often as ever, only sooner.
IMPATIENT = """
import sys
if {"tenax.web", "-p"} & set(sys.orig_argv):
    from functools import partial
    from tenax.runtime import runtime
    runtime.Limits = partial(runtime.Limits, pause=0.05)
"""


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.7:11434/v1", "ollama serve"),
        ("http://models.invalid/v1", "the host name is unknown"),
    ],
    ids=["Ollama does not run", "no network"],
)
def test_a_server_that_is_not_there_is_told(
    serve: Serve, window: Window, tmp_path: Path, url: str, sentence: str
) -> None:
    """With how it is started, where that is known."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    (tmp_path / "config.toml").write_text(
        CONFIG.format(url=url).replace('key = "env:MAIN_KEY"\n', "")
    )
    told(serve(env={"PYTHONPATH": str(tmp_path)}), window, sentence, seconds=90)


def test_a_message_that_is_too_long_for_the_model_is_told(
    serve: Serve, window: Window, beside: Beside, tmp_path: Path
) -> None:
    """Nothing can be folded together to make room: it says so."""
    provider = beside.enter(Provider(Script([Reply("Yes.")], repeat=True), context=5))
    (tmp_path / "config.toml").write_text(CONFIG.format(url=f"{provider.url}/v1"))
    told(serve(env={"MAIN_KEY": KEY}), window, "too long for the context of large-1")


# Python runs this when it starts: the server's store then lies on a disk that fills up when it is told to.
FULL_DISK = """
import signal, sys
if "tenax.web" in sys.orig_argv:
    from tenax.journal.sqlite import SqliteStore
    from tests.contract.failing_vfs import Fault, FaultVfs
    disk = FaultVfs()
    SqliteStore.__init__.__kwdefaults__["vfs"] = disk.name
    signal.signal(signal.SIGUSR1, lambda *_: disk.fail("write", Fault.FULL, times=None))
    signal.signal(signal.SIGUSR2, lambda *_: disk.heal())
"""


def test_a_full_disk_holds_up_and_loses_nothing(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The answer that is being written is held beside the store, a message waits in the browser; with room both go on."""
    window.expects("status of 503")
    pace = Pace(tmp_path, 20)
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write(FULL_DISK)
    answer = " ".join(f"word{n:03}" for n in range(100))
    served = serve("Yes.", Reply(answer, pause=0.03), "Thank you.", env=pace.env)
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Yes.")
    tab.say("Talk")
    tab.shows("word010")
    os.kill(served.server(), signal.SIGUSR1)
    pace.say()
    expect(
        tab.page.get_by_text("of the answer are saved on the server's disk")
    ).to_be_visible()
    tab.say("Is there room?")
    expect(tab.rows("user", "unsent")).to_contain_text(
        "Not sent yet. Will send when the server responds."
    )
    os.kill(served.server(), signal.SIGUSR2)
    tab.answered("Thank you.", count=3)
    assert tab.texts("user") == ["Hello", "Talk", "Is there room?"]
    assert tab.texts("assistant") == ["Yes.", answer, "Thank you."]
    expect(tab.page.get_by_text("are saved on the server's disk")).to_have_count(0)
    no_traceback(served, tab.page.inner_text("body"))


def test_a_folder_that_cannot_be_written_is_told(serve: Serve, window: Window) -> None:
    """The configuration cannot be kept: a sentence on the first screen, and nothing half done."""
    window.expects("status of [45]")
    served = serve()
    tab = window.enter(served)
    (served.home / "config.toml").mkdir()
    tab.page.get_by_role("button", name="Use the practice model").click()
    expect(tab.page.get_by_role("alert").first).to_contain_text(
        "config.toml", timeout=90_000
    )
    no_traceback(served, tab.page.inner_text("body"))


def test_a_message_that_is_refused_goes_back_into_the_box(
    serve: Serve, window: Window
) -> None:
    """It can be mended there; what was begun meanwhile stays above it."""
    window.expects(r"status of 413")
    tab = window.enter(serve("Yes."))
    words = "x" * 4_200_000
    tab.page.get_by_label("Files to attach").set_input_files(
        {"name": "note.txt", "mimeType": "text/plain", "buffer": b"held"}
    )
    chips = tab.page.get_by_label("Attachments").get_by_role("listitem")
    expect(chips).to_contain_text("note.txt 1 KB")
    tab.say(words)
    refused = tab.rows("user", "unsent")
    expect(refused).to_contain_text("Not sent. This message is too long: it has 4,2")
    expect(refused).to_contain_text("Send it in several pieces.")
    tab.box.fill("Begun.")
    refused.get_by_role("button", name="Edit").click()
    expect(refused).to_have_count(0)
    expect(chips).to_contain_text("note.txt 1 KB")
    assert tab.box.input_value() == f"Begun.\n\n{words}"
    tab.say("Short.")
    tab.answered("Yes.", count=1)
    expect(tab.rows("user", "")).to_contain_text("note.txt")


def test_an_answer_that_breaks_off_is_one_answer_with_one_line(
    serve: Serve, window: Window
) -> None:
    """Two attempts were cut off. They are folded into one line above the answer."""
    cut = Trouble("dropped", "The connection dropped.", times=2)
    tab = window.enter(serve(Reply("The whole answer.", trouble=cut)))
    tab.say("Hello")
    tab.answered("The whole answer.")
    folded = tab.rows("assistant", "earlier")
    expect(folded).to_have_count(1)
    expect(folded.locator("summary")).to_have_text("2 attempts were cut off")
    expect(tab.rows("assistant")).to_have_count(2)


def test_a_model_that_says_nothing_gets_a_clock(serve: Serve, window: Window) -> None:
    """The dots alone do not tell a slow model from a page that stopped."""
    tab = window.enter(serve(Reply(hang=True)))
    tab.say("Are you there?")
    dots = tab.page.get_by_label("Waiting for the answer")
    expect(dots).to_have_text(re.compile(r"^[3-9] s$"))
    tab.button("Stop").click()
    expect(dots).to_have_count(0)


def test_a_rate_limit_counts_down_to_the_next_try(serve: Serve, window: Window) -> None:
    """With the reason and the number of the attempt, until Stop."""
    limit = Trouble("rate", "Rate limit reached.", retry_after=300.0)
    tab = window.enter(serve(Reply("Never.", trouble=limit)))
    tab.say("Hello")
    notice = tab.rows("notice", "retrying")
    expect(notice).to_contain_text("Rate limit reached.")
    expect(notice).to_contain_text(
        re.compile(r"Next try in \d min \d+ s \(attempt 1 failed\)")
    )
    tab.button("Stop").click()
    expect(tab.rows("marker", "stopped")).to_be_visible()
    expect(notice).not_to_contain_text("Next try")
