"""Effects in the store: the intent, the outcome, and tasks that are parked in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.core import effects
from fairlane.core.errors import Conflict, EffectUnknown, LeaseLost, NotFound, StepChanged
from fairlane.core.model import RUN_PREFIX
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import BeginEffect, Checkpoint, EffectOutcome, ResolveEffect
from fairlane.store.tables import checkpoints
from tests.store.scheduler import TTL_MS, Scheduler

if TYPE_CHECKING:
    from fairlane.core.model import Task


def begin(scheduler: Scheduler, task: Task, name: str = "charge", **fields: Any) -> str:
    key = task.seq, task.fencing_token
    done: EffectOutcome = scheduler.ask(BeginEffect(*key, name, **fields))
    return done.state


def record(scheduler: Scheduler, task: Task, value: str, name: str = "charge") -> bool:
    new: bool = scheduler.ask(Checkpoint(task.seq, task.fencing_token, name, value)).new
    return new


def crash(scheduler: Scheduler) -> Task:
    """Let the lease expire, and lease the task again."""
    scheduler.clock.advance(TTL_MS)
    scheduler.apply()
    scheduler.clock.advance(120_000)
    return scheduler.lease_one()


def stored(scheduler: Scheduler, task: Task) -> list[tuple[str, str, int | None]]:
    found = checkpoints.of_tasks(scheduler.reader, [task.seq]).get(task.seq, ())
    return [(one.name, one.value, one.intent) for one in found]


def parked(scheduler: Scheduler, name: str = "t") -> Task:
    """A task that was parked because of an effect."""
    scheduler.submit(name, max_attempts=5)
    begin(scheduler, scheduler.lease_one())
    again = crash(scheduler)
    key = again.seq, again.fencing_token
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge")), EffectUnknown)
    return scheduler.view(name).task


def test_an_effect_has_an_intent_first_and_an_outcome_afterwards(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=5)
    task = scheduler.lease_one()
    assert begin(scheduler, task) == "begun"
    assert begin(scheduler, task) == "begun", "the reply was lost"
    assert stored(scheduler, task) == [("charge", "null", task.fencing_token)]
    assert record(scheduler, task, '"paid"')
    assert not record(scheduler, task, '"other"')
    assert stored(scheduler, task) == [("charge", '"paid"', 0)]
    again = crash(scheduler)
    assert begin(scheduler, again) == "done"
    assert stored(scheduler, task) == [("charge", '"paid"', 0)]
    types = [event.type for event in scheduler.events("t")]
    assert types.count("task.step") == 1
    assert recount(scheduler.reader) == []


def test_a_task_whose_run_ended_in_between_is_parked_and_acts_no_more(
    scheduler: Scheduler,
) -> None:
    task = parked(scheduler)
    view = scheduler.view("t")
    assert (view.state, view.error) == ("parked", effects.reason("t", "charge"))
    assert not task.leased
    late = scheduler.refused(Checkpoint(task.seq, task.fencing_token, "charge", "1"))
    assert isinstance(late, LeaseLost)
    scheduler.reset("t")  # it says nothing about the effect
    again = scheduler.lease_one()
    key = again.seq, again.fencing_token
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge")), EffectUnknown)


def test_a_run_that_checks_takes_the_effect_over(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=5)
    begin(scheduler, scheduler.lease_one())
    again = crash(scheduler)
    refused = scheduler.refused(Checkpoint(again.seq, again.fencing_token, "charge", "1"))
    assert isinstance(refused, Conflict), "it has not begun it"
    assert begin(scheduler, again, checks=True) == "unknown"
    assert begin(scheduler, again, checks=True) == "unknown", "the reply was lost"
    shown = scheduler.view("t").task
    assert effects.state_of(stored(scheduler, again)[0][2], shown.fencing_token) == "unknown"
    assert record(scheduler, again, "1")
    assert stored(scheduler, again) == [("charge", "1", 0)]


def test_a_run_that_ends_while_it_checks_leaves_the_effect_unknown(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=5)
    begin(scheduler, scheduler.lease_one())
    checking = crash(scheduler)
    assert begin(scheduler, checking, checks=True) == "unknown"
    again = crash(scheduler)
    assert isinstance(
        scheduler.refused(Checkpoint(again.seq, again.fencing_token, "charge", "1")), Conflict
    )
    key = again.seq, again.fencing_token
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge")), EffectUnknown)
    scheduler.ask(ResolveEffect("t", "charge", happened=False))
    assert begin(scheduler, scheduler.lease_one()) == "begun"


def test_the_name_of_an_effect_has_one_place_in_its_task(scheduler: Scheduler) -> None:
    """Otherwise a run that tries again under the next number acts twice under one key."""
    scheduler.submit("t")
    task = scheduler.lease_one()
    key = task.seq, task.fencing_token
    scheduler.ask(BeginEffect(*key, "charge", 1))
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge", 2)), Conflict)
    assert begin(scheduler, task, number=1, withdraws=True) == "not_done"
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge", 2)), Conflict)
    assert begin(scheduler, task, "refund", number=2) == "begun"


def test_an_effect_that_did_not_happen_may_be_tried_again(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=5)
    task = scheduler.lease_one()
    begin(scheduler, task)
    assert begin(scheduler, task, withdraws=True) == "not_done"
    assert begin(scheduler, task, withdraws=True) == "not_done", "the reply was lost"
    assert stored(scheduler, task) == [("charge", "null", -1)]
    again = crash(scheduler)
    assert begin(scheduler, again) == "begun"
    assert stored(scheduler, again) == [("charge", "null", again.fencing_token)]


def test_an_operator_says_that_it_happened_and_the_run_goes_on(scheduler: Scheduler) -> None:
    task = parked(scheduler)
    done = scheduler.task_from(ResolveEffect("t", "charge", happened=True, value='"paid"'))
    assert (done.state, done.attempts) == ("queued", 0)
    again = scheduler.lease_one()
    assert begin(scheduler, again) == "done"
    assert stored(scheduler, task) == [("charge", '"paid"', 0)]
    assert [event.type for event in scheduler.events("t")].count("task.step") == 1


def test_an_operator_says_that_it_did_not_and_it_is_tried_again(scheduler: Scheduler) -> None:
    parked(scheduler)
    scheduler.ask(ResolveEffect("t", "charge", happened=False))
    assert begin(scheduler, scheduler.lease_one()) == "begun"


def test_only_an_unknown_effect_of_a_resting_task_is_decided(scheduler: Scheduler) -> None:
    assert isinstance(scheduler.refused(ResolveEffect("no", "charge", happened=True)), NotFound)
    parked(scheduler, "u")
    assert isinstance(scheduler.refused(ResolveEffect("u", "send", happened=True)), NotFound)
    assert scheduler.view("u").state == "parked"
    scheduler.submit("t")
    begin(scheduler, scheduler.lease_one())
    running = scheduler.refused(ResolveEffect("t", "charge", happened=True))
    assert isinstance(running, Conflict)
    assert running.details == {"state": "assigned"}


def test_a_cron_run_fails_instead_of_blocking_its_job(scheduler: Scheduler) -> None:
    name = f"{RUN_PREFIX}1"
    scheduler.submit(name, max_attempts=5)
    begin(scheduler, scheduler.lease_one())
    again = crash(scheduler)
    scheduler.refused(BeginEffect(again.seq, again.fencing_token, "charge"))
    assert scheduler.view(name).state == "failed"
    scheduler.ask(ResolveEffect(name, "charge", happened=False))
    assert scheduler.view(name).state == "queued"


def test_the_place_of_another_step_is_refused(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    record(scheduler, task, "1", "fetch")
    key = task.seq, task.fencing_token
    assert isinstance(scheduler.refused(BeginEffect(*key, "charge", 1)), StepChanged)
