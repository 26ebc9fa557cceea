"""Batches, and their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from fairlane.core.batches import Batch
from fairlane.core.model import Task
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page


def by_id(connection: Connection, ids: Iterable[str]) -> list[Batch]:
    return [Batch(*row) for row in connection.run_rows("batch_find", [(id_,) for id_ in ids])]


def by_seq(connection: Connection, seqs: Iterable[int]) -> list[Batch]:
    return [Batch(*row) for row in connection.run_rows("batch_view_many", [(seq,) for seq in seqs])]


def save(connection: Connection, batches: Iterable[Batch]) -> None:
    connection.run_rows("batch_save", [astuple(batch) for batch in batches])


def forget(connection: Connection, ids: Iterable[str]) -> None:
    """Delete those batches that have no tasks left."""
    connection.run_rows("batch_forget", [(id_,) for id_ in ids])


def forget_with_events(connection: Connection, ids: Iterable[str]) -> None:
    """Delete those batches that have no tasks left, with their webhooks and events."""
    rows = [(id_,) for id_ in ids]
    connection.run_rows("delivery_forget", rows)
    connection.run_rows("batch_forget", rows)
    connection.run_rows("event_forget", rows)


def view(connection: Connection, batch_id: str) -> tuple[Batch, dict[str, int]] | None:
    """Return a batch, and the number of its tasks by state. Call it in a snapshot."""
    rows = connection.run("batch_view", id=batch_id)
    if not rows:
        return None
    states = connection.run("batch_states", id=batch_id)
    return Batch(*rows[0]), {row[0]: row[1] for row in states}


def page(connection: Connection, agent: str | None, before: int | None, limit: int) -> Page[Batch]:
    """Return batches, newest first."""
    return read_page(connection, _batch, "batch_list", limit, agent=agent, before=before)


def _batch(row: Row) -> Batch:
    return Batch(*row)


# -------------------------------------------------------------------- their tasks


def tasks(connection: Connection, *, batch: str) -> list[Task]:
    return [Task(*row) for row in connection.run("batch_tasks", batch=batch)]


def next_tasks(connection: Connection, ids: Iterable[str], limit: int) -> list[Task]:
    """Return the first `limit` tasks of each batch that wait for a place."""
    rows = connection.run_rows("batch_next", [(id_,) for id_ in ids], limit=limit)
    return [Task(*row) for row in rows]


def holders(connection: Connection, batch: str, agent: str | None, limit: int) -> list[str]:
    """Return the ids of tasks that have a place; of all agents or of one."""
    rows = connection.run("why_batch_holders", batch=batch, agent=agent, limit=limit)
    return [row[0] for row in rows]


# -------------------------------------------------------------------- the recount


class BatchCounts(NamedTuple):
    total: int = 0
    open: int = 0
    holders: int = 0
    waiting: int = 0


def all_batches(connection: Connection) -> list[Batch]:
    return [Batch(*row) for row in connection.run("batch_all")]


def recount(connection: Connection) -> dict[str, BatchCounts]:
    return {row[0]: BatchCounts(*row[1:]) for row in connection.run("batch_recount")}
