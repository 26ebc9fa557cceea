"""How soon the tasks of a process that is killed run elsewhere, with stopped ones among them.

On PostgreSQL the victims are nodes, which run the tasks themselves; on SQLite they are external
workers of one server. Now and then another process is stopped for ten seconds (SIGSTOP) and goes on
afterwards: it must not be taken for dead, and what it reports too late must change nothing.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlane import AsyncClient
from fairlane.core import moments
from fairlane.core.leases import CONNECTION_GONE
from tests.chaos.recovery_worker import HANDLER
from tests.chaos.table import row
from tests.e2e.processes import until
from tests.fakes.ports import lasting_port
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.schema.task_status import TaskStatus
    from tests.e2e.processes import Program, Programs

WIDTH = 6  # tasks that run at once
VICTIMS = 3
ROUND_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.3
SECONDS_MAX = 1.0
HELD_UP_SECONDS_MAX = 6.0
RETRIES = {"maxRetries": 100, "backoffMs": 5000}  # a wait would be seen
POLICY = {"lanes": {"main": {"maxInflight": 1000, "maxQueueSize": None}}}


class Size(NamedTuple):
    kills: int = 50
    zombies: int = 10
    stopped_seconds: float = 10.0
    nap_ms: int = 2500


SHORT = Size(kills=2, zombies=1, stopped_seconds=2.0, nap_ms=1500)


class Outcome(NamedTuple):
    """What one scenario has shown. `took` has one time for each task that ran on a victim, `beside`
    those of the kills during which another process was stopped: a node that is stopped while it
    writes holds the others up for a few seconds.
    """

    store: str
    kills: int
    zombies: int
    tasks: int
    done: int
    twice: int
    false_alarms: int
    took: list[float]
    beside: list[float]

    def row(self) -> str:
        return row(
            store=self.store,
            kills=self.kills,
            zombies=self.zombies,
            tasks=f"{self.done}/{self.tasks} done",
            completed_twice=self.twice,
            false_alarms=self.false_alarms,
            moved=len(self.took) + len(self.beside),
            p50=f"{quantile(self.took, 0.5):.3f} s",
            p99=f"{quantile(self.took, 0.99):.3f} s",
            most=f"{max(self.took):.3f} s",
            p50_beside_zombies=f"{quantile(self.beside, 0.5):.3f} s",
            most_beside_zombies=f"{max(self.beside, default=0.0):.3f} s",
        )

    def problems(self, size: Size, *, seconds_max: float | None) -> list[str]:
        """Return what must not be."""
        found = []
        if self.done != self.tasks:
            found.append(f"{self.done} of {self.tasks} tasks are done")
        if self.twice:
            found.append(f"{self.twice} tasks were completed more than once")
        if self.false_alarms:
            found.append(f"{self.false_alarms} runs of living processes were taken back")
        if (self.kills, self.zombies) != (size.kills, size.zombies):
            found.append(f"{self.kills} kills and {self.zombies} zombies, not as planned")
        if seconds_max is not None and quantile(self.took, 0.99) > seconds_max:
            found.append(f"99 % ran elsewhere only after {quantile(self.took, 0.99):.3f} s")
        if max(self.beside, default=0.0) > HELD_UP_SECONDS_MAX:
            found.append(f"one ran elsewhere only after {max(self.beside):.3f} s")
        return found


def quantile(values: list[float], part: float) -> float:
    """Return the smallest value that this part of all values does not exceed."""
    ordered = sorted(values) or [0.0]
    return ordered[max(0, -(-round(len(ordered) * part * 100) // 100) - 1)]


class Scene:
    def __init__(self, programs: Programs, folder: Path, store: str, size: Size, seed: int) -> None:
        document = folder / "policy.json"
        document.write_bytes(msgspec.json.encode(POLICY))
        self.size = size
        self.store = store
        self._programs = programs
        self._chance = random.Random(f"recovery {seed}")
        self._shared = not store.startswith("sqlite")
        self.nodes = [
            programs.server(
                store,
                *("--policy", str(document), "--port", str(lasting_port())),
                name=f"node-{number}",
            )
            for number in range(VICTIMS if self._shared else 1)
        ]
        self.victims: list[Program] = self.nodes if self._shared else []
        self._names: dict[str, Program] = {}  # of living nodes or workers, as the store knows them
        self._killed: set[str] = set()
        self._stopped: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[str] = []
        self._took: list[float] = []
        self._beside: list[float] = []
        self._zombies = 0

    async def play(self) -> Outcome:
        await asyncio.gather(*(node.start() for node in self.nodes))
        if not self._shared:
            await self._start_workers()
        zombies = set(self._chance.sample(range(self.size.kills), self.size.zombies))
        for number in range(self.size.kills):
            await self._round(zombie=number in zombies)
        await asyncio.gather(*self._stopped.values())
        return await self._outcome()

    async def _start_workers(self) -> None:
        url = self.nodes[0].url
        for number in range(VICTIMS):
            command = [sys.executable, "-m", "tests.chaos.recovery_worker", url]
            self.victims.append(self._programs.add(f"worker-{number}", command, r"(leases)\n"))
        await asyncio.gather(*(worker.start() for worker in self.victims))

    async def _round(self, *, zombie: bool) -> None:
        awake = [one for one in self.victims if one.pid not in self._stopped]
        if zombie:
            self._stop(self._chance.choice(awake))
            self._zombies += 1
            await asyncio.sleep(self._chance.uniform(0, self.size.stopped_seconds / 2))
            awake = [one for one in awake if one.pid not in self._stopped]
        async with AsyncClient(awake[0].url if self._shared else self.nodes[0].url) as client:
            busy = await self._busy(client, awake)
            victim = self._chance.choice(sorted(busy, key=lambda one: one.name))
        watching = next(one for one in awake if one is not victim)
        self._killed |= {name for name, one in self._names.items() if one is victim}
        at = time.time() * 1000
        victim.kill()
        async with AsyncClient(watching.url if self._shared else self.nodes[0].url) as client:
            for task_id, attempt in busy[victim]:
                took = await self._moved(client, task_id, attempt, at)
                if took is not None:
                    (self._beside if zombie else self._took).append(took)
        await victim.start()
        if zombie:  # the next victim is among three that run again
            await asyncio.gather(*self._stopped.values())

    async def _submit(self, client: AsyncClient) -> None:
        task = await client.submit(
            handler="sleep" if self._shared else HANDLER,
            params={"ms": self.size.nap_ms},
            retry_policy=RETRIES,
        )
        self._tasks.append(task.task_id)

    async def _busy(
        self, client: AsyncClient, awake: list[Program]
    ) -> dict[Program, list[tuple[str, int]]]:
        """Return what runs where, when enough does."""
        found: dict[Program, list[tuple[str, int]]] = {}

        async def look() -> bool:
            found.clear()
            await self._learn_names(client)
            for task in (await client.tasks(states=["running"])).tasks:
                where = self._names.get(task.worker or "")
                if where in awake:
                    found.setdefault(where, []).append((task.task_id, task.attempts))
            running = sum(map(len, found.values()))
            if running < WIDTH // 2:
                await asyncio.gather(*(self._submit(client) for _ in range(WIDTH - running)))
                await asyncio.sleep(LOOK_SECONDS)
            return running >= WIDTH // 2

        await until(look, WAIT_SECONDS, lambda: "nothing runs")
        return found

    async def _learn_names(self, client: AsyncClient) -> None:
        by_pid = {str(one.pid): one for one in self.victims}
        for worker in (await client.workers()).workers:
            pid = (worker.address or "").rpartition(":")[2] if self._shared else worker.name[2:]
            if pid in by_pid:
                self._names[worker.name] = by_pid[pid]

    async def _moved(
        self, client: AsyncClient, task_id: str, attempt: int, killed_at: float
    ) -> float | None:
        """Return after how many seconds the next attempt had begun; None if the task was done by
        then.
        """
        found: list[float | None] = []

        async def look() -> bool:
            task = await client.show(task_id)
            later = [one for one in task.attempt_log or () if one.attempt > attempt]
            if later:
                found.append((moments.parse(later[0].started_at) - killed_at) / 1000)
            elif task.state == "done":
                found.append(None)
            return bool(found)

        await until(look, ROUND_SECONDS_MAX, lambda: f"{task_id} does not run elsewhere")
        return found[0]

    def _stop(self, program: Program) -> None:
        async def go_on() -> None:
            await asyncio.sleep(self.size.stopped_seconds)
            program.send(signal.SIGCONT)
            del self._stopped[program.pid]

        program.send(signal.SIGSTOP)
        self._stopped[program.pid] = asyncio.create_task(go_on())

    async def _outcome(self) -> Outcome:
        tasks: list[TaskStatus] = []
        twice = false_alarms = 0
        async with AsyncClient(self.nodes[0].url) as client:
            for task_id in self._tasks:
                task = await client.wait(task_id, timeout=ROUND_SECONDS_MAX)
                events: list[Any] = (await client.task_events(task_id)).events
                twice += sum(event.type == "task.completed" for event in events) > 1
                tasks.append(task)
        for task in tasks:
            for one in task.attempt_log or ():
                alive = one.worker not in self._killed
                false_alarms += one.error == CONNECTION_GONE and alive
        return Outcome(
            store=f"postgresql, {VICTIMS} nodes"
            if self._shared
            else f"sqlite, {VICTIMS} external workers",
            kills=self.size.kills,
            zombies=self._zombies,
            tasks=len(tasks),
            done=sum(task.state == "done" for task in tasks),
            twice=twice,
            false_alarms=false_alarms,
            took=self._took,
            beside=self._beside,
        )
