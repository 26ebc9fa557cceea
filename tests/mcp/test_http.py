from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, MCPError

from tests.cli.processes import running_server
from tests.http.api import Api
from tests.http.server import serving
from tests.mcp.conversations import (
    either_way,
    mistakes,
    over_http,
    read_only,
    refused,
    talking,
    told,
    work,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # the SDK takes a while to load

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that only tells; loading the SDK takes it a while."""
    folder = tmp_path_factory.mktemp("server")
    with running_server(f"sqlite:///{folder / 'fairlane.db'}", folder) as url:
        yield url


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    api = Api(url)
    yield api
    await api.close()


@either_way
async def test_an_agent_submits_work_and_does_work(
    tmp_path: Path, store_url: str, mode: str
) -> None:
    allowed = {"FAIRLANE_MCP_WRITES": "true"}
    async with (
        serving(tmp_path / "server", store_url, environment=allowed) as server,
        over_http(server.url, mode) as client,
    ):
        assert (await work(client))["result"] == {"sum": 2}


@either_way
async def test_an_agent_that_may_only_read(url: str, mode: str) -> None:
    async with over_http(url, mode) as client:
        assert "submit" not in await read_only(client)
        await mistakes(client)
        with pytest.raises(MCPError, match="unknown tool 'shw'; did you mean show"):
            await client.call_tool("shw", {})


async def test_a_client_chooses_its_tools_by_the_address(url: str) -> None:
    async with talking(Client(f"{url}/mcp?tools=operate")) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"tasks", "cron_list", "count_tasks"} <= names
        assert "cancel" not in names  # the server only reads
    async with talking(Client(f"{url}/mcp?tools=al")) as client:
        with pytest.raises(MCPError, match="no tool set 'al'; did you mean all"):
            await client.list_tools()


async def test_waiters_are_answered_when_the_server_stops(tmp_path: Path) -> None:
    async with serving(tmp_path, f"sqlite:///{tmp_path / 'fairlane.db'}") as server:
        task = (await server.api.post("/tasks", {"handler": "nobody", "agentId": "a1"})).json
        async with over_http(server.url) as client:
            waiting = asyncio.create_task(
                told(client, "wait", taskId=task["taskId"], waitMs=60_000)
            )
            await told(client, "show", taskId=task["taskId"])
            server.signal()
            assert (await waiting)["state"] == "queued"
            assert await server.exit_code() == 0


async def test_a_long_answer_is_not_given_to_an_agent(api: Api, url: str) -> None:
    texts = ["x" * 233_000] * 3
    big = {"handler": "nobody", "agentId": "long", "params": {"texts": texts}}
    for _ in range(2):
        assert (await api.post("/tasks", big)).status == 202
    async with over_http(url) as client:
        error = await refused(client, "tasks", agentId="long")
        assert error["code"] == "payload_too_large"
        assert len((await told(client, "tasks", agentId="long", limit=1))["tasks"]) == 1


# -------------------------------------------------------------------- who may ask


async def _ping(api: Api, **headers: str) -> int:
    answer = await api.ask("POST", "/mcp", PING, headers={**ACCEPT, **headers})
    return answer.status


async def test_only_names_of_this_machine_are_answered(api: Api) -> None:
    port = api.url.rpartition(":")[2]
    assert await _ping(api) == 200
    assert await _ping(api, Host=f"localhost:{port}") == 200
    assert await _ping(api, Host="evil.example") == 421
    assert await _ping(api, Host=f"evil.example:{port}") == 421
    assert await _ping(api, Host=f"127.0.0.1:{port}.evil.example") == 421
    assert await _ping(api, Host="127.0.0.1:1") == 421


async def test_pages_of_other_places_are_turned_away(api: Api) -> None:
    assert await _ping(api, Origin=api.url) == 200
    assert await _ping(api, Origin="https://evil.example") == 403
    assert await _ping(api, Origin="http://127.0.0.1:1") == 403
    assert await _ping(api, Origin="null") == 403
    plain = {**ACCEPT, "Content-Type": "text/plain"}
    answer = await api.ask("POST", "/mcp", raw=b"{}", headers=plain)
    assert answer.status == 415


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_is_nothing_but_post(api: Api, method: str) -> None:
    answer = await api.ask(method, "/mcp", headers=ACCEPT)
    assert (answer.status, answer.code, answer.headers["Allow"]) == (
        405,
        "method_not_allowed",
        "POST",
    )


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"7", b'{"jsonrpc": "2.0"}', b"\xff\xfe", b"[" * 100_000]
)
async def test_what_is_not_a_message_is_refused(api: Api, raw: bytes) -> None:
    answer = await api.ask("POST", "/mcp", raw=raw, headers=ACCEPT)
    assert answer.status == 400


async def test_a_huge_message_is_refused(api: Api) -> None:
    message: dict[str, Any] = {**PING, "params": {"x": "x" * (4 * 1024 * 1024)}}
    assert (await api.ask("POST", "/mcp", message, headers=ACCEPT)).status == 413


async def test_the_list_of_routes_tells_it(api: Api) -> None:
    assert (await api.get("/")).json["routes"]["/mcp"] == ["POST"]
