"""Counters of this node since its start, which `/metrics` exports.

Only `committed` counts. It runs after each durable commit with the same changes that moved the
store's own counters, so the two cannot disagree. It runs in the write thread; other threads only
read. Each node on a shared store counts its own work, and the sums are the store's. Nothing is kept
per agent or per task: only lanes, which an operator defines, are labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlane.core import lifecycle
from fairlane.core.histogram import SIZES, TRIPS, Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.core.model import Change
    from fairlane.engine.commands import SettleDelivery
    from fairlane.engine.engine import Outcome

DELIVERED: Final = "delivered"
RETRIED: Final = "retried"
GIVEN_UP: Final = "given_up"
BEGUN_MAX: Final = 10_000


class LaneMetrics:
    """`manual_retries` counts ended tasks that were retried, by the state that they had."""

    __slots__ = (
        *("submitted", "rejected", "expired", "parked", "retried", "reclaimed"),
        *("finished", "manual_retries", "waits", "runs"),
    )

    def __init__(self) -> None:
        self.submitted = 0
        self.rejected = 0
        self.expired = 0
        self.parked = 0
        self.retried = 0
        self.reclaimed = 0
        self.finished = dict.fromkeys((lifecycle.DONE, lifecycle.FAILED, lifecycle.CANCELLED), 0)
        self.manual_retries = dict.fromkeys((lifecycle.FAILED, lifecycle.CANCELLED), 0)
        self.waits = Histogram()
        self.runs = Histogram()


class Metrics:
    """Durations are in milliseconds here."""

    def __init__(self) -> None:
        self.lanes: dict[str, LaneMetrics] = {}
        self.webhooks = dict.fromkeys((DELIVERED, RETRIED, GIVEN_UP), 0)
        self.batch_sizes = Histogram(SIZES)
        self.commits = Histogram()
        self.locks = Histogram()
        self.round_trips = Histogram(TRIPS)
        self.loop_lags = Histogram()
        self.clock_steps = 0
        self.resource_usage: dict[tuple[str, str], int] = {}  # by resource and unit
        # Starts of repeated attempts; bounded, because other nodes may end them.
        self._begun: dict[int, int] = {}

    def lane(self, name: str) -> LaneMetrics:
        found = self.lanes.get(name)
        if found is None:
            # A new dict, so that a concurrent reader of the old one is not disturbed.
            found = LaneMetrics()
            self.lanes = {**self.lanes, name: found}
        return found

    def committed(
        self,
        outcome: Outcome,
        seconds: float,
        *,
        held_seconds: float = 0.0,
        round_trips: int = 0,
    ) -> None:
        """Count a commit. `seconds` is how long the batch took, including its commit, of which it
        held the lock for `held_seconds`.
        """
        if not outcome.committed:
            return
        self.batch_sizes.observe(len(outcome.answers))
        self.commits.observe(seconds * 1000)
        self.locks.observe(held_seconds * 1000)
        self.round_trips.observe(round_trips)
        self.clock_steps += outcome.stepped_ms != 0
        self._count(outcome.changes, outcome.now)
        for task in outcome.reclaimed:
            self.lane(task.lane).reclaimed += 1
        if outcome.resource_usage:
            # A new dict, so that a concurrent reader of the old one is not disturbed.
            sums = dict(self.resource_usage)
            for name, used in outcome.resource_usage.items():
                sums[name] = sums.get(name, 0) + used
            self.resource_usage = sums
        for settled in outcome.settled:
            self.webhooks[_delivery_outcome(settled)] += 1

    def _count(self, changes: Sequence[Change], now: int) -> None:
        """Count one change. Hot path: each task passes here three times or more."""
        lanes = self.lanes
        for change in changes:
            verb, after = change.verb, change.after
            lane = lanes.get(after.lane)
            if lane is None:
                lane = self.lane(after.lane)
                lanes = self.lanes
            if verb == lifecycle.SUBMIT:
                lane.submitted += 1
            elif verb == lifecycle.LEASE:
                lane.waits.observe(change.waited_ms)
                if after.state == lifecycle.RUNNING and after.started_at != now:
                    self._begin_again(change, now)
            elif verb == lifecycle.START:
                if after.started_at != now:
                    self._begin_again(change, now)
            else:
                if verb in (lifecycle.COMPLETE, lifecycle.TAKE):
                    lane.finished[lifecycle.DONE] += 1
                elif verb in _RARE:
                    self._count_rare(lane, change)
                self._end_run(lane, change, now)

    def _count_rare(self, lane: LaneMetrics, change: Change) -> None:
        verb, before = change.verb, change.before
        if verb == lifecycle.REJECT:
            lane.rejected += 1
        elif verb == lifecycle.BACK_OFF:
            lane.retried += 1
        elif verb == lifecycle.PARK:
            lane.parked += 1
        elif verb == lifecycle.RETRY:
            assert before is not None
            lane.manual_retries[before.state] += 1
        else:
            lane.finished[change.after.state] += 1
            if verb == lifecycle.EXPIRE and before and before.state != lifecycle.RUNNING:
                lane.expired += 1

    def _begin_again(self, change: Change, now: int) -> None:
        """Record the start of a repeated attempt; the task's row keeps only the first start."""
        if len(self._begun) >= BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        self._begun[change.after.seq] = now

    def _end_run(self, lane: LaneMetrics, change: Change, now: int) -> None:
        """Count the end of a run when its lease ends: a cancelled run continues for a while."""
        task = change.before
        if task is None or task.lease_expires_at is None or change.after.lease_expires_at:
            return
        begun = self._begun.pop(task.seq, None) if self._begun else None
        if begun is None and task.attempts <= 1:
            begun = task.started_at
        if begun is not None:
            lane.runs.observe(max(0, now - begun))


_RARE: Final = frozenset(
    {
        lifecycle.REJECT,
        lifecycle.BACK_OFF,
        lifecycle.PARK,
        lifecycle.RETRY,
        lifecycle.CANCEL,
        lifecycle.FAIL,
        lifecycle.EXPIRE,
    }
)


def _delivery_outcome(settled: SettleDelivery) -> str:
    if settled.delivered:
        return DELIVERED
    return GIVEN_UP if settled.retry_after_ms is None else RETRIED
