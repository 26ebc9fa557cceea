"""Reads that are pending when a node stops: their callers get an error.

The rule: a caller that was not cancelled never gets a `CancelledError`, which its own program would
take for a cancellation.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import Draining
from fairlane.engine.reads.views import READERS, Views
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.store.base import Store


class Scene:
    """Readers that are all busy until they are let go, and one read more that waits for them."""

    def __init__(self, store: Store) -> None:
        self.views = Views(store)
        self._busy = threading.Semaphore(0)
        self._go = threading.Event()

    async def fill(self) -> None:
        self.running = [asyncio.create_task(self.views.read(self._hold)) for _ in range(READERS)]
        for _ in self.running:
            assert await asyncio.to_thread(self._busy.acquire, timeout=WAIT_SECONDS)
        self.waiting = asyncio.create_task(self.views.read(self.views.task, "nobody"))
        await asyncio.sleep(0)  # to ask

    async def close(self) -> None:
        closing = asyncio.create_task(asyncio.to_thread(self.views.close))
        await eventually(lambda: self.views._threads._shutdown)
        self.let_go()
        await closing

    def let_go(self) -> None:
        self._go.set()

    def _hold(self) -> str:
        self._busy.release()
        assert self._go.wait(WAIT_SECONDS)
        return "read"


@pytest.fixture
async def scene(store: Store) -> AsyncIterator[Scene]:
    scene = Scene(store)
    await scene.fill()
    yield scene
    scene.let_go()
    scene.views.close()


async def test_a_read_that_waits_when_the_node_stops_is_refused(scene: Scene) -> None:
    await scene.close()
    with pytest.raises(Draining, match="this node has stopped"):
        await scene.waiting
    assert not scene.waiting.cancelled()


async def test_a_read_that_runs_when_the_node_stops_is_answered(scene: Scene) -> None:
    await scene.close()
    assert await asyncio.gather(*scene.running) == ["read"] * READERS
    await asyncio.wait([scene.waiting])


async def test_a_read_of_a_node_that_has_stopped_is_refused(scene: Scene) -> None:
    await scene.close()
    with pytest.raises(Draining, match="this node has stopped"):
        await scene.views.read(scene.views.task, "nobody")
    await asyncio.wait([scene.waiting])


async def test_a_caller_that_is_cancelled_while_it_waits_is_cancelled(scene: Scene) -> None:
    scene.waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.waiting
    assert scene.waiting.cancelled()
