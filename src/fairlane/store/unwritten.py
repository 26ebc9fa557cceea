"""Unsent changes of a transaction: rows that are written together."""

from __future__ import annotations

from fairlane.core.approvals import Approval
from fairlane.core.model import Change, Task
from fairlane.store.accounts import Accounts
from fairlane.store.base import Connection, Row
from fairlane.store.counters import Counters
from fairlane.store.tables import approvals, deliveries, events, idempotency, tasks
from fairlane.store.tables.deliveries import DueDelivery
from fairlane.store.tables.idempotency import KeyRow
from fairlane.store.vault import Vault


class Unwritten:
    """`inserts` and `updates` are tasks by sequence number, as their newest change left them.

    `stored` are the tasks in `updates` as the database has them: an update is guarded by the state
    and the fencing token that the task was read with.
    """

    def __init__(
        self,
        connection: Connection,
        vault: Vault,
        counters: Counters,
        accounts: Accounts,
        now: int,
    ) -> None:
        self._connection = connection
        self._vault = vault
        self._counters = counters
        self._accounts = accounts
        self._now = now
        self.inserts: dict[int, Task] = {}
        self.bodies: dict[int, str] = {}
        self.submitters: dict[int, str] = {}
        self.updates: dict[int, Task] = {}
        self.stored: dict[int, Task] = {}
        self.results: dict[int, tuple[int, str | None, str | None]] = {}
        self.deliveries: list[DueDelivery] = []
        self.keys: list[KeyRow] = []
        self.events: list[Row] = []
        self._opened: dict[int, Approval] = {}
        self._decided: dict[int, Approval] = {}
        self._decided_from: dict[int, str] = {}

    def add_approval(self, before: Approval | None, after: Approval) -> None:
        """Add the row of an approval; a new one has no `before`."""
        if before is None or after.seq in self._opened:
            self._opened[after.seq] = after
        else:
            self._decided_from.setdefault(after.seq, before.state)
            self._decided[after.seq] = after

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
            self.stored.setdefault(seq, before)
            self.updates[seq] = after

    def write(self) -> None:
        """Send everything. A lookup that does not merge the changes in comes after this."""
        connection = self._connection
        if self.inserts:
            tasks.insert(connection, self.inserts.values())
            tasks.insert_requests(connection, self._vault, self.bodies, self.submitters)
            self.inserts, self.bodies, self.submitters = {}, {}, {}
        if self.updates:
            tasks.update(connection, self.updates, self.stored)
            self.updates, self.stored = {}, {}
        if self.results:
            tasks.save_results(connection, self.results.values())
            self.results = {}
        if self.deliveries:
            deliveries.insert(connection, self.deliveries, self._now)
            self.deliveries = []
        if self.keys:
            idempotency.insert(connection, self.keys)
            self.keys = []
        if self._opened:
            approvals.insert(connection, self._opened.values())
            self._opened = {}
        if self._decided:
            approvals.update(connection, self._decided, self._decided_from)
            self._decided, self._decided_from = {}, {}
        if self.events:
            events.insert(connection, self.events)
            self.events = []
        self._counters.write()
        self._accounts.write()
