"""Tasks as callers see them: lists, one task with its request and result, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from fairlane.core.events import Attempt
from fairlane.core.model import Task
from fairlane.store.base import (
    PART_ROWS_MIN,
    Connection,
    Row,
    next_part,
    page_of,
    row_bytes,
)
from fairlane.store.pages import PAGE_BYTES_MAX, Page
from fairlane.store.tables.tasks import TASK_WIDTH

_RANK_MIN: Final = -(2**62)


class TaskView(msgspec.Struct, frozen=True):
    """A task with its request (`body`, JSON text), result and error."""

    task: Task
    body: str
    result: str | None
    error: str | None
    log: tuple[Attempt, ...] = ()


def _view(row: Row) -> TaskView:
    return TaskView(Task(*row[:TASK_WIDTH]), *row[TASK_WIDTH:])


def by_id(connection: Connection, task_id: str) -> list[TaskView]:
    return list(map(_view, connection.run("task_view", id=task_id)))


def by_seq(connection: Connection, seqs: Iterable[int]) -> list[TaskView]:
    return list(map(_view, connection.run_rows("task_view_many", [(seq,) for seq in seqs])))


def oldest_of_batch(connection: Connection, batch: str, limit: int) -> list[int]:
    """Return the sequence numbers of the tasks of a batch, oldest first."""
    return [row[0] for row in connection.run("batch_oldest", batch=batch, limit=limit)]


def state(connection: Connection, seq: int) -> str | None:
    """Return the state of a task; None if there is no such task."""
    rows = connection.run("task_state", seq=seq)
    return rows[0][0] if rows else None


def agent(connection: Connection, seq: int) -> str | None:
    """Return the agent of a task; None if there is no such task."""
    rows = connection.run("task_agent", seq=seq)
    return rows[0][0] if rows else None


# -------------------------------------------------------------------- entries of the queue


def entries(
    connection: Connection,
    states: Sequence[str],
    agent: str | None,
    after: tuple[int, int] | None,
    limit: int,
) -> Page[TaskView]:
    """Return tasks of the lane `queue` by rank and submission, after a place there; of all agents
    or of one.
    """
    rank, seq = after or (_RANK_MIN, 0)
    rows = [(state,) for state in states]
    with connection.snapshot():
        if agent is None:
            places = connection.run_rows("entry_page", rows, rank=rank, seq=seq, limit=limit + 1)
        else:
            places = connection.run_rows(
                "entry_page_of", rows, agent=agent, rank=rank, seq=seq, limit=limit + 1
            )
        seqs = [row[1] for row in sorted(places)]
        return in_order(connection, seqs, limit)


def in_order(
    connection: Connection, seqs: Sequence[int], limit: int, *, brief: bool = False
) -> Page[TaskView]:
    """Return tasks in the order of their numbers here, up to the limits of a page; `brief` omits
    their results. Call it in a snapshot.
    """
    name = "task_view_brief" if brief else "task_view_many"
    shown, more = page_of(_in_parts(connection, seqs, name), limit, PAGE_BYTES_MAX)
    return Page(map(_view, shown), more=more)


def _in_parts(connection: Connection, seqs: Sequence[int], name: str) -> Iterator[Row]:
    """Yield tasks with their requests and results, in this order; large ones are not read ahead."""
    start, count, size = 0, PART_ROWS_MIN, 0
    while start < len(seqs):
        wanted = seqs[start : start + count]
        rows = connection.run_rows(name, [(seq,) for seq in wanted])
        by_number = {row[0]: row for row in rows}
        yield from (by_number[seq] for seq in wanted if seq in by_number)
        start += len(wanted)
        size += sum(map(row_bytes, rows))
        count = next_part(count, start, size, PAGE_BYTES_MAX)


# -------------------------------------------------------------------- why a task waits


def count_ahead(connection: Connection, task: Task, line: int, limit: int) -> int:
    """Count the ready tasks of a line that go before the task, up to `limit`."""
    place = {"rank": task.rank, "seq": task.seq, "limit": limit}
    count: int = connection.run("why_ahead", line=line, **place)[0][0]
    return count


def holders(
    connection: Connection,
    lane: str | None,
    agent: str | None,
    workers: list[str] | None,
    limit: int,
) -> list[str]:
    """Return the ids of tasks with an open lease; None omits a condition."""
    rows = connection.run("why_holders", lane=lane, agent=agent, workers=workers, limit=limit)
    return [row[0] for row in rows]


def count_by_worker(connection: Connection) -> dict[str, int]:
    """Count the open leases of each worker."""
    return {row[0]: row[1] for row in connection.run("slots_by_worker")}


def count_by_agent(connection: Connection) -> list[tuple[str, str, int]]:
    """Count the open leases of each agent in each lane: lane, agent, number."""
    return [(row[0], row[1], row[2]) for row in connection.run("slots_by_agent")]
