"""Slots that only critical work may take, ceilings that change, lanes that pause or are emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.engine.commands import Cancel, Submit
from tests.store.chat import WINDOW_MS, Chat
from tests.store.scheduler import lease_request, submission

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler

CRITICAL = -20
STRATEGIES = pytest.mark.parametrize("strategy", ["fair-fifo", "priority"])


def reserve(scheduler: Scheduler, strategy: str, slots: int = 1, ceiling: int = 3) -> None:
    scheduler.set_lane(strategy=strategy, maxInflight=ceiling, reserved={"critical": slots})


def fill(scheduler: Scheduler, count: int = 10, agent: str = "a", **fields: int) -> None:
    scheduler.submit(*(f"{agent}{number}" for number in range(count)), agent=agent, **fields)


# -------------------------------------------------------------------- reserved


@STRATEGIES
def test_other_work_never_takes_the_last_slots(scheduler: Scheduler, strategy: str) -> None:
    reserve(scheduler, strategy, slots=2, ceiling=5)
    fill(scheduler)
    fill(scheduler, agent="b")
    assert len(scheduler.lease(10)) == 3
    assert scheduler.lease(10) == []


@STRATEGIES
def test_critical_work_finds_a_slot_in_a_busy_lane(scheduler: Scheduler, strategy: str) -> None:
    reserve(scheduler, strategy)
    fill(scheduler)
    assert len(scheduler.lease(10)) == 2
    scheduler.submit("alarm1", "alarm2", agent="c", priority=CRITICAL)
    assert scheduler.names(10) == ["alarm1"]
    assert scheduler.tally().slots == 3
    assert scheduler.lease(10) == [], "the ceiling holds for critical work too"


@STRATEGIES
def test_critical_work_of_a_busy_agent_finds_it_too(scheduler: Scheduler, strategy: str) -> None:
    reserve(scheduler, strategy)
    fill(scheduler)
    scheduler.lease(10)
    scheduler.submit("alarm", agent="a", priority=CRITICAL)
    assert scheduler.names(10) == ["alarm"]


@STRATEGIES
def test_in_the_transaction_in_which_it_came(scheduler: Scheduler, strategy: str) -> None:
    """A lane without a backlog is served from what came in just now."""
    reserve(scheduler, strategy, slots=1, ceiling=3)
    tasks = [submission(f"t{number}", "a") for number in range(4)]
    tasks.append(submission("alarm", "b", priority=CRITICAL))
    outcome = scheduler.apply(Submit(tasks), waiting=[lease_request(10)])
    names = [grant.task.id for grant in outcome.grants[0]]
    assert len(names) == 2
    assert "alarm" in names
    scheduler.submit("alarm2", agent="b", priority=CRITICAL)
    assert scheduler.names(10) == ["alarm2"]


@STRATEGIES
def test_critical_work_may_take_every_slot(scheduler: Scheduler, strategy: str) -> None:
    reserve(scheduler, strategy)
    fill(scheduler, priority=CRITICAL)
    assert len(scheduler.lease(10)) == 3


@STRATEGIES
def test_others_are_not_starved_while_nothing_critical_runs(
    scheduler: Scheduler, strategy: str
) -> None:
    reserve(scheduler, strategy, slots=2, ceiling=3)
    fill(scheduler)
    assert scheduler.run_to_end() == [f"a{number}" for number in range(10)]


@STRATEGIES
def test_a_slot_that_critical_work_gives_back_is_reserved_again(
    scheduler: Scheduler, strategy: str
) -> None:
    reserve(scheduler, strategy)
    fill(scheduler)
    scheduler.lease(10)
    scheduler.submit("alarm", agent="c", priority=CRITICAL)
    alarm = scheduler.lease_one()
    scheduler.complete(alarm)
    assert scheduler.lease(10) == []
    assert scheduler.tally().slots == 2


@STRATEGIES
def test_what_has_aged_is_not_critical(scheduler: Scheduler, strategy: str) -> None:
    """Old work may stand before a new alarm in the line, but not in the reserved slot."""
    scheduler.set_lane(strategy=strategy, maxInflight=2, agingMs=10, reserved={"critical": 1})
    fill(scheduler)
    assert scheduler.names(10) == ["a0"]
    scheduler.clock.advance(60_000)
    scheduler.submit("alarm", agent="a", priority=CRITICAL)
    assert scheduler.names(10) == ["alarm"]


def test_an_agents_own_ceiling_holds_for_its_critical_work(scheduler: Scheduler) -> None:
    reserve(scheduler, "fair-fifo")
    scheduler.set_lane(maxPerAgentInflight=1)
    fill(scheduler, 3)
    assert len(scheduler.lease(10)) == 1
    scheduler.submit("mine", agent="a", priority=CRITICAL)
    scheduler.submit("other", agent="b", priority=CRITICAL)
    assert scheduler.names(10) == ["other"]


def test_a_reservation_that_is_lifted_starts_work_at_once(scheduler: Scheduler) -> None:
    reserve(scheduler, "fair-fifo")
    fill(scheduler)
    assert len(scheduler.lease(10)) == 2
    scheduler.set_lane(reserved={"critical": 0})
    assert len(scheduler.lease(10)) == 1


def test_a_critical_message_passes_the_others_of_its_session(scheduler: Scheduler) -> None:
    reserve(scheduler, "fair-fifo", slots=1, ceiling=2)
    chat = Chat(scheduler)
    other = Chat(scheduler, "other")
    other.say_at_once("busy")
    chat.say_at_once("normal")
    assert scheduler.names(10) == ["busy"]
    chat.say("urgent", priority="critical", debounce_ms=0)
    assert scheduler.names(10) == ["urgent"]


# -------------------------------------------------------------------- ceilings


def test_raising_a_ceiling_starts_work_at_once_and_lowering_kills_nothing(
    scheduler: Scheduler,
) -> None:
    scheduler.set_lane(maxInflight=2)
    fill(scheduler)
    running = [grant.task for grant in scheduler.lease(10)]
    assert len(running) == 2
    scheduler.set_lane(maxInflight=4)
    running += [grant.task for grant in scheduler.lease(10)]
    assert len(running) == 4
    scheduler.set_lane(maxInflight=1)
    assert set(scheduler.states(*(task.id for task in running))) == {"assigned"}
    for task in running[:3]:
        scheduler.complete(task)
        assert scheduler.lease(10) == []
    scheduler.complete(running[3])
    assert len(scheduler.lease(10)) == 1


def test_a_run_may_begin_in_the_transaction_that_ends_the_last_in_a_lane_of_one(
    scheduler: Scheduler,
) -> None:
    scheduler.set_lane(maxInflight=1)
    chat = Chat(scheduler)
    chat.say_at_once("m1", "m2", "m3")
    assert scheduler.run_to_end() == ["m1", "m2", "m3"]


# -------------------------------------------------------------------- pause, clear


def test_a_paused_lane_starts_nothing_and_what_runs_goes_on(scheduler: Scheduler) -> None:
    fill(scheduler, 3)
    running = scheduler.start(scheduler.lease_one())
    scheduler.set_lane(paused=True)
    assert scheduler.lease(10) == []
    assert scheduler.renew(running).state == "running"
    assert scheduler.complete(running).state == "done"
    scheduler.submit("other", lane="queue")
    assert scheduler.names(10) == ["other"]
    scheduler.set_lane(paused=False)
    assert scheduler.names(10) == ["a1", "a2"]


def test_an_emptied_lane_keeps_what_runs(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    chat = Chat(scheduler)
    chat.say_at_once("m1", "m2")
    running = scheduler.lease_one()
    chat.say("m3", debounce_ms=WINDOW_MS, sender="bob")
    scheduler.submit("t1")
    scheduler.submit("later", delay_ms=1000)
    scheduler.submit("elsewhere", lane="queue")
    names = ("m2", "m3", "t1", "later")
    scheduler.apply(*(Cancel(name, "lane_cleared: by hand") for name in names))
    assert set(scheduler.states(*names)) == {"cancelled"}
    assert {(scheduler.view(name).error or "").partition(":")[0] for name in names} == {
        "lane_cleared"
    }
    assert scheduler.complete(running).state == "done"
    assert scheduler.names(5) == ["elsewhere"]
    assert chat.row() is None
