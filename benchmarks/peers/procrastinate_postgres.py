"""Procrastinate on PostgreSQL: its asynchronous app, pool and worker."""

from __future__ import annotations

from collections.abc import Callable

from procrastinate import App, PsycopgConnector

from benchmarks.peers import harness
from benchmarks.peers.harness import CONNECTIONS, AsyncPeer, Setting
from benchmarks.peers.workers import Gate, Tally


class Procrastinate(AsyncPeer):
    name = "procrastinate"
    package = "procrastinate"
    store = "postgres"
    settings = (
        {"processes": 1, "concurrency": 20},
        {"processes": 2, "concurrency": 10},
        {"processes": 2, "concurrency": 20},
    )
    note = f"pool of {CONNECTIONS} connections"

    def __init__(self, url: str, tally: Tally) -> None:
        super().__init__(url, tally)
        connector = PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        self._app = App(connector=connector)
        self._no_op = self._app.task(name="no_op")(self.no_op)

    def prepare(self) -> None:
        self.run(self._connect())
        self.run(self._app.schema_manager.apply_schema_async())

    async def _connect(self) -> None:
        await self._app.open_async()

    async def submit_one(self) -> None:
        await self._no_op.defer_async()

    def submit_in_bulk(self, count: int) -> None:
        self.run(self._no_op.batch_defer_async(*({} for _ in range(count))))

    def other_ways(self) -> dict[str, Callable[[int], None]]:
        return super().other_ways() | {"bulk": self.submit_in_bulk}

    def unfinished(self) -> int:
        row = self.run(self._app.connector.execute_query_one_async(UNFINISHED))
        return int(row["count"])

    def is_durable(self) -> bool:
        return harness.postgres_is_durable(self.url)

    def work(self, setting: Setting, gate: Gate) -> None:
        self.run(self._connect())
        gate.wait()
        self.run(self._app.run_worker_async(concurrency=setting["concurrency"]))

    async def disconnect(self) -> None:
        await self._app.close_async()


UNFINISHED = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

PEER = Procrastinate

if __name__ == "__main__":
    harness.main("benchmarks.peers.procrastinate_postgres")
