"""The frame: every page is accessible, by keyboard, on a phone, in light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.fakes.ports import lasting_port
from tests.http.server import serving
from tests.http.stage import HELD

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.conftest import Open
    from tests.browser.dashboard import Dashboard
    from tests.http.server import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

PAGES = ("overview", "tasks", "sessions", "cron", "batches", "policy", "events", "deliveries")
PHONE = {"width": 360, "height": 740}
# Cells so narrow that their words stand letter below letter.
SQUEEZED = """[...document.querySelectorAll("td")].filter((cell) =>
  cell.offsetHeight > 60 && cell.offsetWidth < 60).map((cell) => cell.textContent)"""


async def furnished(dash: Dashboard, agent: str) -> list[str]:
    """Something on every page; the places to look at."""
    long = "a-very-long-word-that-nothing-can-break-" * 6
    tasks = [{"key": "a", "handler": "echo"}, {"handler": "echo", "dependsOn": ["#a"]}]
    batch = (await dash.api.post("/tasks/batch", {"agentId": agent, "tasks": tasks})).json
    session = f"chat:{agent}"
    task_id = await dash.api.submit(
        instruction=long, agentId=agent, lane=HELD, sessionKey=session, metadata={long: long}
    )
    schedule = {"kind": "every", "everyMs": 3_600_000}
    body = {"name": f"job-{agent}", "schedule": schedule, "task": {"handler": "echo"}}
    job = (await dash.api.post("/cron/jobs", body)).json
    await dash.api.post(f"/cron/jobs/{job['id']}/run")
    await dash.api.post("/queue", {"workflowId": "release", "note": long})
    await dash.api.post("/templates", {"name": f"t-{agent}", "instruction": long})
    return [
        *(page for page in PAGES if page not in ("tasks", "events")),
        *(
            "handlers",
            "failures",
            "queue",
            "templates",
            "audit",
            "tokens",
            "submit",
            "cron?view=calendar",
        ),
        f"tasks?agentId={agent}",
        f"events?agentId={agent}",
        f"tasks/{task_id}",
        f"tasks/{batch['tasks'][1]['taskId']}",
        f"sessions/{session}",
        f"batches/{batch['batchId']}",
        f"cron/{job['id']}",
    ]


async def test_axe_finds_nothing_serious(dash: Dashboard, agent: str) -> None:
    for place in await furnished(dash, agent):
        await dash.open(place)
        assert await dash.unreadable() == [], place
    await dash.open("cron")
    await dash.press("New job…")
    assert await dash.unreadable() == []


async def test_dark_colours_can_be_distinguished_too(
    window: Open, server: Server, agent: str
) -> None:
    dash = await window(server, color_scheme="dark")
    for place in await furnished(dash, agent):
        await dash.open(place)
        assert await dash.unreadable("color-contrast", "link-in-text-block") == [], place


async def test_a_phone_shows_every_page_without_scrolling_sideways(
    window: Open, server: Server, agent: str
) -> None:
    dash = await window(server, viewport=PHONE, has_touch=True, is_mobile=True)
    for place in await furnished(dash, agent):
        await dash.open(place)
        width = await dash.page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], place
        assert await dash.page.evaluate(SQUEEZED) == [], place
        await expect(dash.page.locator("nav [aria-current=page]")).to_be_in_viewport(ratio=0.9)
    await dash.page.get_by_role("link", name="Tasks", exact=True).click()
    await expect(dash.main.locator("h1")).to_have_text("Tasks")


async def test_every_page_is_reached_by_keys(dash: Dashboard) -> None:
    await dash.open("overview")
    for name in PAGES[1:]:
        await dash.page.keyboard.press("g")
        await dash.page.keyboard.press(name[0])
        await expect(dash.main.locator("h1")).to_have_text(name.capitalize())
        current = dash.page.locator("nav [aria-current=page]")
        await expect(current).to_have_text(name.capitalize())
    await dash.page.keyboard.press("?")
    await expect(dash.page.locator("dialog")).to_contain_text("next and previous row")
    await dash.page.keyboard.press("Escape")
    await expect(dash.page.locator("dialog")).to_have_count(0)


async def test_a_list_is_walked_selected_and_opened_by_keys(dash: Dashboard, agent: str) -> None:
    ids = [await dash.api.submit(handler="echo", agentId=agent, lane=HELD) for _ in range(3)]
    await dash.open(f"tasks?agentId={agent}")
    await expect(dash.main.locator("[data-row]")).to_have_count(3)
    for key in ("j", "j", "j", "k", "x"):
        await dash.page.keyboard.press(key)
    await dash.sees("1 selected")
    await expect(dash.row(ids[1]).get_by_role("checkbox")).to_be_checked()
    await dash.page.keyboard.press("Enter")
    await expect(dash.main.locator(".crumbs")).to_contain_text(ids[1])


async def test_the_search_box_goes_to_a_task_or_searches(dash: Dashboard, agent: str) -> None:
    task_id = await dash.api.submit(handler="echo", agentId=agent, lane=HELD)
    await dash.open("overview")
    await dash.page.keyboard.press("/")
    await dash.page.keyboard.type(task_id)
    await dash.page.keyboard.press("Enter")
    await expect(dash.main.locator(".crumbs")).to_contain_text(task_id)
    await dash.page.keyboard.press("/")
    await dash.page.keyboard.type(task_id[-12:])
    await dash.page.keyboard.press("Enter")
    await expect(dash.main.locator("[data-row]")).to_have_count(1)
    await expect(dash.row(task_id)).to_be_visible()


async def test_light_and_dark_are_chosen_and_kept(dash: Dashboard) -> None:
    await dash.open("overview")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await dash.page.evaluate(ground)
    await dash.page.get_by_role("button", name="Light or dark").click()
    dark = await dash.page.evaluate(ground)
    assert light != dark
    await dash.page.reload()
    await expect(dash.main.locator("h1")).to_be_visible()
    assert await dash.page.evaluate(ground) == dark


async def test_moments_are_relative_and_exact_on_hover(dash: Dashboard, agent: str) -> None:
    task_id = await dash.api.submit(handler="echo", agentId=agent, lane=HELD)
    created = (await dash.api.show(task_id))["createdAt"]
    await dash.open(f"tasks?agentId={agent}")
    moment = dash.row(task_id).locator("time")
    await expect(moment).to_have_text(re.compile(r"now|\d+ s ago"))
    assert created in (await moment.get_attribute("title") or "")
    before = await moment.text_content()
    await expect(moment).not_to_have_text(before or "")


async def test_a_server_that_goes_and_comes_back_is_live_again(
    window: Open, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'own.db'}"
    port = lasting_port()
    async with serving(tmp_path / "one", store, port=port) as server:
        dash = await window(server)
        dash.expect_fault("ERR_")
        await dash.open("tasks")
        light = dash.page.locator(".light")
        await expect(light).to_have_text("live")
    await expect(light).to_have_text("connecting…")
    gone = dash.page.get_by_role("alert")
    await expect(gone).to_contain_text("cannot reach the server; the data is from")
    async with serving(tmp_path / "two", store, port=port) as server:
        await expect(light).to_have_text("live")
        await expect(gone).to_have_count(0)
        task_id = await server.api.submit(handler="echo", agentId="me")
        await expect(dash.row(task_id)).to_be_visible()
