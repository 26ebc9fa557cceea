"""A worker in a process of its own, for tests that kill it: it writes down what it does.

A line is one `write` to a file, so whatever it wrote before it was killed stays written. It writes
that it has begun after it was given the lease, and that it ends before it reports: what is between
lies inside what was true.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from fairlane import Work, Worker

LANE = "narrow"
HANDLER = "count"
LEASE_SECONDS = 1.0


def main(url: str, record: str, name: str) -> None:
    worker = Worker(
        url,
        lanes=[LANE],
        concurrency=1,
        name=name,
        lease_seconds=LEASE_SECONDS,
        renew_seconds=LEASE_SECONDS / 10,
    )
    lines = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(work: Work, what: str) -> None:
        os.write(lines, f"{work.task_id} {work.attempt} {what} {time.time_ns()}\n".encode())

    @worker.handler(HANDLER)
    async def count(work: Work) -> Any:
        write(work, "begin")
        try:
            await asyncio.sleep(work.request["params"]["ms"] / 1000)
        finally:
            write(work, "end")
        return [name, work.attempt]

    worker.serve(lambda: print("leases", flush=True))  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
