"""Timelines: when tasks waited and for what, ran, were suspended or parked."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fairlane.core import timelines
from fairlane.core.access import Scope
from fairlane.core.types import Moment
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.task_status import TaskState, TaskStatus
from fairlane.schema.wire import moment, moment_or_none

TIMELINES_MAX: Final = 200
ROLES: Final = ("self", "dependency", "child", "member")


class ShowTaskTimeline(Request):
    task_id: Annotated[str, Meta(description="Id of the task")] = field(name="id")


class ShowBatchTimeline(Request):
    batch_id: Annotated[str, Meta(description="Id of the batch")] = field(name="id")
    limit: Annotated[
        int, Meta(ge=1, le=TIMELINES_MAX, description="Number of tasks, the oldest first")
    ] = 100


class SpanShown(Response):
    """A stretch of time in the life of a task."""

    kind: Annotated[str, one_of(timelines.KINDS)]
    start_at: Moment
    end_at: Annotated[Moment | None, Meta(description="Absent while it lasts")] = None
    reason: Annotated[
        str | None, Meta(description="What a wait or a suspension waits for, if that is known")
    ] = None
    attempt: int | None = None
    outcome: Annotated[str | None, Meta(description="How a run ended")] = None
    error: str | None = None
    worker: str | None = None


class MarkShown(Response):
    """A moment in the life of a task."""

    kind: Annotated[str, Meta(description="step, signal, message, or another kind of event")]
    at: Moment
    name: str | None = None


class TimelineShown(Response):
    """The timeline of one task."""

    task_id: str
    role: Annotated[
        str,
        one_of(ROLES),
        Meta(description="Relation to the requested task: itself, a dependency or a child"),
    ]
    title: str
    agent: str
    state: TaskState
    created_at: Moment
    spans: list[SpanShown]
    marks: list[MarkShown]
    omitted: Annotated[int, Meta(description="Number of older spans and marks left out")]


class TimelineList(Response):
    now: Annotated[Moment, Meta(description="Time of the response; open spans last until then")]
    timelines: list[TimelineShown]
    count: int
    more: Annotated[bool, Meta(description="Whether tasks were left out")]


def timeline_shown(role: str, status: TaskStatus, drawn: timelines.Timeline) -> TimelineShown:
    """Return a timeline with the messages that the task consists of."""
    marks = [MarkShown(one.kind, moment(one.at), one.name) for one in drawn.marks]
    marks += [
        MarkShown("message", one.sent_at, one.sender)
        for one in status.messages or ()
        if one.sent_at is not None
    ]
    return TimelineShown(
        task_id=status.task_id,
        role=role,
        title=status.handler or status.action or (status.instruction or status.kind)[:80],
        agent=status.agent,
        state=status.state,
        created_at=status.created_at,
        spans=[_span(one) for one in drawn.spans],
        marks=marks,
        omitted=drawn.omitted,
    )


def _span(one: timelines.TimelineSpan) -> SpanShown:
    return SpanShown(
        kind=one.kind,
        start_at=moment(one.start_at),
        end_at=moment_or_none(one.end_at),
        reason=one.reason,
        attempt=one.attempt,
        outcome=one.outcome,
        error=one.error,
        worker=one.worker,
    )


TASK_TIMELINE: Final = Operation(
    "task_timeline",
    GET,
    "/tasks/{id}/timeline",
    ShowTaskTimeline,
    TimelineList,
    Scope.READ,
    "Show when a task, its dependencies and its children waited and ran",
)
BATCH_TIMELINE: Final = Operation(
    "batch_timeline",
    GET,
    "/batches/{id}/timeline",
    ShowBatchTimeline,
    TimelineList,
    Scope.READ,
    "Show when the tasks of a batch waited and ran",
)
