"""Delayed starts: a task is not ready before its time, and then has no special rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.engine.commands import Submit
from tests.store.scheduler import lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.scheduler import Scheduler


@pytest.mark.parametrize("how", ["delay_ms", "run_at"])
def test_a_task_runs_when_its_moment_has_come_and_not_before(
    scheduler: Scheduler, how: str
) -> None:
    moment = scheduler.clock.now() + 5000
    given: dict[str, Any] = {how: 5000 if how == "delay_ms" else moment}
    (task,) = scheduler.submit("t", **given)
    assert (task.state, task.gate, task.eligible_at) == ("queued", "delay", moment)
    assert scheduler.names() == []
    scheduler.pass_time(4999)
    assert scheduler.names() == []
    scheduler.pass_time(1)
    ready = scheduler.view("t").task
    assert (ready.ready, ready.eligible_at, ready.queued_at) == (True, None, moment)
    assert scheduler.names() == ["t"]


@pytest.mark.parametrize("given", [{"delay_ms": 0}, {"run_at": 5}])
def test_a_moment_that_has_passed_is_now(scheduler: Scheduler, given: dict[str, Any]) -> None:
    (task,) = scheduler.submit("t", **given)
    assert (task.ready, task.eligible_at) == (True, None)


def test_the_engine_wakes_up_for_the_first_moment(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.apply()
    scheduler.submit("late", delay_ms=9000)
    scheduler.submit("early", delay_ms=300)
    if scheduler.store.shared:
        return  # looks every half second anyway
    assert scheduler.engine.due_at == now + 300
    scheduler.pass_time(300)
    assert scheduler.names(2) == ["early"]
    assert scheduler.engine.due_at == now + 9000


def test_a_moment_outlives_the_engine(
    scheduler: Scheduler, new_scheduler: Callable[..., Scheduler]
) -> None:
    scheduler.submit("t", delay_ms=5000)
    scheduler.close()
    heir = new_scheduler("heir", scheduler.clock)
    assert heir.names() == []
    heir.pass_time(5000)
    assert heir.names() == ["t"]


def test_the_wait_is_not_part_of_how_long_tasks_wait_for_a_slot(scheduler: Scheduler) -> None:
    scheduler.submit("t", delay_ms=5000)
    scheduler.pass_time(5000)
    scheduler.clock.advance(20)
    scheduler.lease()
    assert scheduler.tally().waited_ms == 20


def test_the_deadline_of_a_kind_runs_from_the_moment(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    (task,) = scheduler.submit("t", kind="action", delay_ms=100_000)
    assert task.deadline_at == now + 160_000
    scheduler.pass_time(100_000)
    assert scheduler.names() == ["t"]


def test_a_deadline_before_the_moment_comes_first(scheduler: Scheduler) -> None:
    scheduler.submit("t", delay_ms=5000, deadline_at=scheduler.clock.now() + 1000)
    scheduler.pass_time(1000)
    view = scheduler.view("t")
    assert (view.state, view.error) == ("failed", "deadline exceeded while queued")
    assert view.task.eligible_at is None


def test_a_delayed_task_can_be_cancelled(scheduler: Scheduler) -> None:
    scheduler.submit("t", delay_ms=5000)
    assert scheduler.cancel("t").eligible_at is None
    scheduler.pass_time(5000)
    assert scheduler.states("t") == ["cancelled"]


def test_a_task_that_waits_for_a_time_does_not_hold_up_the_session(scheduler: Scheduler) -> None:
    scheduler.submit("late", session="s", delay_ms=5000)
    scheduler.submit("now", "next", session="s")
    held = scheduler.lease_one()
    assert held.id == "now"
    scheduler.pass_time(5000)
    assert scheduler.view("late").task.gate == "session"
    scheduler.complete(held)
    assert scheduler.run_to_end() == ["late", "next"]


def test_who_waits_for_a_retry_does(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="s")
    scheduler.fail(scheduler.lease_one())
    assert scheduler.names() == []
    scheduler.pass_time(1000)
    assert scheduler.run_to_end() == ["first", "second"]


def test_several_of_a_session_whose_moments_come_together_go_one_by_one(
    scheduler: Scheduler,
) -> None:
    for name in ("a", "b", "c"):
        scheduler.submit(name, session="s", delay_ms=1000)
    scheduler.pass_time(1000)
    gates = [scheduler.view(name).task.gate for name in ("a", "b", "c")]
    assert gates == [None, "session", "session"]
    assert scheduler.run_to_end() == ["a", "b", "c"]


def test_a_child_waits_for_its_moment_too(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.submit("parent")
    scheduler.submit("child", depends_on=("parent",), delay_ms=5000, kind="action")
    scheduler.complete_next()
    child = scheduler.view("child").task
    assert (child.state, child.gate, child.eligible_at) == ("queued", "delay", now + 5000)
    assert child.deadline_at == now + 65_000
    scheduler.pass_time(5000)
    assert scheduler.run_to_end() == ["child"]


def test_a_moment_that_passes_while_a_child_waits_is_forgotten(scheduler: Scheduler) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", depends_on=("parent",), delay_ms=5000)
    scheduler.pass_time(60_000)
    assert scheduler.states("child") == ["waiting_dependency"]
    scheduler.complete_next()
    child = scheduler.view("child").task
    assert (child.ready, child.eligible_at, child.queued_at) == (True, None, scheduler.clock.now())


def test_a_delayed_task_comes_and_waits_in_one_transaction_with_a_lease(
    scheduler: Scheduler,
) -> None:
    outcome = scheduler.apply(
        Submit([submission("late", delay_ms=5), submission("now")]), waiting=[lease_request(2)]
    )
    assert [grant.task.id for grant in outcome.grants[0]] == ["now"]
