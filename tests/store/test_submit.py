"""Submitting: what is admitted, what is refused, and what a caller can read afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.errors import Disabled, InvalidRequest, QueueFull
from fairlane.engine.commands import SetPolicy, Submit
from tests.store.scheduler import submission, task_rows

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler


def test_a_submitted_task_can_be_read_at_once(scheduler: Scheduler) -> None:
    scheduler.submit("first", agent="ada", priority=3, session="chat", callback_url="http://x/")
    task = scheduler.view("first").task
    assert (task.state, task.gate, task.lane, task.agent) == ("queued", None, "main", "ada")
    assert (task.priority, task.session, task.callback_url) == (3, "chat", "http://x/")
    assert (task.attempts, task.max_attempts, task.fencing_token) == (0, 3, 0)
    assert task.created_at == task.queued_at == scheduler.clock.now()


def test_the_request_is_kept_as_it_came(scheduler: Scheduler) -> None:
    body = '{"params":{"text":"Grüße \\u2028 \'; DROP TABLE task; -- %s %(x)s :now ?1","n":1.5}}'
    scheduler.submit("first", body=body)
    assert scheduler.reader.run("task_view", id="first")[0][-3] == body
    assert scheduler.lease()[0].body == body


def test_tasks_are_numbered_in_the_order_they_came(scheduler: Scheduler) -> None:
    first = scheduler.submit("a", "b")
    second = scheduler.submit("c", agent="other")
    assert [task.seq for task in (*first, *second)] == [1, 2, 3]
    assert [task.position for task in (*first, *second)] == [1, 2, 3]


def test_many_tasks_fit_in_one_request(scheduler: Scheduler) -> None:
    names = [f"task{number:04}" for number in range(777)]
    scheduler.submit(*names)
    assert scheduler.tally().queued == scheduler.tally().ready == 777
    found = [row[1] for row in task_rows(scheduler.reader)]
    assert found == names[::-1]


def test_an_unknown_lane_means_main(scheduler: Scheduler) -> None:
    (task,) = scheduler.submit("first", lane="no-such-lane")
    assert task.lane == "main"


def test_an_action_goes_to_the_browser_lane_with_a_deadline(scheduler: Scheduler) -> None:
    (task,) = scheduler.submit("first", kind="action")
    assert (task.lane, task.max_attempts) == ("browser", 1)
    assert task.deadline_at == scheduler.clock.now() + 60_000


def test_a_deadline_in_the_past_is_refused_and_leaves_nothing(scheduler: Scheduler) -> None:
    late = submission("late", deadline_at=scheduler.clock.now() - 1)
    answers = scheduler.ask(Submit([late, submission("good")]))
    assert isinstance(answers[0], InvalidRequest)
    assert answers[1].seq == 1
    assert scheduler.find("late") is None


def test_nothing_is_admitted_while_the_policy_says_so(scheduler: Scheduler) -> None:
    scheduler.set_policy(enabled=False)
    assert isinstance(scheduler.refused(Submit([submission("first")])), Disabled)
    assert scheduler.find("first") is None
    scheduler.set_policy(enabled=True)
    scheduler.submit("second")


def test_a_policy_holds_for_the_submissions_of_its_own_batch(scheduler: Scheduler) -> None:
    outcome = scheduler.apply(
        Submit([submission("first"), submission("second")]),
        SetPolicy({"lanes": {"main": {"maxQueueSize": 1}}}, "test"),
    )
    assert isinstance(outcome.answers[0][1], QueueFull)


# -------------------------------------------------------------------- refused


def test_a_full_lane_refuses_and_says_what_a_caller_needs(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=2, maxPerAgent=1)
    scheduler.submit("first", agent="a")
    scheduler.submit("second", agent="b")
    error = scheduler.refused(Submit([submission("third", agent="b")]))
    assert isinstance(error, QueueFull)
    assert error.message == "rejected: global queue full"
    assert error.details == {
        "agentId": "b",
        "queued": 2,
        "maxQueue": 2,
        "maxPerAgent": 1,
        "lane": "main",
        "taskId": "third",
    }
    assert error.retry_after_ms


def test_a_refused_submission_is_kept_as_a_record_without_params(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("first")
    refused = submission("second", session="chat", callback_url="http://x/")
    scheduler.refused(Submit([refused]))
    found = scheduler.view("second")
    assert found.state == "rejected"
    assert found.error == "rejected: global queue full"
    assert found.task.completed_at == scheduler.clock.now()
    assert found.body == {"agentId": "a", "name": "second"}
    assert scheduler.reader.run("delivery_list_of", about="second", limit=9) == []
    assert (scheduler.tally().submitted, scheduler.tally().rejected) == (1, 1)


def test_an_agents_limit_holds_over_its_routes_and_for_it_alone(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxPerAgent=2)
    scheduler.submit("first", capability="handler/one")
    scheduler.submit("second", capability="handler/two")
    error = scheduler.refused(Submit([submission("third", capability="handler/three")]))
    assert error.message == 'rejected: agent queue full for "a"'
    scheduler.submit("fourth", agent="b")


def test_one_request_is_admitted_exactly_up_to_the_limit(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=7)
    answers = scheduler.try_submit(*(f"t{number}" for number in range(10)))
    assert [isinstance(answer, QueueFull) for answer in answers] == [False] * 7 + [True] * 3
    assert scheduler.tally().queued == 7


def test_what_is_in_flight_does_not_count_as_queued(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=2, maxPerAgent=2)
    scheduler.submit("first", "second")
    scheduler.lease(2)
    scheduler.submit("third", "fourth")
    assert isinstance(scheduler.refused(Submit([submission("fifth")])), QueueFull)
    assert scheduler.tally().queued == 2


def test_limits_are_exact_after_queued_tasks_were_cancelled(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=3, maxPerAgent=2, maxInflight=2)
    scheduler.submit("a1", "a2", agent="a")
    scheduler.submit("b1", agent="b")
    scheduler.cancel("a1")
    scheduler.cancel("a2")
    scheduler.submit("a3", "a4", agent="a")
    scheduler.refused(Submit([submission("a5", agent="a")]))
    scheduler.refused(Submit([submission("b2", agent="b")]))
    assert len(scheduler.lease(10)) == 2
    assert scheduler.lease(10) == []


def test_limits_are_exact_after_queued_tasks_expired(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=3, maxPerAgent=2, maxInflight=2)
    soon = scheduler.clock.now() + 100
    scheduler.submit("a1", "a2", agent="a", deadline_at=soon)
    scheduler.pass_time(100)
    scheduler.submit("a3", "a4", agent="a")
    scheduler.refused(Submit([submission("a5", agent="a")]))
    assert len(scheduler.lease(10)) == 2
    assert scheduler.lease(10) == []
    assert scheduler.states("a1", "a2") == ["failed", "failed"]


def test_lowering_a_limit_evicts_nobody(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", "third")
    scheduler.set_lane(maxQueueSize=1)
    scheduler.refused(Submit([submission("fourth")]))
    assert scheduler.run_to_end() == ["first", "second", "third"]
