"""A provider that was written for another agent loads and runs unchanged."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenax.memory import MemoryManager, MemoryProvider
from tenax.memory.providers.plugins import GROUPS, Loaded, find_plugins, load_plugin

CODE = '''
"""A memory that keeps turns in a list."""

from typing import Any, Dict, List

from agent.memory_provider import MemoryProvider

from . import store


class ListMemoryProvider(MemoryProvider):
    def __init__(self, config=None):
        self._turns = store.new()
        self._session = ""

    @property
    def name(self) -> str:
        return "list"

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs) -> None:
        self._session = session_id

    def system_prompt_block(self) -> str:
        return "A list of turns is kept."

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        return "\\n".join(turn for turn in self._turns if query in turn)

    def sync_turn(self, user_content: str, assistant_content: str, *, session_id: str = "") -> None:
        self._turns.append(f"{session_id or self._session}: {user_content} / {assistant_content}")

    def get_tool_schemas(self) -> List[Dict[str, Any]]:
        return [{"name": "list_count", "description": "Count.", "parameters": {"type": "object", "properties": {}}}]

    def handle_tool_call(self, tool_name: str, args: Dict[str, Any], **kwargs) -> str:
        return str(len(self._turns))

    def on_session_end(self, messages: List[Dict[str, Any]]) -> None:
        self._turns.append(f"end of {len(messages)}")

    def shutdown(self) -> None:
        self._turns.clear()
'''
REGISTER = """

def register(ctx) -> None:
    ctx.register_command("list", None)
    ctx.register_memory_provider(ListMemoryProvider(config={}))
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's own modules are gone afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"agent", "listed"} or name.startswith(
            "_tenax_plugin_"
        ):
            del sys.modules[name]
    importlib.invalidate_caches()


def package(place: Path, code: str = CODE + REGISTER) -> Path:
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(code)
    (place / "store.py").write_text("def new():\n    return []\n")
    return place


def install(site: Path, group: str, value: str) -> None:
    """A distribution as an installer leaves it."""
    info = site / "listed-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: listed\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\nlisted = {value}\n")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()


def only(folder: Path | None = None) -> Loaded:
    (found,) = find_plugins(folder)
    return load_plugin(found, seconds=60)


def works(loaded: Loaded) -> None:
    """Everything that a turn asks of a provider."""
    assert loaded.problem == ""
    assert loaded.provider is not None
    manager = MemoryManager(recall_seconds=60)
    manager.add_provider(loaded.provider).deliver("initialize", "s1", platform="cli")
    manager.sync_all("tea?", "yes", messages=[{"role": "user", "content": "tea?"}])
    manager.notify_all("on_session_end", [{"role": "user", "content": "tea?"}])
    assert manager.flush_pending(60)
    assert manager.prefetch_all("tea", session_id="s1") == "s1: tea? / yes"
    assert manager.system_prompt() == "A list of turns is kept."
    assert [schema["name"] for schema in manager.tool_schemas()] == ["list_count"]
    assert manager.handle_tool_call("list_count", {}) == "2"
    manager.shutdown_all()


@pytest.mark.parametrize("code", [CODE, CODE + REGISTER])
def test_a_provider_in_the_folder_of_plugins_runs_unchanged(
    tmp_path: Path, code: str
) -> None:
    """With a function register, or with just the class."""
    package(tmp_path / "plugins" / "list-memory", code)
    loaded = only(tmp_path / "plugins")
    assert isinstance(loaded.provider, MemoryProvider)
    works(loaded)


def test_two_users_of_a_folder_share_no_module(tmp_path: Path) -> None:
    """A second file of the plugin may hold what a user said, also one that is imported later."""
    place = package(tmp_path / "plugins" / "list-memory")
    (place / "store.py").write_text(
        "turns = []\n\n\ndef new():\n    from . import late\n    return late.turns\n"
    )
    (place / "late.py").write_text("turns = []\n")
    first, second = (
        only(tmp_path / "plugins").provider,
        only(tmp_path / "plugins").provider,
    )
    assert first is not None
    assert second is not None
    first.sync_turn("tea", "yes", session_id="s")
    assert first.prefetch("tea", session_id="s") == "s: tea / yes"
    assert second.prefetch("tea", session_id="s") == ""


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "value", ["listed", "listed:register", "listed:ListMemoryProvider"]
)
def test_an_installed_provider_runs_unchanged(
    tmp_path: Path, group: str, value: str
) -> None:
    """Its entry point names a module, a function or a class."""
    package(tmp_path / "listed")
    install(tmp_path, group, value)
    works(only())


def test_nothing_is_left_where_a_real_agent_would_be_looked_for(tmp_path: Path) -> None:
    """Before, after, and after a failure: no module `agent`, no finder; one that is installed later is found."""
    finders = list(sys.meta_path)
    package(tmp_path / "one" / "good")
    package(
        tmp_path / "two" / "bad",
        "import agent.memory_provider\nraise ValueError('no')\n",
    )
    assert only(tmp_path / "one").provider is not None
    assert "ValueError: no" in only(tmp_path / "two").problem
    assert not {"agent", "agent.memory_provider"} & set(sys.modules)
    assert sys.meta_path == finders
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("agent.memory_provider")
    real_agent(tmp_path / "site", "class MemoryProvider: real = True\n")
    assert importlib.import_module("agent.memory_provider").MemoryProvider.real


def real_agent(site: Path, code: str | None) -> None:
    (site / "agent").mkdir(parents=True)
    (site / "agent" / "__init__.py").write_text("")
    if code is not None:
        (site / "agent" / "memory_provider.py").write_text(code)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()


def test_a_real_base_class_goes_before_ours(tmp_path: Path) -> None:
    """Where the other agent is installed, its provider has its own base, and runs here all the same."""
    real_agent(tmp_path / "site", "class MemoryProvider: real = True\n")
    package(tmp_path / "plugins" / "list")
    loaded = only(tmp_path / "plugins")
    assert not isinstance(loaded.provider, MemoryProvider)
    works(loaded)
    assert sys.modules["agent.memory_provider"].MemoryProvider.real


def test_another_package_of_that_name_is_left_as_it_was(tmp_path: Path) -> None:
    """Somebody else's `agent` has no such module: ours is lent for the import and taken back."""
    real_agent(tmp_path / "site", None)
    package(tmp_path / "plugins" / "list")
    works(only(tmp_path / "plugins"))
    assert "agent.memory_provider" not in sys.modules
    assert not hasattr(sys.modules["agent"], "memory_provider")


def test_only_the_importing_thread_sees_the_stand_in(tmp_path: Path) -> None:
    """Somebody else who looks for it meanwhile does not find it."""
    started, looked = threading.Event(), threading.Event()
    sys.modules["listed"] = type(sys)("listed")
    vars(sys.modules["listed"]).update(started=started, looked=looked)
    package(
        tmp_path / "list",
        "import listed\nlisted.started.set()\nassert listed.looked.wait(60)\n" + CODE,
    )
    results: list[Any] = []
    loading = threading.Thread(target=lambda: results.append(only(tmp_path)))
    loading.start()
    assert started.wait(60)
    assert importlib.util.find_spec("agent") is None
    looked.set()
    loading.join(60)
    assert results[0].provider is not None


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("no Python (", "SyntaxError"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("x = 1", "no function register"),
        ("def register(ctx): pass", "does not give a memory provider"),
        (
            "def register(ctx): ctx.register_memory_provider(7)",
            "does not give a memory provider",
        ),
        (CODE.replace("return True", "return False"), "not set up"),
        ("import threading\nthreading.Event().wait()", "not loaded within"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_told_in_a_sentence(
    tmp_path: Path, code: str, problem: str
) -> None:
    """Nothing is raised, and another plugin can be loaded after it."""
    package(tmp_path / "bad", code)
    package(tmp_path / "good")
    bad, good = find_plugins(tmp_path)
    loaded = load_plugin(bad, seconds=60 if "within" not in problem else 0.5)
    assert loaded.provider is None
    assert problem in loaded.problem
    works(load_plugin(good, seconds=60))


def test_a_folder_goes_before_a_package_of_the_same_name(tmp_path: Path) -> None:
    """Each name is offered once; finding imports nothing; what is no plugin is passed over."""
    package(tmp_path / "site" / "listed", "raise ValueError")
    install(tmp_path / "site", GROUPS[0], "listed")
    package(tmp_path / "plugins" / "listed", "raise ValueError")
    (tmp_path / "plugins" / ".hidden").mkdir()
    (tmp_path / "plugins" / "notes.txt").write_text("")
    (found,) = find_plugins(tmp_path / "plugins")
    assert found.where == f"The folder {tmp_path / 'plugins' / 'listed'}"
    assert [plugin.where for plugin in find_plugins(tmp_path / "missing")] == [
        "the package listed"
    ]
