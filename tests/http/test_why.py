"""`GET /tasks/{id}/why` over the wire; what it says for each gate and ceiling: tests/store."""

from __future__ import annotations

import pytest

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
        "reason": f"it is not to start before {task['nextEligibleAt']}",
        "waitingFor": [task["nextEligibleAt"]],
        "ceiling": None,
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
