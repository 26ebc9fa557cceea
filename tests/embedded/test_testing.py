"""`fairlane.testing`: time that is moved by hand, and waiting until nothing more happens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from fairlane.testing import ManualClock, MemoryFairlane
from tests.fakes.waiting import eventually

DAY = 86_400.0
DOCS = Path(__file__).parents[2] / "docs" / "python.md"


async def test_nothing_that_waits_for_time_happens_before_it_is_moved() -> None:
    async with MemoryFairlane() as app:
        task = await app.submit(handler="echo", params={"n": 1}, delay_ms=60_000)
        await app.settle()
        assert (await task.show())["state"] == "queued"
        await app.advance(59.999)
        await app.settle()
        assert (await task.show())["state"] == "queued"
        await app.advance(0.001)
        assert await task.result() == {"n": 1}


async def test_retries_come_when_their_time_has_come() -> None:
    async with MemoryFairlane() as app:
        tries: list[int] = []

        @app.handler("flaky")
        def flaky(work: Any) -> str:
            tries.append(app.clock.now())
            if len(tries) < 3:
                raise ConnectionError("not yet")
            return "done"

        begin = app.clock.now()
        task = await app.submit(handler="flaky")
        for seconds in (0, 1, 2):
            await app.advance(seconds)
            await app.settle()
        assert await task.result() == "done"
        assert [at - begin for at in tries] == [0, 1000, 3000]


async def test_what_runs_keeps_its_lease_however_far_the_clock_is_moved() -> None:
    async with MemoryFairlane() as app:
        may_end, began = asyncio.Event(), asyncio.Event()

        @app.handler("long")
        async def long(_: Any) -> str:
            began.set()
            await may_end.wait()
            return "done"

        task = await app.submit(handler="long")
        await began.wait()
        await app.advance(3 * DAY)
        may_end.set()
        assert await task.result() == "done"
        assert (await task.show())["attempts"] == 1


async def test_a_deadline_passes_when_the_clock_says_so() -> None:
    clock = ManualClock(now=0)
    async with MemoryFairlane(clock=clock) as app:
        task = await app.submit(handler="nobody", deadline="1970-01-01T00:01:00Z")
        await app.advance(60)
        shown = await task.show()
        assert (shown["state"], shown["completedAt"]) == ("failed", "1970-01-01T00:01:00.000Z")


async def test_a_policy_may_be_given_and_other_options_too() -> None:
    async with MemoryFairlane(
        policy={"lanes": {"main": {"maxInflight": 1}}}, drain_seconds=1
    ) as app:
        assert app.node.policy.lanes["main"].max_inflight == 1


async def test_time_can_be_moved_while_runs_come_to_their_ends() -> None:
    async with MemoryFairlane() as app:
        began: list[Any] = []
        may_end = asyncio.Event()

        @app.handler("work")
        async def work(work: Any) -> str:
            began.append(work)
            await may_end.wait()
            return "done"

        tasks = [await app.submit(handler="work") for _ in range(5)]
        await eventually(lambda: len(began) == 5)
        may_end.set()  # they end while the leases of the first are renewed
        await app.advance(1)
        assert [await task.result() for task in tasks] == ["done"] * 5


async def test_settling_does_not_wait_for_ever() -> None:
    async with MemoryFairlane() as app:
        began = asyncio.Event()

        @app.handler("stuck")
        async def stuck(_: Any) -> None:
            began.set()
            await asyncio.Event().wait()

        task = await app.submit(handler="stuck")
        await began.wait()
        with pytest.raises(TimeoutError, match=task.id):
            await app.settle(0.05)


async def test_two_of_them_know_nothing_of_each_other() -> None:
    async with MemoryFairlane() as one, MemoryFairlane() as other:
        await one.submit(handler="nobody")
        assert (await one.tasks())["count"] == 1
        assert (await other.tasks())["count"] == 0


async def test_the_example_in_the_documentation_works() -> None:
    text = DOCS.read_text("utf-8")
    found = re.search(r"```python\n(# test_reminders\.py.*?)```", text, re.DOTALL)
    assert found, "docs/python.md shows no test"
    names: dict[str, Any] = {}
    exec(compile(found[1], "test_reminders.py", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        await test()
