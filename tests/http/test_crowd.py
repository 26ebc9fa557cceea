"""Many connections, and streams that nobody reads, do not delay other callers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.fakes.waiting import WAIT_SECONDS, judge, steadily
from tests.http.api import eventually
from tests.http.work import Stream

if TYPE_CHECKING:
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

STREAMS = 300
BATCHES = 200
BATCH = 100
ROUNDS = 20
ROUND_SECONDS_MAX = 0.3
LATER = {"handler": "nobody", "delayMs": 3_600_000}
ROOM = {"lanes": {"main": {"maxQueueSize": 1_000_000, "maxPerAgent": 1_000_000}}}


@pytest.mark.slow
@pytest.mark.parametrize("query", ["after=0", "after=0&type=task.created,task.parked&agentId=a"])
async def test_streams_that_nobody_reads_hold_up_nobody(
    store_url: str, serve: Serve, query: str
) -> None:
    server = await serve(store_url, policy=ROOM)
    for _ in range(BATCHES // 10):
        await asyncio.gather(*(_submit_many(server) for _ in range(10)))
    with contextlib.ExitStack() as deaf:
        for _ in range(STREAMS):
            deaf.enter_context(_asks_and_does_not_read(server, f"/events?{query}"))
        await steadily(lambda: _rounds(server))
        assert await eventually(lambda: _streaming(server))


@pytest.mark.parametrize("processes", [1, 2])
async def test_many_connections_at_once_wait_for_a_busy_server(
    serve: Serve, processes: int
) -> None:
    server = await serve(processes=processes)
    with contextlib.ExitStack() as crowd:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            callers = [
                crowd.enter_context(_asks_and_does_not_read(server, "/health/live"))
                for _ in range(STREAMS)
            ]
        finally:
            os.kill(server.pid, signal.SIGCONT)
        for caller in callers:
            answer = await asyncio.to_thread(caller.recv, 100)
            assert answer.startswith(b"HTTP/1.1 200 ")


async def _submit_many(server: Server) -> None:
    answer = await server.api.post("/tasks/batch", {"agentId": "a", "tasks": [LATER] * BATCH})
    assert answer.json["accepted"] == BATCH, answer


def _asks_and_does_not_read(server: Server, target: str) -> socket.socket:
    where = urlsplit(server.url)
    caller = socket.create_connection((where.hostname, where.port), WAIT_SECONDS)
    caller.sendall(f"GET {target} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    return caller


async def _streaming(server: Server) -> bool | None:
    metrics = (await server.api.get("/metrics")).raw.decode()
    return f"fairlane_stream_clients {STREAMS}\n" in metrics or None


async def _rounds(server: Server) -> None:
    """Submit, read, and hear of it by a stream at the head, over and over."""
    async with Stream(f"{server.url}/events", {"Accept": "text/event-stream"}) as live:
        began = time.monotonic()
        for _ in range(ROUNDS):
            task_id = await server.api.submit(**LATER)
            assert (await server.api.get("/tasks", limit=5)).status == 200
            while (await live.frame()).data.get("taskId") != task_id:
                pass
        judge(time.monotonic() - began, ROUNDS * ROUND_SECONDS_MAX)
