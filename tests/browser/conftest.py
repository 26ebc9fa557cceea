"""One browser and one server for all tests of this folder; each test has a window of its own."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.dashboard import WATCH, Dashboard
from tests.http.hooks import Hooks
from tests.http.server import Server, serving
from tests.http.stage import POLICY

FIND_CHROMIUM = Path(__file__).parents[2] / "scripts" / "find-chromium"
WINDOW = {"width": 1280, "height": 900}

Open = Callable[..., Awaitable[Dashboard]]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def chromium() -> str:
    found = subprocess.run([FIND_CHROMIUM], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Its own sandbox does not work for root, nor in most containers; the pages are ours.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hooks() -> AsyncIterator[Hooks]:
    async with Hooks() as hooks:
        yield hooks


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(hooks: Hooks, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("browser")
    store = f"sqlite:///{folder / 'f.db'}"
    async with serving(folder, store, policy=POLICY, allow_outbound=[hooks.address]) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def window(browser: Browser) -> AsyncIterator[Open]:
    """Opens windows of a test's own, on any server, and looks afterwards what went wrong there.

    A test that has a server of its own asks for that first: windows are closed before it ends.
    """
    opened: list[Dashboard] = []

    async def open_window(server: Server, **options: Any) -> Dashboard:
        context = await browser.new_context(**{"viewport": WINDOW, **options})
        await context.add_init_script(WATCH)
        dash = Dashboard(await context.new_page(), server)
        opened.append(dash)
        return dash

    yield open_window
    faults = [fault for dash in opened for fault in await dash.checked()]
    for dash in opened:
        await dash.page.context.close()
    assert faults == []


@pytest_asyncio.fixture(loop_scope="session")
async def dash(window: Open, server: Server) -> Dashboard:
    return await window(server)


@pytest.fixture
def agent() -> str:
    """A name that no other test uses."""
    return f"agent-{next(_numbers)}"


@pytest_asyncio.fixture(loop_scope="session")
async def fresh(tmp_path: Path) -> AsyncIterator[Server]:
    """A server that nobody has used yet."""
    async with serving(tmp_path / "server", f"sqlite:///{tmp_path / 'own.db'}") as server:
        yield server
