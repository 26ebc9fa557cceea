"""The audit log over HTTP: every change by an operator, every denied call, and floods."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from fairlane.core.access import Scope
from fairlane.http.messages import Route
from tests.http.access import ALL, BOB, Callers, id_of, routes
from tests.http.server import COMMAND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def own(serve: Serve) -> Server:
    return await serve()


@pytest_asyncio.fixture(loop_scope="session")
async def callers(own: Server) -> AsyncIterator[Callers]:
    callers = Callers(own.url)
    await callers.begin()
    yield callers
    await callers.close()


async def entries(callers: Callers, query: str = "") -> list[dict[str, Any]]:
    answer = await callers.ask("GET", f"/audit?limit=1000{query}", token=callers.root)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json["entries"]
    return found[::-1]


def _is_recorded(route: Route) -> bool:
    return route.operation is not None and route.operation.is_audited


async def test_every_route_of_operators_is_recorded() -> None:
    """Whatever changes something and is not for everybody, now and later."""
    silent = [
        f"{method} {path}"
        for (method, path), route in routes().items()
        if method != "GET"
        and route.scope in (Scope.OPERATE, Scope.ADMIN)
        and not _is_recorded(route)
    ]
    assert silent == ["PUT /sessions/{key}/usage"]


async def test_what_operators_do_is_reported_with_who_and_what(own: Server) -> None:
    api = own.api
    await api.ask("PATCH", "/policy", {"lanes": {"main": {"maxInflight": 7}}})
    await api.post("/lanes/main/pause", {})
    await api.post("/lanes/none/pause", {})
    await api.post("/tasks/cancel", {"agentId": "x", "dryRun": True})
    await api.post("/tasks/cancel", {"agentId": "x"})
    await api.post("/sessions/talk/stopall", {})
    every = {"kind": "every", "everyMs": 60_000}
    job = {"name": "j", "schedule": every, "task": {"handler": "echo", "params": {"a": "private"}}}
    job_id = (await api.post("/cron/jobs", job)).json["id"]
    await api.ask("DELETE", f"/cron/jobs/{job_id}")
    await api.submit(handler="echo")
    found = (await api.get("/audit")).json["entries"][::-1]
    told = [(one["who"], one["action"], one.get("target"), one["outcome"]) for one in found]
    assert told == [
        ("local", "PATCH /policy", None, "done"),
        ("local", "POST /lanes/{name}/pause", "main", "done"),
        ("local", "POST /lanes/{name}/pause", "none", "refused"),
        ("local", "POST /tasks/cancel", None, "done"),
        ("local", "POST /sessions/{key}/stopall", "talk", "done"),
        ("local", "POST /cron/jobs", None, "done"),
        ("local", "DELETE /cron/jobs/{id}", job_id, "done"),
    ]
    assert "private" not in repr(found)
    assert found[0]["at"].endswith("Z")
    assert "version" in found[0]["detail"]
    assert found[2]["detail"] == "not_found"
    assert found[3]["detail"] == "matched 0, changed 0"


async def test_a_policy_that_comes_from_a_file_is_reported_when_it_changes_something(
    serve: Serve,
) -> None:
    server = await serve(policy={"lanes": {"main": {"maxInflight": 3}}})
    (one,) = (await server.api.get("/audit")).json["entries"]
    assert (one["who"], one["action"], one["target"]) == ("settings", "policy", "start")
    assert one["detail"] == "version 1"


async def test_tokens_are_reported_by_name_and_id_and_never_shown(callers: Callers) -> None:
    token = await callers.new(scopes=["read"], name="reader")
    await callers.ask("DELETE", "/tokens/reader", token=callers.root)
    found = await entries(callers)
    assert [one["action"] for one in found] == [
        "POST /tokens",
        "POST /tokens",
        "DELETE /tokens/{id}",
    ]
    assert f"token {id_of(callers.root)}" in found[1]["detail"]
    assert found[2]["target"] == "reader"
    for secret in (token, callers.root):
        assert secret not in repr(found)
        assert secret.split("_")[2] not in repr(found)


async def test_denied_calls_are_reported_and_a_flood_of_them_is_few_entries(
    callers: Callers,
) -> None:
    bob = await callers.of(BOB, "read", "cancel")
    mine = await callers.ask("POST", "/tasks", {"handler": "echo"}, token=callers.root)
    for _ in range(3):
        await callers.ask("GET", "/policy", token=bob)
        await callers.ask("GET", f"/tasks/{mine.json['taskId']}", token=bob)
    await asyncio.gather(*(callers.ask("GET", "/tasks", token=f"no{n}") for n in range(300)))
    found = await entries(callers, "&outcome=denied")
    assert 3 <= len(found) <= 9  # twice as many when a minute ends meanwhile
    told = {(one["action"], one["detail"].rpartition(", ")[2].split(";")[0]) for one in found}
    assert told == {
        ("GET /policy", "forbidden"),
        ("GET /tasks/{id}", "not_found"),
        ("GET /tasks", "unauthenticated"),
    }
    stranger = next(one for one in found if one["action"] == "GET /tasks")
    assert stranger["who"] == "unknown at 127.0.0.1"


async def test_only_operators_read_it(callers: Callers) -> None:
    for token in (await callers.of(BOB, *ALL[:-1]), await callers.without("operate")):
        assert (await callers.ask("GET", "/audit", token=token)).status == 403
    assert (await callers.ask("GET", "/audit")).status == 401


async def test_it_comes_in_pages_and_by_what_is_wanted(own: Server) -> None:
    for number in range(5):
        await own.api.post(f"/lanes/none{number}/pause", {})
    first = (await own.api.get("/audit", limit=2)).json
    rest = (await own.api.get("/audit", limit=10, cursor=first["nextCursor"])).json
    assert [one["target"] for one in first["entries"]] == ["none4", "none3"]
    assert [one["target"] for one in rest["entries"]] == ["none2", "none1", "none0"]
    assert "nextCursor" not in rest
    newer = await own.api.get("/audit", after=rest["entries"][0]["id"], outcome="refused")
    assert newer.json["count"] == 2
    assert (await own.api.get("/audit", who="nobody")).json["entries"] == []
    answer = await own.api.get("/audit", outcome="any")
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_the_command_shows_it_from_the_server_and_from_the_store(
    own: Server, tmp_path: Path
) -> None:
    await own.api.post("/lanes/main/pause", {})
    for where in (["--url", own.url], ["--store", f"sqlite:///{tmp_path / 'own.db'}"]):
        for flags in ([], ["--json"]):
            command = [str(COMMAND), "audit", *flags, *where]
            said = await asyncio.to_thread(subprocess.check_output, command)
            assert b"POST /lanes/{name}/pause" in said
            assert not flags or msgspec.json.decode(said)["count"] == 1


async def test_the_command_goes_on_with_what_comes(own: Server) -> None:
    await own.api.post("/lanes/main/pause", {})
    command = [str(COMMAND), "audit", "--follow", "--url", own.url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert b"pause  main" in await process.stdout.readline()
            await own.api.post("/lanes/main/resume", {})
            assert b"resume  main" in await process.stdout.readline()
    finally:
        process.terminate()
        await process.wait()
