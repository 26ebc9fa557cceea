"""The filter that lists, counts and bulk changes of tasks share."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from fairlane.core.task_conditions import CONDITIONS_MAX, TEXT_CHARACTERS_MAX
from fairlane.schema.operation import IdOf, Request

Kind = Literal["action", "handler", "instruction"]
TimePoint = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
_POINT: Final = ": 1h or 2d ago, 10:00, a date or RFC 3339; UTC unless it has a zone"


class TaskFilter(Request):
    """Conditions on tasks; all of them must hold."""

    agent: Annotated[str | None, Meta(description="Only tasks of this agent")] = None
    lane: Annotated[str | None, Meta(description="Only tasks of this lane")] = None
    session: Annotated[str | None, Meta(description="Only tasks of this session")] = None
    batch: Annotated[str | None, IdOf("batch"), Meta(description="Only tasks of this batch")] = None
    kind: Annotated[Kind | None, Meta(description="Only tasks of this kind")] = None
    handler: Annotated[str | None, Meta(description="Only tasks of this handler")] = None
    priority: Annotated[
        str | None,
        Meta(description="Only tasks of this priority: a number, critical, high, normal or low"),
    ] = None
    depends_on: Annotated[
        str | None,
        IdOf("task"),
        Meta(description="Only tasks that depend on the task with this id"),
    ] = None
    since: Annotated[
        TimePoint | None, Meta(description=f"Only tasks created at this time or later{_POINT}")
    ] = None
    until: Annotated[
        TimePoint | None, Meta(description=f"Only tasks created before this time{_POINT}")
    ] = None
    finished_since: Annotated[
        TimePoint | None, Meta(description=f"Only tasks that ended at this time or later{_POINT}")
    ] = None
    finished_until: Annotated[
        TimePoint | None, Meta(description=f"Only tasks that ended before this time{_POINT}")
    ] = None
    error: Annotated[Text | None, Meta(description="Only tasks with this text in their error")] = (
        None
    )
    failure: Annotated[
        str | None,
        Meta(description="Only failed or parked tasks with this fingerprint from GET /failures"),
    ] = None
    where: Annotated[
        Annotated[list[Text], Meta(max_length=CONDITIONS_MAX)] | None,
        Meta(description="Only tasks with these values: metadata.NAME=VALUE or params.NAME=VALUE"),
    ] = None
    tag: Annotated[
        Text | None, Meta(description="Only tasks with this tag: an item of metadata.tags")
    ] = None
    text: Annotated[
        Text | None,
        Meta(
            description=(
                "Only tasks with this text in id, agent, handler, lane, session, batch, error, "
                "instruction, params or metadata; a page covers 20,000 tasks and may be empty "
                "although there is a next one"
            )
        ),
    ] = None
