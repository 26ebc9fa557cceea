"""Serve `GET /metrics` in the text format of Prometheus, version 0.0.4.

Counters of this node come from `engine/telemetry/metrics.py`. Gauges of waiting and running tasks
are read from the store at that moment and are the same on every node. Labels are lanes and fixed
words, never ids, so the number of series depends only on the policy. The use of resources names the
agents that use most, at most `AGENTS_MAX` for each unit.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlane.core import limits, workers
from fairlane.core.access import Scope
from fairlane.core.amounts import MICRO
from fairlane.core.counts import Tally
from fairlane.core.histogram import Histogram
from fairlane.engine.front_node import ShowMetrics
from fairlane.engine.node import Node
from fairlane.engine.telemetry import process
from fairlane.engine.telemetry.metrics import LaneMetrics
from fairlane.engine.writing_node import Measures, WritingNode
from fairlane.http.messages import Answer, HttpRequest, Raw, Route, Routes
from fairlane.version import __version__

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OWED_MAX: Final = 100_000
ACCOUNTS_MAX: Final = 10_000  # more accounts of resources are not added up
AGENTS_MAX: Final = 20
OTHERS: Final = "(others)"  # no agent can have this name

Labels = Mapping[str, str]
Value = tuple[Labels, float]
_NONE: Final[Labels] = {}


class MetricsRoute:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {"/metrics": {"GET": Route(self.show, Scope.READ, agents=False)}}

    async def show(self, request: HttpRequest) -> Answer:
        request.query()
        node = self._node
        if isinstance(node, WritingNode):
            text = await MetricsText(node).read()
        else:
            text = await node.writer.ask(ShowMetrics())
        return Answer(200, Raw(text.encode(), TYPE))


class MetricsText:
    """The metrics of a whole server: the process that writes and its fronts."""

    def __init__(self, node: WritingNode) -> None:
        self._node = node

    async def read(self) -> str:
        views, policy = self._node.views, self._node.policy
        tallies = await views.read(views.lanes)
        names = sorted({*policy.lanes, *tallies, *self._node.metrics.lanes})
        oldest = await views.read(views.oldest_waits, names)
        owed = await views.read(views.webhooks_owed, OWED_MAX)
        fronts = await self._node.measure_fronts()
        now = self._node.clock.now()
        lines = [
            *self._done(),
            *_standing({name: tallies.get(name, Tally()) for name in names}),
            *_gauges(
                "oldest_wait_seconds",
                "Longest time that a ready task has waited for a slot",
                {name: (now - at) / 1000 if at else 0 for name, at in oldest.items()},
            ),
            *_gauges(
                "slots",
                "Maximum number of tasks in flight",
                {name: lane.max_inflight for name, lane in policy.lanes.items()},
            ),
            *_gauges(
                "lane_paused",
                "Whether the lane is paused (1) or not (0)",
                {name: int(lane.paused) for name, lane in policy.lanes.items()},
            ),
            *await self._resources(),
            *await self._workers(),
            *_gauge("webhooks_owed", "Webhooks waiting to be sent, at most 100000", owed),
            *self._node_itself(fronts),
        ]
        return "".join(f"{line}\n" for line in lines)

    async def _workers(self) -> list[str]:
        """Describe workers by kind, never by name, so that restarts make no series."""
        found = await self._node.workers()
        kinds = {"node": True, "external": False}
        by_state = [
            ({"kind": kind, "state": state}, sum(one.state == state for one in some))
            for kind, inside in kinds.items()
            for some in [[one for one in found if one.is_node == inside]]
            for state in workers.STATES
        ]
        running = [
            ({"kind": kind}, sum(one.running for one in found if one.is_node == inside))
            for kind, inside in kinds.items()
        ]
        return [
            *_family("workers", "gauge", "Known workers by kind and state", by_state),
            *_family("worker_leases", "gauge", "Leases that known workers hold", running),
        ]

    async def _resources(self) -> list[str]:
        """Yield the metrics of resources, summed over accounts, so keys create no series."""
        node = self._node
        if not node.policy.resources:
            return []
        found = await node.views.read(
            node.views.resources.accounts, node.clock, node.policy, None, "", ACCOUNTS_MAX
        )
        sums: dict[str, dict[tuple[str, str], float]] = {name: {} for name in _RESOURCES}
        for view in found:
            account = view.account
            declared = node.policy.resources[account.resource]
            for limit in declared.declared:
                state = account.state(limit)
                at = (account.resource, limit.unit)
                values = {
                    "limit": limits.ceiling(limit, state),
                    "used": max(0, limits.committed(limit, state) - state.reserved),
                    "reserved": state.reserved,
                    "waiting": view.waiting * MICRO,
                    "closed": (account.closed_until > view.now) * MICRO,
                }
                for name, value in values.items():
                    sums[name][at] = sums[name].get(at, 0) + value / MICRO
        used = [
            ({"resource": resource, "unit": unit}, amount / MICRO)
            for (resource, unit), amount in node.metrics.resource_usage.items()
        ]
        about = "Amount of a resource that runs have used"
        return [
            *_family("resource_usage_total", "counter", about, used),
            *await self._used_today(),
            *(
                line
                for name, about in _RESOURCES.items()
                for line in _family(
                    f"resource_{name}",
                    "gauge",
                    about,
                    [({"resource": r, "unit": u}, value) for (r, u), value in sums[name].items()],
                )
            ),
        ]

    async def _used_today(self) -> Iterator[str]:
        """Return today's use by the agents that used most, and by all others together."""
        node = self._node
        found = await node.views.read(
            node.views.resources.usage_of_agents, node.policy, node.clock.now(), AGENTS_MAX
        )
        values = [
            (
                {"resource": one.resource, "unit": one.unit, "agent": one.agent or OTHERS},
                one.used / MICRO,
            )
            for one in found
        ]
        about = "Amount used since midnight UTC by the agents that used most"
        return _family("resource_agent_used_today", "gauge", about, values)

    def _done(self) -> Iterator[str]:
        metrics = self._node.metrics
        lanes = {**dict.fromkeys(self._node.policy.lanes, LaneMetrics()), **metrics.lanes}
        for name, (field, about) in _COUNTERS.items():
            values = [({"lane": lane}, getattr(one, field)) for lane, one in lanes.items()]
            yield from _family(f"{name}_total", "counter", about, values)
        for name, (field, about) in _BY_OUTCOME.items():
            values = [
                ({"lane": lane, "outcome": outcome}, count)
                for lane, one in lanes.items()
                for outcome, count in getattr(one, field).items()
            ]
            yield from _family(f"{name}_total", "counter", about, values)
        webhooks = [({"outcome": outcome}, count) for outcome, count in metrics.webhooks.items()]
        yield from _family(
            "webhooks_total", "counter", "Webhook delivery attempts by outcome", webhooks
        )
        yield from _histograms(
            "wait_seconds",
            "Time from ready to leased",
            [({"lane": lane}, one.waits) for lane, one in lanes.items()],
        )
        yield from _histograms(
            "run_seconds",
            "Time from the start of an attempt to the end of its lease",
            [({"lane": lane}, one.runs) for lane, one in lanes.items()],
        )

    def _node_itself(self, fronts: Sequence[Measures]) -> Iterator[str]:
        node, metrics = self._node, self._node.metrics
        sizes = [(_NONE, metrics.batch_sizes)]
        yield from _histograms("commit_batch_size", "Requests per commit", sizes, unit=1)
        about = "Duration of a transaction until it is durable"
        yield from _histograms("commit_seconds", about, [(_NONE, metrics.commits)])
        about = "Time for which a transaction held the write lock"
        yield from _histograms("lock_seconds", about, [(_NONE, metrics.locks)])
        about = "Round trips of a transaction to PostgreSQL; 0 on SQLite"
        trips = [(_NONE, metrics.round_trips)]
        yield from _histograms("commit_round_trips", about, trips, unit=1)
        about = "Delay of the event loop, measured once a second"
        yield from _histograms("event_loop_lag_seconds", about, [(_NONE, metrics.loop_lags)])
        about = "Detected changes of the system clock"
        yield from _family("clock_steps_total", "counter", about, [(_NONE, metrics.clock_steps)])
        yield from _gauge("writer_backlog", "Requests waiting for a commit", node.writer.backlog)
        streams = node.stream_clients + sum(one.stream_clients for one in fronts)
        yield from _gauge("stream_clients", "Clients that follow events or output", streams)
        waits = node.lease_waits + sum(one.lease_waits for one in fronts)
        yield from _gauge("lease_waits", "External workers waiting for tasks", waits)
        yield from _gauge("processes", "Processes of this server", 1 + len(fronts))
        built = {
            "version": __version__,
            "python": platform.python_version(),
            "store": node.store.dialect,
        }
        yield from _family(
            "build_info",
            "gauge",
            "Versions of Fairlane and Python, and the kind of store",
            [(built, 1)],
        )
        yield from _process(fronts)


# Counters per lane; `expired` tasks also count as finished with the outcome failed. No name without
# `_total` may be that of a gauge: some readers treat the two as one.
_COUNTERS: Final = {
    "tasks_submitted": ("submitted", "Admitted tasks"),
    "tasks_rejected": ("rejected", "Tasks refused because their queue was full"),
    "tasks_expired": ("expired", "Tasks whose deadline passed before they started"),
    "tasks_retried": ("retried", "Failed attempts that were followed by another"),
    "parkings": ("parked", "Times a task was parked"),
    "leases_reclaimed": (
        "reclaimed",
        "Leases reclaimed because they expired or their node died",
    ),
}
_BY_OUTCOME: Final = {
    "tasks_finished": ("finished", "Finished tasks by outcome"),
    "manual_retries": ("manual_retries", "Finished tasks that were retried, by former outcome"),
    "tasks_revived": ("manual_retries", "Old name of fairlane_manual_retries_total"),
}
_RESOURCES: Final = {
    "limit": "Limit of a resource, summed over its accounts",
    "used": "Amount of a resource in use",
    "reserved": "Amount of a resource that runs have reserved",
    "waiting": "Tasks waiting for a resource",
    "closed": "Closed accounts of a resource",
}
_STANDING: Final = {
    "waiting": ("queued", "All queued tasks, ready or not"),
    "ready": ("ready", "Tasks waiting only for a slot"),
    "running": ("inflight", "Assigned or running tasks"),
    "parked": ("parked", "Parked tasks"),
}


def _standing(tallies: Mapping[str, Tally]) -> Iterator[str]:
    for name, (field, about) in _STANDING.items():
        values = {lane: getattr(tally, field) for lane, tally in tallies.items()}
        yield from _gauges(f"tasks_{name}", about, values)
    about = "Open leases, including cancelled runs that have not stopped yet"
    yield from _gauges("slots_in_use", about, {lane: one.slots for lane, one in tallies.items()})


def _process(fronts: Sequence[Measures]) -> Iterator[str]:
    """Yield the figures of the operating system: sums over all processes, but one start time."""
    for name, (kind, about, value) in process.measures().items():
        more = 0.0 if name == process.START else sum(one.process.get(name, 0) for one in fronts)
        yield from _family(name, kind, about, [(_NONE, value + more)], prefix="process_")


def _gauge(name: str, about: str, value: float) -> Iterator[str]:
    return _family(name, "gauge", about, [(_NONE, value)])


def _gauges(name: str, about: str, by_lane: Mapping[str, float]) -> Iterator[str]:
    return _family(name, "gauge", about, [({"lane": lane}, one) for lane, one in by_lane.items()])


def _family(
    name: str, kind: str, about: str, values: Iterable[Value], prefix: str = "fairlane_"
) -> Iterator[str]:
    yield f"# HELP {prefix}{name} {about}."
    yield f"# TYPE {prefix}{name} {kind}"
    for labels, value in values:
        yield f"{prefix}{name}{_spelled(labels)} {_number(value)}"


def _histograms(
    name: str, about: str, all_of: Sequence[tuple[Labels, Histogram]], unit: int = 1000
) -> Iterator[str]:
    """Yield the lines of a histogram; `unit` converts a measured value to the shown unit."""
    yield f"# HELP fairlane_{name} {about}."
    yield f"# TYPE fairlane_{name} histogram"
    for labels, one in all_of:
        total, counts = one.total / unit, one.cumulated()
        bounds = [*(_number(bound / unit) for bound in one.bounds), "+Inf"]
        for bound, count in zip(bounds, counts, strict=True):
            yield f"fairlane_{name}_bucket{_spelled({**labels, 'le': bound})} {count}"
        yield f"fairlane_{name}_sum{_spelled(labels)} {_number(total)}"
        yield f"fairlane_{name}_count{_spelled(labels)} {counts[-1]}"


def _spelled(labels: Labels) -> str:
    """Return labels as text. Lane names contain nothing that needs escaping."""
    pairs = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return f"{value:.15g}"
