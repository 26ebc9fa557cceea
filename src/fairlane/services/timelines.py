"""Timelines of a task and of a batch, for charts."""

from __future__ import annotations

from collections.abc import Sequence

from fairlane.core.access import Caller
from fairlane.core.errors import NotFound
from fairlane.engine.node import Node
from fairlane.engine.reads import timelines as reads
from fairlane.engine.reads.timelines import TaskTimeline
from fairlane.schema import timelines as schema
from fairlane.schema.task_status import brief_status
from fairlane.schema.timelines import TimelineList, timeline_shown
from fairlane.schema.wire import moment
from fairlane.services.registry import implements


@implements(schema.TASK_TIMELINE)
async def show_task_timeline(
    node: Node, caller: Caller, request: schema.ShowTaskTimeline
) -> TimelineList:
    found = await node.views.read(node.views.ask, reads.of_task, request.task_id, caller.agent)
    if not found:
        raise NotFound("task not found")
    return _shown(node, found)


@implements(schema.BATCH_TIMELINE)
async def show_batch_timeline(
    node: Node, caller: Caller, request: schema.ShowBatchTimeline
) -> TimelineList:
    batch = await node.views.read(node.views.batch, request.batch_id)
    if batch is None or not caller.owns(batch[0].agent):
        raise NotFound("batch not found")
    found, more = await node.views.read(
        node.views.ask, reads.of_batch, request.batch_id, request.limit
    )
    return _shown(node, found, more=more)


def _shown(node: Node, found: Sequence[TaskTimeline], *, more: bool = False) -> TimelineList:
    shown = [
        timeline_shown(
            one.role, brief_status(one.view.task, one.view.body, one.view.error, ()), one.timeline
        )
        for one in found
    ]
    return TimelineList(moment(node.clock.now()), shown, len(shown), more)
