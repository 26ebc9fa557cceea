"""The last five minutes, hour and day, in memory: throughput, durations, and fair shares.

The store is sampled once a second. Throughput, held slots and waiting agents are the same on every
node, because they come from the store's counters; wait and run durations cover only this node. A
restart clears the history. Memory is bounded: a fixed number of buckets with a fixed number of
agents each; the agents with the smallest shares are added up as the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fairlane.core.counts import Tally
from fairlane.core.explain import Pace
from fairlane.core.fairness import fair_shares
from fairlane.core.histogram import SPANS_MS
from fairlane.core.policy import Policy
from fairlane.core.workers import KnownWorker, is_served
from fairlane.engine.telemetry.metrics import Metrics
from fairlane.store.tables.lines import Waiting

LINES_MAX: Final = 1000
AGENTS_KEPT: Final = 50
AGENTS_SHOWN: Final = 20
PACE_MS: Final = 300_000
_NOTHING: Final = (0.0, 0.0)

# The available windows: their length, and the length of each step.
WINDOWS: Final[Mapping[str, tuple[int, int]]] = {
    "5m": (300_000, 5_000),
    "1h": (3_600_000, 30_000),
    "24h": (86_400_000, 300_000),
}


class Sample(NamedTuple):
    """The state of the store at one time. `held` are open leases by lane and agent."""

    at: int
    lanes: Mapping[str, Tally]
    held: Sequence[tuple[str, str, int]]
    waiting: Sequence[Waiting]

    def without_unserved(self, known: Sequence[KnownWorker]) -> Sample:
        """Return the sample without the demand that no worker can meet: it takes no slot from
        other agents.
        """
        waiting = [
            one if is_served(known, one.capability, one.lane, one.agent) else one._replace(ready=0)
            for one in self.waiting
        ]
        return self._replace(waiting=waiting)


class HistoryBucket:
    """One step. `agents` maps each agent to the slots it held and its fair slots; `rest` is the sum
    of agents that are not listed, `total` the sum of all.

    `span_ms` is the time covered: less than the step while it is in progress, more if samples were
    missing.
    """

    __slots__ = (
        *("agents", "at", "failed", "finished", "rest", "runs", "span_ms", "submitted", "total"),
        "waits",
    )

    def __init__(self, at: int) -> None:
        self.at = at
        self.span_ms = 0
        self.submitted = self.finished = self.failed = 0
        self.waits = [0] * (len(SPANS_MS) + 1)
        self.runs = [0] * (len(SPANS_MS) + 1)
        self.agents: dict[str, tuple[float, float]] = {}
        self.rest = self.total = _NOTHING

    def add(self, step: SampleDelta) -> None:
        self.span_ms += step.span_ms
        self.submitted += step.submitted
        self.finished += step.finished
        self.failed += step.failed
        self.waits = _sums(self.waits, step.waits)
        self.runs = _sums(self.runs, step.runs)
        for agent, pair in step.agents.items():
            self.agents[agent] = _both(self.agents.get(agent, _NOTHING), pair)
            self.total = _both(self.total, pair)
        if len(self.agents) > 2 * AGENTS_KEPT:
            self._add_up_the_smallest()

    def _add_up_the_smallest(self) -> None:
        ranked = sorted(self.agents.items(), key=lambda one: (-max(one[1]), one[0]))
        for _, pair in ranked[AGENTS_KEPT:]:
            self.rest = _both(self.rest, pair)
        self.agents = dict(ranked[:AGENTS_KEPT])


class SampleDelta(NamedTuple):
    """The changes between two samples."""

    span_ms: int
    submitted: int
    finished: int
    failed: int
    waits: Sequence[int]
    runs: Sequence[int]
    agents: Mapping[str, tuple[float, float]]


class Agent(NamedTuple):
    """An agent's share of all slots in use, and its fair share.

    `steps` are the same two for each step; None where no slot was in use.
    """

    agent: str | None
    share: float
    fair_share: float
    steps: Sequence[tuple[float, float] | None]


class HistoryWindow(NamedTuple):
    """The data of a window. `agents` have the largest shares; None stands for all others."""

    step_ms: int
    buckets: Sequence[HistoryBucket]
    agents: Sequence[Agent]


class History:
    """Fed by one task and read by others of the same event loop."""

    def __init__(self) -> None:
        self.since: int | None = None
        self._last: Sample | None = None
        self._seen = ([0] * (len(SPANS_MS) + 1), [0] * (len(SPANS_MS) + 1))
        self._rings = {
            window: deque[HistoryBucket](maxlen=span_ms // step_ms + 1)
            for window, (span_ms, step_ms) in WINDOWS.items()
        }
        self._paces: dict[int | str, _Track] = {}

    def add(self, sample: Sample, policy: Policy, metrics: Metrics) -> None:
        last, self._last = self._last, sample
        seen = _seen(metrics)
        before, self._seen = self._seen, seen
        self._follow_paces(sample)
        if last is None or sample.at < last.at:  # the first one, or the clock was set back
            self.since = self.since or sample.at
            return
        step = SampleDelta(
            sample.at - last.at,
            *_done(last.lanes, sample.lanes),
            waits=_differences(before[0], seen[0]),
            runs=_differences(before[1], seen[1]),
            agents=_shares(sample, policy),
        )
        for window, (_, step_ms) in WINDOWS.items():
            _bucket(self._rings[window], sample.at - sample.at % step_ms).add(step)

    def span(self, window: str, now: int) -> HistoryWindow:
        span_ms, step_ms = WINDOWS[window]
        buckets = [one for one in self._rings[window] if now - span_ms - step_ms < one.at <= now]
        return HistoryWindow(step_ms, buckets, _ranking(buckets))

    def pace(self, key: int | str) -> Pace | None:
        """Return how many tasks of a line (by number) or a lane (by name) started recently while
        others waited there; None if there were times when no task waited.
        """
        track = self._paces.get(key)
        return None if track is None else track.pace()

    def _follow_paces(self, sample: Sample) -> None:
        counted: dict[int | str, int] = {one.line: one.dispatched for one in sample.waiting}
        counted |= {
            name: tally.dispatched for name, tally in sample.lanes.items() if tally.ready > 0
        }
        self._paces = {
            key: (self._paces.get(key) or _Track(sample.at, count)).moved(sample.at, count)
            for key, count in counted.items()
        }


class _Track:
    """The starts of a line since tasks began to wait there, within a bounded time."""

    __slots__ = ("_began", "_last", "_middle")

    def __init__(self, at: int, count: int) -> None:
        self._began = self._middle = self._last = (at, count)

    def moved(self, at: int, count: int) -> _Track:
        # The clock was set back, or another line has that number.
        if at < self._last[0] or count < self._last[1]:
            return _Track(at, count)
        if at - self._middle[0] >= PACE_MS // 2:
            self._began, self._middle = self._middle, self._last
        self._last = (at, count)
        return self

    def pace(self) -> Pace:
        return Pace(self._last[1] - self._began[1], self._last[0] - self._began[0])


def _bucket(ring: deque[HistoryBucket], at: int) -> HistoryBucket:
    if not ring or ring[-1].at != at:
        ring.append(HistoryBucket(at))
    return ring[-1]


def _done(before: Mapping[str, Tally], after: Mapping[str, Tally]) -> tuple[int, int, int]:
    """Return the tasks submitted, finished and, of these, failed. A manual retry takes an end back,
    which may make a difference negative.
    """
    submitted = finished = failed = 0
    for name, new in after.items():
        old = before.get(name, Tally())
        submitted += new.submitted - old.submitted
        finished += _end_count(new) - _end_count(old)
        failed += new.failed - old.failed
    return max(0, submitted), max(0, finished), max(0, failed)


def _end_count(tally: Tally) -> int:
    return tally.completed + tally.failed + tally.cancelled


def _seen(metrics: Metrics) -> tuple[list[int], list[int]]:
    """Return the wait and run histograms of all lanes together."""
    none = [0] * (len(SPANS_MS) + 1)
    lanes = metrics.lanes.values()
    return (
        _sums(none, *(lane.waits.counts for lane in lanes)),
        _sums(none, *(lane.runs.counts for lane in lanes)),
    )


def _shares(sample: Sample, policy: Policy) -> dict[str, tuple[float, float]]:
    """Return for each agent the slots that it held and its fair slots, summed over the lanes."""
    lanes: dict[str, dict[str, list[float]]] = {}
    for lane, agent, held in sample.held:
        lanes.setdefault(lane, {})[agent] = [held, held]
    for one in sample.waiting:
        if one.lane in lanes:  # otherwise no lease is held there
            wanted = lanes[one.lane].setdefault(one.agent, [0, 0])
            wanted[1] += one.ready
    found: dict[str, tuple[float, float]] = {}
    for lane, agents in lanes.items():
        slots = sum(held for held, _ in agents.values())
        wants = {
            agent: (policy.weight(agent), _most(policy, lane, agent, wanted))
            for agent, (_, wanted) in agents.items()
        }
        for agent, fair in fair_shares(slots, wants).items():
            found[agent] = _both(found.get(agent, _NOTHING), (agents[agent][0], fair))
    return found


def _most(policy: Policy, lane: str, agent: str, wanted: float) -> float:
    ceiling = policy.agent_ceiling(lane, agent) if lane in policy.lanes else None
    return wanted if ceiling is None else min(wanted, ceiling)


def _ranking(buckets: Sequence[HistoryBucket]) -> list[Agent]:
    agents: dict[str, tuple[float, float]] = {}
    rest = _NOTHING
    for bucket in buckets:
        rest = _both(rest, bucket.rest)
        for agent, (held, fair) in bucket.agents.items():
            had, due = agents.get(agent, _NOTHING)
            agents[agent] = had + held, due + fair
    total = sum(bucket.total[0] for bucket in buckets)
    if not total:
        return []
    ranked = sorted(agents.items(), key=lambda one: (-max(one[1]), one[0]))
    for _, pair in ranked[AGENTS_SHOWN:]:
        rest = _both(rest, pair)
    shown: list[tuple[str | None, tuple[float, float]]] = [*ranked[:AGENTS_SHOWN]]
    shown += [(None, rest)] if any(rest) else []
    steps = [_parts(bucket, [agent for agent, _ in shown]) for bucket in buckets]
    return [
        Agent(agent, held / total, fair / total, [step[place] if step else None for step in steps])
        for place, (agent, (held, fair)) in enumerate(shown)
    ]


def _parts(bucket: HistoryBucket, shown: Sequence[str | None]) -> list[tuple[float, float]] | None:
    """Return the shares in one step of each listed agent, or of all others together."""
    held, fair = bucket.total
    if not held:
        return None
    agents = bucket.agents
    found = [agents.get(agent, _NOTHING) for agent in shown if agent is not None]
    if len(found) < len(shown):
        had, due = zip(*found, strict=True)
        found.append((held - sum(had), fair - sum(due)))
    return [(had / held, due / held) for had, due in found]


def _both(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _sums(first: Sequence[int], *more: Sequence[int]) -> list[int]:
    return [sum(column) for column in zip(first, *more, strict=True)]


def _differences(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [new - old for old, new in zip(before, after, strict=True)]
