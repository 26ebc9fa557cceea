"""A store moves to PostgreSQL while its server accepts tasks, and the move is killed once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import aiohttp
import psycopg
import pytest

from tests.e2e.asking import Asker
from tests.e2e.processes import FAIRLANE, Programs, until
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Program

pytestmark = pytest.mark.slow

TASKS = 300
ROOM = {"maxQueueSize": 1_000_000, "maxPerAgent": 1_000_000}


class Load:
    """Submits until the server is gone; `accepted` are the tasks that it has promised to run."""

    def __init__(self, server: Program) -> None:
        self.accepted: list[str] = []
        self._server = server

    async def run(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, AssertionError):
            async with Asker(self._server) as asker:
                while True:
                    self.accepted.append(await asker.submit(handler="later", delayMs=3_600_000))


def copies(database: str) -> bool:
    """Whether there is an unfinished copy, with rows in it."""
    with psycopg.connect(database) as connection:
        if not connection.execute("SELECT to_regclass('move') IS NOT NULL").fetchall()[0][0]:
            return False
        (document,) = connection.execute("SELECT document FROM move").fetchall()[0]
        return bool(json.loads(document).get("copied"))


def task_ids(database: str) -> set[str]:
    with psycopg.connect(database) as connection:
        return {str(row[0]) for row in connection.execute("SELECT id FROM task")}


async def test_a_move_under_load_that_is_killed_loses_nothing(
    programs: Programs, tmp_path: Path, fresh_postgres: str
) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"lanes": {"main": ROOM}}))
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    keys = {"XDG_DATA_HOME": str(tmp_path)}  # the key of the secrets moves there
    server = programs.server(store, "--policy", str(policy), name="old")
    await server.start()
    load = Load(server)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load.run())
        await until(lambda: len(load.accepted) > TASKS, WAIT_SECONDS, server.output)

        command = [str(FAIRLANE), "move", store, fresh_postgres]
        mover = programs.add("move", command, r"(moved)", variables=keys)
        mover.begin()
        await until(lambda: copies(fresh_postgres), WAIT_SECONDS, mover.output)
        mover.kill()
        before = len(load.accepted)
        await until(lambda: len(load.accepted) > before, WAIT_SECONDS, server.output)
        early = programs.server(fresh_postgres, name="early", variables=keys)
        early.begin()
        assert await early.end() == 6
        assert "is an unfinished copy of" in early.output()

        mover.begin()
        assert await mover.end() == 0, mover.output()
        assert await server.end() == 6
        assert "the store was moved to postgresql://" in server.output()
    assert "compared by count and checksum" in mover.output()

    moved = programs.server(fresh_postgres, name="new", variables=keys)
    await moved.start()
    async with Asker(moved) as asker:
        assert (await asker.task(load.accepted[-1]))["state"] == "queued"
        await asker.until_tasks([await asker.submit(handler="echo")], state="done")
    assert task_ids(fresh_postgres) >= set(load.accepted)
    again = programs.server(store, name="again")
    again.begin()
    assert await again.end() == 6
    doctor = programs.add("doctor", [str(FAIRLANE), "doctor", "--store", fresh_postgres], r"(ok)")
    doctor.begin()
    assert await doctor.end() == 0, doctor.output()
