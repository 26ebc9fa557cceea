"""PgQueuer on PostgreSQL through asyncpg.

Its worker runs in drain mode: in the other, the last completions wait in a buffer for a timer.
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
from pgqueuer import PgQueuer as Application
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers import harness
from benchmarks.peers.harness import CONNECTIONS, AsyncPeer, Setting
from benchmarks.peers.workers import Gate

BULK_MAX = 1000


class PgQueuer(AsyncPeer):
    name = "pgqueuer"
    package = "pgqueuer"
    store = "postgres"
    settings = (
        {"processes": 1, "batch_size": 100},
        {"processes": 1, "batch_size": 500},
        {"processes": 2, "batch_size": 500},
    )
    note = f"asyncpg, pool of {CONNECTIONS} connections, bulk of {BULK_MAX}"

    def prepare(self) -> None:
        self.run(self._connect())
        self.run(self._queries.install())

    async def _connect(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        self._queries = Queries.from_asyncpg_pool(self._pool)

    async def submit_one(self) -> None:
        await self._queries.enqueue("no_op", None)

    def submit_in_bulk(self, count: int) -> None:
        for begin in range(0, count, BULK_MAX):
            size = min(BULK_MAX, count - begin)
            self.run(self._queries.enqueue(["no_op"] * size, [None] * size, [0] * size))

    def other_ways(self) -> dict[str, Callable[[int], None]]:
        return super().other_ways() | {"bulk": self.submit_in_bulk}

    def unfinished(self) -> int:
        return int(self.run(self._pool.fetchval("SELECT count(*) FROM pgqueuer")))

    def is_durable(self) -> bool:
        return harness.postgres_is_durable(self.url)

    def work(self, setting: Setting, gate: Gate) -> None:
        self.run(self._connect())
        application = Application.from_asyncpg_pool(self._pool)
        application.entrypoint("no_op")(self.no_op)
        gate.wait()
        self.run(application.run(batch_size=setting["batch_size"], mode=QueueExecutionMode.drain))

    async def disconnect(self) -> None:
        await self._pool.close()


PEER = PgQueuer

if __name__ == "__main__":
    harness.main("benchmarks.peers.pgqueuer_postgres")
