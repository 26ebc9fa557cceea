"""The queue and the plan in one's own program: the verbs of the routes, to be awaited."""

from __future__ import annotations

import pytest

from fairlane import Fairlane
from fairlane.core.errors import Draining


async def test_a_program_adds_plans_leases_and_completes() -> None:
    async with Fairlane("sqlite://:memory:") as app:
        for name, priority in (("low", 200), ("high", 10)):
            await app.queue_add(id=name, app="review", priority=priority, inputs={"pr": 7})
        plan = await app.plan()
        assert [one["id"] for one in plan["leases"]] == ["high"]
        assert plan["skipped"] == [{"id": "low", "reason": "concurrency-ceiling"}]
        (lease,) = (await app.lease("host-7", lanes=["queue"], limit=5))["leases"]
        assert (lease["id"], lease["task"]["params"]["inputs"]) == ("high", {"pr": 7})
        await app.complete_lease(lease["leaseId"], result={"ok": True})
        assert (await app.queue_show("high"))["status"] == "drained"
        assert (await app.queue_list(status="pending"))["total"] == 1
        await app.set_queue_policy({"maxConcurrent": 5})
        assert (await app.queue_policy())["policy"]["maxConcurrent"] == 5
        document = {"schemaVersion": 1, "entries": [{"id": "old", "status": "ready"}]}
        assert (await app.queue_import(document))["imported"] == 1
        drained = (await app.queue_drain(limit=5))["drained"]
        assert [one["id"] for one in drained] == ["old", "low"]
        assert (await app.reclaim_leases())["reclaimed"] == []


async def test_entries_are_refused_while_it_stops() -> None:
    async with Fairlane("sqlite://:memory:") as app:
        app.node.draining = True
        with pytest.raises(Draining):
            await app.queue_add(app="review")
