"""Tasks: submit one or many, list, show, wait, cancel, retry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, field

from fairlane.core import amounts, lifecycle
from fairlane.core.access import Scope
from fairlane.core.errors import FairlaneError
from fairlane.core.model import Task
from fairlane.core.submissions import BATCH_MAX, TaskRequest
from fairlane.core.types import Cursor, IdentifierOrEmpty, Moment, PageLimit, Url
from fairlane.schema.operation import DELETE as DELETE_METHOD
from fairlane.schema.operation import (
    GET,
    POST,
    Header,
    IdOf,
    Operation,
    RawBody,
    Request,
    Response,
    WholeBody,
)
from fairlane.schema.task_filters import TaskFilter
from fairlane.schema.task_status import TaskState, TaskStatus
from fairlane.schema.wire import Decimal, moment, one_line

if TYPE_CHECKING:
    from fairlane.core.explain import Why

WAIT_MS_MAX: Final = 60_000
PARALLELISM_MAX: Final = 10
CHANGED_MAX: Final = 10_000
OFFSET_MAX: Final = 10_000
_OLD: Final = {"deprecated": True}

TaskId = Annotated[str, IdOf("task"), Meta(description="Id of the task")]
RawTask = Annotated[
    msgspec.Raw,
    Meta(extra_json_schema={"$ref": f"#/components/schemas/{TaskRequest.__name__}"}),
]
Once = Annotated[
    str,
    Meta(
        pattern=r"^[\x21-\x7e]{1,255}$(?!\n)",
        description="A repeated request with the same key has no further effect",
    ),
]

Warnings = Annotated[
    list[str] | None,
    Meta(
        description="Possible problems, such as a handler that no worker offers or an unknown lane"
    ),
]

# -------------------------------------------------------------------- requests


class SubmitTask(Request, gc=False):
    task: Annotated[TaskRequest, WholeBody()]
    idempotency_key: Annotated[Once | None, Header("Idempotency-Key")] = None
    raw: Annotated[bytes, RawBody()] = b""


class SubmitBatch(Request):
    """A batch. Its items stay raw: each is checked on its own and has its own outcome."""

    tasks: Annotated[
        list[RawTask],
        Meta(
            description="The tasks, each as for POST /tasks",
            extra_json_schema={"minItems": 1, "maxItems": BATCH_MAX},
        ),
    ]
    parallelism: Annotated[
        Annotated[int, Meta(ge=1, le=PARALLELISM_MAX)] | None,
        Meta(description="Maximum number of the batch's tasks in flight"),
    ] = None
    agent: Annotated[
        IdentifierOrEmpty | None, Meta(description="Agent that the batch belongs to")
    ] = None
    callback_url: Annotated[
        Url | None, Meta(description="URL that receives a POST when the batch finishes")
    ] = None
    webhook_url: Annotated[
        Url | None, Meta(description="Old name of callbackUrl", extra_json_schema=_OLD)
    ] = None
    idempotency_key: Annotated[Once | None, Header("Idempotency-Key")] = None
    raw: Annotated[bytes, RawBody()] = b""


class ListTasks(TaskFilter):
    states: Annotated[list[str] | None, Meta(description="Only tasks in these states")] = field(
        default=None, name="state"
    )
    sort: Annotated[
        Literal["newest", "oldest"], Meta(description="Which tasks come first, by submission")
    ] = "newest"
    brief: Annotated[bool, Meta(description="Leave out results and other long fields")] = False
    limit: PageLimit = 100
    cursor: Cursor | None = None
    offset: Annotated[
        int,
        Meta(ge=0, le=OFFSET_MAX, description="Leave out the first ones; cursor is faster"),
    ] = 0


class ShowTaskStats(Request):
    """No parameters."""


class CountTasks(TaskFilter):
    states: Annotated[list[str] | None, Meta(description="Only tasks in these states")] = field(
        default=None, name="state"
    )


class NamedTask(Request):
    """The id of one task."""

    task_id: TaskId = field(name="id")


class QueueAgain(NamedTask):
    """A task to queue again, with or without its recorded steps."""

    fresh: Annotated[
        bool,
        Meta(description="Forget the recorded steps, so that the task starts from the beginning"),
    ] = False


class WaitForTask(Request):
    task_id: TaskId = field(name="id")
    timeout_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="Maximum wait for the task to end")
    ] = 30_000


class ManyTasks(TaskFilter):
    """A filter of tasks; at least one field is required."""

    states: Annotated[
        str | Sequence[str] | None, Meta(description="Only tasks in these states")
    ] = field(default=None, name="state")
    dry_run: Annotated[bool, Meta(description="Only count the tasks")] = False
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=CHANGED_MAX)] | None,
        Meta(description="Change at most this many; nextCursor continues. Default: all"),
    ] = None
    cursor: Cursor | None = None


class PruneTasks(Request):
    dry_run: Annotated[bool, Meta(description="Only count the tasks")] = False


# -------------------------------------------------------------------- responses


class TaskAccepted(Response, gc=False):
    task_id: str
    state: TaskState
    position: int
    created_at: Moment
    warnings: Warnings = None


class BatchItem(Response):
    """The outcome of one item: a task, or an error."""

    state: TaskState
    task_id: str | None = None
    position: int | None = None
    error: str | None = None
    code: str | None = None


class BatchAccepted(Response):
    batch: str
    tasks: list[BatchItem]
    submitted: int
    accepted: int
    rejected: int
    warnings: Warnings = None


class TaskStats(Response):
    """Numbers of tasks by the states of BrowserOS; `waiting_dependency` is absent without one."""

    total: int
    pending: Annotated[int, Meta(description="Tasks in state queued")]
    queued: Annotated[int, Meta(description="Tasks in state assigned")]
    running: int
    completed: Annotated[int, Meta(description="Tasks in state done")]
    failed: Annotated[int, Meta(description="Tasks in state failed, parked or rejected")]
    cancelled: int
    waiting_dependency: int | None = field(default=None, name="waiting_dependency")


class TaskPage(Response):
    tasks: list[TaskStatus]
    count: int
    next_cursor: str | None = None


class TaskCount(Response):
    """How many tasks match. If `complete` is false, there are so many tasks that only the newest
    were counted.
    """

    count: int
    by_state: dict[str, int]
    complete: bool


class CeilingStatus(Response):
    scope: str
    limit: int
    in_use: int
    setting: str


class LackedResource(Response):
    """The amount of a resource that a waiting task lacks, and the tasks that hold it."""

    name: Annotated[str, Meta(description="Resource, with its key after a slash")]
    unit: str | None
    needed: Decimal
    available: Decimal
    available_at: Annotated[
        Moment | None, Meta(description="Earliest time at which it may become available")
    ] = None
    holders: list[str] | None = None


class TaskWhy(Response):
    """Why a task is not running yet. A field that does not apply or is unknown is null."""

    task_id: str
    state: TaskState
    ready: bool
    gate: str | None
    reason: str
    waiting_for: list[str]
    ceiling: CeilingStatus | None
    ceilings: list[CeilingStatus]
    position: int | None
    estimate_ms: int | None
    resource: Annotated[
        LackedResource | None,
        Meta(description="The missing amount, if the task waits for a resource"),
    ] = None


class TaskOutput(Response):
    """The text that the newest attempt of a task has produced so far."""

    task_id: str
    attempt: int
    text: str
    complete: Annotated[bool, Meta(description="Whether the task has ended or is parked")]
    truncated: Annotated[bool, Meta(description="Whether the text was cut at the size limit")]


class TaskCancelled(Response):
    status: str
    task_id: str


class TaskDeleted(Response):
    task_id: str
    cancelled: bool
    state: TaskState


class TaskRetried(Response):
    task_id: str
    state: TaskState
    retry_count: int


class TaskReset(Response):
    schema_version: int
    reset: str
    task_id: str
    state: TaskState
    retry_count: int


class TasksChanged(Response):
    matched: int
    changed: int
    dry_run: bool
    task_ids: Annotated[list[str], Meta(description="Ids of the first hundred tasks")]
    next_cursor: Annotated[
        str | None, Meta(description="With limit: `cursor` of the next call, if more may match")
    ] = None


class TasksPruned(Response):
    tasks: int
    dry_run: bool


# -------------------------------------------------------------------- conversions


def task_accepted(task: Task, warnings: list[str] | None = None) -> TaskAccepted:
    return TaskAccepted(task.id, task.state, task.position, moment(task.created_at), warnings)


def batch_accepted(
    batch_id: str, outcomes: Iterable[Task | FairlaneError], warnings: list[str] | None = None
) -> BatchAccepted:
    items = [_batch_item(one) for one in outcomes]
    rejected = sum(item.state == lifecycle.REJECTED for item in items)
    return BatchAccepted(batch_id, items, len(items), len(items) - rejected, rejected, warnings)


def _batch_item(outcome: Task | FairlaneError) -> BatchItem:
    if isinstance(outcome, Task):
        return BatchItem(outcome.state, outcome.id, outcome.position)
    existing = (outcome.details or {}).get("taskId")
    return BatchItem(
        lifecycle.REJECTED, existing, error=one_line(outcome.message), code=outcome.code
    )


def task_why(task: Task, found: Why) -> TaskWhy:
    ceilings = [
        CeilingStatus(one.scope, one.limit, one.in_use, one.setting) for one in found.ceilings
    ]
    return TaskWhy(
        task_id=task.id,
        state=task.state,
        ready=found.ready,
        gate=found.gate,
        reason=found.reason,
        waiting_for=list(found.waiting_for),
        ceiling=ceilings[0] if ceilings else None,
        ceilings=ceilings,
        position=found.position,
        estimate_ms=found.estimate_ms,
        resource=_lacked(found),
    )


def _lacked(found: Why) -> LackedResource | None:
    blocked = found.blocked
    if blocked is None:
        return None
    return LackedResource(
        name=blocked.account,
        unit=blocked.unit,
        needed=amounts.shown(blocked.needed),
        available=amounts.shown(blocked.available),
        available_at=None if blocked.at is None else moment(blocked.at),
        holders=list(found.holders) or None,
    )


def task_retried(task: Task) -> TaskRetried:
    return TaskRetried(task.id, task.state, max(0, task.attempts - 1))


def task_reset(task: Task) -> TaskReset:
    return TaskReset(1, task.id, task.id, task.state, max(0, task.attempts - 1))


# -------------------------------------------------------------------- operations


SUBMIT: Final = Operation(
    "submit",
    POST,
    "/tasks",
    SubmitTask,
    TaskAccepted,
    Scope.SUBMIT,
    "Submit a task",
    status=202,
)
SUBMIT_BATCH: Final = Operation(
    "submit_batch",
    POST,
    "/tasks/batch",
    SubmitBatch,
    BatchAccepted,
    Scope.SUBMIT,
    "Submit many tasks together; each is accepted or rejected on its own",
    status=202,
)
TASKS: Final = Operation(
    "tasks",
    GET,
    "/tasks",
    ListTasks,
    TaskPage,
    Scope.READ,
    "List tasks, newest first unless sort says otherwise",
)
COUNT_TASKS: Final = Operation(
    "count_tasks",
    GET,
    "/tasks/count",
    CountTasks,
    TaskCount,
    Scope.READ,
    "Count tasks, in total and by state",
)
TASK_STATS: Final = Operation(
    "task_stats",
    GET,
    "/tasks/stats",
    ShowTaskStats,
    TaskStats,
    Scope.READ,
    "Count tasks by the states of BrowserOS",
)
SHOW: Final = Operation(
    "show",
    GET,
    "/tasks/{id}",
    NamedTask,
    TaskStatus,
    Scope.READ,
    "Show a task with its attempts",
)
WHY: Final = Operation(
    "why",
    GET,
    "/tasks/{id}/why",
    NamedTask,
    TaskWhy,
    Scope.READ,
    "Explain why a task is not running yet",
)
WAIT_ONCE: Final = Operation(
    "wait_once",
    GET,
    "/tasks/{id}/wait",
    WaitForTask,
    TaskStatus,
    Scope.READ,
    "Wait until a task ends or is parked, or the time is up, and show it",
    waits="timeout_ms",
)
TASK_OUTPUT: Final = Operation(
    "task_output",
    GET,
    "/tasks/{id}/output",
    NamedTask,
    TaskOutput,
    Scope.READ,
    "Show the output of the newest attempt, or stream that of all attempts",
)
CANCEL: Final = Operation(
    "cancel",
    POST,
    "/tasks/{id}/cancel",
    NamedTask,
    TaskCancelled,
    Scope.CANCEL,
    "Cancel a task",
)
DELETE: Final = Operation(
    "delete",
    DELETE_METHOD,
    "/tasks/{id}",
    NamedTask,
    TaskDeleted,
    Scope.CANCEL,
    "Cancel a task; its record stays",
)
RETRY: Final = Operation(
    "retry",
    POST,
    "/tasks/{id}/retry",
    QueueAgain,
    TaskRetried,
    Scope.OPERATE,
    "Queue a failed or cancelled task again, with a full set of attempts",
)
RESET: Final = Operation(
    "reset",
    POST,
    "/tasks/{id}/reset",
    QueueAgain,
    TaskReset,
    Scope.OPERATE,
    "Queue a parked task again, with a full set of attempts",
)
CANCEL_MANY: Final = Operation(
    "cancel_many",
    POST,
    "/tasks/cancel",
    ManyTasks,
    TasksChanged,
    Scope.CANCEL,
    "Cancel all matching open tasks; needs at least one filter",
    audited=True,
)
RETRY_MANY: Final = Operation(
    "retry_many",
    POST,
    "/tasks/retry",
    ManyTasks,
    TasksChanged,
    Scope.OPERATE,
    "Queue all matching failed or cancelled tasks again; needs at least one filter",
)
RESET_MANY: Final = Operation(
    "reset_many",
    POST,
    "/tasks/reset",
    ManyTasks,
    TasksChanged,
    Scope.OPERATE,
    "Queue all matching parked tasks again; needs at least one filter",
)
PRUNE: Final = Operation(
    "prune",
    POST,
    "/tasks/prune",
    PruneTasks,
    TasksPruned,
    Scope.OPERATE,
    "Delete finished tasks that are past their retention",
    agents=False,
)
