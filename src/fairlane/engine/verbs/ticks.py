"""What time does: deadlines pass, leases run out, waits end, old records go.

Each tick does a bounded amount and says when it has to be called again, so that neither a million
expired tasks nor a month of history holds up the writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import gates, leases
from fairlane.core.dependencies import OPEN
from fairlane.core.model import Task
from fairlane.engine.commands import Prune
from fairlane.engine.verbs import cron, dependencies
from fairlane.engine.verbs.tasks import backoffs
from fairlane.store.transaction import Transaction

STEP = 500
_WRITER_KEPT_MS = 86_400_000  # far longer than any writer takes to ask about its last commit
_REJECTED_KEPT_MS = 3_600_000
TABLES = (
    "task",
    "request",
    "result",
    "delivery",
    "idempotency",
    "dependency",
    "event",
    "output",
)


def tick(tx: Transaction, now: int, grace_ms: int = 0) -> None:
    """Do what is due at `now`; `tx.due_at` tells when the next is.

    Leases that have run out are left alone for `grace_ms`.
    """
    more = [
        _expire(tx, now),
        not grace_ms and len(reclaim(tx, now)) == STEP,
        _promote_due(tx, now),
    ]
    tx.write()
    deadline_at, lease_at, eligible_at = tx.connection.run("next_due", **by_hand(tx))[0]
    if lease_at is not None and grace_ms:
        lease_at = max(lease_at, now + grace_ms)
    for due_at in (deadline_at, lease_at, eligible_at):
        if due_at is not None:
            tx.note_due(due_at)
    if any(more):
        tx.note_due(now)


def settle(tx: Transaction, now: int) -> None:
    """Let everything follow from what has happened: children, sessions, batches."""
    if tx.settling or tx.unsettled:
        dependencies.settle(tx, now)
    _take_turns_back(tx)
    while tx.open_sessions or tx.open_batches:
        _settle_sessions(tx, now)
        _settle_batches(tx, now)
    tx.close_batches()


def _take_turns_back(tx: Transaction) -> None:
    """Where fewer may run than before, those that have not begun yet wait again, the last first."""
    for key in sorted(tx.tight_sessions):
        held = [task for task in tx.tasks("session_held", session=key) if not task.token]
        held.sort(key=lambda task: (task.priority, task.seq), reverse=True)
        over = max(0, tx.session(key).holders - tx.session(key).limit)
        tx.prepare(held[:over])
        for task in held[:over]:
            tx.apply(gates.hold(task))
    tx.tight_sessions.clear()


def _settle_sessions(tx: Transaction, now: int) -> None:
    """Hand the turn on in sessions where a run has ended."""
    while tx.open_sessions:
        free: dict[int, list[str]] = {}
        for key in sorted(tx.open_sessions):
            session = tx.session(key)
            if session.free and session.waiting:
                free.setdefault(session.free, []).append(key)
        tx.open_sessions.clear()
        for limit, keys in free.items():
            tasks = tx.next_in_sessions(keys, limit)
            tx.prepare(tasks)
            for task in tasks:
                tx.apply(gates.promote(task, now, gates.batch_gate(tx.batch_of(task))))


def _settle_batches(tx: Transaction, now: int) -> None:
    """Fill the places of batches where one has become free."""
    free: dict[int, list[str]] = {}
    for id_ in sorted(tx.open_batches):
        batch = tx.batch(id_)
        if batch is not None and batch.free and batch.waiting:
            free.setdefault(batch.free, []).append(id_)
    tx.open_batches.clear()
    for limit, ids in free.items():
        tasks = tx.next_in_batches(ids, limit)
        tx.prepare(tasks)
        for task in tasks:
            tx.apply(gates.promote(task, now))


def prune(tx: Transaction, now: int) -> int:
    """Forget terminal tasks that are older than the retention; how many went."""
    tx.write()
    before = now - tx.policy.retention.ttl_ms
    rows = tx.connection.run("task_old", before=before, limit=STEP)
    rows += tx.connection.run("task_rejected", before=now - _REJECTED_KEPT_MS, limit=STEP)
    seqs = [(seq,) for seq in dict.fromkeys(row[0] for row in rows)]
    if tx.open_edges:
        edges = tx.edges_of(seq for (seq,) in seqs).values()
        tx.open_edges -= sum(state == OPEN for found in edges for state in found.values())
    for table in TABLES:
        tx.connection.run_rows(f"{table}_delete", seqs)
    batches = [(id_,) for id_ in dict.fromkeys(row[1] for row in rows) if id_]
    tx.connection.run_rows("delivery_forget", batches)
    tx.connection.run_rows("batch_forget", batches)
    tx.connection.run_rows("event_forget", batches)
    # An agent that nothing is known of any more needs no line; the lane's totals stay.
    tx.forget_lines(row[2:] for row in rows)
    tx.connection.run("writer_forget", before=now - _WRITER_KEPT_MS)
    idle = tx.connection.run("session_old", before=before, limit=STEP)
    tx.connection.run_rows("session_forget", idle)
    tx.changed = tx.changed or bool(idle)
    cron.prune(tx, now)
    return len(seqs)


def prune_now(tx: Transaction, requests: Sequence[Prune], now: int) -> Iterator[int]:
    """One step, however many ask; or only the number of those that could go."""
    before = now - tx.policy.retention.ttl_ms
    tx.write()
    for request in requests:
        if request.dry_run:
            yield tx.connection.run("task_old_count", before=before)[0][0]
        else:
            yield prune(tx, now)


def _expire(tx: Transaction, now: int) -> bool:
    tasks = tx.tasks("task_overdue", now=now, limit=STEP)
    tx.prepare(tasks)
    for task in tasks:
        tx.apply(leases.expire(task, now))
    return len(tasks) == STEP


def reclaim(tx: Transaction, now: int, *, asked: bool = False) -> list[Task]:
    """Take back leases that have run out, a bounded number of them; whose they were.

    Some lanes leave that to whoever has `asked` for it.
    """
    tasks = tx.tasks("task_abandoned", now=now, limit=STEP, **({} if asked else by_hand(tx)))
    tx.prepare(tasks)
    owns = backoffs(tx, tasks)
    for task in tasks:
        tx.apply(leases.reclaim(task, tx.policy, owns.get(task.seq), now))
    tx.reclaimed += tasks
    return tasks


def by_hand(tx: Transaction) -> dict[str, list[str]]:
    """The lanes, if there are any, in which leases that ran out are left alone."""
    lanes = tx.policy.reclaimed_by_hand()
    return {"by_hand": lanes} if lanes else {}


def _promote_due(tx: Transaction, now: int) -> bool:
    tasks = tx.tasks("task_due", now=now, limit=STEP)
    tx.prepare(tasks)
    for task in tasks:
        session, batch = tx.session_of(task), tx.batch_of(task)
        has_turn = gates.holds_turn(task)
        gate = gates.next_gate(task, session, batch, now, has_turn=has_turn)
        tx.apply(gates.promote(task, now, gate))
    return len(tasks) == STEP
