"""Priority, pre-emption and aging.

Facts of specs/browseros.md section 12: 4, 17, 85; section 11: 6 (`critical` really pre-empts); the
missing aging of section 13. The lane `queue` has one slot and strict priority.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.fakes.tab_instance import Behaviour
from tests.http.server import serving
from tests.http.stage import HANG, ONE, TWO, on_sqlite
from tests.http.work import QUEUE, Work

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGED, STRICT, FAIR = "aged", "strict", "fair"
AGING_POLICY = {
    "lanes": {
        AGED: {"maxInflight": 1, "strategy": "priority", "agingMs": 20},
        FAIR: {"maxInflight": 1, "strategy": "fair-fifo", "agingMs": 20},
        STRICT: {"maxInflight": 1, "strategy": "priority", "agingMs": None},
    }
}


async def let_run(work: Work, ids: list[str]) -> list[dict[str, Any]]:
    work.instance.release()
    return await work.api.ended(*ids)


# --- order --------------------------------------------------------------------------------------


async def test_names_and_numbers_give_one_order_over_all_agents(work: Work) -> None:
    await work.block(QUEUE)
    given: list[str | int] = ["low", 5, "normal", -3, "high", "critical", -15, 11, -25, "low"]
    worth = {"critical": -20, "high": -10, "normal": 0, "low": 10}
    numbers = [worth[one] if isinstance(one, str) else one for one in given]
    ids = [
        await work.submit(lane=QUEUE, agentId=work.new_agent(), priority=one, params={"n": number})
        for one, number in zip(given, numbers, strict=True)
    ]
    await let_run(work, ids)
    assert work.numbers() == sorted(numbers)


async def test_equal_priorities_keep_the_order_of_submission(work: Work) -> None:
    await work.block(QUEUE)
    ids = [
        await work.submit(
            lane=QUEUE, agentId=work.new_agent(), priority=["low", "high"][n % 2], params={"n": n}
        )
        for n in range(10)
    ]
    await let_run(work, ids)
    assert work.numbers() == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


async def test_a_task_that_becomes_ready_takes_its_place_by_priority(work: Work) -> None:
    await work.block(QUEUE)
    parent = await work.submit(lane=QUEUE, priority="high", params={"n": 1})
    child = await work.submit(lane=QUEUE, priority=-5, dependsOn=[parent], params={"n": 2})
    others = [await work.submit(lane=QUEUE, params={"n": 3}) for _ in range(3)]
    await let_run(work, [parent, child, *others])
    assert work.numbers() == [1, 2, 3, 3, 3]


@on_sqlite
@pytest.mark.parametrize("value", ["urgent", "Critical", "", 1.5, True, [], 2**70], ids=repr)
async def test_a_priority_that_is_none_is_refused(work: Work, value: Any) -> None:
    answer = await work.post(priority=value)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "priority" in answer.error


# --- pre-emption --------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [ONE, QUEUE], ids=["fair", "strict"])
async def test_a_critical_task_takes_the_slot_of_a_preemptible_one(work: Work, lane: str) -> None:
    soft = await work.submit(lane=lane, fake=HANG, preemptible=True, params={"n": 1})
    (entry,) = await work.arrived(1)
    assert (await work.api.show(soft))["preemptible"] is True
    urgent = await work.submit(lane=lane, fake=HANG, priority="critical", params={"n": 2})
    await work.arrived(2)
    assert work.numbers() == [1, 2]
    await work.instance.until(lambda: entry.outcome == "gone")
    stopped = await work.api.until(soft, "queued")
    assert stopped["attempts"] == 0
    assert not {"error", "leaseId", "nextEligibleAt", "completedAt"} & set(stopped)
    work.instance.release()
    assert (await work.api.end_of(urgent))["state"] == "done"
    await work.arrived(3)
    work.instance.release()
    task = await work.api.end_of(soft)
    assert (task["state"], task["attempts"], task["maxAttempts"]) == ("done", 1, 1)
    assert [one["outcome"] for one in task["attemptLog"]] == ["released", "completed"]
    assert work.numbers() == [1, 2, 1]
    assert work.most_at_once() == 1


async def test_a_handler_is_stopped_for_a_critical_task_too(work: Work) -> None:
    soft = await work.echo(lane=ONE, handler="sleep", params={"ms": 600_000}, preemptible=True)
    await work.api.until(soft, "running")
    assert (await work.run(lane=ONE, priority="critical"))["state"] == "done"
    assert (await work.types(soft))[:3] == ["created", "started", "released"]


@pytest.mark.parametrize("how", ["not preemptible", "not critical", "critical itself"])
async def test_other_work_is_left_alone(work: Work, how: str) -> None:
    soft = await work.submit(
        lane=ONE,
        fake=HANG,
        preemptible=None if how == "not preemptible" else True,
        priority="critical" if how == "critical itself" else "low",
    )
    (entry,) = await work.arrived(1)
    priority = -19 if how == "not critical" else "critical"
    waiting = await work.submit(lane=ONE, priority=priority, params={"n": 2})
    assert (await work.run(lane=TWO))["state"] == "done"
    assert await work.states(soft, waiting) == ["running", "queued"]
    assert entry.outcome == "open"
    work.instance.release()
    tasks = await work.api.ended(soft, waiting)
    assert [task["state"] for task in tasks] == ["done", "done"]
    assert "released" not in await work.types(soft)


async def test_nothing_is_stopped_while_a_slot_is_free_or_in_another_lane(work: Work) -> None:
    here = await work.submit(lane=TWO, fake=HANG, preemptible=True)
    there = await work.submit(lane=ONE, fake=HANG, preemptible=True)
    await work.arrived(2)
    for _ in range(3):
        assert (await work.run(lane=TWO, priority="critical"))["state"] == "done"
    assert await work.states(here, there) == ["running", "running"]


@pytest.mark.parametrize("by", ["priority", "age"])
async def test_the_least_important_one_is_stopped(work: Work, by: str) -> None:
    first, second = (10, 5) if by == "priority" else (5, 5)
    ids = []
    for count, priority in enumerate((first, second), start=1):
        ids.append(await work.submit(lane=TWO, fake=HANG, preemptible=True, priority=priority))
        await work.arrived(count)
    urgent = await work.submit(lane=TWO, fake=HANG, priority="critical")
    await work.arrived(3)
    stopped, kept = ids if by == "priority" else ids[::-1]
    assert await work.states(kept, urgent) == ["running", "running"]
    assert (await work.types(stopped))[-1] == "released"


async def test_each_critical_task_stops_one_and_no_more(work: Work) -> None:
    soft = [await work.submit(lane=TWO, fake=HANG, preemptible=True) for _ in range(2)]
    await work.arrived(2)
    urgent = await work.submit(lane=TWO, fake=HANG, priority="critical")
    await work.arrived(3)
    states = await work.states(*soft, urgent)
    assert sorted(states) == ["queued", "running", "running"]
    await work.submit(lane=TWO, fake=HANG, priority="critical")
    await work.arrived(4)
    assert await work.states(*soft) == ["queued", "queued"]
    assert work.most_at_once() <= 2


async def test_a_critical_task_that_cannot_run_yet_stops_nothing(work: Work) -> None:
    soft = await work.submit(lane=ONE, fake=HANG, preemptible=True)
    (entry,) = await work.arrived(1)
    await work.submit(lane=ONE, priority="critical", dependsOn=["tsk_nobody00"])
    await work.submit(lane=ONE, priority="critical", delayMs=60_000)
    assert (await work.run(lane=TWO))["state"] == "done"
    assert await work.states(soft) == ["running"]
    assert entry.outcome == "open"


async def test_a_stopped_task_keeps_the_attempts_it_has_used(work: Work) -> None:
    work.fail_next(1)
    policy = {"maxRetries": 1, "backoffMs": 300}
    soft = await work.submit(lane=ONE, preemptible=True, retryPolicy=policy)
    await work.waits_again(soft)
    work.instance.actions = Behaviour(hang=True)
    await work.arrived(2)
    work.instance.actions = Behaviour()
    assert (await work.run(lane=ONE, priority="critical"))["state"] == "done"
    task = await work.api.end_of(soft)
    assert (task["state"], task["attempts"], task["maxAttempts"]) == ("done", 2, 2)
    outcomes = [one["outcome"] for one in task["attemptLog"]]
    assert outcomes == ["retrying", "released", "completed"]


@on_sqlite
@pytest.mark.parametrize("value", ["yes", 1], ids=repr)
async def test_preemptible_is_true_or_false(work: Work, value: Any) -> None:
    answer = await work.post(preemptible=value)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "preemptible" in answer.error


# --- aging --------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aging(
    instance: TabInstance, hooks: Hooks, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Work]:
    folder = tmp_path_factory.mktemp("aging")
    store = f"sqlite:///{folder / 'f.db'}"
    async with serving(folder, store, policy=AGING_POLICY, instances=[instance.url]) as server:
        yield Work(server.api, instance, hooks)


async def order_after_a_long_wait(aging: Work, lane: str) -> list[int]:
    """Two low tasks have waited for half a second when three of normal priority come."""
    before = len(aging.numbers())
    await aging.block(lane)
    old = [await aging.submit(lane=lane, priority="low", params={"n": 10}) for _ in range(2)]
    await aging.api.end_of(await aging.echo(delayMs=500))
    new = [await aging.submit(lane=lane, params={"n": 0}) for _ in range(3)]
    await let_run(aging, [*old, *new])
    await aging.clear()
    return aging.numbers()[before:]


@pytest.mark.slow
@pytest.mark.parametrize("lane", [AGED, FAIR])
async def test_waiting_makes_a_task_more_important_where_the_policy_says_so(
    aging: Work, lane: str
) -> None:
    assert await order_after_a_long_wait(aging, lane) == [10, 10, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("lane", [STRICT, QUEUE])
async def test_a_strict_lane_does_not_age(aging: Work, lane: str) -> None:
    assert await order_after_a_long_wait(aging, lane) == [0, 0, 0, 10, 10]


@pytest.mark.slow
async def test_a_stream_of_normal_work_does_not_starve_a_low_task(aging: Work) -> None:
    await aging.block(AGED)
    low = await aging.submit(lane=AGED, priority="low", params={"n": 99})
    before = len(aging.actions())
    aging.instance.release()
    for _ in range(200):
        waiting = [await aging.submit(lane=AGED, fake={"delayMs": 20}) for _ in range(2)]
        await aging.api.ended(waiting[0])
        if (await aging.api.show(low))["state"] == "done":
            break
    task = await aging.api.end_of(low)
    assert task["state"] == "done"
    assert len(aging.actions()) - before < 60
    await aging.clear()
