"""Every tool, asked by everybody: the same tokens, scopes and agents as the routes they call."""

from __future__ import annotations

import re
import types
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import msgspec
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fairlane.mcp.calls import Calls
from fairlane.mcp.schemas import arguments
from fairlane.mcp.table import TOOLS
from fairlane.mcp.tool import Tool
from fairlane.schema.operation import Operation
from tests.fakes.waiting import WAIT_SECONDS
from tests.http.access import (
    ALICE,
    SECRET,
    Callers,
    World,
    everything,
    guarded,
    routes,
    world,
)
from tests.mcp.cases import CASES
from tests.mcp.conversations import over_stdio, refused, talking, told

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUTES = routes()
ALONE = {"start": {"leaseId": "{lease}"}}
each = pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def callers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callers]:
    folder = tmp_path_factory.mktemp("guarded")
    async with guarded(folder, f"sqlite:///{folder / 'fairlane.db'}") as callers:
        yield callers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alices(callers: Callers) -> World:
    return await world(callers)


@asynccontextmanager
async def agent(callers: Callers, token: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=WAIT_SECONDS) as http:
        transport = streamable_http_client(f"{callers.url}/mcp", http_client=http)
        async with talking(Client(transport)) as client:
            yield client


def given(tool: Tool, names: Mapping[str, str]) -> dict[str, Any]:
    """What a tool is told in the other tests, about Alice's things."""
    found = CASES[tool.name].arguments if tool.name in CASES else ALONE[tool.name]
    text = msgspec.json.encode(found).decode()
    text = text.replace("chat:7", names["key"]).replace("q-7", names["entry"])
    text = re.sub(r"{(\w+)}", lambda match: names.get(match[1], match[0]), text)
    return msgspec.json.decode(text, type=dict[str, Any])


async def called(tool: Tool, names: Mapping[str, str]) -> set[tuple[str, str]]:
    """The routes of the operations that a tool performs."""
    found: set[tuple[str, str]] = set()

    async def perform(operation: Operation[Any, Any], _: Any) -> Any:
        found.add((operation.method, operation.path))
        return types.SimpleNamespace(state="done")

    await tool.verb(Calls(perform), **arguments(given(tool, names), tool.arguments))
    return found


@each
async def test_a_tool_needs_the_scope_of_the_route_it_calls(alices: World, tool: Tool) -> None:
    found = await called(tool, alices.names)
    assert found
    assert {ROUTES[key].scope for key in found} == {tool.scope}


@pytest.mark.parametrize("token", [None, "x", "wrong", "revoked", "expired"])
async def test_without_a_valid_token_there_is_no_server(
    callers: Callers, token: str | None
) -> None:
    made = await getattr(callers, token)() if token and len(token) > 1 else token
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepted = {"Accept": "application/json, text/event-stream"}
    answer = await callers.ask("POST", "/mcp", asked, token=made, headers=accepted)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_no_tool_works_without_its_scope(callers: Callers, alices: World) -> None:
    before = await everything(callers)
    found = {}
    for scope in sorted({str(tool.scope) for tool in TOOLS.values()}):
        token = await callers.without(scope)
        async with agent(callers, token) as client:
            for tool in TOOLS.values():
                if tool.scope == scope:
                    result = await client.call_tool(tool.name, given(tool, alices.names))
                    found[tool.name] = result.structured_content
                    assert result.is_error, tool.name
    assert {name: (shape or {})["code"] for name, shape in found.items()} == dict.fromkeys(
        TOOLS, "forbidden"
    )
    after = await everything(callers)
    assert {**after, "/tokens": 0} == {**before, "/tokens": 0}


async def test_no_tool_tells_or_touches_what_is_another_agents(
    callers: Callers, alices: World
) -> None:
    async with agent(callers, await callers.bob()) as client:
        for tool in TOOLS.values():
            before = await everything(callers)
            said = given(tool, alices.names)
            result = await client.call_tool(tool.name, said)
            text = msgspec.json.encode(result.structured_content).decode()
            assert SECRET not in text, tool.name
            asked = msgspec.json.encode(said).decode()
            assert [one for one in alices.own if one in text and one not in asked] == [], tool.name
            after = await everything(callers)
            assert _of(ALICE, after) == _of(ALICE, before), tool.name


def _of(owner: str, shapes: dict[str, Any]) -> list[Any]:
    return [
        {name: value for name, value in one.items() if name != "notice"}  # tells of workers
        for shape in shapes.values()
        for items in shape.values()
        if isinstance(items, list)
        for one in items
        if one.get("agentId") == owner
    ]


async def test_a_tool_works_with_its_scope(callers: Callers) -> None:
    token = await callers.of(ALICE, "read", "submit", "cancel", "lease", "operate")
    names = (await world(callers)).names
    async with agent(callers, token) as client:
        for name in ("show", "why", "tasks", "batch", "sessions_show", "queue_show", "renew"):
            result = await client.call_tool(name, given(TOOLS[name], names))
            assert not result.is_error, (name, result.structured_content)
    async with agent(callers, callers.root) as client:
        for name in ("plan", "policy_versions", "lanes", "stats", "cron_show"):
            result = await client.call_tool(name, given(TOOLS[name], names))
            assert not result.is_error, (name, result.structured_content)


async def test_a_page_with_a_login_cannot_call_tools_by_a_form(callers: Callers) -> None:
    """A cookie alone changes nothing: what is sent by POST needs a header that no form has."""
    login = await callers.ask("POST", "/login", {"token": callers.root})
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{callers.url}/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
            headers={"Cookie": cookie, "Accept": "application/json, text/event-stream"},
        ) as answer,
    ):
        assert answer.status == 403


async def test_a_server_of_its_own_process_proves_who_it_is(
    callers: Callers, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(await callers.of(None, "read"))
    file.chmod(0o600)
    flags = ("--url", callers.url, "--allow-writes")
    known = over_stdio(*flags, "--token-file", str(file), folder=tmp_path, mode="legacy")
    async with known as client:
        await told(client, "stats")
        assert (await refused(client, "submit", handler="n"))["details"] == {"scope": "submit"}
    async with over_stdio(*flags, folder=tmp_path, mode="legacy") as client:
        assert (await refused(client, "stats"))["code"] == "unauthenticated"
