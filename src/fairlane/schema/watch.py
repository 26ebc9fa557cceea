"""Totals, the last minutes and hours, and the nodes of a store, for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, field

from fairlane.core.access import Scope
from fairlane.core.counts import Tally
from fairlane.core.policy import LanePolicy, Policy
from fairlane.core.types import Moment
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.wire import span

Milliseconds = Annotated[int | None, Meta(description="null if nothing was measured")]
Share = Annotated[float, Meta(description="Share of all slots, from 0 to 1")]


Window = Literal["5m", "1h", "24h"]


class ShowHistory(Request):
    window: Annotated[Window, Meta(description="How far to look back")] = "5m"
    shares: Annotated[bool, Meta(description="Include each agent's share in every step")] = False


class ListNodes(Request):
    """No parameters."""


class ShowStats(Request):
    """No parameters."""


class HistoryPoint(Response):
    """One step of the window; waits and runs are percentiles of the tasks that ended in it."""

    at: Moment
    span_ms: int
    submitted: int
    finished: int
    failed: int
    wait_p50_ms: Milliseconds
    wait_p95_ms: Milliseconds
    run_p50_ms: Milliseconds


class AgentShare(Response):
    agent: Annotated[str | None, Meta(description="null for all other agents together")]
    share: Share
    fair_share: Annotated[float, Meta(description="The share that its weight entitles it to")]
    shares: list[float | None] | None = None
    fair_shares: list[float | None] | None = None


class HistoryShown(Response):
    window: Annotated[str, one_of(get_args(Window))]
    step_ms: int
    since: Annotated[Moment | None, Meta(description="When this process started measuring")]
    points: list[HistoryPoint]
    agents: list[AgentShare]


class NodeStatus(Response):
    name: str
    host: str
    pid: int
    version: str
    started_at: Moment
    seen_at: Moment
    state: Annotated[
        str,
        one_of(("ready", "draining", "silent")),
        Meta(description="silent: it sends no heartbeats"),
    ]
    running: Annotated[int, Meta(description="Leases that its worker holds")]
    answered: Annotated[bool, Meta(description="Whether this node sent this response")]


class NodeList(Response):
    nodes: list[NodeStatus]
    count: int


class AgentQueue(Response):
    queued: int
    inflight: int


class QueueTotals(Response):
    total_queued: int
    total_inflight: int
    agent_counts: Annotated[dict[str, int], Meta(description="Queued tasks of each agent")]
    agents: dict[str, AgentQueue]


class AgentTotals(Response):
    submitted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int


class TaskTotals(Response):
    tasks_submitted: int
    tasks_completed: int
    tasks_failed: int
    tasks_cancelled: int
    tasks_rejected: int
    tasks_expired: int
    tasks_parked: int
    dispatch_count: int
    avg_dispatch_latency_ms: float
    agents: dict[str, AgentTotals]


class BrowserLimits(Response):
    """The limits in force of the lane `browser`."""

    strategy: str
    max_queue_size: int | None
    max_per_agent: int | None
    max_inflight: int | None
    max_per_agent_flight: int | None
    max_per_agent_inflight: int | None
    worker_count: int
    result_ttl: Annotated[str, Meta(description="A duration such as 5m0s")] = field(
        name="resultTTL"
    )


class SchedulerStats(Response):
    queue: QueueTotals
    metrics: TaskTotals
    config: BrowserLimits


def scheduler_stats(
    lanes: Mapping[str, Tally], agents: Sequence[Sequence[Any]], policy: Policy
) -> SchedulerStats:
    """`agents` rows: name, queued, inflight, submitted, completed, failed, cancelled, rejected."""
    busy = [row for row in agents if row[1] or row[2]]
    return SchedulerStats(
        queue=QueueTotals(
            total_queued=_sum(lanes, "queued"),
            total_inflight=_sum(lanes, "inflight"),
            agent_counts={row[0]: row[1] for row in busy if row[1]},
            agents={row[0]: AgentQueue(queued=row[1], inflight=row[2]) for row in busy},
        ),
        metrics=_totals(lanes, agents),
        config=_limits(policy.lanes["browser"], policy),
    )


def _totals(lanes: Mapping[str, Tally], agents: Sequence[Sequence[Any]]) -> TaskTotals:
    dispatched, waited = _sum(lanes, "dispatched"), _sum(lanes, "waited_ms")
    return TaskTotals(
        tasks_submitted=_sum(lanes, "submitted"),
        tasks_completed=_sum(lanes, "completed"),
        tasks_failed=_sum(lanes, "failed"),
        tasks_cancelled=_sum(lanes, "cancelled"),
        tasks_rejected=_sum(lanes, "rejected"),
        tasks_expired=_sum(lanes, "expired"),
        tasks_parked=_sum(lanes, "parked"),
        dispatch_count=dispatched,
        avg_dispatch_latency_ms=round(waited / dispatched, 3) if dispatched else 0.0,
        agents={row[0]: AgentTotals(*row[3:]) for row in agents},
    )


def _limits(browser: LanePolicy, policy: Policy) -> BrowserLimits:
    return BrowserLimits(
        strategy=browser.strategy,
        max_queue_size=browser.max_queue_size,
        max_per_agent=browser.max_per_agent,
        max_inflight=browser.max_inflight,
        max_per_agent_flight=browser.max_per_agent_inflight,
        max_per_agent_inflight=browser.max_per_agent_inflight,
        worker_count=policy.worker_count,
        result_ttl=span(policy.retention.ttl_ms // 1000),
    )


def _sum(lanes: Mapping[str, Tally], name: str) -> int:
    return sum(getattr(tally, name) for tally in lanes.values())


STATS: Final = Operation(
    "stats",
    GET,
    "/scheduler/stats",
    ShowStats,
    SchedulerStats,
    Scope.READ,
    "Show how many tasks are queued, in flight and finished",
)
HISTORY: Final = Operation(
    "history",
    GET,
    "/stats/history",
    ShowHistory,
    HistoryShown,
    Scope.READ,
    "Show throughput, waits and agents' shares of the last minutes or hours",
    positional=("window",),
)
NODES: Final = Operation(
    "nodes",
    GET,
    "/nodes",
    ListNodes,
    NodeList,
    Scope.READ,
    "List the server processes that use the store",
    agents=False,
)
