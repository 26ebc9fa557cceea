"""What the tests of this folder share: a server on each database, a tab instance, a receiver.

All of it lives as long as the tests do; `stage` gives each test agents and tabs of its own there
and looks afterwards whether the books are in order. A test that has to start, stop or configure a
server gets one of its own from `serve`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.tab_instance import TabInstance
from tests.http import early as beginning
from tests.http.early import Early
from tests.http.hooks import Hooks
from tests.http.server import Server, serving
from tests.http.stage import POLICY, Stage
from tests.http.work import Work
from tests.postgres import new_database

Serve = Callable[..., Awaitable[Server]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def instance() -> AsyncIterator[TabInstance]:
    async with TabInstance() as instance:
        yield instance


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hooks() -> AsyncIterator[Hooks]:
    async with Hooks() as hooks:
        yield hooks


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'fairlane.db'}"
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(
    shared_store: str, instance: TabInstance, hooks: Hooks, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    """The server that tests share, once on each database."""
    async with serving(
        tmp_path_factory.mktemp("server"),
        shared_store,
        policy=POLICY,
        instances=[instance.url],
        allow_outbound=[hooks.address],
    ) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def early(
    instance: TabInstance, hooks: Hooks, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Early]:
    """Started with the first test, whichever that is; the last ones look at it."""
    folder = tmp_path_factory.mktemp("early")
    instance.tabs.append("early")
    async with serving(
        folder,
        f"sqlite:///{folder / 'f.db'}",
        policy=beginning.POLICY,
        instances=[instance.url],
        allow_outbound=[hooks.address],
    ) as server:
        early = Early(server, hooks)
        await early.begin()
        yield early
        await early.end()


@pytest_asyncio.fixture(loop_scope="session")
async def stage(server: Server, instance: TabInstance, hooks: Hooks) -> AsyncIterator[Stage]:
    stage = Stage(server.api, instance, hooks)
    yield stage
    await stage.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def work(server: Server, instance: TabInstance, hooks: Hooks) -> AsyncIterator[Work]:
    work = Work(server.api, instance, hooks)
    yield work
    await work.clear()


@pytest_asyncio.fixture(loop_scope="session")
async def serve(tmp_path: Path, instance: TabInstance, hooks: Hooks) -> AsyncIterator[Serve]:
    """Starts servers that are a test's own and ends with it; on SQLite unless told otherwise."""
    numbers = itertools.count(1)
    async with AsyncExitStack() as stack:

        async def start(store: str | None = None, **options: Any) -> Server:
            folder = tmp_path / f"server-{next(numbers)}"
            given = {"instances": [instance.url], "allow_outbound": [hooks.address], **options}
            where = store or f"sqlite:///{tmp_path / 'own.db'}"
            return await stack.enter_async_context(serving(folder, where, **given))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reloaded(
    instance: TabInstance, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    """A server whose policy file the tests of a module may change as they like."""
    folder = tmp_path_factory.mktemp("reloaded")
    store = f"sqlite:///{folder / 'f.db'}"
    async with serving(folder, store, policy={}, instances=[instance.url]) as server:
        yield server
