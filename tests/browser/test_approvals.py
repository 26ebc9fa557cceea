"""Approvals: the badge, the form of a JSON Schema filled in by a person, and the one-time link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

FORM = {
    "type": "object",
    "properties": {
        "subject": {"type": "string", "title": "Subject", "maxLength": 80},
        "copies": {"type": "integer", "title": "Copies", "minimum": 1, "default": 1},
        "tone": {"type": "string", "title": "Tone", "enum": ["kind", "strict"]},
        "urgent": {"type": "boolean", "title": "Urgent"},
        "to": {"type": "array", "title": "Recipients", "items": {"type": "string"}},
    },
    "required": ["subject", "tone"],
}


async def ask(dash: Dashboard, agent: str, **more: Any) -> tuple[str, str]:
    """Submit a task that needs an approval; its id and that of the approval."""
    question = {"title": f"Send it, {agent}?", "detail": "Dear <b>Ann</b>", **more}
    body = {"handler": "echo", "agentId": agent, "params": {"text": "x"}, "approval": question}
    task = (await dash.api.post("/tasks", body)).json["taskId"]
    (found,) = (await dash.api.get("/approvals", taskId=task)).json["approvals"]
    return task, found["id"]


async def test_a_person_fills_in_the_form_and_approves(dash: Dashboard, agent: str) -> None:
    task, approval = await ask(dash, agent, form=FORM)
    await dash.open("approvals")
    await expect(dash.page.locator(".bar nav .count")).to_be_visible()
    await dash.row(f"Send it, {agent}?").get_by_role("link").first.click()
    await dash.sees("Dear <b>Ann</b>")
    await dash.sees('"text": "x"')
    form = dash.main.locator("form.decide")
    await form.get_by_role("button", name="Approve").click()
    await expect(form.get_by_label("Subject")).to_be_focused()
    await form.get_by_label("Subject").fill("Hello")
    await form.get_by_label("Copies").fill("3")
    await form.get_by_label("Tone").select_option("kind")
    await form.get_by_label("Urgent").check()
    await form.get_by_label("Recipients").fill("ann\nbob")
    await form.get_by_label("Comment").fill("as agreed")
    if folder := os.environ.get("APPROVAL_PICTURES"):
        await dash.page.screenshot(path=f"{folder}/approval.png", full_page=True)
    await form.get_by_role("button", name="Approve").click()
    await dash.told("Approved")
    await dash.sees("Decided by")
    found = (await dash.api.get(f"/approvals/{approval}")).json
    assert (found["state"], found["comment"]) == ("approved", "as agreed")
    assert found["answer"] == {
        "subject": "Hello", "copies": 3, "tone": "kind", "urgent": True, "to": ["ann", "bob"],
    }  # fmt: skip
    done = await dash.api.get(f"/tasks/{task}/wait", timeoutMs=10_000)
    assert done.json["state"] == "done"


async def test_a_person_rejects_and_the_task_says_why(dash: Dashboard, agent: str) -> None:
    task, approval = await ask(dash, agent)
    await dash.open(f"approvals/{approval}")
    await dash.main.get_by_label("Comment").fill("too late")
    assert await dash.unreadable() == []
    await dash.press("Reject", within=dash.main)
    await dash.told("Rejected")
    shown = (await dash.api.get(f"/tasks/{task}")).json
    assert shown["state"] == "cancelled"
    assert shown["error"].endswith("too late")


async def test_what_was_typed_survives_a_redraw(dash: Dashboard, agent: str) -> None:
    _, approval = await ask(dash, agent, form=FORM)
    await dash.open(f"approvals/{approval}")
    await dash.main.get_by_label("Subject").fill("Typed")
    await ask(dash, agent)  # an event: the page reads again
    await dash.page.evaluate("dispatchEvent(new Event('online'))")
    await expect(dash.main.get_by_label("Subject")).to_have_value("Typed")


async def test_a_link_shows_a_page_without_scripts_and_decides_once(
    dash: Dashboard, agent: str
) -> None:
    _, approval = await ask(dash, agent, form=FORM)
    made = await dash.api.post(f"/approvals/{approval}/link", {"baseUrl": dash.server.url})
    assert made.status == 201, made
    await dash.page.goto(made.json["url"])
    await expect(dash.page.locator("h1")).to_have_text(f"Send it, {agent}?")
    await dash.page.get_by_label("Subject").fill("From a link")
    await dash.page.get_by_label("Tone").select_option("strict")
    if folder := os.environ.get("APPROVAL_PICTURES"):
        await dash.page.screenshot(path=f"{folder}/link.png", full_page=True)
    await dash.page.get_by_role("button", name="Approve").click()
    await expect(dash.page.locator("h1")).to_have_text("Thank you")
    found = (await dash.api.get(f"/approvals/{approval}")).json
    assert found["state"] == "approved"
    assert found["answer"]["subject"] == "From a link"
    dash.expect_fault("404")
    await dash.page.goto(made.json["url"])
    await expect(dash.page.locator("h1")).to_have_text("This link is not valid")
