"""How many streams and long polls a token or an address may have open, and that others go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from fairlane.core.access import TRUSTED, Caller
from fairlane.core.errors import TooManyConnections
from fairlane.http.holding import Held
from fairlane.http.messages import HttpRequest
from tests.http.api import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST = 3
FEW = {"FAIRLANE_MAX_STREAMS": str(MOST), "FAIRLANE_MAX_WAITS": str(MOST)}
WAITING = {"worker": "w", "waitMs": 60_000}


class Place:
    """Callers of one server at an address of their own, all on this machine."""

    def __init__(self, server: Server, host: str) -> None:
        self._url = server.url
        connector = aiohttp.TCPConnector(limit=0, local_addr=(host, 0))
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        self._answers: list[aiohttp.ClientResponse] = []

    async def close(self) -> None:
        for answer in self._answers:
            answer.close()
        await self._session.close()

    async def ask(
        self, path: str, body: Any = None, token: str | None = None
    ) -> aiohttp.ClientResponse:
        """The answer as far as its head; of a stream, it stays open."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        method = "GET" if body is None else "POST"
        answer = await self._session.request(method, self._url + path, json=body, headers=headers)
        self._answers.append(answer)
        return answer


@asynccontextmanager
async def places(server: Server, *hosts: str) -> AsyncIterator[list[Place]]:
    async with AsyncExitStack() as stack:
        found = [Place(server, host) for host in hosts]
        for one in found:
            stack.push_async_callback(one.close)
        yield found


async def test_an_address_has_so_many_streams_and_others_have_theirs(serve: Serve) -> None:
    server = await serve(environment=FEW)
    task_id = await server.api.submit(handler="nobody")
    async with places(server, "127.0.0.1", "127.0.0.2") as (greedy, other):
        kinds = ("/events", "/events/pulse", f"/tasks/{task_id}/output?follow=1")
        held = [await greedy.ask(path) for path in kinds]
        assert [answer.status for answer in held] == [200] * MOST
        for path in kinds:
            refused = await greedy.ask(path)
            assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
            shape = await refused.json()
            assert (shape["code"], shape["retryable"]) == ("too_many_connections", True)
            assert shape["details"] == {"setting": "max_streams", "limit": MOST}
            assert "this address has 3 streams open" in shape["error"]
            assert "max_streams" in shape["error"]
        assert (await greedy.ask("/tasks")).status == 200
        assert (await other.ask("/events")).status == 200

        held[0].close()  # and its place is free again

        async def streams() -> bool | None:
            answer = await greedy.ask("/events")
            return answer.status == 200 or None

        await eventually(streams)


async def test_an_address_has_so_many_requests_that_wait(serve: Serve) -> None:
    server = await serve(environment=FEW)
    task_id = await server.api.submit(handler="nobody", delayMs=3_600_000)
    async with places(server, "127.0.0.1", "127.0.0.2") as (greedy, other):
        waiting = [asyncio.create_task(greedy.ask("/leases", WAITING)) for _ in range(MOST)]

        async def wait() -> bool | None:
            metrics = (await server.api.get("/metrics")).raw.decode()
            return f"fairlane_lease_waits {MOST}\n" in metrics or None

        await eventually(wait)
        for path, body in (("/leases", WAITING), (f"/tasks/{task_id}/wait", None)):
            refused = await greedy.ask(path, body)
            assert refused.status == 429
            shape = await refused.json()
            assert shape["details"] == {"setting": "max_waits", "limit": MOST}
            assert "this address has 3 waiting requests open" in shape["error"]
        assert (await greedy.ask("/events")).status == 200
        assert (await other.ask("/leases", {**WAITING, "waitMs": 1})).status == 200
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)


async def test_a_token_has_so_many_streams_wherever_they_come_from(serve: Serve) -> None:
    server = await serve(environment=FEW)
    root = await _token(server, None, "root", scopes=["all"])
    alice, bob = [await _token(server, root, name) for name in ("alice", "bob")]
    async with places(server, "127.0.0.2", "127.0.0.3") as (here, there):
        held = [await place.ask("/events", token=alice) for place in (here, here, there)]
        assert [answer.status for answer in held] == [200] * MOST
        refused = await there.ask("/events", token=alice)
        assert refused.status == 429
        assert "this token has 3 streams open" in (await refused.json())["error"]
        assert (await there.ask("/events", token=bob)).status == 200


async def _token(server: Server, root: str | None, name: str, **fields: Any) -> str:
    headers = {} if root is None else {"Authorization": f"Bearer {root}"}
    answer = await server.api.ask("POST", "/tokens", {"name": name, **fields}, headers=headers)
    assert answer.status == 201, answer
    token: str = answer.json["token"]
    return token


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
    ],
)
async def test_an_address_of_ipv6_is_a_network(one: str, other: str, *, same: bool) -> None:
    held = Held("streams", "max_streams", 1)
    with held.place(_from(one)):
        assert _is_refused(held, _from(other)) is same
        assert not _is_refused(held, _from(one, named=TRUSTED))
    assert not _is_refused(held, _from(one))
    assert not held._held


async def test_a_token_counts_where_there_is_no_address() -> None:
    held, caller = Held("streams", "max_streams", 1), Caller("a", token="t")
    with held.place(_from(None, caller)):
        assert _is_refused(held, _from(None, caller))
        assert not _is_refused(held, _from(None))


def _from(
    address: str | None, caller: Caller = TRUSTED, named: Caller | None = None
) -> HttpRequest:
    request = HttpRequest("GET", "/events", named=named)
    request.address, request.caller = address, caller
    return request


def _is_refused(held: Held, request: HttpRequest) -> bool:
    try:
        with held.place(request):
            return False
    except TooManyConnections:
        return True
