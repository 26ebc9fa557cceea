"""kill -9 between the end of a parent and what follows for its children, again and again.

The end of a parent with thousands of children takes several transactions to reach them all. The
children wait in a lane that is paused, so that the kills meet nothing but that; then it is opened.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
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

CHILDREN = 3000  # three steps of the engine
KILLS = 2
OPEN: dict[str, Any] = {
    "lanes": {**POLICY["lanes"], HELD: {"maxInflight": 1000, "paused": False}},
}


WAITING = "SELECT count(*) FROM task WHERE state = 'waiting_dependency'"


def _reader(store: str) -> Any:
    """A connection of our own to the database, whoever serves from it."""
    if store.startswith("sqlite"):
        return sqlite3.connect(store.removeprefix("sqlite:///"), isolation_level=None)
    return psycopg.connect(store, autocommit=True)


class Family:
    """One parent at the agent, and its children in the paused lane."""

    def __init__(self, world: World, store: str) -> None:
        self.world = world
        self.parent = ""
        self.children: list[str] = []
        self._reader = _reader(store)

    def close(self) -> None:
        self._reader.close()

    async def gather(self) -> None:
        self.parent = await self.world.say("parent", retryPolicy=NEVER)
        await self.world.until_asked("parent")
        item = {"handler": "echo", "lane": HELD, "dependsOn": [self.parent]}
        for _ in range(CHILDREN // 100):
            body = {"agentId": "family", "tasks": [item] * 100}
            answer = await self.world.post("/tasks/batch", body)
            assert answer.status == 202, answer
            self.children += [task["taskId"] for task in answer.body["tasks"]]
        assert self.waiting() == CHILDREN

    def waiting(self) -> int:
        """How many children the end of the parent has not reached."""
        count: int = self._reader.execute(WAITING).fetchall()[0][0]
        return count

    async def kill_half_way(self) -> list[int]:
        """Kill the server each time it has got on; how many children it had left."""
        left, before = [], CHILDREN
        for _ in range(KILLS):
            await until(lambda b=before: self.waiting() < b, 20, lambda: "it does not get on")  # type: ignore[misc]  # the default binds the loop's value
            self.world.server.kill()
            before = self.waiting()
            left.append(before)
            if not before:
                break
            self.world.server.begin()
        if not self.world.server.alive:
            self.world.server.begin()
        await self.world.server.until_ready()
        show(f"left by each kill: {left}")
        return left

    async def all_events(self) -> dict[str, list[dict[str, Any]]]:
        """The events of every task, oldest first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for event in await self.world.events():
            if "taskId" in event:
                found.setdefault(event["taskId"], []).append(event)
        return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("task.") for event in events]


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_no_child_is_stranded_between_the_end_of_its_parent_and_its_turn(
    programs: Programs, tmp_path: Path, store_url: str, ends: str
) -> None:
    async with world(programs, tmp_path, store_url) as one:
        family = Family(one, store_url)
        good = talking("done", hang_after=0)
        bad = Script(status=400, body={"error": "no"}, hang_after=0)
        one.agent.scripts["parent"] = good if ends == "well" else bad
        await one.start()
        try:
            await family.gather()
            one.agent.release()
            left = await family.kill_half_way()
            assert any(0 < count < CHILDREN for count in left), "no kill came half-way"
            await until(lambda: family.waiting() == 0, 20, lambda: "children are stranded")
        finally:
            family.close()
        check = _all_run_once if ends == "well" else _all_cancelled
        await check(family)
    assert checks.disagreements(store_url) == []


async def _all_run_once(family: Family) -> None:
    family.world.write_policy(OPEN)
    expected = ["created", "unblocked", "started", "completed"]

    async def done() -> bool:
        stats = (await family.world.get("/scheduler/stats")).body["metrics"]
        return bool(stats["tasksCompleted"] == CHILDREN + 1)

    await until(done, 30, lambda: "not all children ran")
    events = await family.all_events()
    assert (await family.world.task(family.parent))["attempts"] == 1
    completed = events[family.parent][-1]
    assert types(events[family.parent]) == ["created", "started", "completed"]
    for child in family.children:
        assert types(events[child]) == expected, child
        assert events[child][1]["id"] > completed["id"]


async def _all_cancelled(family: Family) -> None:
    assert (await family.world.task(family.parent))["state"] == "failed"
    events = await family.all_events()
    assert Counter(tuple(types(events[child])) for child in family.children) == {
        ("created", "cancelled"): CHILDREN
    }
    told = {events[child][-1]["error"] for child in family.children}
    assert told == {f"dependency {family.parent} failed"}
    shown = await asyncio.gather(*(family.world.task(child) for child in family.children[::500]))
    assert {(task["state"], task["error"]) for task in shown} == {("cancelled", *told)}
