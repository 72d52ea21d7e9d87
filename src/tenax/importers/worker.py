"""The process of an import in the page: `python -m tenax.importers.worker`.

The process reads a `Job` from stdin, and writes reports as JSON lines to stdout. The file may be hostile, so the process
has a limit on memory, and it is the first one that the system ends if memory runs out. It ends at once when stdin ends:
every conversation is a transaction of its own, so nothing is half imported.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

import msgspec

from tenax.concurrency import start_thread
from tenax.config import load
from tenax.errors import TenaxError
from tenax.importers.service import Imported, import_from
from tenax.journal import open as open_journal

__all__ = [
    "LINE_BYTES_MAX",
    "Counted",
    "Failed",
    "Finished",
    "Job",
    "Report",
    "Unexpected",
]

LINE_BYTES_MAX: Final = 4 * 1024**2
"""The limit of a line of stdout."""
_MEMORY_BYTES_MAX: Final = 2 * 1024**3
_NICE: Final = 10
_SOONEST_KILLED: Final = b"1000"
_REPORT_SECONDS: Final = 0.25
_REASONS_MAX: Final = 100
_REASON_CHARS_MAX: Final = 500


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to import, and for whom."""

    user: str
    profile: str
    path: str
    scratch: str
    """The folder for unpacked files."""
    dry_run: bool
    remember: bool


class Counted(msgspec.Struct, frozen=True, tag=True):
    """The number of conversations that were read until now."""

    count: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The result."""

    found: Imported
    count: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The file cannot be imported, with the reason for the person."""

    message: str
    hint: str


class Unexpected(msgspec.Struct, frozen=True, tag=True):
    """A mistake of Tenax, for the log. It names a place in the program, and nothing from the file."""

    where: str


Report = Counted | Finished | Failed | Unexpected


class _Reporter:
    """Writes reports, and counts conversations a few times per second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0.0
        self.count = 0

    def progress(self, count: int) -> None:
        self.count = count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_SECONDS
            self.write(Counted(count))

    def write(self, report: Report) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()

    def plain(self, text: str) -> str:
        """Return a sentence without the folder of the file, which says nothing to the person."""
        return text.replace(f"{self._folder}{os.sep}", "")[:_REASON_CHARS_MAX]

    def finish(self, found: Imported) -> None:
        found.reasons = [self.plain(one) for one in found.reasons[:_REASONS_MAX]]
        found.conversations = found.conversations[:1]
        described = list(found.left_out.items())[:_REASONS_MAX]
        found.left_out = {self.plain(what): count for what, count in described}
        self.write(Finished(found, self.count))


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    start_thread(_end_with_server, "watch-server")
    _limit()
    tempfile.tempdir = job.scratch
    path = Path(job.path)
    reporter = _Reporter(path.parent)
    try:
        reporter.finish(_import(job, path, reporter))
    except TenaxError as error:
        reporter.write(
            Failed(reporter.plain(str(error)), reporter.plain(error.hint or ""))
        )
    except MemoryError:
        reporter.write(
            Failed(
                f"{path.name} needs more than {_MEMORY_BYTES_MAX >> 30} GB of memory, more than an import may use.",
                "",
            )
        )
    except Exception as error:  # noqa: BLE001  (the one place where an import's surprise ends)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        reporter.write(Unexpected(f"{type(error).__name__} at {place}"))


def _import(job: Job, path: Path, reporter: _Reporter) -> Imported:
    config = load(os.environ, profile=job.profile or None)
    with open_journal(
        config.store_url,
        user=job.user,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        return import_from(
            config,
            journal,
            path,
            dry_run=job.dry_run,
            remember=job.remember,
            with_skills=False,
            progress=reporter.progress,
        )


def _limit() -> None:
    """Run after everything else, and with bounded memory. Not every system has all of the limits."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_SOONEST_KILLED)
    # The mapped file of the import is not counted: only memory of the process's own.
    for kind, most in (
        (resource.RLIMIT_DATA, _MEMORY_BYTES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def _end_with_server() -> None:
    # A read of the buffered stdin would hold its lock while the interpreter ends.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
