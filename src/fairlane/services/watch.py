"""Totals, history and nodes, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.histogram import percentile
from fairlane.engine.node import Node
from fairlane.engine.reads.workers import NodeView
from fairlane.engine.telemetry.history import Agent, HistoryBucket
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.engine.writing_node import WritingNode
from fairlane.schema import watch as schema
from fairlane.schema.watch import (
    AgentShare,
    HistoryPoint,
    HistoryShown,
    NodeList,
    NodeStatus,
    SchedulerStats,
    scheduler_stats,
)
from fairlane.schema.wire import moment, moment_or_none
from fairlane.services.registry import implements, implements_at_writer

READY: Final = "ready"
DRAINING: Final = "draining"
SILENT: Final = "silent"


@implements(schema.STATS)
async def show_stats(node: Node, caller: Caller, _: schema.ShowStats) -> SchedulerStats:
    lanes, agents = await node.views.read(node.views.stats, caller.agent)
    return scheduler_stats(lanes, agents, node.policy)


@implements_at_writer(schema.HISTORY)
async def show_history(
    node: WritingNode, caller: Caller, request: schema.ShowHistory
) -> HistoryShown:
    span = node.history.span(request.window, node.clock.now())
    return HistoryShown(
        window=request.window,
        step_ms=span.step_ms,
        since=moment_or_none(node.history.since),
        points=[_point(bucket) for bucket in span.buckets],
        agents=[_share(one, steps=request.shares) for one in _visible(span.agents, caller.agent)],
    )


@implements(schema.NODES)
async def list_nodes(node: Node, _: Caller, __: schema.ListNodes) -> NodeList:
    now, found = await node.views.read(node.views.nodes, node.clock)
    return NodeList(nodes=[_status(node, one, now) for one in found], count=len(found))


def _status(node: Node, one: NodeView, now: int) -> NodeStatus:
    here = one.name == node.name
    draining = node.draining if here else bool(one.draining)
    seen_at = now if here else one.seen_at
    state = DRAINING if draining else READY
    return NodeStatus(
        name=one.name,
        host=one.host,
        pid=one.pid,
        version=one.version,
        started_at=moment(one.started_at),
        seen_at=moment(seen_at),
        state=SILENT if one.gone_at is not None or now - seen_at > LEASE_MS else state,
        running=one.running,
        answered=here,
    )


def _visible(agents: Sequence[Agent], agent: str | None) -> list[Agent]:
    """Return all agents; for a caller that is one agent, itself and all others as one."""
    if agent is None:
        return list(agents)
    mine = [one for one in agents if one.agent == agent]
    rest = [one for one in agents if one.agent != agent]
    if not rest:
        return mine
    share, fair = _sum([(one.share, one.fair_share) for one in rest])
    steps = [
        None if None in parts else _sum([part for part in parts if part is not None])
        for parts in zip(*(one.steps for one in rest), strict=True)
    ]
    return [*mine, Agent(None, share, fair, steps)]


def _sum(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(one for one, _ in pairs), sum(other for _, other in pairs)


def _share(one: Agent, *, steps: bool) -> AgentShare:
    shown = AgentShare(one.agent, round(one.share, 4), round(one.fair_share, 4))
    if steps:
        shown.shares = [part and round(part[0], 3) for part in one.steps]
        shown.fair_shares = [part and round(part[1], 3) for part in one.steps]
    return shown


def _point(bucket: HistoryBucket) -> HistoryPoint:
    return HistoryPoint(
        at=moment(bucket.at),
        span_ms=bucket.span_ms,
        submitted=bucket.submitted,
        finished=bucket.finished,
        failed=bucket.failed,
        wait_p50_ms=percentile(bucket.waits, 0.5),
        wait_p95_ms=percentile(bucket.waits, 0.95),
        run_p50_ms=percentile(bucket.runs, 0.5),
    )
