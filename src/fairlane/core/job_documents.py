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
    at: Annotated[Moment | None, Meta(description="Time of the run, for kind at")] = None
    at_ms: Annotated[
        Annotated[int, Meta(ge=0, le=moments.MAX)] | None,
        Meta(description="Time of the run in milliseconds since 1970, instead of at"),
    ] = None
    every_ms: Annotated[int | None, Meta(description="Interval between runs, for kind every")] = (
        None
    )
    anchor: Annotated[
        Moment | None,
        Meta(description="Time from which intervals count; default: when the job was created"),
    ] = None
    expr: Annotated[
        Annotated[str, Meta(max_length=EXPR_CHARACTERS_MAX)] | None,
        Meta(description="Cron expression with five fields, such as 0 9 * * 1-5, for kind cron"),
    ] = None
    tz: Annotated[str | None, Meta(description="IANA time zone of expr; default: UTC")] = None


class JobDocument(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """A cron job as a caller describes it. None is the same as leaving a field out."""

    name: Annotated[Identifier, Meta(description="Name of the job, unique for its agent")]
    agent_id: Annotated[
        IdentifierOrEmpty | None,
        Meta(description='Agent that the job belongs to; default: "default"'),
    ] = None
    schedule: ScheduleDocument
    task: Annotated[TaskRequest, Meta(description="The task to submit")] = field(name="task")
    enabled: Annotated[
        bool | None, Meta(description="Whether the job is enabled; default: true")
    ] = None
    delete_after_run: Annotated[
        bool | None,
        Meta(description="Delete a job of kind at after its run succeeds; default: true"),
    ] = None
    overlap: Annotated[
        Overlap | None,
        Meta(description="What to do if the previous run is still in progress; default: skip"),
    ] = None
    misfire: Annotated[
        Misfire | None, Meta(description="Which missed runs to catch up on; default: once")
    ] = None
    misfire_grace_ms: Annotated[
        SpanMs | None, Meta(description="How late a run may start before it counts as missed")
    ] = None
    misfire_cap: Annotated[
        Small | None, Meta(description="Maximum number of missed runs to catch up on; default: 10")
    ] = None
    misfire_spread_ms: Annotated[
        DaySpanMs | None, Meta(description="Spread the missed runs over this time; default: 0")
    ] = None
    jitter_ms: Annotated[
        DaySpanMs | None, Meta(description="Delay each run by a random time up to this; default: 0")
    ] = None
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Maximum duration of one attempt")] = (
        None
    )
    start_at: Annotated[Moment | None, Meta(description="No run before this time")] = None
    end_at: Annotated[Moment | None, Meta(description="No run after this time")] = None
    max_runs: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        Meta(description="Disable the job after this many runs"),
    ] = None
    retry_policy: Annotated[
        Backoff | None, Meta(description="Retry settings of each run's task")
    ] = None
    alert_url: Annotated[
        Url | None,
        Meta(description="URL that receives a POST when runs keep failing, and when they recover"),
    ] = None
    alert_after: Annotated[
        Small | None,
        Meta(description="Send the alert after this many failed runs in a row; default: 1"),
    ] = None
    disable_after: Annotated[
        Small | None, Meta(description="Disable the job after this many failed runs in a row")
    ] = None
    keep_runs: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(description="Number of runs that the log keeps; default: 200"),
    ] = None
    keep_days: Annotated[
        Annotated[int, Meta(ge=1, le=3650)] | None,
        Meta(description="Number of days that the log keeps a run; default: 30"),
    ] = None
