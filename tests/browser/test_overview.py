"""The overview: lanes, fairness, what went wrong, and all of it without a reload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.browser.conftest import Open
    from tests.browser.dashboard import Dashboard
    from tests.http.server import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_a_task_submitted_elsewhere_shows_without_a_reload(
    dash: Dashboard, agent: str
) -> None:
    await dash.open("overview")
    name = dash.page.get_by_text(HELD, exact=True)  # other lanes may say that tasks are held
    lane = dash.main.locator(".lanes li").filter(has=name)
    before = await lane.locator(".numbers small").text_content()
    await dash.page.evaluate("window.same = true")
    await dash.api.submit(handler="echo", agentId=agent, lane=HELD)
    await expect(lane.locator(".numbers small")).not_to_have_text(before or "")
    await expect(lane.locator(".numbers small")).to_contain_text("waiting")
    assert await dash.page.evaluate("window.same")


async def test_lanes_say_how_full_they_are(dash: Dashboard, agent: str) -> None:
    task_id = await dash.api.submit(
        handler="sleep", agentId=agent, lane="two", params={"ms": 600_000}
    )
    await dash.open("overview")
    lane = dash.main.locator(".lanes li").filter(has_text="two")
    await expect(lane.locator(".numbers b")).to_have_text("1 / 2")
    meter = lane.get_by_role("meter")
    assert await meter.get_attribute("aria-valuemax") == "2"
    await expect(meter).to_have_attribute("aria-valuenow", "1")
    mine = dash.main.locator(".agents li").filter(has_text=agent)
    await expect(mine).to_contain_text("1 run")
    await expect(mine.locator(".trace .area")).to_have_attribute("d", re.compile("^M.*Z$"))
    await expect(mine.locator(".trace .due")).to_have_attribute("d", re.compile("^M"))
    await dash.api.cancel(task_id)
    await expect(lane.locator(".numbers b")).to_have_text("0 / 2")


async def test_a_lane_is_paused_and_resumed(dash: Dashboard) -> None:
    await dash.open("overview")
    await dash.press("Pause lane team")
    await dash.told("Lane team is paused")
    lane = dash.main.locator(".lanes li").filter(has_text="team")
    await expect(lane.locator(".flag")).to_have_text("paused")
    await dash.press("Resume lane team")
    await expect(lane.locator(".flag")).to_have_count(0)


async def test_what_failed_stands_there_with_its_error(dash: Dashboard, agent: str) -> None:
    broken = {"params": {"ms": "no number"}, "retryPolicy": {"maxRetries": 0}}
    task_id = await dash.api.submit(handler="sleep", agentId=agent, **broken)
    await dash.api.until(task_id, "failed", "parked")
    await dash.open("overview")
    troubles = dash.main.get_by_role("region", name="Failed and parked")
    mine = troubles.locator("li").filter(has=dash.page.locator(f"a[title='{task_id}']"))
    await expect(mine.locator(".error")).to_contain_text("params.ms must be a whole number")
    await mine.get_by_role("link").click()
    await expect(dash.main.locator(".crumbs")).to_contain_text(task_id)


async def test_a_new_server_teaches_how_to_begin(fresh: Server, window: Open) -> None:
    dash = await window(fresh)
    await dash.open("overview")
    await dash.sees("No task has been submitted yet")
    await dash.sees(f"curl -X POST {fresh.url}/tasks")
    await fresh.api.submit(handler="echo", agentId="me")
    await dash.sees_not("No task has been submitted yet")
    await dash.sees("History starts with the server")
    for name in ("5m", "1h", "24h"):  # even the first step of a day is drawn
        await dash.press(name)
        drawn = dash.main.locator(".plot .line").first
        await expect(drawn).to_have_attribute("d", re.compile("^M.+L600"))
    await expect(dash.main.locator(".tile").filter(has_text="Done")).to_contain_text(
        re.compile(r"Done\s*1")
    )
