"""Logging in: once a token exists the dashboard asks for one, and scripts cannot read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.http.api import eventually

if TYPE_CHECKING:
    from playwright.async_api import Response

    from tests.browser.conftest import Open
    from tests.browser.dashboard import Dashboard
    from tests.http.server import Server

ALL_SCOPES = ["submit", "read", "cancel", "lease", "operate", "admin"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

# How the names of buttons begin that need no more than the scope cancel.
ENDS = ("Cancel", "Stop")


async def logged_in(dash: Dashboard, place: str, **token: Any) -> dict[str, Any]:
    """With a new token, on a server that had none; one that may do everything is made as well."""
    operator = (await dash.api.post("/tokens", {"name": "op", "scopes": ALL_SCOPES})).json["token"]
    made = await dash.api.ask(
        "POST", "/tokens", token, headers={"Authorization": f"Bearer {operator}"}
    )
    assert made.status == 201, made
    dash.expect_fault("401")
    await dash.page.goto(f"{dash.server.url}/#/{place}")
    await dash.page.reload()
    await dash.page.get_by_label("Token").fill(made.json["token"])
    await dash.page.keyboard.press("Enter")
    await expect(dash.main.locator("h1")).to_have_text(place.capitalize())
    return {**made.json, "operator": operator}


async def furnished(server: Server) -> dict[str, tuple[str, ...]]:
    """Something on every page; for each place the buttons that change something."""
    api = server.api
    await api.post("/lanes/team/pause", {})
    held = {"handler": "echo", "lane": "team"}
    waiting = await api.submit(agentId="a", sessionKey="chat", **held)
    cancelled = await api.submit(agentId="a", **held)
    await api.cancel(cancelled)
    hurry = {"params": {"ms": 600_000}, "timeoutMs": 20, "retryPolicy": {"maxRetries": 0}}
    parked = await api.submit(handler="sleep", agentId="a", **hurry)
    await api.until(parked, "parked")
    batch = (await api.post("/tasks/batch", {"agentId": "a", "tasks": [held]})).json["batchId"]
    every = {"kind": "every", "everyMs": 3_600_000}
    job = {"name": "hourly", "schedule": every, "task": {"handler": "echo"}}
    job_id = (await api.post("/cron/jobs", job)).json["id"]
    job_buttons = ("Run hourly now", "Switch hourly off", "Edit hourly")
    await api.post("/lanes/queue/pause", {})
    return {
        "overview": ("Pause lane main", "Resume lane team"),
        "tasks?agentId=a": ("Cancel all matches", "Retry all matches", "Reset all matches"),
        f"tasks/{waiting}": ("Cancel…",),
        f"tasks/{cancelled}": ("Retry",),
        f"tasks/{parked}": ("Reset", "Cancel…"),
        f"batches/{batch}": ("Cancel the rest",),
        "sessions": ("Stop all of chat",),
        "sessions/chat": ("Stop all of chat",),
        "cron": ("New job", *job_buttons),
        f"cron/{job_id}": (*job_buttons, "Delete"),
        "policy": ("Edit", "Restore version 1"),
    }


async def test_a_user_with_a_token_logs_in_and_out(fresh: Server, window: Open) -> None:
    made = await fresh.api.post("/tokens", {"name": "me", "scopes": ALL_SCOPES})
    assert made.status == 201, made
    dash = await window(fresh)
    dash.expect_fault("401")
    await dash.open("overview")
    await expect(dash.main.locator("h1")).to_have_text("Log in")
    assert await dash.unreadable() == []
    await dash.page.get_by_label("Token").fill("fl_wrong")
    await dash.page.keyboard.press("Enter")
    await expect(dash.page.get_by_role("alert")).to_contain_text("invalid token")
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
    for status in ("401", "404"):  # and no 403: what is refused is not asked for
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
    await dash.open("overview")
    await expect(dash.main.get_by_role("region", name="Nodes")).to_contain_text("ready")
    await expect(dash.page.get_by_role("button", name="Pause lane main")).to_be_disabled()
    await dash.open("policy")
    await expect(dash.page.get_by_role("alert")).to_contain_text("this request affects all agents")
    await expect(dash.page.get_by_role("alert")).to_have_count(1)


async def test_what_a_token_may_not_see_is_reported_as_forbidden(
    fresh: Server, window: Open
) -> None:
    dash = await window(fresh)
    await logged_in(dash, "overview", name="m", scopes=["submit"])
    await expect(dash.page.get_by_role("alert")).to_have_text(
        "this request needs a token with the scope read"
    )
    await expect(dash.page.locator(".light")).to_have_text("not connected")


async def test_what_a_token_may_not_do_cannot_be_pressed_and_says_why(
    fresh: Server, window: Open
) -> None:
    places = await furnished(fresh)
    dash = await window(fresh)
    await logged_in(dash, "overview", name="looks", scopes=["read"])
    for place, names in places.items():
        await dash.open(place)
        for name in names:
            button = dash.main.get_by_role("button", name=name).first
            await expect(button).to_be_disabled()
            await expect(button).to_have_attribute(
                "title",
                re.compile("^this request needs a token with the scope (cancel|operate|admin)$"),
            )


async def test_who_may_cancel_is_still_not_offered_what_operators_do(
    fresh: Server, window: Open
) -> None:
    places = await furnished(fresh)
    dash = await window(fresh)
    await logged_in(dash, "overview", name="cancels", scopes=["read", "cancel"])
    for place, names in places.items():
        await dash.open(place)
        for name in names:
            button = dash.main.get_by_role("button", name=name).first
            if name.startswith(ENDS):
                await expect(button).to_be_enabled()
            else:
                await expect(button).to_be_disabled()


async def test_lines_to_copy_name_a_token_where_one_is_needed(fresh: Server, window: Open) -> None:
    dash = await window(fresh)
    await dash.open("tasks")
    await dash.sees("curl -X POST")
    await dash.sees_not("Authorization")
    await logged_in(dash, "tasks", name="mine", scopes=["read", "submit"], agentId="mine")
    await dash.sees('-H "Authorization: Bearer $FAIRLANE_TOKEN"')
    line = await dash.main.inner_text()
    assert '"agentId":"mine"' in line


async def test_a_page_that_needs_a_login_sends_no_further_requests(
    fresh: Server, window: Open
) -> None:
    dash = await window(fresh)
    dash.expect_fault("ERR_FAILED")
    await dash.page.clock.install()
    made = await logged_in(dash, "tasks", name="gone", scopes=["read"])
    pulses: list[int] = []

    def count(answer: Response) -> None:
        if "/pulse" in answer.url:
            pulses.append(answer.status)

    dash.page.on("response", count)
    await dash.page.route(re.compile("/(tasks|lanes|approvals)"), lambda route: route.abort())
    operator = {"Authorization": f"Bearer {made['operator']}"}
    answer = await fresh.api.ask("DELETE", f"/tokens/{made['id']}", headers=operator)
    assert answer.status == 200, answer

    async def refused() -> bool | None:
        await fresh.api.ask("POST", "/tasks", {"handler": "echo"}, headers=operator)
        return 401 in pulses or None

    await eventually(refused)
    await dash.page.unroute_all()
    await dash.press("queued")  # which has to be read at once
    await expect(dash.main.locator("h1")).to_have_text("Log in")
    before = len(pulses)
    await dash.page.clock.fast_forward(60_000)
    await dash.page.get_by_label("Token").fill("fl_wrong")
    await dash.page.keyboard.press("Enter")
    await expect(dash.page.get_by_role("alert")).to_contain_text("invalid token")
    assert len(pulses) == before
