"""Batches: tasks that were submitted together, and how many of them may run at once.

A task takes a place while it is ready or leased. A batch ends when none of its tasks is open;
retrying one of them reopens the batch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.model import BATCH_GATE, RESOURCE_GATE, Change, Task

RUNNING: Final = "running"
COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
STATES: Final = (RUNNING, COMPLETED, CANCELLED)


class Batch(msgspec.Struct):
    """`open` tasks have not ended; `holders` have a place, `waiting` are next to get one.

    `parallelism` None leaves the limit to the lanes. `cancelled` is 1 once the whole batch was
    cancelled.
    """

    id: str
    seq: int
    agent: str
    parallelism: int | None
    total: int
    created_at: int
    callback_url: str | None = None
    open: int = 0
    holders: int = 0
    waiting: int = 0
    cancelled: int = 0
    completed_at: int | None = None

    @property
    def free(self) -> int:
        return 0 if self.parallelism is None else max(0, self.parallelism - self.holders)

    @property
    def state(self) -> str:
        if self.cancelled:
            return CANCELLED
        return RUNNING if self.completed_at is None else COMPLETED


def apply(batch: Batch, change: Change) -> None:
    """Add what `change` contributes to the batch's counters. Nothing else counts for batches."""
    if change.before is None:
        batch.total += 1
    else:
        _count(batch, change.before, -1)
    _count(batch, change.after, 1)
    if change.verb == lifecycle.RETRY:
        batch.completed_at = None
        batch.cancelled = 0


def settle(batch: Batch, now: int) -> bool:
    """Return whether the batch ends now. Call it after all changes of a transaction are counted."""
    if batch.open or batch.completed_at is not None:
        return False
    batch.completed_at = now
    return True


def _count(batch: Batch, task: Task, sign: int) -> None:
    if not task.terminal:
        batch.open += sign
    if task.leased or task.ready or task.gate == RESOURCE_GATE:
        batch.holders += sign
    elif task.state == lifecycle.QUEUED and task.gate == BATCH_GATE:
        batch.waiting += sign
