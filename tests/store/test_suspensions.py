"""Suspended runs in the store: no slot, no attempt, and a wake in the commit of its cause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core.errors import Conflict, InvalidRequest, LeaseLost, NotFound, StepChanged
from fairlane.core.model import Task
from fairlane.core.suspensions import SIGNALS_MAX, Until
from fairlane.engine.commands import Grant, Retry
from fairlane.engine.reads import plan, why
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import (
    Checkpoint,
    SendSignal,
    SignalOutcome,
    Suspend,
    SuspendOutcome,
)
from tests.store.scheduler import Scheduler, lease_request, submission

HOUR_MS = 3_600_000


def suspend(scheduler: Scheduler, task: Task, until: Until, **fields: Any) -> SuspendOutcome:
    name = fields.pop("name", "wait")
    done: SuspendOutcome = scheduler.ask(
        Suspend(task.seq, task.fencing_token, name, until, **fields)
    )
    return done


def signal(scheduler: Scheduler, task_id: str, name: str, value: object = None) -> SignalOutcome:
    text = msgspec.json.encode(value).decode()
    done: SignalOutcome = scheduler.ask(SendSignal(task_id, name, text))
    return done


def values(grant: Grant) -> list[tuple[str, Any]]:
    return [(one.name, msgspec.json.decode(one.value)) for one in grant.steps]


def explained(scheduler: Scheduler, name: str) -> tuple[str | None, str]:
    found = why.read(scheduler.reader, name)
    assert found is not None
    return found.why.gate, found.why.reason


def is_sound(scheduler: Scheduler) -> None:
    assert recount(scheduler.reader) == []


def test_a_sleeping_run_holds_no_slot_and_spends_no_attempt(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("sleeper", "other", max_attempts=1)
    task = scheduler.lease_one()
    done = suspend(scheduler, task, Until(delay_ms=HOUR_MS))
    assert done.suspended
    view = scheduler.view("sleeper").task
    assert (view.state, view.gate, view.attempts) == ("queued", "suspend", 0)
    assert explained(scheduler, "sleeper")[0] == "suspend"
    assert "sleeps until" in explained(scheduler, "sleeper")[1]
    assert scheduler.names() == ["other"]
    is_sound(scheduler)
    scheduler.complete(scheduler.view("other").task)
    scheduler.clock.advance(HOUR_MS - 1)
    assert scheduler.names() == []
    scheduler.clock.advance(1)
    (grant,) = scheduler.lease()
    assert (grant.task.id, grant.task.attempts) == ("sleeper", 1)
    assert values(grant) == [("wait", None)]
    is_sound(scheduler)
    assert "suspended" in scheduler.types("sleeper")


def test_a_time_in_the_past_does_not_suspend(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    done = suspend(scheduler, task, Until(at="2001-01-01T00:00:00Z"))
    assert (done.suspended, done.value) == (False, "null")
    assert scheduler.complete(task).state == "done"
    is_sound(scheduler)


def test_a_signal_wakes_in_its_own_commit_and_the_lease_has_its_value(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("t")
    suspend(scheduler, scheduler.lease_one(), Until(signal="paid"))
    assert explained(scheduler, "t") == (
        "suspend",
        'its run waits for the signal "paid"; fairlane signal t paid',
    )
    assert signal(scheduler, "t", "other", 1).accepted
    assert scheduler.names() == []
    text = msgspec.json.encode({"amount": 5}).decode()
    outcome = scheduler.apply(SendSignal("t", "paid", text), waiting=[lease_request()])
    ((grant,),) = outcome.grants
    assert values(grant) == [("wait", {"amount": 5})]
    is_sound(scheduler)


def test_the_first_value_of_a_signal_wins_and_early_ones_are_kept(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    assert signal(scheduler, "t", "paid", 1).accepted
    assert not signal(scheduler, "t", "paid", 2).accepted
    task = scheduler.lease_one()
    done = suspend(scheduler, task, Until(signal="paid"))
    assert (done.suspended, done.value) == (False, "1")
    again = suspend(scheduler, task, Until(signal="paid"), name="once more")
    assert again.value == "1"
    scheduler.complete(task)
    assert not signal(scheduler, "t", "paid", 3).accepted
    assert isinstance(scheduler.refused(SendSignal("t", "late", "1")), Conflict)
    assert isinstance(scheduler.refused(SendSignal("nobody", "x", "1")), NotFound)
    is_sound(scheduler)


def test_two_signals_in_one_commit_wake_once(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    suspend(scheduler, scheduler.lease_one(), Until(signal="a"))
    first, second = SendSignal("t", "a", "1"), SendSignal("t", "a", "2")
    answers = scheduler.apply(first, second).answers
    assert [one.accepted for one in answers] == [True, False]
    (grant,) = scheduler.lease()
    assert values(grant) == [("wait", 1)]
    is_sound(scheduler)


def test_the_number_of_signals_is_bounded(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    for number in range(SIGNALS_MAX):
        assert signal(scheduler, "t", f"s{number}").accepted
    assert isinstance(scheduler.refused(SendSignal("t", "more", "1")), Conflict)


def test_a_run_waits_for_tasks_and_gets_how_they_ended(scheduler: Scheduler) -> None:
    scheduler.submit("t", "a", "b", max_attempts=1, priority=0)
    by_id = {grant.task.id: grant.task for grant in scheduler.lease(3)}
    suspend(scheduler, by_id["t"], Until(tasks=["a", "b"]))
    gate, reason = explained(scheduler, "t")
    assert gate == "suspend"
    assert "a (assigned), b (assigned)" in reason
    is_sound(scheduler)
    scheduler.complete(by_id["a"], '{"n":1}')
    assert scheduler.names() == []
    is_sound(scheduler)
    scheduler.cancel("b")
    (grant,) = scheduler.lease()
    ((_, ends),) = values(grant)
    assert ends == [
        {"taskId": "a", "state": "done", "result": {"n": 1}},
        {"taskId": "b", "state": "cancelled"},
    ]
    assert grant.inputs == ()
    is_sound(scheduler)


def test_tasks_that_have_ended_do_not_suspend(scheduler: Scheduler) -> None:
    scheduler.submit("a")
    scheduler.complete(scheduler.lease_one(), "7")
    scheduler.submit("t")
    task = scheduler.lease_one()
    done = suspend(scheduler, task, Until(tasks=["a"]))
    assert not done.suspended
    assert msgspec.json.decode(done.value or "") == [{"taskId": "a", "state": "done", "result": 7}]


def test_a_result_that_does_not_fit_is_left_out_and_marked(scheduler: Scheduler) -> None:
    scheduler.submit("a")
    scheduler.complete(scheduler.lease_one(), '"' + "x" * 1_048_500 + '"')
    scheduler.submit("t")
    done = suspend(scheduler, scheduler.lease_one(), Until(tasks=["a"]))
    assert msgspec.json.decode(done.value or "") == [
        {"taskId": "a", "state": "done", "omitted": True}
    ]


def test_more_waiting_runs_than_one_step_wakes_are_all_woken(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.engine.verbs.suspending.ARRIVALS_MAX", 2)
    scheduler.set_lane(maxInflight=10)
    scheduler.submit("parent")
    parent = scheduler.lease_one()
    scheduler.submit(*(f"t{number}" for number in range(5)))
    for grant in scheduler.lease(5):
        suspend(scheduler, grant.task, Until(tasks=["parent"]))
    scheduler.complete(parent)
    for _ in range(4):
        scheduler.apply()
    assert len(scheduler.names(10)) == 5
    is_sound(scheduler)


def test_what_cannot_be_awaited_is_refused(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=10)
    scheduler.submit("t", session="s")
    task = scheduler.lease_one()
    scheduler.submit("behind", session="s")
    scheduler.submit("child", depends_on=("t",))
    key = task.seq, task.fencing_token

    def refusal(id_: str, agent: str | None = None) -> Exception:
        return scheduler.refused(Suspend(*key, "w", Until(tasks=[id_]), agent=agent))

    assert isinstance(refusal("nobody"), NotFound)
    assert isinstance(refusal("t"), InvalidRequest)
    assert isinstance(refusal("child"), InvalidRequest)
    assert isinstance(refusal("behind"), Conflict)
    assert isinstance(refusal("child", agent="somebody"), NotFound)
    assert scheduler.complete(task).state == "done"


def test_two_runs_cannot_wait_for_each_other(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    a, b = (grant.task for grant in scheduler.lease(2))
    suspend(scheduler, a, Until(tasks=["b"]))
    circle = Suspend(b.seq, b.fencing_token, "w", Until(tasks=["a"]))
    assert isinstance(scheduler.refused(circle), InvalidRequest)


def test_a_suspended_task_can_be_cancelled_and_starts_its_wait_again(scheduler: Scheduler) -> None:
    scheduler.submit("t", "a")
    by_id = {grant.task.id: grant.task for grant in scheduler.lease(2)}
    suspend(scheduler, by_id["t"], Until(tasks=["a"]))
    scheduler.cancel("t")
    is_sound(scheduler)
    scheduler.ask(Retry("t"))
    (grant,) = scheduler.lease()
    assert grant.steps == ()
    assert suspend(scheduler, grant.task, Until(tasks=["a"])).suspended
    scheduler.complete(by_id["a"])
    (grant,) = scheduler.lease()
    assert [one.name for one in grant.steps] == ["wait"]
    is_sound(scheduler)


def test_a_deadline_ends_a_suspended_task(scheduler: Scheduler) -> None:
    scheduler.submit("t", deadline_ms=1000)
    suspend(scheduler, scheduler.lease_one(), Until(delay_ms=HOUR_MS))
    scheduler.clock.advance(1001)
    scheduler.apply()
    assert scheduler.view("t").state == "failed"
    scheduler.clock.advance(HOUR_MS)
    assert scheduler.names() == []
    is_sound(scheduler)


def test_only_the_current_lease_suspends_and_a_repeat_is_harmless(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    old = scheduler.lease_one()
    scheduler.release(old)
    late = Suspend(old.seq, old.fencing_token, "w", Until(signal="x"))
    assert isinstance(scheduler.refused(late), LeaseLost)
    task = scheduler.lease_one()
    assert suspend(scheduler, task, Until(signal="x")).suspended
    assert suspend(scheduler, task, Until(signal="x")).suspended
    other = Suspend(task.seq, task.fencing_token, "another", Until(signal="x"))
    assert isinstance(scheduler.refused(other), LeaseLost)
    is_sound(scheduler)


def test_a_wait_is_a_step_with_a_place(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one()
    key = task.seq, task.fencing_token
    scheduler.ask(Checkpoint(*key, "fetch", "1", 1))
    changed = Suspend(*key, "wait", Until(signal="x"), number=1)
    assert isinstance(scheduler.refused(changed), StepChanged)
    assert suspend(scheduler, task, Until(signal="x"), number=2).suspended
    signal(scheduler, "t", "x", "go")
    (grant,) = scheduler.lease()
    assert values(grant) == [("fetch", 1), ("wait", "go")]
    assert grant.task.steps == 2


def test_a_suspended_run_keeps_its_sessions_turn_and_leaves_its_batch(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("t", session="s")
    task = scheduler.lease_one()
    scheduler.submit("next", session="s")
    suspend(scheduler, task, Until(signal="x"))
    assert scheduler.names() == []
    is_sound(scheduler)
    scheduler.batch(submission("first"), submission("second"), parallelism=1)
    first = scheduler.lease_one()
    suspend(scheduler, first, Until(signal="y"))
    assert scheduler.names() == ["second"]
    is_sound(scheduler)
    signal(scheduler, "t", "x")
    assert scheduler.names() == ["t"]
    signal(scheduler, "first", "y")
    assert scheduler.names() == []
    assert scheduler.view("first").task.gate == "batch"
    is_sound(scheduler)


def test_a_plan_shows_a_sleeping_task_and_writes_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    suspend(scheduler, scheduler.lease_one(), Until(delay_ms=HOUR_MS))
    now = scheduler.clock.now()

    def planned(at: int) -> plan.Plan:
        return plan.read(scheduler.reader, plan.PlanQuery("main", at, 10), lambda _: now)

    assert planned(now).counts["suspend"] == 1
    assert [task.id for task in planned(now + HOUR_MS).leases] == ["t"]
    assert scheduler.view("t").task.gate == "suspend"
