"""kill -9 between the end of two parents and what follows for their children, again and again.

It takes several transactions until the end of a parent has reached thousands of children. They wait
in a lane that is paused, so that the kills meet nothing but that; then the lane is opened.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.e2e import checks
from tests.e2e.processes import show, until
from tests.e2e.world import HELD, NEVER, POLICY, World, talking, world
from tests.fakes.chat_agent import Script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

CHILDREN = 1500  # of each: together three steps of the engine
KILLS = 2
OPEN = {"lanes": {**POLICY["lanes"], HELD: {"paused": False}}}
WAITING = "SELECT count(*) FROM task WHERE state = 'waiting_dependency'"
RAN = ["created", "unblocked", "started", "completed"]
FELL = ["created", "cancelled"]


class Family:
    """A parent at the agent, and its children in the paused lane."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.parent = ""
        self.children: list[str] = []

    async def gather(self) -> None:
        self.parent = await self.world.say(self.name, retryPolicy=NEVER)
        await self.world.until_asked(self.name)
        item = {"handler": "echo", "lane": HELD, "dependsOn": [self.parent]}
        body = {"agentId": "family", "tasks": [item] * 100}
        asked = [self.world.post("/tasks/batch", body) for _ in range(CHILDREN // 100)]
        for answer in await asyncio.gather(*asked):
            assert answer.body["accepted"] == 100, answer
            self.children += [task["taskId"] for task in answer.body["tasks"]]

    def check(self, events: dict[str, list[dict[str, Any]]], expected: list[str]) -> None:
        """All that has happened to the children, and that it happened after the parent's end."""
        ended = events[self.parent][-1]
        for child in self.children:
            assert _types(events[child]) == expected, child
            assert events[child][1]["id"] > ended["id"], child


def _types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("task.") for event in events]


class Database:
    """A connection of our own to the store, whoever serves from it."""

    def __init__(self, store: str) -> None:
        self._connection: Any
        if store.startswith("sqlite"):
            file = store.removeprefix("sqlite:///")
            self._connection = sqlite3.connect(file, isolation_level=None)
        else:
            self._connection = psycopg.connect(store, autocommit=True)

    def waiting(self) -> int:
        """How many children are not reached by the end of their parent."""
        count: int = self._connection.execute(WAITING).fetchall()[0][0]
        return count

    def close(self) -> None:
        self._connection.close()


async def test_no_child_is_stranded_between_the_end_of_its_parent_and_its_turn(
    programs: Programs, tmp_path: Path, store_url: str
) -> None:
    async with world(programs, tmp_path, store_url) as one:
        good, bad = Family(one, "good parent"), Family(one, "bad parent")
        one.agent.scripts[good.name] = talking("done", hang_after=0)
        one.agent.scripts[bad.name] = Script(status=400, body={"error": "no"}, hang_after=0)
        await one.start()
        database = Database(store_url)
        try:
            await good.gather()
            await bad.gather()
            assert database.waiting() == 2 * CHILDREN
            one.agent.release()
            left = await _kill_half_way(one, database)
            assert any(0 < count < 2 * CHILDREN for count in left), "no kill came half-way"
            await until(lambda: database.waiting() == 0, 20, lambda: "children are stranded")
        finally:
            database.close()
        one.write_policy(OPEN)
        await _until_completed(one, CHILDREN + 1)
        events = await _events_by_task(one)
        assert _types(events[good.parent]) == ["created", "started", "completed"]
        good.check(events, RAN)
        bad.check(events, FELL)
        reasons = {events[child][-1]["error"] for child in bad.children}
        assert reasons == {f"dependency {bad.parent} failed"}
        assert (await one.task(bad.children[-1]))["error"] in reasons
    assert checks.disagreements(store_url) == []


async def _kill_half_way(world: World, database: Database) -> list[int]:
    """Kill the server whenever it has got on; how many children were left each time."""
    left = [database.waiting()]
    for _ in range(KILLS):
        await until(lambda: database.waiting() < left[-1], 20, lambda: "it does not get on")
        world.server.kill()
        left.append(database.waiting())
        world.server.begin()
    await world.server.until_ready()
    show(f"left by each kill: {left[1:]}")
    return left


async def _until_completed(world: World, count: int) -> None:
    found: dict[str, Any] = {}

    async def completed() -> bool:
        found.update((await world.get("/scheduler/stats")).body["metrics"])
        return bool(found["tasksCompleted"] == count)

    await until(completed, 30, lambda: f"not all children ran: {found}")


async def _events_by_task(world: World) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in await world.events():
        if "taskId" in event:
            found.setdefault(event["taskId"], []).append(event)
    return found
