"""Gather, from one snapshot, the facts that explain why a task waits (`core/explain.py`).

Each lookup follows an index and is bounded, so the answer costs the same for a million tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import admission, approvals, explain, fairness, lifecycle, sessions
from fairlane.core.counts import Line
from fairlane.core.explain import AHEAD_MAX, NAMED_MAX, Facts, Pace, Why
from fairlane.core.json_types import JsonObject
from fairlane.core.model import (
    APPROVAL_GATE,
    BATCH_GATE,
    RESOURCE_GATE,
    SESSION_GATE,
    SUSPEND_GATE,
    Task,
)
from fairlane.core.policy import FAIR, Policy
from fairlane.core.workers import KnownWorker, unserved
from fairlane.engine.reads import plan
from fairlane.engine.verbs import budgets, resources
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.store.base import Connection
from fairlane.store.tables import approvals as approval_table
from fairlane.store.tables import batches as batch_table
from fairlane.store.tables import dependencies as dependency_table
from fairlane.store.tables import lines as line_table
from fairlane.store.tables import nodes as node_table
from fairlane.store.tables import resources as resource_table
from fairlane.store.tables import scheduler, task_views
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables import suspensions as suspension_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.lines import BY_SHARE, URGENT

# At most this many lines, handlers and agents are read to count what goes before a task.
_LINES_MAX: Final = 100
_ROUTES_MAX: Final = 50
_AGENTS_MAX: Final = 200


class Explained(msgspec.Struct, frozen=True):
    task: Task
    why: Why


PaceOf = Callable[[int | str], Pace | None]
Servers = Callable[[Connection, str], Mapping[str, int]]
Moment = Callable[[Connection], int]  # now, by the authoritative clock


def read(
    connection: Connection,
    task_id: str,
    pace_of: PaceOf = lambda _: None,
    agent: str | None = None,
    servers: Servers = lambda _, __: {},
    *,
    moment: Moment = lambda _: 0,
    workers: Sequence[KnownWorker] = (),
) -> Explained | None:
    """Explain a task. `pace_of` returns how fast a line, by its number, or a lane, by its name,
    moved recently; `servers` returns how many tasks each server with a capability runs. `workers`
    are all that are known.

    With `agent`, only that agent's other tasks are named.
    """
    with connection.snapshot():
        views = task_views.by_id(connection, task_id)
        if not views:
            return None
        task, error = views[0].task, views[0].error
        policy = plan.policy_in_force(connection)
        known = _surroundings(connection, task, policy, agent, servers, moment=moment)
    pace = pace_of(task.line if _has_own_line(task, policy) else task.lane)
    missing = None
    if task.ready:
        missing = unserved(workers, task.capability, task.lane, task.agent)
    facts = Facts(
        task,
        policy,
        error,
        pace=pace,
        lane_pace=pace_of(task.lane),
        unserved="" if missing is None else missing.text,
        **known,
    )
    return Explained(task, explain.why(facts))


def _has_own_line(task: Task, policy: Policy) -> bool:
    known = task.lane in policy.lanes
    return known and bool(admission.line_agent(policy, task.lane, task.agent))


def _surroundings(
    connection: Connection,
    task: Task,
    policy: Policy,
    agent: str | None,
    servers: Servers,
    *,
    moment: Moment,
) -> JsonObject:
    if task.state == lifecycle.WAITING:
        parents = dependency_table.open_parents(connection, task.seq, NAMED_MAX)
        mine = [row for row in parents if agent is None or row[2] in (None, agent)]
        return {"parents": [(row[0], row[1]) for row in mine]}
    if task.state != lifecycle.QUEUED:
        return {}
    if task.gate == SESSION_GATE and task.session is not None:
        return _of_session(connection, task, task.session, policy, agent)
    if task.gate == BATCH_GATE and task.batch is not None:
        holders = batch_table.holders(connection, task.batch, agent, NAMED_MAX)
        batch = next(iter(batch_table.by_id(connection, [task.batch])), None)
        return {"batch": batch, "holders": holders}
    if task.gate == APPROVAL_GATE:
        found = approval_table.of_tasks(connection, [task.seq])
        open_ = [one for one in found if one.state == approvals.OPEN]
        return {"approval": next(iter(open_), None)}
    if task.gate == SUSPEND_GATE:
        tasks = suspension_table.awaited_view(connection, task.seq, NAMED_MAX)
        named = [(row[0], row[1]) for row in tasks if agent is None or row[2] in (None, agent)]
        wait = suspension_table.of_tasks(connection, [task.seq]).get(task.seq)
        return {"parents": named, "wait": wait}
    if task.gate == RESOURCE_GATE:
        return _of_resource(connection, task, agent, moment(connection))
    return {} if task.gate else _of_lane(connection, task, policy, agent, servers)


def _of_resource(connection: Connection, task: Task, agent: str | None, now: int) -> JsonObject:
    """Return the resource amount that the task lacks now, and the tasks that hold it."""
    tx = plan.draft(connection, now)
    found = resources.first_blocked(tx, resources.demands(tx, task))
    if found is None:
        return {}
    account, blocked = found
    holding = resource_table.reservations_of(connection, account.id, 10 * NAMED_MAX, agent)
    tasks = task_table.by_seq(connection, dict.fromkeys(one.seq for one in holding))
    holders = [one.id for one in tasks][:NAMED_MAX]
    approval = budgets.question(tx, account, blocked) if blocked.spent else None
    if approval is not None and agent not in (None, approval.agent):
        approval = None
    return {"blocked": blocked, "holders": holders, "approval": approval}


def _of_session(
    connection: Connection, task: Task, key: str, policy: Policy, agent: str | None
) -> JsonObject:
    session = session_table.view(connection, key)
    if session is not None:
        session.limit = sessions.limit(policy.sessions, session)
    leased = session_table.leased_tasks(connection, session=key)
    with_turn = [*leased, *session_table.turn_tasks(connection, session=key)]
    holders = [one.id for one in with_turn if agent in (None, one.agent)][:NAMED_MAX]
    ahead = session_table.count_ahead(connection, task, AHEAD_MAX)
    return {"session": session, "holders": holders, "ahead": ahead}


def _of_lane(
    connection: Connection, task: Task, policy: Policy, agent: str | None, servers: Servers
) -> JsonObject:
    slots = {name: tally.slots for name, tally in line_table.lanes_by_name(connection).items()}
    lines = line_table.of_agents(connection, [(task.lane, task.agent)])
    running = servers(connection, task.capability) if policy.worker_count else {}
    ahead = _ahead(connection, task, [task.line])
    known: JsonObject = {
        "ahead": ahead,
        "beside": _beside(connection, task, policy, ahead),
        "lane_slots": slots.get(task.lane, 0),
        "agent_slots": sum(line.slots for line in lines),
        "all_slots": sum(slots.values()),
        "servers": list(running.values()),
    }
    ceiling = explain.why(Facts(task, policy, **known)).ceiling
    if ceiling is not None:
        known["holders"] = _holders(connection, task, ceiling.scope, agent, running)
    return known


def _holders(
    connection: Connection, task: Task, scope: str, agent: str | None, running: Mapping[str, int]
) -> list[str]:
    """Return the tasks that hold the slots of a ceiling. With `agent`, only that agent's."""
    return task_views.holders(
        connection,
        lane=task.lane if scope in (explain.LANE, explain.AGENT) else None,
        agent=task.agent if scope == explain.AGENT else agent,
        workers=sorted(running) if scope == explain.WORKER else None,
        limit=NAMED_MAX,
    )


# -------------------------------------------------------------------- tasks that go before it


def _ahead(connection: Connection, task: Task, lines: Iterable[int]) -> int:
    """Return how many ready tasks of these lines go before it there."""
    return sum(task_views.count_ahead(connection, task, line, AHEAD_MAX) for line in lines)


def _beside(connection: Connection, task: Task, policy: Policy, ahead: int) -> int:
    """Return how many tasks of other lines go before it: of its agent's other handlers and of other
    agents, in the order in which free slots are granted.
    """
    settings = policy.lanes.get(task.lane)
    if settings is None:
        return 0
    fair = settings.strategy == FAIR
    lines = line_table.of_agents(connection, [(task.lane, task.agent if fair else "")])
    numbers = [line.id for line in lines if line.id != task.line][:_LINES_MAX]
    own = _ahead(connection, task, numbers)
    if not fair:
        return min(own, AHEAD_MAX)
    contenders = _contenders(connection, task.lane, task.agent, policy)
    served = scheduler.view(connection).last_fencing_token
    turn = min(ahead + own + 1, AHEAD_MAX)
    others = fairness.others_before(contenders, task.agent, turn, served=served, most=AHEAD_MAX)
    return min(own + others, AHEAD_MAX)


def _contenders(
    connection: Connection, lane: str, agent: str, policy: Policy
) -> list[fairness.Contender]:
    """Return the first agents of the lane and `agent`, whose own ceiling is left out because it is
    reported separately.
    """
    pairs = {(lane, agent): None}
    for capability in line_table.ready_capabilities(connection, lane)[:_ROUTES_MAX]:
        for order in (URGENT, BY_SHARE):
            first = line_table.first_agents(connection, order, lane, capability, _AGENTS_MAX)
            pairs.update(dict.fromkeys(first))
    by_agent: dict[str, list[Line]] = {}
    for line in line_table.of_agents(connection, pairs):
        by_agent.setdefault(line.agent, []).append(line)
    return [
        fairness.Contender(
            agent=name,
            ready=sum(line.ready for line in lines),
            urgent=sum(line.urgent for line in lines),
            slots=sum(line.slots for line in lines),
            served=max(line.served for line in lines),
            weight=policy.weight(name),
            ceiling=None if name == agent else policy.agent_ceiling(lane, name),
        )
        for name, lines in by_agent.items()
    ]


# -------------------------------------------------------------------- servers


def serving(
    here: str, now: Callable[[Connection], int], capabilities: Callable[[], frozenset[str] | None]
) -> Servers:
    """Return a function that counts the tasks that each server with a capability runs.

    `capabilities` are those of this server, None if not known; others are assumed to have the same.
    """

    def read(connection: Connection, capability: str) -> dict[str, int]:
        runs = capabilities()
        if runs is not None and capability not in runs:
            return {}
        heard_since = now(connection) - LEASE_MS
        running = task_views.count_by_worker(connection)
        return {
            node.name: running.get(node.name, 0)
            for node in node_table.all_nodes(connection)
            if not node.draining
            and node.gone_at is None
            and (node.name == here or node.seen_at > heard_since)
        }

    return read
