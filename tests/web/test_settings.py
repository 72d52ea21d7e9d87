"""`/api/settings`: the owner sees and changes the settings; keys are only written, and variables lock."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.models import Reply
from tests.support.served import Page, Served
from tests.support.turns import set_up

KEY = "sk-hunter2-secret"
SECOND = """
# The second model.
[models.second]
url = "http://127.0.0.1:9/v1"  # nobody
name = "second"
key = "env:NO_SUCH_VARIABLE"
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    set_up(tmp_path, [Reply("Done.")])
    with (tmp_path / "config.toml").open("a") as file:
        file.write(SECOND)
    with Served(tmp_path, env={"TENAX_MEMORY_REVIEW": "false"}) as served:
        yield served


@pytest.fixture
def page(served: Served) -> Page:
    return served.browser()


def shown(page: Page) -> dict[str, Any]:
    return {setting["name"]: setting for setting in page.get("/settings")["settings"]}


def change(page: Page, status: int = 200, **changes: Any) -> Any:
    body = {name.replace("__", "."): value for name, value in changes.items()}
    answer = page.http.patch("/api/settings", json=body)
    assert answer.status_code == status, answer.text
    assert KEY not in answer.text
    return answer.json()


def test_every_setting_has_a_kind_a_value_and_a_description(page: Page) -> None:
    """Values of all sections; a variable that sets one is named."""
    found = shown(page)
    assert all(setting["description"].endswith(".") for setting in found.values())
    review = found["memory.review"]
    assert (review["kind"], review["value"], review["locked"]) == (
        "bool",
        False,
        "TENAX_MEMORY_REVIEW",
    )
    assert (found["resume"]["kind"], found["resume"]["choices"]) == (
        "choice",
        ["auto", "ask"],
    )
    assert found["fallback"]["choices"] == ["main", "second"]
    assert found["tools.folder"]["restart"] is True
    assert found["budget.day"]["value"] is None
    second = {
        name.rpartition(".")[2]: setting["kind"]
        for name, setting in found.items()
        if setting["section"] == "models.second"
    }
    assert second == {
        "context": "int",
        "max_tokens": "int",
        "temperature": "float",
        "effort": "choice",
        "price_input": "float",
        "price_output": "float",
        "sees": "bool",
        "key": "secret",
    }


def test_a_change_is_written_and_used_at_once_and_comments_stay(
    page: Page, tmp_path: Path
) -> None:
    """All changes of a request are made. Null restores the default."""
    changed = change(
        page,
        budget__day=5,
        fallback=["second"],
        resume="ask",
        context_files=False,
        models__second__temperature=0.5,
        models__second__effort="high",
        models__second__context=8000,
    )
    found = {setting["name"]: setting["value"] for setting in changed["settings"]}
    assert found["budget.day"] == 5
    assert found["models.second.effort"] == "high"
    text = (tmp_path / "config.toml").read_text()
    assert "# The second model." in text
    assert "# nobody" in text
    values = tomllib.loads(text)
    assert values["fallback"] == ["second"]
    assert values["models"]["second"]["temperature"] == 0.5
    change(page, budget__day=None, fallback=None)
    values = tomllib.loads((tmp_path / "config.toml").read_text())
    assert "fallback" not in values
    assert values.get("budget", {}) == {}
    assert shown(page)["budget.day"]["value"] is None


def test_a_key_is_written_apart_and_never_shown(page: Page, tmp_path: Path) -> None:
    """A removed key is forgotten; a key in the environment is named, not stored."""
    file, secrets = tmp_path / "config.toml", tmp_path / "secrets.toml"
    assert shown(page)["models.second.key"]["is_set"] is False
    change(page, search__brave=KEY, models__second__key=KEY)
    assert KEY not in file.read_text()
    assert secrets.stat().st_mode & 0o077 == 0
    assert list(tomllib.loads(secrets.read_text()).values()) == [KEY, KEY]
    brave = shown(page)["search.brave"]
    assert (brave["value"], brave["is_set"]) == (None, True)
    assert "secrets.toml" in brave["origin"]
    change(page, search__brave=None)
    assert list(tomllib.loads(secrets.read_text()).values()) == [KEY]
    assert shown(page)["search.brave"]["is_set"] is False


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("memory__review", True, 409),
        ("budget__day", -1, 409),
        ("budget__day", "much", 409),
        ("budget__nothing", 1, 400),
        ("resume", "never", 409),
        ("fallback", ["none"], 409),
        ("models__second__temperature", 3, 409),
        ("models__none__temperature", 1, 400),
        ("models__second__url", "http://evil.invalid", 400),
        ("store__url", "sqlite:///x", 400),
        ("rules", [], 400),
        ("tools__folder", "~", 200),
        ("tools__folder", "/", 409),
        ("search__brave", "", 400),
        ("search__brave", "two words", 409),
        ("search__searxng", "http://user:***@host", 400),
    ],
)
def test_what_cannot_be_set_changes_nothing(
    page: Page, tmp_path: Path, name: str, value: Any, status: int
) -> None:
    """Neither an invalid value, nor a setting that is not offered, nor one that a variable sets."""
    before = (tmp_path / "config.toml").read_text()
    answer = change(page, status, **{name: value, "budget__conversation": 1})
    if status != 200:
        assert answer["detail"].endswith(".")
        assert (tmp_path / "config.toml").read_text() == before
        assert not (tmp_path / "secrets.toml").exists()


def test_a_model_is_removed_with_its_key_but_not_the_one_that_answers(
    page: Page, tmp_path: Path
) -> None:
    change(page, models__second__key=KEY, fallback=["second"])
    refused = page.http.delete("/api/models/main")
    assert refused.status_code == 400
    assert refused.json()["hint"] == "Choose another model first."
    assert page.http.delete("/api/models/none").status_code == 400
    answer = page.http.delete("/api/models/second")
    assert answer.status_code == 200, answer.text
    values = tomllib.loads((tmp_path / "config.toml").read_text())
    assert (list(values["models"]), values["fallback"]) == (["main"], [])
    assert tomllib.loads((tmp_path / "secrets.toml").read_text()) == {}
    assert page.get("/setup")["labels"] == ["main"]


def test_settings_are_the_owners(served: Served) -> None:
    berta = served.browser(served.tenax("link", "--user", "berta").stdout.strip())
    assert berta.http.get("/api/settings").status_code == 409
    body = {"budget.day": 1}
    assert berta.http.patch("/api/settings", json=body).status_code == 409
    assert berta.http.delete("/api/models/second").status_code == 409
