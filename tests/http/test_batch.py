"""`POST /tasks/batch`: validation, partial acceptance, what the items share.

Facts of specs/pinchtab.md section 17: 1-8, 104, 105, 106, 117, 118; weakness 10 of section 18
(a batch can do what its own documentation shows).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.http.api import Answer
from tests.http.stage import HELD, TINY, Stage

if TYPE_CHECKING:
    from tests.http.conftest import Serve

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def post(stage: Stage, *items: Any, **fields: Any) -> Answer:
    body = {"agentId": stage.agent, "tasks": list(items), **fields}
    return await stage.api.post("/tasks/batch", {k: v for k, v in body.items() if v is not None})


def item(stage: Stage, **fields: Any) -> dict[str, Any]:
    return {"action": "click", "tabId": stage.tab(), "lane": HELD, **fields}


async def test_a_batch_is_accepted_item_by_item_in_order(stage: Stage) -> None:
    answer = await post(stage, *(item(stage) for _ in range(3)))
    assert answer.status == 202
    assert answer.json["batchId"]
    assert (answer.json["submitted"], answer.json["accepted"], answer.json["rejected"]) == (3, 3, 0)
    assert [(one["state"], one["position"]) for one in answer.json["tasks"]] == [
        ("queued", 1),
        ("queued", 2),
        ("queued", 3),
    ]
    assert len(set(answer.ids)) == 3


async def test_the_example_of_the_documentation_does_what_it_says(stage: Stage) -> None:
    hook, tab = stage.hooks.new(), stage.tab()
    answer = await post(
        stage,
        {"action": "click", "tabId": tab, "params": {"selector": "#btn"}},
        {"action": "scroll", "tabId": tab, "params": {"scrollY": 400}},
        {"action": "hover", "tabId": tab, "params": {"selector": "h1"}, "priority": 1},
        callbackUrl=hook.url,
    )
    assert (answer.status, answer.json["submitted"]) == (202, 3)
    tasks = await stage.api.ended(*answer.ids)
    assert [task["state"] for task in tasks] == ["done"] * 3
    assert [entry.body for entry in stage.actions()] == [
        {"kind": "click", "selector": "#btn"},
        {"kind": "scroll", "scrollY": 400},
        {"kind": "hover", "selector": "h1"},
    ]
    deliveries = [one for one in await hook.until(4) if one.event != "batch.completed"]
    assert sorted(one.task["taskId"] for one in deliveries) == sorted(answer.ids)


async def test_the_items_share_agent_callback_and_batch(stage: Stage) -> None:
    hook = stage.hooks.new()
    answer = await post(stage, item(stage), item(stage), callbackUrl=hook.url)
    for task_id in answer.ids:
        task = await stage.api.show(task_id)
        assert (task["agentId"], task["callbackUrl"]) == (stage.agent, hook.url)
        assert task["batchId"] == answer.json["batchId"]
    task = await stage.api.show((await post(stage, item(stage))).ids[0])
    assert "callbackUrl" not in task


async def test_an_item_has_every_field_of_a_single_task(stage: Stage) -> None:
    fields = {"ref": "e1", "selector": "#x", "params": {"a": 1}, "priority": 3}
    deadline = "2099-01-01T00:00:00Z"
    answer = await post(stage, item(stage, **fields, deadline=deadline))
    task = await stage.api.show(answer.ids[0])
    assert {name: task[name] for name in fields} == fields
    assert task["deadline"] == "2099-01-01T00:00:00.000Z"


async def test_an_item_cannot_speak_for_another_agent(stage: Stage) -> None:
    answer = await post(stage, item(stage, agentId="somebody-else"))
    assert answer.status in {202, 400}
    if answer.status == 202 and answer.json["accepted"]:
        assert (await stage.api.show(answer.ids[0]))["agentId"] == stage.agent


@pytest.mark.parametrize("agent", [None, ""])
async def test_a_batch_without_an_agent_is_400(stage: Stage, agent: str | None) -> None:
    answer = await post(stage, item(stage), agentId=agent)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "agentId" in answer.error


@pytest.mark.parametrize("tasks", [None, []], ids=["absent", "empty"])
async def test_a_batch_without_tasks_is_400(stage: Stage, tasks: list[Any] | None) -> None:
    body = {"agentId": stage.agent, "tasks": tasks}
    answer = await stage.api.post("/tasks/batch", {k: v for k, v in body.items() if v is not None})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "'tasks'" in answer.error


async def test_a_batch_that_is_not_json_is_400(stage: Stage) -> None:
    answer = await stage.api.ask("POST", "/tasks/batch", raw=b"not json")
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_fifty_tasks_are_the_most(stage: Stage) -> None:
    answer = await post(stage, *(item(stage) for _ in range(50)))
    assert (answer.status, answer.json["submitted"], answer.json["accepted"]) == (202, 50, 50)
    answer = await post(stage, *(item(stage) for _ in range(51)))
    assert (answer.status, answer.code) == (400, "batch_too_large")
    assert answer.json["details"] == {"submitted": 51, "max": 50}
    listed = await stage.api.get("/tasks", agentId=stage.agent, limit=1000)
    assert listed.json["count"] == 50


async def test_fifty_one_bad_items_are_too_many_as_well(stage: Stage) -> None:
    answer = await post(stage, *(item(stage, priority="urgent?") for _ in range(51)))
    assert (answer.status, answer.code) == (400, "batch_too_large")
    answer = await post(stage, *(item(stage, priorty=1) for _ in range(51)))
    assert (answer.status, answer.code) == (400, "batch_too_large")


async def test_what_the_queue_cannot_take_is_rejected_and_the_rest_is_taken(stage: Stage) -> None:
    answer = await post(stage, *(item(stage, lane=TINY) for _ in range(5)))
    assert answer.status == 202
    states = [one["state"] for one in answer.json["tasks"]]
    assert states == ["queued"] * 3 + ["rejected"] * 2
    assert (answer.json["submitted"], answer.json["accepted"], answer.json["rejected"]) == (5, 3, 2)
    for one in answer.json["tasks"][3:]:
        assert one["code"] == "queue_full"
        assert one["error"] == f'rejected: agent queue full for "{stage.agent}"'
        assert (await stage.api.show(one["taskId"]))["state"] == "rejected"


async def test_an_invalid_item_is_rejected_alone_with_its_reason(stage: Stage) -> None:
    bad: list[tuple[Any, str]] = [
        ({"tabId": "t"}, "missing required field 'action'"),
        ({"action": "click", "deadline": "tomorrow"}, "invalid deadline format"),
        ({"action": "click", "deadline": "2020-01-01T00:00:00Z"}, "deadline is in the past"),
        ({"action": "click", "priority": 1.5}, "priority"),
        ({"action": 5}, "action"),
        ({"action": "click", "tabId": "../x"}, "tabId"),
        ({"action": "click", "unknownField": 1}, "unknownField"),
        (5, "object"),
        (None, "object"),
        ([], "object"),
        ("click", "object"),
    ]
    good = [item(stage), item(stage)]
    answer = await post(stage, good[0], *(one for one, _ in bad), good[1])
    assert answer.status == 202
    first, *middle, last = answer.json["tasks"]
    assert (first["state"], last["state"]) == ("queued", "queued")
    for outcome, (_, reason) in zip(middle, bad, strict=True):
        assert (outcome["state"], outcome["code"]) == ("rejected", "invalid_request")
        assert reason in outcome["error"], outcome
        assert not outcome.get("taskId")
    assert (answer.json["accepted"], answer.json["rejected"]) == (2, len(bad))
    listed = await stage.api.get("/tasks", agentId=stage.agent)
    assert sorted(listed.ids) == sorted([first["taskId"], last["taskId"]])


async def test_a_batch_of_bad_items_only_is_still_answered_item_by_item(stage: Stage) -> None:
    answer = await post(stage, {"tabId": "t"}, {"action": ""})
    assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (202, 0, 2)


async def test_a_callback_that_is_not_allowed_rejects_every_item(stage: Stage) -> None:
    own = item(stage, callbackUrl=stage.hooks.new().url)
    answer = await post(stage, item(stage), own, callbackUrl="http://127.0.0.1:9/hook")
    assert answer.status == 202
    for one in answer.json["tasks"]:
        assert (one["state"], one["code"]) == ("rejected", "invalid_request")
        assert "callbackUrl" in one["error"]
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


async def test_a_callback_to_a_public_address_is_accepted(serve: Serve) -> None:
    """On a server of its own that ends before the tasks do: nothing is ever sent there."""
    server = await serve(policy={"lanes": {HELD: {"paused": True}}})
    body = {
        "agentId": "a",
        "callbackUrl": "https://93.184.215.14/hooks/batch",
        "tasks": [{"action": "click", "lane": HELD}],
    }
    answer = await server.api.post("/tasks/batch", body)
    assert (answer.status, answer.json["accepted"]) == (202, 1)
    assert (await server.api.show(answer.ids[0]))["callbackUrl"] == body["callbackUrl"]


async def test_two_agents_batches_all_complete_and_count_for_each(stage: Stage) -> None:
    other, ids = stage.new_agent(), []
    for agent in (stage.agent, other):
        items = [item(stage, lane="browser") for _ in range(2)]
        ids += (await post(stage, *items, agentId=agent)).ids
    assert {task["state"] for task in await stage.api.ended(*ids)} == {"done"}
    agents = (await stage.api.stats())["metrics"]["agents"]
    for agent in (stage.agent, other):
        assert (agents[agent]["submitted"], agents[agent]["completed"]) == (2, 2)
