"""The state of the server: the store, a `Runtime` per active user, and whether the server is stopping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from starlette.requests import Request

from tenax.archive.schedule import BackupSchedule
from tenax.assembly import Runtime
from tenax.channels.gateway import Gateway
from tenax.concurrency import ThreadPool, run_in_own_thread
from tenax.config import Config
from tenax.config.watch import SettingsFile
from tenax.errors import Refused, TenaxError, TooBusy
from tenax.importers.uploads import Imports
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.devices import Device, Devices
from tenax.runtime.runtime import open_store
from tenax.runtime.workers import RESUME_SECONDS
from tenax.schedules.rows import Schedules
from tenax.web.links import Links
from tenax.web.signins import Signins

__all__ = [
    "ServerState",
    "device_of",
    "owner_only",
    "runtime_of",
    "state_of",
    "user_of",
]

log = logging.getLogger(__name__)

_STREAM_SECONDS = 1.0
_SETTINGS_SECONDS = 2.0


class ServerState:
    """The state of a server. `reload` reads the settings file again."""

    def __init__(
        self, config: Config, links: Links, reload: Callable[[], Config]
    ) -> None:
        self.links = links
        self.stopping = False
        self.streams: dict[asyncio.Task[object], asyncio.Event] = {}
        """By task of an open event stream, the event to wake the stream."""
        self.journal: Journal = open_store(config)
        self.signins = Signins(
            Devices(self.journal, days=config.serve.sign_in_days),
            links,
            config.timing,
        )
        self.page_threads = ThreadPool(2, "tenax-page")
        """Threads only for files of the page, so that the page loads even while the store does not answer."""
        self.file_threads = ThreadPool(4, "tenax-files")
        """Threads for the files of conversations, exports and imports. A slow disk delays nothing else."""
        self.name_searches = asyncio.Semaphore(2)
        """Limits the searches for names of files, because each is a process."""
        self.verifying: dict[str, asyncio.Task[object]] = {}
        """By user, the running verification of the store."""
        self._watching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._settings = SettingsFile(config, reload)
        self.gateway = Gateway(self.journal, self.runtime)
        """The chat apps."""
        self.backups = BackupSchedule(self.journal, lambda: self.config)
        self.imports = Imports(
            config.directories.state / "imports",
            lambda: self.config,
            self.file_threads,
        )
        self.runtimes: dict[str, asyncio.Task[Runtime]] = {}
        """The start of every runtime, by user. A finished task has the runtime as the result."""

    @property
    def config(self) -> Config:
        """The settings in use."""
        return self._settings.config

    async def start(self) -> None:
        """Start a runtime for every user with unfinished work or schedules."""
        self._watching = asyncio.create_task(self.signins.watch())
        everybody = self.journal.of(None)
        since = everybody.clock.now_us() - int(RESUME_SECONDS * 1e6)
        threads = self.signins.threads
        open_runs = await threads.run(everybody.unfinished)
        open_runs += await threads.run(partial(everybody.interrupted, since))
        owners = await threads.run(partial(Schedules.owners, self.journal))
        for user in {LOCAL_USER, *(run.user for run in open_runs), *owners}:
            with _unless_owner(user):
                await self.runtime(user)
        await self.gateway.configure(self.config)
        await self.imports.start()
        self.backups.start()
        self._following = asyncio.create_task(self._follow_settings())

    async def runtime(self, user: str) -> Runtime:
        """Return the runtime of a user. The first request starts the runtime."""
        task = self.runtimes.get(user)
        if task is None or (task.done() and task.exception() is not None):
            task = self.runtimes[user] = asyncio.create_task(self._started(user))
        return await asyncio.shield(task)

    async def _started(self, user: str) -> Runtime:
        runtime = Runtime(self.config, user=user, journal=self.journal.of(user))
        await runtime.start()
        return runtime

    async def _follow_settings(self) -> None:
        """Look at the settings also while no page is open: chat apps must notice a new account."""
        while True:
            await asyncio.sleep(_SETTINGS_SECONDS)
            try:
                await self.look_at_settings()
            except TenaxError as error:
                log.warning("The settings are not used: %s", error)

    async def look_at_settings(self) -> None:
        """Use the settings file from now on if `tenax setup` or an editor has changed it."""
        if self._settings.read_if_changed():
            await self._configure_all()

    async def reload(self) -> None:
        """Read the settings file, and configure every runtime with the new settings."""
        self._settings.read()
        await self._configure_all()

    async def _configure_all(self) -> None:
        self.signins.devices.days = self.config.serve.sign_in_days
        # Iterate over a copy: a runtime started in the meantime already uses the new settings.
        for user, task in list(self.runtimes.items()):
            with _unless_owner(user):
                # The cancellation of the request must not cancel the start of a runtime.
                runtime = await asyncio.shield(task)
                await runtime.configure(self.config)
        await self.gateway.configure(self.config)

    async def change(
        self, how: Callable[..., object], *given: object, **more: object
    ) -> None:
        """Change the settings file with `how`, and use the new settings from now on."""
        await run_in_own_thread(partial(how, self.config, *given, **more))
        await self.reload()

    async def end_streams(self) -> None:
        """End every event stream. A page that does not read is cut off after a second."""
        self.stopping = True
        for hint in self.streams.values():
            hint.set()
        if self.streams:
            await asyncio.wait(list(self.streams), timeout=_STREAM_SECONDS)
        for task in self.streams:
            task.cancel()

    async def close(self) -> None:
        """Park running turns for the next start, and close the store."""
        for task in (self._watching, self._following):
            if task is not None:
                task.cancel()
        await self.imports.close()
        await self.backups.close()
        await self.gateway.close()
        started = [
            task.result()
            for task in self.runtimes.values()
            if task.done() and not task.exception()
        ]
        await asyncio.gather(
            *(runtime.close() for runtime in started), return_exceptions=True
        )
        # Use a separate thread, because every thread of the pool may be waiting for the store.
        with contextlib.suppress(TooBusy):
            await run_in_own_thread(self.journal.close)
        self.signins.close()
        self.page_threads.stop()
        self.file_threads.stop()

    @property
    def terminal(self) -> str:
        """The terminal command of the current installation of Tenax."""
        own = Path(sys.prefix) / "bin" / "tenax"
        known = shutil.which("tenax")
        command = (
            "tenax"
            if known is not None and Path(known).resolve() == own.resolve()
            else str(own)
        )
        home = os.environ.get("TENAX_HOME")
        return f"TENAX_HOME={shlex.quote(home)} {command}" if home else command


@contextlib.contextmanager
def _unless_owner(user: str) -> Iterator[None]:
    """Log an error of a user, for example a failure to create a folder, instead of raising the error.

    Errors of the owner are raised.
    """
    try:
        yield
    except TenaxError as error:
        if user == LOCAL_USER:
            raise
        log.warning(
            "Cannot serve user %s: %s",
            user,
            error,
            extra={"action": "user_not_served"},
        )


def state_of(call: Request) -> ServerState:
    found: ServerState = call.app.state.server_state
    return found


def user_of(call: Request) -> str:
    found: str = call.state.user
    return found


def device_of(call: Request) -> Device:
    """Return the device of the request."""
    found: Device = call.state.device
    return found


async def runtime_of(call: Request) -> Runtime:
    """Return the runtime of the user of the request."""
    await state_of(call).look_at_settings()
    return await state_of(call).runtime(user_of(call))


def owner_only(call: Request) -> None:
    """Raise `Refused` unless the request comes from the owner of the installation."""
    if user_of(call) != LOCAL_USER:
        raise Refused("Only the owner of this Tenax may do this.")
