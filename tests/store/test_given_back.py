"""Leases that are released repeatedly, and expired leases that only an operator reclaims."""

from __future__ import annotations

from fairlane.core.leases import RELEASED_TOO_OFTEN
from fairlane.core.model import NODE_PREFIX
from fairlane.engine.commands import ReclaimExpired
from tests.store.scheduler import TTL_MS, Scheduler


def give_back(scheduler: Scheduler, times: int, worker: str = "ext") -> None:
    for _ in range(times):
        scheduler.release(scheduler.lease_one(worker=worker))


def test_a_task_that_nobody_finishes_is_parked_in_the_end(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxReleases=3)
    scheduler.submit("one")
    give_back(scheduler, 3)
    assert scheduler.view("one").state == "queued"
    give_back(scheduler, 1)
    view = scheduler.view("one")
    assert (view.state, view.task.leased, view.error) == ("parked", False, RELEASED_TOO_OFTEN)
    assert scheduler.lease(1) == []


def test_after_a_reset_it_is_counted_again(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxReleases=1)
    scheduler.submit("one")
    give_back(scheduler, 2)
    assert scheduler.view("one").state == "parked"
    scheduler.reset("one")
    give_back(scheduler, 1)
    assert scheduler.view("one").state == "queued"
    give_back(scheduler, 1)
    assert scheduler.view("one").state == "parked"


def test_each_task_has_its_own_count(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxReleases=2)
    scheduler.submit("one", "two")
    for _ in range(2):
        held = [grant.task for grant in scheduler.lease(2, worker="ext")]
        for task in held:
            scheduler.release(task)
    one = scheduler.lease_one(worker="ext")
    scheduler.release(one)
    assert scheduler.states("one", "two") == ["parked", "queued"]


def test_what_our_own_nodes_could_not_begin_is_not_held_against_it(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxReleases=1)
    scheduler.submit("one")
    give_back(scheduler, 5, worker=f"{NODE_PREFIX}a")
    assert scheduler.view("one").state == "queued"


def test_without_a_limit_it_may_go_on_for_ever(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxReleases=None)
    scheduler.submit("one")
    give_back(scheduler, 110)
    assert (scheduler.view("one").state, scheduler.view("one").task.attempts) == ("queued", 0)


def test_a_lease_that_ran_out_keeps_its_slot_where_people_take_it_back(
    scheduler: Scheduler,
) -> None:
    scheduler.set_lane(maxInflight=1, autoReclaim=False)
    scheduler.submit("one", "two")
    task = scheduler.lease_one(worker="ext")
    for _ in range(3):
        outcome = scheduler.pass_time(TTL_MS * 10)
        assert outcome.reclaimed == []
    assert scheduler.lease(1, worker="ext") == []
    assert scheduler.view("one").task.leased
    assert scheduler.ask(ReclaimExpired()).ids == [task.id]
    assert scheduler.names(worker="ext") == ["two"]


def test_its_holder_may_still_renew_or_finish_it(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=2, autoReclaim=False)
    scheduler.submit("one", "two")
    one, two = (grant.task for grant in scheduler.lease(2, worker="ext"))
    scheduler.pass_time(TTL_MS * 10)
    scheduler.complete(one)
    scheduler.renew(two)
    assert scheduler.ask(ReclaimExpired()).ids == []
    assert scheduler.states("one", "two") == ["done", "assigned"]


def test_nobody_looks_again_and_again_at_a_lease_that_is_left_alone(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1, autoReclaim=False)
    scheduler.submit("one")
    scheduler.lease_one(worker="ext")
    scheduler.pass_time(TTL_MS * 10)
    due_at = scheduler.engine.due_at
    assert due_at is None or due_at > scheduler.clock.now()


def test_other_lanes_are_reclaimed_as_ever(scheduler: Scheduler) -> None:
    scheduler.set_lane("team", autoReclaim=False)
    scheduler.submit("mine")
    scheduler.submit("theirs", lane="team")
    assert len(scheduler.lease(2, worker="ext", lanes=("main", "team"))) == 2
    scheduler.pass_time(TTL_MS + 1)
    assert [scheduler.view(name).task.leased for name in ("mine", "theirs")] == [False, True]
