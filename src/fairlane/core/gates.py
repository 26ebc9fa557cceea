"""Gates: reasons that hold a queued task back although a slot may be free.

A gate is a word in the task's row; a queued task without one is ready. Gates are passed in one
order: `dependency` (its parents are not done), `delay` (its start time has not come) or `debounce`
(the message may still grow), `approval` (a person has not decided), `session` (other tasks of its
session have the turn), `batch` (its batch is at its parallelism), `resource` (a resource that it
needs has no room). A run that suspends itself waits behind `suspend`. A task that has passed the
session gate keeps the turn through retries, while it asks a person and while it is suspended, so
that work of a session never overtakes itself; it gives up its place in the batch meanwhile. A task
that waits for a session holds no place in a batch, and one that waits for a resource holds nothing
of any resource, so no two tasks can wait for each other.
"""

from __future__ import annotations

from fairlane.core import lifecycle
from fairlane.core.batches import Batch
from fairlane.core.model import (
    APPROVAL_GATE,
    BATCH_GATE,
    DEBOUNCE_GATE,
    DELAY_GATE,
    RESOURCE_GATE,
    SESSION_GATE,
    Change,
    Task,
    copied,
)
from fairlane.core.sessions import Session


def next_gate(
    task: Task, session: Session | None, batch: Batch | None, now: int, *, has_turn: bool = False
) -> str | None:
    """Return the first gate that holds a queued task, or None if it is ready.

    `has_turn` says that it has passed its session's gate before.
    """
    if task.eligible_at is not None and task.eligible_at > now:
        return DELAY_GATE
    if task.unapproved:
        return APPROVAL_GATE
    if session is not None and not has_turn and (session.waiting or not session.free):
        return SESSION_GATE
    return batch_gate(batch)


def batch_gate(batch: Batch | None) -> str | None:
    """Return the batch gate of a task that has its turn. Batches open it after all changes are
    counted.
    """
    return BATCH_GATE if batch is not None and batch.parallelism is not None else None


def apply(session: Session, change: Change) -> None:
    """Add what `change` contributes to the session's counters. Nothing else counts for sessions."""
    if change.before is not None:
        _count(session, change.before, -1)
    _count(session, change.after, 1)
    if not session.holders:
        session.interrupted = 0


def _count(session: Session, task: Task, sign: int) -> None:
    if holds_turn(task):
        session.holders += sign
    elif task.state == lifecycle.QUEUED:
        if task.gate == SESSION_GATE:
            session.waiting += sign
        elif task.gate == DEBOUNCE_GATE:
            session.debouncing += sign
        else:
            session.later += sign
    elif not task.terminal:
        session.later += sign


def holds_turn(task: Task) -> bool:
    """Return whether the task has its session's turn."""
    if task.lease_expires_at is not None:
        return True
    if task.state != lifecycle.QUEUED:
        return False
    if task.gate == DELAY_GATE:
        # It waits for a retry; a task has no turn before its first lease.
        return task.fencing_token > 0
    if task.gate == APPROVAL_GATE:
        return task.started_at is not None  # it asked in the middle of a run
    return task.gate not in (SESSION_GATE, DEBOUNCE_GATE)


def promote(task: Task, now: int, gate: str | None = None) -> Change:
    """Open the gate. Without a further gate the task is ready and waits for a slot from now on."""
    after = copied(task)
    after.gate = gate
    after.eligible_at = None
    after.queued_at = now
    return Change(task, after, lifecycle.PROMOTE)


def approve(task: Task, now: int, gate: str | None) -> Change:
    """Return the task after its approval was decided. `gate` is the next one if it waited for that;
    a task that still waits for something before that keeps its gate.
    """
    if task.gate == APPROVAL_GATE:
        change = promote(task, now, gate)
    else:
        change = Change(task, copied(task), lifecycle.PROMOTE)
    change.after.unapproved = 0
    return change


def wait(task: Task) -> Change:
    """Close the resource gate for a ready task, because a resource that it needs has no room."""
    after = copied(task)
    after.gate = RESOURCE_GATE
    return Change(task, after, lifecycle.HOLD)


def hold(task: Task) -> Change:
    """Take the session's turn from a task, for another task."""
    after = copied(task)
    after.gate = SESSION_GATE
    return Change(task, after, lifecycle.HOLD)
