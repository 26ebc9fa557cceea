"""A transaction that is never written: what would happen, computed on a snapshot.

The same code that writes runs on it. Changes stay in memory, and every lookup merges them into what
the snapshot has, so that each step sees the result of the one before. Nothing is locked. The trap:
a lookup that is not merged here would see the past, so one without a condition is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fairlane.core import lifecycle
from fairlane.core.counts import Line
from fairlane.core.json_types import JsonMapping
from fairlane.core.model import (
    BATCH_GATE,
    DEBOUNCE_GATE,
    DELAY_GATE,
    SESSION_GATE,
    Task,
)
from fairlane.store.base import Connection
from fairlane.store.counters import Counters
from fairlane.store.lookup import Finder
from fairlane.store.tables import batches, lines, sessions, tasks
from fairlane.store.tables.lines import URGENT, Order, Pair
from fairlane.store.tables.tasks import NextDue, Ready
from fairlane.store.unwritten import Unwritten
from fairlane.store.vault import Vault

Fits = Callable[[Task, JsonMapping], bool]
SortKey = Callable[[Task], tuple[int, ...]]


class DraftLookup:
    """Finds `unwritten.updates` as they are, and all other tasks in the snapshot."""

    def __init__(
        self,
        connection: Connection,
        vault: Vault,
        counters: Counters,
        unwritten: Unwritten,
        loaded: dict[int, Task],
    ) -> None:
        self._connection = connection
        self._vault = vault
        self._counters = counters
        self._updates = unwritten.updates
        self._loaded = loaded

    def tasks(self, find: Finder, **values: Any) -> list[Task]:
        fits, order = _CONDITIONS[find]
        limit = values.get("limit")
        if limit is not None:
            values["limit"] = limit + len(self._updates)
        stored = {task.seq: task for task in find(self._connection, **values)}
        for seq, task in stored.items():
            self._loaded.setdefault(seq, task)
        every = (stored | self._updates).values()
        return sorted((task for task in every if fits(task, values)), key=order)[:limit]

    def next_due(self, by_hand: list[str] | None) -> NextDue:
        """Return what the snapshot says: a draft is discarded before anything is due again."""
        return tasks.next_due(self._connection, by_hand)

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        return tasks.requests(self._connection, self._vault, seqs)

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[Ready]:
        """Return tasks; tasks that became ready in this draft come without their requests."""
        some = limit + len(self._updates)
        return self._ready(tasks.heads(self._connection, self._vault, lines, some), lines, limit)

    def next_tasks_of(self, lines: Sequence[int], agent: str, limit: int) -> list[Ready]:
        some = limit + len(self._updates)
        stored = tasks.heads_of_agent(self._connection, self._vault, lines, agent, some)
        return self._ready(stored, lines, limit, agent)

    def _ready(
        self, stored: list[Ready], lines: Sequence[int], limit: int, agent: str | None = None
    ) -> list[Ready]:
        wanted = set(lines)
        ready = [pair for pair in stored if pair[0].seq not in self._updates]
        ready += [
            (task, "")
            for task in self._updates.values()
            if task.ready and task.line in wanted and agent in (None, task.agent)
        ]
        ready.sort(key=lambda pair: (pair[0].line, pair[0].rank, pair[0].seq))
        return _first_of_each(ready, lambda pair: pair[0].line, limit)

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        changed = self._counters.share_lines()
        self._counters.first_lines(order, wanted, limit + len(changed))
        counted = "urgent" if order is URGENT else "ready"
        places, lanes = set(wanted), {pair[0] for pair in wanted}
        return [
            line
            for lane in sorted(lanes)
            for of_agent in self._counters.loaded_lines(lane)
            if any(_counts(line, places, counted) for line in of_agent)
            for line in of_agent
        ]

    def ready_capabilities(self, lane: str) -> list[str]:
        changed = [line for line in self._counters.share_lines() if line.lane == lane]
        ready = {line.capability for line in changed if line.ready}
        return sorted({*lines.ready_capabilities(self._connection, lane), *ready})

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        keys = set(keys)
        stored = sessions.next_tasks(self._connection, sorted(keys), limit + len(self._updates))
        behind = self._behind(stored, SESSION_GATE, lambda task: task.session in keys)
        return _first_of_each(behind, lambda task: task.session, limit)

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        ids = set(ids)
        stored = batches.next_tasks(self._connection, sorted(ids), limit + len(self._updates))
        behind = self._behind(stored, BATCH_GATE, lambda task: task.batch in ids)
        return _first_of_each(behind, lambda task: task.batch, limit)

    def _behind(
        self, stored: Sequence[Task], gate: str, mine: Callable[[Task], bool]
    ) -> list[Task]:
        behind = [task for task in stored if task.seq not in self._updates]
        moved = [task for task in self._updates.values() if task.gate == gate and mine(task)]
        return sorted([*behind, *moved], key=lambda task: (task.priority, task.seq))


def _counts(line: Line, wanted: set[Pair], counted: str) -> bool:
    return (line.lane, line.capability) in wanted and getattr(line, counted) > 0


def _first_of_each(items: Iterable[Any], group: Callable[[Any], Any], limit: int) -> list[Any]:
    taken: dict[Any, int] = {}
    first = []
    for item in items:
        name = group(item)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= limit:
            first.append(item)
    return first


# -------------------------------------------------------------------- conditions

_OPEN: Final = frozenset({*lifecycle.IN_QUEUE, *lifecycle.IN_FLIGHT})


def _overdue(task: Task, values: JsonMapping) -> bool:
    at = task.deadline_at
    return at is not None and at <= values["now"] and task.state in _OPEN


def _abandoned(task: Task, values: JsonMapping) -> bool:
    at = task.lease_expires_at
    return at is not None and at <= values["now"] and task.lane not in (values["by_hand"] or ())


def _due(task: Task, values: JsonMapping) -> bool:
    waits = task.state == lifecycle.QUEUED and task.gate in (DELAY_GATE, DEBOUNCE_GATE)
    return waits and (task.eligible_at or 0) <= values["now"]


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
