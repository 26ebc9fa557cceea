"""Leases: external workers lease tasks, report progress and results, and release leases.

A lease's id contains its fencing token, so a report under an old lease gets the error `lease_lost`
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from fairlane.core import effects, model
from fairlane.core.access import Scope
from fairlane.core.approvals import Approval
from fairlane.core.inbox import CURSOR_CHARACTERS_MAX
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.steps import STEPS_MAX, Step, StepName
from fairlane.core.traceback_text import TRACEBACK_CHARACTERS_MAX
from fairlane.core.types import DAY_MS, Identifier, Moment, Note, Word
from fairlane.schema import wire
from fairlane.schema.approvals import ApprovalOutcome, answers_of, gate_of
from fairlane.schema.operation import POST, Operation, Request, Response
from fairlane.schema.resources import Amount, Amounts
from fairlane.schema.task_status import StepStatus, TaskState, TaskStatus, task_status
from fairlane.schema.wire import moment, stored

LIMIT_MAX: Final = 1000
WAIT_MS_MAX: Final = 60_000
NAMES_MAX: Final = 1000
PART_MAX: Final = 2**31
REPORTS_MAX: Final = 1000
SLOTS_MAX: Final = 1_000_000
VERSION_CHARACTERS_MAX: Final = 64

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
Progress = Annotated[Any, Meta(description="Progress of the task, as any JSON")]
Output = Annotated[
    str | None, Meta(description="Text that the task has produced since the last report")
]
Result = Annotated[Any, Meta(description="Result of the task, as any JSON")]
Retryable = Annotated[bool, Meta(description="Whether to retry the task")]
RetryAfter = Annotated[
    Annotated[int, Meta(ge=0, le=DAY_MS)] | None,
    Meta(description="Do not retry before this delay has passed"),
]
Traceback = Annotated[
    str | None,
    Meta(
        description=f"Traceback of the failure; only the last {TRACEBACK_CHARACTERS_MAX} "
        "characters are stored"
    ),
]
StepNameField = Annotated[StepName, Meta(description="Name of the step")]
StepValue = Annotated[Any, Meta(description="Result of the step, as any JSON")]
StepNumber = Annotated[
    Annotated[int, Meta(ge=1, le=STEPS_MAX)] | None,
    Meta(
        description="Place of the step among the steps of the run, from 1; default: the next one, "
        "unless a step of this name is recorded"
    ),
]
RawReport = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/LeaseReport"})
]

PERMITS_MAX: Final = 1000

# -------------------------------------------------------------------- requests


class ResourceClosing(Request):
    """A provider refused a request until a time."""

    retry_after_ms: Annotated[
        int, Meta(ge=0, le=DAY_MS, description="How long the provider will refuse requests")
    ]
    reason: Annotated[Note | None, Meta(description="Reason, such as 429")] = None


class UnitObserved(Request):
    """A provider's report about one unit."""

    remaining: Annotated[Amount, Meta(description="Remaining amount that the provider reported")]


Needs = Annotated[dict[str, Amounts], Meta(description="Amounts to reserve, by resource and unit")]
Usage = Annotated[
    dict[str, Amounts] | None,
    Meta(description="Amounts used, by resource and unit; others are charged as reserved"),
]
Closed = Annotated[
    dict[str, ResourceClosing] | None,
    Meta(description="Resources to close because their provider refuses requests"),
]
Observed = Annotated[
    dict[str, dict[str, UnitObserved]] | None,
    Meta(description="Remaining amounts that providers reported, by resource and unit"),
]
PermitId = Annotated[str, Meta(description="Id of the permit")]


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
    slots: Annotated[
        Annotated[int, Meta(ge=1, le=SLOTS_MAX)] | None,
        Meta(description="How many tasks the worker runs at once, for GET /workers"),
    ] = None
    version: Annotated[
        Annotated[str, Meta(max_length=VERSION_CHARACTERS_MAX)] | None,
        Meta(description="Version of the worker, for GET /workers"),
    ] = None


class WithdrawLeases(Request):
    worker: Worker


class NamedLease(Request):
    """The id of one lease."""

    lease_id: LeaseId = field(name="id")
    token: Token = None


class PermitSettlement(Request):
    """The amounts that a call under a permit used."""

    permit_id: PermitId
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class RenewLease(NamedLease):
    ttl_ms: Ttl = None
    progress: Progress = None
    output: Output = None
    part: Part = None
    permits: Annotated[
        Annotated[list[PermitSettlement], Meta(max_length=PERMITS_MAX)] | None,
        Meta(description="Permits to settle"),
    ] = None
    closed: Closed = None
    observed: Observed = None
    inbox_after: Annotated[
        Annotated[str, Meta(max_length=CURSOR_CHARACTERS_MAX)] | None,
        Meta(description="The run's inbox cursor; this request takes the messages up to it"),
    ] = None


class SendOutput(NamedLease, kw_only=True):
    text: Annotated[str, Meta(description="Text that the task has produced")] = field(name="output")
    part: Part = None


class CompleteLease(NamedLease):
    result: Result = None
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class RecordStep(NamedLease, kw_only=True):
    name: StepNameField
    value: StepValue = None
    number: StepNumber = None


class ReleaseLease(NamedLease):
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class PermitRequest(NamedLease, kw_only=True):
    needs: Needs
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="Maximum wait until there is room")
    ] = 0
    settle: Annotated[
        PermitSettlement | None, Meta(description="Permit to settle in the same transaction")
    ] = None


class SettleRequest(NamedLease, kw_only=True):
    permit_id: PermitId
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class FailLease(NamedLease, kw_only=True):
    error: Annotated[str, Meta(description="What failed, in one sentence")]
    retryable: Retryable = True
    retry_after_ms: RetryAfter = None
    traceback: Traceback = None
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class LeaseReport(Request, kw_only=True):
    """One report: the verb, and the fields of `POST /leases/{id}/VERB`."""

    lease_id: LeaseId
    verb: Annotated[
        Literal["start", "renew", "output", "checkpoint", "complete", "fail", "release"],
        Meta(description="Kind of report"),
    ]
    token: Token = None
    ttl_ms: Ttl = None
    progress: Progress = None
    output: Output = None
    part: Part = None
    result: Result = None
    name: Annotated[StepName | None, Meta(description="Name of the step")] = None
    value: StepValue = None
    number: StepNumber = None
    error: Annotated[str | None, Meta(description="What failed, in one sentence")] = None
    retryable: Retryable = True
    retry_after_ms: RetryAfter = None
    traceback: Traceback = None
    permits: Annotated[
        Annotated[list[PermitSettlement], Meta(max_length=PERMITS_MAX)] | None,
        Meta(description="Permits to settle"),
    ] = None
    usage: Usage = None
    closed: Closed = None
    observed: Observed = None


class ReportLeases(LeaseTasks, kw_only=True):
    """Reports about any leases, and a request for new ones.

    The reports stay raw: each is checked on its own and has its own outcome.
    """

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX, description="Maximum number of new leases")] = 0
    reports: Annotated[
        list[RawReport],
        Meta(
            description="The reports, in the order in which to apply them",
            extra_json_schema={"maxItems": REPORTS_MAX},
        ),
    ] = field(default_factory=list)


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
    approval: Annotated[
        ApprovalOutcome | None, Meta(description="The decision that let the task start")
    ] = None
    answers: Annotated[
        dict[str, ApprovalOutcome] | None,
        Meta(description="Decisions about questions that earlier runs asked, by name"),
    ] = None
    steps: Annotated[
        list[StepStatus] | None, Meta(description="Steps that earlier runs have recorded")
    ] = None


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


class InboxEntry(Response):
    """A message in the inbox of a run. `task` is the task that the message was."""

    id: str
    sender: str
    text: str
    task: str = field(name="taskId")
    sent_at: Moment | None = None
    media: list[Any] | None = None
    metadata: JsonObject | None = None


class RunInbox(Response):
    """The next messages of a run. `more`: there are others behind them."""

    messages: list[InboxEntry]
    cursor: Annotated[str, Meta(description="Send it as after, or as inboxAfter of a renewal")]
    more: bool = False


class LeaseRenewed(LeaseStatus, kw_only=True):
    cancel_requested: Annotated[bool, Meta(description="Whether the worker must stop the task")]
    inbox: Annotated[
        RunInbox | None, Meta(description="New messages for the run, if there are any")
    ] = None


class PermitStatus(Response, kw_only=True):
    """A permit, or the `reason` and the `resource` to wait for."""

    lease_id: str
    granted: bool
    permit_id: str | None = None
    reason: str | None = None
    resource: str | None = None
    retry_after_ms: int | None = None


class PermitSettled(Response):
    lease_id: str
    permit_id: str


class StepRecorded(Response):
    lease_id: str
    task_id: str
    name: str
    number: int
    recorded: Annotated[
        bool, Meta(description="False if it was recorded before; then the first value is kept")
    ]


class OutputAccepted(Response):
    lease_id: str


class LeaseCompleted(LeaseStatus, kw_only=True):
    schema_version: int
    completed: str


class LeaseReleased(LeaseStatus, kw_only=True):
    schema_version: int
    released: str
    failed: bool


class ReportOutcome(Response):
    """The outcome of one report: the state of its task, or an error."""

    lease_id: str | None = None
    task_id: str | None = None
    state: TaskState | None = None
    lease_expires_at: Moment | None = None
    next_eligible_at: Moment | None = None
    cancel_requested: Annotated[bool, Meta(description="Whether the worker must stop the task")] = (
        False
    )
    code: str | None = None
    error: str | None = None
    details: JsonObject | None = None


class LeasesReported(Response):
    now: Moment
    reports: Annotated[list[ReportOutcome], Meta(description="The outcomes, in the same order")]
    leases: list[LeaseGrant]


# -------------------------------------------------------------------- conversions


def _step(one: Step) -> StepStatus:
    """Return a step for the next run; an effect that an earlier one began is unknown to it."""
    effect = effects.state_of(one.intent, None)
    return StepStatus(one.number, one.name, stored(one.value), effect=effect)


def lease_grant(
    row: Task,
    body: str,
    inputs: Sequence[tuple[str, str, str | None]],
    timeout_ms: int | None,
    *,
    decided: Sequence[Approval] = (),
    recorded: Sequence[Step] = (),
) -> LeaseGrant:
    """Return a lease for the worker that runs its task; `timeout_ms` is the default of the task's
    kind, `decided` are the decisions of people about it, `recorded` the steps of earlier runs.

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
        approval=gate_of(decided),
        answers=answers_of(decided),
        steps=[_step(one) for one in recorded] or None,
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
REPORT_LEASES: Final = Operation(
    "report_leases",
    POST,
    "/leases/report",
    ReportLeases,
    LeasesReported,
    Scope.LEASE,
    "Report on many leases and lease further tasks, in one transaction",
    waits="wait_ms",
    positional=("reports",),
    item=LeaseReport,
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
CHECKPOINT_LEASE: Final = Operation(
    "checkpoint_lease",
    POST,
    "/leases/{id}/checkpoint",
    RecordStep,
    StepRecorded,
    Scope.LEASE,
    "Record the result of a step; later runs of the task get it with their lease",
)
COMPLETE_LEASE: Final = Operation(
    "complete_lease",
    POST,
    "/leases/{id}/complete",
    CompleteLease,
    LeaseCompleted,
    Scope.LEASE,
    "Report that a leased task is done; safe to repeat",
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
    ReleaseLease,
    LeaseReleased,
    Scope.LEASE,
    "Release a lease: the task is queued again and no attempt is spent",
)
REQUEST_PERMIT: Final = Operation(
    "request_permit",
    POST,
    "/leases/{id}/permits",
    PermitRequest,
    PermitStatus,
    Scope.LEASE,
    "Reserve resources for one call of a running task, and wait until there is room",
    waits="wait_ms",
)
SETTLE_PERMIT: Final = Operation(
    "settle_permit",
    POST,
    "/leases/{id}/permits/{permitId}/settle",
    SettleRequest,
    PermitSettled,
    Scope.LEASE,
    "Report what a call under a permit used; safe to repeat",
)
