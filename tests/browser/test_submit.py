"""The form for a new task, and running a task again with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_a_task_is_submitted_and_run_again_with_changes(dash: Dashboard, agent: str) -> None:
    dash.expect_fault("400")
    await dash.open("submit")
    form = dash.main.locator("form")
    await form.get_by_label("Handler", exact=True).fill("echo")
    await form.get_by_label("Params", exact=True).fill('{"city": ')
    await dash.press("Submit")
    await expect(form.locator("#about-params")).to_contain_text("must be JSON")
    await expect(form.get_by_label("Params", exact=True)).to_be_focused()
    await form.get_by_label("Params", exact=True).fill('{"city": "Oslo"}')
    await form.get_by_label("Start after", exact=True).fill("soon")
    await dash.press("Submit")
    await expect(form.locator("#about-delayMs")).to_contain_text("such as 30s")
    await form.get_by_label("Start after", exact=True).fill("2h")
    await form.get_by_label("Agent", exact=True).fill("not a name!")
    await dash.press("Submit")  # what only the server knows stands at its field too
    await expect(form.locator("#about-agentId")).to_contain_text("agentId")
    assert await dash.unreadable() == []
    await form.get_by_label("Agent", exact=True).fill(agent)
    await form.locator("[name=lane]").select_option(HELD)
    await form.locator("[name=priority]").select_option("high")
    await form.get_by_label("Further fields", exact=True).fill('{"metadata": {"ticket": 7}}')
    await dash.press("Submit")
    await dash.told("Submitted")
    await expect(dash.main.locator("h1")).to_have_text("echo")
    (first,) = (await dash.api.get("/tasks", agentId=agent)).json["tasks"]
    assert (first["params"], first["lane"], first["priority"]) == ({"city": "Oslo"}, HELD, -10)
    assert first["metadata"] == {"ticket": 7}
    assert first["gate"] == "delay"

    await dash.page.get_by_role("link", name="Run again with changes").click()
    await expect(dash.main.locator("h1")).to_have_text("Run again with changes")
    await expect(form.get_by_label("Further fields", exact=True)).to_have_value(
        '{\n  "metadata": {\n    "ticket": 7\n  }\n}'
    )
    await form.get_by_label("Params", exact=True).fill('{"city": "Rome"}')
    await form.get_by_label("Handler", exact=True).fill("ehco")
    await dash.press("Submit")
    await dash.told("did you mean echo?")
    newest = (await dash.api.get("/tasks", agentId=agent)).json["tasks"][0]
    assert (newest["params"], newest["lane"]) == ({"city": "Rome"}, HELD)
    assert (newest["handler"], newest["priority"]) == ("ehco", -10)
