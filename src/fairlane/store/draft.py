"""A transaction that is never written: what would happen, computed on a snapshot.

The same code that writes runs on it. Changes stay in memory, and every lookup merges them into what
the snapshot has, so that each step sees the result of the one before. Nothing is locked. Caution:
a lookup that is not merged here would see old data, so a lookup without a condition is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fairlane.core import lifecycle
from fairlane.core.approvals import Approval
from fairlane.core.json_types import JsonMapping
from fairlane.core.model import DEBOUNCE_GATE, DELAY_GATE, SUSPEND_GATE, Task
from fairlane.store.lookup import Finder, MergingLookup
from fairlane.store.tables import approvals, tasks
from fairlane.store.tables.tasks import NextDue

Fits = Callable[[Task, JsonMapping], bool]
SortKey = Callable[[Task], tuple[int, ...]]


class DraftLookup(MergingLookup):
    """Finds changed tasks as they are, and all other tasks in the snapshot."""

    def tasks(self, find: Finder, **values: Any) -> list[Task]:
        fits, order = _CONDITIONS[find]
        updates = self._unwritten.updates
        limit = values.get("limit")
        if limit is not None:
            values["limit"] = limit + len(updates)
        stored = {task.seq: task for task in find(self._connection, **values)}
        for seq, task in stored.items():
            self._loaded.setdefault(seq, task)
        every = (stored | updates).values()
        return sorted((task for task in every if fits(task, values)), key=order)[:limit]

    def next_due(self, by_hand: list[str] | None) -> NextDue:
        """Return what the snapshot says: a draft is discarded before anything is due again."""
        return tasks.next_due(self._connection, by_hand)

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        return tasks.requests(self._connection, self._vault, seqs)

    def approvals_of(self, seqs: Iterable[int]) -> list[Approval]:
        """Return what the snapshot says: a draft decides each approval at most once."""
        return approvals.of_tasks(self._connection, seqs)

    def approval_of_resource(self, resource: str) -> Approval | None:
        return approvals.of_resource(self._connection, resource)

    def approvals_due(self, now: int, limit: int) -> list[Approval]:
        return approvals.due(self._connection, now, limit)


# -------------------------------------------------------------------- conditions

_OPEN: Final = frozenset({*lifecycle.IN_QUEUE, *lifecycle.IN_FLIGHT})


def _overdue(task: Task, values: JsonMapping) -> bool:
    at = task.deadline_at
    return at is not None and at <= values["now"] and task.state in _OPEN


def _abandoned(task: Task, values: JsonMapping) -> bool:
    at = task.lease_expires_at
    return at is not None and at <= values["now"] and task.lane not in (values["by_hand"] or ())


def _due(task: Task, values: JsonMapping) -> bool:
    waits = task.state == lifecycle.QUEUED and task.gate in (
        DELAY_GATE,
        DEBOUNCE_GATE,
        SUSPEND_GATE,
    )
    at = task.eligible_at
    return waits and at is not None and at <= values["now"]


def _preemptible(task: Task, values: JsonMapping) -> bool:
    can = task.preempt is not None and task.leased and task.state in lifecycle.IN_FLIGHT
    return can and task.lane == values["lane"]


def _place(task: Task) -> tuple[int, ...]:
    return task.rank, task.seq


# The conditions and orders of the statements, for a task in the draft.
_CONDITIONS: Final[Mapping[Finder, tuple[Fits, SortKey]]] = {
    tasks.overdue: (_overdue, lambda t: (t.deadline_at or 0, t.seq)),
    tasks.abandoned: (_abandoned, lambda t: (t.lease_expires_at or 0, t.seq)),
    tasks.due: (_due, lambda t: (t.eligible_at or 0, t.seq)),
    tasks.preemptible: (_preemptible, lambda t: (-t.priority, -t.seq)),
    tasks.held: (lambda t, v: t.lane == v["lane"] and t.gate == v["gate"], _place),
    tasks.parked: (lambda t, v: t.lane == v["lane"] and t.state == lifecycle.PARKED, _place),
    tasks.ended_last: (lambda t, v: t.lane == v["lane"] and t.terminal, _place),
}
