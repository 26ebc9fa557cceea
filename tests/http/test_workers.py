"""`GET /workers`, warnings about what nobody can run, and the settings that refuse it."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.api import eventually
from tests.http.stage import on_sqlite

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.conftest import Serve
    from tests.http.server import Server
    from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    return f"known-{next(_numbers)}"


async def workers(api: Api) -> dict[str, dict[str, Any]]:
    answer = await api.get("/workers")
    assert answer.status == 200
    assert answer.json["count"] == len(answer.json["workers"])
    return {one["name"]: one for one in answer.json["workers"]}


async def poll(api: Api, worker: str, **fields: Any) -> None:
    body = {"worker": worker, "waitMs": 60_000, **fields}
    assert (await api.post("/leases", body)).status == 200


async def test_a_server_knows_itself(server: Server) -> None:
    found = await workers(server.api)
    here = [one for one in found.values() if one["inside"] and one["state"] == "online"]
    assert here
    assert {"echo", "sleep"} <= set(here[0]["handlers"])
    assert here[0]["kinds"] == ["action"]
    assert {"echo", "sleep"} <= set((await server.api.get("/workers")).json["handlers"])


async def test_a_worker_that_waits_is_listed_with_what_it_said(server: Server, name: str) -> None:
    polling = asyncio.create_task(
        poll(server.api, name, handlers=[f"h-{name}"], lanes=["team"], slots=7, version="3.1")
    )

    async def listed() -> dict[str, Any] | None:
        return (await workers(server.api)).get(name)

    one = await eventually(listed)
    assert (one["state"], one["handlers"], one["lanes"]) == ("online", [f"h-{name}"], ["team"])
    assert (one["slots"], one["version"], one["address"]) == (7, "3.1", "127.0.0.1")
    assert (one["running"], one["inside"], one["agentId"]) == (0, False, None)
    await server.api.post("/leases/withdraw", {"worker": name})
    await polling


async def test_a_worker_that_holds_a_lease_is_counted(work: Work, name: str) -> None:
    handler = f"h-{name}"
    task = await work.echo(handler=handler, lane="team")
    await poll(work.api, name, handlers=[handler])
    assert (await workers(work.api))[name]["running"] == 1
    lease = (await work.api.show(task))["leaseId"]
    assert (await work.api.post(f"/leases/{lease}/complete", {})).status == 200
    assert (await workers(work.api))[name]["running"] == 0


async def test_an_unknown_handler_is_accepted_with_a_warning(serve: Serve) -> None:
    api = (await serve()).api  # its own: workers of other tests may take any handler
    answer = await api.post("/tasks", {"handler": "ehco"})
    text = "no known worker offers handler 'ehco'; did you mean echo?"
    assert (answer.status, answer.json["warnings"]) == (202, [text])
    task = answer.json["taskId"]
    why = (await api.get(f"/tasks/{task}/why")).json
    assert (why["reason"], why["ready"]) == (text, True)
    assert (await api.show(task))["notice"] == text
    (listed,) = (await api.get("/tasks", brief="true")).json["tasks"]
    assert listed["notice"] == text


async def test_a_known_handler_and_lane_have_no_warning(work: Work) -> None:
    answer = await work.api.post("/tasks", {"agentId": work.agent, "handler": "echo"})
    assert "warnings" not in answer.json
    assert "notice" not in await work.api.end_of(answer.json["taskId"])


async def test_an_unknown_lane_is_replaced_with_a_warning(work: Work) -> None:
    body = {"agentId": work.agent, "handler": "echo", "lane": "mian"}
    answer = await work.api.post("/tasks", body)
    text = "the policy has no lane 'mian', so the task runs in lane main; did you mean main?"
    assert answer.json["warnings"] == [text]
    assert (await work.api.end_of(answer.json["taskId"]))["lane"] == "main"


async def test_a_batch_a_message_and_a_stream_are_warned_about(serve: Serve) -> None:
    api = (await serve()).api
    tasks = [{"handler": "ehco"}, {"handler": "echo"}, {"handler": "ehco"}]
    answer = await api.post("/tasks/batch", {"tasks": tasks})
    text = "no known worker offers handler 'ehco'; did you mean echo?"
    assert answer.json["warnings"] == [f"2 of 3 tasks: {text}"]
    answer = await api.post("/tasks/stream", {"tasks": tasks})
    assert [one.get("warnings") for one in answer.json["tasks"]] == [[text], None, [text]]
    raw = b"".join(json.dumps(one).encode() + b"\n" for one in tasks)
    ndjson = {"Content-Type": "application/x-ndjson"}
    answer = await api.ask("POST", "/tasks/stream", raw=raw, headers=ndjson)
    *lines, _ = map(json.loads, answer.raw.splitlines())
    assert [one.get("warnings") for one in lines] == [[text], None, [text]]
    answer = await api.post("/sessions/chat/messages", {"message": "hi", "handler": "ehco"})
    assert answer.json["warnings"] == [text]


async def test_a_strict_policy_refuses_unknown_names(serve: Serve) -> None:
    server = await serve(policy={"strictHandlers": True, "strictLanes": True})
    api = server.api
    answer = await api.post("/tasks", {"handler": "ehco"})
    text = "invalid task: no known worker offers handler 'ehco'; did you mean echo?"
    assert (answer.status, answer.error) == (400, text)
    answer = await api.post("/tasks", {"handler": "echo", "lane": "mian"})
    text = "invalid task: field 'lane': the policy has no lane 'mian'; did you mean main?"
    assert (answer.status, answer.error) == (400, text)
    tasks = [{"handler": "ehco"}, {"handler": "echo"}]
    answer = await api.post("/tasks/batch", {"tasks": tasks})
    assert answer.json["tasks"][0]["state"] == "rejected"
    assert (answer.json["accepted"], answer.json["rejected"]) == (1, 1)
    answer = await api.post("/tasks/stream", {"tasks": tasks})
    assert (answer.json["accepted"], answer.json["rejected"]) == (1, 1)
    # A worker that was there a moment ago is known; its tasks wait for it.
    await poll(api, "short", handlers=["late"], waitMs=0)
    answer = await api.post("/tasks", {"handler": "late", "delayMs": 60_000})
    assert answer.status == 202


async def test_the_processes_of_a_server_know_the_same_workers(serve: Serve) -> None:
    server = await serve(processes=3)
    polling = asyncio.create_task(poll(server.api, "w", handlers=["far"]))

    async def known() -> bool:
        return "w" in await workers(server.api)

    async def recommended() -> bool:
        answer = await server.api.post("/tasks", {"handler": "faar"})
        return bool(
            answer.json["warnings"] == ["no known worker offers handler 'faar'; did you mean far?"]
        )

    await eventually(known)
    for _ in range(6):  # the next process may still have what it read a moment ago
        await eventually(recommended)
        assert (await workers(server.api))["w"]["state"] == "online"
    await server.api.post("/leases/withdraw", {"worker": "w"})
    await polling


@pytest.mark.slow
async def test_a_worker_of_one_node_is_known_to_the_other(
    fresh_postgres: str, serve: Serve
) -> None:
    left, right = [await serve(fresh_postgres) for _ in range(2)]
    polling = asyncio.create_task(poll(left.api, "w", handlers=["far"]))

    async def known() -> dict[str, Any] | None:
        return (await workers(right.api)).get("w")

    assert (await eventually(known))["state"] == "online"
    answer = await right.api.post("/tasks", {"handler": "far"})
    assert "warnings" not in answer.json
    await polling


@on_sqlite
async def test_metrics_count_workers_by_state(server: Server) -> None:
    text = (await server.api.get("/metrics")).raw.decode()
    assert 'fairlane_workers{kind="node",state="online"} 1\n' in text
    assert 'fairlane_worker_leases{kind="external"}' in text
