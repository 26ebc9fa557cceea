"""Sessions: one run at a time, in order, and the turn passes on however a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.engine.commands import Cancel, Complete, Submit
from tests.store.scheduler import TTL_MS, lease_request, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.core.model import Task
    from tests.store.scheduler import Scheduler


def test_tasks_of_a_session_run_one_at_a_time_in_order(scheduler: Scheduler) -> None:
    names = [f"s{number}" for number in range(5)]
    scheduler.submit(*names[:3], session="chat")
    scheduler.submit(*names[3:], session="chat", agent="other")
    seen = []
    while grants := scheduler.lease(10):
        assert len(grants) == 1
        seen.append(grants[0].task.id)
        scheduler.complete(grants[0].task)
    assert seen == names


def test_of_several_turns_the_last_one_is_given_up_for_what_ranks_higher(
    scheduler: Scheduler,
) -> None:
    scheduler.set_policy(sessions={"maxConcurrent": 3})
    scheduler.submit("s1", "s2", "s3", session="chat")
    scheduler.submit("urgent", session="chat", priority=-10)
    assert scheduler.names(10) == ["urgent", "s1", "s2"]
    assert scheduler.view("s3").task.gate == "session"


def test_sessions_do_not_hold_up_each_other(scheduler: Scheduler) -> None:
    scheduler.submit("a1", "a2", session="a")
    scheduler.submit("b1", "b2", session="b")
    scheduler.submit("free")
    assert scheduler.names(10) == ["a1", "b1", "free"]


def test_a_session_may_reach_over_lanes(scheduler: Scheduler) -> None:
    scheduler.submit("first", session="chat", lane="main")
    scheduler.submit("second", session="chat", lane="team")
    lanes = ("main", "team")
    task = scheduler.lease_one(lanes=lanes)
    assert scheduler.lease(5, lanes=lanes) == []
    scheduler.complete(task)
    assert scheduler.names(5, lanes=lanes) == ["second"]


def _expire_both(scheduler: Scheduler, _task: Task) -> None:
    scheduler.pass_time(max(TTL_MS, 20_000))


ENDINGS: dict[str, Callable[[Scheduler, Task], object]] = {
    "completed": lambda scheduler, task: scheduler.complete(task),
    "failed": lambda scheduler, task: scheduler.fail(task, retryable=False),
    "cancelled": lambda scheduler, task: (scheduler.cancel("first"), scheduler.complete(task)),
    "past its deadline": _expire_both,
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_turn_goes_on_when_a_run_was(
    scheduler: Scheduler, ending: Callable[[Scheduler, Task], object]
) -> None:
    scheduler.submit("first", session="chat", deadline_at=scheduler.clock.now() + 20_000)
    scheduler.submit("second", session="chat")
    task = scheduler.start(scheduler.lease_one())
    assert scheduler.lease() == []
    ending(scheduler, task)
    assert scheduler.names(5) == ["second"]


def test_the_turn_goes_on_when_a_run_is_parked(scheduler: Scheduler) -> None:
    scheduler.set_policy(kinds={"handler": {"maxAttempts": 1}})
    scheduler.submit("first", "second", session="chat")
    scheduler.fail(scheduler.lease_one())
    assert scheduler.states("first") == ["parked"]
    assert scheduler.names(5) == ["second"]


def test_the_turn_goes_on_when_a_ready_task_is_cancelled_or_expires(scheduler: Scheduler) -> None:
    scheduler.submit("first", session="chat")
    scheduler.submit("second", session="chat", deadline_at=scheduler.clock.now() + 50)
    scheduler.submit("third", "fourth", session="chat")
    scheduler.cancel("first")
    scheduler.cancel("third")
    scheduler.pass_time(50)
    assert scheduler.names(5) == ["fourth"]


def test_the_next_run_may_begin_in_the_batch_that_ended_the_last(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    task = scheduler.lease_one()
    outcome = scheduler.apply(Complete(task.seq, task.fencing_token), waiting=[lease_request()])
    assert [grant.task.id for grant in outcome.grants[0]] == ["second"]


def test_a_retried_task_keeps_its_turn(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    scheduler.fail(scheduler.lease_one())
    assert scheduler.lease() == []
    scheduler.clock.advance(1000)
    assert scheduler.names(5) == ["first"]


def test_a_released_task_keeps_its_turn(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    scheduler.release(scheduler.lease_one())
    assert scheduler.names(5) == ["first"]


def test_a_cancelled_run_holds_the_session_until_it_is_reported(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    task = scheduler.lease_one()
    scheduler.cancel("first")
    assert scheduler.lease() == []
    scheduler.release(task)
    assert scheduler.names(5) == ["second"]


# -------------------------------------------------------------------- priority


def test_a_smaller_priority_passes_those_that_wait(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    running = scheduler.lease_one()
    scheduler.submit("urgent", session="chat", priority=-5)
    scheduler.submit("more-urgent", session="chat", priority=-6)
    assert scheduler.lease() == []
    scheduler.complete(running)
    assert scheduler.run_to_end() == ["more-urgent", "urgent", "second"]


def test_a_smaller_priority_takes_the_turn_from_a_ready_task(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="chat")
    scheduler.submit("urgent", session="chat", priority=-5)
    assert scheduler.names(5) == ["urgent"]
    assert scheduler.view("first").task.gate == "session"


def test_an_equal_priority_takes_no_turn(scheduler: Scheduler) -> None:
    scheduler.submit("first", session="chat", priority=-5)
    scheduler.submit("second", session="chat", priority=-5)
    assert scheduler.run_to_end() == ["first", "second"]


def test_priorities_of_one_batch_are_sorted_too(scheduler: Scheduler) -> None:
    requests = [
        Submit([submission(f"p{priority}", session="chat", priority=priority)])
        for priority in (3, 1, 2, 0)
    ]
    scheduler.apply(*requests)
    assert scheduler.run_to_end() == ["p0", "p1", "p2", "p3"]


def test_a_critical_task_that_waits_for_its_session_is_not_urgent_yet(scheduler: Scheduler) -> None:
    scheduler.submit("running", session="chat")
    running = scheduler.lease_one()
    scheduler.submit("alarm", session="chat", priority=-20)
    scheduler.submit("other", agent="other")
    assert scheduler.names(5) == ["other"]
    scheduler.complete(running)
    assert scheduler.names(5) == ["alarm"]


# -------------------------------------------------------------------- the session's row


def test_a_session_without_tasks_is_forgotten(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", "third", session="chat")
    assert [row[:3] for row in contents(scheduler.store)["session"]] == [("chat", 1, 2)]
    scheduler.apply(Cancel("third"), Cancel("second"), Cancel("first"))
    assert contents(scheduler.store)["session"] == []
    scheduler.submit("fourth", session="chat")
    assert scheduler.run_to_end() == ["fourth"]
    assert contents(scheduler.store)["session"] == []


def test_a_long_line_of_waiting_tasks_drains_in_order(scheduler: Scheduler) -> None:
    names = [f"s{number:03}" for number in range(24)]
    scheduler.submit(*names, session="chat")
    for name in names[1::2]:
        scheduler.cancel(name)
    assert scheduler.run_to_end() == names[0::2]
