"""Templates over HTTP: keep, change, list, delete, and make tasks of them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.http.api import Answer
from tests.http.stage import HELD, TINY, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRETS = {"apiKey": "sk-1", "accessKeyId": "id", "secretAccessKey": "key", "sessionToken": "t"}
MASKED = dict.fromkeys(SECRETS, "***")

_numbers = itertools.count(1)


def new_name() -> str:
    """A name that no other test uses on the server they share."""
    return f"template {next(_numbers)}"


async def post(stage: Stage, **fields: Any) -> Answer:
    return await stage.api.post(
        "/templates", {"name": new_name(), "instruction": "Do it", **fields}
    )


async def made(stage: Stage, **fields: Any) -> dict[str, Any]:
    answer = await post(stage, **fields)
    assert answer.status == 201, answer
    template: dict[str, Any] = answer.json
    return template


async def shown(stage: Stage, template: dict[str, Any]) -> dict[str, Any]:
    answer = await stage.api.get(f"/templates/{template['id']}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


async def use(stage: Stage, template: dict[str, Any], **fields: Any) -> Answer:
    return await stage.api.post(f"/templates/{template['id']}/instantiate", fields)


async def submit(stage: Stage, template: dict[str, Any], **fields: Any) -> Answer:
    """Make a task of it, where nothing runs."""
    overrides = {"agentId": stage.agent, "lane": HELD, **fields.pop("overrides", {})}
    return await use(stage, template, submit=True, overrides=overrides, **fields)


# -------------------------------------------------------------------- keeping


async def test_a_template_is_answered_whole(stage: Stage) -> None:
    name = new_name()
    fields = {
        "description": "Trips",
        "instruction": "Go to {{city}} with {{n}} people",
        "priority": "high",
        "parameters": [
            {"name": "city", "required": True, "description": "where"},
            {"name": "n", "type": "number", "default": 2},
        ],
        "timeout": 5000,
        "retryPolicy": {"maxRetries": 1},
        "llmConfig": {"provider": "openai", "model": "m"},
        "metadata": {"team": "x"},
    }
    template = await made(stage, name=name, **fields)
    assert template["id"].startswith("tpl_")
    assert template["createdAt"] == template["updatedAt"]
    expected = {
        "id": template["id"],
        "name": name,
        "description": "Trips",
        "instruction": "Go to {{city}} with {{n}} people",
        "priority": "high",
        "parameters": [
            {"name": "city", "type": "string", "required": True, "description": "where"},
            {"name": "n", "type": "number", "required": False, "default": 2},
        ],
        "timeoutMs": 5000,
        "retryPolicy": {"maxRetries": 1},
        "llmConfig": {"provider": "openai", "model": "m"},
        "metadata": {"team": "x"},
        "usageCount": 0,
        "createdAt": template["createdAt"],
        "updatedAt": template["createdAt"],
    }
    assert list(template.items()) == list(expected.items())
    assert await shown(stage, template) == template


async def test_the_least_a_template_can_be(stage: Stage) -> None:
    template = await made(stage)
    assert (template["description"], template["priority"]) == ("", "normal")
    assert (template["parameters"], template["usageCount"]) == ([], 0)
    assert not {"timeoutMs", "retryPolicy", "llmConfig", "metadata"} & set(template)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": ""}, "field 'name'"),
        ({"instruction": None}, "missing required field 'instruction'"),
        ({"priority": "urgent"}, "field 'priority' must be a whole number or one of"),
        ({"parameters": "x"}, "field 'parameters' must be a list"),
        ({"instruction": "{{x}}"}, "{{x}}"),
        ({"timeout": "5"}, "field 'timeoutMs'"),
        ({"instrution": "x"}, "did you mean instruction?"),
        ({"metadata": {"a": "\0"}}, "U+0000"),
        ({"llmConfig": {"apiKey": "***"}}, "field 'llmConfig.apiKey' is masked"),
    ],
)
async def test_a_bad_template_is_refused(stage: Stage, fields: dict[str, Any], told: str) -> None:
    answer = await post(stage, **fields)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert told in answer.error


@on_sqlite
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"name":"\\ud800"}',
        b'{"metadata":' + b'{"a":' * 70 + b"1" + b"}" * 71,
        b"[" * 100_000,
        b'{"timeoutMs":' + b"9" * 5000 + b"}",
    ],
)
async def test_what_is_not_an_object_is_refused(stage: Stage, raw: bytes) -> None:
    for path in ("/templates", "/templates/x/instantiate"):
        answer = await stage.api.ask("POST", path, raw=raw)
        if path.endswith("instantiate") and not raw:
            continue  # nothing to say about the use of a template
        assert (answer.status, answer.code) == (400, "invalid_request"), raw[:20]


async def test_a_name_that_is_taken_is_a_conflict(stage: Stage) -> None:
    template = await made(stage)
    answer = await post(stage, name=template["name"])
    assert (answer.status, answer.code) == (409, "conflict")
    assert answer.error.startswith(f"a template named '{template['name']}' already exists")
    assert answer.json["details"] == {"id": template["id"]}


async def test_of_many_at_once_one_gets_the_name(stage: Stage) -> None:
    name = new_name()
    answers = await asyncio.gather(*(post(stage, name=name) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "POST"])
async def test_an_unknown_template_is_not_found(stage: Stage, method: str) -> None:
    path = "/templates/tpl_none" + ("/instantiate" if method == "POST" else "")
    answer = await stage.api.ask(method, path, None if method in ("GET", "DELETE") else {})
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.error == "template not found"


async def test_templates_are_listed_newest_first_in_pages(stage: Stage) -> None:
    ids = [(await made(stage))["id"] for _ in range(5)][::-1]
    first = (await stage.api.get("/templates", limit=2)).json
    await made(stage)
    rest = (await stage.api.get("/templates", limit=3, cursor=first["nextCursor"])).json
    assert [one["id"] for one in first["templates"] + rest["templates"]] == ids
    assert (first["count"], rest["count"]) == (2, 3)


async def test_a_template_is_found_by_its_name(stage: Stage) -> None:
    template = await made(stage)
    await made(stage)
    name = template["name"].replace(" ", "%20")
    answer = await stage.api.get("/templates", name=name)
    assert answer.json == {"templates": [template], "count": 1}
    assert (await stage.api.get("/templates", name="none")).json == {"templates": [], "count": 0}


async def test_an_unknown_filter_is_refused(stage: Stage) -> None:
    answer = await stage.api.get("/templates", nmae="x")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "did you mean name?" in answer.error


# -------------------------------------------------------------------- changing


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_change_touches_only_what_it_names(stage: Stage, method: str) -> None:
    before = await made(stage, timeoutMs=5, metadata={"a": 1})
    path = f"/templates/{before['id']}"
    answer = await stage.api.ask(method, path, {"timeoutMs": None, "priority": "low"})
    assert answer.status == 200, answer
    after = answer.json
    assert after["updatedAt"] >= before["updatedAt"]
    expected = {**before, "priority": "low", "updatedAt": after["updatedAt"]}
    del expected["timeoutMs"]
    assert after == expected
    assert await shown(stage, before) == after


async def test_what_was_read_can_be_sent_back_without_a_change(stage: Stage) -> None:
    before = await made(stage, llmConfig=SECRETS)
    answer = await stage.api.ask("PUT", f"/templates/{before['id']}", before)
    assert (answer.status, answer.json) == (200, before)
    answer = await stage.api.ask("PUT", f"/templates/{before['id']}", {})
    assert (answer.status, answer.json) == (200, before)


async def test_a_bad_change_changes_nothing(stage: Stage) -> None:
    before, other = await made(stage), await made(stage)
    path = f"/templates/{before['id']}"
    assert (await stage.api.ask("PUT", path, {"priority": "urgent"})).status == 400
    answer = await stage.api.ask("PATCH", path, {"name": other["name"], "description": "x"})
    assert (answer.status, answer.code) == (409, "conflict")
    assert await shown(stage, before) == before


async def test_a_deleted_template_is_gone_and_its_tasks_stay(stage: Stage) -> None:
    template = await made(stage)
    task_id = (await submit(stage, template)).json["taskId"]
    answer = await stage.api.ask("DELETE", f"/templates/{template['id']}")
    assert (answer.status, answer.json) == (200, {"id": template["id"], "deleted": True})
    assert (await stage.api.get(f"/templates/{template['id']}")).status == 404
    assert (await stage.api.show(task_id))["metadata"]["templateId"] == template["id"]
    await made(stage, name=template["name"])


# -------------------------------------------------------------------- secrets


async def test_secrets_are_masked_in_every_answer(stage: Stage) -> None:
    config = {**SECRETS, "model": "m"}
    shape = {**MASKED, "model": "m"}
    template = await made(stage, llmConfig=config)
    path = f"/templates/{template['id']}"
    changed = await stage.api.ask("PATCH", path, {"description": "x"})
    listed = await stage.api.get("/templates", limit=1)
    body = await use(stage, template)
    for found in (template, changed.json, listed.json["templates"][0], body.json):
        assert found["llmConfig"] == shape
    task_id = (await submit(stage, template)).json["taskId"]
    assert (await stage.api.show(task_id))["llmConfig"] == shape


async def test_a_masked_secret_without_a_kept_one_is_refused(stage: Stage) -> None:
    template = await made(stage, llmConfig={"apiKey": "sk-1"})
    path = f"/templates/{template['id']}"
    answer = await stage.api.ask("PUT", path, {"llmConfig": MASKED})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "llmConfig.accessKeyId" in answer.error
    kept = await stage.api.ask("PUT", path, {"llmConfig": {"apiKey": "***", "model": "m"}})
    assert (kept.status, kept.json["llmConfig"]) == (200, {"apiKey": "***", "model": "m"})


ELSEWHERE = {"baseUrl": "https://evil.example"}


async def test_a_kept_secret_is_not_sent_where_a_caller_says(stage: Stage) -> None:
    kept = {"apiKey": "sk-12345", "baseUrl": "https://llm.example"}
    template = await made(stage, llmConfig=kept)
    path = f"/templates/{template['id']}"
    used = await submit(stage, template, overrides={"llmConfig": ELSEWHERE})
    changed = await stage.api.ask("PATCH", path, {"llmConfig": {"apiKey": "***", **ELSEWHERE}})
    for answer in (used, changed):
        assert (answer.status, answer.code) == (400, "invalid_request"), answer
        assert "baseUrl' cannot change" in answer.error
    assert (await stage.api.get(path)).json == template
    own = {"apiKey": "sk-own-12345", **ELSEWHERE}
    used = await submit(stage, template, overrides={"llmConfig": own})
    changed = await stage.api.ask("PATCH", path, {"llmConfig": own})
    assert (used.status, changed.status) == (202, 200)


# -------------------------------------------------------------------- using


TRIP = {
    "instruction": "Go to {{city}} with {{n}} people{{note}}",
    "parameters": [
        {"name": "city", "required": True},
        {"name": "n", "type": "number", "default": 2},
        {"name": "note"},
    ],
}


async def test_a_use_answers_with_the_body_of_a_task(stage: Stage) -> None:
    template = await made(stage, **TRIP, priority="high", timeoutMs=5000, metadata={"team": "x"})
    answer = await use(stage, template, params={"city": "{{n}} $& {{note}}"})
    assert answer.status == 200, answer
    origin = {"templateId": template["id"], "templateName": template["name"]}
    assert answer.json == {
        "instruction": "Go to {{n}} $& {{note}} with 2 people",
        "priority": "high",
        "timeoutMs": 5000,
        "metadata": {"team": "x", **origin},
    }
    sent = {**answer.json, "lane": HELD, "agentId": stage.agent}
    assert (await stage.api.post("/tasks", sent)).status == 202
    after = await shown(stage, template)
    assert (after["usageCount"], after["updatedAt"]) == (1, template["updatedAt"])


@pytest.mark.parametrize("raw", [None, b"", b" ", b"{}", b'{"params":null,"submit":null}'])
async def test_a_use_without_anything_to_say(stage: Stage, raw: bytes | None) -> None:
    template = await made(stage)
    answer = await stage.api.ask("POST", f"/templates/{template['id']}/instantiate", raw=raw)
    assert (answer.status, answer.json["instruction"]) == (200, "Do it")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "missing required parameter: city"),
        ({"city": None}, "missing required parameter: city"),
        ({"city": "x", "n": ""}, "Parameter 'n' must be a number, got: string"),
        ({"city": "x", "n": True}, "Parameter 'n' must be a number, got: boolean"),
        ({"city": ["x"]}, "Parameter 'city' must be a string, got: array"),
        ({"cty": "x"}, "unknown parameter 'cty'; did you mean city?"),
    ],
)
async def test_a_use_with_wrong_values_is_refused_and_not_counted(
    stage: Stage, params: dict[str, Any], told: str
) -> None:
    template = await made(stage, **TRIP)
    for fields in ({}, {"submit": True}):
        answer = await use(stage, template, params=params, **fields)
        assert (answer.status, answer.code, answer.error) == (400, "invalid_request", told)
    assert await shown(stage, template) == template


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"param": {}}, "unknown field 'param'; did you mean params?"),
        ({"params": []}, "field 'params' must be an object"),
        ({"submit": "yes"}, "field 'submit' must be true or false"),
        ({"overrides": 3}, "field 'overrides' must be an object"),
        ({"overrides": {"handler": "x"}}, "unknown field 'overrides.handler'"),
        ({"overrides": {"priority": "x"}}, "field 'overrides.priority' must be a whole number"),
        ({"overrides": {"agentId": 5}}, "field 'overrides.agentId'"),
        ({"overrides": {"callbackUrl": "ftp://x"}}, "invalid task: invalid callbackUrl"),
    ],
)
async def test_a_bad_use_is_refused_and_not_counted(
    stage: Stage, fields: dict[str, Any], told: str
) -> None:
    template = await made(stage)
    for more in ({}, {"submit": True}):
        answer = await use(stage, template, **{**more, **fields})
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.error.startswith(told)
    assert await shown(stage, template) == template


async def test_an_instruction_that_is_empty_when_filled_in_is_refused(stage: Stage) -> None:
    template = await made(stage, instruction="{{x}}", parameters=[{"name": "x"}])
    answer = await use(stage, template, params={"x": " "})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "instruction" in answer.error


async def test_a_use_can_submit_the_task(stage: Stage) -> None:
    policy = {"maxRetries": 1, "backoffMs": 5, "backoffMultiplier": 1.5}
    template = await made(stage, **TRIP, metadata={"team": "x"}, retryPolicy=policy)
    answer = await submit(
        stage,
        template,
        params={"city": "Rome", "n": "3"},
        overrides={"priority": -5, "sessionKey": f"s:{stage.agent}", "metadata": {"run": 7}},
    )
    assert answer.status == 202, answer
    accepted = ["taskId", "state", "position", "createdAt", "warnings"]
    assert list(answer.json) == [*accepted, "templateId"]
    assert answer.json["templateId"] == template["id"]
    task = await stage.api.show(answer.json["taskId"])
    assert task["instruction"] == "Go to Rome with 3 people"
    assert (task["kind"], task["lane"], task["agentId"]) == ("instruction", HELD, stage.agent)
    assert (task["priority"], task["sessionKey"]) == (-5, f"s:{stage.agent}")
    assert (task["retryPolicy"], task["maxAttempts"]) == (policy, 2)
    origin = {"templateId": template["id"], "templateName": template["name"]}
    assert task["metadata"] == {"team": "x", "run": 7, **origin}
    assert (await shown(stage, template))["usageCount"] == 1


async def test_a_use_can_wait_for_another_task(stage: Stage) -> None:
    template = await made(stage)
    parent = (await submit(stage, template)).json["taskId"]
    child = await submit(stage, template, overrides={"dependsOn": [parent]})
    assert (child.status, child.json["state"]) == (202, "waiting_dependency")
    assert (await stage.api.show(child.json["taskId"]))["dependsOn"] == [parent]


async def test_a_task_that_is_refused_is_no_use(stage: Stage) -> None:
    template = await made(stage)
    answers = [await submit(stage, template, overrides={"lane": TINY}) for _ in range(4)]
    assert [answer.status for answer in answers] == [202, 202, 202, 429]
    assert answers[3].code == "queue_full"
    assert (await shown(stage, template))["usageCount"] == 3


async def test_uses_at_once_are_all_counted(stage: Stage) -> None:
    template = await made(stage)
    answers = await asyncio.gather(*(submit(stage, template) for _ in range(20)))
    assert len({answer.json["taskId"] for answer in answers}) == 20
    assert (await shown(stage, template))["usageCount"] == 20


async def test_a_repeated_use_with_the_same_key_is_one_task_and_one_use(stage: Stage) -> None:
    template, other = await made(stage), await made(stage)
    key = {"Idempotency-Key": f"key-{stage.agent}"}
    body = {"submit": True, "overrides": {"agentId": stage.agent, "lane": HELD}}
    path = f"/templates/{template['id']}/instantiate"
    first, again = [await stage.api.ask("POST", path, body, headers=key) for _ in range(2)]
    assert (first.status, again.status) == (202, 202)
    assert first.json == again.json
    assert (await shown(stage, template))["usageCount"] == 1
    path = f"/templates/{other['id']}/instantiate"
    conflict = await stage.api.ask("POST", path, body, headers=key)
    assert (conflict.status, conflict.code) == (409, "idempotency_conflict")
    assert (await shown(stage, other))["usageCount"] == 0


async def test_a_change_of_the_template_leaves_made_tasks_alone(stage: Stage) -> None:
    template = await made(stage)
    task_id = (await submit(stage, template)).json["taskId"]
    await stage.api.ask("PUT", f"/templates/{template['id']}", {"instruction": "Do not"})
    assert (await stage.api.show(task_id))["instruction"] == "Do it"
