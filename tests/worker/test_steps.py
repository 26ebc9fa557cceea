"""`work.step`: a function runs once, whatever happens to the runs of its task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient, Worker
from fairlane.testing import MemoryFairlane
from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fairlane import TaskHandle, Work
    from fairlane.schema.task_status import TaskStatus

AGAIN = {"maxRetries": 5, "backoffMs": 500, "backoffMultiplier": 1}


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    async with MemoryFairlane() as app:
        yield app


async def ended(app: MemoryFairlane, task: TaskHandle) -> TaskStatus:
    """The task at its end, however many retries that takes."""
    for _ in range(1000):
        await app.settle()
        shown = await task.show()
        if shown.state in ("done", "failed"):
            return shown
        await app.advance(1)
    raise AssertionError(shown)


class Calls:
    """Functions that count their calls."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def plain(self, name: str, value: Any = None) -> Any:
        self.made.append(name)
        return value

    async def later(self, name: str, value: Any = None) -> Any:
        await asyncio.sleep(0)
        return self.plain(name, value)


async def test_a_step_runs_once_and_is_returned_in_later_attempts(app: MemoryFairlane) -> None:
    calls = Calls()

    @app.handler("agent")
    async def agent(work: Work) -> object:
        page = await work.step("fetch", calls.later, "fetch", value={"n": (1, 2)})
        sums = [await work.step("sum", calls.plain, f"sum{n}", n) for n in page["n"]]
        if work.attempt < 3:
            raise RuntimeError("crash")
        return {"page": page, "sums": sums, "known": len(work.steps)}

    task = await app.submit(handler="agent", retry_policy=AGAIN)
    shown = await ended(app, task)
    assert shown.state == "done"
    assert shown.result == {"page": {"n": [1, 2]}, "sums": [1, 2], "known": 3}
    assert calls.made == ["fetch", "sum1", "sum2"]
    assert shown.steps is not None
    assert [(one.number, one.name, one.value) for one in shown.steps] == [
        (1, "fetch", {"n": [1, 2]}),
        (2, "sum", 1),
        (3, "sum", 2),
    ]
    recorded = [one for one in (await app.task_events(task.id)).events if one.type == "task.step"]
    assert [(one.step_number, one.step) for one in recorded] == [
        (1, "fetch"),
        (2, "sum"),
        (3, "sum"),
    ]


async def test_a_plain_handler_records_steps_in_its_thread(app: MemoryFairlane) -> None:
    calls = Calls()

    @app.handler("plain")
    def plain(work: Work) -> object:
        value = work.step("fetch", calls.plain, "fetch", [1])
        if work.attempt == 1:
            raise RuntimeError("crash")
        return value

    task = await app.submit(handler="plain", retry_policy=AGAIN)
    assert (await ended(app, task)).result == [1]
    assert calls.made == ["fetch"]


async def test_steps_that_run_at_the_same_time_keep_their_places(app: MemoryFairlane) -> None:
    calls = Calls()
    gate = asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        calls.made.append("slow")
        return "slow"

    @app.handler("both")
    async def both(work: Work) -> object:
        first = work.step("slow", slow)
        second = work.step("quick", calls.later, "quick", "quick")
        if work.attempt == 1:
            await second
            first.close()
            raise RuntimeError("crash")
        return [await first, await second]

    task = await app.submit(handler="both", retry_policy=AGAIN)
    gate.set()
    assert (await ended(app, task)).result == ["slow", "quick"]
    assert calls.made == ["quick", "slow"]


async def test_changed_steps_fail_the_task_at_once_and_say_what_to_do(app: MemoryFairlane) -> None:
    calls = Calls()

    @app.handler("agent")
    async def agent(work: Work) -> object:
        await work.step("fetch" if work.attempt == 1 else "load", calls.plain, "x")
        raise RuntimeError("crash")

    task = await app.submit(handler="agent", retry_policy=AGAIN)
    shown = await ended(app, task)
    assert (shown.state, shown.attempts) == ("failed", 2)
    assert shown.error is not None
    assert 'step 1 of the task was recorded as "fetch"' in shown.error
    assert '"load"' in shown.error
    assert "fresh" in shown.error
    await app.retry(task.id, fresh=True)
    assert (await ended(app, task)).attempts == 2, "its first attempt could record a step again"


async def test_what_cannot_be_recorded_fails_with_a_clear_error(app: MemoryFairlane) -> None:
    values: list[Any] = [object(), "x" * 300_000, float("inf")]

    @app.handler("agent")
    async def agent(work: Work) -> object:
        return await work.step("big", lambda: values[work.params["n"]])

    errors = []
    for number in range(2):
        task = await app.submit(handler="agent", params={"n": number})
        shown = await ended(app, task)
        assert shown.state == "failed"
        errors.append(shown.error)
    assert "cannot be encoded as JSON" in str(errors[0])
    assert "262144" in str(errors[1])


@pytest.mark.parametrize("name", ["", "two words", "x" * 200])
async def test_the_name_of_a_step_is_a_short_word(app: MemoryFairlane, name: str) -> None:
    @app.handler("agent")
    async def agent(work: Work) -> object:
        return await work.step(name, dict)

    task = await app.submit(handler="agent")
    assert "the name of a step must be a short word" in str((await ended(app, task)).error)


async def test_a_worker_on_the_network_records_steps_too(tmp_path: Path) -> None:
    calls = Calls()
    async with serving(tmp_path, f"sqlite:///{tmp_path / 'f.db'}") as server:
        worker = Worker(server.url)

        @worker.handler("remote")
        async def remote(work: Work) -> object:
            values = [await work.step(f"s{n}", calls.later, f"s{n}", {"n": n}) for n in (1, 2)]
            if work.attempt == 1:
                raise RuntimeError("crash")
            return values

        running = asyncio.create_task(worker.run())
        async with AsyncClient(server.url) as client:
            task = await client.submit(handler="remote", retry_policy=AGAIN)
            shown = await client.wait(task.task_id)
        worker.stop()
        await running
    assert (shown.state, shown.result) == ("done", [{"n": 1}, {"n": 2}])
    assert calls.made == ["s1", "s2"]
    assert shown.steps is not None
    assert [one.name for one in shown.steps] == ["s1", "s2"]
