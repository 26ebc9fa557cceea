"""A node that stops in the middle of its work, or dies: what the others promise for that."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.e2e.asking import Asker
from tests.e2e.processes import until
from tests.fakes.waiting import WAIT_SECONDS, steadily, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

GO_ON_SECONDS_MAX = 6.0  # others answer again
ELSEWHERE_SECONDS_MAX = 5.0  # the tasks of a dead node have started again
TRIES = 3
LARGE = {"handler": "echo", "params": {"text": ["x" * 200_000] * 4}}


@contextlib.asynccontextmanager
async def loaded(server: Program) -> AsyncIterator[None]:
    """Keep a server busy with large requests, so that it nearly always has the lock."""
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            while True:
                async with session.post(f"{server.url}/tasks", json=LARGE) as answer:
                    await answer.read()

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        try:
            yield
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def works(asker: Asker) -> bool:
    """Submit until a task is accepted; give up after `WAIT_SECONDS`."""

    async def accepted() -> bool:
        return (await asker.post("/tasks", {"handler": "echo"})).status == 202

    await until(accepted, WAIT_SECONDS, lambda: "no submission is accepted")
    return True


async def test_others_go_on_when_a_node_is_stopped(programs: Programs, fresh_postgres: str) -> None:
    one, other = (programs.server(fresh_postgres, name=name) for name in ("one", "other"))
    await asyncio.gather(one.start(), other.start())
    async with Asker(one) as here, Asker(other) as there:

        async def stop() -> None:
            async with loaded(one):
                await here.until_tasks([await here.submit(handler="echo")], state="done")
                one.send(signal.SIGSTOP)
                try:
                    with within(GO_ON_SECONDS_MAX):
                        assert await works(there)
                finally:
                    one.send(signal.SIGCONT)
            assert await works(here)

        for _ in range(TRIES):
            await steadily(stop)


async def test_the_tasks_of_a_dead_node_start_elsewhere(
    programs: Programs, fresh_postgres: str
) -> None:
    numbers = iter(range(10))

    async def die() -> None:
        number = next(numbers)
        one, other = (
            programs.server(fresh_postgres, name=f"{name}-{number}") for name in ("one", "other")
        )
        await one.start()
        async with Asker(one) as asker:
            tasks = [await asker.sleep(600_000) for _ in range(3)]
            await asker.until_tasks(tasks, state="running", attempts=1)
        await other.start()
        async with Asker(other) as asker:
            pid = one.pid
            assert await state(asker, pid) == "ready"
            one.kill()
            with within(ELSEWHERE_SECONDS_MAX):
                await asker.until_tasks(tasks, state="running", attempts=2)
                assert await state(asker, pid) == "silent"
            for task in tasks:
                await asker.post(f"/tasks/{task}/cancel", {})
        other.kill()

    await steadily(die)


async def state(asker: Asker, pid: int) -> str:
    answer = await asker.get("/nodes")
    found: list[dict[str, Any]] = [one for one in answer.body["nodes"] if one["pid"] == pid]
    return str(found[0]["state"])
