"""Cron: jobs with their next runs and a strip of past ones, run now, switch, edit with preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def new_job(dash: Dashboard, name: str) -> dict[str, Any]:
    schedule = {"kind": "cron", "expr": "30 4 * * *", "tz": "Europe/Berlin"}
    body = {"name": name, "schedule": schedule, "task": {"handler": "echo"}}
    answer = await dash.api.post("/cron/jobs", body)
    assert answer.status == 201, answer
    job: dict[str, Any] = answer.json
    return job


async def test_a_job_runs_now_and_its_run_stands_in_the_strip(dash: Dashboard, agent: str) -> None:
    job = await new_job(dash, f"nightly-{agent}")
    await dash.open("cron")
    row = dash.row(job["name"])
    await expect(row).to_contain_text("30 4 * * * (Europe/Berlin)")
    await expect(row).to_contain_text("none yet")
    await dash.press(f"Run {job['name']} now")
    await dash.told("runs now")
    await expect(row.locator(".strip .r-ok")).to_have_count(1)
    await row.get_by_role("link", name=job["name"]).click()
    await expect(dash.main.locator("tbody tr")).to_have_count(1)
    await expect(dash.main.locator("tbody tr")).to_contain_text("manual")
    await expect(dash.main.locator(".next li")).to_have_count(5)


async def test_a_job_is_switched_off_and_on(dash: Dashboard, agent: str) -> None:
    job = await new_job(dash, f"switch-{agent}")
    await dash.open("cron")
    await dash.press(f"Switch {job['name']} off")
    await expect(dash.row(job["name"]).locator(".flag")).to_contain_text("off")
    await dash.press(f"Switch {job['name']} on")
    await expect(dash.row(job["name"]).locator(".flag")).to_have_count(0)


async def test_a_job_is_edited_with_a_preview_and_a_wrong_one_is_refused(
    dash: Dashboard, agent: str
) -> None:
    job = await new_job(dash, f"edit-{agent}")
    await dash.open("cron")
    await dash.press(f"Edit {job['name']}")
    box = dash.page.locator("dialog")
    await expect(box.locator(".next li")).to_have_count(5)
    await expect(box.locator(".next li").first).to_contain_text("04:30:00")
    dash.expect_fault("400")
    await box.get_by_label("Expression", exact=True).fill("61 * * * *")
    await expect(box.get_by_role("alert")).to_be_visible()
    await box.get_by_role("button", name="Save").click()
    await expect(box.get_by_role("alert")).to_contain_text("61 * * * *")
    await box.get_by_label("Expression", exact=True).fill("15 6 * * *")
    await expect(box.locator(".next li").first).to_contain_text("06:15:00")
    await box.get_by_role("button", name="Save").click()
    await expect(dash.row(job["name"])).to_contain_text("15 6 * * * (Europe/Berlin)")
    assert (await dash.api.get(f"/cron/jobs/{job['id']}")).json["schedule"]["expr"] == "15 6 * * *"


async def test_a_job_is_made_and_deleted(dash: Dashboard, agent: str) -> None:
    await dash.open("cron")
    await dash.press("New job…")
    box = dash.page.locator("dialog")
    await box.get_by_label("Name").fill(f"made-{agent}")
    await box.get_by_label("It runs").select_option("every")
    await box.get_by_label("Seconds").fill("3600")
    await expect(box.locator(".next li")).to_have_count(5)
    await box.get_by_label("Task, as for POST /tasks").fill('{"handler": "echo"')
    await box.get_by_role("button", name="Create").click()
    await expect(box.get_by_role("alert")).to_contain_text("The task is not JSON")
    await box.get_by_label("Task, as for POST /tasks").fill('{"handler": "echo"}')
    await box.get_by_role("button", name="Create").click()
    await dash.row(f"made-{agent}").get_by_role("link").first.click()
    await dash.press("Delete…")
    await dash.confirm("Delete the job")
    await dash.told("Deleted")
    await expect(dash.main.locator("[data-row]").filter(has_text=f"made-{agent}")).to_have_count(0)
