"""`fairlane serve --processes`: to callers and operators several processes are one server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.access import ALL
from tests.http.api import Answer, Api, eventually
from tests.http.conftest import Serve
from tests.http.server import Server, serving

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

PROCESSES = 3
CALLERS = 7  # a connection each, and so at least three to each front


def children(server: Server) -> list[int]:
    """The fronts of a server, by the numbers of their processes."""
    text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(word) for word in text.split()]


def alive(numbers: list[int]) -> list[int]:
    """Those of the processes that still exist."""
    return [number for number in numbers if Path(f"/proc/{number}").exists()]


async def until_gone(numbers: list[int]) -> None:
    async def gone() -> bool | None:
        return not alive(numbers) or None

    await eventually(gone)


class Crowd:
    """Callers with a connection each, so that every process serves some of them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.apis = [Api(server.url) for _ in range(CALLERS)]

    async def each(self, ask: Callable[[Api], Awaitable[Answer]]) -> list[Answer]:
        """What everyone is answered, one after the other."""
        return [await ask(api) for api in self.apis]

    async def close(self) -> None:
        for api in self.apis:
            await api.close()


@pytest_asyncio.fixture(loop_scope="session")
async def crowd(store_url: str, tmp_path: Path) -> AsyncIterator[Crowd]:
    async with serving(tmp_path / "server", store_url, processes=PROCESSES) as server:
        crowd = Crowd(server)
        yield crowd
        await crowd.close()


def get(path: str, token: str | None = None) -> Callable[[Api], Awaitable[Answer]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return lambda api: api.ask("GET", path, headers=headers)


# -------------------------------------------------------------------- one server


async def test_every_process_gives_the_same_answers(crowd: Crowd) -> None:
    assert len(children(crowd.server)) == PROCESSES - 1
    task_id = await crowd.apis[0].submit(handler="nobody-here")
    for path in (
        f"/tasks/{task_id}",
        f"/tasks/{task_id}/why",
        "/policy",
        "/scheduler/stats",
        "/health/ready",
        "/health/live",
        "/whoami",
        "/openapi.json",
        "/docs",
        "/queue",
    ):
        answers = await crowd.each(get(path))
        assert {one.status for one in answers} == {200}, path
        assert len({one.raw for one in answers}) == 1, path
    nodes = [one.json["nodes"] for one in await crowd.each(get("/nodes"))]
    assert [len(one) for one in nodes] == [1] * CALLERS
    assert {one["answered"] for (one,) in nodes} == {True}


async def test_an_idempotency_key_counts_in_all_processes(crowd: Crowd) -> None:
    body = {"handler": "nobody-here"}
    answers = await asyncio.gather(
        *(api.post("/tasks", body, Idempotency_Key="k") for api in crowd.apis for _ in range(4))
    )
    assert {one.status for one in answers} == {202}
    assert len({one.json["taskId"] for one in answers}) == 1


async def test_a_revoked_token_is_refused_by_all_processes_at_once(crowd: Crowd) -> None:
    made = await crowd.apis[0].post("/tokens", {"name": "root", "scopes": ALL})
    root = {"Authorization": f"Bearer {made.json['token']}"}
    for number in range(10):
        name = f"t{number}"
        body = {"name": name, "scopes": ["read"]}
        answer = await crowd.apis[number % CALLERS].ask("POST", "/tokens", body, headers=root)
        token = answer.json["token"]
        found = await crowd.each(get("/tasks", token))
        assert {one.status for one in found} == {200}
        revoker = crowd.apis[(number + 3) % CALLERS]
        assert (await revoker.ask("DELETE", f"/tokens/{name}", headers=root)).status == 200
        found = await asyncio.gather(*(get("/tasks", token)(api) for api in crowd.apis))
        assert {one.status for one in found} == {401}


async def test_a_new_policy_is_known_to_all_processes_at_once(crowd: Crowd) -> None:
    for number, api in enumerate(crowd.apis):
        lane = f"lane-{number}"
        document = {"lanes": {lane: {"maxInflight": 1}}}
        assert (await api.ask("PATCH", "/policy", document)).status == 200
        found = await asyncio.gather(*(get(f"/lanes/{lane}")(one) for one in crowd.apis))
        assert {one.status for one in found} == {200}


async def test_waits_and_streams_end_wherever_the_task_ends(crowd: Crowd) -> None:
    task_id = await crowd.apis[0].submit(handler="nobody-here")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        streams = [await _stream(session, f"{crowd.server.url}/events") for _ in range(CALLERS)]
        waits = [asyncio.create_task(api.end_of(task_id)) for api in crowd.apis]
        leases = [
            asyncio.create_task(
                api.post("/leases", {"worker": f"w{number}", "waitMs": 50_000, "handlers": ["x"]})
            )
            for number, api in enumerate(crowd.apis)
        ]
        metrics = "fairlane_lease_waits 7\n", "fairlane_stream_clients 7\n"
        await eventually(lambda: _shows(crowd.apis[0], *metrics))
        await crowd.apis[3].submit(handler="x")
        done, _ = await asyncio.wait(leases, return_when=asyncio.FIRST_COMPLETED)
        assert [len(one.result().json["leases"]) for one in done] == [1]
        for number in range(CALLERS):
            api, named = crowd.apis[(number + 1) % CALLERS], {"worker": f"w{number}"}
            assert (await api.post("/leases/withdraw", named)).status == 200
        async with asyncio.timeout(25):  # half of what they would wait
            found = [(await one).json["leases"] for one in leases]
        assert sum(map(len, found)) == 1
        await crowd.apis[5].cancel(task_id)
        assert {one["state"] for one in await asyncio.gather(*waits)} == {"cancelled"}
        for stream in streams:
            await _until(stream, b"task.cancelled")
            stream.close()


async def test_a_lease_goes_back_when_its_caller_leaves_any_process(crowd: Crowd) -> None:
    host, port = crowd.server.url.removeprefix("http://").split(":")
    body = b'{"worker":"w","waitMs":50000}'
    head = b"POST /leases HTTP/1.1\r\nHost: %b:%b\r\nContent-Type: application/json\r\n"
    for _ in range(4):
        _, writer = await asyncio.open_connection(host, int(port))
        lines = head % (host.encode(), port.encode())
        writer.write(lines + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await eventually(lambda: _shows(crowd.apis[0], "fairlane_lease_waits 1\n"))
        writer.close()
        await eventually(lambda: _shows(crowd.apis[0], "fairlane_lease_waits 0\n"))
    task_id = await crowd.apis[0].submit(handler="nobody-here")
    assert (await crowd.apis[0].show(task_id))["state"] == "queued"


async def _shows(api: Api, *lines: str) -> bool | None:
    text = (await api.get("/metrics")).raw.decode()
    return all(line in text for line in lines) or None


async def _stream(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    answer = await session.get(url)
    await _until(answer, b"retry")
    return answer


async def _until(stream: aiohttp.ClientResponse, word: bytes) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while word not in await stream.content.readline():
            pass


# -------------------------------------------------------------------- ends


async def test_a_front_that_dies_is_replaced(crowd: Crowd) -> None:
    before = children(crowd.server)
    os.kill(before[0], signal.SIGKILL)

    async def replaced() -> bool | None:
        now = children(crowd.server)
        return (len(now) == len(before) and before[0] not in now) or None

    await eventually(replaced)
    await eventually(lambda: _shows(crowd.apis[6], f"fairlane_processes {PROCESSES}\n"))
    assert f"front process {before[0]} ended" in crowd.server.log
    others = [Api(crowd.server.url) for _ in range(CALLERS)]
    try:
        assert {(await api.get("/tasks")).status for api in others} == {200}
    finally:
        for api in others:
            await api.close()


async def test_fronts_end_with_the_process_that_writes(serve: Serve) -> None:
    server = await serve(processes=PROCESSES)
    fronts = children(server)
    streams = [await _connect(server) for _ in range(CALLERS)]
    server.kill()
    for reader, writer in streams:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), WAIT_SECONDS)
        writer.close()
    await until_gone(fronts)


async def _connect(server: Server) -> Any:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_drains_all_processes(serve: Serve, number: int) -> None:
    server = await serve(processes=PROCESSES, drain_seconds=0.2)
    crowd = Crowd(server)
    fronts = children(server)
    task_id = await crowd.apis[0].submit(handler="nobody-here")
    waits = [
        asyncio.create_task(api.get(f"/tasks/{task_id}/wait", timeoutMs=50_000))
        for api in crowd.apis
    ]
    leases = [
        asyncio.create_task(
            api.post("/leases", {"worker": "w", "handlers": ["x"], "waitMs": 50_000})
        )
        for api in crowd.apis
    ]
    await eventually(lambda: _shows(crowd.apis[0], "fairlane_lease_waits 7\n"))
    for front in fronts:
        os.kill(front, number)  # as a terminal or a service manager does
    server.signal(number)
    assert {(await one).json["state"] for one in waits} == {"queued"}
    assert [(await one).json["leases"] for one in leases] == [[]] * CALLERS
    assert await server.exit_code() == 0
    assert alive(fronts) == []
    assert "ended with code" not in server.log
    await crowd.close()


async def test_a_second_signal_ends_all_processes_at_once(serve: Serve) -> None:
    server = await serve(processes=PROCESSES, drain_seconds=60)
    fronts = children(server)
    task_id = await server.api.submit(handler="sleep", params={"ms": 50_000})
    await server.api.until(task_id, "running")
    server.signal()
    await eventually(lambda: _stopping(server))
    server.signal()
    assert await server.exit_code() == -signal.SIGKILL
    await until_gone(fronts)


async def _stopping(server: Server) -> bool | None:
    return "stopping: no new work" in server.log or None


async def test_a_changed_policy_file_reaches_all_processes(serve: Serve) -> None:
    server = await serve(processes=PROCESSES, policy={})
    crowd = Crowd(server)
    server.write_policy({"lanes": {"gpu": {"maxInflight": 1}}})

    async def known() -> bool | None:
        return (await crowd.apis[0].get("/lanes/gpu")).status == 200 or None

    await eventually(known)
    assert {one.status for one in await crowd.each(get("/lanes/gpu"))} == {200}
    await crowd.close()


async def test_a_full_backlog_of_connections_is_served(serve: Serve) -> None:
    """More connections at once than a turn of the event loop accepts."""
    server = await serve(processes=PROCESSES)
    streams = await asyncio.gather(*(_connect(server) for _ in range(300)))
    host = server.url.removeprefix("http://").encode()
    for _, writer in streams:
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    for reader, writer in streams:
        line = await asyncio.wait_for(reader.readline(), WAIT_SECONDS)
        assert line == b"HTTP/1.1 200 OK\r\n"
        writer.close()
