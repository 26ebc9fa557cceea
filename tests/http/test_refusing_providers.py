"""A browser instance or an agent server that answers 429 closes the resource for all tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.tab_instance import Behaviour, TabInstance
from tests.http.api import Api, eventually
from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE = {"limits": [{"unit": "requests", "amount": 1000, "perMs": 1000}]}
POOL = {"limits": [{"unit": "mb", "amount": 1000}]}
POLICY = {"resources": {"site": RATE, "model": RATE, "other": RATE, "memory": POOL}}
HOUR_SECONDS = 3600


class Ground:
    def __init__(self, api: Api, instance: TabInstance, agent: ChatAgent) -> None:
        self.api = api
        self.instance = instance
        self.agent = agent

    async def closed(self, name: str) -> dict[str, Any]:
        async def look() -> Any:
            shown = (await self.api.get(f"/resources/{name}")).json
            return shown if shown["state"] == "closed" else None

        found: dict[str, Any] = await eventually(look)
        return found

    async def waiting(self, task_id: str) -> dict[str, Any]:
        async def look() -> Any:
            task = await self.api.show(task_id)
            return task if task.get("gate") == "resource" else None

        found: dict[str, Any] = await eventually(look)
        return found


@pytest_asyncio.fixture(loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder = tmp_path_factory.mktemp("refusing")
    async with (
        TabInstance(["tab", "second", "third"]) as instance,
        ChatAgent() as agent,
        serving(
            folder,
            f"sqlite:///{folder / 'f.db'}",
            policy=POLICY,
            instances=[instance.url],
            environment={"FAIRLANE_AGENT": agent.url},
        ) as server,
    ):
        yield Ground(server.api, instance, agent)


def action(needs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    request = {"agentId": "ada", "action": "click", "tabId": "tab", "ref": "e1", "needs": needs}
    return {**request, "retryPolicy": {"maxRetries": 0}, **fields}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_browser_instance_that_refuses_closes_the_only_rate(
    ground: Ground, status: int
) -> None:
    headers = {"Retry-After": str(HOUR_SECONDS)}
    ground.instance.actions = Behaviour(status=status, headers=headers, times=1)
    needs = {"site": {"requests": 1}, "memory": {"mb": 1}}
    first = await ground.api.submit(**action(needs))
    shown = await ground.closed("site")
    assert "closedUntil" in shown
    task = await ground.waiting(first)
    assert (task["state"], task["attempts"]) == ("queued", 0)
    second = await ground.api.submit(**action({"site": {"requests": 1}}, tabId="second"))
    await ground.waiting(second)
    free = await ground.api.submit(**action({}, tabId="third"))
    assert (await ground.api.end_of(free))["state"] == "done"
    assert (await ground.api.post("/resources/site/open")).status == 200
    states = [(task["state"], task.get("error")) for task in await ground.api.ended(first, second)]
    assert states == [("done", None), ("done", None)]


async def test_an_agent_server_that_refuses_closes_the_named_quota(ground: Ground) -> None:
    headers = {"Retry-After": str(HOUR_SECONDS)}
    ground.agent.script = Script(status=429, body="slow down", headers=headers, times=1)
    needs = {"model": {"requests": 1}, "other": {"requests": 1}}
    task_id = await ground.api.submit(
        agentId="ada", instruction="Go", needs=needs, quota="model", retryPolicy={"maxRetries": 0}
    )
    await ground.closed("model")
    assert (await ground.waiting(task_id))["attempts"] == 0
    assert (await ground.api.get("/resources/other")).json["state"] == "open"
    await ground.api.post("/resources/model/open")
    assert (await ground.api.end_of(task_id))["state"] == "done"
    assert len(ground.agent.requests) == 2


async def test_which_of_two_rates_refused_is_not_guessed(ground: Ground) -> None:
    headers = {"Retry-After": str(HOUR_SECONDS)}
    ground.instance.actions = Behaviour(status=429, headers=headers, times=1)
    needs = {"site": {"requests": 1}, "other": {"requests": 1}}
    task = await ground.api.end_of(await ground.api.submit(**action(needs)))
    assert (task["state"], task["attempts"]) == ("failed", 1)
    for name in ("site", "other"):
        assert (await ground.api.get(f"/resources/{name}")).json["state"] == "open"
