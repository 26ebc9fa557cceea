"""The tick: deadlines pass, leases expire, waits end, old records are deleted.

Each tick does a bounded amount and reports when the next one is due, so that neither a million
expired tasks nor a month of history blocks the writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import gates, leases
from fairlane.core.dependencies import OPEN
from fairlane.core.model import SUSPEND_GATE, Task
from fairlane.engine.commands import Prune
from fairlane.engine.verbs import approvals, cron, dependencies, resources, suspending, waking
from fairlane.engine.verbs.tasks import backoffs
from fairlane.store.tables import approvals as approval_table
from fairlane.store.tables import batches as batch_table
from fairlane.store.tables import dependencies as dependency_table
from fairlane.store.tables import resources as resource_table
from fairlane.store.tables import scheduler
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction

STEP = 500
LEDGER_STEP = 2000
_WRITER_KEPT_MS = 86_400_000  # far longer than any writer takes to look up its last commit
_REJECTED_KEPT_MS = 3_600_000
_DAY_MS = 86_400_000


def tick(tx: Transaction, now: int, grace_ms: int = 0) -> None:
    """Process everything that is due at `now`; `tx.due_at` is when the next tick is due.

    Leases that expired less than `grace_ms` ago are left alone.
    """
    more = [
        _expire(tx, now),
        not grace_ms and len(reclaim(tx, now)) == STEP,
        promote_due(tx, now),
        approvals.expire(tx, now),
    ]
    waking.tick(tx)
    deadline_at, lease_at, eligible_at, approval_at = tx.lookup.next_due(by_hand(tx))
    if lease_at is not None and grace_ms:
        lease_at = max(lease_at, now + grace_ms)
    for due_at in (deadline_at, lease_at, eligible_at, approval_at):
        if due_at is not None:
            tx.note_due(due_at)
    if any(more):
        tx.note_due(now)


def settle(tx: Transaction, now: int) -> None:
    """Apply the consequences of all changes: children, sessions, batches."""
    if tx.settling or tx.unsettled:
        dependencies.settle(tx, now)
    _take_turns_back(tx)
    while tx.counters.open_sessions or tx.counters.open_batches:
        _settle_sessions(tx, now)
        _settle_batches(tx, now)
    tx.settle_batches()
    if tx.closing:
        approvals.close(tx, now)
    if tx.accounts.ended:
        resources.settle_ended(tx)


def _take_turns_back(tx: Transaction) -> None:
    """If fewer tasks may run than before, return unstarted ones to waiting, the last first."""
    for key in sorted(tx.counters.tight_sessions):
        held = [
            task
            for task in tx.lookup.tasks(session_table.turn_tasks, session=key)
            if not task.fencing_token
        ]
        held.sort(key=lambda task: (task.priority, task.seq), reverse=True)
        over = max(0, tx.counters.session(key).holders - tx.counters.session(key).limit)
        tx.counters.prepare(held[:over])
        for task in held[:over]:
            tx.apply(gates.hold(task))
    tx.counters.tight_sessions.clear()


def _settle_sessions(tx: Transaction, now: int) -> None:
    """Pass the turn on in sessions where a run has ended."""
    while tx.counters.open_sessions:
        free: dict[int, list[str]] = {}
        for key in sorted(tx.counters.open_sessions):
            session = tx.counters.session(key)
            if session.free and session.waiting:
                free.setdefault(session.free, []).append(key)
        tx.counters.open_sessions.clear()
        for limit, keys in free.items():
            tasks = tx.lookup.next_in_sessions(keys, limit)
            tx.counters.prepare(tasks)
            for task in tasks:
                gate = gates.batch_gate(tx.counters.batch_of(task))
                tx.apply(gates.promote(task, now, resources.gate(tx, task, gate)))


def _settle_batches(tx: Transaction, now: int) -> None:
    """Fill the free places of batches."""
    free: dict[int, list[str]] = {}
    for id_ in sorted(tx.counters.open_batches):
        batch = tx.counters.batch(id_)
        if batch is not None and batch.free and batch.waiting:
            free.setdefault(batch.free, []).append(id_)
    tx.counters.open_batches.clear()
    for limit, ids in free.items():
        tasks = tx.lookup.next_in_batches(ids, limit)
        tx.counters.prepare(tasks)
        for task in tasks:
            tx.apply(gates.promote(task, now, resources.gate(tx, task, None)))


def prune(tx: Transaction, now: int) -> int:
    """Forget terminal tasks beyond their retention; return how many."""
    tx.unwritten.write()
    before = now - tx.policy.retention.ttl_ms
    old = task_table.old(tx.connection, before, STEP)
    old += task_table.old_rejected(tx.connection, now - _REJECTED_KEPT_MS, STEP)
    seqs = list(dict.fromkeys(task.seq for task in old))
    if tx.open_edges:
        edges = dependency_table.of_children(tx.connection, seqs).values()
        tx.open_edges -= sum(state == OPEN for parents in edges for state in parents.values())
    task_table.delete(tx.connection, seqs)
    batches = dict.fromkeys(task.batch for task in old if task.batch)
    batch_table.forget_with_events(tx.connection, batches)
    # An agent without tasks needs no line; the lane's totals stay.
    tx.counters.forget_lines((task.lane, task.agent) for task in old)
    scheduler.forget_writers(tx.connection, now - _WRITER_KEPT_MS)
    idle = session_table.idle(tx.connection, before, STEP)
    session_table.forget(tx.connection, idle)
    tx.changed = tx.changed or bool(idle)
    approval_table.prune(tx.connection, before, STEP)
    cron.prune(tx, now)
    _prune_resources(tx, before)
    return len(seqs)


def _prune_resources(tx: Transaction, before: int) -> None:
    """Forget old entries of ledgers. A task may have many, so they are not counted with tasks."""
    count = resource_table.count_old_entries(tx.connection, before, LEDGER_STEP)
    tx.changed = tx.changed or count > 0
    tx.prune_again = count == LEDGER_STEP
    resource_table.prune(tx.connection, before=before, day=before // _DAY_MS, limit=LEDGER_STEP)


def prune_now(tx: Transaction, requests: Sequence[Prune], now: int) -> Iterator[int]:
    """Prune one step for any number of requests; in a dry run, return the number of tasks that
    could be deleted.
    """
    before = now - tx.policy.retention.ttl_ms
    tx.unwritten.write()
    for request in requests:
        if request.dry_run:
            yield task_table.count_old(tx.connection, before)
        else:
            yield prune(tx, now)


def _expire(tx: Transaction, now: int) -> bool:
    tasks = tx.lookup.tasks(task_table.overdue, now=now, limit=STEP)
    tx.counters.prepare(tasks)
    for task in tasks:
        tx.apply(leases.expire(task, now))
    return len(tasks) == STEP


def reclaim(tx: Transaction, now: int, *, asked: bool = False) -> list[Task]:
    """Reclaim expired leases, a bounded number of them; return their tasks.

    Some lanes are included only if an operator `asked` for it.
    """
    lanes = None if asked else by_hand(tx)
    tasks = tx.lookup.tasks(task_table.abandoned, now=now, limit=STEP, by_hand=lanes)
    tx.counters.prepare(tasks)
    owns = backoffs(tx, tasks)
    for task in tasks:
        tx.apply(leases.reclaim(task, tx.policy, owns.get(task.seq), now))
    tx.reclaimed += tasks
    return tasks


def by_hand(tx: Transaction) -> list[str] | None:
    """Return the lanes in which expired leases are left alone; None if there are none."""
    return tx.policy.reclaimed_by_hand() or None


def promote_due(tx: Transaction, now: int) -> bool:
    """End waits whose time has come; return whether there may be more."""
    tasks = tx.lookup.tasks(task_table.due, now=now, limit=STEP)
    tx.counters.prepare(tasks)
    for task in tasks:
        if task.gate == SUSPEND_GATE:
            suspending.wake(tx, task, now)
            continue
        session, batch = tx.counters.session_of(task), tx.counters.batch_of(task)
        has_turn = gates.holds_turn(task)
        gate = gates.next_gate(task, session, batch, now, has_turn=has_turn)
        tx.apply(gates.promote(task, now, resources.gate(tx, task, gate)))
    return len(tasks) == STEP
