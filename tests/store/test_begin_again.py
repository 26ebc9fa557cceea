"""Retry and reset: a task that had left the queue is queued again, as if it had just arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.errors import Conflict, FairlaneError, NotFound, QueueFull
from fairlane.core.model import Task
from fairlane.core.webhooks import Delivery
from fairlane.engine.commands import Cancel, Complete, Reset, Retry, Submit
from tests.store.scheduler import WORK, lease_request, submission

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler

AT_ONCE = frozenset({WORK})
URL = "https://receiver.example/hook"


def body(**retry: Any) -> str:
    return msgspec.json.encode({"retryPolicy": retry}).decode()


def parked(scheduler: Scheduler, name: str = "t", **fields: Any) -> None:
    scheduler.submit(name, max_attempts=1, **fields)
    scheduler.fail(scheduler.lease_one())
    assert scheduler.states(name) == ["parked"]


# -------------------------------------------------------------------- what comes back


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retried_task_has_its_whole_budget_again(scheduler: Scheduler, state: str) -> None:
    scheduler.submit("t")
    scheduler.fail(scheduler.lease_one(started=AT_ONCE))
    scheduler.pass_time(1000)
    if state == "failed":
        scheduler.fail(scheduler.lease_one(started=AT_ONCE), retryable=False)
    else:
        scheduler.cancel("t")
    scheduler.clock.advance(500)
    task = scheduler.retry("t")
    assert (task.ready, task.attempts, task.max_attempts) == (True, 0, 3)
    assert (task.started_at, task.completed_at, task.queued_at) == (
        *(None, None),
        scheduler.clock.now(),
    )
    view = scheduler.view("t")
    assert (view.task, view.error, view.result) == (task, None, None)
    for attempt in (1, 2, 3):
        assert scheduler.lease_one().attempts == attempt
        scheduler.fail(scheduler.view("t").task)
        scheduler.pass_time(60_000)
    assert scheduler.states("t") == ["parked"]


def test_a_reset_task_has_its_whole_budget_again(scheduler: Scheduler) -> None:
    parked(scheduler)
    task = scheduler.reset("t")
    assert (task.ready, task.attempts) == (True, 0)
    assert scheduler.view("t").error is None
    assert scheduler.run_to_end() == ["t"]
    assert scheduler.tally().parked == 0


def test_counters_follow_what_has_not_ended_after_all(scheduler: Scheduler) -> None:
    scheduler.submit("failed", "cancelled")
    scheduler.fail_next()
    scheduler.cancel("cancelled")
    before = scheduler.tally()
    assert (before.failed, before.cancelled, before.queued) == (1, 1, 0)
    scheduler.retry("failed")
    scheduler.retry("cancelled")
    after = scheduler.tally()
    assert (after.failed, after.cancelled, after.queued, after.submitted) == (0, 0, 2, 2)
    assert after.balanced


def test_each_end_is_reported_to_its_receiver(scheduler: Scheduler) -> None:
    scheduler.submit("t", callback_url=URL)
    scheduler.fail_next()
    scheduler.retry("t")
    scheduler.complete_next()
    rows = scheduler.reader.run("delivery_list_of", about="t", limit=9)
    events = [Delivery(*row).event for row in rows]
    assert sorted(events) == ["task.completed", "task.failed"]


def test_an_old_lease_is_worth_nothing_in_the_next_life(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    old = scheduler.lease_one()
    scheduler.fail(old, retryable=False)
    scheduler.retry("t")
    assert scheduler.refused(Complete(old.seq, old.fencing_token)).code == "lease_lost"
    new = scheduler.lease_one()
    assert new.fencing_token > old.fencing_token
    assert scheduler.refused(Complete(old.seq, old.fencing_token)).code == "lease_lost"
    assert scheduler.complete(new).state == "done"


def test_a_revived_task_can_be_leased_in_the_same_transaction(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    scheduler.fail_next()
    outcome = scheduler.apply(Retry("t"), waiting=[lease_request()])
    assert [grant.task.id for grant in outcome.grants[0]] == ["t"]


def test_asking_twice_in_one_transaction_is_heard_once(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    scheduler.cancel("t")
    first, second = scheduler.apply(Retry("t"), Retry("t")).answers
    assert isinstance(first, Task)
    assert isinstance(second, Conflict)
    assert scheduler.types("t") == ["created", "cancelled", "requeued"]


# -------------------------------------------------------------------- time


def test_a_deadline_moves_on_by_its_span_however_often(scheduler: Scheduler) -> None:
    start = scheduler.clock.now()
    scheduler.submit("t", deadline_at=start + 5000)
    for round_ in range(1, 4):
        scheduler.pass_time(100_000)
        assert scheduler.states("t") == ["failed"]
        task = scheduler.retry("t")
        assert task.deadline_at == start + round_ * 100_000 + 5000
        assert scheduler.states("t") == ["queued"]


def test_the_deadline_of_what_was_reset_moves_on_too(scheduler: Scheduler) -> None:
    start = scheduler.clock.now()
    parked(scheduler, deadline_at=start + 5000)
    for round_ in range(1, 3):
        scheduler.clock.advance(70_000)
        assert scheduler.reset("t").deadline_at == start + round_ * 70_000 + 5000
        scheduler.fail(scheduler.lease_one())


def test_the_deadline_of_a_kind_is_no_different(scheduler: Scheduler) -> None:
    scheduler.submit("t", kind="action")
    scheduler.pass_time(60_000)
    for _ in range(2):
        assert scheduler.states("t") == ["failed"]
        assert scheduler.retry("t").deadline_at == scheduler.clock.now() + 60_000
        scheduler.pass_time(60_000)


def test_a_wait_that_was_left_is_not_taken_up_again(scheduler: Scheduler) -> None:
    scheduler.submit("late", delay_ms=60_000)
    scheduler.submit("tried")
    scheduler.fail(scheduler.lease_one())
    scheduler.cancel("late")
    scheduler.cancel("tried")
    assert scheduler.retry("late").ready
    assert scheduler.retry("tried").ready


def test_what_a_task_says_about_its_retries_holds_in_every_life(scheduler: Scheduler) -> None:
    own = body(backoffMs=50, backoffMultiplier=3)
    scheduler.submit("t", max_attempts=3, body=own)
    for _ in range(2):
        waits = []
        for _ in range(2):
            before = scheduler.clock.now()
            task = scheduler.fail(scheduler.lease_one())
            waits.append((task.eligible_at or 0) - before)
            scheduler.pass_time(60_000)
        assert waits == [50, 150]
        scheduler.fail(scheduler.lease_one())
        scheduler.reset("t")


def test_a_lost_worker_is_followed_by_the_tasks_own_wait(scheduler: Scheduler) -> None:
    scheduler.submit("t", body=body(backoffMs=7))
    scheduler.lease_one(started=AT_ONCE)
    scheduler.pass_time(15_000)
    assert scheduler.view("t").task.eligible_at == scheduler.clock.now() + 7


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("request_", "states"),
    [(Retry, ("queued", "running", "done", "parked")), (Reset, ("queued", "failed", "done"))],
)
def test_only_what_has_left_the_queue_that_way_comes_back(
    scheduler: Scheduler, request_: Any, states: tuple[str, ...]
) -> None:
    for state in states:
        name = f"{request_.__name__} {state}"
        scheduler.submit(name, agent=name, max_attempts=1)
        if state != "queued":
            held = scheduler.lease_one(started=AT_ONCE)
            if state == "done":
                scheduler.complete(held)
            elif state in {"failed", "parked"}:
                scheduler.fail(held, retryable=state == "parked")
        refused = scheduler.refused(request_(name))
        assert isinstance(refused, Conflict)
        assert refused.details == {"state": state}
        assert scheduler.states(name) == [state]
        if state == "queued":
            scheduler.cancel(name)


@pytest.mark.parametrize("request_", [Retry, Reset])
def test_what_nobody_knows_cannot_come_back(scheduler: Scheduler, request_: Any) -> None:
    assert isinstance(scheduler.refused(request_("nobody")), NotFound)


def test_a_run_that_has_not_stopped_is_not_started_twice(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    held = scheduler.lease_one(started=AT_ONCE)
    scheduler.cancel("t")
    refused = scheduler.refused(Retry("t"))
    assert isinstance(refused, Conflict)
    assert "has not stopped yet" in refused.message
    scheduler.complete(held)
    assert scheduler.retry("t").ready


def test_a_queue_that_is_full_takes_nothing_back(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=2, maxPerAgent=1)
    scheduler.submit("t")
    scheduler.cancel("t")
    scheduler.submit("other")
    refused = scheduler.refused(Retry("t"))
    assert isinstance(refused, QueueFull)
    assert refused.message == 'rejected: agent queue full for "a"'
    scheduler.submit("more", agent="b")
    refused = scheduler.refused(Retry("t"))
    assert refused.message == "rejected: global queue full"
    assert (refused.details or {})["taskId"] == "t"
    assert scheduler.states("t") == ["cancelled"]
    assert scheduler.tally().rejected == 0
    scheduler.complete_next()
    scheduler.complete_next()
    assert scheduler.retry("t").ready


def test_of_many_only_as_many_come_back_as_there_is_room_for(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b", "c")
    scheduler.apply(Cancel("a"), Cancel("b"), Cancel("c"))
    scheduler.set_lane(maxQueueSize=2)
    answers = scheduler.apply(Retry("a"), Retry("b"), Retry("c")).answers
    assert [isinstance(answer, FairlaneError) for answer in answers] == [False, False, True]


# -------------------------------------------------------------------- sessions and lines


def test_a_revived_task_of_a_session_queues_for_the_turn(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b", "c", session="s")
    scheduler.fail_next()
    held = scheduler.lease_one()
    assert held.id == "b"
    assert scheduler.retry("a").gate == "session"
    scheduler.complete(held)
    assert scheduler.run_to_end() == ["a", "c"]


def test_a_parked_task_gives_the_turn_up_and_queues_for_it_again(scheduler: Scheduler) -> None:
    parked(scheduler, "a", session="s")
    scheduler.submit("b", session="s")
    held = scheduler.lease_one()
    assert scheduler.reset("a").gate == "session"
    scheduler.complete(held)
    assert scheduler.run_to_end() == ["a"]


@pytest.mark.parametrize(
    ("before", "after"), [("fair-fifo", "priority"), ("priority", "fair-fifo")]
)
@pytest.mark.parametrize("end", ["failed", "cancelled", "parked"])
def test_after_a_change_of_strategy_a_task_comes_back_into_the_right_line(
    scheduler: Scheduler, before: str, after: str, end: str
) -> None:
    scheduler.set_lane(strategy=before)
    scheduler.submit("t", agent="ada", max_attempts=1)
    if end == "cancelled":
        scheduler.cancel("t")
    else:
        scheduler.fail(scheduler.lease_one(), retryable=end == "parked")
    scheduler.set_lane(strategy=after)
    scheduler.submit("other", agent="ada", priority=5)
    if end == "parked":
        scheduler.reset("t")
    else:
        scheduler.retry("t")
    assert scheduler.run_to_end() == ["t", "other"]


def test_a_revived_task_stands_where_its_age_puts_it(scheduler: Scheduler) -> None:
    """With aging it has waited since it was made, whatever it did in between."""
    scheduler.submit("old", priority=5)
    scheduler.cancel("old")
    scheduler.set_lane(agingMs=100)
    scheduler.pass_time(1000)
    scheduler.submit("new")
    scheduler.retry("old")
    assert scheduler.run_to_end() == ["old", "new"]


def test_a_new_agents_line_is_made_when_its_task_comes_back(scheduler: Scheduler) -> None:
    """Its line may be one that nobody else has used in the meantime."""
    scheduler.submit("t", agent="ada")
    scheduler.fail_next()
    for number in range(3):
        scheduler.ask(Submit([submission(f"other{number}", "bob")]))
    scheduler.retry("t")
    assert scheduler.names(9) == ["other0", "t", "other1", "other2"]
