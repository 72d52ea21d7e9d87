"""Memory providers that are not part of Tenax: where they are found, and how one is loaded.

A provider is a folder with an `__init__.py` in the folder of plugins, or an installed package with an entry point in one of
`GROUPS`. Either gives a class, or a function `register(context)` that calls `context.register_memory_provider(provider)`.
Providers of this field import their base class from `agent.memory_provider`. While one is being imported, on its thread,
and only where no such module can be found, that name is our `MemoryProvider`; afterwards it is gone again from every place
where a real one would be looked for. Finding runs no code of a plugin. Loading does, on a thread of its own and with a
deadline; what goes wrong is a sentence in `Loaded.problem`.
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

from tenax.memory.providers.base import MemoryProvider
from tenax.memory.serial_thread import Lane, said

__all__ = ["GROUPS", "Loaded", "Plugin", "find_plugins", "load_plugin"]

# ours, and the one that providers already use
GROUPS = ("tenax.memory", "hermes_agent.memory_providers")
LOAD_SECONDS = 10.0
_PACKAGE, _MODULE = "agent", "agent.memory_provider"
_loading = threading.Lock()
_loads = itertools.count(1)


class Plugin(msgspec.Struct, frozen=True):
    """A provider that could be loaded."""

    name: str
    where: str  # for a person
    open: Callable[[], Any]  # imports it


class Loaded(msgspec.Struct, frozen=True):
    """A provider, or why there is none."""

    name: str
    provider: MemoryProvider | None = None
    problem: str = ""


class _Unusable(Exception):
    """A sentence for a person."""


def find_plugins(folder: Path | None = None) -> list[Plugin]:
    """All that could be loaded, by name. A folder goes before a package of the same name."""
    places = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    found = [
        _in_folder(each)
        for each in places
        if each.name[0] not in "._" and (each / "__init__.py").is_file()
    ]
    for group in GROUPS:
        found += [
            Plugin(each.name, f"the package {each.value}", each.load)
            for each in entry_points(group=group)
        ]
    return list({each.name: each for each in reversed(found)}.values())[::-1]


def load_plugin(plugin: Plugin, *, seconds: float = LOAD_SECONDS) -> Loaded:
    """Import a plugin, make its provider and ask whether it is set up."""
    if not _loading.acquire(timeout=seconds):
        return Loaded(
            plugin.name,
            problem="Another plugin is being loaded and does not end. Try again later.",
        )
    try:
        with _StandIn() as here:
            answer = Lane(f"memory plugin {plugin.name}", 1).give(
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
            else f"It fails with {said(error)}."
        )
        return Loaded(plugin.name, problem=f"{plugin.where} cannot be used. {why}")
    return Loaded(plugin.name, provider=answer.result())


def _in_folder(place: Path) -> Plugin:
    # A name that no other module has: two plugins may both be called `memory`.
    known = f"_tenax_plugin_{zlib.crc32(str(place.resolve()).encode()):08x}_{re.sub(r'[^0-9A-Za-z]', '_', place.name)}"

    def load() -> ModuleType:
        # Every user has a provider of their own, and so modules of their own: what stands in them is not shared.
        name = f"{known}_{next(_loads)}"
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            for each in [
                each
                for each in sys.modules
                if each == name or each.startswith(f"{name}.")
            ]:
                del sys.modules[each]
            raise
        return module

    return Plugin(place.name, f"The folder {place}", load)


class _Context:
    """What `register` is given. Whatever else a plugin offers there is not for a memory."""

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
    if not all(
        callable(getattr(provider, each, None))
        for each in ("initialize", "sync_turn", "prefetch")
    ):
        raise _Unusable("It does not give a memory provider.")
    if not provider.is_available():
        reason = str(getattr(provider, "unavailable_reason", str)() or "")
        raise _Unusable(f"It says that it is not set up. {reason}".strip())
    # by what it can do: its base may be another one than ours
    return cast(MemoryProvider, provider)


def _only_class(module: ModuleType) -> type:
    """The class in a module without `register`. Its base is known by name: it may be another one than ours."""
    found = {
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and not inspect.isabstract(each)
        and any(base.__name__ == MemoryProvider.__name__ for base in each.__mro__[1:])
    }
    if len(found) != 1:
        raise _Unusable(
            f"It has no function register(context), and {len(found)} providers where one is needed."
        )
    return found.pop()


class _StandIn(MetaPathFinder, Loader):
    """Finds `agent.memory_provider` where nobody else does, for the thread that calls what entering gives."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._given: list[ModuleType] = []

    def __enter__(self) -> Callable[[], None]:
        sys.meta_path.append(self)  # last: a real one is found first
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
        """Leave nothing behind that would stand before a real module, nor in a real package."""
        sys.meta_path.remove(self)
        for module in self._given:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
            package = sys.modules.get(_PACKAGE)
            if package is not None and vars(package).get("memory_provider") is module:
                del package.memory_provider
