"""Lookups by index that include the transaction's own changes.

The lookups of every batch (`MergingLookup`) read what the database has and put the changes that are
not written yet in their place, so that a row is written once per transaction. For the others,
`StoreLookup` sends the changes first; `DraftLookup` never sends anything: see `draft.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from fairlane.core import lifecycle
from fairlane.core.approvals import Approval
from fairlane.core.counts import Line
from fairlane.core.model import BATCH_GATE, RESOURCE_GATE, SESSION_GATE, Task
from fairlane.store.base import Connection
from fairlane.store.counters import Counters
from fairlane.store.tables import approvals, batches, resources, sessions, tasks
from fairlane.store.tables.lines import Order, Pair
from fairlane.store.tables.tasks import NextDue, Ready
from fairlane.store.unwritten import Unwritten
from fairlane.store.vault import Vault

# A lookup reads as many rows more as it would find outdated; beyond this many, they are written.
_OUTDATED_MAX: Final = 64

# The gates of a task that has its session's turn.
_BEHIND_THE_TURN: Final = (None, BATCH_GATE, RESOURCE_GATE)

Finder = Callable[..., list[Task]]  # a table function: a connection and values in, tasks out


class Lookup(Protocol):
    """The lookups of ticks, sessions, batches and leasing."""

    def tasks(self, find: Finder, **values: object) -> list[Task]:
        """Return the tasks that `find` finds."""
        ...

    def next_due(self, by_hand: list[str] | None) -> NextDue:
        """Return when the next task changes by time; ignore leases of the lanes `by_hand`."""
        ...

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        """Return the requests of tasks as JSON text."""
        ...

    def new_ready(self, lane: str, count: int) -> list[Ready] | None:
        """Return the ready tasks of a lane, which are `count`, if none of them has to be looked up;
        otherwise None.
        """
        ...

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[Ready]:
        """Return the first `limit` ready tasks of each line, with their requests."""
        ...

    def next_tasks_of(self, lines: Sequence[int], agent: str, limit: int) -> list[Ready]:
        """Return the same for one agent only, where lines are common to all agents."""
        ...

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        """Return all lines of the first agents of each lane and capability."""
        ...

    def ready_capabilities(self, lane: str) -> list[str]:
        """Return the capabilities of the ready tasks of a lane, each once."""
        ...

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        """Return the first `limit` tasks of each session that wait for the turn."""
        ...

    def ready_in_sessions(self, keys: Iterable[str]) -> list[Task]:
        """Return the tasks of sessions that have the turn and are not leased."""
        ...

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        """Return the first `limit` tasks of each batch that wait for a place."""
        ...

    def approvals_of(self, seqs: Iterable[int]) -> list[Approval]:
        """Return the approvals of tasks that are in force, oldest first."""
        ...

    def approval_of_resource(self, resource: str) -> Approval | None:
        """Return the newest question about a budget."""
        ...

    def approvals_due(self, now: int, limit: int) -> list[Approval]:
        """Return open approvals that have expired."""
        ...

    def waiting_tasks(self, lines: Sequence[int], limit: int) -> list[Task]:
        """Return the first `limit` tasks of each line that wait for a resource."""
        ...


class MergingLookup:
    """Lookups without a write before them. `loaded` are the tasks of this transaction."""

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
        self._unwritten = unwritten
        self._loaded = loaded

    def new_ready(self, lane: str, count: int) -> list[Ready] | None:
        unwritten = self._unwritten
        if count > len(unwritten.inserts) + len(unwritten.updates):
            return None
        found = self._unwritten_tasks(lambda task: task.lane == lane and task.ready)
        return self._with_requests(found) if len(found) == count else None

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[Ready]:
        wanted = set(lines)

        def find(some: int) -> list[Ready]:
            return tasks.heads(self._connection, self._vault, lines, some)

        return self._merged_ready(find, lambda task: task.ready and task.line in wanted, limit)

    def next_tasks_of(self, lines: Sequence[int], agent: str, limit: int) -> list[Ready]:
        wanted = set(lines)

        def find(some: int) -> list[Ready]:
            return tasks.heads_of_agent(self._connection, self._vault, lines, agent, some)

        def fits(task: Task) -> bool:
            return task.ready and task.line in wanted and task.agent == agent

        return self._merged_ready(find, fits, limit)

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        return self._counters.first_lines(order, wanted, limit)

    def ready_capabilities(self, lane: str) -> list[str]:
        return self._counters.ready_capabilities(lane)

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        keys = dict.fromkeys(keys)

        def find(some: int) -> list[Task]:
            return sessions.next_tasks(self._connection, keys, some)

        def fits(task: Task) -> bool:
            return task.session in keys and _is_behind(task, SESSION_GATE)

        return self._merged(find, fits, limit, lambda task: task.session)

    def ready_in_sessions(self, keys: Iterable[str]) -> list[Task]:
        keys, moved = dict.fromkeys(keys), self._unwritten.updates

        def fits(task: Task) -> bool:
            queued = task.session in keys and task.state == lifecycle.QUEUED
            return queued and task.gate in _BEHIND_THE_TURN

        stored = sessions.ready_tasks(self._connection, keys)
        found = [self._loaded.setdefault(task.seq, task) for task in stored]
        return [task for task in found if task.seq not in moved] + self._unwritten_tasks(fits)

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        ids = dict.fromkeys(ids)

        def find(some: int) -> list[Task]:
            return batches.next_tasks(self._connection, ids, some)

        def fits(task: Task) -> bool:
            return task.batch in ids and _is_behind(task, BATCH_GATE)

        return self._merged(find, fits, limit, lambda task: task.batch)

    def waiting_tasks(self, lines: Sequence[int], limit: int) -> list[Task]:
        wanted = set(lines)

        def fits(task: Task) -> bool:
            return task.wait in wanted and _is_behind(task, RESOURCE_GATE)

        stored = resources.waiting_tasks(self._connection, lines, limit + self._outdated(fits))
        every = [task for task in stored if task.seq not in self._unwritten.updates]
        every += self._unwritten_tasks(fits)
        every.sort(key=lambda task: (task.rank, task.seq))
        first = _first_of_each(every, lambda task: task.wait, limit)
        return [self._loaded.setdefault(task.seq, task) for task in first]

    def _unwritten_tasks(self, fits: Callable[[Task], bool]) -> list[Task]:
        unwritten = self._unwritten
        found = [task for task in unwritten.inserts.values() if fits(task)]
        found += [task for task in unwritten.updates.values() if fits(task)]
        return found

    def _outdated(self, fits: Callable[[Task], bool]) -> int:
        """Return how many changed tasks the database still has where `fits` looks."""
        return sum(map(fits, self._unwritten.stored.values()))

    def _merged_ready(
        self, find: Callable[[int], list[Ready]], fits: Callable[[Task], bool], limit: int
    ) -> list[Ready]:
        """Return the first ready tasks of each line, by rank."""
        outdated = self._outdated(fits)
        stored, moved = find(limit + outdated), self._unwritten.updates
        changed = self._unwritten_tasks(fits)
        if not changed and not outdated:
            return stored
        bodies = {task.seq: body for task, body in stored if task.seq not in moved}
        every = [task for task, _ in stored if task.seq in bodies] + changed
        every.sort(key=lambda task: (task.line, task.rank, task.seq))
        first = _first_of_each(every, lambda task: task.line, limit)
        missing = [task for task in first if task.seq not in bodies]
        bodies.update((task.seq, body) for task, body in self._with_requests(missing))
        return [(task, bodies[task.seq]) for task in first]

    def _merged(
        self,
        find: Callable[[int], list[Task]],
        fits: Callable[[Task], bool],
        limit: int,
        group: Callable[[Task], str | None],
    ) -> list[Task]:
        """Return the first tasks of each group that wait behind a gate, by priority."""
        outdated = self._outdated(fits)
        stored, moved = find(limit + outdated), self._unwritten.updates
        changed = self._unwritten_tasks(fits)
        if not changed and not outdated:
            return stored
        every = [task for task in stored if task.seq not in moved] + changed
        every.sort(key=lambda task: (task.priority, task.seq))
        return _first_of_each(every, group, limit)

    def _with_requests(self, found: Sequence[Task]) -> list[Ready]:
        """Add the requests of tasks that were not found in the database with theirs."""
        new = self._unwritten.bodies
        missing = [task.seq for task in found if task.seq not in new]
        bodies = tasks.requests(self._connection, self._vault, missing) if missing else {}
        return [(task, new.get(task.seq) or bodies.get(task.seq, "")) for task in found]


class StoreLookup(MergingLookup):
    """Writes first, except where it merges. Loaded tasks are newer than those in the database."""

    def tasks(self, find: Finder, **values: object) -> list[Task]:
        self._unwritten.write()
        return [
            self._loaded.setdefault(task.seq, task) for task in find(self._connection, **values)
        ]

    def next_due(self, by_hand: list[str] | None) -> NextDue:
        self._unwritten.write()
        return tasks.next_due(self._connection, by_hand)

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        self._unwritten.write()
        return tasks.requests(self._connection, self._vault, seqs)

    def approvals_of(self, seqs: Iterable[int]) -> list[Approval]:
        self._unwritten.write()
        return approvals.of_tasks(self._connection, seqs)

    def approval_of_resource(self, resource: str) -> Approval | None:
        self._unwritten.write()
        return approvals.of_resource(self._connection, resource)

    def approvals_due(self, now: int, limit: int) -> list[Approval]:
        self._unwritten.write()
        return approvals.due(self._connection, now, limit)

    def _outdated(self, fits: Callable[[Task], bool]) -> int:
        count = super()._outdated(fits)
        if count > _OUTDATED_MAX:
            self._unwritten.write()
            return 0
        return count


def _is_behind(task: Task, gate: str) -> bool:
    return task.gate == gate and task.state == lifecycle.QUEUED


def _first_of_each(items: Iterable[Task], group: Callable[[Task], Any], limit: int) -> list[Task]:
    taken: dict[Any, int] = {}
    first = []
    for item in items:
        name = group(item)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= limit:
            first.append(item)
    return first
