"""Unsent changes of a transaction: rows that are written together."""

from __future__ import annotations

from fairlane.core.model import Change, Task
from fairlane.store.base import Connection, Row
from fairlane.store.counters import Counters
from fairlane.store.tables import deliveries, events, idempotency, tasks
from fairlane.store.tables.deliveries import DueDelivery
from fairlane.store.tables.idempotency import KeyRow
from fairlane.store.vault import Vault


class Unwritten:
    """`inserts` and `updates` are tasks by sequence number, as their newest change left them.

    An update is guarded by the state and the fencing token that the task was read with.
    """

    def __init__(self, connection: Connection, vault: Vault, counters: Counters, now: int) -> None:
        self._connection = connection
        self._vault = vault
        self._counters = counters
        self._now = now
        self.inserts: dict[int, Task] = {}
        self.bodies: dict[int, str] = {}
        self.updates: dict[int, Task] = {}
        self._guards: dict[int, tuple[str, int]] = {}
        self.results: dict[int, tuple[int, str | None, str | None]] = {}
        self.deliveries: list[DueDelivery] = []
        self.keys: list[KeyRow] = []
        self.events: list[Row] = []

    def add(self, change: Change, body: str | None) -> None:
        """Add the row of a task. A new task brings its request."""
        before, after = change.before, change.after
        seq = after.seq
        if before is None:
            assert body is not None
            self.inserts[seq] = after
            self.bodies[seq] = body
        elif seq in self.inserts:
            self.inserts[seq] = after
        else:
            self._guards.setdefault(seq, (before.state, before.fencing_token))
            self.updates[seq] = after

    def write(self) -> None:
        """Send everything. A lookup by index comes after this."""
        connection = self._connection
        if self.inserts:
            tasks.insert(connection, self.inserts.values())
            tasks.insert_requests(connection, self._vault, self.bodies)
            self.inserts, self.bodies = {}, {}
        if self.updates:
            tasks.update(connection, self.updates, self._guards)
            self.updates, self._guards = {}, {}
        if self.results:
            tasks.save_results(connection, self.results.values())
            self.results = {}
        if self.deliveries:
            deliveries.insert(connection, self.deliveries, self._now)
            self.deliveries = []
        if self.keys:
            idempotency.insert(connection, self.keys)
            self.keys = []
        if self.events:
            events.insert(connection, self.events)
            self.events = []
        self._counters.write()
