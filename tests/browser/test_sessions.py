"""Sessions: running and waiting tasks, usage, stop and stopall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def busy(dash: Dashboard, key: str, agent: str) -> list[str]:
    """One that runs and two that wait for its turn."""
    asked = {"handler": "sleep", "agentId": agent, "sessionKey": key, "params": {"ms": 600_000}}
    ids = [await dash.api.submit(**asked) for _ in range(3)]
    await dash.api.until(ids[0], "running")
    return ids


async def test_a_session_is_listed_and_stopped(dash: Dashboard, agent: str) -> None:
    key = f"chat:{agent}"
    await dash.open("sessions")
    first, second, _ = await busy(dash, key, agent)
    row = dash.row(key)
    await expect(row).to_be_visible()
    await expect(row.locator("td").nth(2)).to_have_text("2")
    await dash.press(f"Stop the oldest run of {key}")
    await dash.confirm("Stop it")
    await dash.told("1 run stopped, 0 dropped")
    await dash.api.until(first, "cancelled")
    await dash.api.until(second, "running")
    await expect(row.locator("td").nth(2)).to_have_text("1")
    await dash.press(f"Stop all of {key}")
    await expect(dash.page.locator("dialog")).to_contain_text(
        "1 run will be cancelled and 1 waiting task dropped"
    )
    await dash.confirm("Stop all")
    await dash.told("1 run stopped, 1 dropped")
    await expect(
        dash.main.locator("[data-row]").filter(has_text=key).locator("td").nth(1)
    ).not_to_have_text("1")


async def test_a_session_shows_its_turns_its_line_and_its_usage(
    dash: Dashboard, agent: str
) -> None:
    key = f"chat:{agent}"
    first, second, third = await busy(dash, key, agent)
    await dash.open(f"sessions/{key}")
    await dash.sees("Running (1)")
    await dash.sees("Waiting (2)")
    await expect(dash.row("2.").locator(f"a[title='{third}']")).to_be_visible()
    answer = await dash.api.ask(
        "PUT", f"/sessions/{key}/usage", {"tokens": 900, "contextWindow": 1000}
    )
    assert answer.status == 200
    await dash.api.cancel(second)
    await dash.sees("90 % of the context: 900 of 1,000 tokens")
    await dash.open("sessions")
    await expect(dash.row(key)).to_contain_text("90 %")
    await dash.open(f"sessions/{key}")
    await dash.sees("Waiting (1)")
    await dash.press(f"Stop all of {key}")
    await dash.confirm("Stop all")
    await dash.sees("No task is running")
    await dash.api.until(first, "cancelled")


async def test_a_session_that_is_forgotten_says_how_to_begin_one(dash: Dashboard) -> None:
    dash.expect_fault("404")
    await dash.open("sessions/nobody")
    await dash.sees("The session is idle and no longer stored")
    await dash.sees("/sessions/nobody/messages")
