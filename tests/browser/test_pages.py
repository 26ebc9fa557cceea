"""Batches, policy, events and deliveries: what they show, and what can be done there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard
    from tests.http.hooks import Hooks

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_a_batch_shows_its_progress_and_is_cancelled(dash: Dashboard, agent: str) -> None:
    await dash.open("batches")
    tasks = [
        {"key": "a", "handler": "echo"},
        {"handler": "echo", "lane": HELD, "dependsOn": ["#a"]},
        {"handler": "echo", "lane": HELD},
    ]
    made = (await dash.api.post("/tasks/batch", {"agentId": agent, "tasks": tasks})).json
    row = dash.row(agent)
    await expect(row).to_contain_text("1 of 3 ended")
    await row.get_by_role("link").first.click()
    await expect(dash.main.locator(".crumbs")).to_contain_text(made["batchId"])
    await expect(dash.main.locator(".graph a")).to_have_count(3)
    await expect(dash.main.locator(".graph path.edge")).to_have_count(1)
    await dash.press("Cancel the rest…")
    await dash.confirm("Cancel 2 tasks")
    await dash.told("2 tasks cancelled")
    await dash.sees("3 of 3 ended, 2 cancelled")
    await dash.open("batches")
    await expect(dash.row(agent)).to_contain_text("3 of 3 ended, 2 cancelled")
    await expect(dash.row(agent).locator(".parts .s-done")).to_have_count(1)
    await expect(dash.row(agent).locator(".parts .s-cancelled")).to_have_count(1)


async def test_a_wrong_policy_is_refused_with_all_that_is_wrong(dash: Dashboard) -> None:
    before = (await dash.api.get("/policy")).json["version"]
    dash.expect_fault("400")
    await dash.open("policy")
    await dash.press("Edit…")
    box = dash.page.locator("dialog")
    text = box.get_by_label("Policy document")
    await text.fill('{"lanes": {"main": {"maxInflight": -1}}, "leases": {"ttlMs": "long"}}')
    await box.get_by_role("button", name="Apply").click()
    await expect(box.get_by_role("alert")).to_contain_text("lanes.main.maxInflight")
    await expect(box.get_by_role("alert")).to_contain_text("leases.ttlMs")
    await text.fill('{"lanes": ')
    await box.get_by_role("button", name="Check").click()
    await expect(box.get_by_role("alert")).to_contain_text("This is not JSON")
    assert (await dash.api.get("/policy")).json["version"] == before


async def test_a_policy_is_changed_compared_and_brought_back(dash: Dashboard) -> None:
    old = (await dash.api.get("/policy")).json
    await dash.open("policy")
    await dash.press("Edit…")
    box = dash.page.locator("dialog")
    text = box.get_by_label("Policy document")
    whole = await text.input_value()
    await text.fill(whole.replace('"workerCount": 0', '"workerCount": 50'))
    await box.get_by_role("button", name="Check").click()
    await expect(box.locator(".diff")).to_contain_text("workerCount")
    await box.get_by_label("Note").fill("less at once")
    await box.get_by_role("button", name="Apply").click()
    version = old["version"] + 1
    await dash.told(f"Version {version} is in force")
    await dash.sees("less at once")
    await dash.press(f"Differences of version {version}")
    await expect(dash.page.locator("dialog .diff .to").last).to_have_text("50")
    await dash.page.keyboard.press("Escape")
    await dash.press(f"Restore version {old['version']}")
    await dash.confirm(f"Restore version {old['version']}")
    await dash.told(f"Version {version + 1} is in force")
    assert (await dash.api.get("/policy")).json["policy"] == old["policy"]


async def test_events_come_as_they_happen_and_are_filtered(dash: Dashboard, agent: str) -> None:
    await dash.open("events")
    task_id = await dash.api.submit(handler="echo", agentId=agent)
    line = dash.main.locator(".tail li").filter(has=dash.page.locator(f"a[title='{task_id}']"))
    await expect(line.filter(has_text="task.completed")).to_have_count(1)
    await dash.page.get_by_label("Agent").fill(agent)
    await dash.page.get_by_label("Agent").press("Enter")
    await dash.page.get_by_label("Type").select_option("task.started")
    await expect(dash.main.locator(".tail li")).to_have_count(1)
    await expect(line).to_contain_text("task.started")
    await dash.press("Pause")
    await dash.api.end_of(await dash.api.submit(handler="echo", agentId=agent))
    await expect(dash.main.locator(".tail li")).to_have_count(1)
    await dash.press("Resume")
    await expect(dash.main.locator(".tail li")).to_have_count(2)


async def test_deliveries_are_listed_and_sent_again(
    dash: Dashboard, agent: str, hooks: Hooks
) -> None:
    hook = hooks.new()
    await dash.open("deliveries")
    task_id = await dash.api.submit(handler="echo", agentId=agent, callbackUrl=hook.url)
    row = dash.main.locator("[data-row]").filter(has=dash.page.locator(f"a[title='{task_id}']"))
    await expect(row).to_contain_text("delivered")
    await row.get_by_role("button", name=re.compile("^Send .* again$")).click()
    await dash.told("It will be sent again")
    assert [one.event for one in await hook.until(2)] == ["task.completed"] * 2
    for state in ("Due", "Given up", "Delivered"):
        await dash.main.get_by_role("button", name=state).click()
        await expect(dash.main.locator(".loading")).to_have_count(0)
    await expect(row).to_contain_text("delivered")
