"""The agent of `examples/durable_agent.py`, which announces each of its commit points.

At a point that it has not announced before, it writes the point to a file and waits. In the mode
`killed` it waits for its death. In the mode `lost` it waits until the test has killed the server
and started it again; then it goes on as if the response had been lost, so it repeats the request.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from examples import durable_agent

from fairlane.core.errors import StoreUnavailable
from fairlane.worker.remote import RemoteSource

POINTS, PASSED = Path(os.environ["POINTS"]), Path(os.environ["PASSED"])
MODE = os.environ["MODE"]
LOOK_SECONDS = 0.01


def lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.exists() else []


def write(point: str) -> None:
    with POINTS.open("a", encoding="utf-8") as log:
        log.write(f"{point}\n")


async def announce(point: str) -> bool:
    """Return False for a point that was announced before. Otherwise wait, and return True."""
    if point in lines(POINTS):
        return False
    write(point)
    while point not in lines(PASSED):  # noqa: ASYNC110 - the test tells only by a file
        await asyncio.sleep(LOOK_SECONDS)
    return True


def named(verb: str, what: tuple[Any, ...]) -> str:
    if verb == "submit":
        return f"submit child {what[0]['params']['day']}"
    if verb == "checkpoint":
        return f"record {what[1]} {what[2]}"
    return " ".join([verb, *(str(one) for one in what[2:3] if verb in ("suspend", "effect"))])


def mortal(verb: str) -> None:
    """Stop before a result is recorded, and after each request that commits."""
    send = getattr(RemoteSource, verb)

    async def sent(self: RemoteSource, *what: Any) -> Any:
        point = named(verb, what)
        if MODE == "killed" and verb == "checkpoint":
            await announce(f"before {point}")
        found = await send(self, *what)
        if await announce(point) and MODE == "lost":
            raise StoreUnavailable("the response was lost")
        return found

    setattr(RemoteSource, verb, sent)


if __name__ == "__main__":
    for one in ("checkpoint", "submit", "suspend", "effect", "complete"):
        mortal(one)
    worker = durable_agent.worker
    worker.lease_seconds, worker.renew_seconds = 1.0, 0.2
    worker.serve(
        lambda: print(  # noqa: T201 - the test waits for it
            f"{worker.name} takes tasks", file=sys.stderr, flush=True
        )
    )
