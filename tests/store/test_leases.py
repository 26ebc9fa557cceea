"""Leases: start, renew, complete, fail, release, cancel, and reports that come too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, LeaseLost, NotFound
from fairlane.core.leases import WORKER_GONE
from fairlane.engine.commands import Cancel, Complete, Fail, Reclaim, Release, Renew, Start
from tests.store.scheduler import TTL_MS, WORK
from tests.store.stores import contents

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from tests.store.scheduler import Scheduler


def every_report(task: Task) -> list[Any]:
    return [
        Start(task.seq, task.fencing_token),
        Renew(task.seq, task.fencing_token, TTL_MS),
        Complete(task.seq, task.fencing_token, '"late"'),
        Fail(task.seq, task.fencing_token, "late"),
        Release(task.seq, task.fencing_token),
    ]


REPORTS = ("start", "renew", "complete", "fail", "release")
any_report = pytest.mark.parametrize("number", range(len(REPORTS)), ids=REPORTS)


def assert_all_are_lost(scheduler: Scheduler, task: Task) -> None:
    """No report on this lease is believed, and none leaves a trace."""
    before = contents(scheduler.store)
    for report in every_report(task):
        assert isinstance(scheduler.refused(report), LeaseLost), report
    after = contents(scheduler.store)
    assert before.pop("writer") != after.pop("writer")
    assert before == after


# -------------------------------------------------------------------- the good life


def test_a_lease_says_who_until_when_and_which_attempt(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.clock.advance(250)
    task = scheduler.lease_one(worker="ada")
    assert (task.state, task.worker, task.attempts) == ("assigned", "ada", 1)
    assert task.lease_expires_at == scheduler.clock.now() + TTL_MS
    assert task.started_at is None
    assert scheduler.view("first").task == task
    assert (scheduler.tally().dispatched, scheduler.tally().waited_ms) == (1, 250)


def test_fencing_tokens_only_grow_over_the_whole_store(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    tokens = []
    for _ in range(3):
        for grant in scheduler.lease(2):
            tokens.append(grant.task.fencing_token)
            scheduler.release(grant.task)
    assert tokens == sorted(set(tokens))


def test_a_started_task_runs_and_starting_again_changes_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    scheduler.clock.advance(10)
    started = scheduler.start(task)
    assert (started.state, started.started_at) == ("running", scheduler.clock.now())
    scheduler.clock.advance(10)
    assert scheduler.start(task) == started


def test_a_worker_may_say_that_it_begins_at_once(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(started=frozenset({WORK}))
    assert (task.state, task.started_at) == ("running", scheduler.clock.now())


@pytest.mark.parametrize("begin", [True, False], ids=["running", "assigned"])
def test_a_completed_task_is_done_with_its_result(scheduler: Scheduler, *, begin: bool) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    if begin:
        scheduler.start(task)
    scheduler.clock.advance(500)
    done = scheduler.complete(task, '{"answer":42}')
    assert (done.state, done.completed_at) == ("done", scheduler.clock.now())
    assert scheduler.view("first").result == '{"answer":42}'
    assert scheduler.view("first").error is None
    assert not scheduler.view("first").task.leased


def test_completing_twice_is_answered_alike_and_counted_once(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    first = scheduler.complete(task, '{"a":1,"b":2}')
    scheduler.clock.advance(5)
    assert scheduler.complete(task, '{"b":2,"a":1}') == first
    assert scheduler.complete(task) == first  # it brings nothing that could be dropped
    one, other = scheduler.apply(
        *[Complete(task.seq, task.fencing_token, '{"a":1,"b":2}')] * 2
    ).answers
    assert one == other == first
    assert scheduler.view("first").result == '{"a":1,"b":2}'
    assert scheduler.tally().completed == 1


@pytest.mark.parametrize(("kept", "other"), [('"one"', '"two"'), (None, '"two"')])
@pytest.mark.parametrize("attempts", [1, 2])
def test_completing_again_with_another_result_is_refused(
    scheduler: Scheduler, kept: str | None, other: str, attempts: int
) -> None:
    scheduler.submit("first")
    for _ in range(attempts - 1):
        scheduler.fail(scheduler.lease_one())
        scheduler.clock.advance(60_000)
    task = scheduler.lease_one()
    first = scheduler.complete(task, kept)
    assert isinstance(scheduler.refused(Complete(task.seq, task.fencing_token, other)), LeaseLost)
    assert scheduler.complete(task, kept) == first
    assert (scheduler.view("first").state, scheduler.view("first").result) == ("done", kept)
    assert scheduler.tally().completed == 1


def test_of_two_results_in_one_batch_the_first_stays(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    one, two, again = scheduler.apply(
        Complete(task.seq, task.fencing_token, '"one"'),
        Complete(task.seq, task.fencing_token, '"two"'),
        Complete(task.seq, task.fencing_token, '"one"'),
    ).answers
    assert one == again
    assert isinstance(two, LeaseLost)
    assert scheduler.view("first").result == '"one"'


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel"])
def test_no_other_report_is_accepted_under_a_lease_that_is_over(
    scheduler: Scheduler, end: str
) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    if end == "cancel":
        scheduler.cancel("first")
        assert scheduler.complete(task, '"too late"').state == "cancelled"
    else:
        getattr(scheduler, end)(task)
    before = contents(scheduler.store)["task"], contents(scheduler.store)["result"]
    for report in every_report(task):
        assert isinstance(scheduler.refused(report), LeaseLost), report
    assert (contents(scheduler.store)["task"], contents(scheduler.store)["result"]) == before


def test_a_renewed_lease_lasts_longer(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    scheduler.pass_time(TTL_MS - 1)
    renewed = scheduler.renew(task)
    assert renewed.lease_expires_at == scheduler.clock.now() + TTL_MS
    scheduler.pass_time(TTL_MS - 1)
    assert scheduler.states("first") == ["assigned"]
    scheduler.pass_time(1)
    assert scheduler.states("first") == ["queued"]


def test_a_renewal_and_a_completion_may_come_in_one_batch(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second")
    first, second = (grant.task for grant in scheduler.lease(2))
    renew = [Renew(task.seq, task.fencing_token, 60_000) for task in (first, second, second)]
    answers = scheduler.apply(*renew, Complete(first.seq, first.fencing_token)).answers
    assert isinstance(answers[0], LeaseLost)
    assert answers[1].lease_expires_at == scheduler.clock.now() + 60_000
    assert answers[3].state == "done"


# -------------------------------------------------------------------- failures


def test_a_failed_attempt_waits_and_is_tried_again(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    for wait_ms in (1000, 2000):
        task = scheduler.fail(scheduler.lease_one(), "no luck")
        assert (task.state, task.gate) == ("queued", "delay")
        assert task.eligible_at == scheduler.clock.now() + wait_ms
        scheduler.pass_time(wait_ms - 1)
        assert scheduler.lease() == []
        scheduler.clock.advance(1)
    task = scheduler.lease_one()
    assert task.attempts == 3
    scheduler.complete(task)
    assert (scheduler.view("first").state, scheduler.view("first").error) == ("done", None)


def test_a_handler_that_has_spent_its_attempts_is_parked(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    for _ in range(3):
        scheduler.clock.advance(60_000)
        scheduler.fail(scheduler.lease_one(), "no luck")
    assert (scheduler.view("first").state, scheduler.view("first").error) == ("parked", "no luck")
    assert scheduler.pass_time(3_600_000).grants == []
    assert scheduler.lease() == []
    assert (scheduler.tally().parked, scheduler.tally().failed) == (1, 0)
    scheduler.cancel("first")
    assert (scheduler.tally().parked, scheduler.tally().cancelled) == (0, 1)


def test_an_action_fails_with_its_one_attempt(scheduler: Scheduler) -> None:
    scheduler.submit("first", kind="action")
    task = scheduler.fail(scheduler.lease_one(), "executor returned 500")
    assert (task.state, task.attempts, task.completed_at) == ("failed", 1, scheduler.clock.now())
    assert scheduler.view("first").error == "executor returned 500"


def test_a_permanent_failure_is_not_tried_again(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.fail(scheduler.lease_one(), "bad request", retryable=False)
    assert (task.state, task.attempts) == ("failed", 1)


def test_a_longer_wait_asked_for_by_the_receiver_is_kept(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second")
    first, second = (grant.task for grant in scheduler.lease(2))
    now = scheduler.clock.now()
    assert scheduler.fail(first, retry_after_ms=30_000).eligible_at == now + 30_000
    assert scheduler.fail(second, retry_after_ms=10).eligible_at == now + 1000


def test_a_released_task_keeps_its_attempt_and_its_place(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second")
    released = scheduler.release(scheduler.lease_one(started=frozenset({WORK})))
    assert (released.state, released.attempts, released.worker) == ("queued", 0, None)
    assert scheduler.names(1) == ["first"]


# -------------------------------------------------------------------- workers that vanish


def test_an_expired_lease_of_a_running_task_is_one_failed_attempt(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.start(scheduler.lease_one())
    scheduler.pass_time(TTL_MS)
    found = scheduler.view("first")
    assert (found.state, found.task.gate, found.task.attempts) == ("queued", "delay", 1)
    assert found.error == WORKER_GONE


def test_an_expired_lease_of_an_assigned_task_counts_no_attempt(scheduler: Scheduler) -> None:
    scheduler.submit("first", kind="action", deadline_at=scheduler.clock.now() + 3_600_000)
    scheduler.lease_one()
    scheduler.pass_time(TTL_MS)
    found = scheduler.view("first").task
    assert (found.state, found.gate, found.attempts, found.leased) == ("queued", None, 0, False)


def test_a_running_action_whose_worker_vanished_is_not_run_twice(scheduler: Scheduler) -> None:
    scheduler.submit("first", kind="action")
    scheduler.start(scheduler.lease_one())
    scheduler.pass_time(TTL_MS)
    assert (scheduler.view("first").state, scheduler.view("first").error) == ("failed", WORKER_GONE)
    assert scheduler.lease() == []


def test_dead_workers_can_be_reclaimed_before_their_leases_run_out(scheduler: Scheduler) -> None:
    scheduler.submit("mine", "started", "theirs")
    scheduler.lease_one(worker="node_1:1")
    scheduler.start(scheduler.lease_one(worker="node_1:2"))
    scheduler.lease_one(worker="node_2:1")
    assert scheduler.ask(Reclaim("node_1:")) == 2
    assert scheduler.states("mine", "started", "theirs") == ["queued", "queued", "assigned"]
    assert [scheduler.view(name).task.attempts for name in ("mine", "started")] == [0, 1]
    assert scheduler.ask(Reclaim("node_1:")) == 0


def test_a_zombies_late_report_changes_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    zombie = scheduler.start(scheduler.lease_one(worker="zombie"))
    scheduler.pass_time(TTL_MS)
    assert_all_are_lost(scheduler, zombie)
    scheduler.pass_time(1000)
    heir = scheduler.lease_one(worker="heir")
    assert_all_are_lost(scheduler, zombie)
    scheduler.complete(heir, '"real"')
    assert_all_are_lost(scheduler, zombie)
    assert scheduler.view("first").result == '"real"'


def test_reports_on_tasks_and_tokens_that_never_were_are_lost(scheduler: Scheduler) -> None:
    (queued,) = scheduler.submit("first")
    assert_all_are_lost(scheduler, queued)
    queued.seq, queued.fencing_token = 99, 99
    assert_all_are_lost(scheduler, queued)
    assert scheduler.states("first") == ["queued"]
    assert scheduler.types("first") == ["created"]


@any_report
def test_a_lease_that_ended_is_over_for_every_report(scheduler: Scheduler, number: int) -> None:
    """A worker that reports a second, different result gets an error: the first result stands."""
    scheduler.submit("first")
    task = scheduler.start(scheduler.lease_one())
    scheduler.release(task)
    assert isinstance(scheduler.refused(every_report(task)[number]), LeaseLost)
    assert scheduler.states("first") == ["queued"]


# -------------------------------------------------------------------- cancel


def test_a_queued_task_is_cancelled_at_once_and_only_once(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second")
    task = scheduler.cancel("first")
    assert (task.state, task.completed_at) == ("cancelled", scheduler.clock.now())
    error = scheduler.refused(Cancel("first"))
    assert isinstance(error, Conflict)
    assert error.message == 'task "first" has already ended: it is "cancelled"'
    assert error.details == {"state": "cancelled"}
    assert scheduler.names(5) == ["second"]
    assert scheduler.tally().cancelled == 1


def test_cancelling_twice_in_one_batch_cancels_once(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    one, other = scheduler.apply(Cancel("first"), Cancel("first")).answers
    assert one.state == "cancelled"
    assert isinstance(other, Conflict)
    assert scheduler.tally().cancelled == 1


def test_an_unknown_task_cannot_be_cancelled(scheduler: Scheduler) -> None:
    error = scheduler.refused(Cancel("nobody"))
    assert isinstance(error, NotFound)
    assert error.message == 'task "nobody" not found'


def test_a_delayed_task_can_be_cancelled(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.fail(scheduler.lease_one())
    scheduler.cancel("first")
    scheduler.pass_time(60_000)
    assert scheduler.states("first") == ["cancelled"]
    assert scheduler.lease() == []


@pytest.mark.parametrize("number", [2, 3, 4], ids=REPORTS[2:])
def test_a_cancelled_run_keeps_its_slot_until_it_is_reported(
    scheduler: Scheduler, number: int
) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", "second")
    task = scheduler.start(scheduler.lease_one())
    outcome = scheduler.apply(Cancel("first"))
    assert outcome.runs_to_stop == [(task.seq, task.fencing_token)]
    assert scheduler.lease() == []
    assert scheduler.renew(task).state == "cancelled"
    ended_at = scheduler.clock.now()
    scheduler.clock.advance(100)
    answer = scheduler.ask(every_report(task)[number])
    assert (answer.state, answer.completed_at) == ("cancelled", ended_at)
    found = scheduler.view("first")
    assert (found.state, found.result, found.error) == ("cancelled", None, None)
    assert scheduler.names() == ["second"]
    assert (scheduler.tally().cancelled, scheduler.tally().failed) == (1, 0)


def test_starting_a_cancelled_task_is_refused_and_frees_its_slot(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", "second")
    task = scheduler.lease_one()
    scheduler.cancel("first")
    assert isinstance(scheduler.refused(Start(task.seq, task.fencing_token)), LeaseLost)
    assert scheduler.names() == ["second"]


def test_a_cancelled_run_whose_worker_vanished_gives_its_slot_back(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("first", "second")
    scheduler.start(scheduler.lease_one())
    scheduler.cancel("first")
    scheduler.pass_time(TTL_MS - 1)
    assert scheduler.lease() == []
    scheduler.clock.advance(1)
    assert scheduler.names() == ["second"]
    assert scheduler.states("first") == ["cancelled"]


def test_a_completion_in_the_same_batch_as_a_cancel_wins(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one()
    refused, done = scheduler.apply(Cancel("first"), Complete(task.seq, task.fencing_token)).answers
    assert isinstance(refused, Conflict)
    assert done.state == "done"
    assert (scheduler.tally().completed, scheduler.tally().cancelled) == (1, 0)


def test_many_cancelled_and_expired_runs_never_lift_a_ceiling(scheduler: Scheduler) -> None:
    """What PinchTab's counters got wrong: each of these used to free a slot that was not taken."""
    scheduler.set_lane(maxInflight=2, maxPerAgentInflight=2)
    soon = scheduler.clock.now() + 50
    scheduler.submit("run1", "run2")
    running = [grant.task for grant in scheduler.lease(2)]
    scheduler.submit("cancel1", "cancel2", "after1", "after2", "after3")
    scheduler.submit("expire1", "expire2", deadline_at=soon)
    scheduler.cancel("cancel1")
    scheduler.cancel("cancel2")
    scheduler.pass_time(50)
    assert scheduler.lease(9) == []
    scheduler.cancel("run1")
    assert scheduler.lease(9) == []
    scheduler.complete(running[0])
    assert scheduler.names(9) == ["after1"]
