"""Batches: how many tasks of one run at once, when it ends, and its event and webhook."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, InvalidRequest, NotFound, QueueFull
from fairlane.engine.commands import (
    Cancel,
    CancelBatch,
    ClaimDeliveries,
    IdempotencyKey,
    NewBatch,
    SettleDelivery,
    Submit,
)
from tests.store.scheduler import lease_request, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from fairlane.core.batches import Batch
    from fairlane.core.model import Submission
    from tests.store.scheduler import Scheduler

URL = "https://receiver.example/batch"
DAY_MS = 86_400_000


def items(count: int, prefix: str = "t", **fields: Any) -> list[Submission]:
    return [submission(f"{prefix}{number}", **fields) for number in range(count)]


def numbers(batch: Batch) -> tuple[int, int, int, int]:
    return batch.total, batch.open, batch.holders, batch.waiting


def completions(scheduler: Scheduler, name: str = "batch") -> int:
    told = scheduler.events(batch=name)
    return sum(event.type == "batch.completed" for event in told)


def owed(scheduler: Scheduler) -> list[str]:
    """The webhooks that are due, by what they tell."""
    return [one.event for one in scheduler.ask(ClaimDeliveries(100))]


# -------------------------------------------------------------------- how many at once


def test_no_more_run_at_once_than_the_batch_says(scheduler: Scheduler) -> None:
    scheduler.batch(*items(5), parallelism=2)
    assert numbers(scheduler.batch_view()) == (5, 5, 2, 3)
    assert [scheduler.view(f"t{n}").task.gate for n in range(5)] == [None, None, *["batch"] * 3]
    first, second = (grant.task for grant in scheduler.lease(5))
    assert scheduler.names(5) == []
    scheduler.complete(first)
    assert scheduler.names(5) == ["t2"]
    scheduler.complete(second)
    assert scheduler.names(5) == ["t3"]
    assert numbers(scheduler.batch_view()) == (5, 3, 2, 1)


def test_without_a_number_only_the_lane_decides(scheduler: Scheduler) -> None:
    scheduler.batch(*items(5))
    assert numbers(scheduler.batch_view()) == (5, 5, 5, 0)
    assert len(scheduler.names(9)) == 5


def test_the_next_place_goes_to_the_highest_priority(scheduler: Scheduler) -> None:
    low, high = submission("low", priority=5), submission("high", priority=-5)
    scheduler.batch(submission("first"), low, high, parallelism=1)
    assert scheduler.run_to_end() == ["high", "first", "low"]


def test_batches_do_not_hold_each_other_up(scheduler: Scheduler) -> None:
    scheduler.batch(*items(3, "a"), name="a", parallelism=1)
    scheduler.batch(*items(3, "b"), name="b", parallelism=2)
    assert scheduler.names(9) == ["a0", "b0", "b1"]


@pytest.mark.parametrize("how", ["complete", "fail", "retry", "cancel", "expire", "park", "lost"])
def test_a_place_is_free_however_a_run_ends(scheduler: Scheduler, how: str) -> None:
    fields: dict[str, Any] = {"max_attempts": 1} if how == "park" else {}
    if how == "expire":
        fields["deadline_at"] = scheduler.clock.now() + 500
    scheduler.batch(submission("first", **fields), submission("second"), parallelism=1)
    first = scheduler.lease_one(started=frozenset({"handler/work"}))
    if how == "complete":
        scheduler.complete(first)
    elif how in {"fail", "retry", "park"}:
        scheduler.fail(first, retryable=how != "fail")
    elif how == "lost":
        scheduler.pass_time(15_000)
    else:
        if how == "cancel":
            scheduler.cancel("first")
        else:
            scheduler.pass_time(500)
        assert scheduler.names() == []  # its run has not stopped yet
        scheduler.complete(first)
    assert scheduler.names() == ["second"]


def test_a_released_run_keeps_its_place(scheduler: Scheduler) -> None:
    scheduler.batch(*items(2), parallelism=1)
    scheduler.release(scheduler.lease_one())
    assert scheduler.names(2) == ["t0"]


def test_what_waits_for_a_retry_queues_for_a_place_again(scheduler: Scheduler) -> None:
    scheduler.batch(*items(3), parallelism=1)
    scheduler.fail(scheduler.lease_one())
    second = scheduler.lease_one()
    scheduler.pass_time(1000)
    assert scheduler.view("t0").task.gate == "batch"
    scheduler.complete(second)
    assert scheduler.run_to_end() == ["t0", "t2"]


def test_what_waits_for_a_moment_or_for_others_takes_no_place(scheduler: Scheduler) -> None:
    late = submission("late", delay_ms=5000)
    child = submission("child", depends_on=("last",))
    scheduler.batch(late, child, submission("last"), parallelism=1)
    assert [scheduler.view(name).task.gate for name in ("late", "child", "last")] == [
        "delay",
        "dependency",
        None,
    ]
    assert scheduler.run_to_end() == ["last", "child"]
    scheduler.pass_time(5000)
    assert scheduler.run_to_end() == ["late"]


def test_a_task_that_waits_for_its_session_takes_no_place(scheduler: Scheduler) -> None:
    scheduler.submit("talks", session="s")
    talking = scheduler.lease_one()
    scheduler.batch(submission("next", session="s"), submission("other"), parallelism=1)
    assert scheduler.view("next").task.gate == "session"
    other = scheduler.lease_one()
    assert other.id == "other"
    scheduler.complete(talking)
    assert scheduler.view("next").task.gate == "batch"
    scheduler.complete(other)
    assert scheduler.run_to_end() == ["next"]


def test_a_higher_priority_takes_turn_and_place_over(scheduler: Scheduler) -> None:
    scheduler.batch(
        submission("first", session="s"),
        submission("second", session="s", priority=-5),
        submission("third"),
        parallelism=1,
    )
    assert scheduler.run_to_end() == ["second", "first", "third"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_with_sessions_retries_and_dependencies_mixed_in_nothing_locks(
    scheduler: Scheduler, seed: int
) -> None:
    """After every step no place is exceeded, and everything has ended at last."""
    chance = random.Random(seed)
    names: list[str] = []
    for batch in ("a", "b", "c"):
        new: list[Submission] = []
        for number in range(8):
            parents = tuple(chance.sample(names, min(len(names), chance.choice((0, 0, 1, 2)))))
            session = chance.choice((None, None, "s1", "s2"))
            delay_ms = chance.choice((None, None, 700))
            name = f"{batch}{number}"
            new.append(submission(name, session=session, depends_on=parents, delay_ms=delay_ms))
            names.append(name)
        scheduler.batch(*new, name=batch, parallelism=chance.choice((1, 2, 3)))
    held: list[Any] = []
    for _ in range(600):
        held += [grant.task for grant in scheduler.lease(chance.randint(1, 3))]
        for batch in ("a", "b", "c"):
            seen = scheduler.batch_view(batch)
            running = [task for task in held if task.batch == batch]
            assert len(running) <= (seen.parallelism or 0)
        if held:
            task = held.pop(chance.randrange(len(held)))
            end = chance.choice(("complete", "complete", "fail", "release", "cancel"))
            if end == "cancel":
                scheduler.cancel(task.id)
                scheduler.complete(task)
            else:
                getattr(scheduler, end)(task)
        else:
            scheduler.pass_time(1000)
        if all(scheduler.batch_view(batch).completed_at for batch in ("a", "b", "c")):
            break
    states = set(scheduler.states(*names))
    assert states <= {"done", "cancelled", "parked", "waiting_dependency"}
    waits = [name for name in names if scheduler.view(name).state == "waiting_dependency"]
    assert not waits or "parked" in states  # only somebody who parked is still waited for


# -------------------------------------------------------------------- the end


def test_a_batch_is_over_when_its_last_task_has_ended(scheduler: Scheduler) -> None:
    scheduler.batch(*items(3), callback_url=URL)
    scheduler.complete_next()
    scheduler.fail_next()
    assert (scheduler.batch_view().state, completions(scheduler), owed(scheduler)) == (
        "running",
        0,
        [],
    )
    scheduler.clock.advance(70)
    scheduler.cancel("t2")
    batch = scheduler.batch_view()
    assert (batch.state, batch.completed_at) == ("completed", scheduler.clock.now())
    assert completions(scheduler) == 1
    assert owed(scheduler) == ["batch.completed"]
    scheduler.pass_time(60_000)
    assert completions(scheduler) == 1


def test_its_end_is_the_last_event(scheduler: Scheduler) -> None:
    scheduler.batch(*items(2))
    grants = scheduler.lease(2)
    scheduler.apply(*(Cancel(grant.task.id) for grant in grants))
    told = [event.type for event in scheduler.events(batch="batch")]
    assert told == [*["task.created"] * 2, *["task.cancelled"] * 2, "batch.completed"]
    last = scheduler.events(batch="batch")[-1]
    assert (last.seq, last.batch, last.state) == (None, "batch", "completed")


def test_items_that_the_queue_refuses_belong_to_the_batch(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    answers = scheduler.batch(*items(3))
    assert [isinstance(answer, QueueFull) for answer in answers] == [False, True, True]
    assert numbers(scheduler.batch_view()) == (3, 1, 1, 0)
    scheduler.complete_next()
    assert scheduler.batch_view().state == "completed"


def test_a_batch_that_is_refused_whole_is_over_at_once(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("in the way")
    scheduler.batch(*items(2), callback_url=URL)
    assert (scheduler.batch_view().state, completions(scheduler)) == ("completed", 1)
    assert owed(scheduler) == ["batch.completed"]


@pytest.mark.parametrize("how", ["late", "cycle"])
def test_of_a_batch_that_nothing_came_of_nothing_is_kept(scheduler: Scheduler, how: str) -> None:
    if how == "late":
        bad = submission("late", deadline_at=scheduler.clock.now() - 1)
        answers = scheduler.batch(bad, submission("child", depends_on=("late",)))
        assert all(isinstance(answer, InvalidRequest) for answer in answers)
    else:
        cycle = [submission("a", depends_on=("b",)), submission("b", depends_on=("a",))]
        refused = scheduler.refused(Submit(cycle, batch=NewBatch("batch", "a")))
        assert isinstance(refused, InvalidRequest)
    assert scheduler.reader.run("batch_view", id="batch") == []
    assert (scheduler.events(), owed(scheduler)) == ([], [])


def test_a_batch_that_is_sent_again_is_the_same_one(scheduler: Scheduler) -> None:
    key = IdempotencyKey("a", "key", "digest")
    new = [submission("first", batch="one")]
    scheduler.ask(Submit(new, key, NewBatch("one", "a", 1)))
    again = [submission("second", batch="two")]
    (answer,) = scheduler.ask(Submit(again, key, NewBatch("two", "a", 1)))
    assert (answer.id, answer.batch) == ("first", "one")
    assert scheduler.reader.run("batch_view", id="two") == []


def test_a_parked_task_keeps_its_batch_open(scheduler: Scheduler) -> None:
    scheduler.batch(submission("t0", max_attempts=1))
    scheduler.fail(scheduler.lease_one())
    assert (scheduler.states("t0"), scheduler.batch_view().state) == (["parked"], "running")
    scheduler.reset("t0")
    scheduler.complete_next()
    assert completions(scheduler) == 1


def test_a_revived_task_opens_the_batch_until_it_ends_again(scheduler: Scheduler) -> None:
    scheduler.batch(*items(2), callback_url=URL)
    scheduler.fail_next()
    scheduler.complete_next()
    assert scheduler.batch_view().state == "completed"
    scheduler.retry("t0")
    batch = scheduler.batch_view()
    assert (batch.state, batch.completed_at, batch.total, batch.open) == ("running", None, 2, 1)
    scheduler.complete_next()
    assert scheduler.batch_view().state == "completed"
    assert completions(scheduler) == 2
    assert owed(scheduler) == ["batch.completed"] * 2


def test_a_revived_task_waits_for_a_place(scheduler: Scheduler) -> None:
    scheduler.batch(*items(3), parallelism=1)
    scheduler.fail_next()
    held = scheduler.lease_one()
    assert scheduler.retry("t0").gate == "batch"
    scheduler.complete(held)
    assert scheduler.run_to_end() == ["t0", "t2"]


# -------------------------------------------------------------------- cancel


def test_a_cancelled_batch_ends_whatever_its_tasks_were_doing(scheduler: Scheduler) -> None:
    late = submission("late", delay_ms=9000)
    scheduler.batch(
        *items(3), late, submission("child", depends_on=("t1",)), parallelism=2, callback_url=URL
    )
    scheduler.complete_next()
    running = scheduler.lease_one()
    scheduler.submit("elsewhere", depends_on=("t2",))
    assert scheduler.cancel_batch() == 4
    states = scheduler.states("t0", "t1", "t2", "late", "child", "elsewhere")
    assert states == ["done", *["cancelled"] * 5]
    assert scheduler.view("child").error is None
    assert scheduler.view("elsewhere").error == "dependency t2 cancelled"
    batch = scheduler.batch_view()
    assert (batch.state, batch.completed_at) == ("cancelled", scheduler.clock.now())
    assert numbers(batch) == (5, 0, 1, 0)
    assert scheduler.events(batch="batch")[-1].state == "cancelled"
    assert (completions(scheduler), owed(scheduler)) == (1, ["batch.completed"])
    scheduler.complete(running)
    assert (scheduler.batch_view().holders, completions(scheduler)) == (0, 1)


def test_only_a_running_batch_can_be_cancelled(scheduler: Scheduler) -> None:
    scheduler.batch(*items(1))
    assert scheduler.cancel_batch() == 1
    for _ in range(2):
        refused = scheduler.refused(CancelBatch("batch"))
        assert isinstance(refused, Conflict)
        assert refused.details == {"state": "cancelled"}
    assert isinstance(scheduler.refused(CancelBatch("nobody")), NotFound)


def test_a_revival_makes_a_cancelled_batch_an_ordinary_one(scheduler: Scheduler) -> None:
    scheduler.batch(*items(2))
    scheduler.cancel_batch()
    scheduler.retry("t1")
    assert scheduler.batch_view().state == "running"
    scheduler.complete_next()
    assert scheduler.batch_view().state == "completed"


# -------------------------------------------------------------------- what is forgotten


def test_a_batch_is_forgotten_with_its_last_task(scheduler: Scheduler) -> None:
    scheduler.batch(*items(2), callback_url=URL)
    scheduler.complete_next()
    scheduler.clock.advance(20 * DAY_MS)
    scheduler.complete_next()
    (delivery,) = scheduler.ask(ClaimDeliveries(9))
    scheduler.ask(SettleDelivery(delivery.id, delivered=True))
    scheduler.pass_time(11 * DAY_MS)
    assert scheduler.find("t0") is None
    assert numbers(scheduler.batch_view()) == (2, 0, 0, 0)
    scheduler.pass_time(20 * DAY_MS)
    assert scheduler.find("t1") is None
    assert scheduler.reader.run("batch_view", id="batch") == []
    assert scheduler.events() == []
    assert contents(scheduler.store)["delivery"] == []


def test_a_batch_is_kept_while_its_webhook_is_owed(scheduler: Scheduler) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 1})
    scheduler.batch(*items(1), callback_url=URL)
    scheduler.complete_next()
    scheduler.pass_time(60_000)
    (delivery,) = scheduler.ask(ClaimDeliveries(9))
    assert scheduler.reader.run_rows("batch_view_many", [(delivery.seq,)]) != []
    scheduler.ask(SettleDelivery(delivery.id, delivered=True))
    scheduler.pass_time(60_000)
    assert scheduler.reader.run_rows("batch_view_many", [(delivery.seq,)]) == []


def test_what_comes_in_with_a_lease_waiting_keeps_to_the_limit(scheduler: Scheduler) -> None:
    """A lane without a backlog is served from what has just come in."""
    request = Submit(
        [submission(f"t{number}", batch="batch") for number in range(4)],
        batch=NewBatch("batch", "a", 2),
    )
    outcome = scheduler.apply(request, waiting=[lease_request(9)])
    assert [grant.task.id for grant in outcome.grants[0]] == ["t0", "t1"]
