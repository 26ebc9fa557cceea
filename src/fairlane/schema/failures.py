"""Failures by error: groups of failed and parked tasks whose errors are alike."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.fingerprints import HANDLERS_MAX, FailureGroup
from fairlane.core.types import Cursor, Moment, PageLimit
from fairlane.schema.operation import GET, POST, Operation, Request, Response
from fairlane.schema.task_filters import TimePoint
from fairlane.schema.tasks import CHANGED_MAX, TasksChanged
from fairlane.schema.wire import moment, one_line

_POINT: Final = ": 1h or 2d ago, 10:00, a date or RFC 3339; UTC unless it has a zone"


class FailureFilter(Request):
    """Which failed and parked tasks to look at."""

    agent: Annotated[str | None, Meta(description="Only tasks of this agent")] = None
    lane: Annotated[str | None, Meta(description="Only tasks of this lane")] = None
    handler: Annotated[str | None, Meta(description="Only tasks of this handler")] = None
    since: Annotated[
        TimePoint | None, Meta(description=f"Only tasks that failed at this time or later{_POINT}")
    ] = None
    until: Annotated[
        TimePoint | None, Meta(description=f"Only tasks that failed before this time{_POINT}")
    ] = None


class ListFailures(FailureFilter):
    limit: PageLimit = 50


class RetryFailures(FailureFilter, kw_only=True):
    fingerprint: Annotated[str, Meta(description="Fingerprint of a group from GET /failures")]
    dry_run: Annotated[bool, Meta(description="Only count the tasks")] = False
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=CHANGED_MAX)] | None,
        Meta(description="Change at most this many; nextCursor continues. Default: all"),
    ] = None
    cursor: Cursor | None = None


class FailureStatus(Response):
    """Failures that differ only in numbers, ids and addresses."""

    fingerprint: Annotated[str, Meta(description="Stable name of the group")]
    error: Annotated[
        str, Meta(description="The error, with placeholders for the parts that differ")
    ]
    example: Annotated[str | None, Meta(description="The newest of the errors")]
    count: int
    failed: Annotated[int, Meta(description="How many of the tasks have failed")]
    parked: Annotated[int, Meta(description="How many of the tasks are parked")]
    first_seen: Moment
    last_seen: Moment
    handlers: Annotated[
        dict[str, int], Meta(description="Number of tasks by handler, or by kind of task")
    ]
    task_ids: Annotated[list[str], Meta(description="Ids of the newest tasks")]


class FailureList(Response):
    failures: list[FailureStatus]
    count: Annotated[int, Meta(description="Number of groups in this response")]
    considered: Annotated[
        int, Meta(description="Number of failed and parked tasks that were grouped")
    ]
    complete: Annotated[bool, Meta(description="Whether all failed and parked tasks were grouped")]


def failure_status(group: FailureGroup) -> FailureStatus:
    handlers = sorted(group.capabilities.items(), key=lambda one: -one[1])[:HANDLERS_MAX]
    return FailureStatus(
        fingerprint=group.fingerprint,
        error=group.template,
        example=None if group.example is None else one_line(group.example),
        count=group.count,
        failed=group.failed,
        parked=group.parked,
        first_seen=moment(group.first_at),
        last_seen=moment(group.last_at),
        handlers={name.removeprefix("handler/"): count for name, count in handlers},
        task_ids=group.tasks,
    )


FAILURES: Final = Operation(
    "failures",
    GET,
    "/failures",
    ListFailures,
    FailureList,
    Scope.READ,
    "List failed and parked tasks by error, the most frequent first",
)
RETRY_FAILURES: Final = Operation(
    "retry_failures",
    POST,
    "/failures/{fingerprint}/retry",
    RetryFailures,
    TasksChanged,
    Scope.OPERATE,
    "Queue the failed and parked tasks with this error again",
)
