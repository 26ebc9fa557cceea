"""Gates: what holds a queued task back although a slot may be free.

A gate is a word on the task's row; a queued task without one is ready. Gates are passed in one
order: `dependency` (its parents are not done), `delay` (not before a moment), `session` (others of
its session have the turn), `batch` (as many of its batch run as may). Whoever has passed the
session's gate keeps the turn through retries, so that work of a session never overtakes itself; the
place in a batch is given up while a retry waits. As nobody who waits for a session holds a place
in a batch, no two can wait for each other.
"""

from __future__ import annotations

import copy

import msgspec

from fairlane.core import lifecycle
from fairlane.core.batches import Batch
from fairlane.core.model import BATCH_GATE, DELAY_GATE, SESSION_GATE, Change, Task


class Session(msgspec.Struct):
    """A key whose tasks run in order: how many have the turn, and how many wait for it."""

    key: str
    holders: int = 0
    waiting: int = 0
    max_concurrent: int = 1

    @property
    def free(self) -> int:
        return max(0, self.max_concurrent - self.holders)

    @property
    def empty(self) -> bool:
        return not (self.holders or self.waiting)


def next_gate(
    task: Task, session: Session | None, batch: Batch | None, now: int, *, has_turn: bool = False
) -> str | None:
    """The gate that a queued task meets first, None when it is ready.

    `has_turn` says that it passed its session's gate before.
    """
    if task.eligible_at is not None and task.eligible_at > now:
        return DELAY_GATE
    if session is not None and not has_turn and (session.waiting or not session.free):
        return SESSION_GATE
    return batch_gate(batch)


def batch_gate(batch: Batch | None) -> str | None:
    """Where a task goes that has its turn: batches open their gates when all has been counted."""
    return BATCH_GATE if batch is not None and batch.parallelism is not None else None


def apply(session: Session, change: Change) -> None:
    """Move what `change` moves. The only place that counts for sessions."""
    if change.before is not None:
        session.holders -= holds_turn(change.before)
        session.waiting -= _waits(change.before)
    session.holders += holds_turn(change.after)
    session.waiting += _waits(change.after)


def holds_turn(task: Task) -> bool:
    """Whether the task has its session's turn."""
    if task.leased:
        return True
    if task.state != lifecycle.QUEUED:
        return False
    if task.gate == DELAY_GATE:
        return task.token > 0  # the wait before a retry; before its first lease it had no turn
    return task.gate != SESSION_GATE


def _waits(task: Task) -> bool:
    return task.state == lifecycle.QUEUED and task.gate == SESSION_GATE


def promote(task: Task, now: int, gate: str | None = None) -> Change:
    """Open the gate. Without another one the task is ready, and waits for a slot from now on."""
    after = copy.copy(task)
    after.gate = gate
    after.eligible_at = None
    after.queued_at = now
    return Change(task, after, lifecycle.PROMOTE)


def hold(task: Task) -> Change:
    """Give the turn back, to a task that goes first."""
    after = copy.copy(task)
    after.gate = SESSION_GATE
    return Change(task, after, lifecycle.HOLD)
