"""The scheduler's one row, the commits of writers, and the clock of the store."""

from __future__ import annotations

from fairlane.store.base import Connection, SchedulerRow


def view(connection: Connection) -> SchedulerRow:
    return SchedulerRow(*connection.run("scheduler_view")[0])


def save(connection: Connection, row: SchedulerRow) -> None:
    """Save the numbers; the version of the policy is saved with the policy."""
    connection.run(
        "scheduler_save",
        last_seq=row.last_seq,
        last_token=row.last_fencing_token,
        last_line=row.last_line,
        last_event=row.last_event,
        open_edges=row.open_edges,
        unsettled=row.unsettled,
        last_number=row.last_number,
        reservations=row.reservations,
    )


def moment(connection: Connection) -> int:
    """Return the time by the database's clock, on PostgreSQL."""
    now: int = connection.run("moment")[0][0]
    return now


def schema_number(connection: Connection) -> int:
    """Return the number of the newest applied migration; 0 if there is none."""
    number: int | None = connection.run("schema_number")[0][0]
    return number or 0


# -------------------------------------------------------------------- writers


def save_commit(connection: Connection, writer: str, commit_id: int, now: int) -> None:
    connection.run("writer_save", name=writer, commit_id=commit_id, now=now)


def last_commit(connection: Connection, writer: str) -> int | None:
    """Return the number of a writer's last commit; None if it has none."""
    rows = connection.run("writer_commit", name=writer)
    return rows[0][0] if rows else None


def forget_writers(connection: Connection, before: int) -> None:
    connection.run("writer_forget", before=before)


# -------------------------------------------------------------------- the wall clock


def clock(connection: Connection) -> tuple[str | None, int | None]:
    """Return the boot in which the wall clock was last compared, and how far it was ahead of the
    monotonic clock.
    """
    boot, ahead = connection.run("clock_get")[0]
    return boot, ahead


def save_clock(connection: Connection, boot: str | None, ahead: int) -> None:
    connection.run("clock_save", boot=boot, ahead=ahead)


def move_spans(connection: Connection, by: int, now: int) -> None:
    """Move the ends of all spans in progress by `by` milliseconds: leases, delays, windows and
    deadlines of tasks, and those of approvals, deliveries, endpoints, nodes, sessions and
    workers.
    """
    connection.run("step_leases", by=by)
    connection.run("step_tasks", by=by)
    connection.run("step_deliveries", by=by)
    connection.run("step_approvals", by=by)
    connection.run("step_approval_links", by=by)
    connection.run("step_endpoints", by=by, before=now - by)
    connection.run("step_nodes", by=by)
    connection.run("step_workers", by=by)
    if by < 0:  # a stop must not refuse messages that are sent after it
        connection.run("step_sessions", by=by, now=now)


def move_ranks(connection: Connection, lane: str, by: int, critical: int) -> None:
    """Move the ranks of a lane whose tasks age, except those of critical tasks."""
    connection.run("step_ranks", by=by, lane=lane, critical=critical)
