"""A transaction that is never written: what would happen, worked out on a snapshot.

The very code that writes runs on it. Changes stay in memory, and every look-up lays them over what
the snapshot has, so that each step sees what the one before has left. Nothing is locked. The trap:
a look-up that is not laid over here would see the past, so one without a condition is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fairlane.core import lifecycle
from fairlane.core.counts import Line
from fairlane.core.model import (
    BATCH_GATE,
    DEBOUNCE_GATE,
    DELAY_GATE,
    SESSION_GATE,
    Change,
    Task,
)
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.lines import URGENT, Order, Pair
from fairlane.store.tables.tasks import Ready
from fairlane.store.transaction import Transaction

Fits = Callable[[Task, Mapping[str, Any]], bool]
SortKey = Callable[[Task], tuple[int, ...]]


class Draft(Transaction):
    """`was` holds the changed tasks as the snapshot has them."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        super().__init__(*arguments, **values)
        self.was: dict[int, Task] = {}

    def apply(self, change: Change, body: str | None = None) -> None:
        assert change.before is not None, "a draft takes no new tasks in"
        self.was.setdefault(change.after.seq, change.before)
        super().apply(change, body)

    def write(self) -> None:
        """Only what follows from the counters is brought up to date: each agent's share."""
        self.share_lines()

    def changed_tasks(self) -> list[Task]:
        return list(self._updates.values())

    # ---------------------------------------------------------------- look-ups

    def tasks(self, read: Callable[..., list[Task]], **values: Any) -> list[Task]:
        fits, order = _CONDITIONS[read]
        limit = values.get("limit")
        if limit is not None:
            values["limit"] = limit + len(self._updates)
        found = {task.seq: task for task in super().tasks(read, **values)} | self._updates
        return sorted((t for t in found.values() if fits(t, values)), key=order)[:limit]

    def ready_routes(self, lane: str) -> list[str]:
        mine = [line for pair in self._dirty_lines for line in self._lines[pair].values()]
        more = {line.route for line in mine if line.lane == lane and line.ready}
        return sorted({*super().ready_routes(lane), *more})

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[Ready]:
        """Those that became ready in this draft come without their requests."""
        found = super().next_tasks(lines, limit + len(self._updates))
        wanted = set(lines)
        left = [pair for pair in found if pair[0].seq not in self._updates]
        left += [(t, "") for t in self._updates.values() if t.ready and t.line in wanted]
        left.sort(key=lambda pair: (pair[0].line, pair[0].rank, pair[0].seq))
        return _first_of_each(left, lambda pair: pair[0].line, limit)

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        super().first_lines(order, wanted, limit + len(self._dirty_lines))
        counted = "urgent" if order is URGENT else "ready"
        places, lanes = set(wanted), {pair[0] for pair in wanted}
        return [
            line
            for (lane, _), lines in self._lines.items()
            if lane in lanes and any(_is_one(line, places, counted) for line in lines.values())
            for line in lines.values()
        ]

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        keys = set(keys)
        found = super().next_in_sessions(sorted(keys), limit + len(self._updates))
        left = self._behind(found, SESSION_GATE, lambda task: task.session in keys)
        return _first_of_each(left, lambda task: task.session, limit)

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        ids = set(ids)
        found = super().next_in_batches(sorted(ids), limit + len(self._updates))
        left = self._behind(found, BATCH_GATE, lambda task: task.batch in ids)
        return _first_of_each(left, lambda task: task.batch, limit)

    def _behind(self, found: Sequence[Task], gate: str, mine: Callable[[Task], bool]) -> list[Task]:
        left = [task for task in found if task.seq not in self._updates]
        moved = [t for t in self._updates.values() if t.gate == gate and mine(t)]
        return sorted([*left, *moved], key=lambda task: (task.priority, task.seq))


def _is_one(line: Line, wanted: set[Pair], counted: str) -> bool:
    return (line.lane, line.route) in wanted and getattr(line, counted) > 0


def _first_of_each(items: Iterable[Any], group: Callable[[Any], Any], limit: int) -> list[Any]:
    taken: dict[Any, int] = {}
    found = []
    for item in items:
        name = group(item)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= limit:
            found.append(item)
    return found


# -------------------------------------------------------------------- conditions

_OPEN: Final = frozenset({*lifecycle.IN_QUEUE, *lifecycle.IN_FLIGHT})


def _overdue(task: Task, values: Mapping[str, Any]) -> bool:
    at = task.deadline_at
    return at is not None and at <= values["now"] and task.state in _OPEN


def _abandoned(task: Task, values: Mapping[str, Any]) -> bool:
    at = task.lease_expires_at
    return at is not None and at <= values["now"] and task.lane not in (values.get("by_hand") or ())


def _due(task: Task, values: Mapping[str, Any]) -> bool:
    waits = task.state == lifecycle.QUEUED and task.gate in (DELAY_GATE, DEBOUNCE_GATE)
    return waits and (task.eligible_at or 0) <= values["now"]


def _preemptible(task: Task, values: Mapping[str, Any]) -> bool:
    can = task.preempt is not None and task.leased and task.state in lifecycle.IN_FLIGHT
    return can and task.lane == values["lane"]


def _place(task: Task) -> tuple[int, ...]:
    return task.rank, task.seq


# What the statements say in SQL, about a task as the draft has left it, and their order.
_CONDITIONS: Final[Mapping[Callable[..., list[Task]], tuple[Fits, SortKey]]] = {
    task_table.overdue: (_overdue, lambda t: (t.deadline_at or 0, t.seq)),
    task_table.abandoned: (_abandoned, lambda t: (t.lease_expires_at or 0, t.seq)),
    task_table.due: (_due, lambda t: (t.eligible_at or 0, t.seq)),
    task_table.preemptible: (_preemptible, lambda t: (-t.priority, -t.seq)),
    task_table.held: (lambda t, v: t.lane == v["lane"] and t.gate == v["gate"], _place),
    task_table.parked: (lambda t, v: t.lane == v["lane"] and t.state == lifecycle.PARKED, _place),
    task_table.ended_last: (lambda t, v: t.lane == v["lane"] and t.terminal, _place),
}
