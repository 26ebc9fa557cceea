"""Gathers, from one snapshot, what has to be known to say why a task waits (`core/explain.py`).

Each look-up follows an index and is bounded, so the answer costs the same for a million tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fairlane.core import admission, explain, lifecycle, sessions
from fairlane.core.batches import Batch
from fairlane.core.counts import Line
from fairlane.core.explain import AHEAD_MAX, NAMED_MAX, Facts, Pace, Why
from fairlane.core.model import BATCH_GATE, SESSION_GATE, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import Session
from fairlane.engine import planning
from fairlane.store.base import Connection

_TASK_WIDTH = len(Task.__struct_fields__)


class Explained(NamedTuple):
    task: Task
    why: Why


PaceOf = Callable[[int | str], Pace | None]


def read(
    connection: Connection,
    task_id: str,
    pace_of: PaceOf = lambda _: None,
    agent: str | None = None,
) -> Explained | None:
    """`pace_of` tells how quickly a line, by its number, or a lane, by its name, moves of late.

    With `agent`, other tasks are named only when they are that agent's.
    """
    with connection.snapshot():
        rows = connection.run("task_view", id=task_id)
        if not rows:
            return None
        task, error = Task(*rows[0][:_TASK_WIDTH]), rows[0][-1]
        policy = planning.policy_in_force(connection)
        known = _surroundings(connection, task, policy, agent)
    pace = pace_of(task.line if _has_own_line(task, policy) else task.lane)
    facts = Facts(task, policy, error, pace=pace, lane_pace=pace_of(task.lane), **known)
    return Explained(task, explain.why(facts))


def _has_own_line(task: Task, policy: Policy) -> bool:
    known = task.lane in policy.lanes
    return known and bool(admission.line_agent(policy, task.lane, task.agent))


def _surroundings(
    connection: Connection, task: Task, policy: Policy, agent: str | None
) -> dict[str, Any]:
    if task.state == lifecycle.WAITING:
        parents = connection.run("why_parents", seq=task.seq, limit=NAMED_MAX)
        mine = [row for row in parents if agent is None or row[2] in (None, agent)]
        return {"parents": [(row[0], row[1]) for row in mine]}
    if task.state != lifecycle.QUEUED:
        return {}
    if task.gate == SESSION_GATE:
        return _of_session(connection, task, policy, agent)
    if task.gate == BATCH_GATE:
        holders = connection.run(
            "why_batch_holders", batch=task.batch, agent=agent, limit=NAMED_MAX
        )
        found = connection.run_rows("batch_find", [(task.batch,)])
        batch = Batch(*found[0]) if found else None
        return {"batch": batch, "holders": [row[0] for row in holders]}
    return {} if task.gate else _of_lane(connection, task, policy, agent)


def _of_session(
    connection: Connection, task: Task, policy: Policy, agent: str | None
) -> dict[str, Any]:
    rows = connection.run("session_view", key=task.session)
    session = Session(*rows[0]) if rows else None
    if session is not None:
        session.limit = sessions.limit(policy.sessions, session)
    turns = connection.run("session_turns", session=task.session)
    held = connection.run("session_held", session=task.session)
    ahead = connection.run(
        "why_session_ahead",
        session=task.session,
        priority=task.priority,
        seq=task.seq,
        limit=AHEAD_MAX,
    )
    found = [Task(*row) for row in (*turns, *held)]
    holders = [one.id for one in found if agent in (None, one.agent)][:NAMED_MAX]
    return {"session": session, "holders": holders, "ahead": ahead[0][0]}


def _of_lane(
    connection: Connection, task: Task, policy: Policy, agent: str | None
) -> dict[str, Any]:
    slots = {row[0]: row[1 + _SLOTS] for row in connection.run("lane_view")}
    lines = [Line(*row) for row in connection.run_rows("line_find", [(task.lane, task.agent)])]
    ahead = connection.run(
        "why_ahead", line=task.line, rank=task.rank, seq=task.seq, limit=AHEAD_MAX
    )
    known = {
        "ahead": ahead[0][0],
        "lane_slots": slots.get(task.lane, 0),
        "agent_slots": sum(line.slots for line in lines),
        "all_slots": sum(slots.values()),
    }
    ceiling = explain.why(Facts(task, policy, **known)).ceiling
    if ceiling is not None:
        in_lane = None if ceiling.scope == explain.GLOBAL else task.lane
        of_agent = task.agent if ceiling.scope == explain.AGENT else agent
        rows = connection.run("why_holders", lane=in_lane, agent=of_agent, limit=NAMED_MAX)
        known["holders"] = [row[0] for row in rows]
    return known


_SLOTS = Line.__struct_fields__.index("slots")
