"""What needs the attention of an operator, a few rows of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from fairlane.core import cron
from fairlane.core.attention import ClosedAccount, FailingJob, GivenUp, LateApproval
from fairlane.core.model import Task
from fairlane.store.base import Connection

_COLUMNS = len(Task.__struct_fields__)


def oldest_ready(connection: Connection, lane: str, before: int, limit: int) -> list[Task]:
    """Return the tasks of a lane that have been ready since before a time, oldest first."""
    rows = connection.run("attention_ready", lane=lane, before=before, limit=limit)
    return [Task(*row) for row in rows]


def ready_lines(connection: Connection, lane: str, limit: int) -> list[tuple[str, str, int]]:
    """Return capability, agent and number of ready tasks of the lines of a lane."""
    rows = connection.run("attention_lines", lane=lane, limit=limit)
    return [(row[0], row[1], row[2]) for row in rows]


def parked(connection: Connection, lane: str, limit: int) -> list[tuple[Task, str | None]]:
    """Return parked tasks of a lane with their errors."""
    rows = connection.run("attention_parked", lane=lane, limit=limit)
    return [(Task(*row[:_COLUMNS]), row[_COLUMNS]) for row in rows]


def blocked_edges(connection: Connection, seqs: Sequence[int]) -> list[tuple[int, str, str | None]]:
    """Return the parents of tasks that are parked or do not exist: child, parent, its state."""
    if not seqs:
        return []
    rows = connection.run_rows("attention_edges", [(seq,) for seq in seqs])
    return [(row[0], row[1], row[2]) for row in rows]


def failing_jobs(connection: Connection, limit: int) -> list[FailingJob]:
    """Return jobs whose last runs failed and that are on, or off because of their errors."""
    return [
        FailingJob(id_, name, errors, error, last_run_at, stopped=not enabled)
        for id_, name, errors, error, last_run_at, enabled, reason in connection.run(
            "attention_jobs", limit=limit
        )
        if enabled or reason == cron.BY_ERRORS
    ]


def given_up(connection: Connection, since: int, limit: int) -> list[GivenUp]:
    rows = connection.run("attention_webhooks", since=since, limit=limit)
    return [GivenUp(*row) for row in rows]


def closed_accounts(connection: Connection, now: int, limit: int) -> list[ClosedAccount]:
    rows = connection.run("attention_closed", now=now, limit=limit)
    return [ClosedAccount(*row) for row in rows]


def oldest_approvals(connection: Connection, limit: int) -> list[LateApproval]:
    return [LateApproval(*row) for row in connection.run("attention_approvals", limit=limit)]
