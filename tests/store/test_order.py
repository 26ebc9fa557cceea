"""Which task runs next: order within an agent, fairness between agents, ceilings and lanes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from fairlane.engine.commands import Cancel, Complete, Fail, Grant, Release, SetPolicy, Submit
from fairlane.store.opening import open_store
from tests.store.scheduler import WORK, Scheduler, lease_request, submission

# -------------------------------------------------------------------- inside an agent


def test_equal_tasks_go_in_the_order_they_came(scheduler: Scheduler) -> None:
    names = [f"task{number}" for number in range(12)]
    scheduler.submit(*names[:7])
    for name in names[7:]:
        scheduler.submit(name)
    assert scheduler.names(5) == names[:5]
    assert scheduler.run_to_end() == names[5:]


def test_a_smaller_priority_goes_first(scheduler: Scheduler) -> None:
    for name, priority in [("five", 5), ("one", 1), ("minus", -3), ("also-one", 1)]:
        scheduler.submit(name, priority=priority)
    assert scheduler.run_to_end() == ["minus", "one", "also-one", "five"]


def test_priority_orders_an_agents_tasks_over_its_routes(scheduler: Scheduler) -> None:
    scheduler.submit("late", capability="handler/one", priority=2)
    scheduler.submit("soon", capability="handler/two", priority=1)
    both = frozenset({"handler/one", "handler/two"})
    assert scheduler.names(2, capabilities=both) == ["soon", "late"]


# -------------------------------------------------------------------- between agents


def test_two_slots_go_to_two_agents(scheduler: Scheduler) -> None:
    scheduler.submit("a1", "a2", "a3", agent="a")
    scheduler.submit("b1", agent="b")
    assert scheduler.names(2) == ["a1", "b1"]


def test_two_backlogged_agents_alternate_strictly_on_one_slot(scheduler: Scheduler) -> None:
    scheduler.submit(*(f"a{number}" for number in range(6)), agent="a")
    scheduler.submit(*(f"b{number}" for number in range(6)), agent="b")
    order = scheduler.run_to_end()
    assert order == [f"{agent}{number}" for number in range(6) for agent in "ab"]


def test_quiet_agents_do_not_wait_behind_a_flood(scheduler: Scheduler) -> None:
    scheduler.submit(*(f"flood{number}" for number in range(300)), agent="flood")
    scheduler.complete(scheduler.lease_one())
    for number in range(20):
        scheduler.submit(f"quiet{number}", agent=f"agent{number}")
    order = [scheduler.names(1)[0] for _ in range(20)]
    assert sorted(order) == sorted(f"quiet{number}" for number in range(20))


def test_the_agent_with_fewer_tasks_in_flight_goes_first(scheduler: Scheduler) -> None:
    scheduler.submit("a1", "a2", "a3", agent="a")
    scheduler.submit("b1", "b2", agent="b")
    for _ in range(2):
        scheduler.lease(1)
    kept = scheduler.lease_one()
    assert kept.id == "a2"
    assert scheduler.names(2) == ["b2", "a3"]


def test_slots_are_shared_by_weight(scheduler: Scheduler) -> None:
    scheduler.set_policy(agents={"big": {"weight": 2}})
    for agent in ("big", "small"):
        scheduler.submit(*(f"{agent}{number}" for number in range(9)), agent=agent)
    leased = [grant.task.agent for grant in scheduler.lease(6)]
    assert Counter(leased) == {"big": 4, "small": 2}


def test_a_changed_weight_counts_at_once(scheduler: Scheduler) -> None:
    for agent in ("big", "small"):
        scheduler.submit(*(f"{agent}{number}" for number in range(9)), agent=agent)
    assert len(scheduler.lease(4)) == 4
    scheduler.set_policy(agents={"big": {"weight": 4}})
    leased = [scheduler.lease_one().agent for _ in range(6)]
    assert leased == ["big"] * 6


def test_critical_work_goes_before_fairness(scheduler: Scheduler) -> None:
    scheduler.submit(*(f"busy{number}" for number in range(5)), agent="busy")
    scheduler.lease(3)
    scheduler.submit("quiet", agent="quiet")
    scheduler.submit("alarm", agent="busy", priority=-20)
    assert scheduler.names(2) == ["alarm", "quiet"]


def test_high_priority_alone_does_not_go_before_fairness(scheduler: Scheduler) -> None:
    scheduler.submit("busy0", "busy1", agent="busy")
    scheduler.lease(1)
    scheduler.submit("quiet", agent="quiet", priority=10)
    scheduler.submit("high", agent="busy", priority=-10)
    assert scheduler.names(2) == ["quiet", "high"]


def test_a_lane_by_priority_does_not_look_at_agents(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=10)
    for number, (agent, priority) in enumerate([("a", 5), ("a", 1), ("b", 5), ("a", 5), ("b", 1)]):
        scheduler.submit(f"t{number}", agent=agent, priority=priority, lane="queue")
    assert scheduler.names(5) == ["t1", "t4", "t0", "t2", "t3"]


# -------------------------------------------------------------------- ceilings


def test_a_lane_gives_no_more_than_its_ceiling(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=3)
    scheduler.submit(*(f"t{number}" for number in range(9)))
    tasks = [grant.task for grant in scheduler.lease(100)]
    assert len(tasks) == 3
    assert scheduler.lease(100) == []
    scheduler.complete(tasks[0])
    assert scheduler.names(100) == ["t3"]


def test_requests_of_one_batch_share_one_ceiling(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=5)
    scheduler.submit(*(f"t{number}" for number in range(20)))
    waiting = [lease_request(2, worker=f"w{number}") for number in range(16)]
    other = [lease_request(2, lanes=("main",), worker="other")]
    grants = scheduler.apply(waiting=[*waiting, *other]).grants
    assert [len(each) for each in grants] == [2, 2, 1] + [0] * 14
    assert scheduler.tally().slots == 5


def test_what_a_batch_frees_it_also_gives_away(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=3)
    scheduler.submit(*(f"t{number}" for number in range(9)))
    done, failed, released = [grant.task for grant in scheduler.lease(3)]
    outcome = scheduler.apply(
        Cancel("t3"),
        Complete(done.seq, done.fencing_token),
        Fail(failed.seq, failed.fencing_token, "broken"),
        Release(released.seq, released.fencing_token),
        waiting=[lease_request(10)],
    )
    assert [grant.task.id for grant in outcome.grants[0]] == ["t2", "t4", "t5"]


def test_an_agent_gets_no_more_than_its_own_ceiling(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxPerAgentInflight=2)
    scheduler.set_policy(agents={"c": {"maxInflight": 3}})
    for agent in "abc":
        scheduler.submit(*(f"{agent}{number}" for number in range(5)), agent=agent)
    leased = [grant.task for grant in scheduler.lease(100)]
    assert Counter(task.agent for task in leased) == {"a": 2, "b": 2, "c": 3}
    scheduler.complete(next(task for task in leased if task.agent == "a"))
    assert [grant.task.agent for grant in scheduler.lease(100)] == ["a"]


def test_agents_at_their_ceiling_do_not_hide_the_ones_behind(scheduler: Scheduler) -> None:
    heavy = [f"heavy{number:02}" for number in range(25)]
    scheduler.set_policy(agents={agent: {"weight": 1000, "maxInflight": 1} for agent in heavy})
    for agent in heavy:
        scheduler.submit(f"{agent}-1", f"{agent}-2", agent=agent)
    scheduler.submit("plain1", "plain2", agent="plain")
    assert len(scheduler.lease(26)) == 26
    assert scheduler.names(1) == ["plain2"]
    assert scheduler.lease(1) == []


def test_the_overall_ceiling_holds_over_all_lanes(scheduler: Scheduler) -> None:
    scheduler.set_policy(maxInflight=4)
    scheduler.submit(*(f"m{number}" for number in range(5)), lane="main")
    scheduler.submit(*(f"b{number}" for number in range(5)), lane="browser")
    leased = [grant.task for grant in scheduler.lease(100)]
    assert len(leased) == 4
    assert scheduler.lease(100) == []
    scheduler.complete(leased[0])
    (grant,) = scheduler.lease(100)
    assert grant.task.lane != leased[0].lane, "the emptier lane goes first"


def test_a_lowered_ceiling_stops_new_leases_until_there_is_room(scheduler: Scheduler) -> None:
    scheduler.submit(*(f"t{number}" for number in range(9)))
    tasks = [grant.task for grant in scheduler.lease(4)]
    scheduler.set_lane(maxInflight=2)
    for task in tasks[:2]:
        assert scheduler.lease(1) == []
        scheduler.complete(task)
    assert scheduler.lease(1) == []
    scheduler.complete(tasks[2])
    assert scheduler.names(5) == ["t4"]


def test_a_raised_ceiling_counts_in_the_batch_that_raises_it(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("a", "b", "c")
    scheduler.lease(5)
    raise_it = SetPolicy({"lanes": {"main": {"maxInflight": 2}}}, "test")
    outcome = scheduler.apply(raise_it, waiting=[lease_request(5)])
    assert [grant.task.id for grant in outcome.grants[0]] == ["b"]


def test_a_paused_lane_gives_nothing_until_it_is_resumed(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.set_lane(paused=True)
    assert scheduler.lease() == []
    scheduler.set_lane(paused=False)
    assert scheduler.names() == ["first"]


# -------------------------------------------------------------------- lanes and routes


def test_a_worker_gets_only_what_it_asked_for(scheduler: Scheduler) -> None:
    scheduler.submit("other", capability="handler/other", priority=-20)
    scheduler.submit("mine", capability=WORK)
    scheduler.submit("elsewhere", capability=WORK, lane="team")
    assert scheduler.names(5, lanes=("main",), capabilities=frozenset({WORK})) == ["mine"]
    assert scheduler.names(5, lanes=("main",), capabilities=frozenset({"handler/other"})) == [
        "other"
    ]


def test_a_worker_of_many_lanes_gets_a_part_from_each(scheduler: Scheduler) -> None:
    for lane in ("main", "team"):
        scheduler.submit(*(f"{lane}{number}" for number in range(6)), lane=lane)
    lanes = ("main", "team")
    assert Counter(name[:4] for name in scheduler.names(4, lanes=lanes)) == {"main": 2, "team": 2}
    scheduler.set_lane("team", paused=True)
    assert scheduler.names(4, lanes=lanes) == ["main2", "main3", "main4", "main5"]


@pytest.mark.parametrize("strategy", ["priority", "fair-fifo"])
def test_a_lane_may_change_its_strategy_under_its_tasks(
    scheduler: Scheduler, strategy: str
) -> None:
    before = {"priority": "fair-fifo", "fair-fifo": "priority"}[strategy]
    scheduler.set_lane("team", strategy=before)
    scheduler.submit("a1", "a2", "a3", agent="a", lane="team", session=None)
    scheduler.submit("b1", agent="b", lane="team", priority=-1)
    held = [grant.task for grant in scheduler.lease(2, lanes=("team",))]
    scheduler.set_lane("team", strategy=strategy)
    for task in held:
        scheduler.release(task)
    order = scheduler.run_to_end(lanes=("team",))
    by_priority = ["b1", "a1", "a2", "a3"]
    assert order == by_priority if strategy == "priority" else sorted(order) == sorted(by_priority)


def test_work_that_waited_out_a_change_of_strategy_can_still_run(scheduler: Scheduler) -> None:
    scheduler.set_lane("team", strategy="fair-fifo")
    scheduler.submit("retried", lane="team")
    task = scheduler.lease_one(lanes=("team",))
    scheduler.fail(task)
    scheduler.set_lane("team", strategy="priority")
    scheduler.pass_time(1000)
    assert scheduler.names(1, lanes=("team",)) == ["retried"]


# -------------------------------------------------------------------- submitted and leased at once


def draw(seed: int) -> tuple[list[Any], list[Any]]:
    """A backlog and what comes in on top of it; some seeds have no backlog, some no sessions."""
    chance = random.Random(seed)
    sessions = [None, None, "s", "t"] if seed % 4 >= 2 else [None]

    def tasks(prefix: str, count: int) -> list[Any]:
        return [
            submission(
                f"{prefix}{number}",
                chance.choice("abc"),
                lane=chance.choice(["main", "main", "queue"]),
                capability=chance.choice(["handler/one", "handler/two", "handler/three"]),
                priority=chance.choice([0, 0, 0, 5, -5, -20]),
                session=chance.choice(sessions),
            )
            for number in range(count)
        ]

    return tasks("old", 5 * (seed % 2)), tasks("new", 12)


def counted(grants: list[list[Grant]]) -> list[list[Grant]]:
    """The grants of one transaction, with tokens from 1: each transaction begins elsewhere."""
    first = min(grant.task.fencing_token for given in grants for grant in given)

    def renumbered(grant: Grant) -> Grant:
        task = msgspec.structs.replace(
            grant.task, fencing_token=grant.task.fencing_token - first + 1
        )
        return msgspec.structs.replace(grant, task=task)

    return [[renumbered(grant) for grant in given] for given in grants]


@pytest.mark.parametrize("seed", range(8))
def test_leasing_in_the_batch_that_submits_gives_the_same_as_leasing_afterwards(
    scheduler: Scheduler, seed: int
) -> None:
    backlog, new = draw(seed)
    memory = open_store("sqlite://:memory:")
    memory.migrate()
    afterwards = Scheduler(memory)
    waiting = [
        lease_request(3, worker=worker, capabilities=frozenset({"handler/one", "handler/two"}))
        for worker in ("w1", "w2")
    ]
    for each in (scheduler, afterwards):
        each.set_policy(
            lanes={"main": {"maxInflight": 4, "maxPerAgentInflight": 2}},
            agents={"a": {"weight": 2}},
        )
        each.apply(Submit(backlog))
    at_once = scheduler.apply(Submit(new), waiting=waiting)
    afterwards.apply(Submit(new))
    assert counted(at_once.grants) == counted(afterwards.apply(waiting=waiting).grants)
    assert any(at_once.grants)
    for grant in at_once.grants[0]:
        assert scheduler.view(grant.task.id).task == grant.task
    afterwards.close()
    memory.close()
