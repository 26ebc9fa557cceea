"""Gather what needs the attention of an operator, each kind with a limit and by an index.

Only lanes that hold tasks are read, at most LANES_MAX of them, so the cost does not grow with
the backlog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fairlane.core import attention
from fairlane.core.attention import OpenEdge, Troubles, Unoffered
from fairlane.core.counts import Tally
from fairlane.core.model import BATCH_GATE, DEPENDENCY_GATE, RESOURCE_GATE, SESSION_GATE, Task
from fairlane.core.policy import Policy
from fairlane.core.workers import KnownWorker, unserved
from fairlane.engine.reads import plan
from fairlane.store.base import Connection
from fairlane.store.tables import attention as table
from fairlane.store.tables import lines
from fairlane.store.tables import tasks as task_table

LANES_MAX: Final = 50
LINES_MAX: Final = 1000  # of one lane
READY_MAX: Final = 100  # of one lane
HELD_MAX: Final = 50  # of one gate of one lane
PARKED_MAX: Final = 200
STUCK_MAX: Final = 5
WEBHOOKS_MAX: Final = 200
_GATES: Final = (SESSION_GATE, BATCH_GATE, RESOURCE_GATE)


def read(connection: Connection, now: int, workers: Sequence[KnownWorker]) -> Troubles:
    """Return the facts from one snapshot. `workers` are all that are known."""
    with connection.snapshot():
        policy = plan.policy_in_force(connection)
        tallies = lines.lanes_by_name(connection)
        busy = [name for name in policy.lanes if name in tallies and _holds_tasks(tallies[name])]
        busy = busy[:LANES_MAX]
        unoffered = [one for lane in busy for one in _unoffered(connection, lane, workers)]
        missing = {(one.lane, one.capability) for one in unoffered}
        return Troubles(
            now,
            policy,
            tallies,
            unoffered=unoffered,
            stuck=_stuck(connection, now, policy, busy, missing),
            parked=_parked(connection, busy, tallies),
            edges=_edges(connection, busy),
            jobs=table.failing_jobs(connection, attention.SHOWN_MAX),
            given_up=table.given_up(connection, now - attention.WEBHOOK_MS, WEBHOOKS_MAX),
            closed=table.closed_accounts(connection, now, attention.SHOWN_MAX),
            approvals=[
                one
                for one in table.oldest_approvals(connection, attention.SHOWN_MAX)
                if now - one.opened_at >= attention.APPROVAL_MS
            ],
        )


def _holds_tasks(tally: Tally) -> bool:
    return bool(tally.queued or tally.parked)


def _unoffered(
    connection: Connection, lane: str, workers: Sequence[KnownWorker]
) -> Iterator[Unoffered]:
    """Yield the capabilities with ready tasks that no worker can run."""
    counts: dict[tuple[str, str], int] = {}
    for capability, agent, ready in table.ready_lines(connection, lane, LINES_MAX):
        found = unserved(workers, capability, lane, agent)
        if found is not None:
            key = capability, found.text
            counts[key] = counts.get(key, 0) + ready
    for (capability, text), count in counts.items():
        yield Unoffered(lane, capability, text, count)


def _stuck(
    connection: Connection,
    now: int,
    policy: Policy,
    lanes: Sequence[str],
    missing: set[tuple[str, str]],
) -> list[Task]:
    """Return the tasks that have waited longest and that no other item explains."""
    found: list[Task] = []
    for lane in lanes:
        if not policy.lanes[lane].paused:
            found += table.oldest_ready(connection, lane, now - attention.READY_MS, READY_MAX)
        for gate in _GATES:
            found += task_table.held(connection, lane=lane, gate=gate, limit=HELD_MAX)
    late = [
        task
        for task in found
        if attention.may_be_stuck(task, now) and (task.lane, task.capability) not in missing
    ]
    return sorted(late, key=lambda task: task.queued_at)[:STUCK_MAX]


def _parked(
    connection: Connection, lanes: Sequence[str], tallies: Mapping[str, Tally]
) -> list[tuple[Task, str | None]]:
    return [
        one
        for lane in lanes
        if tallies[lane].parked
        for one in table.parked(connection, lane, PARKED_MAX)
    ]


def _edges(connection: Connection, lanes: Sequence[str]) -> list[OpenEdge]:
    children = {
        task.seq: task
        for lane in lanes
        for task in task_table.held(connection, lane=lane, gate=DEPENDENCY_GATE, limit=HELD_MAX)
    }
    return [
        OpenEdge(children[seq].id, parent, state, children[seq].created_at)
        for seq, parent, state in table.blocked_edges(connection, list(children))
    ]
