"""Two servers on one PostgreSQL: the same limits, the same order, one truth whoever is asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.fakes.waiting import steadily, within
from tests.http.api import balance
from tests.http.stage import HANG, HELD, ONE, POLICY, TWO, Stage

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.slow
async def test_two_servers_are_one_scheduler(
    fresh_postgres: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    left, right = [await serve(fresh_postgres, policy=POLICY) for _ in range(2)]
    here, there = Stage(left.api, instance, hooks), Stage(right.api, instance, hooks)

    # What one has acknowledged the other shows, and a key is a key on both.
    body = here.task(lane=HELD)
    answers = await asyncio.gather(
        *(one.api.post("/tasks", body, Idempotency_Key="k") for one in [left, right] * 8)
    )
    ids = {answer.json["taskId"] for answer in answers}
    assert len(ids) == 1
    (task_id,) = ids
    assert (await right.api.show(task_id))["state"] == "queued"

    # A cancel on either reaches the run on whichever has it, within a second.
    async def cancel(stage: Stage, other: Server) -> None:
        before = len(stage.actions())
        running = await stage.submit(lane=ONE, fake=HANG)
        entry = (await stage.arrived(before + 1))[-1]
        with within(1.5):
            assert (await other.api.cancel(running)).status == 200
            await instance.until(lambda: entry.outcome == "gone")

    await steadily(lambda: cancel(here, right))
    await steadily(lambda: cancel(there, left))

    # The ceiling of two is one for both together, and the order is one line.
    hook = hooks.new()
    blockers = [await here.block(TWO), await there.block(TWO)]
    waiting = [
        await stage.submit(lane=TWO, agentId="both", callbackUrl=hook.url, fake={"delayMs": 2})
        for _ in range(10)
        for stage in (here, there)
    ]
    queue = (await right.api.stats())["queue"]
    assert (queue["totalInflight"], queue["agents"]["both"]["queued"]) == (2, 20)
    instance.release()
    tasks = await left.api.ended(*waiting, *blockers)
    assert {task["state"] for task in tasks} == {"done"}
    assert here.most_at_once() <= 2

    # Each webhook is sent by one of them, and the books of both are the same.
    deliveries = await hook.until(20)
    assert sorted(one.task["taskId"] for one in deliveries) == sorted(waiting)
    await here.clear()
    stats = await left.api.stats()
    assert balance(stats) == 0
    assert stats["metrics"] == (await right.api.stats())["metrics"]
