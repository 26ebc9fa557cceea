"""Events: the facts that a change leaves behind, one row each, in the order of the commits.

A row is small: what can be read from the task itself is joined when it is read. `detail` is the
error of what went wrong, the worker of what started, the progress that was reported, the job
and run of what cron has fired, or the state where the type does not tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.model import Change

CREATED: Final = "task.created"
STARTED: Final = "task.started"
COMPLETED: Final = "task.completed"
FAILED: Final = "task.failed"
RETRYING: Final = "task.retrying"
PARKED: Final = "task.parked"
CANCELLED: Final = "task.cancelled"
REJECTED: Final = "task.rejected"
RELEASED: Final = "task.released"
REQUEUED: Final = "task.requeued"
UNBLOCKED: Final = "task.unblocked"
PROGRESS: Final = "task.progress"
BATCH_COMPLETED: Final = "batch.completed"
CRON_FIRED: Final = "cron.fired"

_TYPES: Final[Mapping[str, str]] = {
    lifecycle.SUBMIT: CREATED,
    lifecycle.REJECT: REJECTED,
    lifecycle.START: STARTED,
    lifecycle.COMPLETE: COMPLETED,
    lifecycle.FAIL: FAILED,
    lifecycle.EXPIRE: FAILED,
    lifecycle.BACK_OFF: RETRYING,
    lifecycle.PARK: PARKED,
    lifecycle.RELEASE: RELEASED,
    lifecycle.CANCEL: CANCELLED,
    lifecycle.RESET: REQUEUED,
    lifecycle.RETRY: REQUEUED,
    lifecycle.UNBLOCK: UNBLOCKED,
}

# The state that a type stands for, unless its detail names another one.
STATES: Final[Mapping[str, str]] = {
    CREATED: lifecycle.QUEUED,
    STARTED: lifecycle.RUNNING,
    COMPLETED: lifecycle.DONE,
    FAILED: lifecycle.FAILED,
    RETRYING: lifecycle.QUEUED,
    PARKED: lifecycle.PARKED,
    CANCELLED: lifecycle.CANCELLED,
    REJECTED: lifecycle.REJECTED,
    RELEASED: lifecycle.QUEUED,
    REQUEUED: lifecycle.QUEUED,
    UNBLOCKED: lifecycle.QUEUED,
}
TYPES: Final = (*STATES, PROGRESS, BATCH_COMPLETED, CRON_FIRED)
_NAMES_STATE: Final = frozenset({CREATED, REQUEUED, BATCH_COMPLETED})
_TELLS_ERROR: Final = frozenset({FAILED, RETRYING, PARKED, CANCELLED, REJECTED})

# How an attempt can end, in the words of `attemptLog`.
_ENDS: Final[Mapping[str, str]] = {
    COMPLETED: "completed",
    FAILED: "failed",
    RETRYING: "retrying",
    PARKED: "parked",
    CANCELLED: "cancelled",
    RELEASED: "released",
}
OUTCOMES: Final = tuple(_ENDS.values())


class Event(msgspec.Struct, gc=False):
    """`seq` is the task's, None for an event of a batch. `policy_version` has decided it; None for
    those of a time when that was not recorded.
    """

    id: int
    seq: int | None
    at: int
    type: str
    attempt: int
    detail: str | None = None
    batch: str | None = None
    policy_version: int | None = None

    @property
    def state(self) -> str | None:
        if self.type in _NAMES_STATE and self.detail:
            return self.detail
        return STATES.get(self.type)

    @property
    def worker(self) -> str | None:
        return self.detail if self.type == STARTED else None

    @property
    def error(self) -> str | None:
        return self.detail if self.type in _TELLS_ERROR else None

    @property
    def fired(self) -> tuple[str, str] | None:
        """The job and the run that a task was submitted for."""
        if self.type != CRON_FIRED or self.detail is None:
            return None
        job_id, _, run_id = self.detail.partition(" ")
        return job_id, run_id

    @property
    def progress(self) -> str | None:
        """JSON text."""
        return self.detail if self.type == PROGRESS else None


def of(change: Change) -> tuple[str, str | None] | None:
    """The type and the detail of what `change` leaves behind, or None when nobody has to know."""
    after = change.after
    verb = change.verb
    if verb == lifecycle.LEASE:
        return (STARTED, after.worker) if after.state == lifecycle.RUNNING else None
    kind = _TYPES.get(verb)
    if kind is None:
        return None
    if kind == STARTED:
        return kind, after.worker
    if kind in _NAMES_STATE:
        return kind, (None if after.state == lifecycle.QUEUED else after.state)
    return kind, change.error


class Attempt(msgspec.Struct):
    attempt: int
    started_at: int
    worker: str | None
    ended_at: int | None = None
    outcome: str | None = None
    error: str | None = None

    @property
    def ran_ms(self) -> int | None:
        """How long it ran, None while it runs. A clock that was set back counts as no time."""
        return None if self.ended_at is None else max(0, self.ended_at - self.started_at)


def attempts(events: Iterable[Event]) -> list[Attempt]:
    """The tries of one task, oldest first, from its events."""
    log: list[Attempt] = []
    last = 0  # the attempt that the events before were about
    for event in events:
        if event.type == STARTED:
            log.append(Attempt(event.attempt, event.at, event.detail))
        elif event.type in (RETRYING, PARKED) and event.attempt > last:  # it never said it began
            outcome = _ENDS[event.type]
            log.append(Attempt(event.attempt, event.at, None, event.at, outcome, event.detail))
        elif event.type in _ENDS and log and log[-1].ended_at is None:
            log[-1].ended_at = event.at
            log[-1].outcome = _ENDS[event.type]
            log[-1].error = event.detail
        if event.type != PROGRESS:
            last = event.attempt
    return log
