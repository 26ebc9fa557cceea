"""`GET /scheduler/stats`: every documented field, and that the numbers are true.

Facts of specs/pinchtab.md section 17: 9, 24, 26, 27, 30, 31, 32, 33, 41, 50, 52, 69, 103, 112, 113.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.stage import HANG, HELD, ONE, Stage
from tests.http.work import ms_between

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

METRICS = {
    "tasksSubmitted",
    "tasksCompleted",
    "tasksFailed",
    "tasksCancelled",
    "tasksRejected",
    "tasksExpired",
    "dispatchCount",
    "avgDispatchLatencyMs",
    "agents",
}
CONFIG = {
    "strategy": "fair-fifo",
    "maxQueueSize": 1000,
    "maxPerAgent": 100,
    "maxInflight": 20,
    "maxPerAgentFlight": 10,
}


async def test_the_numbers_begin_at_zero_and_have_every_documented_field(serve: Serve) -> None:
    stats = await (await serve()).api.stats()
    assert set(stats) >= {"queue", "metrics", "config"}
    assert stats["queue"]["totalQueued"] == stats["queue"]["totalInflight"] == 0
    assert stats["queue"]["agentCounts"] == stats["queue"]["agents"] == {}
    metrics = stats["metrics"]
    assert set(metrics) >= METRICS
    assert all(metrics[name] == 0 for name in METRICS - {"agents"})
    assert isinstance(metrics["avgDispatchLatencyMs"], float)
    assert metrics["agents"] == {}
    assert {name: stats["config"][name] for name in CONFIG} == CONFIG
    assert isinstance(stats["config"]["workerCount"], int)
    assert isinstance(stats["config"]["resultTTL"], str)


async def test_every_number_is_a_number(stage: Stage) -> None:
    await stage.run()
    await stage.submit(lane=HELD)
    stats = await stage.api.stats()
    leaves: list[Any] = [stats["queue"], stats["metrics"]]
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, dict):
            leaves += leaf.values()
        else:
            assert isinstance(leaf, int | float), leaf


async def test_submissions_are_counted_overall_and_for_each_agent(stage: Stage) -> None:
    before = (await stage.api.stats())["metrics"]["tasksSubmitted"]
    other = stage.new_agent()
    for agent in (stage.agent, stage.agent, other):
        await stage.submit(lane=HELD, agentId=agent)
    stats = await stage.api.stats()
    assert stats["metrics"]["tasksSubmitted"] - before == 3
    assert stats["metrics"]["agents"][stage.agent]["submitted"] == 2
    assert stats["metrics"]["agents"][other]["submitted"] == 1
    assert stats["queue"]["totalQueued"] == 3
    assert stats["queue"]["agentCounts"] == {stage.agent: 2, other: 1}
    assert stats["queue"]["agents"][stage.agent] == {"queued": 2, "inflight": 0}


async def test_ends_are_counted_overall_and_for_the_agent(stage: Stage) -> None:
    before = (await stage.api.stats())["metrics"]
    await stage.run()
    await stage.run()
    await stage.run(fake={"status": 500})
    await stage.api.cancel(await stage.submit(lane=HELD))
    after = (await stage.api.stats())["metrics"]
    rise = {name: after[name] - before[name] for name in METRICS - {"agents"}}
    assert (rise["tasksCompleted"], rise["tasksFailed"], rise["tasksCancelled"]) == (2, 1, 1)
    assert rise["dispatchCount"] == 3
    assert after["agents"][stage.agent] == {
        "submitted": 4,
        "completed": 2,
        "failed": 1,
        "cancelled": 1,
        "rejected": 0,
    }


async def test_one_runs_and_one_waits(stage: Stage) -> None:
    a, b = stage.new_agent(), stage.new_agent()
    await stage.submit(lane=ONE, agentId=a, fake=HANG)
    await stage.arrived(1)
    await stage.submit(lane=ONE, agentId=b)
    queue = (await stage.api.stats())["queue"]
    assert (queue["totalQueued"], queue["totalInflight"]) == (1, 1)
    assert queue["agents"] == {
        a: {"queued": 0, "inflight": 1},
        b: {"queued": 1, "inflight": 0},
    }
    assert queue["agentCounts"] == {b: 1}


async def test_many_submissions_at_once_are_all_counted(stage: Stage) -> None:
    agents = [stage.new_agent(), stage.new_agent()]
    await asyncio.gather(*(stage.submit(lane=HELD, agentId=agents[n % 2]) for n in range(40)))
    metrics = (await stage.api.stats())["metrics"]
    assert [metrics["agents"][agent]["submitted"] for agent in agents] == [20, 20]


async def test_dispatch_latency_is_the_time_in_the_queue_and_not_that_of_the_work(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy={"lanes": {ONE: {"maxInflight": 1}}})
    stage = Stage(server.api, instance, hooks)
    first = await stage.run(lane=ONE, fake={"delayMs": 400})
    metrics = (await server.api.stats())["metrics"]
    assert metrics["dispatchCount"] == 1
    assert (
        0 <= metrics["avgDispatchLatencyMs"] <= ms_between(first["createdAt"], first["startedAt"])
    )
    slow = await stage.submit(lane=ONE, fake=HANG)
    await stage.arrived(2)
    behind = await stage.submit(lane=ONE)
    beside = await stage.run(fake={"delayMs": 300})  # so long at least the one behind waits
    stage.instance.release()
    tasks = [first, beside, *await server.api.ended(slow, behind)]
    metrics = (await server.api.stats())["metrics"]
    assert metrics["dispatchCount"] == 4
    waited = metrics["avgDispatchLatencyMs"] * 4
    assert 295 < ms_between(tasks[3]["createdAt"], tasks[2]["completedAt"]) <= waited + 1
    assert waited - 1 <= sum(ms_between(one["createdAt"], one["startedAt"]) for one in tasks)
