"""A drain that outlasts a lease: what still runs is renewed until the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fairlane.clock import SystemClock
from fairlane.core.model import Submission
from fairlane.core.policy import Policy
from fairlane.engine.commands import Submit
from fairlane.engine.writing_node import WritingNode
from fairlane.store.opening import open_store
from fairlane.worker.executors.builtin import HandlerExecutor
from fairlane.worker.loop import Loop
from fairlane.worker.source import EngineSource
from tests.fakes.waiting import eventually


class Counting(EngineSource):
    renewals = 0

    def renew(self, assignments: Any) -> Any:
        self.renewals += 1
        return super().renew(assignments)


@pytest.fixture
def node() -> Iterator[WritingNode]:
    node = WritingNode(open_store("sqlite://:memory:"), SystemClock())
    node.start()
    yield node
    node.stop()


async def test_leases_are_renewed_until_a_drain_is_over(node: WritingNode) -> None:
    may_end, began = asyncio.Event(), asyncio.Event()

    async def work(_: Any) -> str:
        began.set()
        await may_end.wait()
        return "done"

    source = Counting(node.writer, node.name, Policy)
    executor = HandlerExecutor({"work": work})
    worker = Loop(source, lambda: {"handler/work": executor}, lambda: 0, renew_seconds=0.02)
    running = asyncio.create_task(worker.run())
    await node.submit(Submit([submission("one")]))
    await began.wait()
    draining = asyncio.create_task(worker.drain(30))
    await eventually(running.done)
    before = source.renewals
    await eventually(lambda: source.renewals > before + 2)
    may_end.set()
    await draining
    assert (await node.show("one")).task.state == "done"


def submission(task_id: str) -> Submission:
    return Submission(
        id=task_id, kind="handler", agent="a", capability="handler/work", body='{"handler":"work"}'
    )


class Pausing(WritingNode):
    """A node in which the answer to the first look at a task takes its time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.looked, self.go_on = asyncio.Event(), asyncio.Event()

    async def show(self, *args: Any) -> Any:
        view = await super().show(*args)
        self.looked.set()
        await self.go_on.wait()
        return view


async def test_a_waiter_gets_the_final_state_when_a_node_stops_during_the_lookup() -> None:
    node = Pausing(open_store("sqlite://:memory:"), SystemClock())
    node.start()
    await node.submit(Submit([submission("one")]))
    waiting = asyncio.create_task(node.wait("one", None))
    await node.looked.wait()
    await node.cancel("one")
    node.let_waiters_go()
    node.go_on.set()
    assert (await waiting).task.state == "cancelled"
    node.stop()
