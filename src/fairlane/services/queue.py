"""Queue and plan: add, list, show, drain and import entries; plan; show and set the queue's
rules.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from fairlane.compat import coolworkflow
from fairlane.compat.coolworkflow import SCHEMA_VERSION
from fairlane.core import entries
from fairlane.core.access import Caller
from fairlane.core.counts import Tally
from fairlane.core.entries import LANE, EntryStatus
from fairlane.core.errors import InvalidPolicy, NotFound
from fairlane.core.policy import Policy, nearest
from fairlane.core.submissions import moment_of
from fairlane.engine.commands import (
    PATCH,
    Drain,
    Drained,
    Enqueue,
    ReclaimedLeases,
    ReclaimExpired,
    SetPolicy,
)
from fairlane.engine.engine import parse_stored_policy
from fairlane.engine.node import Node
from fairlane.engine.reads.plan import PlanQuery
from fairlane.schema import queue as schema
from fairlane.schema.queue import (
    EntriesDrained,
    EntriesImported,
    EntryPage,
    EntryShape,
    LeasesReclaimed,
    PlannedLease,
    PlanShown,
    QueuePolicyShown,
    QueueRules,
    SkippedTask,
    entry_shape,
    imported_entries,
    new_entry,
)
from fairlane.schema.wire import moment, moment_or_none
from fairlane.services.actors import actor
from fairlane.services.registry import implements

LOOK: Final = 100  # how many waiting entries to search for the next one

_TALLIED: Final = {
    entries.PENDING: "queued",
    entries.READY: "queued",
    entries.LEASED: "inflight",
    entries.PARKED: "parked",
    entries.DRAINED: "completed",
    entries.CANCELLED: "cancelled",
    entries.FAILED: "failed",
}


@implements(schema.PLAN)
async def show_plan(node: Node, _: Caller, request: schema.ShowPlan) -> PlanShown:
    at = None if request.now is None else moment_of(request.now, "now")
    asked = PlanQuery(request.lane or LANE, at, request.limit)
    plan = await node.views.read(node.views.plan, asked, node.clock)
    return PlanShown(
        schema_version=SCHEMA_VERSION,
        now=moment(plan.now),
        lane=plan.lane,
        policy_version=plan.policy_version,
        max_concurrent=plan.ceiling,
        in_flight=plan.in_flight,
        available=plan.available,
        leases=[
            PlannedLease(
                id=task.id,
                lease_expires_at=moment(task.lease_expires_at or plan.now),
                attempts=entries.failures(task),
                priority=task.priority,
            )
            for task in plan.leases
        ],
        skipped=[
            SkippedTask(task.id, reason, moment_or_none(task.eligible_at))
            for task, reason in plan.skipped
        ],
        counts={"leases": len(plan.leases), **plan.counts},
        truncated=plan.truncated,
        at_least=plan.at_least or None,
    )


@implements(schema.RECLAIM_LEASES)
async def reclaim_leases(node: Node, caller: Caller, _: schema.ReclaimLeases) -> LeasesReclaimed:
    ids: list[str] = []
    while True:
        taken: ReclaimedLeases = await node.writer.ask(ReclaimExpired(caller.agent))
        ids += taken.ids
        if not taken.more:
            return LeasesReclaimed(SCHEMA_VERSION, moment(taken.now), ids)


@implements(schema.QUEUE_ADD)
async def add_entry(node: Node, caller: Caller, request: schema.AddEntry) -> EntryShape:
    entry = new_entry(request, node.new_id(), caller.agent)
    caller.agent_for(entry.submission.agent)
    (task,) = await node.submit(Enqueue([entry], _limited(caller)))
    return entry_shape(task, entry.submission.body, None)


@implements(schema.QUEUE_LIST)
async def list_entries(node: Node, caller: Caller, request: schema.ListEntries) -> EntryPage:
    views = node.views
    rank, _, seq = (request.cursor or "").partition(".")
    place = (int(rank), int(seq)) if rank else None
    states = entries.states(request.status)
    page = await views.read(views.entries, states, caller.agent, place, request.limit)
    lanes = await views.read(views.lanes, caller.agent)
    last = page[-1].task if page.more else None
    return EntryPage(
        schema_version=SCHEMA_VERSION,
        total=_total(lanes.get(LANE, Tally()), request.status),
        count=len(page),
        entries=[entry_shape(view.task, view.body, view.error) for view in page],
        next_cursor=None if last is None else f"{last.rank}.{last.seq}",
    )


@implements(schema.QUEUE_SHOW)
async def show_entry(node: Node, caller: Caller, request: schema.EntryRequest) -> EntryShape:
    view = await node.views.read(node.views.task, request.entry_id)
    if view is None or view.task.lane != LANE or not caller.owns(view.task.agent):
        raise NotFound(f'the queue has no entry "{request.entry_id[:128]}"')
    return entry_shape(view.task, view.body, view.error)


@implements(schema.QUEUE_DRAIN)
async def drain_entries(node: Node, caller: Caller, request: schema.DrainEntries) -> EntriesDrained:
    limit = request.limit or 1
    drained: Drained = await node.writer.ask(Drain(limit, caller.agent))
    shapes = [entry_shape(grant.task, grant.body, None) for grant in drained.grants]
    reason = None
    if len(shapes) < limit and drained.remaining:
        reason = await _why_no_more(node, caller.agent)
    return EntriesDrained(SCHEMA_VERSION, shapes, drained.remaining, reason)


@implements(schema.QUEUE_IMPORT)
async def import_entries(
    node: Node, caller: Caller, request: schema.ImportEntries
) -> EntriesImported:
    command = Enqueue(imported_entries(request.document), _limited(caller))
    tasks = await node.submit(command)
    by_status = Counter(entries.status_of(task) for task in tasks)
    return EntriesImported(SCHEMA_VERSION, len(tasks), dict(sorted(by_status.items())))


@implements(schema.QUEUE_POLICY)
async def show_queue_policy(node: Node, _: Caller, __: schema.ShowQueuePolicy) -> QueuePolicyShown:
    view = await node.views.read(node.views.policy, None)
    if view is None:
        return _rules(Policy(), "default")
    return _rules(parse_stored_policy(view.version, view.document), "store")


@implements(schema.SET_QUEUE_POLICY)
async def set_queue_policy(
    node: Node, caller: Caller, request: schema.SetQueuePolicy
) -> QueuePolicyShown:
    settings = dict(request.settings)
    known = coolworkflow.flat_policy(Policy())
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise InvalidPolicy([f"unknown key {name[:40]}{nearest(name, known)}" for name in unknown])
    author = actor(caller, request.actor)
    change = await node.set_policy(SetPolicy(settings, "sched policy set", PATCH, author=author))
    return _rules(change.after, "store")


def _limited(caller: Caller) -> Caller | None:
    """Return the caller if it has a limit of open tasks or is one agent."""
    return None if caller.agent is None and caller.max_open is None else caller


async def _why_no_more(node: Node, agent: str | None) -> str:
    """Return why the entry that would be drained next was not drained."""
    views, waiting = node.views, entries.states(entries.PENDING)
    found = [one.task for one in await views.read(views.entries, waiting, agent, None, LOOK)]
    task = next((one for one in found if one.ready), found[0] if found else None)
    why = None if task is None else (await node.why(task.id, agent)).why
    if task is None or why is None or (why.ready and not why.ceilings):
        return "more entries became ready meanwhile; drain again"
    return f"{task.id} is next: {why.reason}"


def _total(tally: Tally, status: EntryStatus | None) -> int:
    """Count by the counters, which still include pruned entries."""
    names = [_TALLIED[status]] if status else sorted(set(_TALLIED.values()))
    return sum(getattr(tally, name) for name in names)


def _rules(policy: Policy, source: str) -> QueuePolicyShown:
    rules = QueueRules(SCHEMA_VERSION, *coolworkflow.flat_policy(policy).values())
    return QueuePolicyShown(SCHEMA_VERSION, rules, source)
