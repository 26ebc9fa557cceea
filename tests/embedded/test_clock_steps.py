"""The wall clock is set under a scheduler that runs in real time: the very threads and timers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from fairlane import Fairlane
from fairlane.clock import SystemClock, reading_of
from fairlane.core.errors import ExecutionFailed
from fairlane.schema.wire import moment
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.worker.executors.base import Work

HOUR_MS = 3_600_000


class SteppedClock(SystemClock):
    """The system's clocks; the wall clock can be set for this process alone."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now(self) -> int:
        return super().now() + self.ahead_ms


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def opened(folder: Path, clock: SteppedClock) -> Fairlane:
    return Fairlane(f"sqlite:///{folder}/fairlane.db", clock=clock, drain_seconds=0)


@pytest.mark.parametrize("by", [HOUR_MS, -HOUR_MS])
async def test_running_tasks_run_once_through_a_step(
    tmp_path: Path, clock: SteppedClock, by: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fairlane.engine")
    began: list[str] = []
    may_end = asyncio.Event()
    async with opened(tmp_path, clock) as app:

        @app.handler("work")
        async def work(work: Work) -> None:
            began.append(work.task_id)
            await may_end.wait()

        tasks = [await app.submit(handler="work") for _ in range(3)]
        await eventually(lambda: len(began) == 3)
        clock.ahead_ms = by
        # Nobody asks for anything: the writer looks by itself.
        await eventually(lambda: app.node.metrics.clock_steps == 1)
        may_end.set()
        for task in tasks:
            await task.result(timeout=WAIT_SECONDS)
        assert sorted(began) == sorted(task.id for task in tasks)
        assert app.node.metrics.lane("main").reclaimed == 0
    assert [record for record in caplog.records if "the system clock was set" in record.message]


async def test_a_retry_is_not_held_up_by_a_clock_that_was_set_back(
    tmp_path: Path, clock: SteppedClock
) -> None:
    tries: list[int] = []
    async with opened(tmp_path, clock) as app:

        @app.handler("flaky")
        async def flaky(work: Work) -> str:
            tries.append(work.attempt)
            if work.attempt == 1:
                raise ExecutionFailed("not yet")
            return "done"

        task = await app.submit(handler="flaky", retry_policy={"maxRetries": 1, "backoffMs": 700})
        await eventually(lambda: app.node.metrics.lane("main").retried == 1)
        clock.ahead_ms = -HOUR_MS
        assert await task.result(timeout=WAIT_SECONDS) == "done"
        assert tries == [1, 2]


async def test_a_moment_that_was_named_comes_with_the_clock(
    tmp_path: Path, clock: SteppedClock
) -> None:
    async with opened(tmp_path, clock) as app:
        task = await app.submit(handler="echo", delay_ms=HOUR_MS)
        named = await app.submit(handler="echo", run_at=moment(clock.now() + HOUR_MS))
        clock.ahead_ms = HOUR_MS
        await named.result(timeout=WAIT_SECONDS)
        assert (await task.show())["state"] == "queued"


def test_all_processes_of_a_machine_compare_with_the_same_clock() -> None:
    assert SystemClock().boot == SystemClock().boot


def test_a_reading_that_was_held_up_tells_of_no_step() -> None:
    class Halting(SystemClock):
        """Time goes by in leaps of a second between two looks."""

        looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            return float(self.looks)

    assert reading_of(Halting()).ahead is None
    assert reading_of(SystemClock()).ahead is not None
