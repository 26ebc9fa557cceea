"""Gates: what holds a queued task back although a slot may be free.

A gate is a word on the task's row; a queued task without one is ready. Two exist so far: `delay`
(not before a moment) and `session` (another task of its session has the turn). A task that has
had its turn keeps it through retries, so that work of a session never overtakes itself.
"""

from __future__ import annotations

import copy

import msgspec

from fairlane.core import lifecycle
from fairlane.core.model import SESSION_GATE, Change, Task


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


def entry_gate(session: Session | None) -> str | None:
    """The gate of a task that enters `session` now."""
    if session is None or (session.free and not session.waiting):
        return None
    return SESSION_GATE


def apply(session: Session, change: Change) -> None:
    """Move what `change` moves. The only place that counts for sessions."""
    if change.before is not None:
        session.holders -= _holds(change.before)
        session.waiting -= _waits(change.before)
    session.holders += _holds(change.after)
    session.waiting += _waits(change.after)


def _holds(task: Task) -> bool:
    if task.leased:
        return True
    return task.state == lifecycle.QUEUED and task.gate != SESSION_GATE


def _waits(task: Task) -> bool:
    return task.state == lifecycle.QUEUED and task.gate == SESSION_GATE


def promote(task: Task, now: int) -> Change:
    """Open the gate: the task is ready, and its waiting time counts from now."""
    after = copy.copy(task)
    after.gate = None
    after.eligible_at = None
    after.queued_at = now
    return Change(task, after, lifecycle.PROMOTE)


def hold(task: Task) -> Change:
    """Give the turn back, to a task that goes first."""
    after = copy.copy(task)
    after.gate = SESSION_GATE
    return Change(task, after, lifecycle.HOLD)
