"""A node's own measurements with a manual clock: estimates, history, totals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.testing import MemoryFairlane
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Gate:
    """A handler whose runs wait until they are let go, one by one."""

    def __init__(self, app: MemoryFairlane) -> None:
        self.app = app
        self.running = 0
        self._free = asyncio.Semaphore(0)
        app.handler("wait")(self._run)

    async def _run(self, _: Any) -> None:
        self.running += 1
        try:
            await self._free.acquire()
        finally:
            self.running -= 1

    async def let_go(self, count: int = 1) -> None:
        """So many runs end, and as many others begin."""
        done = await self._done() + count
        for _ in range(count):
            self._free.release()
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._done() < done:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0)

    async def _done(self) -> int:
        found: int = (await self.app.stats())["metrics"]["tasksCompleted"]
        return found


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    policy = {"lanes": {"main": {"maxInflight": 2}, "queue": {"maxInflight": 1}}}
    async with MemoryFairlane(policy=policy) as app:
        yield app


async def run_for(app: MemoryFairlane, gate: Gate, seconds: int) -> None:
    """One run ends in each second."""
    for _ in range(seconds):
        await gate.let_go()
        await app.advance(1)
        await app.node.look()


async def submit(app: MemoryFairlane, count: int, **fields: Any) -> list[str]:
    return [(await app.submit(handler="wait", **fields)).id for _ in range(count)]


async def test_the_expected_wait_follows_from_the_recent_pace(app: MemoryFairlane) -> None:
    gate = Gate(app)
    ids = await submit(app, 60)
    await eventually(lambda: gate.running == 2)
    await app.node.look()
    before = await app.why(ids[-1])
    assert (before["position"], before["estimateMs"]) == (58, None)
    assert before["reason"] == "all 2 slots of lane main are in use; 57 tasks are ahead of it"
    await run_for(app, gate, 20)
    after = await app.why(ids[-1])
    assert (after["position"], after["estimateMs"]) == (38, 38_000)
    assert after["reason"].endswith(
        "37 tasks are ahead of it, about 38 s at the rate of the last 20 s"
    )


async def test_an_agent_sees_its_own_pace(app: MemoryFairlane) -> None:
    gate = Gate(app)
    many = await submit(app, 60, agent="many")
    few = await submit(app, 30, agent="few")
    await eventually(lambda: gate.running == 2)
    await app.node.look()
    await run_for(app, gate, 20)
    for task_id in (many[-1], few[-1]):
        told = await app.why(task_id)
        # Two agents share one start a second.
        assert told["estimateMs"] == pytest.approx(told["position"] * 2000, rel=0.15)


async def test_a_lane_by_priority_is_one_line(app: MemoryFairlane) -> None:
    gate = Gate(app)
    await submit(app, 20, agent="a", lane="queue")
    last = await submit(app, 20, agent="b", lane="queue")
    await eventually(lambda: gate.running == 1)
    await app.node.look()
    await run_for(app, gate, 10)
    told = await app.why(last[-1])
    assert (told["position"], told["estimateMs"]) == (29, 29_000)


async def test_a_paused_lane_gives_no_number(app: MemoryFairlane) -> None:
    gate = Gate(app)
    ids = await submit(app, 40)
    await eventually(lambda: gate.running == 2)
    await app.node.look()
    await run_for(app, gate, 10)
    await app.pause_lane("main")
    told = await app.why(ids[-1])
    assert (told["gate"], told["estimateMs"]) == ("paused", None)


async def test_history_has_what_was_done_and_how_fair_it_was(app: MemoryFairlane) -> None:
    gate = Gate(app)
    await submit(app, 100, agent="greedy")
    await submit(app, 50, agent="modest")
    await eventually(lambda: gate.running == 2)
    await app.node.look()
    await run_for(app, gate, 40)
    found = await app.history("5m")
    assert sum(point["finished"] for point in found["points"]) == 40
    shares = {one["agentId"]: one for one in found["agents"]}
    assert shares["greedy"]["share"] == pytest.approx(0.5, abs=0.05)
    assert shares["modest"]["share"] == pytest.approx(0.5, abs=0.05)
    assert shares["greedy"]["fairShare"] == pytest.approx(0.5, abs=0.05)
    # With two slots and one end a second, each run took two of them.
    runs = [point["runP50Ms"] for point in found["points"] if point["runP50Ms"] is not None]
    assert all(1000 <= run <= 2000 for run in runs[2:])


async def test_a_run_of_a_further_attempt_is_measured_from_its_own_start(
    app: MemoryFairlane,
) -> None:
    tries: list[int] = []

    @app.handler("flaky")
    def flaky(_: Any) -> None:
        tries.append(app.clock.now())
        if len(tries) == 1:
            raise ValueError("not now")

    task = await app.submit(handler="flaky", retry_policy={"maxRetries": 1, "backoffMs": 600_000})
    await eventually(lambda: app.node.metrics.lane("main").retried == 1)
    await app.advance(600)
    await task.result(timeout=WAIT_SECONDS)
    runs = app.node.metrics.lane("main").runs
    assert sum(runs.counts) == 2
    assert runs.total < 1000
