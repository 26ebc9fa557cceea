"""Lookups by index that include the transaction's own changes.

`StoreLookup` sends the changes first, so that the database finds them. The other implementation,
`DraftLookup`, never sends anything: see `draft.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fairlane.core.counts import Line
from fairlane.core.model import Task
from fairlane.store.base import Connection
from fairlane.store.counters import Counters
from fairlane.store.tables import batches, lines, sessions, tasks
from fairlane.store.tables.lines import Order, Pair
from fairlane.store.tables.tasks import NextDue, Ready
from fairlane.store.unwritten import Unwritten
from fairlane.store.vault import Vault

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

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        """Return the first `limit` tasks of each batch that wait for a place."""
        ...


class StoreLookup:
    """`loaded` are the tasks of this transaction by sequence number; they are newer."""

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

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[Ready]:
        self._unwritten.write()
        return tasks.heads(self._connection, self._vault, lines, limit)

    def next_tasks_of(self, lines: Sequence[int], agent: str, limit: int) -> list[Ready]:
        self._unwritten.write()
        return tasks.heads_of_agent(self._connection, self._vault, lines, agent, limit)

    def first_lines(self, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
        self._unwritten.write()
        return self._counters.first_lines(order, wanted, limit)

    def ready_capabilities(self, lane: str) -> list[str]:
        self._unwritten.write()
        return lines.ready_capabilities(self._connection, lane)

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        self._unwritten.write()
        return sessions.next_tasks(self._connection, keys, limit)

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        self._unwritten.write()
        return batches.next_tasks(self._connection, ids, limit)
