"""Suspended runs: a run waits without a slot; callers send it signals."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, field

from fairlane.core.access import Scope
from fairlane.core.steps import STEPS_MAX, StepName
from fairlane.core.suspensions import SignalName, Until
from fairlane.schema.leases import NamedLease
from fairlane.schema.operation import POST, IdOf, Operation, Request, Response
from fairlane.schema.task_status import TaskState


class SuspendLease(NamedLease, kw_only=True):
    until: Annotated[Until, Meta(description="What the run waits for; exactly one of its fields")]
    name: Annotated[
        StepName | None,
        Meta(description="Name of the wait; default: one that follows from until"),
    ] = None
    number: Annotated[
        Annotated[int, Meta(ge=1, le=STEPS_MAX)] | None,
        Meta(description="Place of the wait among the steps of the run, from 1"),
    ] = None


class SendSignalTo(Request):
    task_id: Annotated[str, IdOf("task"), Meta(description="Id of the task")] = field(name="id")
    name: Annotated[SignalName, Meta(description="Name of the signal")]
    value: Annotated[Any, Meta(description="Value for the run, as any JSON")] = None


class LeaseSuspended(Response):
    """`suspended`: the lease has ended. Otherwise the wait has already ended, with `value`."""

    lease_id: str
    task_id: str
    state: TaskState
    name: str
    number: int
    suspended: bool
    value: Any = None


class SignalSent(Response):
    task_id: str
    name: str
    accepted: Annotated[
        bool, Meta(description="False if the task has a signal of this name; its value is kept")
    ]
    state: TaskState


SUSPEND_LEASE: Final = Operation(
    "suspend_lease",
    POST,
    "/leases/{id}/suspend",
    SuspendLease,
    LeaseSuspended,
    Scope.LEASE,
    "Wait for a time, tasks or a signal without a lease; spends no attempt",
)
SEND_SIGNAL: Final = Operation(
    "send_signal",
    POST,
    "/tasks/{id}/signals/{name}",
    SendSignalTo,
    SignalSent,
    Scope.SUBMIT,
    "Send a value to a task; a run that waits for the signal continues with it",
)
