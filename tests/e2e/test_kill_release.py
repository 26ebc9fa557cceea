"""kill -9 between the end of a parent and what follows for its children, again and again.

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

# The engine takes them in steps of a thousand: each family has more than it is killed times.
GOOD, BAD = 2500, 1500
OPEN = {"lanes": {**POLICY["lanes"], HELD: {"paused": False}}}
WAITING = "SELECT count(*) FROM task WHERE state = 'waiting_dependency'"
RAN = ["created", "unblocked", "started", "completed"]
FELL = ["created", "cancelled"]


class Family:
    """A parent at the agent, and its children in the paused lane."""

    def __init__(self, world: World, name: str, size: int) -> None:
        self.world = world
        self.name = name
        self.size = size
        self.parent = ""
        self.children: list[str] = []
        self.left: list[int] = []  # how many each kill has found not reached yet

    async def gather(self) -> None:
        self.parent = await self.world.say(self.name, retryPolicy=NEVER)
        await self.world.until_asked(self.name)
        item = {"handler": "echo", "lane": HELD, "dependsOn": [self.parent]}
        body = {"agentId": "family", "tasks": [item] * 100}
        asked = [self.world.post("/tasks/batch", body) for _ in range(self.size // 100)]
        for answer in await asyncio.gather(*asked):
            assert answer.body["accepted"] == 100, answer
            self.children += [task["taskId"] for task in answer.body["tasks"]]

    async def end(self, database: Database, *, kills: int) -> None:
        """Let the parent end, and kill the server whenever that has reached more children."""
        before = database.waiting()
        assert before == self.size
        self.world.agent.release()
        for _ in range(kills):
            await until(lambda b=before: database.waiting() < b, 60, lambda: "it does not get on")  # type: ignore[misc]  # the default binds the loop's value
            self.world.server.kill()
            before = database.waiting()
            self.left.append(before)
            self.world.server.begin()
            if not before:  # on a busy machine the kill may come late
                break
        await self.world.server.until_ready()
        await until(lambda: not database.waiting(), 60, lambda: "children are stranded")

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
        good, bad = Family(one, "good parent", GOOD), Family(one, "bad parent", BAD)
        one.agent.scripts[good.name] = talking("done", hang_after=0)
        one.agent.scripts[bad.name] = Script(status=400, body={"error": "no"}, hang_after=0)
        await one.start()
        database = Database(store_url)
        try:
            await good.gather()
            await good.end(database, kills=2)
            await bad.gather()
            await bad.end(database, kills=1)
        finally:
            database.close()
        show(f"left by each kill: {good.left} and {bad.left}")
        assert any(good.left + bad.left), "no kill came half-way"
        one.write_policy(OPEN)
        await _until_completed(one, GOOD + 1)
        events = await _events_by_task(one)
        assert _types(events[good.parent]) == ["created", "started", "completed"]
        good.check(events, RAN)
        bad.check(events, FELL)
        reasons = {events[child][-1]["error"] for child in bad.children}
        assert reasons == {f"dependency {bad.parent} failed"}
        assert (await one.task(bad.children[-1]))["error"] in reasons
    assert checks.disagreements(store_url) == []


async def _until_completed(world: World, count: int) -> None:
    found: dict[str, Any] = {}

    async def completed() -> bool:
        found.update((await world.get("/scheduler/stats")).body["metrics"])
        return bool(found["tasksCompleted"] == count)

    await until(completed, 120, lambda: f"not all children ran: {found}")


async def _events_by_task(world: World) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in await world.events():
        if "taskId" in event:
            found.setdefault(event["taskId"], []).append(event)
    return found
