"""What is counted after commits is what the store has, also of commits whose answers got lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import StoreUnavailable
from fairlane.engine.commands import Release, Submit
from fairlane.engine.telemetry.metrics import BEGUN_MAX, Metrics
from fairlane.store.base import ConnectionLost
from tests.store.faults import COMMIT, COMMITTED, CONNECT, WatchedConnection, WatchedStore
from tests.store.scheduler import Scheduler, lease_request, submission

if TYPE_CHECKING:
    from fairlane.store.base import Store


class Outage:
    """From `moment` of the next commit on, the store is away until it is lifted."""

    def __init__(self, moment: str) -> None:
        self.moment: str | None = None
        self.away = False
        self._next = moment

    def arm(self) -> None:
        self.moment = self._next

    def __call__(self, moment: str, _: WatchedConnection) -> None:
        if moment == self.moment:
            self.moment, self.away = None, True
        if self.away and moment in (CONNECT, self._next):
            raise ConnectionLost("away")


@pytest.mark.parametrize(("moment", "counted"), [(COMMIT, 1), (COMMITTED, 2)])
def test_a_commit_that_was_given_up_is_counted_if_it_was_one(
    store: Store, moment: str, counted: int
) -> None:
    outage, metrics = Outage(moment), Metrics()
    scheduler = Scheduler(WatchedStore(store, outage), ManualClock())
    scheduler.apply()
    outage.arm()
    for _ in range(2):  # the second finds nothing but the outage
        with pytest.raises(StoreUnavailable):
            scheduler.apply(Submit([submission("lost")]))
    outage.away = False
    for name in ("first", "second"):
        metrics.committed(scheduler.apply(Submit([submission(name)])), 0.0)
    assert metrics.lane("main").submitted == counted + 1 == scheduler.tally("main").submitted
    scheduler.close()


def test_nothing_written_is_no_commit(scheduler: Scheduler) -> None:
    metrics = Metrics()
    scheduler.apply()
    metrics.committed(scheduler.apply(), 0.0)
    assert sum(metrics.commits.counts) == 0
    scheduler.submit("one")
    metrics.committed(scheduler.apply(Submit([submission("two")])), 0.5)
    assert (sum(metrics.commits.counts), metrics.commits.total) == (1, 500)


def test_a_run_that_was_cancelled_lasts_until_it_has_stopped(scheduler: Scheduler) -> None:
    metrics = Metrics()
    scheduler.submit("one")
    task = scheduler.lease_one()
    scheduler.start(task)
    scheduler.clock.advance(1000)
    scheduler.cancel("one")
    scheduler.clock.advance(4000)
    metrics.committed(scheduler.apply(Release(task.seq, task.fencing_token)), 0.0)
    assert metrics.lane("main").runs.total == 5000


def test_what_is_remembered_of_further_attempts_is_bounded(scheduler: Scheduler) -> None:
    metrics = Metrics()
    metrics._begun = dict.fromkeys(range(-BEGUN_MAX, 0), 0)
    scheduler.submit("one")
    scheduler.fail(scheduler.lease_one(started=frozenset({"handler/work"})), "no luck")
    scheduler.clock.advance(60_000)
    again = lease_request(start=True)
    metrics.committed(scheduler.apply(waiting=[again]), 0.0)
    assert len(metrics._begun) == BEGUN_MAX
    assert -BEGUN_MAX not in metrics._begun
