"""A standby of a test server: a base backup that follows its primary, and that can be promoted."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.support.postgres import PostgresServer


class Standby(PostgresServer):
    """A second server that copies `primary`. `synchronous`: the primary acknowledges no commit before it has it.

    Stop it before the primary is used alone: a synchronous primary waits for its standby.
    """

    def __init__(
        self,
        primary: PostgresServer,
        *,
        synchronous: bool = False,
        port: int | None = None,
    ) -> None:
        super().__init__(port=port)
        self._primary = primary
        self._synchronous = synchronous

    def _create(self, programs: Path) -> None:
        # The server's user owns the folder, so pg_basebackup runs as that user too.
        backup = (
            programs / "pg_basebackup",
            "-D",
            self.data,
            "--checkpoint=fast",
            "--no-sync",
        )
        self._run(*backup, "--write-recovery-conf", "-d", self._primary.url())
        self._configure()

    def start(self) -> None:
        """Start as a standby, or as a primary once it was promoted."""
        super().start()
        if self._synchronous and (self.data / "standby.signal").exists():
            with psycopg.connect(self._primary.url(), autocommit=True) as admin:
                admin.execute("alter system set synchronous_standby_names = '*'")
                admin.execute("select pg_reload_conf()")

    def promote(self) -> None:
        """Make it a primary. Returns once it takes writes."""
        self._run(self._pg_ctl, "promote", "--wait", "-D", self.data)
