"""Tasks with their requests and results, as the write transaction reads and saves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from fairlane.core.model import Task
from fairlane.store.base import Connection, Row
from fairlane.store.vault import Vault

Ready = tuple[Task, str]  # a ready task and its request

TASK_WIDTH: Final = len(Task.__struct_fields__)
# Rows that are deleted with a task.
DELETED_WITH_TASK: Final = (
    "approval_link",
    "approval_delivery",
    "approval",
    "task",
    "request",
    "result",
    "delivery",
    "idempotency",
    "dependency",
    "event",
    "output",
    "traceback",
    "checkpoint",
    "suspension",
    "awaiting",
    "signal",
)


def _tasks(rows: Iterable[Row]) -> list[Task]:
    return [Task(*row) for row in rows]


def by_id(connection: Connection, ids: Iterable[str]) -> list[Task]:
    return _tasks(connection.run_rows("task_by_id", [(id_,) for id_ in ids]))


def by_seq(connection: Connection, seqs: Iterable[int]) -> list[Task]:
    return _tasks(connection.run_rows("task_by_seq", [(seq,) for seq in seqs]))


# -------------------------------------------------------------------- save


def insert(connection: Connection, tasks: Iterable[Task]) -> None:
    connection.run_rows("task_insert", [astuple(task) for task in tasks])


def insert_requests(
    connection: Connection, vault: Vault, bodies: Mapping[int, str], submitters: Mapping[int, str]
) -> None:
    """Insert requests as JSON text, and the ids of the tokens that submitted them."""
    seal, whose = vault.seal_body, submitters.get
    rows = [(seq, seal(body), whose(seq)) for seq, body in bodies.items()]
    connection.run_rows("request_insert", rows)


def submitters(connection: Connection, seqs: Iterable[int]) -> dict[int, str | None]:
    """Return the id of the token that submitted each task; None for one without a token."""
    rows = connection.run_rows("request_submitter", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def update(connection: Connection, tasks: Mapping[int, Task], stored: Mapping[int, Task]) -> None:
    """Save the columns that change. `stored` are the same tasks as the database has them."""
    rows = [_moving(stored[seq], task) for seq, task in tasks.items()]
    connection.change_rows("task_update", rows)


def _moving(stored: Task, task: Task) -> Row:
    """Return the columns of `task_update`; the state and the fencing token are its guards."""
    return (
        task.seq,
        stored.state,
        stored.fencing_token,
        task.state,
        task.gate,
        task.attempts,
        task.deadline_at,
        task.eligible_at,
        task.queued_at,
        task.started_at,
        task.completed_at,
        task.fencing_token,
        task.worker,
        task.lease_expires_at,
        task.unmet,
        task.preempt,
        task.deadline_ms,
        task.unapproved,
    )


def renew(connection: Connection, tasks: Iterable[Task]) -> None:
    rows = [(task.seq, task.fencing_token, task.lease_expires_at) for task in tasks]
    connection.change_rows("task_renew", rows)


def place(connection: Connection, tasks: Iterable[Task]) -> None:
    """Save the line and the rank of tasks."""
    connection.run_rows("task_place", [(task.seq, task.line, task.rank) for task in tasks])


def reline(connection: Connection, lane: str, *, by_agent: bool, aging_ms: int) -> None:
    """Move all tasks of a lane into the lines of their agents, or into one common line."""
    connection.run("task_reline", lane=lane, by_agent=int(by_agent), aging_ms=aging_ms)


# -------------------------------------------------------------------- requests and results


def requests(connection: Connection, vault: Vault, seqs: Iterable[int]) -> dict[int, str]:
    """Return the requests of tasks as JSON text."""
    rows = connection.run_rows("request_find", [(seq,) for seq in seqs])
    return {row[0]: vault.open_body(row[1]) for row in rows}


def rewrite_request(connection: Connection, vault: Vault, seq: int, body: str) -> None:
    connection.run_rows("request_grow", [(seq, vault.seal_body(body))])


def results(connection: Connection, seqs: Iterable[int]) -> dict[int, str | None]:
    """Return the results of ended tasks as JSON text."""
    rows = connection.run_rows("results_find", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def errors(connection: Connection, seqs: Iterable[int]) -> dict[int, str | None]:
    """Return the errors of tasks."""
    rows = connection.run_rows("errors_find", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def save_results(
    connection: Connection, ends: Iterable[tuple[int, str | None, str | None]]
) -> None:
    """Save results and errors by sequence number."""
    connection.run_rows("result_save", list(ends))


# -------------------------------------------------------------------- ticks


def overdue(connection: Connection, *, now: int, limit: int) -> list[Task]:
    return _tasks(connection.run("task_overdue", now=now, limit=limit))


def abandoned(
    connection: Connection, *, now: int, limit: int, by_hand: list[str] | None = None
) -> list[Task]:
    """Return tasks whose leases have expired, except in the lanes `by_hand`."""
    return _tasks(connection.run("task_abandoned", now=now, limit=limit, by_hand=by_hand))


def due(connection: Connection, *, now: int, limit: int) -> list[Task]:
    """Return tasks whose delay or debounce window has ended."""
    return _tasks(connection.run("task_due", now=now, limit=limit))


class NextDue(NamedTuple):
    """When the next deadline passes, lease expires, delay ends and approval expires."""

    deadline_at: int | None
    lease_at: int | None
    eligible_at: int | None
    approval_at: int | None


def next_due(connection: Connection, by_hand: list[str] | None) -> NextDue:
    return NextDue(*connection.run("next_due", by_hand=by_hand)[0])


def leased(connection: Connection) -> list[Task]:
    return _tasks(connection.run("task_leased"))


def leases_to_stop(connection: Connection, worker: str) -> list[tuple[int, int]]:
    """Return the leases (sequence number, fencing token) of runs that `worker` has to stop."""
    return [(row[0], row[1]) for row in connection.run("task_stopped", worker=worker)]


# -------------------------------------------------------------------- lease


def heads(connection: Connection, vault: Vault, lines: Sequence[int], limit: int) -> list[Ready]:
    """Return the first `limit` ready tasks of each line, with their requests."""
    wanted = [(line,) for line in lines]
    if limit == 1:  # one value instead of a table of one row: twice as fast on SQLite
        return _ready(connection.run_rows("task_head", wanted), vault)
    return _ready(connection.run_rows("task_next", wanted, limit=limit), vault)


def heads_of_agent(
    connection: Connection, vault: Vault, lines: Sequence[int], agent: str, limit: int
) -> list[Ready]:
    """Return the same for one agent only, where lines are common to all agents."""
    wanted = [(line,) for line in lines]
    return _ready(connection.run_rows("task_next_of", wanted, agent=agent, limit=limit), vault)


def _ready(rows: Iterable[Row], vault: Vault) -> list[Ready]:
    open_body = vault.open_body
    return [(Task(*row[:TASK_WIDTH]), open_body(row[TASK_WIDTH])) for row in rows]


def preemptible(connection: Connection, *, lane: str) -> list[Task]:
    """Return the runs of a lane that may be pre-empted, the least important first."""
    return _tasks(connection.run("task_preemptible", lane=lane))


# -------------------------------------------------------------------- what a plan lists


def held(connection: Connection, *, lane: str, gate: str, limit: int) -> list[Task]:
    return _tasks(connection.run("task_held", lane=lane, gate=gate, limit=limit))


def count_held(connection: Connection, lane: str, gate: str, limit: int) -> list[tuple[bool, int]]:
    """Count up to `limit` tasks behind a gate, by whether they have had an attempt."""
    rows = connection.run("task_held_count", lane=lane, gate=gate, limit=limit)
    return [(bool(row[0]), row[1]) for row in rows]


def parked(connection: Connection, *, lane: str, limit: int) -> list[Task]:
    return _tasks(connection.run("task_parked", lane=lane, limit=limit))


def ended_last(connection: Connection, *, lane: str, look: int, limit: int) -> list[Task]:
    """Return tasks of a lane among the `look` tasks of all lanes that ended last."""
    return _tasks(connection.run("task_ended_last", lane=lane, look=look, limit=limit))


# -------------------------------------------------------------------- retention


class OldTask(NamedTuple):
    seq: int
    batch: str | None
    lane: str
    agent: str


def old(connection: Connection, before: int, limit: int) -> list[OldTask]:
    """Return tasks that ended before a time and that nothing refers to."""
    return [OldTask(*row) for row in connection.run("task_old", before=before, limit=limit)]


def count_old(connection: Connection, before: int) -> int:
    count: int = connection.run("task_old_count", before=before)[0][0]
    return count


def old_rejected(connection: Connection, before: int, limit: int) -> list[OldTask]:
    return [OldTask(*row) for row in connection.run("task_rejected", before=before, limit=limit)]


def count_rejected(connection: Connection, limit: int) -> int:
    count: int = connection.run("rejected_count", limit=limit)[0][0]
    return count


def delete(connection: Connection, seqs: Iterable[int]) -> None:
    """Delete tasks with all rows that belong to them."""
    rows = [(seq,) for seq in seqs]
    for table in DELETED_WITH_TASK:
        connection.run_rows(f"{table}_delete", rows)
