"""The list of tasks: filters, live rows, pages, and actions on many tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def held(dash: Dashboard, agent: str, count: int, **more: object) -> list[str]:
    return [
        await dash.api.submit(handler="echo", agentId=agent, lane=HELD, **more)
        for _ in range(count)
    ]


async def test_a_task_appears_by_itself_and_changes_by_itself(dash: Dashboard, agent: str) -> None:
    await dash.open(f"tasks?agentId={agent}")
    await dash.sees("No matching tasks")
    (task_id,) = await held(dash, agent, 1)
    await expect(dash.row(task_id)).to_contain_text("queued")
    await dash.api.cancel(task_id)
    await expect(dash.row(task_id)).to_contain_text("cancelled")


async def test_filters_stand_in_the_address_and_work_together(dash: Dashboard, agent: str) -> None:
    queued, cancelled = await held(dash, agent, 2)
    await dash.api.cancel(cancelled)
    done = await dash.api.submit(handler="echo", agentId=agent, sessionKey=f"chat:{agent}")
    await dash.api.end_of(done)
    await dash.open("tasks")
    await dash.page.get_by_label("Agent", exact=True).fill(agent)
    await expect(dash.main.locator("[data-row]")).to_have_count(3)
    await dash.main.get_by_role("button", name="queued").click()
    await expect(dash.main.locator("[data-row]")).to_have_count(1)
    await expect(dash.row(queued)).to_be_visible()
    assert dash.page.url.endswith(f"#/tasks?agentId={agent}&state=queued")
    await dash.page.reload()
    await expect(dash.main.locator("[data-row]")).to_have_count(1)
    await dash.press("Clear filters")
    await dash.page.get_by_label("Session", exact=True).fill(f"chat:{agent}")
    await expect(dash.main.locator("[data-row]")).to_have_count(1)
    await expect(dash.row(done)).to_be_visible()


async def test_lane_kind_and_text_filter_too(dash: Dashboard, agent: str) -> None:
    one, other = await held(dash, agent, 2)
    session = f"find.me-{agent}"
    named = await dash.api.submit(handler="echo", agentId=agent, lane=HELD, sessionKey=session)
    await dash.open(f"tasks?agentId={agent}&lane={HELD}&kind=handler")
    await expect(dash.main.locator("[data-row]")).to_have_count(3)
    await dash.page.get_by_label("Text in id").fill(session.upper())
    await expect(dash.main.locator("[data-row]")).to_have_count(1)
    await expect(dash.row(named)).to_be_visible()
    await dash.page.get_by_label("Text in id").fill(one)
    await expect(dash.row(one)).to_be_visible()
    await expect(dash.row(other)).to_have_count(0)
    await dash.page.get_by_label("Kind").select_option("action")
    await dash.sees("No matching tasks")


async def test_all_that_fit_are_cancelled_after_a_question_that_names_the_number(
    dash: Dashboard, agent: str
) -> None:
    ids = await held(dash, agent, 7)
    await dash.open(f"tasks?agentId={agent}")
    await dash.press("Cancel all matches…")
    question = dash.page.locator("dialog")
    await expect(question).to_contain_text("Cancel 7 tasks?")
    await dash.confirm("Keep as it is")
    assert (await dash.api.show(ids[0]))["state"] == "queued"
    await dash.press("Cancel all matches…")
    await dash.confirm("Cancel 7 tasks")
    await dash.told("7 tasks cancelled")
    await expect(dash.main.locator("[data-row] .s-cancelled")).to_have_count(7)


async def test_only_the_selected_are_touched_and_then_tried_again(
    dash: Dashboard, agent: str
) -> None:
    ids = await held(dash, agent, 3)
    await dash.open(f"tasks?agentId={agent}")
    for task_id in ids[:2]:
        await dash.row(task_id).get_by_role("checkbox").check()
    await dash.sees("2 selected")
    await dash.press("Cancel…")
    await dash.confirm("Cancel 2 tasks")
    await dash.told("2 tasks cancelled")
    await expect(dash.row(ids[2])).to_contain_text("queued")
    await dash.page.get_by_label("Select all on this page").check()
    await dash.press("Retry…")
    await expect(dash.page.locator("dialog")).to_contain_text("1 selected task is in a state")
    await dash.confirm("Retry 2 tasks")
    await dash.told("2 tasks queued again")
    await expect(dash.main.locator("[data-row] .s-queued")).to_have_count(3)


async def test_what_is_selected_stays_so_when_newer_tasks_push_it_off_the_page(
    dash: Dashboard, agent: str
) -> None:
    (task_id,) = await held(dash, agent, 1)
    await dash.open(f"tasks?agentId={agent}")
    await dash.row(task_id).get_by_role("checkbox").check()
    items = [{"handler": "echo", "lane": HELD} for _ in range(100)]
    await dash.api.post("/tasks/batch", {"agentId": agent, "tasks": items})
    await expect(dash.row(task_id)).to_have_count(0)
    await dash.sees("1 selected")
    await dash.press("Cancel…")
    await dash.confirm("Cancel 1 task")
    await dash.told("1 task cancelled")
    assert (await dash.api.show(task_id))["state"] == "cancelled"
    await dash.api.post("/tasks/cancel", {"agentId": agent})


async def test_parked_tasks_are_reset(dash: Dashboard, agent: str) -> None:
    hurry = {"timeoutMs": 20, "retryPolicy": {"maxRetries": 0}}
    task_id = await dash.api.submit(handler="sleep", agentId=agent, params={"ms": 600_000}, **hurry)
    await dash.api.until(task_id, "parked")
    await dash.open(f"tasks?agentId={agent}&state=parked")
    await dash.press("Reset all matches…")
    await dash.confirm("Reset 1 task")
    await dash.told("1 task queued again")
    events = (await dash.api.get(f"/tasks/{task_id}/events")).json["events"]
    assert [one["type"] for one in events].count("task.requeued") == 1


async def test_without_a_filter_nothing_can_be_done_to_all(dash: Dashboard) -> None:
    await dash.open("tasks")
    await expect(dash.page.get_by_role("button", name="Cancel all matches")).to_be_disabled()
    await dash.open("tasks?text=echo")
    await expect(dash.page.get_by_role("button", name="Cancel all matches")).to_be_enabled()


async def test_pages_go_on_and_back(dash: Dashboard, agent: str) -> None:
    items = [{"handler": "echo", "lane": HELD} for _ in range(60)]
    for _ in range(2):
        answer = await dash.api.post("/tasks/batch", {"agentId": agent, "tasks": items})
        assert answer.status == 202, answer
    await dash.open(f"tasks?agentId={agent}")
    rows = dash.main.locator("[data-row]")
    await expect(rows).to_have_count(100)
    first = await rows.first.get_attribute("data-row")
    await dash.press("Older →")
    await expect(rows).to_have_count(20)
    await dash.sees("Page 2")
    await dash.press("← Newer")
    await expect(rows).to_have_count(100)
    await expect(rows.first).to_have_attribute("data-row", first or "")
    await dash.api.post("/tasks/cancel", {"agentId": agent})
