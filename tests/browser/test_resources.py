"""The resources page: use against the limit, holders, waiting tasks; close, open and raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.http.server import Server, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser.conftest import Open
    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

POLICY = {
    "resources": {
        "gpt": {
            "limits": [
                {"unit": "requests", "amount": 500, "perMs": 600_000},
                {"unit": "tokens", "amount": 90_000, "perMs": 600_000},
            ]
        },
        "spend": {
            "limits": [{"unit": "usd", "amount": 50, "resetEvery": "day"}],
            "by": "agent",
        },
    }
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("resources")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}", policy=POLICY) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def dash(server: Server, window: Open) -> Dashboard:
    return await window(server)


async def used(server: Server, agent: str, tokens: int, usd: str) -> None:
    """Let an agent use some of both resources."""
    needs = {"gpt": {"requests": 1, "tokens": tokens}, "spend": {"usd": usd}}
    await server.api.submit(handler="away", agentId=agent, needs=needs)
    body = {"worker": agent, "handlers": ["away"], "start": True}
    (lease,) = (await server.api.post("/leases", body)).json["leases"]
    assert (await server.api.post(f"/leases/{lease['leaseId']}/complete", {})).status == 200


async def test_use_is_shown_against_the_limit(dash: Dashboard, server: Server) -> None:
    await used(server, "ada", 30_000, "12.5")
    await dash.open("resources")
    row = dash.row("gpt")
    await expect(row.get_by_role("meter").nth(1)).to_have_attribute("aria-valuenow", "30000")
    await row.get_by_role("link").first.click()
    await expect(dash.main.locator("h1")).to_have_text("gpt")
    await dash.sees("used and reserved")
    await expect(dash.row("ada")).to_contain_text("30K tokens")
    await expect(dash.main.locator(".curves")).to_have_count(2)
    assert await dash.unreadable() == []


async def test_a_resource_is_closed_with_a_reason_and_opened(
    dash: Dashboard, server: Server
) -> None:
    await dash.open("resources")
    await dash.press("Close gpt")
    box = dash.page.locator("dialog")
    await box.get_by_label("For").fill("5m")
    await box.get_by_label("Reason").fill("provider incident")
    await dash.page.keyboard.press("Enter")
    await dash.told("gpt is closed")
    await expect(dash.row("gpt")).to_contain_text("closed until")
    shown: dict[str, Any] = (await server.api.get("/resources/gpt")).json
    assert (shown["state"], shown["reason"]) == ("closed", "provider incident")
    await dash.press("Open gpt")
    await dash.told("gpt is open")
    await expect(dash.row("gpt")).not_to_contain_text("closed")


async def test_a_budget_is_raised_and_a_wrong_amount_is_explained(
    dash: Dashboard, server: Server
) -> None:
    await used(server, "bob", 1, "0.5")
    dash.expect_fault("400")
    await dash.open("resources/spend/bob")
    await dash.press("Raise…")
    box = dash.page.locator("dialog")
    await box.get_by_label("By").fill("lots")
    await box.get_by_role("button", name="Raise", exact=True).click()
    await expect(box.locator("#about-amount")).to_contain_text("amount")
    await box.get_by_label("By").fill("10.50")
    await box.get_by_role("button", name="Raise", exact=True).click()
    await dash.told("10.50 usd more until the reset")
    (limit,) = (await server.api.get("/resources/spend", key="bob")).json["limits"]
    assert limit["raised"] == "10.5"
    await expect(dash.row("raise")).to_contain_text("10.5 usd")
    assert await dash.unreadable() == []


async def test_waiting_and_holding_tasks_are_named(dash: Dashboard, server: Server) -> None:
    needs = {"spend": {"usd": 40}}
    for _ in range(2):
        await server.api.submit(handler="away", agentId="eve", needs=needs)
    body = {"worker": "eve", "handlers": ["away"], "limit": 5}
    (lease,) = (await server.api.post("/leases", body)).json["leases"]
    await dash.open("resources/spend/eve")
    await dash.sees("1 task waiting for it")
    await expect(dash.row("40 usd")).to_be_visible()
    await server.api.post(f"/leases/{lease['leaseId']}/complete", {})


async def test_without_resources_the_page_teaches(
    window: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("none")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}") as server:
        dash = await window(server)
        await dash.open("resources")
        await dash.sees("The policy declares no resources")
        await dash.page.keyboard.press("g")
        await dash.page.keyboard.press("o")
        await expect(dash.main.locator("h1")).to_have_text("Overview")
        await dash.page.keyboard.press("g")
        await dash.page.keyboard.press("r")
        await expect(dash.main.locator("h1")).to_have_text("Resources")
        await dash.page.goto("about:blank")  # it would ask the server after its end


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_readable_on_a_phone(server: Server, window: Open, scheme: str) -> None:
    await used(server, "ada", 10, "0.1")
    phone = {"width": 390, "height": 844}
    dash = await window(server, viewport=phone, color_scheme=scheme, has_touch=True)
    for place in ("resources", "resources/gpt"):
        await dash.open(place)
        await expect(dash.main.get_by_role("meter").first).to_be_visible()
        wide = await dash.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= phone["width"]
        assert await dash.unreadable() == []
