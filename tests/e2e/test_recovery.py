"""Recovery: how soon tasks run after a restart of the server or its database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.asking import Asker
from tests.fakes.waiting import steadily, within
from tests.postgres import mortal_postgres

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

TAKEN_BACK_SECONDS_MAX = 5.0  # the lease would last for 12; the retry waits for 1


async def test_a_restart_on_the_same_file_takes_running_tasks_back_at_once(
    programs: Programs, tmp_path: Path
) -> None:
    server = programs.server(f"sqlite:///{tmp_path / 'fairlane.db'}")

    async def take_back() -> list[Any]:
        async with Asker(server) as asker:
            tasks = [await asker.sleep(600_000) for _ in range(5)]
            await asker.until_tasks(tasks, state="running", attempts=1)
            server.kill()
            await server.start()
            with within(TAKEN_BACK_SECONDS_MAX):
                await asker.until_tasks(tasks, state="running", attempts=2)
            return [await asker.task(task) for task in tasks]

    await server.start()
    tasks = await steadily(take_back)
    for task in tasks:
        lost, running = task["attemptLog"]
        assert (task["state"], lost["outcome"]) == ("running", "retrying")
        assert lost["endedAt"] <= running["startedAt"]
        assert "endedAt" not in running
    assert len(tasks) == 5


async def test_a_server_that_was_idle_goes_on_after_a_restart_of_the_database(
    programs: Programs,
) -> None:
    """Nobody asked while it was away, so every connection is found dead by the first who does."""
    with mortal_postgres() as postgres:
        server = programs.server(postgres.url)
        await server.start()
        async with Asker(server) as asker:
            paths = ("/scheduler/stats", "/health/ready", "/tasks")
            before = await asyncio.gather(*(asker.get(path) for path in paths * 4))
            assert {answer.status for answer in before} == {200}
            await asyncio.to_thread(postgres.kill)
            await asyncio.to_thread(postgres.start)
            after = await asyncio.gather(*(asker.get(path) for path in paths * 4))
            assert {answer.status for answer in after} == {200}, after
            await asker.until_tasks([await asker.sleep(1)], state="done", attempts=1)


async def test_a_database_that_is_away_is_reported_and_nothing_else_breaks(
    programs: Programs,
) -> None:
    with mortal_postgres() as postgres:
        server = programs.server(postgres.url)
        await server.start()
        async with Asker(server) as asker:
            await asyncio.to_thread(postgres.kill)
            body = {"handler": "echo", "agentId": "agent-a"}
            answers = [
                await asker.post("/tasks", body),
                await asker.post("/tasks/nobody/cancel", {}),
                *[await asker.get(path) for path in ("/tasks", "/tasks/x", "/scheduler/stats")],
                await asker.get("/health/ready"),
            ]
            said = {(answer.status, answer.body["code"]) for answer in answers}
            assert said == {(503, "store_unavailable")}
            assert (await asker.get("/health/live")).status == 200
            await asyncio.to_thread(postgres.start)
            await asker.until_tasks([await asker.submit(**body)], state="done")
