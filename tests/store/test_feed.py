"""Reads of streams: done once for many, in an order that is fair, and in nobody else's way."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Draining
from fairlane.engine.reads.feed import SHARED_MAX, Feed
from fairlane.engine.reads.views import Views
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.store.base import Store


class Scene:
    """A feed whose thread is busy until it is let go, and a note of what it has read since."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.read: list[str] = []
        self._begun = threading.Event()
        self._go = threading.Event()

    async def fill(self) -> None:
        self.running = self.ask(self._hold)
        await eventually(self._begun.is_set)

    def ask(self, view: Any, *arguments: Any, late: bool = False) -> asyncio.Task[Any]:
        return asyncio.create_task(self.feed.read(view, *arguments, late=late))

    async def asked(self, name: str, *, late: bool = False) -> asyncio.Task[Any]:
        """One that waits behind what is there."""
        task = self.ask(self.note, name, late=late)
        await asyncio.sleep(0)
        return task

    def let_go(self) -> None:
        self._go.set()

    def note(self, name: str) -> str:
        self.read.append(name)
        return name.upper()

    def fail(self) -> None:
        self.read.append("failed")
        raise ValueError("no")

    def _hold(self) -> str:
        self._begun.set()
        assert self._go.wait(WAIT_SECONDS)
        return "held"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(Feed())
    await scene.fill()
    yield scene
    scene.let_go()
    await asyncio.to_thread(scene.feed.close)
    await asyncio.wait([scene.running])


async def test_equal_reads_that_wait_are_done_once(scene: Scene) -> None:
    asked = [await scene.asked(name) for name in ("a", "b", "a", "a")]
    scene.let_go()
    assert await asyncio.gather(*asked) == ["A", "B", "A", "A"]
    assert scene.read == ["a", "b"]


async def test_a_read_that_has_begun_is_not_shared_with_who_comes_later(scene: Scene) -> None:
    """It may have looked before the commit that the newcomer was told of."""
    again = scene.ask(scene._hold)
    await asyncio.sleep(0)
    assert scene.feed._live
    scene.let_go()
    assert await asyncio.gather(scene.running, again) == ["held", "held"]


async def test_only_so_many_share_a_read(scene: Scene) -> None:
    asked = [await scene.asked("a") for _ in range(2 * SHARED_MAX + 1)]
    scene.let_go()
    await asyncio.gather(*asked)
    assert scene.read == ["a"] * 3


async def test_streams_at_the_head_go_before_those_that_catch_up(scene: Scene) -> None:
    scene.feed._turn_at = float("inf")
    asked = [await scene.asked("late 1", late=True), await scene.asked("late 2", late=True)]
    asked += [await scene.asked("live 1"), await scene.asked("live 2")]
    scene.let_go()
    await asyncio.gather(*asked)
    assert scene.read == ["live 1", "live 2", "late 1", "late 2"]


async def test_who_catches_up_gets_a_turn_however_much_happens_at_the_head(scene: Scene) -> None:
    asked = [await scene.asked("late 1", late=True), await scene.asked("late 2", late=True)]
    asked += [await scene.asked("live 1"), await scene.asked("live 2")]
    scene.let_go()
    await asyncio.gather(*asked)
    assert scene.read[0] == "late 1"
    assert scene.read.index("live 1") < scene.read.index("late 2")


async def test_who_gives_up_leaves_the_read_to_the_others(scene: Scene) -> None:
    gone, patient = await scene.asked("a"), await scene.asked("a")
    gone.cancel()
    await asyncio.wait([gone])
    scene.let_go()
    assert await patient == "A"
    assert gone.cancelled()


async def test_an_error_reaches_all_callers_and_the_next_read_continues(scene: Scene) -> None:
    failing = [scene.ask(scene.fail), scene.ask(scene.fail)]
    await asyncio.sleep(0)
    after = await scene.asked("a")
    scene.let_go()
    told = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(one) for one in told] == [ValueError, ValueError]
    assert await after == "A"
    assert scene.read == ["failed", "a"]


async def test_a_feed_that_closes_finishes_what_it_reads_and_refuses_the_rest(scene: Scene) -> None:
    waiting = [await scene.asked("a"), await scene.asked("b", late=True)]
    closing = asyncio.create_task(asyncio.to_thread(scene.feed.close))
    await eventually(lambda: scene.feed._closed)
    scene.let_go()
    await closing
    assert await scene.running == "held"
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in told] == [Draining, Draining]
    with pytest.raises(Draining, match="this node has stopped"):
        await scene.feed.read(scene.note, "c")


async def test_other_reads_do_not_wait_for_streams(store: Store) -> None:
    views = Views(store)
    scene = Scene(views.feed)
    await scene.fill()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            assert await views.read(views.task, "nobody") is None
        assert not scene.running.done()
    finally:
        scene.let_go()
        await scene.running
        await asyncio.to_thread(views.close)
