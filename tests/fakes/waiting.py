"""Waiting for what another thread or the code under test brings about, and not for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS = 10.0


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody announces such a condition
            await asyncio.sleep(0.001)
