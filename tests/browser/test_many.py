"""A hundred thousand tasks: every page of the list stays small in the browser and on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Response

    from tests.browser.conftest import Open
    from tests.http.server import Server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

COUNT = 100_000
PAGE = 100
NODES_MAX = 5_000
ANSWER_BYTES_MAX = 120_000
# Many rows like the one that is there; `{0}` are the columns besides its number and its id.
TASKS = """
WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n WHERE number < ?)
INSERT INTO task (seq, id, {0})
SELECT seq + number, 'q-' || substr('000000' || number, -6), {0} FROM task, n
"""
REQUESTS = """
WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n WHERE number < ?)
INSERT INTO request (seq, {0}) SELECT seq + number, {0} FROM request, n
"""


@pytest_asyncio.fixture(loop_scope="session")
async def crowded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server with many entries, all but the first of which were copied within the database."""
    folder = tmp_path_factory.mktemp("many")
    file = folder / "f.db"
    policy = {"lanes": {"queue": {"paused": True}}}
    async with serving(folder / "one", f"sqlite:///{file}", policy=policy) as server:
        entry = {"id": "q-000000", "note": "one of many"}
        assert (await server.api.post("/queue", entry)).status == 201
    _copy_rows(file)
    async with serving(folder / "two", f"sqlite:///{file}", policy=policy) as server:
        yield server


def _copy_rows(file: Path) -> None:
    connection = apsw.Connection(str(file))
    try:
        with connection:
            for statement, own in ((TASKS, ("seq", "id")), (REQUESTS, ("seq",))):
                table = "task" if statement is TASKS else "request"
                names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                columns = ", ".join(name for name in names if name not in own)
                connection.execute(statement.format(columns), (COUNT - 1,))
    finally:
        connection.close()


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
