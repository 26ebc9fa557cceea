"""Repeated kill -9 under load: every acknowledged task is done, once, and no other task is.

    pytest tests/e2e/test_kill.py --kills 300 --kill-tasks 60000 -o timeout=3600 -s

Half of the kills and tasks go to each database. A failure prints the seed; --kill-seed repeats the
same orders and pauses, though not the same interleaving: that is up to the system.
"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e import checks
from tests.e2e.history import KILL, OK, READY
from tests.e2e.processes import show, until
from tests.e2e.stage import TAKEN_BACK_SECONDS, Stage, staged
from tests.fakes.waiting import WAIT_SECONDS, steadily, within
from tests.postgres import mortal_postgres

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

LIFE_SECONDS = (0.05, 0.8)  # how long a server lives after it is ready
LIFE_MEAN_SECONDS = sum(LIFE_SECONDS) / 2
BIRTH_SECONDS = (0.0, 0.7)  # when one dies that is killed while it starts
DIES_YOUNG = 0.15  # so many of the kills
FROZEN_SECONDS_MAX = 20.0  # mostly five: how long a lock is left to somebody who does nothing


class Plan(NamedTuple):
    """How much of it, and the seed that it is drawn from."""

    seed: int
    kills: int
    tasks: int

    @property
    def title(self) -> str:
        return f"--kill-seed {self.seed}"


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Plan:
    option = request.config.getoption
    seed = option("--kill-seed")
    plan = Plan(
        random.randrange(2**32) if seed is None else seed,
        kills=option("--kills") // 2,
        tasks=option("--kill-tasks") // 2,
    )
    show(plan.title)
    return plan


# -------------------------------------------------------------------- one server on a file


async def test_nothing_is_lost_or_done_twice_when_the_server_is_killed(
    programs: Programs, tmp_path: Path, plan: Plan
) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    async with staged(programs, tmp_path, store, title=plan.title) as stage:
        load = stage.load(
            plan.seed, tasks=plan.tasks, rate=plan.tasks / (plan.kills * LIFE_MEAN_SECONDS)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await _kill_and_restart(stage, random.Random(plan.seed), plan.kills)
            load.over = True
        await stage.settle()
        assert await stage.problems() == []


async def _kill_and_restart(stage: Stage, rng: random.Random, kills: int) -> None:
    (server,) = stage.servers
    await stage.start(server)
    for _ in range(kills):
        if rng.random() >= DIES_YOUNG:
            await stage.until_ready(server)
            await asyncio.sleep(rng.uniform(*LIFE_SECONDS))
        else:
            await asyncio.sleep(rng.uniform(*BIRTH_SECONDS))
        stage.kill(server)
        if rng.random() < 0.3:  # to look is to repair: mostly the next server finds it as it is
            assert checks.disagreements(stage.store) == []
        server.begin()
    await stage.until_ready(server)


# -------------------------------------------------------------------- two nodes on one database


async def test_nothing_is_lost_or_done_twice_when_nodes_are_killed(
    programs: Programs, tmp_path: Path, fresh_postgres: str, plan: Plan
) -> None:
    async with staged(programs, tmp_path, fresh_postgres, nodes=2, title=plan.title) as stage:
        first, second = stage.servers
        await asyncio.gather(stage.start(first), stage.start(second))
        load = stage.load(
            plan.seed, tasks=plan.tasks, rate=plan.tasks / (plan.kills * 2 * LIFE_MEAN_SECONDS)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await _kill_in_turns(stage, random.Random(plan.seed), plan.kills - 1)
            stage.kill(first)
            load.over = True
            # What the dead one held is free when its leases have run out, and not later.
            await stage.until_free(TAKEN_BACK_SECONDS)
        await stage.settle()
        assert await stage.problems() == []
        assert _acknowledged_by_survivors(stage) > plan.kills


async def _kill_in_turns(stage: Stage, rng: random.Random, kills: int) -> None:
    """Mostly one at a time; sometimes both, so that nobody is there to go on."""
    left = kills
    while left > 0:
        await asyncio.sleep(rng.uniform(*LIFE_SECONDS))
        victims = [rng.choice(stage.servers)]
        if left > 1 and rng.random() < 0.2:
            victims = stage.servers
        for victim in victims:
            stage.kill(victim)
            left -= 1
        assert checks.disagreements(stage.store) == []
        await asyncio.gather(*(stage.start(victim) for victim in victims))


def _acknowledged_by_survivors(stage: Stage) -> int:
    """How many submissions were acknowledged while exactly one of the nodes was down."""
    down: set[str] = set()
    count = 0
    for entry in stage.history.entries:
        if entry.what == KILL:
            down.add(entry.who)
        elif entry.what == READY:
            down.discard(entry.who)
        elif entry.what == OK and len(down) == 1:
            count += 1
    return count


async def test_a_frozen_node_holds_up_the_other_for_seconds_only(
    programs: Programs, tmp_path: Path, fresh_postgres: str, plan: Plan
) -> None:
    """Frozen, it may well have the lock that all writers need: its connection is alive."""
    async with staged(programs, tmp_path, fresh_postgres, nodes=2, title=plan.title) as stage:
        first, second = stage.servers
        await asyncio.gather(stage.start(first), stage.start(second))
        load = stage.load(plan.seed, tasks=500, rate=300)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await _until_acknowledged(stage, 100)
            await steadily(lambda: _freeze(stage, first))
            load.over = True
        await stage.settle()
        assert await stage.problems() == []


async def _freeze(stage: Stage, node: Program) -> None:
    node.send(signal.SIGSTOP)
    stage.ready.discard(node.url)
    try:
        with within(FROZEN_SECONDS_MAX):
            await _until_acknowledged(stage, 100)
    finally:
        node.send(signal.SIGCONT)
        stage.ready.add(node.url)
    await _until_acknowledged(stage, 100)


# -------------------------------------------------------------------- the database itself


async def test_nothing_is_lost_when_postgresql_is_killed_and_the_server_goes_on(
    programs: Programs, tmp_path: Path, plan: Plan
) -> None:
    rng = random.Random(plan.seed)
    with mortal_postgres() as postgres:
        async with staged(programs, tmp_path, postgres.url, title=plan.title) as stage:
            (server,) = stage.servers
            await stage.start(server)
            pid = server.pid
            await stage.begin_long_action("long", ms=6000)  # longer than a lease is left alone
            load = stage.load(plan.seed, tasks=500, rate=150)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                for _ in range(4):
                    await asyncio.sleep(rng.uniform(0.2, 1.0))
                    await asyncio.to_thread(postgres.kill)
                    stage.history.add("postgresql", KILL)
                    await asyncio.sleep(rng.uniform(0.0, 0.7))
                    await asyncio.to_thread(postgres.start)
                    stage.history.add("postgresql", READY)
                    await _until_acknowledged(stage)
                load.over = True
            await stage.settle()
            assert await stage.problems() == []
            assert server.alive
            assert server.pid == pid


async def _until_acknowledged(stage: Stage, count: int = 1) -> None:
    """Work goes on, without anybody's help."""
    wanted = len(stage.history.acknowledged) + count
    await until(
        lambda: len(stage.history.acknowledged) >= wanted,
        WAIT_SECONDS,
        lambda: f"nothing is acknowledged any more, {count} were to come",
    )
