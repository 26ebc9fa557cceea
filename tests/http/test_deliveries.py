"""The log of webhooks, sending one again, and endpoints with secrets of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.http.api import Answer, eventually
from tests.http.stage import HELD, Stage, on_sqlite

if TYPE_CHECKING:
    from tests.http.conftest import Serve
    from tests.http.hooks import Delivery, Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def settled(stage: Stage, task_id: str, state: str = "delivered") -> dict[str, Any]:
    """The one delivery of a task, when it is in this state."""

    async def look() -> dict[str, Any] | None:
        answer = await stage.api.get("/deliveries", taskId=task_id)
        assert answer.status == 200, answer
        found: dict[str, Any]
        (found,) = answer.json["deliveries"] or [{"state": "not there yet"}]
        return found if found["state"] == state else None

    return await eventually(look)


async def create(stage: Stage, url: str, **fields: Any) -> dict[str, Any]:
    answer = await stage.api.post("/webhooks", {"url": url, **fields})
    assert answer.status == 201, answer
    made: dict[str, Any] = answer.json
    return made


def signed_with(delivery: Delivery, secret: str) -> bool:
    try:
        Webhook(secret).verify(delivery.raw, delivery.headers)
    except WebhookVerificationError:
        return False
    return True


# -------------------------------------------------------------------- the log


async def test_a_delivery_is_in_the_log_with_what_became_of_it(stage: Stage) -> None:
    hook = stage.hooks.new(204)
    task = await stage.run(callbackUrl=f"{hook.url}?token=geheim")
    one = await settled(stage, task["taskId"])
    received = await hook.one()
    assert one == {
        "id": received.headers["webhook-id"],
        "taskId": task["taskId"],
        "agentId": stage.agent,
        "event": "task.completed",
        "url": f"http://{stage.hooks.address}",
        "state": "delivered",
        "attempts": 1,
        "lastStatus": 204,
        "createdAt": one["createdAt"],
        "settledAt": one["settledAt"],
    }
    shown = (await stage.api.get(f"/deliveries/{one['id']}")).json
    (tried,) = shown.pop("tries")
    assert shown == one
    assert (tried["attempt"], tried["status"], tried["at"]) == (1, 204, one["settledAt"])
    assert 0 <= tried["tookMs"] < 60_000


async def test_the_log_never_shows_what_may_be_a_secret_of_the_url(stage: Stage) -> None:
    hook = stage.hooks.new()
    task = await stage.run(callbackUrl=f"{hook.url}?token=geheim")
    one = await settled(stage, task["taskId"])
    for path in (f"/deliveries/{one['id']}", f"/deliveries?taskId={task['taskId']}"):
        text = (await stage.api.get(path)).raw
        assert b"geheim" not in text
        assert b"/hook/" not in text


async def test_a_failed_try_tells_its_status_and_when_the_next_one_is(stage: Stage) -> None:
    hook = stage.hooks.new(500)
    task = await stage.run(callbackUrl=hook.url)
    await hook.one()

    async def look() -> dict[str, Any] | None:
        one = await settled(stage, task["taskId"], "due")
        return one if "lastError" in one else None

    one = await eventually(look)
    assert (one["lastStatus"], one["lastError"]) == (500, "receiver responded with 500")
    assert one["nextAt"] > one["createdAt"]
    assert "settledAt" not in one


async def test_the_list_goes_page_by_page_from_the_newest(stage: Stage) -> None:
    hook = stage.hooks.new()
    tasks = [await stage.submit(lane=HELD, callbackUrl=hook.url) for _ in range(5)]
    for task in tasks:
        await stage.api.cancel(task)
    await hook.until(5)
    found, cursor, pages = [], "", 0
    while True:
        query = {"agentId": stage.agent, "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await stage.api.get("/deliveries", **query)).json
        assert page["count"] == len(page["deliveries"])
        found += [one["taskId"] for one in page["deliveries"]]
        pages += 1
        cursor = page.get("nextCursor", "")
        if not cursor:
            break
    assert (sorted(found), pages) == (sorted(tasks), 3)


async def test_the_list_is_of_an_agent_and_of_a_state(stage: Stage) -> None:
    hook, gone = stage.hooks.new(), stage.hooks.new(410)
    good = await stage.run(callbackUrl=hook.url)
    bad = await stage.run(callbackUrl=gone.url)
    await settled(stage, good["taskId"])
    await settled(stage, bad["taskId"], "given_up")

    async def listed(**query: Any) -> list[str]:
        page = (await stage.api.get("/deliveries", **query)).json
        return [one["taskId"] for one in page["deliveries"]]

    assert sorted(await listed(agentId=stage.agent)) == sorted([good["taskId"], bad["taskId"]])
    assert await listed(agentId=stage.agent, state="given_up") == [bad["taskId"]]
    assert await listed(agentId=stage.agent, state="due") == []
    assert await listed(agentId=stage.new_agent()) == []


async def test_a_batch_has_its_own_delivery(stage: Stage) -> None:
    hook = stage.hooks.new()
    body = {"agentId": stage.agent, "callbackUrl": hook.url, "tasks": [stage.task()]}
    batch = (await stage.api.post("/tasks/batch", body)).json
    await hook.until(2)
    one = await settled(stage, batch["batchId"])
    assert (one["event"], one["agentId"]) == ("batch.completed", stage.agent)


@on_sqlite
@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("state=sent", "state"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=1.%00", "cursor"),
        ("cursor=99999999999999999999.a", "cursor"),
        ("stat=due", "did you mean"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(stage: Stage, query: str, told: str) -> None:
    answer = await stage.api.get(f"/deliveries?{query}")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert told in answer.error


@on_sqlite
async def test_a_delivery_that_is_not_there_is_not_found(stage: Stage) -> None:
    for ask in (
        stage.api.get("/deliveries/msg_nobody_1"),
        stage.api.post("/deliveries/msg_nobody_1/redeliver"),
    ):
        answer = await ask
        assert (answer.status, answer.code) == (404, "not_found")


# -------------------------------------------------------------------- once more


@pytest.mark.parametrize(("status", "state"), [(200, "delivered"), (410, "given_up")])
async def test_a_settled_delivery_can_be_sent_again(stage: Stage, status: int, state: str) -> None:
    hook = stage.hooks.new(status, 200)
    task = await stage.run(callbackUrl=hook.url)
    one = await settled(stage, task["taskId"], state)
    answer = await stage.api.post(f"/deliveries/{one['id']}/redeliver")
    assert (answer.status, answer.json["state"]) == (202, "due")
    first, second = await hook.until(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == one["id"]
    assert first.raw == second.raw
    assert (await settled(stage, task["taskId"]))["lastStatus"] == 200
    shown = (await stage.api.get(f"/deliveries/{one['id']}")).json
    assert [tried["status"] for tried in shown["tries"]] == [status, 200]


# -------------------------------------------------------------------- endpoints


async def test_an_endpoint_has_a_secret_of_its_own_that_is_shown_once(stage: Stage) -> None:
    hook = stage.hooks.new()
    made = await create(stage, hook.url, agentId=stage.agent)
    secret = made.pop("secret")
    assert made["url"] == hook.url
    assert (made["agentId"], made["state"]) == (stage.agent, "enabled")
    await stage.run(callbackUrl=f"{hook.url}?n=1")
    received = await hook.one()
    assert signed_with(received, secret)
    assert not received.genuine  # the common secret does not fit
    assert (await stage.api.get(f"/webhooks/{made['id']}")).json == made
    for path in ("/webhooks", f"/webhooks/{made['id']}", "/deliveries"):
        assert b"whsec_" not in (await stage.api.get(path)).raw
    listed = (await stage.api.get("/webhooks", agentId=stage.agent)).json
    assert listed == {"endpoints": [made], "count": 1}


async def test_another_agents_webhooks_are_not_signed_with_it(stage: Stage) -> None:
    hook = stage.hooks.new()
    made = await create(stage, hook.url, agentId=stage.agent)
    await stage.run(callbackUrl=hook.url, agentId=stage.new_agent())
    received = await hook.one()
    assert received.genuine
    assert not signed_with(received, made["secret"])


async def test_a_secret_is_changed_without_a_gap(stage: Stage) -> None:
    hook = stage.hooks.new()
    made = await create(stage, hook.url)
    answer = await stage.api.post(f"/webhooks/{made['id']}/rotate", {"overlapSeconds": 3600})
    changed = answer.json
    assert (answer.status, changed["id"]) == (200, made["id"])
    assert changed["previousUntil"] > changed["rotatedAt"]
    await stage.run(callbackUrl=hook.url)
    both = await hook.one()
    assert signed_with(both, made["secret"])
    assert signed_with(both, changed["secret"])
    at_once = (await stage.api.post(f"/webhooks/{made['id']}/rotate", {"overlapSeconds": 0})).json
    assert "previousUntil" not in at_once
    await stage.run(callbackUrl=hook.url)
    newest = (await hook.until(2))[1]
    assert signed_with(newest, at_once["secret"])
    assert not signed_with(newest, changed["secret"])


async def test_an_endpoint_that_answers_410_is_disabled_until_it_is_enabled(stage: Stage) -> None:
    hook, marker = stage.hooks.new(410, 200), stage.hooks.new()
    made = await create(stage, hook.url)
    first = await stage.run(callbackUrl=hook.url)
    await settled(stage, first["taskId"], "given_up")
    shown = (await stage.api.get(f"/webhooks/{made['id']}")).json
    assert shown["state"] == "disabled"
    second = await stage.run(callbackUrl=hook.url)
    one = await settled(stage, second["taskId"], "given_up")
    assert one["lastError"] == "the endpoint is disabled: it responded with 410"
    await stage.run(callbackUrl=marker.url)
    await marker.one()
    assert len(hook.deliveries) == 1
    enabled = (await stage.api.post(f"/webhooks/{made['id']}/enable")).json
    assert enabled["state"] == "enabled"
    await stage.api.post(f"/deliveries/{one['id']}/redeliver")
    assert (await settled(stage, second["taskId"]))["lastStatus"] == 200


async def test_a_removed_endpoint_leaves_the_common_secret(stage: Stage) -> None:
    hook = stage.hooks.new()
    made = await create(stage, hook.url)
    answer = await stage.api.ask("DELETE", f"/webhooks/{made['id']}")
    assert (answer.status, answer.json) == (200, {"id": made["id"], "deleted": True})
    await stage.run(callbackUrl=hook.url)
    assert (await hook.one()).genuine
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate"), ("POST", "/enable")):
        answer = await stage.api.ask(method, f"/webhooks/{made['id']}{path}")
        assert (answer.status, answer.code) == (404, "not_found")


@on_sqlite
async def test_a_second_endpoint_for_the_same_url_is_a_conflict(stage: Stage) -> None:
    hook = stage.hooks.new()
    await create(stage, hook.url)
    answer = await stage.api.post("/webhooks", {"url": hook.url.replace("http:", "HTTP:")})
    assert (answer.status, answer.code) == (409, "conflict")
    await create(stage, hook.url, agentId=stage.agent)


@on_sqlite
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "url"),
        ({"url": 1}, "url"),
        ({"url": "http://127.0.0.1:9/"}, "url"),
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"url": "http://user:geheim@93.184.215.14/"}, "url"),
        ({"url": "http://93.184.215.14/?key=geheim"}, "query"),
        ({"url": "http://93.184.215.14/", "agentId": "a b"}, "agentId"),
        ({"url": "http://93.184.215.14/", "secret": "whsec_x"}, "secret"),
    ],
)
async def test_a_wrong_endpoint_is_refused_by_field(
    stage: Stage, body: dict[str, Any], told: str
) -> None:
    answer = await stage.api.post("/webhooks", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert told in answer.error
    assert "geheim" not in answer.error


@on_sqlite
@pytest.mark.parametrize("overlap", [-1, 604_801, "1", 1.5, True])
async def test_a_wrong_overlap_is_refused(stage: Stage, overlap: Any) -> None:
    made = await create(stage, stage.hooks.new().url)
    answer = await stage.api.post(f"/webhooks/{made['id']}/rotate", {"overlapSeconds": overlap})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "overlapSeconds" in answer.error


# -------------------------------------------------------------------- agents kept apart


async def test_an_agents_token_sees_and_touches_only_its_own_webhooks(
    serve: Serve, hooks: Hooks
) -> None:
    server = await serve()
    tokens: dict[str, str] = {}
    for name, agent in (("root", None), ("ada", "ada"), ("bob", "bob")):
        body = {"name": name, "scopes": ["all"], **({"agentId": agent} if agent else {})}
        asked = {"Authorization": f"Bearer {tokens['root']}"} if tokens else {}
        answer = await server.api.ask("POST", "/tokens", body, headers=asked)
        assert answer.status == 201, answer
        tokens[name] = answer.json["token"]

    async def ask(who: str, method: str, path: str, body: Any = None) -> Answer:
        headers = {"Authorization": f"Bearer {tokens[who]}"}
        return await server.api.ask(method, path, body, headers=headers)

    hook = hooks.new()
    endpoints: dict[str, str] = {}
    for who in ("root", "ada", "bob"):
        made = await ask(who, "POST", "/webhooks", {"url": hook.url})
        assert made.status == 201, made
        endpoints[who] = made.json["id"]
    for who in ("ada", "bob"):
        task = {"handler": "echo", "callbackUrl": hook.url}
        assert (await ask(who, "POST", "/tasks", task)).status == 202
    await hook.until(2)

    for who, other in (("ada", "bob"), ("bob", "ada")):
        (mine,) = (await ask(who, "GET", "/deliveries")).json["deliveries"]
        assert mine["agentId"] == who
        (own,) = (await ask(who, "GET", "/webhooks")).json["endpoints"]
        assert own["id"] == endpoints[who]
        forbidden = [
            ("GET", f"/deliveries/{mine['id']}"),
            ("POST", f"/deliveries/{mine['id']}/redeliver"),
            *((method, f"/webhooks/{endpoints[who]}") for method in ("GET", "DELETE")),
            *(("POST", f"/webhooks/{endpoints[who]}/{verb}") for verb in ("rotate", "enable")),
        ]
        for method, path in forbidden:
            answer = await ask(other, method, path)
            nobodys = await ask(other, method, path.replace(path.split("/")[2], "nobody"))
            assert (answer.status, answer.json) == (404, nobodys.json), path
        named = await ask(other, "POST", "/webhooks", {"url": hook.url, "agentId": who})
        assert named.status == 403
        hidden = await ask(other, "GET", f"/webhooks/{endpoints['root']}")
        assert hidden.status == 404
    assert (await ask("root", "GET", "/deliveries")).json["count"] == 2
    assert (await ask("root", "GET", "/webhooks")).json["count"] == 3


# -------------------------------------------------------------------- never to itself


async def test_a_server_never_sends_to_itself_whatever_is_allowed(serve: Serve) -> None:
    server = await serve(allow_outbound=["127.0.0.1", "localhost"])
    port = server.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        task = {"handler": "echo", "callbackUrl": f"http://{host}:{port}/tasks"}
        answer = await server.api.post("/tasks", task)
        assert (answer.status, answer.code) == (400, "invalid_request"), host
    fine = {"handler": "echo", "callbackUrl": f"http://127.0.0.1:{int(port) - 1}/tasks"}
    assert (await server.api.post("/tasks", fine)).status == 202


async def test_a_refused_target_is_in_the_audit_log_without_the_secrets_of_its_url(
    serve: Serve,
) -> None:
    server = await serve()
    url = "http://169.254.169.254/geheim?key=geheim"
    for _ in range(3):
        answer = await server.api.post("/tasks", {"handler": "echo", "callbackUrl": url})
        assert answer.status == 400

    async def look() -> dict[str, Any] | None:
        answer = await server.api.get("/audit", outcome="blocked")
        assert b"geheim" not in answer.raw
        found: list[dict[str, Any]] = answer.json["entries"]
        return found[0] if found else None

    entry = await eventually(look)
    assert (entry["action"], entry["target"]) == ("outbound", "169.254.169.254")
    assert entry["detail"].startswith("link-local")


async def test_one_receiver_that_hangs_leaves_slots_for_the_others(serve: Serve) -> None:
    """Another host is what counts: the same address under another name is one."""
    server = await serve(allow_outbound=["127.0.0.0/8", "localhost"])
    hanging: list[asyncio.StreamWriter] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(writer)
        await reader.read()

    slow = await asyncio.start_server(hang, "127.0.0.2", 0)
    port = slow.sockets[0].getsockname()[1]
    quick_got = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()
        quick_got.set()

    quick = await asyncio.start_server(answer, "127.0.0.1", 0)
    quick_port = quick.sockets[0].getsockname()[1]
    try:
        body = {"handler": "echo", "callbackUrl": f"http://127.0.0.2:{port}/"}
        await asyncio.gather(*(server.api.post("/tasks", body) for _ in range(100)))

        async def busy() -> bool | None:
            return len(hanging) >= 16 or None

        await eventually(busy)
        await server.api.post(
            "/tasks", {"handler": "echo", "callbackUrl": f"http://127.0.0.1:{quick_port}/"}
        )
        async with asyncio.timeout(8):  # less than the time after which a hanging one is given up
            await quick_got.wait()
        assert len(hanging) == 16
    finally:
        for writer in hanging:
            writer.close()
        slow.close()
        quick.close()
