"""The pages of operators: tokens, audit, templates, queue, handlers, limits in place, calendar."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Open
    from tests.browser.dashboard import Dashboard
    from tests.http.server import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_limits_are_changed_where_they_are_shown(fresh: Server, window: Open) -> None:
    dash = await window(fresh)
    await dash.open("overview")
    await dash.press("Change the limits of lane main")
    box = dash.page.get_by_role("dialog")
    await box.get_by_label("Tasks at once", exact=True).fill("many")
    await dash.press("Apply")
    await expect(box).to_contain_text("must be a number")
    await box.get_by_label("Tasks at once", exact=True).fill("7")
    await box.get_by_label("Note").fill("fewer at night")
    await dash.press("Apply")
    await dash.told("is in force")
    await expect(dash.main.get_by_role("button", name="lane main").first).to_contain_text("/ 7")
    await dash.open("policy")
    await dash.sees("fewer at night")
    await dash.press("Set a share…")
    await box.get_by_label("Agent").fill("ada")
    await dash.press("Next")
    await box.get_by_label("Weight").fill("2")
    await dash.press("Apply")
    await expect(dash.row("ada")).to_contain_text("2")
    policy = (await fresh.api.get("/policy")).json["policy"]
    assert policy["lanes"]["main"]["maxInflight"] == 7
    assert policy["agents"]["ada"]["weight"] == 2


async def test_the_back_button_closes_a_dialog_and_stays_on_the_page(dash: Dashboard) -> None:
    await dash.open("overview")
    await dash.open("policy")
    await dash.press("Edit…")
    await expect(dash.page.get_by_role("dialog")).to_be_visible()
    await dash.page.go_back()
    await expect(dash.page.get_by_role("dialog")).to_have_count(0)
    await expect(dash.main.locator("h1")).to_have_text("Policy")
    await dash.press("Edit…")
    await dash.page.keyboard.press("Escape")
    await expect(dash.page.get_by_role("dialog")).to_have_count(0)
    # The dialog leaves the history a moment after the screen.
    await dash.page.wait_for_function("!history.state?.dialog")
    await dash.page.go_back()
    await expect(dash.main.locator("h1")).to_have_text("Overview")
    await dash.open("nonsense")
    await dash.sees("The dashboard has no such page")


async def test_queue_and_templates_are_filled_and_used(dash: Dashboard, agent: str) -> None:
    box = dash.page.get_by_role("dialog")
    await dash.open("queue")
    await dash.press("Add entry…")
    await box.get_by_label("Workflow").fill(agent)
    await dash.press("Add", within=box)
    await expect(dash.row(agent)).to_contain_text("pending")
    await dash.press("Ready")
    await expect(dash.page).to_have_url(re.compile("#/queue.status=ready"))
    await dash.open("templates")
    await dash.press("New template…")
    parameters = [{"name": "who", "required": True}]
    made = {"name": agent, "instruction": "Greet {{who}}", "parameters": parameters}
    await box.get_by_label("Template").fill(json.dumps(made))
    await dash.press("Create")
    await dash.press(f"Use {agent}")
    await box.get_by_label("who").fill("Ada")
    await dash.press("Submit", within=box)
    await dash.told("Submitted tsk_")
    await expect(dash.row(agent)).to_contain_text("1")
    await dash.press(f"Delete {agent}")
    await dash.confirm("Delete the template")
    await dash.told("Deleted")


async def test_a_token_is_made_shown_once_and_revoked(fresh: Server, window: Open) -> None:
    dash = await window(fresh)
    dash.expect_fault("401")
    box = dash.page.get_by_role("dialog")
    await dash.open("tokens")
    await dash.press("New token…")
    await box.get_by_label("Name").fill("boss")
    for scope in ("operate", "admin", "lease", "approve"):
        await box.get_by_label(scope).check()
    await dash.press("Create")
    token = await box.locator("pre").text_content()
    await dash.press("Close")
    await dash.page.get_by_label("Token", exact=True).fill(token or "")
    await dash.press("Log in")
    await dash.open("tokens")
    await expect(dash.row("boss")).to_contain_text("valid")
    await dash.press("Revoke boss")
    await dash.confirm("Revoke the token")
    await expect(dash.page.get_by_label("Token", exact=True)).to_be_visible()


async def test_handlers_show_failures_and_the_time_of_agents(dash: Dashboard, agent: str) -> None:
    task = await dash.api.submit(handler=agent, agentId=agent, retryPolicy={"maxRetries": 0})
    asked = {"worker": agent, "handlers": [agent], "start": True}
    (lease,) = (await dash.api.post("/leases", asked)).json["leases"]
    said = {"token": lease["token"], "error": "broken"}
    await dash.api.post(f"/leases/{lease['leaseId']}/fail", said)
    await dash.open("handlers")
    row = dash.main.get_by_role("region", name="Handlers").locator("tr").filter(has_text=agent)
    await expect(row.last).to_contain_text("1 (100 %)")
    await dash.press("Last hour")
    await expect(dash.page).to_have_url(re.compile("window=1h"))
    await row.last.get_by_role("link", name="Failed tasks").click()
    await expect(dash.row(task)).to_be_visible()
    await dash.open("handlers")
    await (
        dash.main.get_by_role("region", name="Agents").get_by_role("link", name=agent).last.click()
    )
    await expect(dash.main.locator("h1")).to_have_text(f"Handlers of {agent}")


async def test_the_calendar_shows_the_next_days(dash: Dashboard, agent: str) -> None:
    daily = {"kind": "cron", "expr": "30 2 * * *", "tz": "UTC"}
    often = {"kind": "every", "everyMs": 60_000}
    for name, schedule in (("daily", daily), ("often", often)):
        body = {"name": f"{name}-{agent}", "schedule": schedule, "task": {"handler": "echo"}}
        assert (await dash.api.post("/cron/jobs", body)).status == 201
    await dash.open("cron")
    await dash.press("Calendar")
    await expect(dash.main.locator(".calendar > li")).to_have_count(7)
    runs = dash.main.locator(".calendar li li").filter(has_text=f"daily-{agent}")
    await expect(runs.nth(5)).to_be_visible()
    await expect(dash.main.locator(".often")).to_contain_text(f"often-{agent} every 1 min")
    await dash.page.reload()
    await expect(dash.main.locator(".calendar")).to_be_visible()
