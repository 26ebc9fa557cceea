"""Cron: jobs that submit tasks on a schedule, the log of their runs, and a preview.

`core/job_documents.py` has the types of jobs. Callers name a job by its id, or by its name if only
one agent uses that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, field

from fairlane.core.access import Scope
from fairlane.core.job_documents import STATUSES, JobDocument, RunStatus
from fairlane.core.json_types import JsonObject
from fairlane.core.types import Cursor, Moment, PageLimit
from fairlane.schema.operation import (
    DELETE,
    GET,
    PATCH,
    POST,
    IdOf,
    Operation,
    Request,
    Response,
    WholeBody,
    one_of,
)
from fairlane.schema.task_status import TaskState
from fairlane.schema.wire import moment

if TYPE_CHECKING:
    from fairlane.core.cron import RunRecord  # time zones are slow to load

PREVIEW_MAX: Final = 100

JobName = Annotated[
    str,
    IdOf("job"),
    Meta(description="Id of the job, or its name if only one agent has a job of that name"),
]


class CreateCronJob(Request):
    document: Annotated[
        JsonObject,
        WholeBody(JobDocument),
        Meta(description='The job, or {"jobs": […]} to create all of them or none'),
    ]


class ListCronJobs(Request):
    agent: Annotated[str | None, Meta(description="Only jobs of this agent")] = None
    name: Annotated[str | None, Meta(description="Only jobs with this name")] = None
    enabled: Annotated[
        bool | None, Meta(description="Only enabled (true) or disabled (false) jobs")
    ] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class CronJobRequest(Request):
    """The id or name of one job."""

    job: JobName = field(name="id")


class ChangeCronJob(Request):
    job: JobName = field(name="id")
    document: Annotated[
        JsonObject, WholeBody(), Meta(description="Fields to change; null clears a field")
    ]


class DeleteCronJob(Request):
    job: JobName = field(name="id")
    cancel: Annotated[bool, Meta(description="Also cancel the tasks that the job has started")] = (
        False
    )


class ToggleCronJob(Request):
    job: JobName = field(name="id")
    enabled: Annotated[bool, Meta(description="Whether the job is enabled")]


class ListCronJobRuns(Request):
    job: JobName = field(name="id")
    status: Annotated[RunStatus | None, Meta(description="Only runs with this status")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ListCronRuns(Request):
    job: Annotated[
        str | None, IdOf("job"), Meta(description="Only runs of the job with this id or name")
    ] = None
    job_id: Annotated[
        str | None, Meta(description="Only runs of the job with this id; it may be deleted")
    ] = None
    status: Annotated[RunStatus | None, Meta(description="Only runs with this status")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class PreviewSchedule(Request):
    expr: Annotated[
        str | None, Meta(description="Cron expression with five fields", examples=["0 9 * * 1-5"])
    ] = None
    tz: Annotated[
        str | None, Meta(description="IANA time zone; default: UTC", examples=["Europe/Berlin"])
    ] = None
    every_ms: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        Meta(description="Interval in milliseconds, instead of expr"),
    ] = None
    at: Annotated[Moment | None, Meta(description="A single time, instead of expr")] = None
    n: Annotated[int, Meta(ge=1, le=PREVIEW_MAX, description="Number of times to return")] = 5


class CronJobState(Response):
    consecutive_errors: int
    runs: Annotated[int, Meta(description="Number of runs that the schedule has started")]
    next_run_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_status: Annotated[str, one_of(STATUSES)] | None = None
    last_error: str | None = None


class CronJob(JobDocument, Response, kw_only=True, forbid_unknown_fields=False):
    """A job with all defaults filled in; secrets are masked."""

    id: str
    name: str
    unreadable: Annotated[
        list[str] | None, Meta(description="Fields that are damaged in the store")
    ] = None
    next_run_at: Moment | None = None
    next_run_at_ms: int | None = None
    state: CronJobState
    created_at: Moment
    updated_at: Moment
    disabled_reason: str | None = None


class CronJobPage(Response):
    jobs: list[CronJob]
    count: int
    next_cursor: str | None = None


class CronJobDeleted(Response):
    id: str
    name: str
    deleted: bool


class CronRunStarted(Response):
    run_id: str
    task: str
    state: TaskState


class CronRun(Response, kw_only=True):
    run_id: str
    job_id: str
    job_name: str
    task: str | None = None
    scheduled_at: Moment
    started_at: Moment | None = None
    finished_at: Moment | None = None
    trigger: Annotated[str, one_of(("schedule", "misfire", "manual"))]
    status: Annotated[str, one_of(STATUSES)]
    attempts: int
    error: str | None = None
    summary: str | None = None


class CronRunPage(Response):
    runs: list[CronRun]
    count: int
    next_cursor: str | None = None


class PreviewedMoment(Response):
    utc: Moment
    local: Annotated[str, Meta(description="The same time in the time zone")]


class SchedulePreview(Response):
    next: list[PreviewedMoment]


def cron_run(run: RunRecord) -> CronRun:
    return CronRun(
        run_id=run.id,
        job_id=run.job_id,
        job_name=run.job_name,
        task=run.task_id,
        scheduled_at=moment(run.scheduled_at),
        started_at=None if run.started_at is None else moment(run.started_at),
        finished_at=None if run.finished_at is None else moment(run.finished_at),
        trigger=run.trigger,
        status=run.status,
        attempts=run.attempts,
        error=run.error,
        summary=run.summary,
    )


CREATE_CRON_JOB: Final[Operation[CreateCronJob, CronJob | CronJobPage]] = Operation(
    "create_cron_job",
    POST,
    "/cron/jobs",
    CreateCronJob,
    CronJob,
    Scope.OPERATE,
    "Create a cron job, which submits a task on a schedule",
    status=201,
    statuses={CronJobPage: 201},
)
CRON_JOBS: Final = Operation(
    "cron_jobs",
    GET,
    "/cron/jobs",
    ListCronJobs,
    CronJobPage,
    Scope.READ,
    "List cron jobs, newest first",
)
CRON_JOB: Final = Operation(
    "cron_job",
    GET,
    "/cron/jobs/{id}",
    CronJobRequest,
    CronJob,
    Scope.READ,
    "Show a cron job",
)
UPDATE_CRON_JOB: Final = Operation(
    "update_cron_job",
    PATCH,
    "/cron/jobs/{id}",
    ChangeCronJob,
    CronJob,
    Scope.OPERATE,
    "Change fields of a cron job",
)
DELETE_CRON_JOB: Final = Operation(
    "delete_cron_job",
    DELETE,
    "/cron/jobs/{id}",
    DeleteCronJob,
    CronJobDeleted,
    Scope.OPERATE,
    "Delete a cron job; the log of its runs stays",
)
TOGGLE_CRON_JOB: Final = Operation(
    "toggle_cron_job",
    POST,
    "/cron/jobs/{id}/toggle",
    ToggleCronJob,
    CronJob,
    Scope.OPERATE,
    "Enable or disable a cron job",
)
RUN_CRON_JOB: Final = Operation(
    "run_cron_job",
    POST,
    "/cron/jobs/{id}/run",
    CronJobRequest,
    CronRunStarted,
    Scope.OPERATE,
    "Run a cron job now; its schedule does not change",
    status=202,
)
CRON_JOB_RUNS: Final = Operation(
    "cron_job_runs",
    GET,
    "/cron/jobs/{id}/runs",
    ListCronJobRuns,
    CronRunPage,
    Scope.READ,
    "List the runs of a cron job, newest first",
)
CRON_RUNS: Final = Operation(
    "cron_runs",
    GET,
    "/cron/runs",
    ListCronRuns,
    CronRunPage,
    Scope.READ,
    "List runs of all cron jobs, newest first",
    positional=("job",),
)
CRON_PREVIEW: Final = Operation(
    "cron_preview",
    GET,
    "/cron/preview",
    PreviewSchedule,
    SchedulePreview,
    Scope.READ,
    "Show when a schedule would run next",
    positional=("expr",),
)
