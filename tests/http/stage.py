"""One test's own agents and tabs on a server that it shares with others.

The policy below gives the shared servers lanes with small limits, so that a test that needs a
limit names a lane instead of starting a server. The lane `browser` keeps its documented defaults.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.waiting import TooLate, in_time
from tests.http.api import LIVE, Answer, Api, balance

if TYPE_CHECKING:
    from tests.fakes.tab_instance import Entry, TabInstance
    from tests.http.hooks import Hooks

ONE = "one"  # one task at a time
TWO = "two"  # two
UNUSED = "unused"  # two, but no test ever submits to it
SHARED = "shared"  # four, of which one agent may have two
TINY = "tiny"  # five may wait, three of one agent; nothing starts
HELD = "held"  # nothing starts

POLICY: dict[str, Any] = {
    "lanes": {
        ONE: {"maxInflight": 1},
        TWO: {"maxInflight": 2},
        UNUSED: {"maxInflight": 2},
        SHARED: {"maxInflight": 4, "maxPerAgentInflight": 2},
        TINY: {"maxInflight": 1, "maxQueueSize": 5, "maxPerAgent": 3, "paused": True},
        HELD: {"maxInflight": 1, "paused": True},
    }
}

HANG = {"hang": True}

# For what happens before or beside the store, and so is the same on every database.
on_sqlite = pytest.mark.parametrize("shared_store", ["sqlite"], indirect=True, scope="session")

_numbers = itertools.count(1)


def after(seconds: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Stage:
    def __init__(self, api: Api, instance: TabInstance, hooks: Hooks) -> None:
        self.api = api
        self.instance = instance
        self.hooks = hooks
        self.agent = self.new_agent()
        self._before = len(instance.requests)

    def new_agent(self, name: str = "agent") -> str:
        return f"{name}-{next(_numbers)}"

    def tab(self) -> str:
        name = f"tab-{next(_numbers)}"
        self.instance.tabs.append(name)
        return name

    # --- submitting -----------------------------------------------------------------------------

    def task(self, *, fake: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """The body of a submission. A field that is None is left out."""
        if fake is not None:
            fields["params"] = {**fields.get("params", {}), "fake": fake}
        body = {"agentId": self.agent, "action": "click", **fields}
        if "tabId" not in body:
            body["tabId"] = self.tab()
        return {name: value for name, value in body.items() if value is not None}

    async def post(self, **fields: Any) -> Answer:
        return await self.api.post("/tasks", self.task(**fields))

    async def submit(self, **fields: Any) -> str:
        return await self.api.submit(**self.task(**fields))

    async def run(self, **fields: Any) -> dict[str, Any]:
        """Submit, and wait for its end."""
        return await self.api.end_of(await self.submit(**fields))

    async def expiring(self, **fields: Any) -> str:
        """Submit with a deadline that is near."""
        return await in_time(lambda seconds: self.expiring_in(seconds, **fields))

    async def expiring_in(self, seconds: float, **fields: Any) -> str:
        answer = await self.post(deadline=after(seconds), **fields)
        if answer.status == 400 and "deadline is in the past" in answer.error:
            raise TooLate("its deadline was over before it arrived")
        assert answer.status == 202, answer
        task_id: str = answer.json["taskId"]
        return task_id

    async def stopped_at_its_deadline(self, seconds: float, **fields: Any) -> dict[str, Any]:
        """Run something that hangs until its deadline comes, which must not find it waiting."""
        before = len(self.actions())
        task = await self.api.end_of(await self.expiring_in(seconds, fake=HANG, **fields))
        if "startedAt" not in task or len(self.actions()) == before:
            raise TooLate("its deadline was over before it was under way")
        return task

    async def block(self, lane: str, **fields: Any) -> str:
        """Fill a slot of the lane: a task that hangs in the instance until it is let go."""
        before = len(self.instance.seen("action"))
        task_id = await self.submit(
            lane=lane, fake=HANG, agentId=self.new_agent("blocker"), **fields
        )
        await self.instance.until(lambda: len(self.instance.seen("action")) > before)
        return task_id

    # --- what the instance saw ------------------------------------------------------------------

    def actions(self, agent: str | None = None) -> list[Entry]:
        """Actions that arrived since this test began, in order; of one agent if named."""
        entries = [one for one in self.instance.requests[self._before :] if one.what == "action"]
        return [one for one in entries if agent in (None, one.headers["x-agent-id"])]

    def numbers(self, agent: str | None = None) -> list[int]:
        """The param `n` of each action that carried one, in order of arrival."""
        return [one.body["n"] for one in self.actions(agent) if "n" in one.body]

    def agents(self) -> list[str]:
        """Who each numbered action came from, in order of arrival."""
        return [one.headers["x-agent-id"] for one in self.actions() if "n" in one.body]

    async def arrived(self, count: int, agent: str | None = None) -> list[Entry]:
        await self.instance.until(lambda: len(self.actions(agent)) >= count)
        return self.actions(agent)

    def most_at_once(self, tab: str | None = None) -> int:
        """How many actions were under way together, without those that were broken off."""
        moments: list[tuple[int, int]] = []
        for one in self.actions():
            if one.outcome != "gone" and tab in (None, one.tab):
                end = one.finished if one.finished is not None else 2**62
                moments += [(one.arrived, 1), (end, -1)]
        return max(itertools.accumulate(step for _, step in sorted(moments)), default=0)

    # --- afterwards -----------------------------------------------------------------------------

    async def clear(self) -> None:
        """Leave nothing behind, and the books in order."""
        while ids := (await self.api.get("/tasks", state=LIVE, limit=1000)).ids:
            await asyncio.gather(*map(self.api.cancel, ids))
        self.instance.release()
        stats = await self.api.stats()
        assert balance(stats) == 0, stats
        assert (stats["queue"]["totalQueued"], stats["queue"]["totalInflight"]) == (0, 0), stats
