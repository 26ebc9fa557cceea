"""Lists of what is large: a page ends at its bytes too, and all pages have everything once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Client
from fairlane.store.pages import PAGE_BYTES_MAX
from tests.http.server import COMMAND

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

TASKS = 40
LARGE = {name: name * 240_000 for name in "abc"}
HALF = {name: name * 240_000 for name in "ab"}
GROWTH_MIB_MAX = 100
ROOM = {"lanes": {"main": {"maxQueueSize": 1000, "maxPerAgent": 1000, "maxInflight": 8}}}


@pytest.mark.slow
async def test_lists_of_large_things_come_in_pages_of_bounded_bytes(
    store_url: str, serve: Serve
) -> None:
    server = await serve(store_url, policy=ROOM)
    api = server.api
    body = {"agentId": "a", "tasks": [{"handler": "echo", "params": LARGE}]}
    answers = [await api.post("/tasks/batch", body) for _ in range(TASKS)]
    ids = [answer.json["tasks"][0]["taskId"] for answer in answers]
    await api.ended(*ids)

    _forget_peak(server)
    before = _peak_mib(server)
    listed = await _pages(api, "/tasks", "tasks", limit=1000)
    assert [task["taskId"] for task in listed] == ids[::-1]
    assert all(task["result"] == LARGE for task in listed)
    brief = await _pages(api, "/tasks", "tasks", limit=1000, brief=1)
    assert [task["taskId"] for task in brief] == ids[::-1]
    await _events(api, ids)
    assert _peak_mib(server) - before < GROWTH_MIB_MAX
    await asyncio.to_thread(_by_others, server, store_url, ids)


async def test_lists_of_large_requests_are_cut_alike(store_url: str, serve: Serve) -> None:
    api = (await serve(store_url)).api
    for number in range(10):
        entry = {"appId": "large", "inputs": {**LARGE, "n": number}}
        assert (await api.post("/queue", entry)).status == 201
        template = {"name": f"t{number}", "instruction": "x", "llmConfig": HALF}
        assert (await api.post("/templates", template)).status == 201
    entries = await _pages(api, "/queue", "entries", limit=1000)
    assert [one["inputs"]["n"] for one in entries] == list(range(10))
    templates = await _pages(api, "/templates", "templates", limit=1000)
    assert [one["name"] for one in templates] == [f"t{number}" for number in reversed(range(10))]
    (one,) = (await api.get("/templates", limit=1)).json["templates"]
    assert one["name"] == "t9"


async def test_waiting_for_a_batch_shows_all_of_its_large_tasks(serve: Serve) -> None:
    server = await serve()
    api = server.api
    file = server.folder / "batch.json"
    file.write_text(json.dumps({"agentId": "a", "tasks": [{"handler": "large"}] * 8}), "utf-8")
    command = [COMMAND, "batch", "submit", file, "--wait", "60s", "--url", server.url]
    asked = {"worker": "w", "limit": 8, "waitMs": 30_000}
    waiting = asyncio.create_task(
        asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    )
    leases = (await api.post("/leases", asked)).json["leases"]
    for lease in leases:
        done = await api.post(f"/leases/{lease['leaseId']}/complete", {"result": LARGE})
        assert done.status == 200, done
    told = (await waiting).stdout.decode()
    assert len(leases) == 8
    assert [lease["taskId"] for lease in leases if lease["taskId"] not in told] == []


async def _pages(api: Api, path: str, key: str, **query: Any) -> list[dict[str, Any]]:
    """All of a list; every page is small, and not the only one."""
    found: list[dict[str, Any]] = []
    pages = 0
    while True:
        answer = await api.get(path, **query)
        assert answer.status == 200, answer
        assert answer.json[key]
        assert answer.json["count"] == len(answer.json[key])
        assert len(answer.raw) < 2 * PAGE_BYTES_MAX
        found += answer.json[key]
        pages += 1
        if "nextCursor" not in answer.json:
            assert pages > 1
            return found
        query["cursor"] = answer.json["nextCursor"]


async def _events(api: Api, ids: list[str]) -> None:
    after, more, completed = 0, True, []
    while more:
        answer = await api.ask(
            "GET", f"/events?limit=1000&after={after}", headers={"Accept": "application/json"}
        )
        assert len(answer.raw) < 2 * PAGE_BYTES_MAX
        page = answer.json
        completed += [e["taskId"] for e in page["events"] if e["type"] == "task.completed"]
        after, more = page["nextAfter"], page["more"]
    assert sorted(completed) == sorted(ids)


def _by_others(server: Server, store_url: str, ids: list[str]) -> None:
    """The Python client and the command, over HTTP and on the store itself, read all pages."""
    with Client(server.url) as client:
        done = [e["taskId"] for e in client.events(follow=False, types=["task.completed"])]
    assert sorted(done) == sorted(ids)
    environment = {**os.environ, "FAIRLANE_CONFIG": os.devnull}
    for side in (["--url", server.url], ["--store", store_url]):
        command = [COMMAND, "tasks", "--all", "--json", *side]
        told = subprocess.run(command, check=True, capture_output=True, env=environment)
        pages = [json.loads(line) for line in told.stdout.splitlines()]
        assert [task["taskId"] for page in pages for task in page["tasks"]] == ids[::-1]


def _forget_peak(server: Server) -> None:
    assert server._process is not None
    Path(f"/proc/{server._process.pid}/clear_refs").write_text("5", "ascii")


def _peak_mib(server: Server) -> int:
    assert server._process is not None
    lines = Path(f"/proc/{server._process.pid}/status").read_text("ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024
