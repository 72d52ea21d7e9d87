"""What the server holds: one store, a `Runtime` for each user who came, and whether it is to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.requests import Request

from tenax.config import Config
from tenax.config.write import stamp
from tenax.errors import ConfigError, Refused, TenaxError
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.devices import Device, Devices
from tenax.runtime.runtime import Runtime, open_store
from tenax.runtime.workers import RESUME_SECONDS
from tenax.schedules.rows import Schedules
from tenax.web.links import Links
from tenax.web.signins import Signins

__all__ = ["House", "device_of", "house_of", "owner_only", "runtime_of", "user_of"]

log = logging.getLogger(__name__)

_STREAM_SECONDS = 1.0


class House:
    """One server's insides. `reload` reads the configuration again."""

    def __init__(
        self, config: Config, links: Links, reload: Callable[[], Config]
    ) -> None:
        self.config = config
        self.links = links
        self.stopping = False
        self.streams: dict[asyncio.Task[object], asyncio.Event] = {}
        """Who sends to a page, and what wakes it."""
        self.journal: Journal = open_store(config)
        self.signins = Signins(Devices(self.journal, days=config.sign_in_days), links)
        self._watching: asyncio.Task[None] | None = None
        self._reload = reload
        self._seen = stamp(config.file)
        self._refused = ""
        """Why the settings stay as they were."""
        self._runtimes: dict[str, asyncio.Task[Runtime]] = {}

    async def start(self) -> None:
        """Look after what was left open, whoever's it is."""
        self._watching = asyncio.create_task(self.signins.watch())
        everybody = self.journal.of(None)
        since = everybody.clock.now_us() - int(RESUME_SECONDS * 1e6)
        left = await asyncio.to_thread(everybody.unfinished)
        left += await asyncio.to_thread(everybody.interrupted, since)
        owners = await asyncio.to_thread(Schedules.owners, self.journal)
        for user in {LOCAL_USER, *(each.user for each in left), *owners}:
            with _unless_owner(user):
                await self.runtime(user)

    async def runtime(self, user: str) -> Runtime:
        """This user's, started with the first who asks."""
        task = self._runtimes.get(user)
        if task is None or (task.done() and task.exception() is not None):
            task = self._runtimes[user] = asyncio.create_task(self._started(user))
        return await asyncio.shield(task)

    async def _started(self, user: str) -> Runtime:
        runtime = Runtime(self.config, user=user, journal=self.journal.of(user))
        await runtime.start()
        return runtime

    async def look_at_settings(self) -> None:
        """`tenax setup` or an editor may have changed the file: then everybody is answered with it from now on.

        One that cannot be read is looked at again by whoever comes next: it may only be for a moment.
        """
        if self._seen == stamp(self.config.file):
            return
        try:
            await self.reload()
        except ConfigError as error:
            if self._refused != str(error):
                self._refused = str(error)
                log.warning(
                    "The settings stay as they were: %s",
                    error,
                    extra={"action": "settings"},
                )

    async def reload(self) -> None:
        """The configuration was changed."""
        # before it is read: what changes meanwhile is not missed
        seen = stamp(self.config.file)
        self.config = self._reload()
        self.signins.devices.days = self.config.sign_in_days
        self._seen, self._refused = seen, ""
        # others may come meanwhile, with these settings
        for user, task in list(self._runtimes.items()):
            with _unless_owner(user):
                # a request that is cancelled cancels nobody
                runtime = await asyncio.shield(task)
                await runtime.configure(self.config)

    async def change(
        self, how: Callable[..., object], *given: object, **more: object
    ) -> None:
        """Change the settings in this way, and answer with them from now on."""
        await asyncio.to_thread(how, self.config, *given, **more)
        await self.reload()

    async def end_streams(self) -> None:
        """Say goodbye to every page; one that does not read is not waited for."""
        self.stopping = True
        for hint in self.streams.values():
            hint.set()
        if self.streams:
            await asyncio.wait(list(self.streams), timeout=_STREAM_SECONDS)
        for task in self.streams:
            task.cancel()

    async def close(self) -> None:
        """Park what runs, and let go of the store."""
        if self._watching is not None:
            self._watching.cancel()
        self.signins.close()
        started = [
            task.result()
            for task in self._runtimes.values()
            if task.done() and not task.exception()
        ]
        await asyncio.gather(
            *(runtime.close() for runtime in started), return_exceptions=True
        )
        await asyncio.to_thread(self.journal.close)

    @property
    def terminal(self) -> str:
        """How a person gets this Tenax in a terminal."""
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
    """Log what goes wrong for one user, such as a folder that cannot be made: it stops nobody else."""
    try:
        yield
    except TenaxError as error:
        if user == LOCAL_USER:
            raise
        log.warning(
            "User %s is not served: %s",
            user,
            error,
            extra={"action": "user_not_served"},
        )


def house_of(call: Request) -> House:
    found: House = call.app.state.house
    return found


def user_of(call: Request) -> str:
    found: str = call.state.user
    return found


def device_of(call: Request) -> Device:
    """The device that asks."""
    found: Device = call.state.device
    return found


async def runtime_of(call: Request) -> Runtime:
    """The runtime of the user who asks."""
    await house_of(call).look_at_settings()
    return await house_of(call).runtime(user_of(call))


def owner_only(call: Request) -> None:
    """What concerns the whole installation is for the person whose it is."""
    if user_of(call) != LOCAL_USER:
        raise Refused("Only the person who runs this Tenax may do this.")
