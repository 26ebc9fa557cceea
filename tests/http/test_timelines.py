"""Timelines of tasks and batches: one read for a whole chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http.api import eventually
from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_task_is_shown_with_its_dependencies_and_children(server: Server) -> None:
    api = server.api
    parent = await api.submit(handler="echo", agentId="lines")
    body = {"worker": "lines-w", "handlers": ["lines"], "ttlMs": 60000}
    task = await api.submit(handler="lines", agentId="lines", dependsOn=[parent])
    child = await api.submit(handler="echo", agentId="lines", lane=HELD)
    lease = {}

    async def leased() -> bool:
        found = (await api.post("/leases", body)).json["leases"]
        if found:
            lease.update(found[0])
        return bool(found)

    await eventually(leased)
    where = f"/leases/{lease['leaseId']}"
    assert (await api.post(f"{where}/start", {"token": lease["token"]})).status == 200
    step = {"token": lease["token"], "name": "submit", "value": child}
    assert (await api.post(f"{where}/checkpoint", step)).status == 200
    found = (await api.get(f"/tasks/{task}/timeline")).json
    by_role = {one["role"]: one for one in found["timelines"]}
    assert {role: one["taskId"] for role, one in by_role.items()} == {
        "dependency": parent,
        "self": task,
        "child": child,
    }
    mine = by_role["self"]
    assert [(one["kind"], one.get("reason")) for one in mine["spans"]][-1] == ("run", None)
    assert mine["spans"][0]["reason"] in ("dependency", "queue")
    assert [(one["kind"], one["name"]) for one in mine["marks"]] == [("step", "submit")]
    assert by_role["dependency"]["spans"][-1]["outcome"] == "completed"
    assert (await api.get("/tasks/tsk_nobody/timeline")).status == 404
    # What it reported last about its progress is in its status, in lists too.
    for done in (0.25, 0.5):
        said = {"token": lease["token"], "progress": {"done": done}}
        assert (await api.post(f"{where}/renew", said)).status == 200
    assert (await api.show(task))["progress"] == {"done": 0.5}
    (listed,) = (await api.get("/tasks", handler="lines", brief="true")).json["tasks"]
    assert listed["progress"] == {"done": 0.5}


async def test_a_batch_is_shown_oldest_first_up_to_a_limit(server: Server) -> None:
    tasks = [{"handler": "echo", "lane": HELD}] * 3
    made = (await server.api.post("/tasks/batch", {"agentId": "lines", "tasks": tasks})).json
    where = f"/batches/{made['batchId']}/timeline"
    ids = [one["taskId"] for one in made["tasks"]]
    found = (await server.api.get(where)).json
    assert [one["taskId"] for one in found["timelines"]] == ids
    assert found["more"] is False
    few = (await server.api.get(where, limit=2)).json
    assert [one["taskId"] for one in few["timelines"]] == ids[:2]
    assert few["more"] is True
    assert (await server.api.get("/batches/bat_nobody/timeline")).status == 404
