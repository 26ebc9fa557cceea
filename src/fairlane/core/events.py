"""Events: the facts that a change records, one row each, in commit order.

A row is small; fields of the task are joined when it is read. `detail` is the error of a failure,
the worker of a start, the reported progress, the number and name of a step, the name of a signal,
the job and run of a cron firing, an approval and its state, or the state if the type does not imply
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlane.core import approvals, lifecycle
from fairlane.core.approvals import Approval
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
SUSPENDED: Final = "task.suspended"
REQUEUED: Final = "task.requeued"
UNBLOCKED: Final = "task.unblocked"
PROGRESS: Final = "task.progress"
STEP: Final = "task.step"
SIGNAL: Final = "task.signal"
BATCH_COMPLETED: Final = "batch.completed"
CRON_FIRED: Final = "cron.fired"
APPROVAL_OPENED: Final = "approval.opened"
APPROVAL_DECIDED: Final = "approval.decided"
APPROVAL_EXPIRED: Final = "approval.expired"
APPROVAL_CANCELLED: Final = "approval.cancelled"
APPROVALS: Final = (APPROVAL_OPENED, APPROVAL_DECIDED, APPROVAL_EXPIRED, APPROVAL_CANCELLED)
RESOURCE_CLOSED: Final = "resource.closed"
RESOURCE_OPENED: Final = "resource.opened"
RESOURCE_WARNED: Final = "resource.warned"
RESOURCE_RAISED: Final = "resource.raised"

_TYPES: Final[Mapping[str, str]] = {
    lifecycle.SUBMIT: CREATED,
    lifecycle.REJECT: REJECTED,
    lifecycle.START: STARTED,
    lifecycle.COMPLETE: COMPLETED,
    lifecycle.TAKE: COMPLETED,
    lifecycle.FAIL: FAILED,
    lifecycle.EXPIRE: FAILED,
    lifecycle.BACK_OFF: RETRYING,
    lifecycle.PARK: PARKED,
    lifecycle.RELEASE: RELEASED,
    lifecycle.SUSPEND: SUSPENDED,
    lifecycle.CANCEL: CANCELLED,
    lifecycle.RESET: REQUEUED,
    lifecycle.RETRY: REQUEUED,
    lifecycle.UNBLOCK: UNBLOCKED,
}

# The state that a type implies unless its detail names another.
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
    SUSPENDED: lifecycle.QUEUED,
    REQUEUED: lifecycle.QUEUED,
    UNBLOCKED: lifecycle.QUEUED,
}
RESOURCES: Final = (RESOURCE_CLOSED, RESOURCE_OPENED, RESOURCE_WARNED, RESOURCE_RAISED)
TYPES: Final = (
    *STATES,
    PROGRESS,
    STEP,
    SIGNAL,
    BATCH_COMPLETED,
    CRON_FIRED,
    *APPROVALS,
    *RESOURCES,
)
# Names that filters accept for a type. Subscribers dispatch on the type that they receive, so an
# event keeps its old name until the version after the one that first accepts the new name.
ALIASES: Final[Mapping[str, str]] = {"task.retried": REQUEUED}
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
    SUSPENDED: "suspended",
}
OUTCOMES: Final = tuple(_ENDS.values())


class Event(msgspec.Struct, gc=False):
    """`seq` is the task's, None for an event of a batch. `policy_version` is the policy that
    decided it, None for old events that did not record it.
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
        """Return the job and the run that the task was submitted for."""
        if self.type != CRON_FIRED or self.detail is None:
            return None
        job_id, _, run_id = self.detail.partition(" ")
        return job_id, run_id

    @property
    def approval(self) -> tuple[str, str] | None:
        """Return the id of the approval and its state after the event."""
        if self.type not in APPROVALS or self.detail is None:
            return None
        approval_id, _, state = self.detail.partition(" ")
        return approval_id, state

    @property
    def resource(self) -> str | None:
        """Return the detail of a resource event as JSON text."""
        return self.detail if self.type in RESOURCES else None

    @property
    def step(self) -> tuple[int, str] | None:
        """Return the number and the name of the step that was recorded."""
        if self.type != STEP or self.detail is None:
            return None
        number, _, name = self.detail.partition(" ")
        return int(number), name

    @property
    def signal(self) -> str | None:
        """Return the name of the signal that was sent."""
        return self.detail if self.type == SIGNAL else None

    @property
    def progress(self) -> str | None:
        """Return the reported progress as JSON text."""
        return self.detail if self.type == PROGRESS else None


def of(change: Change) -> tuple[str, str | None] | None:
    """Return the type and detail of the event that `change` records, or None if it records none."""
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


_APPROVAL_FACTS: Final[Mapping[str, str]] = {
    approvals.APPROVED: APPROVAL_DECIDED,
    approvals.REJECTED: APPROVAL_DECIDED,
    approvals.EXPIRED: APPROVAL_EXPIRED,
    approvals.CANCELLED: APPROVAL_CANCELLED,
}


def of_approval(before: Approval | None, after: Approval) -> str | None:
    """Return the type of the event of a new or changed approval, or None if it records none."""
    if before is None:
        return APPROVAL_OPENED
    if after.state == before.state:
        return None
    if after.decided_by == approvals.ON_EXPIRY:
        return APPROVAL_EXPIRED
    return _APPROVAL_FACTS[after.state]


class Attempt(msgspec.Struct):
    attempt: int
    started_at: int
    worker: str | None
    ended_at: int | None = None
    outcome: str | None = None
    error: str | None = None
    traceback: str | None = None

    @property
    def ran_ms(self) -> int | None:
        """Return how long it ran, None while it runs. A clock that was set back counts as 0."""
        return None if self.ended_at is None else max(0, self.ended_at - self.started_at)


def attempts(events: Iterable[Event]) -> list[Attempt]:
    """Return the attempts of one task from its events, oldest first."""
    log: list[Attempt] = []
    last = 0  # the attempt of the previous event
    for event in events:
        if event.type == STARTED:
            log.append(Attempt(event.attempt, event.at, event.detail))
        elif event.type in (RETRYING, PARKED) and event.attempt > last:  # its start is not known
            outcome = _ENDS[event.type]
            log.append(Attempt(event.attempt, event.at, None, event.at, outcome, event.detail))
        elif event.type in _ENDS and log and log[-1].ended_at is None:
            log[-1].ended_at = event.at
            log[-1].outcome = _ENDS[event.type]
            log[-1].error = event.detail
        if event.type not in (PROGRESS, STEP, SIGNAL, *APPROVALS):
            last = event.attempt
    return log
