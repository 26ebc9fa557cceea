"""Queue entries: tasks of the lane `queue` that run the handler `run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from fairlane.core import lifecycle
from fairlane.core.model import Submission, Task

LANE: Final = "queue"
RUN: Final = "run"  # the handler of entries
PRIORITY: Final = 100

EntryStatus = Literal["pending", "ready", "leased", "parked", "drained", "cancelled", "failed"]
PENDING: Final = "pending"
READY: Final = "ready"
LEASED: Final = "leased"
PARKED: Final = "parked"
DRAINED: Final = "drained"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
DRAINING: Final = "draining"  # only in imported files: nothing there ever ends it

# The task states behind each entry status. A waiting entry is `pending` until its first lease and
# `ready` after it; as a filter the two are the same.
STATES: Final[Mapping[EntryStatus, tuple[str, ...]]] = {
    PENDING: (lifecycle.QUEUED, lifecycle.WAITING),
    READY: (lifecycle.QUEUED, lifecycle.WAITING),
    LEASED: (lifecycle.ASSIGNED, lifecycle.RUNNING),
    PARKED: (lifecycle.PARKED,),
    DRAINED: (lifecycle.DONE,),
    CANCELLED: (lifecycle.CANCELLED,),
    FAILED: (lifecycle.FAILED,),
}


class QueueEntry(msgspec.Struct, frozen=True):
    """A submission and, for an imported entry, its progress in the other program.

    `ended_at` is when the status ended; for a leased entry, when its lease ends.
    """

    submission: Submission
    status: str = PENDING
    enqueued_at: int | None = None
    attempts: int = 0
    reason: str | None = None
    ended_at: int | None = None


def states(status: EntryStatus | None) -> list[str]:
    """Return the task states that a status filter selects; all of them without a filter."""
    if status is None:
        return list(dict.fromkeys(state for found in STATES.values() for state in found))
    return list(STATES[status])


def status_of(task: Task) -> str:
    if task.state in lifecycle.IN_QUEUE:
        return READY if task.fencing_token or task.attempts else PENDING
    return next((status for status, found in STATES.items() if task.state in found), task.state)


def failures(task: Task) -> int:
    """Return how many attempts have failed: not the current one, and not the successful one."""
    spent = task.state in (*lifecycle.IN_FLIGHT, lifecycle.DONE)
    return max(0, task.attempts - spent)
