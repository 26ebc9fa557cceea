"""An external worker that naps. Its name has its process id, so that a test can tell them apart."""

from __future__ import annotations

import asyncio
import os
import sys

from fairlane import Work, Worker

HANDLER = "nap"


def main(url: str) -> None:
    worker = Worker(url, name=f"w-{os.getpid()}")

    @worker.handler(HANDLER)
    async def nap(work: Work) -> str:
        await asyncio.sleep(work.params["ms"] / 1000)
        return worker.name

    worker.serve(lambda: print("leases", flush=True))  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
