"""Queue and plan, with the names and fields of `sched` and `queue`.

A queue entry is a task of the lane `queue` that runs the handler `run`. Its params are the fields
of the entry, including fields that only an imported file has, so an entry is an open JSON object.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from fairlane.compat import coolworkflow
from fairlane.compat.coolworkflow import SCHEMA_VERSION
from fairlane.core import entries, lifecycle, model
from fairlane.core.access import Scope
from fairlane.core.entries import LANE, PRIORITY, RUN, EntryStatus, QueueEntry
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import Submission, Task
from fairlane.core.submissions import TEXT_CHARACTERS_MAX, Needs, submission, task_request
from fairlane.core.types import Actor, Identifier, IdentifierOrEmpty, Moment, PageLimit
from fairlane.schema.operation import (
    GET,
    PATCH,
    POST,
    Header,
    IdOf,
    Operation,
    Request,
    Response,
    WholeBody,
)
from fairlane.schema.wire import DecodeError, decode, moment, moment_or_none, one_line

EntryShape = JsonObject
EntryText = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
# The rank and number of the last entry of a page.
QueueCursor = Annotated[
    str,
    Meta(
        pattern=r"^-?[0-9]{1,18}\.-?[0-9]{1,18}$(?!\n)",
        description="nextCursor of the previous page",
    ),
]


# -------------------------------------------------------------------- requests


class ShowPlan(Request):
    lane: Annotated[str | None, Meta(description="Name of the lane; default: queue")] = None
    now: Annotated[
        Moment | None, Meta(description="Compute the plan for this time; default: now")
    ] = None
    limit: PageLimit = 100


class ReclaimLeases(Request):
    """No parameters."""


class AddEntry(Request):
    id: Annotated[Identifier | None, Meta(description="Id of the entry; default: a new one")] = None
    run: Annotated[EntryText | None, Meta(description="Run to continue")] = field(
        name="runId", default=None
    )
    app: Annotated[EntryText | None, Meta(description="App that runs the entry")] = field(
        name="appId", default=None
    )
    workflow: Annotated[EntryText | None, Meta(description="Workflow to run")] = field(
        name="workflowId", default=None
    )
    repo: Annotated[EntryText | None, Meta(description="Directory to run in")] = None
    priority: Annotated[
        int | str | None, Meta(description="Lower numbers go first; default: 100")
    ] = None
    inputs: Annotated[JsonMapping | None, Meta(description="Inputs of the run")] = None
    note: Annotated[EntryText | None, Meta(description="Note for operators")] = None
    agent: Annotated[
        IdentifierOrEmpty | None, Meta(description="Agent that the entry belongs to")
    ] = None
    needs: Annotated[
        Needs | None, Meta(description="Amounts that the entry needs, by resource and unit")
    ] = None


class ListEntries(Request):
    status: Annotated[EntryStatus | None, Meta(description="Only entries with this status")] = None
    limit: PageLimit = 100
    cursor: QueueCursor | None = None


class EntryRequest(Request):
    """The id of one entry."""

    entry_id: Annotated[str, IdOf("task"), Meta(description="Id of the entry")] = field(name="id")


class DrainEntries(Request):
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Maximum number of entries; default: 1"),
    ] = None


class ImportEntries(Request):
    document: Annotated[
        JsonMapping, WholeBody(), Meta(description="A queue file: schemaVersion and entries")
    ]


class ShowQueuePolicy(Request):
    """No parameters."""


class SetQueuePolicy(Request):
    settings: Annotated[JsonMapping, WholeBody(), Meta(description="The rules to change")]
    actor: Annotated[Actor | None, Header("X-Fairlane-Actor")] = None


# -------------------------------------------------------------------- responses


class PlannedLease(Response):
    """A lease without an id, which contains a fencing token that only a granted lease has."""

    id: str
    lease_expires_at: Moment
    attempts: int
    priority: int


class SkippedTask(Response):
    id: str
    reason: str
    next_eligible_at: Moment | None = None


class PlanShown(Response):
    schema_version: int
    now: Moment
    lane: str
    policy_version: int
    max_concurrent: int
    in_flight: int
    available: int
    leases: list[PlannedLease]
    skipped: list[SkippedTask]
    counts: Annotated[
        dict[str, int],
        Meta(description="Number of tasks that would be leased, or skipped, by reason"),
    ]
    truncated: bool
    at_least: Annotated[
        list[str] | None, Meta(description="Reasons that may apply to more tasks than counted")
    ] = None


class LeasesReclaimed(Response):
    schema_version: int
    now: Moment
    reclaimed: Annotated[list[str], Meta(description="Ids of the tasks")]


class EntryPage(Response):
    schema_version: int
    total: int
    count: int
    entries: list[EntryShape]
    next_cursor: str | None = None


class EntriesDrained(Response):
    schema_version: int
    drained: list[EntryShape]
    remaining: int
    reason: Annotated[str | None, Meta(description="Why no more entries were drained")] = None


class EntriesImported(Response):
    schema_version: int
    imported: int
    by_status: dict[str, int]


class QueueRules(Response):
    schema_version: int
    max_concurrent: int | None
    max_attempts: int | None
    lease_ttl_ms: int | None
    backoff_base_ms: int | None
    backoff_factor: int | float | None
    backoff_cap_ms: int | None


class QueuePolicyShown(Response):
    schema_version: int
    policy: QueueRules
    source: str


# -------------------------------------------------------------------- entries and tasks


def new_entry(request: AddEntry, entry_id: str, agent: str | None = None) -> QueueEntry:
    """Return the entry of a request; `entry_id` and `agent` are its defaults."""
    params = {
        "runId": _stripped(request.run),
        "appId": _stripped(request.app),
        "workflowId": _stripped(request.workflow),
        "repo": _stripped(request.repo),
        "inputs": request.inputs,
        "note": _stripped(request.note),
    }
    owner = request.agent or agent
    made = _submission(
        request.id or entry_id, params, request.priority, agent=owner, needs=request.needs
    )
    return QueueEntry(made)


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None


def imported_entries(document: JsonMapping) -> list[QueueEntry]:
    """Return the entries of a queue file. Raise `InvalidRequest` that lists every problem."""
    found = coolworkflow.queue_entries(
        document,
        lambda id_, params, priority, run_at: _submission(id_, params, priority, run_at=run_at),
    )
    return [
        one if one.reason is None else msgspec.structs.replace(one, reason=one_line(one.reason))
        for one in found
    ]


def _submission(
    entry_id: str,
    params: JsonMapping,
    priority: int | str | None,
    *,
    agent: str | None = None,
    run_at: str | None = None,
    needs: Needs | None = None,
) -> Submission:
    body = task_request(
        needs=needs,
        agent=agent,
        handler=RUN,
        params={name: value for name, value in params.items() if value is not None},
        priority=PRIORITY if priority is None else priority,
        lane=LANE,
        run_at=run_at,
    )
    return submission(body, task_id=entry_id)


_FIRST: Final = ("runId", "appId", "workflowId", "repo")


def entry_shape(task: Task, body: str, error: str | None) -> EntryShape:
    """Return a task as a queue entry with the fields that are set."""
    request, params, damaged = _stored(body)
    known: EntryShape = {
        "schemaVersion": SCHEMA_VERSION,
        "id": task.id,
        **{name: params.pop(name, None) for name in _FIRST},
        "agentId": task.agent,
        "priority": task.priority,
        "enqueuedAt": moment(task.created_at),
        "status": entries.status_of(task),
    }
    if damaged:
        params = {"unreadable": ["request"]}
    elif request.get("handler") != RUN:  # it was submitted as a task
        params = {"handler": request.get("handler"), "params": request.get("params")}
    needs = {"needs": request.get("needs")}
    attempts = {"attempts": entries.failures(task), "maxAttempts": task.max_attempts}
    shape = {**known, **params, **needs, **attempts, **_now(task, error)}
    return {name: value for name, value in shape.items() if value is not None}


def _stored(body: str) -> tuple[JsonObject, JsonObject, bool]:
    """Return a stored request and its params, and whether it is damaged."""
    try:
        request = decode(body, type=JsonObject)
        return request, msgspec.convert(request.get("params", {}), JsonObject), False
    except DecodeError:
        return {}, {}, True


def _now(task: Task, error: str | None) -> JsonObject:
    """Return the fields that depend on the entry's status."""
    if task.leased and not task.terminal:
        return {
            "leaseId": model.lease_id(task.seq, task.fencing_token),
            "leaseExpiresAt": moment_or_none(task.lease_expires_at),
            "worker": task.worker,
        }
    if task.state in lifecycle.IN_QUEUE:
        later = moment_or_none(task.eligible_at)
        return {"gate": task.gate, "nextEligibleAt": later, "error": error}
    if task.state == lifecycle.PARKED:
        tries = f"(attempt {task.attempts}/{task.max_attempts})"
        return {"parkedReason": f"{error} {tries}" if error else tries}
    ended = moment_or_none(task.completed_at)
    return {"drainedAt" if task.state == lifecycle.DONE else "endedAt": ended, "error": error}


# -------------------------------------------------------------------- operations

PLAN: Final = Operation(
    "plan",
    GET,
    "/scheduler/plan",
    ShowPlan,
    PlanShown,
    Scope.READ,
    "Show which tasks a lease would get, now or at another time, and why the others wait",
    agents=False,
)
RECLAIM_LEASES: Final = Operation(
    "reclaim_leases",
    POST,
    "/leases/reclaim",
    ReclaimLeases,
    LeasesReclaimed,
    Scope.LEASE,
    "Reclaim all expired leases now",
    empty_body=True,
)
QUEUE_ADD: Final = Operation(
    "queue_add",
    POST,
    "/queue",
    AddEntry,
    EntryShape,
    Scope.SUBMIT,
    "Add an entry to the queue",
    status=201,
)
QUEUE_LIST: Final = Operation(
    "queue_list",
    GET,
    "/queue",
    ListEntries,
    EntryPage,
    Scope.READ,
    "List queue entries in the order they will run",
)
QUEUE_SHOW: Final = Operation(
    "queue_show",
    GET,
    "/queue/{id}",
    EntryRequest,
    EntryShape,
    Scope.READ,
    "Show a queue entry",
)
QUEUE_DRAIN: Final = Operation(
    "queue_drain",
    POST,
    "/queue/drain",
    DrainEntries,
    EntriesDrained,
    Scope.LEASE,
    "Take the next entries off the queue without a lease; the caller runs them",
)
QUEUE_IMPORT: Final = Operation(
    "queue_import",
    POST,
    "/queue/import",
    ImportEntries,
    EntriesImported,
    Scope.OPERATE,
    "Import a queue file: all of its entries or none",
    agents=False,
    body_bytes_max=coolworkflow.FILE_BYTES_MAX,
    items_max=coolworkflow.ENTRIES_MAX,
)
QUEUE_POLICY: Final = Operation(
    "queue_policy",
    GET,
    "/scheduler/policy",
    ShowQueuePolicy,
    QueuePolicyShown,
    Scope.READ,
    "Show the rules of the queue",
)
SET_QUEUE_POLICY: Final = Operation(
    "set_queue_policy",
    PATCH,
    "/scheduler/policy",
    SetQueuePolicy,
    QueuePolicyShown,
    Scope.ADMIN,
    "Change rules of the queue",
    agents=False,
)
