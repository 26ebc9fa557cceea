"""The clock is set: no time has passed, so every span keeps its remaining time.

The clock of these tests judges on both databases; `step` moves the wall clock and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.leases import QUEUED_TOO_LONG
from fairlane.engine.commands import ClaimDeliveries, CreateEndpoint, RotateEndpoint, SettleDelivery
from fairlane.engine.verbs import clock_steps
from fairlane.schema.wire import moment
from tests.store.chat import Chat
from tests.store.scheduler import TTL_MS, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS = 3_600_000
BOTH_WAYS = pytest.mark.parametrize("by", [HOUR_MS, -HOUR_MS, clock_steps.STEP_MS, -400 * HOUR_MS])


def step(scheduler: Scheduler, by: int) -> int:
    """Set the clock and let the engine notice; what it says the step was."""
    scheduler.clock.step(by)
    return scheduler.apply().stepped_ms


# -------------------------------------------------------------------- leases


@BOTH_WAYS
def test_a_step_neither_ends_nor_prolongs_a_lease(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("first")
    task = scheduler.start(scheduler.lease_one())
    scheduler.clock.advance(TTL_MS - 2000)
    assert step(scheduler, by) == by
    assert scheduler.states("first") == ["running"]
    scheduler.pass_time(1999)
    assert scheduler.states("first") == ["running"]
    assert scheduler.renew(task).lease_expires_at == scheduler.clock.now() + TTL_MS
    scheduler.pass_time(TTL_MS - 1)
    assert scheduler.states("first") == ["running"]
    scheduler.pass_time(1)
    assert scheduler.states("first") == ["queued"]


def test_a_report_that_comes_with_the_step_is_taken(scheduler: Scheduler) -> None:
    """In the very batch that notices it, nothing is judged by the clock before."""
    scheduler.submit("first", kind="action")
    task = scheduler.start(scheduler.lease_one())
    scheduler.clock.step(HOUR_MS)
    assert scheduler.complete(task, '"kept"').state == "done"
    assert scheduler.view("first").task.attempts == 1


def test_the_lease_of_a_cancelled_run_lasts_as_long_as_before(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", "second")
    task = scheduler.start(scheduler.lease_one())
    scheduler.cancel("first")
    step(scheduler, HOUR_MS)
    assert scheduler.names() == []
    scheduler.release(task)
    assert scheduler.names() == ["second"]


# -------------------------------------------------------------------- waits


@BOTH_WAYS
def test_a_retry_waits_as_long_as_it_would_have(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("first")
    scheduler.fail(scheduler.lease_one(), retry_after_ms=9000)
    scheduler.clock.advance(4000)
    step(scheduler, by)
    scheduler.pass_time(4999)
    assert scheduler.names() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["first"]


@BOTH_WAYS
def test_a_delay_is_a_span(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("later", delay_ms=5000)
    step(scheduler, by)
    scheduler.pass_time(4999)
    assert scheduler.names() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["later"]


@pytest.mark.parametrize(("by", "left"), [(3000, 2000), (-3000, 8000)])
def test_a_moment_that_a_caller_named_stays(scheduler: Scheduler, by: int, left: int) -> None:
    scheduler.submit("later", run_at=scheduler.clock.now() + 5000)
    step(scheduler, by)
    scheduler.pass_time(left - 1)
    assert scheduler.names() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["later"]


@BOTH_WAYS
def test_a_delay_goes_on_behind_a_parent(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", delay_ms=5000, depends_on=("parent",))
    step(scheduler, by)
    scheduler.complete_next()
    scheduler.pass_time(4999)
    assert scheduler.names() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["child"]


@BOTH_WAYS
def test_a_window_stays_open_as_long_as_it_would_have(scheduler: Scheduler, by: int) -> None:
    chat = Chat(scheduler)
    chat.tune(debounce_ms=1000, debounce_max_ms=2500)
    chat.say("m1")
    scheduler.clock.advance(900)
    step(scheduler, by)
    chat.say("m2")
    scheduler.pass_time(900)
    chat.say("m3")
    scheduler.pass_time(699)  # in all 2499 of the 2500 that it may grow
    assert scheduler.names() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["m1"]
    assert chat.text("m1") == "m1\nm2\nm3"


@BOTH_WAYS
def test_waiting_is_counted_without_the_step(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("first")
    scheduler.clock.advance(700)
    step(scheduler, by)
    scheduler.clock.advance(300)
    scheduler.lease_one()
    assert scheduler.tally().waited_ms == 1000


@BOTH_WAYS
def test_tasks_that_age_keep_their_order(scheduler: Scheduler, by: int) -> None:
    """A point of priority is worth 100 ms here; a step is worth nothing."""
    scheduler.set_lane(strategy="priority", agingMs=100)
    scheduler.submit("old", priority=5)
    scheduler.submit("critical", priority=-20)
    step(scheduler, by)
    scheduler.submit("new", priority=4)
    scheduler.clock.advance(200)
    scheduler.submit("newest", priority=4)
    assert scheduler.run_to_end() == ["critical", "new", "old", "newest"]


# -------------------------------------------------------------------- deadlines


@BOTH_WAYS
def test_a_deadline_by_kind_is_a_span(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("first", kind="action")
    step(scheduler, by)
    scheduler.pass_time(59_999)
    assert scheduler.states("first") == ["queued"]
    scheduler.pass_time(1)
    assert scheduler.view("first").error == QUEUED_TOO_LONG


@BOTH_WAYS
def test_a_deadline_given_as_a_span_is_one(scheduler: Scheduler, by: int) -> None:
    (task,) = scheduler.submit("first", deadline_ms=5000)
    assert task.deadline_at == scheduler.clock.now() + 5000
    step(scheduler, by)
    assert scheduler.view("first").task.deadline_at == scheduler.clock.now() + 5000


def test_a_deadline_that_a_caller_named_stays(scheduler: Scheduler) -> None:
    scheduler.submit("first", deadline_at=scheduler.clock.now() + HOUR_MS)
    step(scheduler, HOUR_MS - 1)
    assert scheduler.states("first") == ["queued"]
    scheduler.pass_time(1)
    assert scheduler.view("first").error == QUEUED_TOO_LONG


@BOTH_WAYS
@pytest.mark.parametrize("given", [{"kind": "action"}, {"deadline_at": 1_700_000_060_000}])
def test_a_task_that_begins_again_has_its_whole_time_again(
    scheduler: Scheduler, by: int, given: dict[str, Any]
) -> None:
    scheduler.submit("first", **given)
    scheduler.fail_next()
    step(scheduler, by)
    assert scheduler.retry("first").deadline_at == scheduler.clock.now() + 60_000
    step(scheduler, -by)
    assert scheduler.view("first").task.deadline_at == scheduler.clock.now() + 60_000


@BOTH_WAYS
def test_the_time_of_a_child_runs_from_the_end_of_its_parents(
    scheduler: Scheduler, by: int
) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", kind="action", depends_on=("parent",))
    scheduler.clock.advance(5000)
    step(scheduler, by)
    scheduler.complete_next()
    assert scheduler.view("child").task.deadline_at == scheduler.clock.now() + 60_000
    scheduler.cancel("child")
    again = scheduler.retry("child")
    assert again.deadline_at == scheduler.clock.now() + 65_000


# -------------------------------------------------------------------- webhooks, sessions


@BOTH_WAYS
def test_the_next_try_of_a_webhook_comes_as_planned(scheduler: Scheduler, by: int) -> None:
    scheduler.submit("first", callback_url="https://example.org/hook")
    scheduler.complete_next()
    (owed,) = scheduler.ask(ClaimDeliveries(limit=5))
    scheduler.ask(SettleDelivery(owed.id, delivered=False, error="no", retry_after_ms=9000))
    scheduler.clock.step(by)
    outcome = scheduler.apply()
    assert outcome.webhooks_due  # whoever waits for the moment looks again
    scheduler.clock.advance(8999)
    assert scheduler.ask(ClaimDeliveries(limit=5)) == []
    scheduler.clock.advance(1)
    assert [one.id for one in scheduler.ask(ClaimDeliveries(limit=5))] == [owed.id]


@BOTH_WAYS
def test_a_rotated_secret_overlaps_as_long_as_was_asked_for(scheduler: Scheduler, by: int) -> None:
    scheduler.ask(CreateEndpoint("end_1", "a", "https://example.org/hook", "whsec_b25l"))
    asked = RotateEndpoint("end_1", "whsec_dHdv", overlap_ms=60_000, agent=None)
    assert scheduler.ask(asked).previous_until == scheduler.clock.now() + 60_000
    step(scheduler, by)
    (row,) = scheduler.reader.run("endpoint_view", id="end_1")
    assert scheduler.clock.now() + 60_000 in row


def test_a_stopped_session_accepts_messages_after_the_clock_was_set_back(
    scheduler: Scheduler,
) -> None:
    chat = Chat(scheduler)
    chat.say("m1")
    chat.stop_all()
    scheduler.clock.advance(1000)
    step(scheduler, -HOUR_MS)
    now = scheduler.clock.now()
    chat.say("m2", sent_at=moment(now))
    assert chat.refused("m3", sent_at=moment(now - 1001)).code == "message_stale"


def test_a_suspend_does_not_make_messages_stale_that_came_meanwhile(scheduler: Scheduler) -> None:
    chat = Chat(scheduler)
    chat.say("m1")
    chat.stop_all()
    sent_at = moment(scheduler.clock.now() + 1000)
    step(scheduler, HOUR_MS)
    assert chat.say("m2", sent_at=sent_at).state == "queued"


# -------------------------------------------------------------------- once, and only steps


def test_a_step_is_taken_in_once_by_all_processes(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    one = new_scheduler("one")
    other = new_scheduler("other", one.clock)
    other.apply()
    one.submit("first")
    task = one.start(one.lease_one())
    one.clock.step(HOUR_MS)
    assert other.apply().stepped_ms == HOUR_MS
    assert one.apply().stepped_ms == 0
    expires_at = one.view("first").task.lease_expires_at
    assert expires_at == one.clock.now() + TTL_MS
    assert one.complete(task).state == "done"


def test_a_process_that_starts_after_the_step_takes_it_in(
    scheduler: Scheduler, new_scheduler: Callable[..., Scheduler]
) -> None:
    scheduler.submit("later", delay_ms=5000)
    scheduler.close()
    scheduler.clock.step(HOUR_MS)
    heir = new_scheduler("heir", scheduler.clock)
    assert heir.names() == []
    heir.pass_time(5000)
    assert heir.names() == ["later"]


def test_after_a_reboot_only_wall_time_is_known(
    scheduler: Scheduler,
    new_scheduler: Callable[..., Scheduler],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler.submit("later", delay_ms=5000)
    scheduler.close()
    scheduler.clock.step(HOUR_MS)
    monkeypatch.setattr(scheduler.clock, "boot", "another", raising=False)
    heir = new_scheduler("heir", scheduler.clock)
    assert heir.apply().stepped_ms == 0
    assert heir.names() == ["later"]


def test_slow_corrections_add_up_to_no_step(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.start(scheduler.lease_one())
    for number in range(20):
        scheduler.clock.advance(500)
        scheduler.clock.step(90)
        scheduler.submit(f"more{number}")
        assert scheduler.apply().stepped_ms == 0
    assert scheduler.states("first") == ["running"]
    scheduler.clock.advance(TTL_MS - 20 * 590)
    scheduler.apply()
    assert scheduler.states("first") == ["queued"]


def test_nothing_is_written_while_the_clock_goes_well(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.apply()
    outcome = scheduler.pass_time(60_000)
    assert (outcome.committed, outcome.stepped_ms) == (False, 0)
