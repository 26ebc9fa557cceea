"""A task's own page: why it waits, its timeline, its request, its output, its dependencies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.http.stage import HELD, ONE

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard
    from tests.http.hooks import Hooks

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_it_says_why_it_waits_and_links_to_who_has_the_slot(
    dash: Dashboard, agent: str
) -> None:
    first = await dash.api.submit(handler="sleep", agentId=agent, lane=ONE, params={"ms": 600_000})
    await dash.api.until(first, "running")
    second = await dash.api.submit(handler="echo", agentId=agent, lane=ONE)
    said = (await dash.api.get(f"/tasks/{second}/why")).json["reason"]
    await dash.open(f"tasks/{second}")
    why = dash.main.locator(".why")
    await expect(why).to_contain_text(said)
    await why.locator("summary").click()
    await why.locator(f"a[title='{first}']").click()
    await expect(dash.main.locator(".crumbs")).to_contain_text(first)
    await dash.press("Cancel…")
    await dash.confirm("Cancel the task")
    await expect(dash.main.locator(".why")).to_contain_text("cancelled")
    await dash.open(f"tasks/{second}")
    await expect(dash.main.locator(".why")).to_contain_text("done")


async def test_its_life_is_reported_as_it_happens(dash: Dashboard, agent: str) -> None:
    request = {"params": {"hello": "world"}, "metadata": {"ticket": 7}}
    blocker = await dash.api.submit(
        handler="sleep", agentId=agent, lane=ONE, params={"ms": 600_000}
    )
    task_id = await dash.api.submit(handler="echo", agentId=agent, lane=ONE, **request)
    await dash.open(f"tasks/{task_id}")
    timeline = dash.main.locator(".timeline")
    await expect(timeline).to_contain_text("submitted")
    await expect(timeline.locator(".future")).to_have_count(0)  # no gate, only a full ceiling
    await dash.sees('"ticket": 7')
    await dash.api.cancel(blocker)
    await expect(timeline).to_contain_text("started")
    await expect(timeline).to_contain_text("done")
    result = dash.main.get_by_role("region", name="Result")
    await expect(result.get_by_role("region")).to_contain_text('"hello": "world"')


async def test_attempts_that_failed_are_in_the_timeline_with_their_errors(
    dash: Dashboard, agent: str
) -> None:
    retry = {"maxRetries": 1, "backoffMs": 10}
    task_id = await dash.api.submit(
        handler="sleep", agentId=agent, params={"ms": 600_000}, timeoutMs=30, retryPolicy=retry
    )
    await dash.api.until(task_id, "parked")
    await dash.open(f"tasks/{task_id}")
    timeline = dash.main.locator(".timeline")
    await expect(timeline).to_contain_text("failed, will be retried")
    await expect(timeline).to_contain_text("attempt 2")
    await expect(timeline.locator(".error").first).to_contain_text("timed out")
    await dash.press("Reset")
    await dash.told("Queued again")


async def test_output_comes_while_it_runs(dash: Dashboard, agent: str) -> None:
    handler = f"talk-{agent}"
    task_id = await dash.api.submit(handler=handler, agentId=agent)
    leases = await dash.api.post("/leases", {"worker": "w", "handlers": [handler], "start": True})
    (lease,) = leases.json["leases"]
    report = f"/leases/{lease['leaseId']}"
    await dash.open(f"tasks/{task_id}")
    await dash.api.post(f"{report}/output", {"token": lease["token"], "output": "first words\n"})
    output = dash.page.get_by_role("log")
    await expect(output).to_contain_text("first words")
    await dash.api.post(f"{report}/output", {"token": lease["token"], "output": "<b>more</b>"})
    await expect(output).to_contain_text("<b>more</b>")
    await dash.api.post(f"{report}/complete", {"token": lease["token"], "result": {"ok": True}})
    await dash.sees('"ok": true')
    await expect(output).to_contain_text("first words\n<b>more</b>")


async def test_what_it_depends_on_and_what_depends_on_it_is_drawn(
    dash: Dashboard, agent: str
) -> None:
    parent = await dash.api.submit(handler="echo", agentId=agent, lane=HELD)
    task_id = await dash.api.submit(handler="echo", agentId=agent, dependsOn=[parent])
    child = await dash.api.submit(handler="echo", agentId=agent, dependsOn=[task_id])
    await dash.open(f"tasks/{task_id}")
    graph = dash.main.locator(".graph")
    await expect(graph.locator("a")).to_have_count(3)
    await expect(graph.locator("path.edge")).to_have_count(2)
    await expect(graph.locator("a.here")).to_have_attribute("href", f"#/tasks/{task_id}")
    await expect(dash.main.locator(".why")).to_contain_text("it depends on a task that is not done")
    gate = dash.main.locator(".timeline .future")
    await expect(gate).to_have_text("waits for its dependencies")
    await graph.locator(f"a[href='#/tasks/{child}']").click()
    await expect(dash.main.locator(".crumbs")).to_contain_text(child)
    await dash.api.cancel(parent)


async def test_its_webhook_is_in_the_timeline(dash: Dashboard, agent: str, hooks: Hooks) -> None:
    hook = hooks.new()
    task_id = await dash.api.submit(handler="echo", agentId=agent, callbackUrl=hook.url)
    await hook.one()
    await dash.open(f"tasks/{task_id}")
    await expect(dash.main.locator(".timeline")).to_contain_text(
        re.compile("webhook delivered.*task.completed")
    )


async def test_an_unknown_task_is_reported_as_missing(dash: Dashboard) -> None:
    dash.expect_fault("404")
    await dash.open("tasks/tsk_nothing")
    await expect(dash.page.get_by_role("alert")).to_contain_text("task not found")


async def test_an_effect_with_an_unknown_outcome_is_decided_on_its_page(
    dash: Dashboard, agent: str
) -> None:
    handler = f"pays-{agent}"
    task_id = await dash.api.submit(handler=handler, agentId=agent, lane="team")
    wanted = {"worker": "w", "handlers": [handler], "waitMs": 60_000}
    for release in (True, False):
        (lease,) = (await dash.api.post("/leases", wanted)).json["leases"]
        target = f"/leases/{lease['leaseId']}"
        await dash.api.post(f"{target}/effect", {"name": "charge:42"})
        if release:
            await dash.api.post(f"{target}/release", {})
    await dash.open(f"tasks/{task_id}")
    await expect(dash.main.locator(".why")).to_contain_text('"charge:42"')
    steps = dash.main.get_by_role("region", name="Steps").first
    await expect(steps).to_contain_text("unknown")
    await dash.press("It happened")
    await dash.confirm("Yes")
    await expect(steps).to_contain_text("done")
    assert (await dash.api.show(task_id))["state"] == "queued"
    await dash.api.cancel(task_id)
