"""Fixtures for pytest; load them with `pytest_plugins = ["fairlane.pytest_plugin"]` in conftest.py.

`fairlane_app` is a `MemoryFairlane` that runs during the test. It needs pytest-asyncio, or anyio
with the asyncio backend. Override `fairlane_options` to pass it a policy or other options.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fairlane.clock import ManualClock
from fairlane.testing import MemoryFairlane


def _async_fixture() -> Callable[..., Any]:
    if importlib.util.find_spec("pytest_asyncio") is None:
        return pytest.fixture
    import pytest_asyncio  # noqa: PLC0415 - not every user has it

    return pytest_asyncio.fixture


@pytest.fixture
def fairlane_options() -> dict[str, Any]:
    """Return the options of `fairlane_app`."""
    return {}


@_async_fixture()
async def fairlane_app(fairlane_options: dict[str, Any]) -> AsyncIterator[MemoryFairlane]:
    """A scheduler in memory that runs during the test."""
    async with MemoryFairlane(**fairlane_options) as app:
        yield app


@pytest.fixture
def fairlane_clock(fairlane_app: MemoryFairlane) -> ManualClock:
    """Return the clock of `fairlane_app`."""
    return fairlane_app.clock
