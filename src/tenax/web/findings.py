"""`/api/findings`: what is wrong with the installation, and the commands that solve it. Only for the owner.

The verification of the store has an endpoint of its own: `/api/verify`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request

from tenax.concurrency import run_in_own_thread
from tenax.doctor.collect import add_store, begin_findings
from tenax.doctor.findings import (
    BackupState,
    Disk,
    Findings,
    Issue,
    ModelState,
    Owed,
    command_of,
    find_issues,
)
from tenax.doctor.models import check_models
from tenax.doctor.verified import read_verified
from tenax.journal import LOCAL_USER
from tenax.journal.verify.store import Problem
from tenax.web.api import ResponseBody, endpoint
from tenax.web.server_state import ServerState, state_of

__all__ = ["get_findings"]


class CurrentFindings(ResponseBody):
    """The state of the installation, without a verification of the store."""

    version: str
    issues: list[Issue]
    """What is to do, problems first."""
    models: list[ModelState]
    """Empty unless the servers of the models were asked."""
    backup: BackupState
    disks: list[Disk]
    owed: Owed
    engine: str
    failover: str
    """The possible loss in a failover of PostgreSQL, or empty."""


@endpoint("GET", "/api/findings", owner=True)
async def get_findings(call: Request, *, models: bool = False) -> CurrentFindings:
    """Say what is wrong and what solves it. On request, ask the servers of the models; this costs no tokens."""
    state = state_of(call)
    await state.look_at_settings()
    findings = await run_in_own_thread(partial(_collect, state))
    if models:
        findings.models = await check_models(state.config)
    now = datetime.fromtimestamp(state.journal.clock.now_us() / 1e6, UTC)
    assert findings.store is not None
    return CurrentFindings(
        findings.tenax,
        find_issues(findings, now, command_of(state.config, state.terminal)),
        findings.models,
        findings.backup,
        findings.disks,
        findings.owed,
        findings.store.engine,
        findings.store.failover,
    )


def _collect(state: ServerState) -> Findings:
    findings = begin_findings(state.config)
    add_store(findings, state.config, state.journal.of(None))
    verified = read_verified(state.config, LOCAL_USER)
    if verified is not None and not verified.ok:
        # The problems are listed beside the button that verifies again.
        found = [Problem(None, None, None, text) for text in verified.problems]
        findings.problems = [*findings.problems, *found]
    return findings
