"""Which capabilities a node offers, and which targets its executors may reach."""

from __future__ import annotations

import pytest

from fairlane.config import InstanceSetting
from fairlane.core.errors import InvalidSettings, TargetRefused
from fairlane.embedded.app import Fairlane

AGENT = InstanceSetting("http://127.0.0.1:9105")


async def routes_with(agent: InstanceSetting | None) -> set[str]:
    async with Fairlane("sqlite://:memory:", agent=agent) as app:
        return set(app._executors())


async def test_instructions_are_run_only_where_there_is_an_agent() -> None:
    assert "instruction" not in await routes_with(None)
    assert "instruction" in await routes_with(AGENT)


async def test_only_executors_may_reach_the_agent_of_the_operator() -> None:
    async with Fairlane("sqlite://:memory:", agent=AGENT) as app:
        app._executor_guard.check("http://127.0.0.1:9105/chat")
        with pytest.raises(TargetRefused):
            app._executor_guard.check("http://127.0.0.1:9106/chat")
        with pytest.raises(TargetRefused):
            app.guard.check("http://127.0.0.1:9105/chat")


def test_an_agent_without_a_usable_address_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"^agent: "):
        Fairlane("sqlite://:memory:", agent=InstanceSetting("http://user:pw@agent"))
