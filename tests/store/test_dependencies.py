"""Tasks that wait for others: what the end of a parent does to its children, and theirs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, InvalidRequest
from fairlane.core.model import Task
from fairlane.engine.commands import Cancel, Complete, Fail, Lease, Retry, Submit
from tests.store.scheduler import lease_request, submission

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler


def child(name: str, *parents: str, **fields: Any) -> Any:
    return submission(name, depends_on=parents, **fields)


def submit_chain(scheduler: Scheduler, *names: str) -> None:
    """The first has no parent, each other one has the one before it."""
    scheduler.submit(names[0])
    for parent, name in itertools.pairwise(names):
        scheduler.submit(name, depends_on=(parent,))


def unmet(scheduler: Scheduler, *names: str) -> list[int | None]:
    return [scheduler.view(name).task.unmet for name in names]


def error(scheduler: Scheduler, name: str) -> str | None:
    return scheduler.view(name).error


# -------------------------------------------------------------------- waiting


def test_a_child_waits_until_all_of_its_parents_are_done(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    (waiting,) = scheduler.submit("child", depends_on=("a", "b"))
    assert (waiting.state, waiting.gate, waiting.unmet) == ("waiting_dependency", "dependency", 2)
    assert scheduler.open_edges() == (2, 2)
    assert scheduler.complete_next().id == "a"
    assert (scheduler.states("child"), unmet(scheduler, "child")) == (["waiting_dependency"], [1])
    assert scheduler.complete_next().id == "b"
    after = scheduler.view("child").task
    assert (after.ready, after.unmet, scheduler.open_edges()) == (True, 0, (0, 0))
    assert scheduler.names() == ["child"]


def test_what_waits_counts_as_queued_but_is_never_leased(scheduler: Scheduler) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", depends_on=("parent",), priority=-20)
    tally = scheduler.tally()
    assert (tally.queued, tally.ready, tally.urgent) == (2, 1, 0)
    assert scheduler.names(5) == ["parent"]


def test_two_parents_that_are_done_in_one_transaction_count_as_two(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("a", "b"))
    first, second = (grant.task for grant in scheduler.lease(2))
    scheduler.apply(
        Complete(first.seq, first.fencing_token), Complete(second.seq, second.fencing_token)
    )
    assert scheduler.view("child").task.ready


def test_parents_that_are_done_already_are_not_waited_for(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.complete_next()
    (half,) = scheduler.submit("half", depends_on=("a", "b"))
    assert (half.state, half.unmet) == ("waiting_dependency", 1)
    scheduler.complete_next()
    (whole,) = scheduler.submit("whole", depends_on=("a", "b"))
    assert (whole.state, whole.gate, whole.unmet) == ("queued", None, 0)
    assert scheduler.open_edges() == (0, 0)


@pytest.mark.parametrize("end", ["failed", "cancelled", "rejected"])
def test_a_child_of_what_has_ended_badly_is_cancelled_at_once(
    scheduler: Scheduler, end: str
) -> None:
    if end == "rejected":
        scheduler.set_lane("browser", maxQueueSize=1)
        scheduler.submit("in the way", kind="action")
        scheduler.try_submit("parent", kind="action")
    else:
        scheduler.submit("parent")
        if end == "failed":
            scheduler.fail_next()
        else:
            scheduler.cancel("parent")
    (task,) = scheduler.submit("child", depends_on=("unknown", "parent"))
    assert (task.state, task.completed_at) == ("cancelled", scheduler.clock.now())
    assert error(scheduler, "child") == f"dependency parent {end}"
    (next_one,) = scheduler.submit("grandchild", depends_on=("child",))
    assert (next_one.state, error(scheduler, "grandchild")) == (
        "cancelled",
        "dependency child cancelled",
    )


def test_an_unknown_parent_is_waited_for_and_may_come(scheduler: Scheduler) -> None:
    scheduler.submit("child", depends_on=("later",))
    scheduler.pass_time(10 * 86_400_000)
    assert scheduler.states("child") == ["waiting_dependency"]
    scheduler.submit("later")
    assert scheduler.run_to_end() == ["later", "child"]


def test_a_parent_that_comes_and_is_rejected_cancels_who_waited_for_it(
    scheduler: Scheduler,
) -> None:
    scheduler.set_lane("browser", maxQueueSize=1)
    scheduler.submit("child", depends_on=("later",))
    scheduler.submit("in the way", kind="action")
    scheduler.try_submit("later", kind="action")
    assert error(scheduler, "child") == "dependency later rejected"


def test_a_parent_that_was_rejected_in_the_same_transaction_is_seen(scheduler: Scheduler) -> None:
    scheduler.set_lane("browser", maxQueueSize=1)
    scheduler.apply(
        Submit([submission("in the way", kind="action")]),
        Submit([submission("parent", kind="action")]),
        Submit([child("child", "parent")]),
    )
    assert scheduler.states("parent", "child") == ["rejected", "cancelled"]


def test_parent_and_child_of_one_request_may_stand_in_any_order(scheduler: Scheduler) -> None:
    request = Submit([child("c", "b"), child("b", "a"), submission("a")])
    answers = scheduler.ask(request)
    assert [answer.id for answer in answers] == ["c", "b", "a"]
    assert [answer.state for answer in answers] == [*["waiting_dependency"] * 2, "queued"]
    assert scheduler.run_to_end() == ["a", "b", "c"]


def test_the_child_of_a_refused_item_is_refused(scheduler: Scheduler) -> None:
    late = submission("late", deadline_at=scheduler.clock.now() - 1)
    answers = scheduler.ask(Submit([late, child("b", "late"), child("c", "b"), submission("d")]))
    assert [isinstance(answer, InvalidRequest) for answer in answers] == [True, True, True, False]
    assert scheduler.find("b") is None
    assert scheduler.open_edges() == (0, 0)


# -------------------------------------------------------------------- cycles


def test_a_cycle_within_a_request_refuses_it_and_no_other(scheduler: Scheduler) -> None:
    outcome = scheduler.apply(
        Submit([submission("before")]),
        Submit([child("a", "b"), child("b", "a"), submission("with them")]),
        Submit([submission("after")]),
    )
    first, refused, last = outcome.answers
    assert (first[0].id, last[0].id) == ("before", "after")
    assert isinstance(refused, InvalidRequest)
    assert refused.message.startswith("field 'dependsOn' forms a cycle: ")
    assert [scheduler.find(name) for name in ("a", "b", "with them")] == [None] * 3


def test_a_task_cannot_wait_for_itself(scheduler: Scheduler) -> None:
    refused = scheduler.refused(Submit([child("a", "a")]))
    assert refused.message == "field 'dependsOn' forms a cycle: a -> a"
    assert scheduler.find("a") is None


@pytest.mark.parametrize("together", [False, True])
def test_a_cycle_through_ids_that_were_known_in_advance_is_refused(
    scheduler: Scheduler, *, together: bool
) -> None:
    requests = [
        Submit([child("a", "b")]),
        Submit([child("b", "x", "c")]),
        Submit([child("c", "a")]),
    ]
    if together:
        answers = scheduler.apply(*requests).answers
    else:
        answers = [scheduler.apply(request).answers[0] for request in requests]
    (refused,) = answers[2]
    assert isinstance(refused, InvalidRequest)
    assert refused.message == "field 'dependsOn' forms a cycle: c -> a -> b -> c"
    assert scheduler.find("c") is None
    assert scheduler.states("a", "b") == ["waiting_dependency"] * 2
    scheduler.submit("c", "x")
    assert scheduler.run_to_end() == ["c", "x", "b", "a"]


def test_a_diamond_is_no_cycle(scheduler: Scheduler) -> None:
    scheduler.submit("bottom", depends_on=("left", "right"))
    scheduler.submit("left", "right", depends_on=("top",))
    scheduler.submit("top")
    assert scheduler.run_to_end() == ["top", "left", "right", "bottom"]


# -------------------------------------------------------------------- ends


def test_the_failure_of_a_parent_goes_down_with_its_reason(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "a", "b", "c")
    scheduler.submit("other", depends_on=("a",))
    scheduler.fail_next()
    assert scheduler.states("b", "c", "other") == ["cancelled"] * 3
    assert error(scheduler, "b") == "dependency a failed"
    assert error(scheduler, "c") == "dependency b cancelled"
    assert scheduler.tally().cancelled == 3
    assert scheduler.open_edges() == (0, 0)


def test_a_cancelled_parent_takes_its_children_with_it(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "a", "b", "c")
    scheduler.cancel("a")
    assert scheduler.states("a", "b", "c") == ["cancelled"] * 3
    assert error(scheduler, "b") == "dependency a cancelled"


def test_a_parent_whose_deadline_passes_has_failed(scheduler: Scheduler) -> None:
    scheduler.submit("parent", deadline_at=scheduler.clock.now() + 100)
    scheduler.submit("child", depends_on=("parent",))
    scheduler.pass_time(100)
    assert error(scheduler, "child") == "dependency parent failed"


def test_a_parent_that_is_tried_again_or_parked_leaves_its_children_waiting(
    scheduler: Scheduler,
) -> None:
    submit_chain(scheduler, "parent", "child")
    for _ in range(3):
        scheduler.fail(scheduler.lease_one())
        scheduler.pass_time(60_000)
        assert scheduler.states("child") == ["waiting_dependency"]
    assert scheduler.states("parent") == ["parked"]
    scheduler.reset("parent")
    assert scheduler.run_to_end() == ["parent", "child"]


def test_a_child_that_was_cancelled_meanwhile_stays_as_it_is(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("a", "b"))
    scheduler.cancel("child")
    ended = scheduler.view("child").task
    scheduler.complete_next()
    scheduler.fail_next()
    assert scheduler.view("child").task == ended
    assert error(scheduler, "child") is None
    assert scheduler.open_edges() == (0, 0)


def test_the_first_of_two_failures_is_the_reason(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("a", "b"))
    first, second = (grant.task for grant in scheduler.lease(2))
    scheduler.apply(
        Fail(first.seq, first.fencing_token, "no", retryable=False),
        Fail(second.seq, second.fencing_token, "no", retryable=False),
    )
    assert error(scheduler, "child") in {"dependency a failed", "dependency b failed"}
    assert scheduler.types("child") == ["created", "cancelled"]


def test_a_waiting_child_has_a_deadline_of_its_own_only(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.submit("parent")
    (plain,) = scheduler.submit("plain", kind="action", depends_on=("parent",))
    (own,) = scheduler.submit("own", depends_on=("parent",), deadline_at=now + 500)
    assert (plain.deadline_at, own.deadline_at) == (None, now + 500)
    scheduler.pass_time(500)
    assert scheduler.states("plain", "own") == ["waiting_dependency", "failed"]
    scheduler.complete_next()
    assert scheduler.view("plain").task.deadline_at == now + 500 + 60_000
    (late,) = scheduler.submit("late", kind="action", depends_on=("parent",))
    assert late.deadline_at == now + 500 + 60_000


def test_a_child_of_a_session_asks_for_the_turn_when_it_is_unblocked(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", depends_on=("parent",), session="s")
    scheduler.submit("first", session="s")
    parent, first = (grant.task for grant in scheduler.lease(2))
    assert (parent.id, first.id) == ("parent", "first")
    scheduler.complete(parent)
    assert scheduler.view("child").task.gate == "session"
    scheduler.complete(first)
    assert scheduler.names() == ["child"]


# -------------------------------------------------------------------- what a child is told


def test_a_child_receives_the_results_of_its_parents(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("b", "a"))
    scheduler.complete_next('{"n": 1}')
    scheduler.complete_next()
    (grant,) = scheduler.lease()
    assert sorted(grant.inputs) == [("a", "done", '{"n": 1}'), ("b", "done", None)]


def test_a_child_that_is_submitted_late_receives_results_too(scheduler: Scheduler) -> None:
    scheduler.submit("a")
    scheduler.complete_next('"early"')
    wants: Lease = lease_request(2)
    outcome = scheduler.apply(Submit([child("child", "a"), submission("other")]), waiting=[wants])
    inputs = {grant.task.id: grant.inputs for grant in outcome.grants[0]}
    assert inputs == {"child": (("a", "done", '"early"'),), "other": ()}


def test_of_what_is_too_much_the_results_are_left_out(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b", "c")
    scheduler.submit("child", depends_on=("a", "b", "c"))
    for size in (600_000, 500_000, 10):
        scheduler.complete_next('"' + "x" * size + '"')
    (grant,) = scheduler.lease()
    assert [id_ for id_, _, _ in grant.inputs] == ["a", "b", "c"]
    assert sum(len(result or "") for _, _, result in grant.inputs) <= 1_048_576
    assert None in [result for _, _, result in grant.inputs]


# -------------------------------------------------------------------- revival


def test_a_revived_parent_mends_its_children_and_theirs(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "a", "b", "c")
    scheduler.fail_next()
    revived = scheduler.retry("a")
    assert (revived.state, revived.attempts) == ("queued", 0)
    assert scheduler.states("b", "c") == ["waiting_dependency"] * 2
    assert unmet(scheduler, "b", "c") == [1, 1]
    assert [error(scheduler, name) for name in "abc"] == [None] * 3
    assert scheduler.open_edges() == (2, 2)
    assert scheduler.run_to_end() == ["a", "b", "c"]
    assert scheduler.types("c") == [
        *("created", "cancelled", "requeued", "unblocked", "completed"),
    ]


def test_a_child_is_mended_when_the_last_of_its_broken_parents_is(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b", "c")
    scheduler.submit("child", depends_on=("a", "b", "c"))
    assert scheduler.complete_next().id == "a"
    scheduler.fail_next()
    scheduler.fail_next()
    scheduler.retry("c")
    assert (scheduler.states("child"), unmet(scheduler, "child")) == (["cancelled"], [-1])
    scheduler.retry("b")
    assert (scheduler.states("child"), unmet(scheduler, "child")) == (["waiting_dependency"], [2])
    assert scheduler.run_to_end() == ["b", "c", "child"]


def test_what_somebody_cancelled_is_not_mended(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "parent", "child")
    scheduler.cancel("child")
    scheduler.fail_next()
    scheduler.retry("parent")
    assert scheduler.states("child") == ["cancelled"]
    scheduler.retry("child")
    assert scheduler.run_to_end() == ["parent", "child"]


def test_a_child_cannot_begin_again_before_its_parent(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "parent", "child")
    scheduler.fail_next()
    refused = scheduler.refused(Retry("child"))
    assert isinstance(refused, Conflict)
    assert refused.details == {"dependency": "parent"}
    assert '"child" depends on "parent"' in refused.message


def test_a_child_is_met_and_mended_in_one_transaction(scheduler: Scheduler) -> None:
    """Whatever the order in which the edges are found, each counts once."""
    for done, broken in (("a1", "b1"), ("z2", "c2")):
        child_name = f"child of {done}"
        scheduler.submit(done, broken, agent=done)
        scheduler.submit(child_name, depends_on=(done, broken))
        scheduler.cancel(broken)
        (held,) = (grant.task for grant in scheduler.lease())
        scheduler.apply(Complete(held.seq, held.fencing_token), Retry(broken))
        assert (scheduler.states(child_name), unmet(scheduler, child_name)) == (
            ["waiting_dependency"],
            [1],
        )
        assert scheduler.run_to_end() == [broken, child_name]


def test_a_child_that_is_broken_and_mended_in_one_transaction_stays_broken(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("a", "b"))
    scheduler.cancel("b")
    held = scheduler.lease_one()
    scheduler.apply(Fail(held.seq, held.fencing_token, "no", retryable=False), Retry("b"))
    assert scheduler.states("a", "b", "child") == ["failed", "queued", "cancelled"]
    scheduler.retry("a")
    assert (scheduler.states("child"), unmet(scheduler, "child")) == (["waiting_dependency"], [2])


def test_what_is_cancelled_and_revived_at_once_keeps_its_children(scheduler: Scheduler) -> None:
    submit_chain(scheduler, "parent", "child")
    scheduler.apply(Cancel("parent"), Retry("parent"))
    assert scheduler.types("child") == ["created"]
    assert scheduler.run_to_end() == ["parent", "child"]


@pytest.mark.parametrize(
    ("before", "after"), [("fair-fifo", "priority"), ("priority", "fair-fifo")]
)
def test_a_mended_child_stands_in_the_line_of_the_new_strategy(
    scheduler: Scheduler, before: str, after: str
) -> None:
    scheduler.set_lane(strategy=before)
    submit_chain(scheduler, "parent", "child")
    scheduler.fail_next()
    scheduler.set_lane(strategy=after)
    scheduler.retry("parent")
    assert scheduler.run_to_end() == ["parent", "child"]


def test_a_mended_child_has_the_time_that_it_had(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.submit("parent")
    scheduler.submit("child", depends_on=("parent",), deadline_at=now + 5000)
    for round_ in range(1, 4):
        scheduler.cancel("parent")
        scheduler.clock.advance(60_000)
        scheduler.retry("parent")
        deadline_at = scheduler.view("child").task.deadline_at
        assert deadline_at == now + round_ * 60_000 + 5000


def test_a_grant_never_goes_to_what_its_parent_has_just_broken(scheduler: Scheduler) -> None:
    """The end, its consequences and the next lease are one transaction."""
    submit_chain(scheduler, "a", "b")
    held = scheduler.lease_one()
    report = Complete(held.seq, held.fencing_token)
    outcome = scheduler.apply(report, waiting=[lease_request(2)])
    (grant,) = outcome.grants[0]
    assert isinstance(grant.task, Task)
    assert (grant.task.id, grant.inputs) == ("b", (("a", "done", None),))
