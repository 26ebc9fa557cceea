"""Find tasks by conditions, count them, and find the ids that a short id stands for."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.fingerprints import Failure
from fairlane.core.model import Task
from fairlane.store.base import Connection

# The statement that finds the ids of each table by their beginning.
SHORT_IDS: Final = {
    "task": "short_task",
    "batch": "short_batch",
    "job": "short_job",
    "approval": "short_approval",
    "template": "short_template",
    "delivery": "short_delivery",
    "endpoint": "short_endpoint",
}
_FAILURES: Final = (lifecycle.FAILED, lifecycle.PARKED)
_SEQ_MAX: Final = 2**62
_AFTER_ALL: Final = "\U0010ffff"  # sorts after every character of an id


class Filter(msgspec.Struct, frozen=True):
    """Which tasks to find; all conditions must hold. `before` and `after` are sequence numbers.

    `capability` is what a worker must offer to run them, `parent` a task that they depend on.
    `error` and `text` are LIKE patterns with the escape character `!`, `where` is JSON text of
    `core/task_conditions.py`. The times are in milliseconds; a range ends before its second one.
    """

    agent: str | None = None
    states: list[str] | None = None
    lane: str | None = None
    session: str | None = None
    batch: str | None = None
    kind: str | None = None
    capability: str | None = None
    priority: int | None = None
    before: int | None = None
    after: int | None = None
    parent: str | None = None
    since: int | None = None
    until: int | None = None
    finished_since: int | None = None
    finished_until: int | None = None
    error: str | None = None
    text: str | None = None
    where: str | None = None


def ids(
    connection: Connection, wanted: Filter, limit: int, *, oldest: bool = False
) -> list[tuple[int, str]]:
    """Return sequence numbers and ids, newest first unless `oldest`."""
    name = "task_ids_up" if oldest else "task_ids"
    rows = connection.run(name, limit=limit, **msgspec.structs.asdict(wanted))
    return [(row[0], row[1]) for row in rows]


def counts(connection: Connection, wanted: Filter) -> dict[str, int]:
    """Count tasks by state."""
    rows = connection.run("task_count", **msgspec.structs.asdict(wanted))
    return {row[0]: row[1] for row in rows}


def failures(connection: Connection, wanted: Filter, limit: int) -> list[Failure]:
    """Return failed and parked tasks, newest first. Call it in a snapshot."""
    values = {**msgspec.structs.asdict(wanted), "upto": wanted.before or _SEQ_MAX, "limit": limit}
    states = [state for state in _FAILURES if wanted.states is None or state in wanted.states]
    found = [
        [Failure(*row) for row in connection.run("task_failures", state=state, **values)]
        for state in states
    ]
    return list(heapq.merge(*found, key=lambda one: -one.seq))[:limit]


def unknown(connection: Connection, task_ids: Sequence[str], agent: str | None) -> list[str]:
    """Return the ids that no task has; with `agent`, also those of other agents."""
    rows = connection.run_rows("task_by_id", [(one,) for one in task_ids])
    found = (Task(*row) for row in rows)
    known = {task.id for task in found if agent in (None, task.agent)}
    return [one for one in task_ids if one not in known]


def with_prefix(
    connection: Connection, table: str, prefix: str, agent: str | None, limit: int
) -> list[str]:
    """Return ids that begin with a text, in their order; with `agent`, only of its things."""
    last = prefix + _AFTER_ALL
    place = {"first": prefix, "last": last, "agent": agent, "limit": limit}
    rows = connection.run(SHORT_IDS[table], **place)
    return [row[0] for row in rows]
