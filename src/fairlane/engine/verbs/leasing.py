"""Leasing: grant ready tasks to waiting workers, as far as the ceilings allow.

The cost depends on the number of grants: it reads the first agents and the heads of their lines,
never the backlog. Workers with equal requests are served together.

There are two paths to the same answer. A lane without a backlog is served from what arrived in this
transaction (`_from_new`), so that such a task is written once, as leased; any other lane is served
from the database (`_agents`, `_heads`). Both order by the same `fairness.pick`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from fairlane.core import fairness, leases
from fairlane.core.counts import Line
from fairlane.core.fairness import Contender
from fairlane.core.model import CRITICAL, Task, is_open
from fairlane.core.policy import BY_PRIORITY
from fairlane.engine.commands import Grant, Lease
from fairlane.engine.verbs import approvals, dependencies, resources, steps
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.lines import BY_SHARE, URGENT, Order
from fairlane.store.tables.tasks import Ready
from fairlane.store.transaction import Transaction

ROUNDS_MAX: Final = 8


class Wanted(msgspec.Struct, frozen=True):
    """What workers can run: the named capabilities, and with `any_handler` all open handlers.

    With `agent`, only that agent's tasks. With `passing`, each task ends before the next starts, so
    that one free slot serves them all.
    """

    named: frozenset[str]
    any_handler: bool = False
    agent: str | None = None
    passing: bool = False

    def __contains__(self, capability: object) -> bool:
        return capability in self.named or (self.any_handler and is_open(str(capability)))

    def fits(self, task: Task) -> bool:
        return task.capability in self and self.agent in (None, task.agent)


Group = tuple[tuple[str, ...] | None, Wanted]  # lanes and capabilities


def lease(tx: Transaction, requests: Sequence[Lease], now: int) -> list[list[Grant]]:
    """Return the grants of each request, possibly none."""
    answers: list[list[Grant]] = [[] for _ in requests]
    groups: dict[Group, list[int]] = {}
    for number, request in enumerate(requests):
        capabilities = Wanted(request.capabilities, request.any_handler, request.agent)
        groups.setdefault((request.lanes, capabilities), []).append(number)
    for (lanes, capabilities), numbers in _critical_first(tx, groups).items():
        wanted = sum(requests[number].limit for number in numbers)
        hands = deque(numbers)
        for task, body in _take_reserved(tx, lanes or tuple(tx.policy.lanes), capabilities, wanted):
            number = hands[0]
            answers[number].append(_grant(tx, requests[number], task, body, now))
            if len(answers[number]) == requests[number].limit:
                hands.popleft()
        if hands:
            _make_room(tx, lanes or tuple(tx.policy.lanes), capabilities)
    return [_with_inputs(tx, grants) for grants in answers]


def hand_over(tx: Transaction, request: Lease, now: int) -> Iterator[Grant]:
    """Lease tasks one at a time. The caller ends each task before it requests the next."""
    capabilities = Wanted(request.capabilities, request.any_handler, request.agent, passing=True)
    lanes = request.lanes or tuple(tx.policy.lanes)
    given = 0
    for task, body in _take_reserved(tx, lanes, capabilities, request.limit):
        given += 1
        yield from _with_inputs(tx, [_grant(tx, request, task, body, now)])
    if given < request.limit:
        _make_room(tx, lanes, capabilities)


def _take_reserved(
    tx: Transaction, lanes: Sequence[str], capabilities: Wanted, wanted: int
) -> Iterator[Ready]:
    """Yield tasks that may start and whose needs fit; the caller leases each at once.

    A task whose needs do not fit goes behind the resource gate, and the search continues. The
    number of such rounds is bounded; the next transaction continues.
    """
    for _ in range(ROUNDS_MAX):
        refused = False
        for task, body in _take(tx, lanes, capabilities, wanted):
            if _is_overdue(tx, task, tx.now):
                continue
            if task.needs is not None and not resources.admits(tx, task):
                refused = True
                continue
            wanted -= 1
            yield task, body
        if not refused or not wanted:
            return
    tx.note_due(tx.now)


def _is_overdue(tx: Transaction, task: Task, now: int) -> bool:
    """Return whether it is too late to start a task; the next tick then ends it."""
    late = task.deadline_at is not None and task.deadline_at <= now
    if late:
        tx.note_due(now)
    return late


def _critical_first(tx: Transaction, groups: dict[Group, list[int]]) -> dict[Group, list[int]]:
    """Put requests that can run critical tasks first, before others take the freed slots."""
    if len(groups) < 2 or not any(tally.urgent for tally in tx.counters.lanes().values()):
        return groups

    def comes_later(group: Group) -> bool:
        lanes, capabilities = group
        open_lanes = _open_lanes(tx, lanes or tuple(tx.policy.lanes))
        return not any(
            tx.counters.lane(lane).urgent and _urgent(tx, lane, capabilities) for lane in open_lanes
        )

    return {group: groups[group] for group in sorted(groups, key=comes_later)}


def could_start(tx: Transaction, lane: str) -> bool:
    """Return whether the lane has a ready task and a slot for it."""
    if not _open_lanes(tx, [lane]):
        return False
    kept = 0 if tx.counters.lane(lane).urgent else tx.policy.lanes[lane].reserved.critical
    return free_slots(tx, lane) > kept


def _take(
    tx: Transaction, lanes: Sequence[str], capabilities: Wanted, wanted: int
) -> Iterator[Ready]:
    """Yield up to `wanted` tasks: an even share from each lane, then the remainder from any lane.

    The caller leases each task before it asks for the next, so that the counts are current.
    """
    for parts in (max(1, len(_open_lanes(tx, lanes))), 1):
        for lane in _open_lanes(tx, lanes):
            reserved = tx.policy.lanes[lane].reserved.critical
            for critical in (False, True) if reserved else (False,):
                free = free_slots(tx, lane) - (0 if critical else reserved)
                if capabilities.passing and free > 0:
                    free = wanted
                limit = min(-(-wanted // parts), free, _waiting(tx, lane, critical=critical))
                if limit > 0:
                    for ready in _from_lane(tx, lane, capabilities, limit, critical=critical):
                        wanted -= 1
                        yield ready


def _grant(tx: Transaction, request: Lease, task: Task, body: str, now: int) -> Grant:
    change = leases.grant(
        task,
        fencing_token=tx.next_fencing_token(),
        worker=request.worker,
        ttl_ms=request.ttl_ms or tx.policy.lease_ttl_ms(task.lane),
        started=request.start or task.capability in request.started,
        now=now,
    )
    tx.apply(change)
    if task.needs is not None:
        resources.reserve(tx, change.after)
    return Grant(change.after, body, at=now)


def _with_inputs(tx: Transaction, grants: list[Grant]) -> list[Grant]:
    """Add the results of their parents, the decisions of people and the recorded steps to the
    granted tasks.
    """
    if not any(_has_inputs(grant.task) for grant in grants):
        return grants
    tasks = [grant.task for grant in grants]
    found, decided = dependencies.inputs(tx, tasks), approvals.answers(tx, tasks)
    recorded = steps.of_tasks(tx, tasks)
    return [
        Grant(
            g.task,
            g.body,
            found.get(g.task.seq, ()),
            g.at,
            decided.get(g.task.seq, ()),
            recorded.get(g.task.seq, ()),
        )
        for g in grants
    ]


def _has_inputs(task: Task) -> bool:
    return not (task.unmet is None and task.unapproved is None and task.steps is None)


def _open_lanes(tx: Transaction, lanes: Sequence[str]) -> list[str]:
    """Return lanes with ready tasks: those with critical tasks first, then the emptiest."""
    tallies, settings = tx.counters.lanes(), tx.policy.lanes
    found = [
        name
        for name in lanes
        if name in tallies and name in settings
        if tallies[name].ready and not settings[name].paused
    ]
    return sorted(
        found,
        key=lambda name: (
            tallies[name].urgent == 0,
            tallies[name].slots / settings[name].max_inflight,
        ),
    )


def free_slots(tx: Transaction, lane: str) -> int:
    used_overall = sum(tally.slots for tally in tx.counters.lanes().values())
    ceiling = tx.policy.lanes[lane].max_inflight
    return fairness.free_slots(
        ceiling, tx.counters.lane(lane).slots, tx.policy.max_inflight, used_overall
    )


def _waiting(tx: Transaction, lane: str, *, critical: bool) -> int:
    return tx.counters.lane(lane).urgent if critical else tx.counters.lane(lane).ready


def _from_lane(
    tx: Transaction, lane: str, capabilities: Wanted, limit: int, *, critical: bool
) -> list[Ready]:
    """Return the next tasks of a lane; with `critical`, only critical ones."""
    new = tx.unwritten_ready(lane)
    if new is not None:
        runnable = [ready for ready in new if capabilities.fits(ready[0])]
        return _from_new(tx, lane, capabilities, runnable, limit, critical=critical)
    if tx.policy.lanes[lane].strategy == BY_PRIORITY:
        tx.counters.load_lines([(lane, "")])
        lines = [
            line.id
            for capability, line in tx.counters.lines(lane, "").items()
            if capability in capabilities
        ]
        if capabilities.agent is not None:
            return _of_agent(tx, lane, capabilities, lines, limit, critical=critical)
        return _first(tx.lookup.next_tasks(lines, limit), limit, critical=critical)
    order = _agents(tx, lane, capabilities, limit, critical=critical)
    return _heads(tx, lane, capabilities, order)


def _of_agent(
    tx: Transaction,
    lane: str,
    capabilities: Wanted,
    lines: Sequence[int],
    limit: int,
    *,
    critical: bool,
) -> list[Ready]:
    """Return one agent's tasks in a lane with a common line; no lookup if it has none ready."""
    assert capabilities.agent is not None
    tx.counters.load_lines([(lane, capabilities.agent)])
    one = _contender(tx, lane, capabilities, capabilities.agent, critical=critical)
    found = (
        tx.lookup.next_tasks_of(lines, capabilities.agent, min(limit, one.ready))
        if one.ready
        else []
    )
    return _first(found, limit, critical=critical)


def _from_new(
    tx: Transaction,
    lane: str,
    capabilities: Wanted,
    ready: list[Ready],
    limit: int,
    *,
    critical: bool,
) -> list[Ready]:
    """Return new tasks of a lane without a backlog; each is written once, as leased."""
    if tx.policy.lanes[lane].strategy == BY_PRIORITY:
        return _first(ready, limit, critical=critical)
    found: dict[str, list[Ready]] = {}
    for pair in ready:
        found.setdefault(pair[0].agent, []).append(pair)
    tx.counters.load_lines((lane, agent) for agent in found)
    contenders = [_contender(tx, lane, capabilities, agent, critical=critical) for agent in found]
    return _in_turn(found, fairness.pick(contenders, limit, served=tx.last_fencing_token))


def _agents(
    tx: Transaction, lane: str, capabilities: Wanted, limit: int, *, critical: bool
) -> list[str]:
    """Return the agents to serve, in order. Read further only past agents at their limit."""
    if capabilities.agent is not None:
        tx.counters.load_lines([(lane, capabilities.agent)])
        one = _contender(tx, lane, capabilities, capabilities.agent, critical=critical)
        return fairness.pick([one], limit, served=tx.last_fencing_token)
    rows = _named(tx, lane, capabilities)
    look = limit + 8
    while True:
        views = [] if critical else [_first_agents(tx, BY_SHARE, rows, look)]
        if tx.counters.lane(lane).urgent:
            views.append(_first_agents(tx, URGENT, rows, look))
        agents = dict.fromkeys(agent for view in views for found in view for agent in found)
        contenders = [
            _contender(tx, lane, capabilities, agent, critical=critical) for agent in agents
        ]
        able = {one.agent for one in contenders if one.eligible}
        # An agent that was not read comes after `limit` others that can be served, in each view.
        each = [found for view in views for found in view]
        if all(len(found) < look or len(able.intersection(found)) >= limit for found in each):
            return fairness.pick(contenders, limit, served=tx.last_fencing_token)
        look *= 4


def _named(tx: Transaction, lane: str, capabilities: Wanted) -> list[tuple[str, str]]:
    """Return the lane with each capability; for any handler, those with ready tasks."""
    names = {*capabilities.named}
    if capabilities.any_handler:
        names.update(filter(is_open, tx.lookup.ready_capabilities(lane)))
    return [(lane, capability) for capability in sorted(names)]


def _first_agents(
    tx: Transaction, order: Order, rows: Sequence[tuple[str, str]], look: int
) -> list[list[str]]:
    """Return the first `look` agents of each capability.

    All lines of agents that come first for any capability are loaded, so for one capability others
    may be among them, but its first agents are.
    """
    lines = tx.lookup.first_lines(order, rows, look)
    views = []
    for _, capability in rows:
        mine = [line for line in lines if line.capability == capability and line.ready]
        if len(mine) > look:
            mine = sorted(mine, key=_place)[:look]
        views.append([line.agent for line in mine])
    return views


def _place(line: Line) -> tuple[float, int, str]:
    return line.share, line.served, line.agent


def _contender(
    tx: Transaction, lane: str, capabilities: Wanted, agent: str, *, critical: bool = False
) -> Contender:
    """Return an agent's standing; with `critical`, as if it had no other work."""
    lines = tx.counters.lines(lane, agent)
    weight, ceiling = tx.policy.weight(agent), tx.policy.agent_ceiling(lane, agent)
    if len(lines) == 1 and not capabilities.passing:
        ((capability, one),) = lines.items()
        if capability in capabilities:
            ready = one.urgent if critical else one.ready
            return Contender(agent, ready, one.urgent, one.slots, one.served, weight, ceiling)
    runnable = [line for capability, line in lines.items() if capability in capabilities]
    found = Contender(
        agent=agent,
        ready=sum(line.urgent if critical else line.ready for line in runnable),
        urgent=sum(line.urgent for line in runnable),
        slots=sum(line.slots for line in lines.values()),
        served=max((line.served for line in lines.values()), default=0),
        weight=weight,
        ceiling=ceiling,
    )
    if capabilities.passing and found.eligible:
        found.ceiling = None
    return found


def _heads(tx: Transaction, lane: str, capabilities: Wanted, order: Sequence[str]) -> list[Ready]:
    """Return the tasks for the agents' turns in `order`."""
    turns = Counter(order)
    by_depth: dict[int, list[int]] = {}
    for agent, count in turns.items():
        depth = (
            1 << (count - 1).bit_length()
        )  # round up to a power of two, so that there are few different statements
        numbers = by_depth.setdefault(depth, [])
        for capability, line in tx.counters.lines(lane, agent).items():
            if line.ready and capability in capabilities:
                numbers.append(line.id)
    found: dict[str, list[Ready]] = {}
    for depth, numbers in by_depth.items():
        for ready in tx.lookup.next_tasks(numbers, depth):
            found.setdefault(ready[0].agent, []).append(ready)
    return _in_turn(found, order)


def _in_turn(found: dict[str, list[Ready]], order: Sequence[str]) -> list[Ready]:
    """Take from each agent's list, from its end, as often as the agent comes up."""
    for ready in found.values():
        if len(ready) > 1:
            ready.sort(key=_rank, reverse=True)
    return [found[agent].pop() for agent in order]


def _rank(ready: Ready) -> tuple[int, int]:
    task = ready[0]
    return task.rank, task.seq


def _first(ready: Iterable[Ready], limit: int, *, critical: bool = False) -> list[Ready]:
    if critical:
        ready = [pair for pair in ready if pair[0].priority <= CRITICAL]
    return sorted(ready, key=_rank)[:limit]


# -------------------------------------------------------------------- making room


def _make_room(tx: Transaction, lanes: Sequence[str], capabilities: Wanted) -> None:
    """Pre-empt preemptible runs for critical tasks that find their lane full.

    Do so only for tasks that a waiting worker can run and that nothing else holds: a useless
    pre-emption would be repeated forever.
    """
    for lane in _open_lanes(tx, lanes):
        if tx.counters.lane(lane).urgent and free_slots(tx, lane) <= 0:
            _preempt_for_critical(tx, lane, _urgent(tx, lane, capabilities))


def _urgent(tx: Transaction, lane: str, capabilities: Wanted) -> int:
    by_priority = tx.policy.lanes[lane].strategy == BY_PRIORITY
    if capabilities.agent is None:
        rows = _named(tx, lane, capabilities)
        lines = tx.lookup.first_lines(URGENT, rows, tx.policy.lanes[lane].max_inflight)
        agents = dict.fromkeys(line.agent for line in lines)
    else:
        agents = {capabilities.agent: None}
        tx.counters.load_lines([(lane, capabilities.agent)])
    contenders = [_contender(tx, lane, capabilities, agent) for agent in agents]
    if by_priority:
        return sum(one.urgent for one in contenders)
    # Count no more tasks of an agent than its own ceiling lets it run.
    return sum(min(one.urgent, one.most) for one in contenders if one.eligible)


def _preempt_for_critical(tx: Transaction, lane: str, wanted: int) -> None:
    tasks = tx.lookup.tasks(task_table.preemptible, lane=lane)
    wanted -= sum(task.preempt == 1 for task in tasks)
    victims = [task for task in tasks if task.preempt == 0 and task.priority > CRITICAL]
    tx.counters.prepare(victims[: max(0, wanted)])
    for task in victims[: max(0, wanted)]:
        tx.apply(leases.preempt(task))
