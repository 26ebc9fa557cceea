"""The routes of the plan and of the queue, as a caller over HTTP meets them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

_numbers = itertools.count(1)


@pytest.fixture
def api(server: Server) -> Api:
    return server.api


def name() -> str:
    return f"entry-{next(_numbers)}"


async def test_an_entry_is_added_shown_and_cancelled(api: Api) -> None:
    id_ = name()
    added = await api.post("/queue", {"id": id_, "appId": "review", "inputs": {"pr": 7}})
    assert added.status == 201
    assert (added.json["status"], added.json["priority"]) == ("pending", 100)
    assert (await api.get(f"/queue/{id_}")).raw == added.raw
    again = await api.post("/queue", {"id": id_})
    assert (again.status, again.code) == (409, "conflict")
    assert again.json["details"] == {"ids": [id_]}
    await api.cancel(id_)
    assert (await api.get(f"/queue/{id_}")).json["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"appid": "x"}, "unknown field 'appid'; did you mean appId?"),
        ({"appId": 5}, "field 'appId' must be text"),
        ({"priority": 1.5}, "field 'priority' must be a whole number or text"),
        ({"priority": "urgent"}, "field 'priority' must be a whole number or one of"),
        ({"id": "a b"}, "field 'id' has invalid characters"),
        ({"inputs": []}, "field 'inputs' must be an object"),
        ({"note": "x" * 4097}, "field 'note' must not be longer than 4096 characters"),
    ],
)
async def test_an_entry_that_is_wrong_is_refused_by_its_field(
    api: Api, body: dict[str, object], message: str
) -> None:
    answer = await api.post("/queue", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert message in answer.error


async def test_what_is_not_a_entry_is_not_found(api: Api) -> None:
    answer = await api.get("/queue/nobody")
    assert (answer.status, answer.error) == (404, 'the queue has no entry "nobody"')


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/scheduler/plan?nwo=1", "unknown query parameter 'nwo'; did you mean now?"),
        ("/scheduler/plan?now=today", "invalid now format: 'today' is not RFC 3339"),
        ("/scheduler/plan?now=", "invalid now format: '' is not RFC 3339"),
        ("/scheduler/plan?limit=0", "query parameter 'limit' must be from 1 to 1000"),
        ("/queue?status=draned", "'status' must be one of cancelled, drained, failed"),
        ("/queue?cursor=1", "query parameter 'cursor' has invalid characters"),
    ],
)
async def test_a_question_that_is_wrong_is_refused(api: Api, path: str, message: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert message in answer.error


async def test_a_plan_tells_of_any_lane(api: Api) -> None:
    task_id = await api.submit(handler="h", lane=HELD)
    plan = (await api.get("/scheduler/plan", lane=HELD)).json
    assert {"id": task_id, "reason": "paused"} in plan["skipped"]
    assert (plan["lane"], plan["leases"]) == (HELD, [])
    missing = await api.get("/scheduler/plan", lane="nowhere")
    assert missing.status == 404
    await api.cancel(task_id)


async def test_a_plan_is_the_same_bytes_again(api: Api) -> None:
    now = {"now": "2026-01-01T00:00:00Z", "lane": HELD}
    assert (await api.get("/scheduler/plan", **now)).raw == (
        await api.get("/scheduler/plan", **now)
    ).raw


async def test_taking_back_takes_no_body(api: Api) -> None:
    answer = await api.post("/leases/reclaim")
    assert (answer.status, answer.json["reclaimed"]) == (200, [])
    assert (await api.post("/leases/reclaim", {"now": 1})).status == 400


async def test_the_rules_of_the_queue_are_a_version_of_the_policy(serve: Serve) -> None:
    api = (await serve()).api
    before = (await api.get("/scheduler/policy")).json
    assert before["policy"]["maxConcurrent"] == 1
    answer = await api.ask("PATCH", "/scheduler/policy", {"maxConcurrent": 4, "maxAttempts": 2})
    assert (answer.json["policy"]["maxConcurrent"], answer.json["source"]) == (4, "store")
    (newest, *_) = (await api.get("/policy/versions")).json["versions"]
    assert newest["source"] == "sched policy set"
    wrong = await api.ask("PATCH", "/scheduler/policy", {"maxConcurent": 4, "backoffFactor": 0})
    assert (wrong.status, wrong.code) == (400, "invalid_policy")
    assert "unknown key maxConcurent; did you mean maxConcurrent?" in wrong.error
