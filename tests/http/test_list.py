"""Listing tasks: `GET /tasks` with its filters and pages.

Facts of specs/pinchtab.md section 17: 22, 23, 56, 65, 72, 99, 100.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.stage import HELD, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def listed(stage: Stage, **query: Any) -> list[str]:
    answer = await stage.api.get("/tasks", **{"agentId": stage.agent, **query})
    assert answer.status == 200, answer
    assert answer.json["count"] == len(answer.json["tasks"])
    return answer.ids


async def test_nothing_is_an_empty_list(stage: Stage) -> None:
    answer = await stage.api.get("/tasks", agentId="nobody")
    assert (answer.status, answer.json) == (200, {"tasks": [], "count": 0})


async def test_the_newest_come_first(stage: Stage) -> None:
    ids = [await stage.submit(lane=HELD) for _ in range(3)]
    assert await listed(stage) == ids[::-1]


async def test_a_list_without_filters_has_the_tasks_of_all_agents(stage: Stage) -> None:
    mine = await stage.submit(lane=HELD)
    other = await stage.submit(lane=HELD, agentId=stage.new_agent())
    assert (await stage.api.get("/tasks")).ids[:2] == [other, mine]


async def test_tasks_are_found_by_agent_by_state_and_by_both(stage: Stage) -> None:
    other = stage.new_agent()
    done = (await stage.run())["taskId"]
    failed = (await stage.run(fake={"status": 500}))["taskId"]
    queued = await stage.submit(lane=HELD)
    theirs = await stage.submit(lane=HELD, agentId=other)
    assert await listed(stage) == [queued, failed, done]
    assert await listed(stage, state="queued") == [queued]
    assert await listed(stage, state="done,failed") == [failed, done]
    assert await listed(stage, agentId=other) == [theirs]
    assert await listed(stage, agentId=other, state="done") == []
    assert (await stage.api.get("/tasks", state="queued")).ids == [theirs, queued]


@pytest.mark.parametrize("text", ["", ",", "%20,%20", ",,"])
async def test_blank_states_are_no_filter(stage: Stage, text: str) -> None:
    task_id = await stage.submit(lane=HELD)
    assert await listed(stage, state=text) == [task_id]


async def test_states_may_have_spaces_around_them_and_other_names(stage: Stage) -> None:
    done = (await stage.run())["taskId"]
    queued = await stage.submit(lane=HELD)
    assert await listed(stage, state="%20done%20,%20failed") == [done]
    assert await listed(stage, state="completed") == [done]
    assert await listed(stage, state="pending") == [queued]


async def test_tasks_are_found_by_lane_session_and_batch(stage: Stage) -> None:
    plain = await stage.submit(lane=HELD)
    session = await stage.submit(lane=HELD, sessionKey=f"chat:{stage.agent}")
    batch = await stage.api.post(
        "/tasks/batch", {"agentId": stage.agent, "tasks": [{"action": "click", "lane": HELD}]}
    )
    in_batch = batch.ids[0]
    assert await listed(stage, lane=HELD) == [in_batch, session, plain]
    assert await listed(stage, lane="browser") == []
    assert await listed(stage, sessionKey=f"chat:{stage.agent}") == [session]
    assert await listed(stage, batchId=batch.json["batchId"]) == [in_batch]


async def test_tasks_are_found_by_handler(stage: Stage) -> None:
    held = {"agentId": stage.agent, "lane": HELD}
    other = await stage.api.submit(handler="report", **held)
    echo = await stage.api.submit(handler="echo", **held)
    assert await listed(stage, handler="echo") == [echo]
    assert await listed(stage, handler="report", lane=HELD) == [other]
    assert await listed(stage, handler="repor") == []


async def test_a_list_has_whole_records(stage: Stage) -> None:
    task = await stage.run(params={"text": "x"})
    (item,) = (await stage.api.get("/tasks", agentId=stage.agent)).json["tasks"]
    assert item == task


async def test_pages_have_every_task_once_while_more_arrive(stage: Stage) -> None:
    ids = [await stage.submit(lane=HELD) for _ in range(7)]
    pages: list[list[str]] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = await stage.api.get("/tasks", agentId=stage.agent, limit=3, **cursor)
        pages.append(answer.ids)
        await stage.submit(lane=HELD)
        if "nextCursor" not in answer.json:
            break
        cursor = {"cursor": answer.json["nextCursor"]}
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [one for page in pages for one in page] == ids[::-1]


async def test_a_full_last_page_has_no_next_one(stage: Stage) -> None:
    for _ in range(2):
        await stage.submit(lane=HELD)
    answer = await stage.api.get("/tasks", agentId=stage.agent, limit=2)
    assert answer.json["count"] == 2
    assert "nextCursor" not in answer.json


async def test_an_unknown_state_or_filter_is_refused_with_a_hint(stage: Stage) -> None:
    answer = await stage.api.get("/tasks", state="runing")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "running" in answer.error
    answer = await stage.api.get("/tasks", agentid="x")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "agentId" in answer.error
