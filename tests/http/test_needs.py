"""`needs` wherever a task is described: accepted, checked, and shown again."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api
from tests.http.server import serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEEDS = {"gpt": {"tokens": 5, "requests": 1}, "spend": {"usd": "0.12"}}
POLICY = {
    "lanes": {"held": {"paused": True}, "queue": {"paused": True}},
    "resources": {
        "gpt": {
            "limits": [
                {"unit": "tokens", "amount": 10_000, "perMs": 1000},
                {"unit": "requests", "amount": 100, "perMs": 1000},
            ]
        },
        "spend": {"limits": [{"unit": "usd", "amount": 5, "resetEvery": "day"}]},
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("needs")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}", policy=POLICY) as server:
        yield server.api


async def shown(api: Api, task_id: str) -> Any:
    return (await api.show(task_id))["needs"]


async def test_a_task_and_an_item_of_a_batch_show_their_needs(api: Api) -> None:
    task = {"handler": "echo", "lane": "held", "needs": NEEDS, "quota": "gpt"}
    made = await api.post("/tasks", task)
    found = await api.show(made.json["taskId"])
    assert (found["needs"], found["quota"]) == (NEEDS, "gpt")
    batch = await api.post("/tasks/batch", {"agentId": "ada", "tasks": [task]})
    (item,) = batch.json["tasks"]
    assert await shown(api, item["taskId"]) == NEEDS


async def test_a_task_shows_the_needs_that_the_policy_adds(api: Api) -> None:
    gpt, spend = {"gpt": {"tokens": 1.5}}, {"spend": {"usd": "0.25"}}
    lanes = {"metered": {"paused": True, "needs": {**gpt, **spend}}}
    assert (await api.ask("PATCH", "/policy", {"lanes": lanes})).status == 200
    made = await api.post("/tasks", {"handler": "echo", "lane": "metered"})
    assert await shown(api, made.json["taskId"]) == {"gpt": {"tokens": "1.5"}, **spend}
    own = {"handler": "echo", "lane": "metered", "needs": {"gpt": {}}}
    made = await api.post("/tasks", own)
    assert await shown(api, made.json["taskId"]) == {"gpt": {}, **spend}


async def test_a_template_and_its_task_show_them(api: Api) -> None:
    document = {"name": "Trip", "instruction": "Go", "needs": {"gpt": {"tokens": 7}}}
    template = (await api.post("/templates", document)).json
    assert template["needs"] == {"gpt": {"tokens": 7}}
    overrides = {"needs": {"spend": {"usd": 1}}, "lane": "held"}
    used = await api.post(
        f"/templates/{template['id']}/instantiate", {"overrides": overrides, "submit": True}
    )
    assert used.status in (200, 201, 202), used
    needs = {"gpt": {"tokens": 7}, "spend": {"usd": 1}}
    assert await shown(api, used.json["taskId"]) == needs


async def test_a_message_and_a_queue_entry_show_them(api: Api) -> None:
    sent = await api.post(
        "/sessions/chat:1/messages", {"message": "hello", "lane": "held", "needs": NEEDS}
    )
    assert sent.status == 202, sent
    assert await shown(api, sent.json["taskId"]) == NEEDS
    entry = (await api.post("/queue", {"appId": "review", "needs": NEEDS})).json
    assert entry["needs"] == NEEDS
    assert (await api.get(f"/queue/{entry['id']}")).json["needs"] == NEEDS


async def test_a_cron_job_shows_the_needs_of_its_task(api: Api) -> None:
    job = {
        "name": "nightly",
        "schedule": {"kind": "cron", "expr": "0 3 * * *"},
        "task": {"handler": "echo", "needs": NEEDS},
    }
    made = await api.post("/cron/jobs", job)
    assert made.status == 201, made
    assert made.json["task"]["needs"] == NEEDS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tasks", {"handler": "echo"}),
        ("/templates", {"name": "x", "instruction": "y"}),
        ("/sessions/chat:1/messages", {"message": "hello"}),
        ("/queue", {"appId": "review"}),
        (
            "/cron/jobs",
            {"name": "n", "schedule": {"kind": "every", "everyMs": 60_000}, "task": {}},
        ),
    ],
)
async def test_a_wrong_amount_is_refused_everywhere(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    needs = {"gpt": {"tokens": "many"}}
    if "task" in body:
        body = {**body, "task": {"handler": "echo", "needs": needs}}
    else:
        body = {**body, "needs": needs}
    answer = await api.post(path, body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "needs.gpt.tokens" in answer.error
