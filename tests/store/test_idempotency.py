"""Idempotency keys: the same request again gives the same tasks, whatever happened in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.errors import IdempotencyConflict, QueueFull
from fairlane.engine.commands import IdempotencyKey, Submit
from tests.store.scheduler import Scheduler, submission

if TYPE_CHECKING:
    from collections.abc import Callable


KEY = IdempotencyKey(agent="a", key="k", digest="d")


def test_a_repeated_request_is_answered_with_its_first_tasks(scheduler: Scheduler) -> None:
    first = scheduler.try_submit("one", "two", key=KEY)
    again = scheduler.try_submit("three", "four", key=KEY)
    assert [task.id for task in again] == [task.id for task in first] == ["one", "two"]
    assert scheduler.tally().submitted == 2


def test_a_repeat_shows_the_tasks_as_they_are_now(scheduler: Scheduler) -> None:
    scheduler.try_submit("one", key=KEY)
    scheduler.complete(scheduler.lease_one())
    (task,) = scheduler.try_submit("other", key=KEY)
    assert (task.id, task.state) == ("one", "done")


def test_a_repeat_is_recognised_after_a_restart(new_scheduler: Callable[..., Scheduler]) -> None:
    before = new_scheduler()
    before.try_submit("one", key=KEY)
    after = new_scheduler("next")
    assert [task.id for task in after.try_submit("two", key=KEY)] == ["one"]


def test_equal_requests_in_one_batch_become_one_task(scheduler: Scheduler) -> None:
    requests = [Submit([submission(f"t{number}")], KEY) for number in range(5)]
    answers = scheduler.apply(*requests).answers
    assert [[task.id for task in answer] for answer in answers] == [["t0"]] * 5
    assert scheduler.tally().submitted == 1


def test_another_body_under_the_same_key_is_a_conflict(scheduler: Scheduler) -> None:
    scheduler.try_submit("one", key=KEY)
    other = IdempotencyKey(agent="a", key="k", digest="other")
    error = scheduler.refused(Submit([submission("two")], other))
    assert isinstance(error, IdempotencyConflict)
    assert scheduler.find("two") is None


def test_a_key_belongs_to_its_agent(scheduler: Scheduler) -> None:
    scheduler.try_submit("one", key=KEY)
    theirs = IdempotencyKey(agent="b", key="k", digest="d")
    assert [task.id for task in scheduler.try_submit("two", agent="b", key=theirs)] == ["two"]


def test_a_refused_request_may_be_repeated_with_its_key(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("blocker")
    assert isinstance(scheduler.try_submit("one", key=KEY)[0], QueueFull)
    scheduler.cancel("blocker")
    assert [task.id for task in scheduler.try_submit("two", key=KEY)] == ["two"]


def test_a_repeat_of_a_partly_refused_request_is_answered_alike(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=2)
    scheduler.submit("blocker")
    first = scheduler.try_submit("one", "two", key=KEY)
    scheduler.cancel("blocker")
    again = scheduler.try_submit("three", "four", key=KEY)
    assert again[0].id == first[0].id == "one"
    assert isinstance(again[1], QueueFull)
    assert (again[1].message, again[1].details) == (first[1].message, first[1].details)
    assert scheduler.find("four") is None


def test_a_key_lives_as_long_as_its_tasks(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 60})
    scheduler.try_submit("one", key=KEY)
    scheduler.pass_time(3_600_000)
    assert [task.id for task in scheduler.try_submit("two", key=KEY)] == ["one"]
    scheduler.cancel("one")
    scheduler.pass_time(3_600_000)
    assert scheduler.find("one") is None
    assert [task.id for task in scheduler.try_submit("three", key=KEY)] == ["three"]
