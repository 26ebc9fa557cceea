"""Effects: a run records that it is about to act; operators decide on unknown outcomes."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, field

from fairlane.core import effects
from fairlane.core.access import Scope
from fairlane.core.steps import STEPS_MAX, StepName
from fairlane.schema.leases import NamedLease
from fairlane.schema.operation import POST, Operation, Request, Response, one_of
from fairlane.schema.task_status import TaskState


class BeginLeaseEffect(NamedLease, kw_only=True):
    name: Annotated[StepName, Meta(description="Name of the effect, the same in every run")]
    number: Annotated[
        Annotated[int, Meta(ge=1, le=STEPS_MAX)] | None,
        Meta(description="Place of the effect among the steps of the run, from 1"),
    ] = None
    check: Annotated[
        bool,
        Meta(description="The run checks an unknown outcome itself, so do not park the task"),
    ] = False
    happened: Annotated[
        bool | None, Meta(description="false: the effect that the lease began did not happen")
    ] = None


class EffectBegun(Response):
    """What the run does next: `begun`: act, then record the outcome with checkpoint; `done`: use
    the recorded value; `unknown`: check whether it happened; `not_done`: it was withdrawn.
    """

    lease_id: str
    task_id: str
    name: str
    number: int
    effect: Annotated[str, one_of(effects.STATES)]
    key: Annotated[
        str,
        Meta(
            description="The same in every run; pass it to the other system as an idempotency key"
        ),
    ]


class ResolveTaskEffect(Request):
    task_id: Annotated[str, Meta(description="Id of the task")] = field(name="id")
    name: Annotated[StepName, Meta(description="Name of the effect")]
    happened: Annotated[
        bool, Meta(description="Whether the effect happened; if not, the next run acts again")
    ]
    value: Annotated[Any, Meta(description="Result of the effect for the run, as any JSON")] = None


class EffectResolved(Response):
    task_id: str
    name: str
    effect: Annotated[str, one_of(effects.STATES)]
    state: TaskState


EFFECT_LEASE: Final = Operation(
    "effect_lease",
    POST,
    "/leases/{id}/effect",
    BeginLeaseEffect,
    EffectBegun,
    Scope.LEASE,
    "Record that a run is about to act on another system; an unknown outcome parks the task",
)
RESOLVE_EFFECT: Final = Operation(
    "resolve_effect",
    POST,
    "/tasks/{id}/effects/{name}",
    ResolveTaskEffect,
    EffectResolved,
    Scope.OPERATE,
    "Record whether an effect with an unknown outcome happened; its task runs again",
)
