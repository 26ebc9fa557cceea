"""Tasks that depend on each other, through the Python API: one to many to one, and a long chain.

The first task waits until all others are submitted; what is measured is from then on, until the
last of them is done. The handlers do nothing, so it is the scheduler's own time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.ours import Row, run_in_loop
from benchmarks.servers import WIDE_OPEN
from fairlane.embedded.app import Fairlane

CALLERS = 64
SECONDS_MAX = 600.0

Plant = Callable[[Fairlane, str], Awaitable[str]]


def fan_out(store: str, width: int) -> Row:
    """One task, `width` that depend on it, and one that depends on all of those."""

    async def plant(app: Fairlane, first: str) -> str:
        middle = await _submit_all(app, width, first)
        last = await app.submit(handler="noop", depends_on=middle)
        return last.id

    return run_in_loop(_measured(store, width + 2, plant))


def chain(store: str, length: int) -> Row:
    """Tasks that each depend on the one before."""

    async def plant(app: Fairlane, first: str) -> str:
        newest = first
        for _ in range(length - 1):
            newest = (await app.submit(handler="noop", depends_on=[newest])).id
        return newest

    return run_in_loop(_measured(store, length, plant))


async def _submit_all(app: Fairlane, count: int, parent: str) -> list[str]:
    """So many children of one parent, by several callers, each one after the other."""
    left = iter(range(count))

    async def caller() -> list[str]:
        return [(await app.submit(handler="noop", depends_on=[parent])).id for _ in left]

    found = await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return [id_ for ids in found for id_ in ids]


async def _measured(store: str, tasks: int, plant: Plant) -> Row:
    ran = 0
    go = asyncio.Event()
    async with Fairlane(store, policy=WIDE_OPEN) as app:

        @app.handler("first")
        async def first(_: Any) -> None:
            await go.wait()

        @app.handler("noop")
        async def noop(_: Any) -> None:
            nonlocal ran
            ran += 1

        began = time.perf_counter()
        root = await app.submit(handler="first")
        last = await plant(app, root.id)
        planted = time.perf_counter()
        go.set()
        view = await app.node.wait(last, SECONDS_MAX)
        ended = time.perf_counter()
    assert (view.task.state, ran) == ("done", tasks - 1), f"{view.task.state}, {ran} of {tasks} ran"
    return {
        "submit_per_s": round(tasks / (planted - began)),
        "run_per_s": round(tasks / (ended - planted)),
        "run_s": round(ended - planted, 2),
        "total_s": round(ended - began, 2),
    }
