"""A restored backup: workers of the lost time change nothing, and tokens go on growing.

The lost time is what happened after the backup was made. In some tests the clock stands still or
goes back, so that nothing rests on it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import LeaseLost
from fairlane.engine.commands import AppendOutput, Complete, Fail, Release, Renew, Start
from tests.store.scheduler import TTL_MS, Scheduler
from tests.store.stores import back_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.core.model import Task
    from fairlane.store.base import Store

REPORTS: dict[str, Callable[[int, int], Any]] = {
    "start": Start,
    "renew": lambda seq, token: Renew(seq, token, TTL_MS, '"progress of another task"'),
    "output": lambda seq, token: AppendOutput(seq, token, 0, "of another task", trusted=False),
    "complete": lambda seq, token: Complete(seq, token, '"of another task"', begun=True),
    "fail": lambda seq, token: Fail(seq, token, "of another task", retryable=False, begun=True),
    "release": Release,
}


def reopened(new: Callable[..., Scheduler], old: Scheduler, restore: Callable[[], None]) -> Any:
    """Restore with every process stopped, and start another one."""
    old.close()
    restore()
    return new("node_2", old.clock)


def lost_lease(scheduler: Scheduler) -> Task:
    """A lease on the first task after the backup, which is forgotten with it."""
    scheduler.submit("lost")
    return scheduler.lease_one(worker="zombie")


@pytest.mark.parametrize("moved_ms", [0, 1, 60_000], ids=["at once", "soon", "later"])
@pytest.mark.parametrize("report", REPORTS)
def test_a_worker_of_the_lost_time_changes_nothing(
    new_scheduler: Callable[..., Scheduler], store: Store, report: str, moved_ms: int
) -> None:
    scheduler = new_scheduler("node_1")
    restore = back_up(store)
    zombie = lost_lease(scheduler)
    scheduler = reopened(new_scheduler, scheduler, restore)
    scheduler.clock.advance(moved_ms)
    scheduler.submit("new")
    mine = scheduler.lease_one(worker="honest")
    assert mine.seq == zombie.seq  # or this test would show nothing
    before = scheduler.view("new")
    assert isinstance(
        scheduler.refused(REPORTS[report](zombie.seq, zombie.fencing_token)), LeaseLost
    )
    assert scheduler.view("new") == before
    assert scheduler.complete(mine, '"mine"').state == "done"
    assert scheduler.view("new").result == '"mine"'


def test_a_node_that_goes_on_during_a_restore_reports_on_nothing_else(
    postgres_store: Store,
) -> None:
    scheduler = Scheduler(postgres_store, ManualClock(), "node_1")
    restore = back_up(postgres_store)
    zombie = lost_lease(scheduler)
    restore()
    scheduler.submit("new")
    mine = scheduler.lease_one(worker="honest")
    assert (mine.seq, mine.fencing_token) != (zombie.seq, zombie.fencing_token)
    lost = scheduler.refused(Complete(zombie.seq, zombie.fencing_token, '"of another task"'))
    assert isinstance(lost, LeaseLost)
    assert scheduler.complete(mine).state == "done"
    scheduler.close()


def test_a_lease_that_the_backup_holds_is_still_its_workers(
    new_scheduler: Callable[..., Scheduler], store: Store
) -> None:
    scheduler = new_scheduler("node_1")
    scheduler.submit("first")
    held = scheduler.lease_one(worker="honest")
    restore = back_up(store)
    scheduler = reopened(new_scheduler, scheduler, restore)
    assert scheduler.renew(held).lease_expires_at == scheduler.clock.now() + TTL_MS
    assert scheduler.complete(held, '"mine"').state == "done"


def test_tokens_go_on_growing_after_a_restore(
    new_scheduler: Callable[..., Scheduler], store: Store
) -> None:
    scheduler = new_scheduler("node_1")
    restore = back_up(store)
    scheduler.submit(*(f"lost {number}" for number in range(50)))
    lost = [grant.task.fencing_token for grant in scheduler.lease(50)]
    scheduler = reopened(new_scheduler, scheduler, restore)
    scheduler.clock.advance(1000)
    scheduler.submit("new")
    assert scheduler.lease_one().fencing_token > max(lost)


@pytest.mark.parametrize("back_ms", [0, 60_000, 3_600_000])
def test_a_clock_that_is_behind_makes_no_token_twice(
    new_scheduler: Callable[..., Scheduler], store: Store, back_ms: int
) -> None:
    """The clock was ahead, tokens were granted, it was set right, and a backup is restored."""
    scheduler = new_scheduler("node_1")
    scheduler.submit("ahead")
    ahead = scheduler.complete_next()
    scheduler.clock.advance(-back_ms)
    restore = back_up(store)
    zombie = lost_lease(scheduler)
    scheduler = reopened(new_scheduler, scheduler, restore)
    scheduler.submit("new")
    mine = scheduler.lease_one()
    assert mine.seq == zombie.seq
    assert mine.fencing_token != zombie.fencing_token
    assert min(mine.fencing_token, zombie.fencing_token) > ahead.fencing_token
