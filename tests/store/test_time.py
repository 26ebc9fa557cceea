"""Ticks: deadlines, delays and retention, to the millisecond and in bounded steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.clock import SystemClock
from fairlane.core.errors import LeaseLost
from fairlane.core.leases import QUEUED_TOO_LONG, RAN_TOO_LONG
from fairlane.engine.commands import ClaimDeliveries, IdempotencyKey, SettleDelivery, Start, Submit
from fairlane.engine.engine import SHARED_LOOK_MS, Engine
from fairlane.engine.telemetry.metrics import Metrics
from fairlane.engine.verbs import ticks
from tests.store.scheduler import TTL_MS, Scheduler, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Store

HOUR_MS = 3_600_000


def tick_until_quiet(scheduler: Scheduler) -> int:
    """Let time do all that is due now, as the writer does; how many steps it took."""
    for steps in range(1, 50):
        scheduler.apply()
        if scheduler.engine.due_at is None or scheduler.engine.due_at > scheduler.clock.now():
            return steps
    raise AssertionError("time is never done")


# -------------------------------------------------------------------- deadlines


def test_a_queued_task_fails_at_its_deadline_and_not_before(scheduler: Scheduler) -> None:
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 100)
    scheduler.pass_time(99)
    assert scheduler.states("first") == ["queued"]
    outcome = scheduler.pass_time(1)
    found = scheduler.view("first")
    assert (found.state, found.error) == ("failed", QUEUED_TOO_LONG)
    assert found.task.completed_at == scheduler.clock.now()
    assert [task.id for task in outcome.ended_tasks] == ["first"]
    assert (scheduler.tally().expired, scheduler.tally().failed) == (1, 1)


def test_an_overdue_task_is_not_leased_in_the_batch_that_could(scheduler: Scheduler) -> None:
    scheduler.submit("late", deadline_at=scheduler.clock.now() + 100)
    scheduler.submit("good")
    scheduler.clock.advance(100)
    assert scheduler.names(5) == ["good"]


def test_a_node_that_does_not_know_of_a_deadline_still_keeps_it(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    one = new_scheduler("one")
    other = new_scheduler("other", one.clock)
    other.apply()
    one.submit("late", deadline_at=one.clock.now() + 100)
    one.clock.advance(100)
    assert other.lease() == []
    other.apply()
    assert other.view("late").error == QUEUED_TOO_LONG


def test_overdue_tasks_are_never_leased_however_many_there_are(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1000)
    late = [f"late{number}" for number in range(ticks.STEP + 20)]
    scheduler.submit(*late, deadline_at=scheduler.clock.now() + 100)
    scheduler.clock.advance(100)
    assert scheduler.lease(30) == []
    tick_until_quiet(scheduler)
    assert scheduler.tally().expired == scheduler.tally().failed == len(late)


def test_a_running_task_fails_at_its_deadline_and_keeps_its_slot(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 100)
    scheduler.submit("second")
    task = scheduler.start(scheduler.lease_one())
    outcome = scheduler.pass_time(100)
    assert outcome.runs_to_stop == [(task.seq, task.fencing_token)]
    found = scheduler.view("first")
    assert (found.state, found.error, found.task.leased) == ("failed", RAN_TOO_LONG, True)
    assert scheduler.tally().expired == 0
    assert scheduler.lease() == []
    scheduler.complete(task, '"late"')
    assert (scheduler.view("first").state, scheduler.view("first").result) == ("failed", None)
    assert scheduler.names() == ["second"]


def test_a_task_that_is_started_after_its_deadline_has_expired_while_queued(
    scheduler: Scheduler,
) -> None:
    """The worker's `start` may come before the tick that would have ended the task."""
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 100)
    scheduler.submit("second")
    task = scheduler.lease_one(worker="w")
    scheduler.clock.advance(100)
    outcome = scheduler.apply(Start(task.seq, task.fencing_token))
    lost = outcome.answers[0]
    assert isinstance(lost, LeaseLost)
    assert lost.details == {"taskId": "first", "state": "failed"}
    found = scheduler.view("first")
    assert (found.state, found.error, found.task.started_at) == ("failed", QUEUED_TOO_LONG, None)
    assert found.task.completed_at == scheduler.clock.now()
    assert (scheduler.tally().expired, scheduler.tally().failed) == (1, 1)
    assert scheduler.types("first") == ["created", "failed"]
    assert scheduler.names() == ["second"]  # the worker has not begun: its slot is free
    metrics = Metrics()
    metrics.committed(outcome, 0.0)
    assert metrics.lanes["main"].expired == 1


def test_a_task_that_was_started_before_its_deadline_ran_too_long(scheduler: Scheduler) -> None:
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 100)
    task = scheduler.start(scheduler.lease_one())
    scheduler.clock.advance(100)
    assert scheduler.task_from(Start(task.seq, task.fencing_token)).state == "running"
    found = scheduler.view("first")
    assert (found.error, found.task.started_at) == (RAN_TOO_LONG, task.started_at)
    assert scheduler.tally().expired == 0


def test_a_deadline_and_a_lease_that_end_together_free_the_slot(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", deadline_at=scheduler.clock.now() + TTL_MS)
    scheduler.submit("second")
    scheduler.start(scheduler.lease_one())
    scheduler.clock.advance(TTL_MS)
    assert scheduler.names() == ["second"]
    assert scheduler.states("first") == ["failed"]


def test_a_retry_that_would_come_after_the_deadline_never_comes(scheduler: Scheduler) -> None:
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 500)
    scheduler.fail(scheduler.lease_one(), "no luck")
    scheduler.pass_time(500)
    assert scheduler.view("first").error == QUEUED_TOO_LONG
    scheduler.pass_time(500)
    assert scheduler.lease() == []


@pytest.mark.slow
def test_more_than_one_step_of_work_is_done_in_several(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=5000)
    count = 2 * ticks.STEP + 1
    scheduler.submit(*(f"leased{number}" for number in range(count)))
    assert len(scheduler.lease(count)) == count
    scheduler.pass_time(TTL_MS)
    assert scheduler.tally().slots == count - ticks.STEP
    assert tick_until_quiet(scheduler) == 2
    assert (scheduler.tally().slots, scheduler.tally().queued) == (0, count)


# -------------------------------------------------------------------- when to look again


def looks_at(scheduler: Scheduler, moment: int) -> int:
    """Where nodes share a store, each looks for what another may have left every half second."""
    soon = scheduler.clock.now() + SHARED_LOOK_MS
    return min(moment, soon) if scheduler.engine.store.shared else moment


def test_the_next_moment_is_the_earliest_of_all_that_wait(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.submit("late", deadline_at=now + 9000)
    assert scheduler.engine.due_at == looks_at(scheduler, now + 9000)
    task = scheduler.lease_one(ttl_ms=8000)
    assert scheduler.engine.due_at == looks_at(scheduler, now + 8000)
    scheduler.fail(task)
    assert scheduler.engine.due_at == looks_at(scheduler, now + 1000)
    scheduler.clock.advance(500)
    scheduler.submit("other", kind="action", deadline_at=now + 600)
    assert scheduler.engine.due_at == looks_at(scheduler, now + 600)


def test_a_new_node_finds_what_is_due_by_itself(new_scheduler: Callable[..., Scheduler]) -> None:
    before = new_scheduler()
    before.submit("first", deadline_at=before.clock.now() + 100)
    after = new_scheduler("next", before.clock)
    after.pass_time(100)
    assert after.states("first") == ["failed"]


def test_a_quiet_tick_writes_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    before = contents(scheduler.store)
    scheduler.pass_time(HOUR_MS)
    assert contents(scheduler.store) == before


def test_an_owed_delivery_does_not_keep_time_busy(scheduler: Scheduler) -> None:
    """Whoever sends webhooks may be slow; the writer must not spin until they are sent."""
    scheduler.submit("first", callback_url="http://x/")
    scheduler.cancel("first")
    scheduler.clock.advance(10_000)
    assert tick_until_quiet(scheduler) <= 2


# -------------------------------------------------------------------- retention


def ended(scheduler: Scheduler, name: str, **fields: object) -> None:
    scheduler.submit(name, **fields)  # type: ignore[arg-type]  # passed through
    scheduler.complete(scheduler.lease_one(), '"x"')


def test_terminal_tasks_are_forgotten_after_the_retention(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 300})
    key = IdempotencyKey("a", "k", "d")
    scheduler.try_submit("old", key=key)
    scheduler.complete(scheduler.lease_one(), '"x"')
    scheduler.clock.advance(10_000)
    ended(scheduler, "young")
    scheduler.pass_time(289_999)
    assert scheduler.find("old")
    scheduler.pass_time(10_000)
    assert scheduler.find("old") is None
    assert scheduler.view("young").result == '"x"'
    left = contents(scheduler.store)
    assert [len(left[table]) for table in ("task", "request", "result")] == [1, 1, 1]
    assert left["idempotency"] == []
    assert scheduler.tally().completed == 2


def test_what_has_not_ended_is_kept_for_ever(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 1}, kinds={"handler": {"maxAttempts": 1}})
    scheduler.submit("parked")
    scheduler.fail(scheduler.lease_one())
    scheduler.submit("stopped")
    stopped = scheduler.lease_one(ttl_ms=100 * HOUR_MS)
    scheduler.cancel("stopped")
    scheduler.submit("queued")
    scheduler.pass_time(50 * HOUR_MS)
    assert scheduler.states("parked", "stopped", "queued") == ["parked", "cancelled", "queued"]
    scheduler.complete(stopped)
    scheduler.pass_time(HOUR_MS)
    assert scheduler.find("stopped") is None


def test_a_task_is_kept_while_its_webhook_is_owed(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 60})
    ended(scheduler, "first", callback_url="http://x/")
    scheduler.pass_time(HOUR_MS)
    assert scheduler.find("first")
    (owed,) = scheduler.ask(ClaimDeliveries(10))
    scheduler.ask(SettleDelivery(owed.id, delivered=True))
    scheduler.pass_time(HOUR_MS)
    assert scheduler.find("first") is None
    assert contents(scheduler.store)["delivery"] == []


def test_refused_submissions_are_forgotten_sooner(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("first")
    scheduler.refused(Submit([submission("refused")]))
    scheduler.pass_time(HOUR_MS - 1)
    assert scheduler.find("refused")
    scheduler.pass_time(20_000)
    assert scheduler.find("refused") is None
    assert scheduler.tally().rejected == 1


@pytest.mark.slow
def test_a_long_history_is_pruned_in_steps(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 1})
    count = 2 * ticks.STEP + 1
    names = [f"t{number}" for number in range(count)]
    scheduler.submit(*names, deadline_at=scheduler.clock.now())
    tick_until_quiet(scheduler)
    scheduler.pass_time(20_000)
    assert len(contents(scheduler.store)["task"]) == count - ticks.STEP
    tick_until_quiet(scheduler)
    assert contents(scheduler.store)["task"] == []


# -------------------------------------------------------------------- whose time it is


class SkewedClock(SystemClock):
    def now(self) -> int:
        return super().now() + 24 * HOUR_MS


def test_the_time_that_a_node_tells_is_the_one_that_judges(postgres_store: Store) -> None:
    clock = SkewedClock()
    engine = Engine(postgres_store, clock, name="node_1")
    assert abs(engine.moment() - clock.now()) < HOUR_MS  # nothing has been judged yet
    judged = engine.apply([Submit([submission("first")])]).now
    assert judged <= engine.moment() < clock.now() - 23 * HOUR_MS
    engine.close()


def test_it_goes_on_between_transactions(scheduler: Scheduler) -> None:
    assert scheduler.engine.moment() == scheduler.clock.now()
    judged = scheduler.apply(Submit([submission("first")])).now
    scheduler.clock.advance(250)
    assert scheduler.engine.moment() == judged + 250
