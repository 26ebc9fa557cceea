"""Why a task waits: the sentence and the facts for every gate and every full ceiling."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fairlane.core.explain import GATES, Why
from fairlane.core.model import Message
from fairlane.core.sessions import MessageSettings
from fairlane.engine.commands import Beat
from fairlane.engine.reads import plan as planning
from fairlane.engine.reads import why as explaining
from fairlane.engine.reads.plan import PlanQuery
from tests.store.scheduler import Scheduler, submission


def why(scheduler: Scheduler, name: str) -> Why:
    found = explaining.read(scheduler.reader, name)
    assert found is not None
    assert found.task.id == name
    return found.why


def test_a_task_that_nobody_knows_has_no_reason(scheduler: Scheduler) -> None:
    assert explaining.read(scheduler.reader, "nobody") is None


def test_a_child_waits_for_its_parents(scheduler: Scheduler) -> None:
    scheduler.submit("done", "running", "queued", lane="team")
    for _ in range(2):
        task = scheduler.lease_one(lanes=("team",))
        scheduler.start(task)
        if task.id == "done":
            scheduler.complete(task)
    scheduler.submit("child", depends_on=("done", "running", "queued", "unknown"))
    found = why(scheduler, "child")
    assert (found.ready, found.gate, found.position) == (False, "dependency", None)
    assert found.waiting_for == ["queued", "running", "unknown"]
    assert found.reason == (
        "it depends on 3 tasks that are not done: "
        "queued (queued), running (running), unknown (not known yet)"
    )


def test_a_child_of_one_says_so(scheduler: Scheduler) -> None:
    scheduler.submit("child", depends_on=("unknown",))
    text = "it depends on a task that is not done: unknown (not known yet)"
    assert why(scheduler, "child").reason == text


def test_a_task_for_later_tells_when(scheduler: Scheduler) -> None:
    scheduler.submit("later", delay_ms=90_000)
    found = why(scheduler, "later")
    assert (found.ready, found.gate) == (False, "delay")
    assert found.waiting_for == ["2023-11-14T22:14:50.000Z"]
    assert found.reason == "it is scheduled to start no earlier than 2023-11-14T22:14:50.000Z"


def test_a_retry_tells_what_went_wrong_and_when_it_starts(scheduler: Scheduler) -> None:
    scheduler.submit("again")
    scheduler.fail(scheduler.lease_one(), "no luck")
    found = why(scheduler, "again")
    assert found.gate == "delay"
    assert found.reason == (
        "attempt 1 of 3 failed: no luck; "
        "the next attempt starts no earlier than 2023-11-14T22:13:21.000Z"
    )


def test_a_message_may_still_grow(scheduler: Scheduler) -> None:
    scheduler.submit(
        "said",
        session="chat",
        message=Message("hello", "ann", settings=MessageSettings(debounce_ms=800)),
    )
    found = why(scheduler, "said")
    assert (found.gate, found.waiting_for) == ("debounce", ["2023-11-14T22:13:20.800Z"])
    assert "it is waiting until 2023-11-14T22:13:20.800Z" in found.reason


def test_a_session_names_who_has_the_turn_and_the_place_in_it(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", "third", session="chat")
    found = why(scheduler, "third")
    assert (found.gate, found.waiting_for, found.position) == ("session", ["first"], 2)
    assert found.reason == (
        "session chat runs one task at a time, and another one is running; 1 "
        "task is ahead of it in the session"
    )
    scheduler.start(scheduler.lease_one())
    assert why(scheduler, "second").waiting_for == ["first"]
    assert why(scheduler, "second").position == 1


def test_a_batch_tells_how_many_it_runs_at_once(scheduler: Scheduler) -> None:
    scheduler.batch(submission("one"), submission("two"), submission("three"), parallelism=2)
    found = why(scheduler, "three")
    assert (found.gate, found.waiting_for) == ("batch", ["one", "two"])
    assert found.reason == "batch batch runs at most 2 tasks at once, and 2 are in flight"


def test_a_paused_lane_is_a_gate(scheduler: Scheduler) -> None:
    scheduler.set_lane(paused=True)
    scheduler.submit("one", "two")
    found = why(scheduler, "two")
    assert (found.ready, found.gate, found.ceiling, found.position) == (False, "paused", None, 2)
    assert found.reason == "lane main is paused; its tasks start when you resume it"


def test_a_full_lane_names_who_has_its_slots(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=2)
    scheduler.submit("one", "two", "three", "four", agent="b")
    scheduler.lease(4)
    found = why(scheduler, "four")
    assert (found.ready, found.gate, found.position) == (True, None, 2)
    assert found.ceiling is not None
    assert (found.ceiling.scope, found.ceiling.limit, found.ceiling.in_use) == ("lane", 2, 2)
    assert found.waiting_for == ["one", "two"]
    assert found.reason == "all 2 slots of lane main are in use; 1 task is ahead of it"


def test_slots_that_are_kept_for_critical_work_are_reported(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=3, reserved={"critical": 1})
    scheduler.submit("one", "two", "three")
    scheduler.lease(3)
    found = why(scheduler, "three")
    assert found.ceiling is not None
    assert (found.ceiling.limit, found.ceiling.in_use) == (2, 2)
    assert "(1 more is reserved for critical tasks)" in found.reason
    scheduler.submit("urgent", priority=-20)
    assert why(scheduler, "urgent").ceiling is None


def test_an_agent_at_its_own_limit_is_reported(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=5, maxPerAgentInflight=1)
    scheduler.submit("mine", "next", agent="a")
    scheduler.submit("other", agent="b")
    scheduler.lease(5)
    found = why(scheduler, "next")
    assert found.ceiling is not None
    assert (found.ceiling.scope, found.ceiling.limit, found.ceiling.in_use) == ("agent", 1, 1)
    assert found.waiting_for == ["mine"]
    assert found.reason.startswith("agent a uses the only slot that it may use in lane main")


def test_the_ceiling_over_all_lanes_comes_first(scheduler: Scheduler) -> None:
    scheduler.set_policy(maxInflight=1, lanes={"main": {"maxInflight": 1}})
    scheduler.submit("there", lane="queue")
    scheduler.submit("here")
    scheduler.lease(1, lanes=("queue",))
    found = why(scheduler, "here")
    assert found.ceiling is not None
    assert (found.ceiling.scope, found.ceiling.limit, found.ceiling.in_use) == ("global", 1, 1)
    assert found.waiting_for == ["there"]


def test_every_ceiling_that_is_full_is_named(scheduler: Scheduler) -> None:
    scheduler.set_policy(
        maxInflight=1, lanes={"main": {"maxInflight": 1}}, agents={"a": {"maxInflight": 1}}
    )
    scheduler.submit("one", "two")
    scheduler.lease(1)
    assert [(one.scope, one.setting) for one in why(scheduler, "two").ceilings] == [
        ("global", "maxInflight"),
        ("lane", "lanes.main.maxInflight"),
        ("agent", "agents.a.maxInflight"),
    ]


# -------------------------------------------------------------------- servers


def beat(scheduler: Scheduler, name: str, **fields: Any) -> None:
    scheduler.ask(Beat(name, host="h", pid=1, version="1", started_at=1, alone=False, **fields))


def why_on(scheduler: Scheduler, name: str, routes: frozenset[str] | None = None) -> Why:
    servers = explaining.serving("node_1", lambda _: scheduler.clock.now(), lambda: routes)
    found = explaining.read(scheduler.reader, name, servers=servers)
    assert found is not None
    return found.why


def test_servers_that_run_as_much_as_they_may_are_reported(scheduler: Scheduler) -> None:
    scheduler.set_policy(workerCount=1)
    beat(scheduler, "node_1")
    scheduler.submit("one", "two")
    scheduler.lease(1)
    found = why_on(scheduler, "two")
    assert [(one.scope, one.limit, one.in_use) for one in found.ceilings] == [("worker", 1, 1)]
    assert (found.ready, found.waiting_for) == (True, ["one"])
    assert found.reason == (
        "the server runs 1 task at once, which is the limit (workerCount); no task is ahead of it"
    )
    assert why_on(scheduler, "two", frozenset({"handler/work"})).ceilings
    outside = why_on(scheduler, "two", frozenset({"handler/other"}))
    assert outside.ceilings == (), "this is for workers outside, whom the server's limit is not for"


def test_another_server_with_room_takes_it(scheduler: Scheduler) -> None:
    scheduler.set_policy(workerCount=1)
    beat(scheduler, "node_1")
    beat(scheduler, "node_2")
    scheduler.submit("one", "two", "three")
    scheduler.lease(1)
    assert why_on(scheduler, "three").ceilings == ()
    scheduler.lease(1, worker="node_2")
    (ceiling,) = why_on(scheduler, "three").ceilings
    assert (ceiling.scope, ceiling.limit, ceiling.in_use) == ("worker", 2, 2)


@pytest.mark.parametrize("how", ["draining", "silent"])
def test_a_server_that_takes_no_work_does_not_count(scheduler: Scheduler, how: str) -> None:
    scheduler.set_policy(workerCount=1)
    beat(scheduler, "node_2", draining=how == "draining")
    if how == "silent":
        scheduler.clock.advance(60_000)
    beat(scheduler, "node_1")
    scheduler.submit("one", "two")
    scheduler.lease(1)
    assert [one.scope for one in why_on(scheduler, "two").ceilings] == ["worker"]


# -------------------------------------------------------------------- what goes before it


def test_what_other_agents_have_before_it_is_counted(scheduler: Scheduler) -> None:
    """In the order in which slots that become free are given out."""
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("a1", "a2", "a3", agent="a")
    scheduler.lease(1)
    scheduler.submit("b1", "b2", "b3", agent="b")
    scheduler.submit("c1", agent="c", priority=-20)
    before = {name: why(scheduler, name).reason for name in ("a2", "a3", "b1", "b2", "c1")}
    assert {name: text.partition("; ")[2] for name, text in before.items()} == {
        "a2": "2 tasks are ahead of it, 2 of them from other agents or for other handlers",
        "a3": "4 tasks are ahead of it, 3 of them from other agents or for other handlers",
        "b1": "1 task is ahead of it, 1 of them from other agents or for other handlers",
        "b2": "3 tasks are ahead of it, 2 of them from other agents or for other handlers",
        "c1": "no task is ahead of it",
    }
    assert why(scheduler, "a3").position == 2


def test_an_agent_at_its_limit_goes_before_nobody(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=5, maxPerAgentInflight=1)
    scheduler.submit("a1", "a2", agent="a")
    scheduler.lease(5)
    scheduler.submit("b1", agent="b")
    assert why(scheduler, "b1").reason.endswith("; no task is ahead of it")
    assert "1 task is ahead of it" in why(scheduler, "a2").reason


def test_in_a_lane_by_priority_other_handlers_go_before_it_too(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=1)
    for name, agent, priority, route in (
        ("busy", "a", 0, "handler/work"),
        ("low", "a", 9, "handler/work"),
        ("other", "b", 1, "handler/other"),
        ("high", "b", 1, "handler/work"),
    ):
        scheduler.submit(name, agent=agent, lane="queue", priority=priority, capability=route)
    scheduler.lease(1, lanes=("queue",))
    found = why(scheduler, "low")
    assert found.position == 2
    assert found.reason == (
        "the only slot of lane queue is in use; 2 tasks are ahead of it, 1 of "
        "them from other agents or for other handlers"
    )


@pytest.mark.parametrize("strategy", ["fair-fifo", "priority"])
def test_what_goes_before_it_is_what_is_leased_before_it(
    scheduler: Scheduler, strategy: str
) -> None:
    """The number is worked out from other look-ups than those that lease."""
    chance = random.Random(11)
    scheduler.set_policy(agents={"a": {"weight": 2}})
    scheduler.set_lane(maxInflight=100, strategy=strategy)
    routes = ("handler/work", "handler/other")
    for number in range(24):
        scheduler.submit(
            f"t{number}",
            agent=chance.choice("abc"),
            capability=chance.choice(routes),
            priority=chance.choice((-20, 0, 0, 5)),
        )
    told = {f"t{number}": _number(why(scheduler, f"t{number}").reason) for number in range(24)}
    grants = scheduler.lease(24, capabilities=frozenset(routes))
    assert told == {grant.task.id: place for place, grant in enumerate(grants)}


def _number(reason: str) -> int:
    text = reason.partition("; ")[2]
    return 0 if text.startswith("no task") else int(text.split()[0])


def test_a_free_slot_waits_for_somebody_to_take_it(scheduler: Scheduler) -> None:
    scheduler.submit("one", "two")
    found = why(scheduler, "two")
    assert (found.ready, found.ceiling, found.position) == (True, None, 2)
    assert found.reason == (
        "a slot is free: the task goes to the next worker that leases handler/work; "
        "1 task is ahead of it"
    )


def test_what_runs_or_has_ended_does_not_wait(scheduler: Scheduler) -> None:
    scheduler.submit("one")
    task = scheduler.lease_one()
    assert why(scheduler, "one").reason == "node_1 has leased it but has not started it yet"
    scheduler.start(task)
    assert why(scheduler, "one").reason == "it runs on node_1, in attempt 1 of 3"
    scheduler.cancel("one")
    text = "it is cancelled, but its run on node_1 has not stopped yet"
    assert why(scheduler, "one").reason == text
    scheduler.complete(task)
    assert why(scheduler, "one").reason == "it has ended: cancelled"
    scheduler.submit("two", max_attempts=1)
    scheduler.fail(scheduler.lease_one(), "no luck")
    assert why(scheduler, "two").reason == (
        "it is parked after 1 attempt: no luck; reset it to try again"
    )


def test_what_is_ready_and_can_start_is_what_a_plan_would_lease(scheduler: Scheduler) -> None:
    """The two are made from different look-ups, and must not contradict each other."""
    chance = random.Random(7)
    scheduler.set_lane(maxInflight=4, maxPerAgentInflight=2)
    for number in range(60):
        agent = chance.choice("abc")
        session = chance.choice([None, None, "s1", "s2"])
        scheduler.submit(f"t{number}", agent=agent, session=session)
        if chance.random() < 0.5:
            for grant in scheduler.lease(chance.randint(1, 3)):
                if chance.random() < 0.6:
                    scheduler.complete(grant.task)
        plan = planning.read(
            scheduler.reader, PlanQuery("main", None, 100), lambda _: scheduler.clock.now()
        )
        for task in plan.leases:
            found = why(scheduler, task.id)
            assert (found.ready, found.ceiling) == (True, None)
        held = [task for task, reason in plan.skipped if reason in GATES]
        assert all(why(scheduler, task.id).gate == task.gate for task in held)


def test_there_are_no_other_gates() -> None:
    waiting = {"dependency", "delay", "debounce", "approval", "resource", "suspend"}
    assert set(GATES) == {*waiting, "batch", "session", "paused"}
