"""The documents of cron jobs that callers send and read. `core/jobs.py` gives them meaning.

They are separate from `core/cron.py` because time zones load slowly and few commands need them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta, field

from fairlane.core import moments
from fairlane.core.retries import Backoff
from fairlane.core.submissions import TaskRequest, TimeoutMs
from fairlane.core.types import DAY_MS, Identifier, IdentifierOrEmpty, Moment, Url, json_name

EXPR_CHARACTERS_MAX: Final = 256
SPAN_MS_MAX: Final = 366 * DAY_MS

ScheduleKind = Literal["at", "every", "cron"]
Overlap = Literal["skip", "queue", "allow"]
Misfire = Literal["skip", "once", "all"]
# The status of a run. The first two belong to a run that has not ended.
RunStatus = Literal["queued", "running", "ok", "error", "cancelled", "skipped", "missed"]

KINDS: Final[tuple[str, ...]] = get_args(ScheduleKind)
STATUSES: Final[tuple[str, ...]] = get_args(RunStatus)

SpanMs = Annotated[int, Meta(ge=0, le=SPAN_MS_MAX)]
DaySpanMs = Annotated[int, Meta(ge=0, le=DAY_MS)]
Small = Annotated[int, Meta(ge=1, le=1000)]


class ScheduleDocument(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True
):
    """When a job runs: once at a time, at an interval, or by a cron expression."""

    kind: ScheduleKind
    at: Annotated[Moment | None, Meta(description="The moment, of kind at")] = None
    at_ms: Annotated[
        Annotated[int, Meta(ge=0, le=moments.MAX)] | None,
        Meta(description="The moment in milliseconds since 1970, instead of at"),
    ] = None
    every_ms: Annotated[int | None, Meta(description="The interval, of kind every")] = None
    anchor: Annotated[
        Moment | None, Meta(description="Where the interval starts; default: when it was created")
    ] = None
    expr: Annotated[
        Annotated[str, Meta(max_length=EXPR_CHARACTERS_MAX)] | None,
        Meta(description="Five fields, such as 0 9 * * 1-5, of kind cron"),
    ] = None
    tz: Annotated[str | None, Meta(description="IANA time zone of expr; default: UTC")] = None


class JobDocument(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """A cron job as a caller describes it. None is the same as leaving a field out."""

    name: Annotated[Identifier, Meta(description="Name of the job, unique for its agent")]
    agent_id: Annotated[
        IdentifierOrEmpty | None, Meta(description='Agent that the job belongs to; "default"')
    ] = None
    schedule: ScheduleDocument
    task: Annotated[TaskRequest, Meta(description="The task to submit")] = field(name="task")
    enabled: Annotated[
        bool | None, Meta(description="Whether the schedule runs; default: true")
    ] = None
    delete_after_run: Annotated[
        bool | None, Meta(description="Delete a job of kind at after its run; default: true")
    ] = None
    overlap: Annotated[
        Overlap | None, Meta(description="What to do while the previous run goes on; skip")
    ] = None
    misfire: Annotated[
        Misfire | None, Meta(description="Which of the missed runs to catch up on; once")
    ] = None
    misfire_grace_ms: Annotated[
        SpanMs | None, Meta(description="How late a run may start before it counts as missed")
    ] = None
    misfire_cap: Annotated[
        Small | None, Meta(description="How many missed runs to catch up on at most; 10")
    ] = None
    misfire_spread_ms: Annotated[
        DaySpanMs | None, Meta(description="Spread the missed runs over this time; 0")
    ] = None
    jitter_ms: Annotated[
        DaySpanMs | None, Meta(description="Start each run up to this much later; 0")
    ] = None
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Maximum duration of one attempt")] = (
        None
    )
    start_at: Annotated[Moment | None, Meta(description="No run before this moment")] = None
    end_at: Annotated[Moment | None, Meta(description="No run after this moment")] = None
    max_runs: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None, Meta(description="Stop after so many runs")
    ] = None
    retry_policy: Annotated[Backoff | None, Meta(description="Retries of each run's task")] = None
    alert_url: Annotated[
        Url | None, Meta(description="URL that receives a POST when the job fails, and recovers")
    ] = None
    alert_after: Annotated[
        Small | None, Meta(description="Alert after so many failed runs in a row; 1")
    ] = None
    disable_after: Annotated[
        Small | None, Meta(description="Disable the job after so many failed runs in a row")
    ] = None
    keep_runs: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(description="How many runs the log keeps; 200"),
    ] = None
    keep_days: Annotated[
        Annotated[int, Meta(ge=1, le=3650)] | None,
        Meta(description="For how many days the log keeps a run; 30"),
    ] = None
