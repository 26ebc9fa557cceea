"""Logging in: from the first token on the dashboard asks for one, and keeps it out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Open
    from tests.http.server import Server

ALL_SCOPES = ["submit", "read", "cancel", "lease", "operate", "admin"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_who_has_a_token_logs_in_and_out(fresh: Server, window: Open) -> None:
    made = await fresh.api.post("/tokens", {"name": "me", "scopes": ALL_SCOPES})
    assert made.status == 201, made
    dash = await window(fresh)
    dash.expect_fault("401")
    await dash.open("overview")
    await expect(dash.main.locator("h1")).to_have_text("Log in")
    assert await dash.unreadable() == []
    await dash.page.get_by_label("Token").fill("fl_wrong")
    await dash.page.keyboard.press("Enter")
    await expect(dash.page.get_by_role("alert")).to_contain_text("not valid")
    await dash.page.get_by_label("Token").fill(made.json["token"])
    await dash.page.keyboard.press("Enter")
    await expect(dash.main.locator("h1")).to_have_text("Overview")
    await expect(dash.page.locator(".light")).to_have_text("live")
    assert await dash.page.evaluate("document.cookie") == ""
    (cookie,) = await dash.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    await dash.press("Pause lane main")
    await dash.told("Lane main is paused")
    await dash.page.reload()
    await expect(dash.main.locator("h1")).to_have_text("Overview")
    await dash.press("Log out")
    await expect(dash.main.locator("h1")).to_have_text("Log in")


async def test_an_agents_token_shows_that_agents_work_only(fresh: Server, window: Open) -> None:
    mine = await fresh.api.submit(handler="echo", agentId="mine")
    theirs = await fresh.api.submit(handler="echo", agentId="theirs")
    body: dict[str, Any] = {"name": "m", "agentId": "mine", "scopes": ["read", "submit", "cancel"]}
    token = (await fresh.api.post("/tokens", body)).json["token"]
    dash = await window(fresh)
    for status in ("401", "403", "404"):
        dash.expect_fault(status)
    await dash.open("tasks")
    await dash.page.get_by_label("Token").fill(token)
    await dash.page.keyboard.press("Enter")
    await expect(dash.row(mine)).to_be_visible()
    await expect(dash.row(theirs)).to_have_count(0)
    await dash.open(f"tasks/{theirs}")
    await expect(dash.page.get_by_role("alert")).to_contain_text("not found")
    await dash.open("events")
    await dash.sees("mine")
    await dash.sees_not("theirs")


async def test_what_a_token_may_not_see_is_said_to_be_so(fresh: Server, window: Open) -> None:
    body = {"name": "m", "scopes": ["submit"]}
    token = (await fresh.api.post("/tokens", body)).json["token"]
    dash = await window(fresh)
    dash.expect_fault("401")
    dash.expect_fault("403")
    await dash.open("overview")
    await dash.page.get_by_label("Token").fill(token)
    await dash.page.keyboard.press("Enter")
    await expect(dash.page.get_by_role("alert").first).to_contain_text("read")
