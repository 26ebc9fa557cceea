"""The page of workers, and what needs attention on the overview."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.http.server import Server, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser.dashboard import Dashboard

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("workers")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}") as server:
        yield server


async def test_what_needs_attention_appears_and_goes(dash: Dashboard) -> None:
    await dash.open("overview")
    panel = dash.main.get_by_role("region", name="Needs attention")
    await expect(panel).to_contain_text("All is well")
    assert await dash.unreadable() == []
    await dash.api.post("/lanes/team/pause")
    await dash.api.submit(handler="echo", lane="team")
    await dash.api.submit(handler="ehco")
    await expect(panel).to_contain_text("lane team is paused and 1 task waits")
    await expect(panel).to_contain_text("fairlane lanes resume team")
    await expect(panel).to_contain_text("did you mean echo?")
    assert await dash.unreadable() == []
    await dash.open("tasks")
    await expect(dash.main).to_contain_text("no known worker offers handler 'ehco'")


async def test_a_worker_is_listed_with_what_it_offers(dash: Dashboard) -> None:
    await dash.api.post("/leases", {"worker": "w-seen", "handlers": ["scrape"], "slots": 4})
    await dash.open("workers")
    row = dash.row("w-seen")
    await expect(row).to_contain_text("online")
    await expect(row).to_contain_text("0 / 4")
    await expect(row).to_contain_text("scrape")
    await expect(row).to_contain_text("127.0.0.1")
    assert await dash.unreadable() == []
