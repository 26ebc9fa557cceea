"""Pre-emption: critical work that finds its lane full stops what may be interrupted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.engine.commands import Complete, Release, Submit
from tests.store.scheduler import NODE, WORK, lease_request, submission

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from fairlane.engine.engine import Outcome
    from tests.store.scheduler import Scheduler

AT_ONCE = frozenset({WORK})
OTHER = "handler/other"
CRITICAL = -20


@pytest.fixture(params=["fair-fifo", "priority"], autouse=True)
def strategy(request: pytest.FixtureRequest, scheduler: Scheduler) -> str:
    found: str = request.param
    scheduler.set_lane(strategy=found, maxInflight=2)
    return found


def fill(scheduler: Scheduler, *names: str, **fields: Any) -> list[Task]:
    """Submit each, and let it run."""
    fields.setdefault("preemptible", True)
    running = []
    for name in names:
        scheduler.submit(name, **fields)
        running.append(scheduler.lease_one(started=AT_ONCE))
    return running


def ask(scheduler: Scheduler, *batch: Any, **fields: Any) -> Outcome:
    """Somebody waits for one task."""
    return scheduler.apply(*batch, waiting=[lease_request(**fields)])


def asked(scheduler: Scheduler, *names: str) -> list[str]:
    """Those that were asked to make room."""
    return [name for name in names if scheduler.view(name).task.preempt == 1]


def stops(outcome: Outcome) -> list[int]:
    return [seq for seq, _ in outcome.runs_to_stop]


# -------------------------------------------------------------------- who is stopped


def test_the_lowest_priority_is_stopped_and_makes_room(scheduler: Scheduler) -> None:
    low, _ = (*fill(scheduler, "low", priority=5), *fill(scheduler, "normal"))
    scheduler.submit("critical", priority=CRITICAL)
    outcome = ask(scheduler)
    assert outcome.grants == [[]]
    assert outcome.runs_to_stop == [(low.seq, low.fencing_token)]
    assert asked(scheduler, "low", "normal") == ["low"]
    assert scheduler.states("low") == ["running"]
    outcome = ask(scheduler, Release(low.seq, low.fencing_token))
    assert [grant.task.id for grant in outcome.grants[0]] == ["critical"]
    assert scheduler.states("low", "normal", "critical") == ["queued", "running", "assigned"]


def test_of_equals_the_newest_is_stopped(scheduler: Scheduler) -> None:
    fill(scheduler, "older", "newer")
    scheduler.submit("critical", priority=CRITICAL)
    ask(scheduler)
    assert asked(scheduler, "older", "newer") == ["newer"]


def test_each_critical_task_stops_one(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b")
    scheduler.submit("one", "two", "three", priority=CRITICAL)
    ask(scheduler)
    assert asked(scheduler, "a", "b") == ["a", "b"]


def test_a_free_slot_is_used_before_anybody_is_stopped(scheduler: Scheduler) -> None:
    fill(scheduler, "a")
    scheduler.submit("critical", priority=CRITICAL)
    outcome = ask(scheduler)
    assert [grant.task.id for grant in outcome.grants[0]] == ["critical"]
    assert asked(scheduler, "a") == []


@pytest.mark.parametrize("critical", [-20, -100])
def test_what_nobody_may_interrupt_goes_on(scheduler: Scheduler, critical: int) -> None:
    fill(scheduler, "solid", preemptible=False)
    fill(scheduler, "urgent", priority=CRITICAL)
    scheduler.submit("critical", priority=critical)
    outcome = ask(scheduler)
    assert (outcome.grants, stops(outcome)) == ([[]], [])


def test_a_task_that_is_not_critical_pre_empts_no_run(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b", priority=100)
    scheduler.submit("important", priority=-19)
    assert stops(ask(scheduler)) == []


def test_a_task_that_was_leased_and_not_begun_is_stopped_too(scheduler: Scheduler) -> None:
    fill(scheduler, "a", preemptible=False)
    scheduler.submit("b", preemptible=True)
    held = scheduler.lease_one()
    scheduler.submit("critical", priority=CRITICAL)
    assert stops(ask(scheduler)) == [held.seq]


def test_a_stop_is_reported_to_the_node_that_runs_it(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b", preemptible=True)
    scheduler.lease(2, worker="elsewhere")
    scheduler.submit("critical", priority=CRITICAL)
    outcome = ask(scheduler)
    assert (outcome.runs_to_stop, outcome.notify_others) == ([], True)
    assert asked(scheduler, "a", "b") == ["b"]


# -------------------------------------------------------------------- what it costs


def test_no_attempt_is_lost(scheduler: Scheduler) -> None:
    (task,) = fill(scheduler, "a", max_attempts=1)
    fill(scheduler, "b", preemptible=False)
    for round_ in range(3):
        scheduler.submit(f"critical {round_}", priority=CRITICAL)
        assert stops(ask(scheduler)) == [task.seq]
        (grant,) = ask(scheduler, Release(task.seq, task.fencing_token)).grants[0]
        assert grant.task.id == f"critical {round_}"
        waiting = scheduler.view("a").task
        assert (waiting.ready, waiting.attempts, waiting.preempt) == (True, 0, 0)
        scheduler.complete(grant.task)
        task = scheduler.lease_one(started=AT_ONCE)
        assert (task.id, task.attempts) == ("a", 1)
    assert scheduler.complete(task).state == "done"
    assert scheduler.types("a") == ["created", *["started", "released"] * 3, "started", "completed"]


def test_a_run_that_ends_before_it_is_stopped_has_ended(scheduler: Scheduler) -> None:
    task, _ = fill(scheduler, "a", "b")
    scheduler.submit("critical", priority=CRITICAL)
    ask(scheduler)
    (victim,) = (scheduler.view(name).task for name in asked(scheduler, "a", "b"))
    outcome = ask(scheduler, Complete(victim.seq, victim.fencing_token, '"done"'))
    assert [grant.task.id for grant in outcome.grants[0]] == ["critical"]
    assert scheduler.states(victim.id) == ["done"]
    assert task.seq


def test_what_was_stopped_and_failed_can_be_stopped_again_in_its_next_life(
    scheduler: Scheduler,
) -> None:
    fill(scheduler, "solid", preemptible=False)
    (task,) = fill(scheduler, "a")
    scheduler.submit("critical", priority=CRITICAL)
    ask(scheduler)
    scheduler.fail(task, retryable=False)
    scheduler.complete(scheduler.lease_one())
    scheduler.retry("a")
    again = scheduler.lease_one(started=AT_ONCE)
    assert (again.id, again.preempt) == ("a", 0)
    assert stops(scheduler.apply()) == []
    scheduler.submit("another", priority=CRITICAL)
    assert stops(ask(scheduler)) == [again.seq]


# -------------------------------------------------------------------- not repeated


def test_a_stop_that_is_under_way_is_not_repeated(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b")
    scheduler.submit("critical", priority=CRITICAL)
    for _ in range(4):
        ask(scheduler)
        scheduler.pass_time(10)
    assert asked(scheduler, "a", "b") == ["b"]
    assert scheduler.types() == ["created", "started", "created", "started", "created"]


def test_without_a_waiting_task_no_run_is_stopped(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b")
    scheduler.submit("critical", priority=CRITICAL)
    scheduler.pass_time(100)
    assert asked(scheduler, "a", "b") == []


def test_a_route_that_nobody_serves_stops_nobody(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b")
    scheduler.submit("critical", priority=CRITICAL, capability=OTHER)
    assert stops(ask(scheduler)) == []
    assert stops(ask(scheduler, capabilities=frozenset({OTHER}))) != []


def test_a_request_for_other_lanes_pre_empts_no_run(scheduler: Scheduler) -> None:
    fill(scheduler, "a", "b")
    scheduler.submit("critical", priority=CRITICAL)
    assert stops(ask(scheduler, lanes=("browser", "queue"))) == []


@pytest.mark.parametrize("why", ["paused", "session", "delay", "batch", "dependency"])
def test_critical_work_that_something_else_holds_up_stops_nobody(
    scheduler: Scheduler, why: str
) -> None:
    fill(scheduler, "a", session="s")
    gated: dict[str, dict[str, Any]] = {
        "session": {"session": "s"},
        "delay": {"delay_ms": 5000},
        "dependency": {"depends_on": ("a",)},
    }
    if why == "batch":
        critical = [submission(name, priority=CRITICAL) for name in ("first", "critical")]
        scheduler.batch(*critical, parallelism=1)
        assert scheduler.names() == ["first"]
    else:
        fill(scheduler, "b")
        scheduler.set_lane(paused=why == "paused")
        scheduler.submit("critical", priority=CRITICAL, **gated.get(why, {}))
    assert stops(ask(scheduler)) == []
    assert asked(scheduler, "a") == []


@pytest.mark.parametrize("strategy", ["fair-fifo"], indirect=True)
def test_an_agent_at_its_own_ceiling_stops_nobody_for_ever(scheduler: Scheduler) -> None:
    """The worker gives up whatever it is asked for, and asks again: nothing may happen."""
    scheduler.set_lane(maxPerAgentInflight=1)
    fill(scheduler, "own", agent="ada", preemptible=False)
    fill(scheduler, "other", agent="bob")
    scheduler.submit("critical", agent="ada", priority=CRITICAL)
    for _ in range(5):
        assert stops(ask(scheduler)) == []
        scheduler.pass_time(100)
    assert "released" not in scheduler.types()


@pytest.mark.parametrize("strategy", ["fair-fifo"], indirect=True)
def test_no_more_are_stopped_than_the_agents_ceiling_lets_run(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=4, maxPerAgentInflight=2)
    fill(scheduler, "own", agent="ada", preemptible=False)
    fill(scheduler, "b0", "b1", agent="bob")
    fill(scheduler, "c0", agent="cyd")
    scheduler.submit("one", "two", "three", agent="ada", priority=CRITICAL)
    ask(scheduler)
    assert asked(scheduler, "b0", "b1", "c0") == ["c0"]


def test_the_slot_that_was_made_goes_to_whom_it_was_made_for(scheduler: Scheduler) -> None:
    """Not back to the one that was stopped, whose worker has been waiting for longer."""
    fill(scheduler, "solid", preemptible=False)
    (victim,) = fill(scheduler, "victim")
    scheduler.submit("critical", priority=CRITICAL, capability=OTHER)
    waiting = [lease_request(), lease_request(capabilities=frozenset({OTHER}))]
    assert stops(scheduler.apply(waiting=waiting)) == [victim.seq]
    outcome = scheduler.apply(Release(victim.seq, victim.fencing_token), waiting=waiting)
    assert [[grant.task.id for grant in grants] for grants in outcome.grants] == [[], ["critical"]]


# -------------------------------------------------------------------- under the ceiling


def test_one_ceiling_over_all_lanes_makes_room_in_the_tasks_own(scheduler: Scheduler) -> None:
    scheduler.set_policy(maxInflight=2)
    fill(scheduler, "here")
    scheduler.submit("there", kind="action", preemptible=True)
    scheduler.lease_one()
    scheduler.submit("critical", priority=CRITICAL)
    assert stops(ask(scheduler)) == [scheduler.view("here").task.seq]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_ceiling_is_never_exceeded_and_everything_ends(scheduler: Scheduler, seed: int) -> None:
    chance = random.Random(seed)
    held: dict[int, Task] = {}
    names = []
    for number in range(60):
        priority = chance.choice((CRITICAL, -5, 0, 10))
        name = f"t{number}"
        names.append(name)
        new = submission(name, priority=priority, preemptible=chance.random() < 0.7)
        batch: list[Any] = [Submit([new])]
        for task in list(held.values()):
            if scheduler.view(task.id).task.preempt == 1:
                batch.append(Release(task.seq, task.fencing_token))
                del held[task.seq]
            elif chance.random() < 0.3:
                batch.append(Complete(task.seq, task.fencing_token))
                del held[task.seq]
        outcome = scheduler.apply(*batch, waiting=[lease_request(3, worker=NODE)])
        held.update({grant.task.seq: grant.task for grant in outcome.grants[0]})
        assert scheduler.tally().slots == len(held) <= 2
    while held or scheduler.tally().queued:
        done = [Complete(task.seq, task.fencing_token) for task in held.values()]
        outcome = scheduler.apply(*done, waiting=[lease_request(3)])
        held = {grant.task.seq: grant.task for grant in outcome.grants[0]}
    assert set(scheduler.states(*names)) == {"done"}
