"""The servers that an embedded scheduler sends work to, named by their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Fairlane, InstanceSetting
from tests.fakes.chat_agent import ChatAgent
from tests.fakes.tab_instance import TabInstance

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = "sqlite://:memory:"
TOKEN = "hush"


async def test_an_agent_is_named_by_its_url() -> None:
    async with ChatAgent() as agent, Fairlane(MEMORY, agent=agent.url) as app:
        task = await app.submit(instruction="Say a and b")
        await task.result(timeout=60)
        assert len(agent.requests) == 1


@pytest.mark.parametrize("name", [lambda url: url, lambda url: [url], lambda url: (f"{url}/",)])
async def test_instances_are_named_by_their_urls(name: Callable[[str], Any]) -> None:
    async with TabInstance(["t1"]) as instance:
        async with Fairlane(MEMORY, instances=name(instance.url)) as app:
            task = await app.submit(action="click", agent="a", tab="t1", ref="e1")
            await task.result(timeout=60)
        assert len(instance.seen("action")) == 1


@pytest.mark.parametrize(
    "name", [lambda url: InstanceSetting(url, TOKEN), lambda url: f"{url}#token=env:TAB_TOKEN"]
)
async def test_an_instance_with_a_token_is_given_it(
    name: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAB_TOKEN", TOKEN)
    async with (
        TabInstance(["t1"], TOKEN) as instance,
        Fairlane(MEMORY, instances=[name(instance.url)]) as app,
    ):
        task = await app.submit(action="click", agent="a", tab="t1", ref="e1")
        await task.result(timeout=60)
        assert instance.seen("action")[0].headers["authorization"] == f"Bearer {TOKEN}"
