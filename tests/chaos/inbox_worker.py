"""An external worker whose runs work a little and take what reaches them meanwhile.

The result of a run is what it saw, in order, so that the scenario can compare it with the store.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from fairlane import Work, Worker

HANDLER = "talk"
LEASE_SECONDS = 3.0


def main(url: str, token: str, name: str) -> None:
    worker = Worker(
        url, token=token, lanes=["main"], concurrency=40, name=name, lease_seconds=LEASE_SECONDS
    )
    worker.renew_seconds = LEASE_SECONDS / 3

    @worker.handler(HANDLER)
    async def talk(work: Work) -> Any:
        chance = random.Random(work.task_id)
        saw = [message["id"] for message in work.messages]
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0.005)
            saw += [message["id"] for message in await work.inbox()]
        if chance.random() < 0.02 and work.attempt == 1:
            raise RuntimeError("a bug of the agent")
        return {"saw": saw}

    worker.serve(lambda: print("leases", flush=True))  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
