"""Servers that hostile input is tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.hostile.echo import Echo
from tests.hostile.wires import Door, door


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def entry(echo: Echo) -> AsyncIterator[Door]:
    """The door of a server behind which there is only an echo."""
    async with door(echo) as found:
        yield found
