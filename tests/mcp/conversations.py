"""What an agent says to an MCP server, with the official SDK's client, over either transport.

The client opens in one of two ways: with the handshake (`legacy`), or with a description in every
request, as the protocol has it since 2026-07 (`modern`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult

from tests.cli.processes import FAIRLANE, environment

MODES = {"legacy": "legacy", "modern": "2026-07-28"}

either_way = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@asynccontextmanager
async def over_stdio(*flags: str, folder: Path, mode: str) -> AsyncIterator[Client]:
    """A `fairlane mcp` of its own process, started by the client."""
    command, *words = FAIRLANE
    parameters = StdioServerParameters(
        command=command, args=[*words, "mcp", *flags], env=environment(), cwd=folder
    )
    with (folder / "stderr").open("w") as stderr:
        async with talking(Client(stdio_client(parameters, errlog=stderr), mode=mode)) as client:
            yield client
    assert (folder / "stderr").read_text("utf-8") == ""


@asynccontextmanager
async def over_http(url: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with talking(Client(f"{url}/mcp", mode=mode)) as client:
        yield client


@asynccontextmanager
async def talking(client: Client) -> AsyncIterator[Client]:
    """The client wraps what goes wrong in a test; here it is what it was."""
    problem: Exception | None = None
    async with client:
        try:
            yield client
        except Exception as error:  # noqa: BLE001 - raised again when the client has ended
            problem = error
    if problem is not None:
        raise problem


async def told(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool that works."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return _shape(result)


async def refused(client: Client, tool: str, /, **arguments: Any) -> Mapping[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return _shape(result)


def _shape(result: CallToolResult) -> dict[str, Any]:
    """The JSON of the text, which the structured content has to agree with."""
    (content,) = result.content
    assert content.type == "text"
    shape: dict[str, Any] = json.loads(content.text)
    assert result.structured_content == shape
    return shape


async def work(client: Client) -> dict[str, Any]:
    """Hand in a task, take it, do it, and look what became of it."""
    task = await told(client, "submit", handler="summarise", agentId="a1", params={"n": 1})
    why = await told(client, "why", taskId=task["taskId"])
    assert (why["ready"], why["gate"], why["position"]) == (True, None, 1)
    assert "summarise" in why["reason"]
    plan = await told(client, "plan", lane="main")
    assert [one["id"] for one in plan["leases"]] == [task["taskId"]]
    (lease,) = (await told(client, "lease", worker="agent", lanes=["main"]))["leases"]
    assert lease["taskId"] == task["taskId"]
    assert lease["task"]["params"] == {"n": 1}
    await told(client, "start", leaseId=lease["leaseId"])
    await told(client, "renew", leaseId=lease["leaseId"], progress={"half": True}, output="so far")
    await told(client, "complete", leaseId=lease["leaseId"], result={"sum": 2})
    done = await told(client, "wait", taskId=task["taskId"])
    assert (done["state"], done["result"]) == ("done", {"sum": 2})
    assert await told(client, "show", taskId=task["taskId"]) == done
    assert (await told(client, "output", taskId=task["taskId"]))["text"] == "so far"
    assert (await refused(client, "complete", leaseId="lse_1_77"))["code"] == "lease_lost"
    return done


async def read_only(client: Client) -> set[str]:
    """A tool that writes is not offered, is refused all the same, and does nothing."""
    tools = (await client.list_tools()).tools
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
    assert {"show", "tasks", "handlers"} <= {tool.name for tool in tools}
    error = await refused(client, "submit", handler="echo")
    assert error["code"] == "forbidden"
    assert error["details"] == {"tool": "submit", "scope": "submit"}
    assert (await told(client, "stats"))["metrics"]["tasksSubmitted"] == 0
    return {tool.name for tool in tools}


async def mistakes(client: Client) -> None:
    """Whatever is wrong with the arguments, the answer names it."""
    said = {
        "missing required field 'taskId'": await refused(client, "show"),
        "unknown field 'task'; did you mean taskId?": await refused(client, "show", task="x"),
        "field 'limit' must be a whole number": await refused(client, "tasks", limit="many"),
        "field 'state[0]' must be text": await refused(client, "tasks", state=[1]),
        "'asleep' is not a state": await refused(client, "tasks", state=["asleep"]),
        "field 'waitMs' must be": await refused(client, "wait", taskId="tsk_1", waitMs=60_001),
        "task not found": await refused(client, "show", taskId="tsk_1"),
    }
    for words, error in said.items():
        assert error["error"].startswith(words), error
    assert (await refused(client, "show", taskId="tsk_1/../../x"))["code"] == "not_found"
