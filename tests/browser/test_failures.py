"""Failures by error, and the filters that find tasks and act on all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def failed(dash: Dashboard, agent: str, error: str) -> str:
    task = await dash.api.submit(
        handler=agent, agentId=agent, params={"city": "Oslo"}, retryPolicy={"maxRetries": 0}
    )
    asked = {"worker": agent, "handlers": [agent], "start": True}
    (lease,) = (await dash.api.post("/leases", asked)).json["leases"]
    said = {"token": lease["token"], "error": error, "retryable": False}
    assert (await dash.api.post(f"/leases/{lease['leaseId']}/fail", said)).status == 200
    return task


async def test_failures_are_grouped_found_and_retried(dash: Dashboard, agent: str) -> None:
    ids = [await failed(dash, agent, f"{agent}: line {number} is bad") for number in (3, 4)]
    await failed(dash, agent, f"{agent}: no such file")
    await dash.open("failures")
    row = dash.row("line <number> is bad")
    await expect(row).to_contain_text(f"{agent} 2")
    assert await dash.unreadable() == []
    await row.get_by_role("link", name="Tasks", exact=True).click()
    await expect(dash.main.locator("[data-row]")).to_have_count(2)

    await dash.open("failures?since=1h")
    await dash.press(re.compile("^Retry"), within=row)
    await dash.confirm("Retry 2 tasks")
    await dash.told("2 tasks queued again")
    assert [(await dash.api.show(one))["state"] for one in ids] == ["queued", "queued"]


async def test_tasks_are_found_by_handler_error_time_and_value(dash: Dashboard, agent: str) -> None:
    first = await failed(dash, agent, "one of a kind")
    second = await failed(dash, agent, "another")
    await dash.open(f"tasks?handler={agent}")
    rows = dash.main.locator("[data-row]")
    await expect(rows).to_have_count(2)
    await dash.page.get_by_label("Order").select_option("oldest")
    await expect(rows.first).to_contain_text(first)
    await dash.page.get_by_label("params.NAME=VALUE").fill("params.city=Oslo")
    await dash.page.get_by_label("Since").fill("00:00")
    await expect(dash.page).to_have_url(re.compile("since=00"))
    await dash.page.get_by_label("Error contains").fill("of a kind")
    await expect(rows).to_have_count(1)
    await dash.page.get_by_role("button", name="failed").click()
    cancel = dash.page.get_by_role("button", name="Cancel all matches")
    await expect(cancel).to_be_disabled()  # nothing that has failed can be cancelled
    await dash.press("Retry all matches…")
    await dash.confirm("Retry 1 task")
    await dash.told("1 task queued again")
    assert (await dash.api.show(first))["state"] == "queued"
    assert (await dash.api.show(second))["state"] == "failed"
