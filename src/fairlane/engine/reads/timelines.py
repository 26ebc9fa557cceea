"""The timelines of a task with its dependencies and children, and of the tasks of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from fairlane.core import inbox, timelines
from fairlane.core.model import SUSPEND_GATE, Task
from fairlane.core.timelines import Timeline
from fairlane.store.base import Connection
from fairlane.store.tables import checkpoints, dependencies, suspensions, task_views
from fairlane.store.tables import events as event_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.task_views import TaskView

SELF: Final = "self"
DEPENDENCY: Final = "dependency"
CHILD: Final = "child"
MEMBER: Final = "member"
ROLES: Final = (SELF, DEPENDENCY, CHILD, MEMBER)
OTHERS_MAX: Final = 50  # dependencies, and as many children


class TaskTimeline(msgspec.Struct, frozen=True):
    """`role` is what the task is to the one that was asked for."""

    role: str
    view: TaskView
    timeline: Timeline


def of_task(connection: Connection, task_id: str, agent: str | None) -> list[TaskTimeline]:
    """Return the timelines of a task, of its dependencies and of its children; empty if there is no
    such task. With `agent`, only its own tasks are returned.
    """
    with connection.snapshot():
        found = next(iter(task_table.by_id(connection, [task_id])), None)
        if found is None or agent not in (None, found.agent):
            return []
        seq = found.seq
        parents = list(dependencies.of_children(connection, [seq]).get(seq, ()))
        named = [
            *_children(connection, found),
            *suspensions.awaited(connection, [seq]).get(seq, ()),
        ]
        roles = dict.fromkeys(parents[:OTHERS_MAX], DEPENDENCY)
        roles[task_id] = SELF
        for id_ in named[:OTHERS_MAX]:
            roles.setdefault(id_, CHILD)
        tasks = {one.id: one for one in task_table.by_id(connection, roles)}
        shown = [tasks[id_] for id_ in roles if id_ in tasks]
        seqs = [one.seq for one in shown if agent in (None, one.agent)]
        return _timelines(connection, seqs, roles)


def of_batch(connection: Connection, batch_id: str, limit: int) -> tuple[list[TaskTimeline], bool]:
    """Return the timelines of the oldest tasks of a batch, and whether there are more."""
    with connection.snapshot():
        found = task_views.oldest_of_batch(connection, batch_id, limit + 1)
        return _timelines(connection, found[:limit], {}), len(found) > limit


def _children(connection: Connection, task: Task) -> list[str]:
    if task.steps is None:
        return []
    steps = checkpoints.of_tasks(connection, [task.seq]).get(task.seq, ())
    return timelines.children([step.value for step in steps])


def _timelines(
    connection: Connection, seqs: Sequence[int], roles: dict[str, str]
) -> list[TaskTimeline]:
    views = {view.task.seq: view for view in task_views.by_seq(connection, seqs)}
    logs = event_table.whole_logs(connection, views)
    waits = suspensions.of_tasks(connection, _suspended(view.task for view in views.values()))
    return [
        TaskTimeline(
            roles.get(view.task.id, MEMBER),
            view,
            timelines.timeline(
                view.task, logs.get(seq, ()), waits.get(seq), _taken(connection, view)
            ),
        )
        for seq in seqs
        if (view := views.get(seq)) is not None
    ]


def _taken(connection: Connection, view: TaskView) -> list[tuple[int, str]]:
    """Return when the runs of a task have taken messages, and who had sent them."""
    if '"inbox"' not in view.body:
        return []
    newest = inbox.taken_by(view.body)[-timelines.MARKS_MAX :]
    ended = {one.id: one for one in task_table.by_id(connection, {one.task for one in newest})}
    return [(ended[one.task].completed_at or 0, one.sender) for one in newest if one.task in ended]


def _suspended(tasks: Iterable[Task]) -> list[int]:
    return [task.seq for task in tasks if task.gate == SUSPEND_GATE]
