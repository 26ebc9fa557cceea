"""The chart of runs and waits, of a task and of a batch, and the same as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_a_task_and_a_batch_are_drawn_over_time(dash: Dashboard, agent: str) -> None:
    tasks = [{"key": "a", "handler": "echo"}, {"handler": "echo", "dependsOn": ["#a"]}]
    batch = (await dash.api.post("/tasks/batch", {"agentId": agent, "tasks": tasks})).json
    last = batch["tasks"][1]["taskId"]
    await dash.open(f"tasks/{last}")
    chart = dash.main.get_by_role("figure", name="Timeline")
    await expect(chart.locator(".line-of.self rect.done")).to_have_count(1)
    await expect(chart.locator(".line-of")).to_have_count(2)  # with what it waited for
    await expect(chart).to_contain_text("dependency")
    await chart.get_by_text("The same as a table").click()
    rows = chart.get_by_role("row")
    await expect(rows.filter(has_text="waits for its dependencies").first).to_be_visible()
    await expect(rows.filter(has_text="attempt 1 completed").first).to_be_visible()
    assert await dash.unreadable() == []

    await dash.open(f"batches/{batch['batchId']}")
    await expect(chart.locator("rect.done")).to_have_count(2)
    await chart.get_by_role("link", name="echo").last.click()
    await expect(dash.main.locator(".crumbs")).to_contain_text(last)
