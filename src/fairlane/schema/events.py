"""Events as JSON: pages of the log, and those of one task. Streams: `services/following.py`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from fairlane.core import approvals, batches, events, lifecycle
from fairlane.core.access import Scope
from fairlane.core.events import Event
from fairlane.core.types import Moment, PageLimit, SequenceNumber
from fairlane.schema.operation import GET, Header, IdOf, Operation, Request, Response, one_of
from fairlane.schema.task_filters import TimePoint
from fairlane.schema.wire import moment, stored


class ListEvents(Request):
    task: Annotated[str | None, IdOf("task"), Meta(description="Only events of this task")] = None
    batch: Annotated[str | None, IdOf("batch"), Meta(description="Only events of this batch")] = (
        None
    )
    agent: Annotated[str | None, Meta(description="Only events of this agent")] = None
    lane: Annotated[str | None, Meta(description="Only events of this lane")] = None
    session: Annotated[str | None, Meta(description="Only events of this session")] = None
    types: Annotated[
        list[str] | None,
        Meta(description="Only events of these types", examples=[[events.TYPES[0]]]),
    ] = field(name="type", default=None)
    after: Annotated[
        SequenceNumber | None, Meta(description="Only events after the event with this id")
    ] = None
    since: Annotated[
        TimePoint | None,
        Meta(
            description="Only events at this time or later: 1h or 2d ago, 10:00, a date or "
            "RFC 3339; UTC unless it has a zone"
        ),
    ] = None
    order: Annotated[
        Literal["oldest", "newest"],
        Meta(description="Which events of a page come first; a stream is always oldest first"),
    ] = "oldest"
    before: Annotated[
        SequenceNumber | None,
        Meta(description="With order=newest: only events before the event with this id"),
    ] = None
    limit: PageLimit = 100
    last_event_id: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{1,19}$(?!\n)")] | None,
        Header("Last-Event-ID"),
        Meta(description="Overrides after; browsers send it when they reconnect"),
    ] = None


class TaskEvents(Request):
    task_id: Annotated[str, IdOf("task"), Meta(description="Id of the task")] = field(name="id")


class EventShown(Response, kw_only=True):
    id: int
    type: Annotated[str, one_of(events.TYPES)]
    timestamp: Moment
    task: str | None = None
    batch: str | None = None
    agent: str | None = None
    lane: str | None = None
    session: str | None = None
    handler: Annotated[str | None, Meta(description="Handler of the task, if it has one")] = None
    state: Annotated[
        Annotated[
            str, one_of(dict.fromkeys((*lifecycle.STATES, *batches.STATES, *approvals.STATES)))
        ]
        | None,
        Meta(description="State of the task, or of the batch or approval that the event is about"),
    ] = None
    attempt: int | None = None
    error: str | None = None
    worker: str | None = None
    job_id: str | None = None
    run_id: str | None = None
    approval_id: str | None = None
    step: Annotated[str | None, Meta(description="Name of the step that was recorded")] = None
    step_number: int | None = None
    signal: Annotated[str | None, Meta(description="Name of the signal that was sent")] = None
    progress: Any = None
    result: Any = None
    policy_version: int | None = None


class EventPage(Response):
    events: list[EventShown]
    next_after: Annotated[int, Meta(description="`after` of the next page")]
    more: bool
    next_before: Annotated[
        int | None, Meta(description="With order=newest: `before` of the next page")
    ] = None


class TaskEventList(Response):
    events: list[EventShown]
    count: int


def event_shown(
    one: Event,
    *,
    task_id: str | None,
    agent: str | None,
    lane: str | None,
    batch: str | None,
    result: str | None,
    session: str | None = None,
    handler: str | None = None,
) -> EventShown:
    """Return an event with the fields that its task adds."""
    return EventShown(
        id=one.id,
        type=one.type,
        timestamp=moment(one.at),
        task=task_id,
        batch=one.batch or batch,
        agent=agent,
        lane=lane,
        session=session,
        handler=handler,
        state=one.approval[1] if one.approval else one.state,
        attempt=one.attempt or None,
        error=one.error,
        worker=one.worker,
        job_id=one.fired[0] if one.fired else None,
        run_id=one.fired[1] if one.fired else None,
        approval_id=one.approval[0] if one.approval else None,
        step=one.step[1] if one.step else None,
        step_number=one.step[0] if one.step else None,
        signal=one.signal,
        progress=stored(one.progress),
        result=stored(result),
        policy_version=one.policy_version,
    )


LIST_EVENTS: Final = Operation(
    "list_events",
    GET,
    "/events",
    ListEvents,
    EventPage,
    Scope.READ,
    "List events in either order; without Accept: application/json, stream new ones",
)
TASK_EVENTS: Final = Operation(
    "task_events",
    GET,
    "/tasks/{id}/events",
    TaskEvents,
    TaskEventList,
    Scope.READ,
    "List the events of a task, oldest first",
)
