"""Steps in the store: recorded once, under a valid lease, and carried by the next lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.core.errors import LeaseLost, StepChanged
from fairlane.core.model import Task
from fairlane.engine.commands import Grant, Report, Reset, Retry
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import Checkpoint, CheckpointOutcome
from tests.store.scheduler import TTL_MS, Scheduler
from tests.store.test_statements import CountingStore

if TYPE_CHECKING:
    from fairlane.store.base import Store


def record(
    scheduler: Scheduler, task: Task, name: str, value: object = None, number: int | None = None
) -> CheckpointOutcome:
    text = msgspec.json.encode(value).decode()
    done: CheckpointOutcome = scheduler.ask(
        Checkpoint(task.seq, task.fencing_token, name, text, number)
    )
    return done


def names(grant: Grant) -> list[tuple[int, str, str]]:
    return [(one.number, one.name, one.value) for one in grant.steps]


def test_the_next_lease_carries_all_recorded_steps(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=5)
    (grant,) = scheduler.lease()
    assert grant.steps == ()
    record(scheduler, grant.task, "fetch", {"a": [1, None]})
    record(scheduler, grant.task, "count", 2)
    scheduler.fail(grant.task)
    scheduler.clock.advance(120_000)
    (again,) = scheduler.lease()
    assert names(again) == [(1, "fetch", '{"a":[1,null]}'), (2, "count", "2")]
    record(scheduler, again.task, "send", None, 3)
    scheduler.clock.advance(TTL_MS)
    scheduler.apply()  # the lease has expired: the worker is gone
    scheduler.clock.advance(120_000)
    (last,) = scheduler.lease()
    assert [one.name for one in last.steps] == ["fetch", "count", "send"]
    assert last.task.steps == 3
    assert recount(scheduler.reader) == []


def test_a_step_is_recorded_once_and_its_first_value_wins(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    assert record(scheduler, task, "fetch", 1).new
    assert not record(scheduler, task, "fetch", 2).new
    assert not record(scheduler, task, "fetch", 3, 1).new
    scheduler.release(task)
    assert names(scheduler.lease()[0]) == [(1, "fetch", "1")]


def test_equal_steps_in_one_transaction_are_recorded_once(scheduler: Scheduler) -> None:
    scheduler.submit("t", "u")
    first, second = (grant.task for grant in scheduler.lease(2))
    requests = [
        Checkpoint(task.seq, task.fencing_token, name, "0", number)
        for task in (first, second)
        for number, name in ((1, "a"), (1, "a"), (2, "b"), (2, "x"))
    ]
    answers = scheduler.apply(*requests).answers
    assert [isinstance(one, CheckpointOutcome) and one.new for one in answers] == [
        *(True, False, True, False),
        *(True, False, True, False),
    ]
    assert isinstance(answers[3], StepChanged)
    assert recount(scheduler.reader) == []


def test_another_step_in_the_same_place_is_refused(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    record(scheduler, task, "fetch", 1, 1)
    refused = Checkpoint(task.seq, task.fencing_token, "load", "2", 1)
    assert isinstance(scheduler.refused(refused), StepChanged)


def test_only_the_current_lease_records(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    old = scheduler.lease_one()
    scheduler.release(old)
    late = Checkpoint(old.seq, old.fencing_token, "late", "1")
    assert isinstance(scheduler.refused(late), LeaseLost)
    scheduler.lease_one()
    assert isinstance(scheduler.refused(late), LeaseLost)
    new = scheduler.view("t").task
    scheduler.cancel("t")
    stopped = Checkpoint(new.seq, new.fencing_token, "late", "1")
    assert isinstance(scheduler.refused(stopped), LeaseLost)
    assert isinstance(scheduler.refused(Checkpoint(10**9, 1, "x", "1")), LeaseLost)


def test_steps_and_the_end_of_the_run_come_in_one_request(scheduler: Scheduler) -> None:
    from fairlane.engine.commands import Complete

    scheduler.submit("t")
    task = scheduler.lease_one(started=frozenset({"handler/work"}))
    key = task.seq, task.fencing_token
    reports = [Checkpoint(*key, "a", "1"), Checkpoint(*key, "b", "2"), Complete(*key, "3")]
    scheduler.ask(Report(reports))
    shown = scheduler.view("t").task
    assert (shown.state, shown.steps) == ("done", 2)
    assert recount(scheduler.reader) == []


def test_steps_outlive_a_manual_retry_unless_it_is_fresh(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    record(scheduler, task, "fetch", 1)
    scheduler.cancel("t")
    scheduler.release(task)
    scheduler.ask(Retry("t"))
    (grant,) = scheduler.lease()
    assert names(grant) == [(1, "fetch", "1")]
    scheduler.cancel("t")
    scheduler.release(grant.task)
    assert scheduler.ask(Retry("t", fresh=True)).steps is None
    (grant,) = scheduler.lease()
    assert grant.steps == ()
    assert grant.task.steps is None
    assert recount(scheduler.reader) == []


def test_a_parked_task_keeps_its_steps_too(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=1)
    task = scheduler.lease_one()
    record(scheduler, task, "fetch", 1)
    scheduler.fail(task)
    assert scheduler.view("t").state == "parked"
    scheduler.ask(Reset("t"))
    (grant,) = scheduler.lease()
    assert names(grant) == [(1, "fetch", "1")]


def test_a_step_leaves_an_event_and_no_attempt(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    record(scheduler, task, "fetch", 1)
    (event,) = [one for one in scheduler.events() if one.type == "task.step"]
    assert event.step == (1, "fetch")
    assert event.attempt == 1


def test_tasks_without_steps_send_no_statement_about_them(store: Store) -> None:
    counting = CountingStore(store)
    scheduler = Scheduler(counting)
    scheduler.submit("plain", "stepped")
    first, second = (grant.task for grant in scheduler.lease(2))
    record(scheduler, second, "fetch", 1)
    counting.connection.sent.clear()
    scheduler.complete(first)
    scheduler.submit("another")
    scheduler.complete(scheduler.lease_one())
    sent = [name for name in counting.connection.sent if "checkpoint" in name or "steps" in name]
    assert sent == []
    scheduler.release(second)
    scheduler.lease_one()
    assert counting.connection.sent["checkpoint_of"] == 1
    scheduler.close()
