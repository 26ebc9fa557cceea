"""Leases: external workers lease tasks, report progress and results, and release leases.

A lease's id contains its fencing token, so a report under an old lease gets the error `lease_lost`
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from fairlane.core import model
from fairlane.core.access import Scope
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.types import DAY_MS, Identifier, Moment, Word
from fairlane.schema import wire
from fairlane.schema.operation import POST, Operation, Request, Response
from fairlane.schema.task_status import TaskState, TaskStatus, task_status
from fairlane.schema.wire import moment

LIMIT_MAX: Final = 1000
WAIT_MS_MAX: Final = 60_000
NAMES_MAX: Final = 1000
PART_MAX: Final = 2**31

LeaseId = Annotated[str, Meta(description="Id of the lease")]
Token = Annotated[
    int | None, Meta(description="Fencing token, checked in addition to the one in the id")
]
TtlMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
Ttl = Annotated[
    TtlMs | None, Meta(description="Duration of the lease from now; default: that of the policy")
]
Worker = Annotated[Identifier, Meta(description="Name of the worker")]
Part = Annotated[
    Annotated[int, Meta(ge=0, le=PART_MAX)] | None,
    Meta(description="Number of this piece of output; a repeated number is ignored"),
]

# -------------------------------------------------------------------- requests


class LeaseTasks(Request):
    worker: Worker
    lanes: Annotated[list[str] | None, Meta(description="Only tasks of these lanes")] = None
    handlers: Annotated[
        Annotated[list[Word], Meta(max_length=NAMES_MAX)] | None,
        Meta(description="Only tasks for these handlers; default: any handler"),
    ] = None
    kinds: Annotated[
        list[Literal["action", "handler", "instruction"]] | None,
        Meta(description="Only tasks of these kinds; default: handler"),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of leases")] = 1
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="Maximum wait if there is no task")
    ] = 0
    ttl_ms: Ttl = None
    start: Annotated[bool, Meta(description="Mark the tasks as running at once")] = False


class WithdrawLeases(Request):
    worker: Worker


class NamedLease(Request):
    """The id of one lease."""

    lease_id: LeaseId = field(name="id")
    token: Token = None


class RenewLease(NamedLease):
    ttl_ms: Ttl = None
    progress: Annotated[Any, Meta(description="Progress of the task, as any JSON")] = None
    output: Annotated[
        str | None, Meta(description="Text that the task has produced since the last report")
    ] = None
    part: Part = None


class SendOutput(NamedLease, kw_only=True):
    text: Annotated[str, Meta(description="Text that the task has produced")] = field(name="output")
    part: Part = None


class CompleteLease(NamedLease):
    result: Annotated[Any, Meta(description="Result of the task, as any JSON")] = None


class FailLease(NamedLease, kw_only=True):
    error: Annotated[str, Meta(description="What failed, in one sentence")]
    retryable: Annotated[bool, Meta(description="Whether to retry the task")] = True
    retry_after_ms: Annotated[
        Annotated[int, Meta(ge=0, le=DAY_MS)] | None,
        Meta(description="Do not retry before this delay has passed"),
    ] = None


# -------------------------------------------------------------------- responses


class TaskInput(Response):
    """The result of a task that this one depends on."""

    task_id: str
    state: TaskState
    result: Any


class LeaseGrant(Response, kw_only=True):
    id: str
    lease_id: str
    task_id: str
    state: TaskState
    lease_expires_at: Moment | None = None
    next_eligible_at: Moment | None = None
    token: int
    attempt: int
    attempts: Annotated[int, Meta(description="Number of failed attempts")]
    priority: int
    task: TaskStatus = field(name="task")
    timeout_ms: int | None = None
    inputs: list[TaskInput] | None = None


class LeaseGrants(Response):
    schema_version: int
    now: Moment
    granted: int
    leases: list[LeaseGrant]
    count: int


class LeasesWithdrawn(Response):
    withdrawn: Annotated[int, Meta(description="Number of waiting requests that were ended")]


class LeaseStatus(Response):
    """A lease and the state of its task."""

    lease_id: str
    task_id: str
    state: TaskState
    lease_expires_at: Moment | None = None
    next_eligible_at: Moment | None = None


class LeaseRenewed(LeaseStatus, kw_only=True):
    cancel_requested: Annotated[bool, Meta(description="Whether the worker must stop the task")]


class OutputAccepted(Response):
    lease_id: str


class LeaseCompleted(LeaseStatus, kw_only=True):
    schema_version: int
    completed: str


class LeaseReleased(LeaseStatus, kw_only=True):
    schema_version: int
    released: str
    failed: bool


# -------------------------------------------------------------------- what they are made from


def lease_grant(
    row: Task,
    body: str,
    inputs: Sequence[tuple[str, str, str | None]],
    timeout_ms: int | None,
) -> LeaseGrant:
    """Return a lease for the worker that runs its task; `timeout_ms` is the default of the task's
    kind.

    Raise `ValueError` for a task whose stored request is damaged.
    """
    task = task_status(row, body, None, None, secrets=True)
    if task.unreadable:
        raise ValueError("its stored request is damaged")
    return LeaseGrant(
        id=row.id,
        **lease_state(row),
        token=row.fencing_token,
        attempt=row.attempts,
        attempts=row.attempts - 1,
        priority=row.priority,
        task=task,
        # the task's own timeout overrides that of its kind
        timeout_ms=task.timeout_ms or timeout_ms,
        inputs=[TaskInput(*one.values()) for one in wire.task_inputs(body, inputs)] or None,
    )


def lease_state(row: Task) -> JsonObject:
    """Return the fields of `LeaseStatus`."""
    return {
        "lease_id": model.lease_id(row.seq, row.fencing_token),
        "task_id": row.id,
        "state": row.state,
        "lease_expires_at": None if row.lease_expires_at is None else moment(row.lease_expires_at),
        "next_eligible_at": None if row.eligible_at is None else moment(row.eligible_at),
    }


# -------------------------------------------------------------------- operations

LEASE: Final = Operation(
    "lease",
    POST,
    "/leases",
    LeaseTasks,
    LeaseGrants,
    Scope.LEASE,
    "Lease tasks to run them; the list may be empty",
    waits="wait_ms",
)
WITHDRAW_LEASES: Final = Operation(
    "withdraw_leases",
    POST,
    "/leases/withdraw",
    WithdrawLeases,
    LeasesWithdrawn,
    Scope.LEASE,
    "End the waiting lease requests of a worker at once, without tasks",
)
START_LEASE: Final = Operation(
    "start_lease",
    POST,
    "/leases/{id}/start",
    NamedLease,
    LeaseStatus,
    Scope.LEASE,
    "Report that a leased task has started",
)
RENEW_LEASE: Final = Operation(
    "renew_lease",
    POST,
    "/leases/{id}/renew",
    RenewLease,
    LeaseRenewed,
    Scope.LEASE,
    "Extend a lease, and report progress and output",
)
OUTPUT_LEASE: Final = Operation(
    "output_lease",
    POST,
    "/leases/{id}/output",
    SendOutput,
    OutputAccepted,
    Scope.LEASE,
    "Send text that a leased task has produced",
)
COMPLETE_LEASE: Final = Operation(
    "complete_lease",
    POST,
    "/leases/{id}/complete",
    CompleteLease,
    LeaseCompleted,
    Scope.LEASE,
    "Report that a leased task is done; may be repeated",
)
FAIL_LEASE: Final = Operation(
    "fail_lease",
    POST,
    "/leases/{id}/fail",
    FailLease,
    LeaseReleased,
    Scope.LEASE,
    "Report that a leased task has failed, which spends one attempt",
)
RELEASE_LEASE: Final = Operation(
    "release_lease",
    POST,
    "/leases/{id}/release",
    NamedLease,
    LeaseReleased,
    Scope.LEASE,
    "Release a lease: the task is queued again and no attempt is spent",
)
