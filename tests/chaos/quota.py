"""512 agents on one quota: every run completes, and the provider's windows are never exceeded.

Each run makes ten calls of random size, each under a permit over HTTP. A stranger uses a fifth of
the quota and tells nobody. Nodes are killed with `kill -9` on the way and started again.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

from fairlane import AsyncClient
from fairlane.core.errors import FairlaneError
from tests.chaos import quota_checks as checks
from tests.chaos.provider import Call, Limits
from tests.chaos.quota_worker import HANDLER, LANE, RESOURCE
from tests.chaos.table import row
from tests.e2e.processes import until
from tests.fakes.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.e2e.processes import Program, Programs

BATCH = 100
LOOK_SECONDS = 0.25
MOST_PER_TOKEN = 1.1  # what an agent reserves for a call, to what it takes


class Size(NamedTuple):
    """How large a scenario is; a window of the provider is one minute, scaled."""

    runs: int = 512
    calls: int = 10
    window_ms: int = 12_000
    tokens: int = 1_500_000
    requests: int = 9_000
    mean_tokens: int = 3_000
    stranger: float = 0.2
    latency_ms: int = 60
    workers: int = 4
    kills: int = 2
    seconds_max: float = 600.0

    @property
    def limits(self) -> Limits:
        return Limits(self.window_ms / 1000, self.tokens, self.requests)


SHORT = Size(runs=48, calls=5, window_ms=3_000, mean_tokens=12_000, workers=2, seconds_max=180.0)


class Outcome(NamedTuple):
    """What one scenario has shown."""

    store: str
    runs: int
    done: int
    other_states: int
    attempts_max: int
    calls: int
    refused_first: int
    late: Sequence[float]  # refusals after the first window, in windows since the first call
    kill_moments: Sequence[float]  # in the same unit
    peak: checks.Load
    use: float
    kills: int
    seconds: float

    @property
    def refused_later(self) -> int:
        return len(self.late)

    def row(self) -> str:
        return row(
            store=self.store,
            runs=f"{self.done}/{self.runs} done",
            most_attempts=self.attempts_max,
            calls=self.calls,
            refused=f"{self.refused_first} in the first window, {self.refused_later} later",
            peak=f"{self.peak.tokens} tokens, {self.peak.requests} requests",
            use=f"{self.use:.1%}",
            kills=self.kills,
            seconds=f"{self.seconds:.0f}",
        )

    def problems(self, size: Size, *, use_min: float | None) -> list[str]:
        """Return what must not be. How well strangers are known is judged only with `use_min`: a
        window of the short form is not much longer than the delays of a busy machine.
        """
        found = []
        if self.done != self.runs:
            found.append(f"{self.done} of {self.runs} runs are done")
        if self.calls != size.runs * size.calls:
            found.append(f"{self.calls} calls were served, not {size.runs * size.calls}")
        # A refused call is made again and counts twice; in the short form that can be many.
        exact = use_min is not None or not self.refused_first + self.refused_later
        if exact and (self.peak.tokens > size.tokens or self.peak.requests > size.requests):
            found.append(f"a window was exceeded: {self.peak}")
        if use_min is not None and self.refused_later:
            found.append(
                f"{self.refused_later} calls were refused after the first window, at "
                f"{_moments(self.late)} windows; nodes were killed at {_moments(self.kill_moments)}"
            )
        if use_min is not None and self.use < use_min:
            found.append(f"only {self.use:.1%} of what the stranger left was used")
        if self.kills != size.kills:
            found.append(f"{self.kills} nodes were killed, not {size.kills}")
        return found


def _moments(windows: Sequence[float]) -> str:
    return ", ".join(f"{moment:.2f}" for moment in windows[:20])


def policy(size: Size) -> dict[str, object]:
    limits = [
        {"unit": "requests", "amount": size.requests, "perMs": size.window_ms},
        {"unit": "tokens", "amount": size.tokens, "perMs": size.window_ms},
    ]
    lane = {"maxInflight": size.runs, "maxPerAgentInflight": 1, "maxQueueSize": None}
    return {"lanes": {LANE: lane}, "resources": {RESOURCE: {"limits": limits}}}


def tasks(size: Size, seed: int) -> list[dict[str, Any]]:
    """Return one task per agent, with the sizes of its calls: reserved and taken."""
    chance = random.Random(f"quota {seed}")
    found: list[dict[str, Any]] = []
    for number in range(size.runs):
        taken = [
            chance.randint(size.mean_tokens // 3, size.mean_tokens * 5 // 3)
            for _ in range(size.calls)
        ]
        calls = [[round(tokens * chance.uniform(1, MOST_PER_TOKEN)), tokens] for tokens in taken]
        agent = f"agent-{number}"
        found.append({"handler": HANDLER, "agent": agent, "lane": LANE, "params": {"calls": calls}})
    return found


class Scene:
    """The processes of one scenario: nodes on one store, the provider and the workers."""

    def __init__(self, programs: Programs, folder: Path, store: str, size: Size, seed: int) -> None:
        document = folder / "policy.json"
        document.write_bytes(msgspec.json.encode(policy(size)))
        self.size = size
        self.seed = seed
        self.store = store
        nodes = 1 if store.startswith("sqlite") else 2
        self.nodes = [self._node(programs, str(document), number) for number in range(nodes)]
        self.provider = programs.add("provider", self._provider(), r'\{"url":"([^"]+)"\}\n')
        self._programs = programs
        self.kills = 0
        self.killed_at: list[float] = []  # by the provider's clock

    def _node(self, programs: Programs, document: str, number: int) -> Program:
        flags = ["--policy", document, "--port", str(lasting_port())]
        return programs.server(self.store, *flags, name=f"node-{number}")

    def _provider(self) -> list[str]:
        size = self.size
        options = {
            "--window-ms": size.window_ms,
            "--tokens": size.tokens,
            "--requests": size.requests,
            "--stranger": size.stranger,
            "--latency-ms": size.latency_ms,
            "--seed": self.seed,
        }
        words = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-m", "tests.chaos.provider", *words]

    async def play(self) -> Outcome:
        began = time.monotonic()
        await asyncio.gather(self.provider.start(), *(node.start() for node in self.nodes))
        await self._submit()
        await self._start_workers()
        killing = asyncio.create_task(self._kill_nodes())
        try:
            await until(self._is_over, self.size.seconds_max, lambda: "not all runs have ended")
            await killing
        finally:
            killing.cancel()
        return await self._outcome(time.monotonic() - began)

    async def _submit(self) -> None:
        made = tasks(self.size, self.seed)
        async with AsyncClient(self.nodes[0].url) as client:
            for first in range(0, len(made), BATCH):
                some = made[first : first + BATCH]
                await asyncio.gather(*(client.submit(**task) for task in some))

    async def _start_workers(self) -> None:
        workers = self.size.workers
        each = -(-self.size.runs // workers)
        programs = []
        for number in range(workers):
            node = self.nodes[number % len(self.nodes)]
            words = [node.url, self.provider.url, f"worker-{number}", str(each)]
            command = [sys.executable, "-m", "tests.chaos.quota_worker", *words]
            programs.append(self._programs.add(f"worker-{number}", command, r"(leases)\n"))
        await asyncio.gather(*(program.start() for program in programs))

    async def _kill_nodes(self) -> None:
        """Kill a node whenever a third of the calls has been served, and start it again."""
        total = self.size.runs * self.size.calls
        for number in range(1, self.size.kills + 1):
            due = total * number // (self.size.kills + 1)
            while await self._served() < due:  # noqa: ASYNC110 - the provider announces nothing
                await asyncio.sleep(LOOK_SECONDS)
            node = self.nodes[number % len(self.nodes)]
            node.kill()
            self.kills += 1
            self.killed_at.append((await self._log())["now"])
            await node.start()

    async def _served(self) -> int:
        return sum(call.served for call in checks.ours(await self._calls()))

    async def _calls(self) -> list[Call]:
        return [Call(*call) for call in (await self._log())["calls"]]

    async def _log(self) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.provider.url}/__log") as answer,
        ):
            log: dict[str, Any] = msgspec.json.decode(await answer.read())
        return log

    async def _is_over(self) -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            async with AsyncClient(self.nodes[0].url) as client:
                queue = (await client.stats()).queue
        except FairlaneError:  # it is being started again
            return False
        return not (queue.total_queued or queue.total_inflight)

    async def _outcome(self, seconds: float) -> Outcome:
        calls = await self._calls()
        mine = checks.ours(calls)
        began, window = mine[0].at, self.size.limits.window_seconds
        refused = sum(not call.served for call in mine)
        late = [(call.at - began) / window for call in checks.refusals(calls, began + window)]
        ended = await self._tasks()
        done = sum(state == "done" for state, _ in ended)
        return Outcome(
            store="sqlite, 1 node"
            if len(self.nodes) == 1
            else f"postgresql, {len(self.nodes)} nodes",
            runs=len(ended),
            done=done,
            other_states=len(ended) - done,
            attempts_max=max((attempts for _, attempts in ended), default=0),
            calls=len(mine) - refused,
            refused_first=refused - len(late),
            late=late,
            kill_moments=[(at - began) / window for at in self.killed_at],
            peak=checks.peak(mine, window),
            use=checks.use_of_the_rest(calls, self.size.limits),
            kills=self.kills,
            seconds=seconds,
        )

    async def _tasks(self) -> list[tuple[str, int]]:
        """Return the state and attempts of every run."""
        found: list[tuple[str, int]] = []
        async with AsyncClient(self.nodes[0].url) as client:
            cursor = None
            while True:
                page = await client.tasks(lane=LANE, limit=BATCH, cursor=cursor)
                found += [(task.state, task.attempts) for task in page.tasks]
                if (cursor := page.next_cursor) is None:
                    return found
