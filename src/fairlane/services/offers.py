"""Warn about a submission that no worker can run or whose lane does not exist.

With `strictHandlers` and `strictLanes` in the policy such a submission is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from fairlane.core.errors import BusyError, InvalidRequest
from fairlane.core.model import Submission, Task
from fairlane.core.workers import Unserved, unknown_lane
from fairlane.engine.node import Node
from fairlane.schema import wire
from fairlane.schema.task_status import TaskStatus

PREFIX: Final = "invalid task: "
PARENTS_MAX: Final = 100  # of one task that are looked up


async def checked(node: Node, made: Submission) -> list[str] | None:
    """Return the warnings about a submission, None if there are none. Raise `InvalidRequest` for
    what the policy refuses.
    """
    if made.lane is None:
        lane = node.policy.lane_name(None, made.kind)
        known = node.unserved_at_hand(made.capability, lane, made.agent)
        if known is None:
            return None
        if known is not ...:
            return _refused_or_warned(node, known)
    found = [*await _lane_warning(node, made), *await _handler_warning(node, made)]
    return found or None


async def parent_warnings(node: Node, made: Submission, agent: str | None) -> list[str]:
    """Return a warning if a task depends on tasks that do not exist: it may wait for ever."""
    if not made.depends_on:
        return []
    views, asked = node.views, made.depends_on[:PARENTS_MAX]
    try:
        missing = await views.read(views.search.unknown, asked, agent)
    except BusyError:
        return []
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return [f"it depends on {missing[0]}{more}, which is not known yet"] if missing else []


async def checked_each(
    node: Node, made: Iterable[Submission]
) -> list[list[str] | InvalidRequest | None]:
    """Return the warnings about each submission, or the error of one that the policy refuses."""
    known: dict[tuple[str, str, str | None, str], list[str] | InvalidRequest | None] = {}
    found = []
    for one in made:
        key = (one.capability, one.kind, one.lane, one.agent)
        if key not in known:
            try:
                known[key] = await checked(node, one)
            except InvalidRequest as error:
                known[key] = error
        found.append(known[key])
    return found


async def checked_batch(
    node: Node, made: Sequence[Submission | InvalidRequest]
) -> tuple[list[Submission | InvalidRequest], list[str] | None]:
    """Return the items, of which the policy may refuse some, and the warnings about the others."""
    counts: Counter[str] = Counter()
    found = iter(await checked_each(node, (one for one in made if isinstance(one, Submission))))
    items: list[Submission | InvalidRequest] = []
    for one in made:
        checked_one = next(found) if isinstance(one, Submission) else None
        items.append(checked_one if isinstance(checked_one, InvalidRequest) else one)
        counts.update(checked_one if isinstance(checked_one, list) else ())
    if len(made) == 1:
        return items, list(counts) or None
    return items, [f"{n} of {len(made)} tasks: {text}" for text, n in counts.items()] or None


async def _lane_warning(node: Node, made: Submission) -> list[str]:
    if made.lane is None or made.lane in node.policy.lanes:
        return []
    # Another node may just have added a lane: the store has the newest policy.
    view = await node.views.read(node.views.policy, None)
    lanes = node.policy.lanes if view is None else wire.decode(view.document)["lanes"]
    if made.lane in lanes:
        return []
    if node.policy.strict_lanes:
        raise InvalidRequest(f"{PREFIX}field 'lane': {unknown_lane(made.lane, lanes)}")
    return [unknown_lane(made.lane, lanes, node.policy.lane_name(made.lane, made.kind))]


async def _handler_warning(node: Node, made: Submission) -> list[str]:
    lane = node.policy.lane_name(made.lane, made.kind)
    found = await _unserved(node, made.capability, lane, made.agent)
    return [] if found is None else _refused_or_warned(node, found)


def _refused_or_warned(node: Node, found: Unserved) -> list[str]:
    if found.unknown and node.policy.strict_handlers:
        raise InvalidRequest(f"{PREFIX}{found.text}")
    return [found.text]


async def _unserved(node: Node, capability: str, lane: str, agent: str) -> Unserved | None:
    """Return why no worker can run a task. If that cannot be read, it does not matter."""
    try:
        return await node.unserved(capability, lane, agent)
    except BusyError:
        return None


async def add_notices(node: Node, tasks: Iterable[tuple[Task, TaskStatus]]) -> None:
    """Say for each task that is ready to start if its lane is paused or no worker can run it."""
    for task, status in tasks:
        if task.ready:
            lane = node.policy.lanes.get(task.lane)
            if lane is not None and lane.paused:
                status.notice = f"lane {task.lane} is paused"
                continue
            found = await _unserved(node, task.capability, task.lane, task.agent)
            status.notice = None if found is None else found.text
