"""When the queue is full, and a server configured as PinchTab's own end-to-end tests do it.

Facts of specs/pinchtab.md section 17: 25, 35, 36, 48, 69, 72, 103, 108, 119; section 18: 19
(what was refused does not fill the store), 35 (`Retry-After`, the refused task's id).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.http.api import eventually
from tests.http.stage import HANG, TINY, Stage

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMALL = {
    "scheduler": {
        "enabled": True,
        "strategy": "fair-fifo",
        "maxQueueSize": 5,
        "maxPerAgent": 3,
        "maxInflight": 2,
        "maxPerAgentInflight": 1,
        "resultTTLSec": 120,
        "workerCount": 2,
    }
}


async def fill(stage: Stage, *counts: int) -> None:
    for count in counts:
        agent = stage.new_agent()
        for _ in range(count):
            await stage.submit(lane=TINY, agentId=agent)


async def test_a_full_queue_refuses_with_all_a_caller_needs_to_know(stage: Stage) -> None:
    await fill(stage, 3, 2)
    answer = await stage.post(lane=TINY)
    assert answer.status == 429
    assert answer.headers["Retry-After"].isdigit()
    assert int(answer.headers["Retry-After"]) >= 1
    refusal = answer.json
    task_id = refusal["details"].pop("taskId")
    assert refusal["details"].pop("lane") == TINY
    assert refusal == {
        "code": "queue_full",
        "error": "rejected: global queue full",
        "retryable": True,
        "details": {"agentId": stage.agent, "queued": 5, "maxQueue": 5, "maxPerAgent": 3},
    }
    assert task_id.startswith("tsk_")


async def test_the_queue_of_one_agent_is_full_while_others_get_in(stage: Stage) -> None:
    for _ in range(3):
        await stage.submit(lane=TINY)
    answer = await stage.post(lane=TINY)
    assert (answer.status, answer.code) == (429, "queue_full")
    assert answer.error == f'rejected: agent queue full for "{stage.agent}"'
    details = answer.json["details"]
    assert (details["queued"], details["maxQueue"], details["maxPerAgent"]) == (3, 5, 3)
    assert (await stage.post(lane=TINY, agentId=stage.new_agent())).status == 202


async def test_the_global_limit_is_named_before_that_of_the_agent(stage: Stage) -> None:
    await fill(stage, 2)
    for _ in range(3):
        await stage.submit(lane=TINY)
    assert (await stage.post(lane=TINY)).error == "rejected: global queue full"


async def test_a_refused_task_is_kept_as_rejected(stage: Stage) -> None:
    for _ in range(3):
        await stage.submit(lane=TINY)
    answer = await stage.post(lane=TINY, ref="e1", params={"text": "x" * 1000}, priority=4)
    task = await stage.api.show(answer.json["details"]["taskId"])
    assert (task["state"], task["ref"], task["priority"]) == ("rejected", "e1", 4)
    assert "agent queue full" in task["error"]
    assert "completedAt" in task
    assert not {"startedAt", "latencyMs", "position", "result"} & set(task)
    listed = await stage.api.get("/tasks", agentId=stage.agent, state="rejected")
    assert listed.ids == [task["taskId"]]
    assert (await stage.api.cancel(task["taskId"])).status == 409


async def test_a_refused_task_frees_no_room_and_a_cancelled_one_does(stage: Stage) -> None:
    ids = [await stage.submit(lane=TINY) for _ in range(3)]
    for _ in range(3):
        assert (await stage.post(lane=TINY)).status == 429
    await stage.api.cancel(ids[0])
    assert (await stage.post(lane=TINY)).status == 202
    assert (await stage.post(lane=TINY)).status == 429


async def test_rejections_are_counted_apart(stage: Stage) -> None:
    before = (await stage.api.stats())["metrics"]
    for _ in range(5):
        await stage.post(lane=TINY)
    after = (await stage.api.stats())["metrics"]
    assert after["tasksSubmitted"] - before["tasksSubmitted"] == 3
    assert after["tasksRejected"] - before["tasksRejected"] == 2
    assert after["agents"][stage.agent] == {
        "submitted": 3,
        "completed": 0,
        "failed": 0,
        "cancelled": 0,
        "rejected": 2,
    }


async def test_of_many_at_once_exactly_as_many_get_in_as_there_is_room(stage: Stage) -> None:
    agents = [stage.new_agent() for _ in range(20)]
    answers = await asyncio.gather(*(stage.post(lane=TINY, agentId=one) for one in agents))
    assert sorted(answer.status for answer in answers) == [202] * 5 + [429] * 15


async def test_a_rejected_task_has_no_webhook(stage: Stage) -> None:
    hook, marker = stage.hooks.new(), stage.hooks.new()
    for _ in range(3):
        await stage.submit(lane=TINY)
    assert (await stage.post(lane=TINY, callbackUrl=hook.url)).status == 429
    await stage.run(callbackUrl=marker.url)
    await marker.one()
    assert hook.deliveries == []


async def test_a_callback_that_the_guard_blocks_is_an_invalid_request(stage: Stage) -> None:
    answer = await stage.post(callbackUrl="http://169.254.169.254/")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.error == "invalid task: invalid callbackUrl: target address is not allowed"


async def test_pinchtabs_own_settings_are_in_force(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy=SMALL)
    api = server.api
    config = (await api.stats())["config"]
    expected = {
        "strategy": "fair-fifo",
        "maxQueueSize": 5,
        "maxPerAgent": 3,
        "maxInflight": 2,
        "maxPerAgentFlight": 1,
        "workerCount": 2,
        "resultTTL": "2m0s",
    }
    assert {name: config[name] for name in expected} == expected

    # Two run, one of each agent; three of one agent wait, and five in all.
    stage = Stage(api, instance, hooks)
    a, b, c = (stage.new_agent() for _ in range(3))
    statuses = [
        (await stage.post(agentId=agent, fake=HANG)).status
        for agent in [a, b, *[a] * 4, *[b] * 2, c]
    ]
    assert statuses == [202, 202, 202, 202, 202, 429, 202, 202, 429]
    await stage.arrived(2)
    queue = (await api.stats())["queue"]
    assert queue["agents"][a] == {"queued": 3, "inflight": 1}
    assert queue["agents"][b] == {"queued": 2, "inflight": 1}
    await stage.clear()


async def test_a_disabled_scheduler_refuses_submissions_and_still_answers(serve: Serve) -> None:
    server = await serve(policy={"scheduler": {"enabled": False}})
    for path, body in (
        ("/tasks", {"agentId": "a", "action": "click"}),
        ("/tasks/batch", {"agentId": "a", "tasks": [{"action": "click"}]}),
    ):
        answer = await server.api.post(path, body)
        assert (answer.status, answer.code) == (503, "disabled"), path
        assert answer.json["retryable"] is True
    assert (await server.api.get("/tasks")).json == {"tasks": [], "count": 0}
    server.write_policy({"scheduler": {"enabled": True}})

    async def accepted() -> bool | None:
        answer = await server.api.post("/tasks", {"agentId": "a", "action": "click"})
        return answer.status == 202 or None

    await eventually(accepted)
