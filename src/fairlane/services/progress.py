"""The progress that running tasks reported last."""

from __future__ import annotations

from collections.abc import Iterable

from fairlane.core import lifecycle
from fairlane.core.model import Task
from fairlane.engine.node import Node
from fairlane.schema.task_status import TaskStatus
from fairlane.schema.wire import stored
from fairlane.store.tables import events


async def add_progress(node: Node, shown: Iterable[tuple[Task, TaskStatus]]) -> None:
    """Give running tasks the progress that they reported last."""
    running = {task.seq: status for task, status in shown if task.state == lifecycle.RUNNING}
    if running:
        found = await node.views.read(node.views.ask, events.newest_progress, list(running))
        for seq, text in found.items():
            running[seq].progress = stored(text)
