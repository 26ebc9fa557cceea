"""A client that follows the events over several deaths of the server: all of them, each once.

It reconnects as a browser does, with the id of the last event that it has seen whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest

from tests.e2e.load import LOST
from tests.e2e.processes import until
from tests.e2e.world import World, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

KILLS = 3
EVENTS_PER_LIFE = 150
BROKEN = (*LOST, ValueError)  # a line that was cut in the middle


class Follower:
    """Keeps what it has seen; a message counts when its blank line has come."""

    def __init__(self, world: World, **query: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self._world = world
        self._query = query
        self._lines: dict[str, str] = {}

    @property
    def last(self) -> int:
        return self.seen[-1]["id"] if self.seen else 0

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            while True:
                with contextlib.suppress(*BROKEN):
                    await self._follow(session)
                await asyncio.sleep(0.01)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        # The first time with `after`, so that it does not matter when it connects.
        resumed = {"Last-Event-ID": str(self.last)} if self.seen else {}
        query = self._query if self.seen else {**self._query, "after": "0"}
        self._lines = {}
        url = f"{self._world.server.url}/events"
        async with session.get(url, headers=resumed, params=query) as answer:
            assert answer.status == 200, await answer.text()
            self.connections += 1
            async for line in answer.content:
                self._take(line.decode().rstrip("\n"))

    def _take(self, line: str) -> None:
        if line:
            name, _, value = line.partition(": ")
            self._lines[name] = value
            return
        if "data" in self._lines:
            event = msgspec.json.decode(self._lines["data"])
            assert int(self._lines["id"]) == event["id"]
            self.seen.append(event)
        self._lines = {}


async def test_who_follows_the_events_over_several_kills_misses_none_and_sees_none_twice(
    programs: Programs, tmp_path: Path, store_url: str
) -> None:
    async with world(programs, tmp_path, store_url) as one:
        await one.start()
        everything, mine = Follower(one), Follower(one, agentId="agent-1")
        followers = [asyncio.create_task(follower.run()) for follower in (everything, mine)]
        clients = [asyncio.create_task(_submit(one, f"agent-{number}")) for number in range(3)]
        try:
            for _ in range(KILLS):
                await _until_seen(everything, everything.last + EVENTS_PER_LIFE)
                await one.restart()
            await _until_seen(everything, everything.last + EVENTS_PER_LIFE)
        finally:
            await _end(clients)
        try:
            kept = await _quiet(one)
            await _until_seen(everything, kept[-1]["id"])
            of_mine = [event for event in kept if event.get("agentId") == "agent-1"]
            await _until_seen(mine, of_mine[-1]["id"])
        finally:
            await _end(followers)
        # The leases of the dead may still run out while this is looked at.
        ids = [event["id"] for event in everything.seen]
        assert ids == list(range(1, len(ids) + 1))
        assert everything.seen[: len(kept)] == kept
        assert mine.seen[: len(of_mine)] == of_mine
        assert everything.connections > KILLS


async def _submit(world: World, agent: str) -> None:
    """One after the other; what a kill swallows is not asked again."""
    for number in itertools.count():
        with contextlib.suppress(*LOST):
            body = {"agentId": agent, "handler": "echo", "params": {"n": number}}
            await world.post("/tasks", body)
        await asyncio.sleep(0.002)


async def _until_seen(follower: Follower, last: int) -> None:
    await until(
        lambda: follower.last >= last, 60, lambda: f"{follower.last} of {last} events were seen"
    )


async def _quiet(world: World) -> list[dict[str, Any]]:
    """All events, once nobody waits for anything but for leases of the dead."""

    async def idle() -> bool:
        return not (await world.get("/scheduler/stats")).body["queue"]["totalQueued"]

    await until(idle, 60, lambda: "work is left")
    return await world.events()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result
