"""The verb of batches: cancel all tasks of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import leases
from fairlane.core.batches import Batch
from fairlane.core.errors import Conflict, NotFound
from fairlane.engine.commands import CancelBatch
from fairlane.store.tables import batches as batch_table
from fairlane.store.transaction import Transaction


def cancel_batch(tx: Transaction, requests: Sequence[CancelBatch], now: int) -> Iterator[object]:
    for request in requests:
        batch = tx.counters.batch(request.id)
        if batch is None:
            yield NotFound(f'batch "{request.id}" not found')
        elif batch.completed_at is not None:
            message = f'batch "{request.id}" has already ended: it is {batch.state}'
            yield Conflict(message, details={"state": batch.state})
        else:
            yield _cancel_all(tx, batch, now)


def _cancel_all(tx: Transaction, batch: Batch, now: int) -> int:
    tasks = [
        task for task in tx.lookup.tasks(batch_table.tasks, batch=batch.id) if not task.terminal
    ]
    tx.counters.prepare(tasks)
    batch.cancelled = 1
    for task in tasks:
        change = leases.cancel(task, task.id, now).change
        if change is not None:
            tx.apply(change)
    return len(tasks)
