"""A hundred thousand tasks: every page of the list stays small in the browser and on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Response

    from tests.browser.conftest import Open
    from tests.http.server import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

COUNT = 100_000
AT_ONCE = 20_000
PAGE = 100
NODES_MAX = 5_000
ANSWER_BYTES_MAX = 120_000


@pytest_asyncio.fixture(loop_scope="session")
async def crowded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("many")
    policy = {"lanes": {"queue": {"paused": True}}}
    async with serving(folder, f"sqlite:///{folder / 'f.db'}", policy=policy) as server:
        for start in range(0, COUNT, AT_ONCE):
            entries = [
                {"id": f"q-{number:06}", "status": "pending", "note": f"note {number}"}
                for number in range(start, start + AT_ONCE)
            ]
            body = {"schemaVersion": 1, "entries": entries}
            answer = await server.api.post("/queue/import", body)
            assert answer.status == 200, answer
        yield server


async def test_a_hundred_thousand_tasks_are_listed_a_page_at_a_time(
    crowded: Server, window: Open
) -> None:
    dash = await window(crowded)
    sizes: list[int] = []

    def weigh(answer: Response) -> None:
        """By what it says: its body may be asked for when the page has been closed."""
        if "/tasks?" in answer.url:
            sizes.append(int(answer.headers["content-length"]))

    dash.page.on("response", weigh)
    await dash.open("tasks")
    rows = dash.main.locator("[data-row]")
    await expect(rows.first).to_contain_text("q-099999")
    for page in range(2, 7):
        await dash.press("Older →")
        await dash.sees(f"Page {page}")
        await expect(rows.first).to_contain_text(f"q-{COUNT - 1 - PAGE * (page - 1):06}")
        await expect(rows).to_have_count(PAGE)
    assert await dash.page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
    assert 0 < max(sizes) < ANSWER_BYTES_MAX

    # The oldest one is found by its text, though no index knows it and each look is bounded.
    await dash.page.get_by_label("Text in id").fill("q-000007")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("q-000007")
    await dash.page.get_by_label("Text in id").fill("")
    await dash.page.get_by_role("button", name="done").click()
    await dash.sees("No matching tasks")
    assert max(sizes) < ANSWER_BYTES_MAX
