"""Find and load memory providers from outside of Tenax.

A provider is a folder with an `__init__.py` in the folder of plugins, or an installed package with an entry point in
one of `GROUPS`. Both give a class, or a function `register(context)` with a call of
`context.register_memory_provider(provider)`. Existing providers of the field import their base class from
`agent.memory_provider`. If no such module exists, the name stands for Tenax's `MemoryProvider` during the import of a
provider, only on the thread of the import. Afterwards the name is removed.

Finding runs no code of a plugin. Loading runs code of the plugin, on a separate thread and with a deadline.
`Loaded.problem` describes a failure.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from tenax.concurrency import SerialThread
from tenax.memory.providers.base import MemoryProvider
from tenax.text import describe_error

__all__ = ["GROUPS", "Loaded", "Plugin", "find_plugins", "load_plugin"]

# The group of Tenax, and the group used by existing providers.
GROUPS = ("tenax.memory", "hermes_agent.memory_providers")
LOAD_SECONDS = 10.0
_PACKAGE, _MODULE = "agent", "agent.memory_provider"
_loading = threading.Lock()
_loads = itertools.count(1)


class Plugin(msgspec.Struct, frozen=True):
    """A provider found, but not loaded."""

    name: str
    # The location, for a person.
    where: str
    # Imports the plugin.
    open: Callable[[], Any]


class Loaded(msgspec.Struct, frozen=True):
    """A provider, or the reason for its absence."""

    name: str
    provider: MemoryProvider | None = None
    problem: str = ""


class _Unusable(Exception):
    """A sentence for a person about an unusable plugin."""


def find_plugins(folder: Path | None = None) -> list[Plugin]:
    """Return the available plugins. A folder hides a package of the same name."""
    plugins: dict[str, Plugin] = {}
    paths = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    for path in paths:
        if path.name[0] not in "._" and (path / "__init__.py").is_file():
            plugins[path.name] = _in_folder(path)
    for group in GROUPS:
        for point in entry_points(group=group):
            plugin = Plugin(point.name, f"the package {point.value}", point.load)
            plugins.setdefault(point.name, plugin)
    return list(plugins.values())


def load_plugin(plugin: Plugin, *, seconds: float = LOAD_SECONDS) -> Loaded:
    """Import a plugin, create its provider, and check `is_available`."""
    if not _loading.acquire(timeout=seconds):
        return Loaded(
            plugin.name,
            problem="Another plugin is being loaded and does not end. Try again later.",
        )
    try:
        with _StandIn() as here:
            answer = SerialThread(f"memory plugin {plugin.name}", 1).submit(
                lambda: here() or _made(plugin), last=True
            )
            wait([answer] if answer else [], timeout=seconds)
    finally:
        _loading.release()
    if answer is None or not answer.done():
        return Loaded(
            plugin.name,
            problem=f"{plugin.where} was not loaded within {seconds:g} seconds. Remove it.",
        )
    error = answer.exception()
    if error is not None:
        why = (
            str(error)
            if isinstance(error, _Unusable)
            else f"It fails with {describe_error(error)}."
        )
        return Loaded(plugin.name, problem=f"{plugin.where} cannot be used. {why}")
    return Loaded(plugin.name, provider=answer.result())


def _in_folder(folder: Path) -> Plugin:
    # The module name is unique, because two plugins may both be called `memory`.
    known = f"_tenax_plugin_{zlib.crc32(str(folder.resolve()).encode()):08x}_{re.sub(r'[^0-9A-Za-z]', '_', folder.name)}"

    def load() -> ModuleType:
        # Every user gets a separate provider with separate modules, so that users share no state.
        name = f"{known}_{next(_loads)}"
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            for loaded in list(sys.modules):
                if loaded == name or loaded.startswith(f"{name}."):
                    del sys.modules[loaded]
            raise
        return module

    return Plugin(folder.name, f"The folder {folder}", load)


class _Context:
    """The argument of `register`. Registrations of anything but a memory are ignored."""

    def __init__(self) -> None:
        self.providers: list[Any] = []

    def register_memory_provider(self, provider: Any) -> None:  # noqa: ANN401
        self.providers.append(provider)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("register_"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def _made(plugin: Plugin) -> MemoryProvider:
    thing = plugin.open()
    if isinstance(thing, ModuleType):
        thing = getattr(thing, "register", None) or _only_class(thing)
    if isinstance(thing, type):
        provider = thing()
    else:
        context = _Context()
        given = thing(context) if inspect.signature(thing).parameters else thing()
        provider = context.providers[0] if context.providers else given
    methods = ("initialize", "sync_turn", "prefetch")
    if not all(callable(getattr(provider, method, None)) for method in methods):
        raise _Unusable("It does not give a memory provider.")
    if not provider.is_available():
        reason = str(getattr(provider, "unavailable_reason", str)() or "")
        raise _Unusable(f"It says that it is not set up. {reason}".strip())
    # The base class may come from elsewhere, so check the methods instead of the type.
    return cast(MemoryProvider, provider)


def _only_class(module: ModuleType) -> type:
    """Return the only provider class of a module without `register`. The base class is recognised by name."""
    providers = set()
    for value in vars(module).values():
        if isinstance(value, type) and not inspect.isabstract(value):
            bases = {base.__name__ for base in value.__mro__[1:]}
            if MemoryProvider.__name__ in bases:
                providers.add(value)
    if len(providers) != 1:
        raise _Unusable(
            f"It has no function register(context), and {len(providers)} providers where one is needed."
        )
    return providers.pop()


class _StandIn(MetaPathFinder, Loader):
    """An importer for `agent.memory_provider`, used if no other importer finds the module.

    Entering returns a function. The importer serves only the thread calling the function.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._given: list[ModuleType] = []

    def __enter__(self) -> Callable[[], None]:
        # Append at the end, so that a real module is found first.
        sys.meta_path.append(self)
        return self._here

    def _here(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name not in {_PACKAGE, _MODULE} or threading.get_ident() != self._thread:
            return None
        return ModuleSpec(name, self, is_package=name == _PACKAGE)

    def exec_module(self, module: ModuleType) -> None:
        self._given.append(module)
        if module.__name__ == _MODULE:
            module.__dict__["MemoryProvider"] = MemoryProvider

    def __exit__(self, *raised: object) -> None:
        """Remove the importer and its modules, because they would hide real modules or stay in a real package."""
        sys.meta_path.remove(self)
        for module in self._given:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
            package = sys.modules.get(_PACKAGE)
            if package is not None and vars(package).get("memory_provider") is module:
                del package.memory_provider
