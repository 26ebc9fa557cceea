"""Sixty-four external workers in a lane with five places, some of them killed and frozen.

Whatever happens to them, never more than five tasks run at any instant, every task is done once,
and whoever reports after its lease was over is refused. Most workers are tasks of this process
over HTTP, eight are processes; those are killed with `kill -9` and started anew all the time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from fairlane import AsyncClient
from fairlane.core.errors import FairlaneError, LeaseLost
from fairlane.core.moments import parse
from tests.e2e.external_worker import HANDLER, LANE, LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

CEILING = 5
PROCESSES = 8
HERE = 56
TASKS = 220
KILLS = 8
FREEZES = 2
SECONDS_MAX = 240
BUSY_SECONDS = 1.0
LATE_SHARE = 0.05  # of the workers here that report after their lease is over
LATE_MS = 200
MS = 1_000_000
STARTS = {"task.started"}
ENDS = {"task.completed", "task.failed", "task.retrying", "task.parked", "task.released"}


class Held(NamedTuple):
    """From when to when a worker ran an attempt of a task, as far as it held the lease."""

    worker: str
    task: str
    attempt: int
    from_ns: int
    to_ns: int


class Report(NamedTuple):
    task: str
    accepted: bool
    result: Any


class Field:
    """The workers of this process, and what they and the test have written down."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.held: list[Held] = []
        self.reports: list[Report] = []
        self.late: list[Report] = []
        self.over = asyncio.Event()

    async def work(self, number: int) -> None:
        name, chance = f"here-{number}", random.Random(number)
        async with AsyncClient(self.url) as client:
            while not self.over.is_set():
                is_late = chance.random() < LATE_SHARE
                ttl_ms = LATE_MS if is_late else 10_000
                answer = await client.lease(
                    name, lanes=[LANE], handlers=[HANDLER], wait_ms=500, ttl_ms=ttl_ms, start=True
                )
                for lease in answer["leases"]:
                    await self._run(client, name, lease, is_late=is_late)

    async def _run(
        self, client: AsyncClient, name: str, lease: dict[str, Any], *, is_late: bool
    ) -> None:
        begin, task, attempt = time.time_ns(), lease["taskId"], lease["attempt"]
        span_ms = 2 * LATE_MS if is_late else lease["task"]["params"]["ms"]
        await asyncio.sleep(span_ms / 1000)
        end = min(time.time_ns(), parse(lease["leaseExpiresAt"]) * MS)
        self.held.append(Held(name, task, attempt, begin, end))
        result = [name, attempt]
        try:
            await client.complete_lease(lease["leaseId"], result=result, token=lease["token"])
            report = Report(task, True, result)
        except LeaseLost:
            report = Report(task, False, result)
        (self.late if is_late else self.reports).append(report)


class Fleet:
    """The workers that are processes, and the record of each, which a kill cannot falsify."""

    def __init__(self, programs: Programs, url: str, folder: Path) -> None:
        self._programs = programs
        self._url = url
        self._folder = folder
        self._numbers = itertools.count(1)
        self._stopped: dict[tuple[str, str, int], int] = {}  # when an attempt was cut short
        self._alive: dict[str, Program] = {}
        self._frozen: set[str] = set()
        self.cuts = 0

    async def start(self) -> None:
        await asyncio.gather(*(self._start_one() for _ in range(PROCESSES)))

    async def _start_one(self) -> None:
        name = f"process-{next(self._numbers)}"
        program = self._programs.external_worker(self._url, self._folder / f"{name}.record", name)
        await program.start()
        self._alive[name] = program

    async def kill_one(self, chance: random.Random) -> None:
        """`kill -9`; what it was doing has ended then. Another one takes its place."""
        name = await self._victim(chance)
        now = time.time_ns()
        self._alive.pop(name).kill()
        self._cut(name, now)
        await self._start_one()

    async def freeze_one(self, chance: random.Random) -> tuple[str, int] | None:
        """Stop a process for longer than its lease; the attempt that it was in, if any."""
        name = await self._victim(chance)
        self._frozen.add(name)
        now = time.time_ns()
        self._alive[name].send(signal.SIGSTOP)
        self._cut(name, now)
        await asyncio.sleep(1.5 * LEASE_SECONDS)
        self._alive[name].send(signal.SIGCONT)
        return next(((task, n) for of, task, n in self._stopped if of == name), None)

    async def _victim(self, chance: random.Random) -> str:
        """One that is in the midst of a task, unless none is found for a while."""
        give_up_at = time.monotonic() + BUSY_SECONDS
        while time.monotonic() < give_up_at:
            there = self._alive.keys() - self._frozen
            busy = [name for name in sorted(there) if self._is_busy(name)]
            if busy:
                return chance.choice(busy)
            await asyncio.sleep(0.005)
        return chance.choice(sorted(self._alive.keys() - self._frozen))

    async def stop(self) -> None:
        for program in self._alive.values():
            program.send(signal.SIGTERM)
        for program in self._alive.values():
            assert await program.end() == 0

    def _cut(self, name: str, now: int) -> None:
        if self._is_busy(name):
            task, attempt, _, _ = list(self._lines(name))[-1]
            self._stopped[name, task, attempt] = now
            self.cuts += 1

    def _is_busy(self, name: str) -> bool:
        lines = list(self._lines(name))
        return bool(lines) and lines[-1][2] == "begin"

    def _lines(self, name: str) -> Iterator[tuple[str, int, str, int]]:
        file = self._folder / f"{name}.record"
        for line in file.read_text().splitlines() if file.exists() else ():
            task, attempt, what, at = line.split()
            yield task, int(attempt), what, int(at)

    def held(self) -> list[Held]:
        found = []
        for file in sorted(self._folder.glob("*.record")):
            begun: dict[tuple[str, int], int] = {}
            for task, attempt, what, at in self._lines(file.stem):
                if what == "begin":
                    begun[task, attempt] = at
                    continue
                cut = self._stopped.pop((file.stem, task, attempt), at)
                found.append(Held(file.stem, task, attempt, begun.pop((task, attempt)), cut))
            for (task, attempt), begin in begun.items():
                cut = self._stopped.pop((file.stem, task, attempt))
                found.append(Held(file.stem, task, attempt, begin, cut))
        return found


@pytest.mark.timeout(600)
async def test_never_more_than_the_ceiling_and_every_task_once(
    programs: Programs, store_url: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.json"
    policy.write_bytes(msgspec.json.encode({"lanes": {LANE: {"maxInflight": CEILING}}}))
    server = programs.server(store_url, "--policy", str(policy))
    await server.start()
    field, fleet = Field(server.url), Fleet(programs, server.url, tmp_path)
    await fleet.start()
    async with AsyncClient(server.url) as client:
        ids = await _submit_all(client)
        workers = [asyncio.create_task(field.work(number)) for number in range(HERE)]
        harm = asyncio.create_task(_harm(fleet))
        try:
            async with asyncio.timeout(SECONDS_MAX):
                frozen = await harm
                tasks = [await client.wait(task_id) for task_id in ids]
        finally:
            harm.cancel()
            field.over.set()
            outcomes = await asyncio.gather(*workers, return_exceptions=True)
        assert [one for one in outcomes if one is not None] == []
        await fleet.stop()
        assert fleet.cuts >= 2, "hardly anybody was harmed at work: the test shows nothing"
        await _check_results(field, tasks, frozen)
        _check_instants(_as_held(field.held + fleet.held(), tasks))
        await _check_events(client, ids)
        lanes = {lane["name"]: lane for lane in (await client.lanes())["lanes"]}
        assert (lanes[LANE]["active"], lanes[LANE]["waiting"]) == (0, 0)


async def _submit_all(client: AsyncClient) -> list[str]:
    """Of several agents, with attempts to spare: each kill costs one."""
    chance = random.Random(64)
    made = [
        client.submit(
            handler=HANDLER,
            lane=LANE,
            agent=f"agent-{number % 7}",
            params={"ms": chance.randint(20, 250)},
            retry_policy={"maxRetries": 100, "backoffMs": 0},
        )
        for number in range(TASKS)
    ]
    return [answer["taskId"] for answer in await asyncio.gather(*made)]


async def _harm(fleet: Fleet) -> list[tuple[str, int]]:
    """Kill and freeze; the attempts that were frozen in their midst."""
    chance = random.Random(9)
    freezing = [asyncio.create_task(fleet.freeze_one(chance)) for _ in range(FREEZES)]
    for _ in range(KILLS):
        await fleet.kill_one(chance)
    return [found for found in await asyncio.gather(*freezing) if found]


async def _check_results(
    field: Field, tasks: list[dict[str, Any]], frozen: list[tuple[str, int]]
) -> None:
    """Each is done by one attempt, the one whose report was accepted; the late were refused."""
    assert Counter(task["state"] for task in tasks) == {"done": TASKS}
    final = {task["taskId"]: task["result"] for task in tasks}
    assert field.late, "nobody was late: the test shows nothing"
    assert not [report for report in field.late if report.accepted]
    for report in (*field.late, *field.reports):
        assert report.accepted == (final[report.task] == report.result), report
    for task_id, attempt in frozen:
        assert final[task_id][1] > attempt, "what thawed after its lease was over was believed"
    for task in tasks:
        *lost, last = task["attemptLog"]
        assert (last["outcome"], last["attempt"]) == ("completed", task["result"][1]), task
        assert {one["outcome"] for one in lost} <= {"retrying"}, task
        for before, after in itertools.pairwise(task["attemptLog"]):
            assert before["endedAt"] <= after["startedAt"], "two held it at once"


def _as_held(held: list[Held], tasks: list[dict[str, Any]]) -> list[Held]:
    """A worker that is starved of time loses its lease, goes on, and learns of it later: its end
    is when the server took the task back, and what it then reports has to be refused.
    """
    lost = {
        (task["taskId"], one["attempt"]): parse(one["endedAt"]) * MS
        for task in tasks
        for one in task["attemptLog"]
        if "lease expired" in one.get("error", "")
    }
    return [
        one._replace(to_ns=min(one.to_ns, lost.get((one.task, one.attempt), one.to_ns)))
        for one in held
    ]


def _check_instants(held: list[Held]) -> None:
    """Counted from the records of the workers themselves: at no instant more than the ceiling."""
    assert len({(one.task, one.attempt) for one in held}) == len(held)
    assert {one.worker.partition("-")[0] for one in held} == {"here", "process"}
    spans = [one for one in held if one.to_ns > one.from_ns]
    moments = sorted(
        [(one.from_ns, 1) for one in spans] + [(one.to_ns, -1) for one in spans],
    )
    at_once = list(itertools.accumulate(step for _, step in moments))
    assert max(at_once) <= CEILING, max(at_once)
    assert max(at_once) == CEILING, "the ceiling was never reached: the test shows nothing"


async def _check_events(client: AsyncClient, ids: list[str]) -> None:
    """The same from the server's side: every start and end, in the order of the commits."""
    running: set[str] = set()
    completed: Counter[str] = Counter()
    most = 0
    async for event in client.events(follow=False, lane=LANE):
        task = event["taskId"]
        if event["type"] in STARTS:
            assert task not in running, f"{task} runs twice"
            running.add(task)
        elif event["type"] in ENDS:
            running.remove(task)
        most = max(most, len(running))
        completed[task] += event["type"] == "task.completed"
    assert running == set()
    assert most == CEILING
    assert completed == dict.fromkeys(ids, 1)


async def test_a_killed_worker_that_only_waited_costs_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    """A worker that disconnects loses its place in line: the next task goes to another worker at
    once.
    """
    server = programs.server(f"sqlite:///{tmp_path / 'f.db'}")
    await server.start()
    async with AsyncClient(server.url) as client:
        await client.call("PATCH", "/policy", body={"lanes": {LANE: {"maxInflight": 1}}})
        worker = programs.external_worker(server.url, tmp_path / "w.record", "waits")
        await worker.start()
        worker.kill()
        made = await client.submit(handler=HANDLER, lane=LANE, params={"ms": 1})
        answer = await client.lease("other", lanes=[LANE], wait_ms=5000)
        (lease,) = answer["leases"]
        assert (lease["taskId"], lease["attempt"]) == (made["taskId"], 1)
        await client.complete_lease(lease["leaseId"])
        with pytest.raises(FairlaneError):
            await client.release_lease(lease["leaseId"])
