"""kill -9 of the processes of one server under load: what was acknowledged is done, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.history import KILL
from tests.e2e.processes import Program, Programs, show, until
from tests.e2e.stage import Stage, staged
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.slow

PROCESSES = 3
TASKS = 400
RATE = 100.0
FRONT_KILLS = 8
SERVER_KILLS = 3
LIFE_SECONDS = (0.1, 0.6)


def fronts(server: Program) -> list[int]:
    text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(word) for word in text.split()]


async def until_gone(numbers: list[int]) -> None:
    await until(
        lambda: not any(Path(f"/proc/{one}").exists() for one in numbers),
        WAIT_SECONDS,
        lambda: "a front outlives the process that writes",
    )


async def test_nothing_is_lost_or_done_twice_when_fronts_are_killed(
    programs: Programs, tmp_path: Path, store_url: str
) -> None:
    async def kill(stage: Stage, rng: random.Random) -> None:
        (server,) = stage.servers
        for _ in range(FRONT_KILLS):
            await asyncio.sleep(rng.uniform(*LIFE_SECONDS))
            found = fronts(server)
            if found:
                os.kill(rng.choice(found), signal.SIGKILL)
                stage.history.add("front", KILL)
        await until(
            lambda: len(fronts(server)) == PROCESSES - 1, WAIT_SECONDS, lambda: "no new front"
        )

    stage = await _under_load(programs, tmp_path, store_url, kill)
    assert "released" not in stage.servers[0].output()  # no external worker holds a lease here
    assert stage.servers[0].output().count("starting another") >= 1


async def test_nothing_is_lost_or_done_twice_when_the_process_that_writes_is_killed(
    programs: Programs, tmp_path: Path
) -> None:
    async def kill(stage: Stage, rng: random.Random) -> None:
        (server,) = stage.servers
        for _ in range(SERVER_KILLS):
            await asyncio.sleep(rng.uniform(*LIFE_SECONDS))
            before = fronts(server)
            stage.kill(server)
            await until_gone(before)
            await stage.start(server)

    stage = await _under_load(programs, tmp_path, f"sqlite:///{tmp_path / 'fairlane.db'}", kill)
    assert stage.history.count(KILL) == SERVER_KILLS


async def _under_load(
    programs: Programs,
    folder: Path,
    store: str,
    kill: Callable[[Stage, random.Random], Awaitable[None]],
) -> Stage:
    seed = random.randrange(2**32)
    show(f"seed {seed}")
    async with staged(programs, folder, store, processes=PROCESSES, title=f"seed {seed}") as stage:
        await stage.start(stage.servers[0])
        load = stage.load(seed, tasks=TASKS, rate=RATE)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await kill(stage, random.Random(seed))
            load.over = True
        await stage.settle()
        assert await stage.problems() == []
        return stage
