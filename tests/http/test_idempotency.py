"""`Idempotency-Key`: a repeated submission is the first one, however often and however fast."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.stage import HELD, TINY, Stage

if TYPE_CHECKING:
    from tests.http.api import Answer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def post(stage: Stage, body: Any, key: str, path: str = "/tasks") -> Answer:
    return await stage.api.post(path, body, Idempotency_Key=key)


async def test_thirty_two_equal_submissions_at_once_are_one_task(stage: Stage) -> None:
    body = stage.task(lane=HELD)
    answers = await asyncio.gather(*(post(stage, body, "k") for _ in range(32)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json["taskId"] for answer in answers}) == 1
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 1


async def test_a_repeated_submission_runs_once_and_is_answered_after_its_end(stage: Stage) -> None:
    body = stage.task()
    first = await post(stage, body, "k")
    await stage.api.end_of(first.json["taskId"])
    again = await post(stage, body, "k")
    assert again.status == 202
    assert again.json["taskId"] == first.json["taskId"]
    assert again.json["state"] == "done"
    assert len(stage.actions()) == 1


async def test_another_body_with_the_same_key_is_a_conflict(stage: Stage) -> None:
    body = stage.task(lane=HELD)
    await post(stage, body, "k")
    answer = await post(stage, {**body, "priority": 3}, "k")
    assert (answer.status, answer.code) == (409, "idempotency_conflict")
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 1


async def test_another_key_or_another_agent_is_another_task(stage: Stage) -> None:
    body = stage.task(lane=HELD)
    ids = {
        (await post(stage, body, "one")).json["taskId"],
        (await post(stage, body, "two")).json["taskId"],
        (await post(stage, {**body, "agentId": stage.new_agent()}, "one")).json["taskId"],
        (await stage.api.post("/tasks", body)).json["taskId"],
        (await stage.api.post("/tasks", body)).json["taskId"],
    }
    assert len(ids) == 5


async def test_equal_batches_at_once_are_one_batch(stage: Stage) -> None:
    items = [{"action": "click", "lane": HELD, "params": {"n": n}} for n in range(3)]
    body = {"agentId": stage.agent, "tasks": items}
    answers = await asyncio.gather(*(post(stage, body, "b", "/tasks/batch") for _ in range(8)))
    assert {answer.status for answer in answers} == {202}
    assert len({tuple(answer.ids) for answer in answers}) == 1
    assert len({answer.json["batchId"] for answer in answers}) == 1
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 3


async def test_a_repeated_batch_has_the_same_outcome_item_by_item(stage: Stage) -> None:
    """Also when some of its items were refused: for want of room, or because they were wrong."""
    good = {"action": "click", "lane": TINY}
    items = [
        good,
        {"action": "click", "deadline": "2020-01-01T00:00:00Z"},
        good,
        {"action": 5},
        good,
        good,
    ]
    body = {"agentId": stage.agent, "tasks": items}
    first = await post(stage, body, "b", "/tasks/batch")
    states = [one["state"] for one in first.json["tasks"]]
    assert states == ["queued", "rejected", "queued", "rejected", "queued", "rejected"]
    again = await post(stage, body, "b", "/tasks/batch")
    assert again.status == 202
    assert again.json == first.json
    assert (await stage.api.get("/tasks", agentId=stage.agent, state="queued")).json["count"] == 3


async def test_a_refused_submission_may_be_tried_again_with_its_key(stage: Stage) -> None:
    ids = [await stage.submit(lane=TINY) for _ in range(3)]
    body = stage.task(lane=TINY)
    assert (await post(stage, body, "k")).status == 429
    await stage.api.cancel(ids[0])
    answer = await post(stage, body, "k")
    assert answer.status == 202
    assert (await post(stage, body, "k")).json["taskId"] == answer.json["taskId"]


async def test_an_invalid_submission_does_not_use_up_its_key(stage: Stage) -> None:
    assert (await post(stage, stage.task(deadline="2020-01-01T00:00:00Z"), "k")).status == 400
    assert (await post(stage, stage.task(action=""), "k")).status == 400
    assert (await post(stage, stage.task(lane=HELD), "k")).status == 202
