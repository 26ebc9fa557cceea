"""`GET /tasks/{id}/why` over the wire; what it says for each gate and ceiling: tests/store."""

from __future__ import annotations

import pytest

from tests.http.conftest import Serve
from tests.http.talk import LONG
from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_delayed_task_says_until_when(work: Work) -> None:
    task = await work.api.show(await work.submit(delayMs=60_000))
    answer = await work.api.get(f"/tasks/{task['taskId']}/why")
    assert answer.status == 200
    assert answer.json == {
        "taskId": task["taskId"],
        "state": "queued",
        "ready": False,
        "gate": "delay",
        "reason": f"it is scheduled to start no earlier than {task['nextEligibleAt']}",
        "waitingFor": [task["nextEligibleAt"]],
        "ceiling": None,
        "ceilings": [],
        "position": None,
        "estimateMs": None,
    }


async def test_a_child_names_its_parent(work: Work) -> None:
    parent = await work.submit(delayMs=60_000)
    child = await work.submit(dependsOn=[parent])
    why = (await work.api.get(f"/tasks/{child}/why")).json
    assert (why["state"], why["gate"]) == ("waiting_dependency", "dependency")
    assert why["waitingFor"] == [parent]
    assert why["reason"] == f"it depends on a task that is not done: {parent} (queued)"


async def test_an_unknown_task_is_not_found(work: Work) -> None:
    answer = await work.api.get("/tasks/tsk_nobody/why")
    assert (answer.status, answer.json["code"]) == (404, "not_found")


async def test_a_server_that_runs_as_much_as_it_may_is_the_ceiling(serve: Serve) -> None:
    server = await serve(policy={"workerCount": 1})
    running = await server.api.submit(agentId="a", **LONG)
    await server.api.until(running, "running")
    waiting = await server.api.submit(agentId="b", **LONG)
    why = (await server.api.get(f"/tasks/{waiting}/why")).json
    ceiling = {"scope": "worker", "limit": 1, "inUse": 1, "setting": "workerCount"}
    assert (why["ready"], why["ceiling"], why["ceilings"]) == (True, ceiling, [ceiling])
    assert why["waitingFor"] == [running]
    assert why["reason"] == (
        "the server runs 1 task at once, which is the limit (workerCount); no task is ahead of it"
    )
    outside = await server.api.submit(agentId="b", handler="of-a-worker-outside")
    why = (await server.api.get(f"/tasks/{outside}/why")).json
    text = "no known worker offers handler 'of-a-worker-outside'"
    assert (why["ceilings"], why["reason"]) == ([], text)
