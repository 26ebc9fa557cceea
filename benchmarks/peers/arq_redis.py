"""arq on Redis, its results not kept and its polling delay taken down from half a second."""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import suppress

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers import harness
from benchmarks.peers.harness import AsyncPeer, Setting
from benchmarks.peers.workers import Gate

QUEUE = "fairlane-bench-arq"
POLL_SECONDS = 0.001


class Arq(AsyncPeer):
    name = "arq"
    package = "arq"
    store = "redis"
    settings = (
        {"processes": 1, "max_jobs": 10},
        {"processes": 1, "max_jobs": 50},
        {"processes": 2, "max_jobs": 50},
    )
    note = "poll_delay=1 ms, results not kept"

    def prepare(self) -> None:
        self.run(self._connect())

    async def _connect(self) -> None:
        settings = RedisSettings.from_dsn(self.url)
        self._pool = await create_pool(settings, default_queue_name=QUEUE)

    async def submit_one(self) -> None:
        await self._pool.enqueue_job("no_op")

    def unfinished(self) -> int:
        return int(self.run(self._pool.zcard(QUEUE)))

    def is_durable(self) -> bool:
        return False

    def work(self, setting: Setting, gate: Gate) -> None:
        self.run(self._connect())
        self.run(self._work(setting["max_jobs"], gate))

    async def _work(self, max_jobs: int, gate: Gate) -> None:
        worker = Worker(
            [func(self.no_op, name="no_op")],
            queue_name=QUEUE,
            redis_pool=self._pool,
            max_jobs=max_jobs,
            keep_result=0,
            poll_delay=POLL_SECONDS,
        )
        gate.wait()
        # arq ends on SIGTERM by cancelling itself.
        with suppress(CancelledError):
            await worker.async_run()

    async def disconnect(self) -> None:
        await self._pool.aclose()


PEER = Arq

if __name__ == "__main__":
    harness.main("benchmarks.peers.arq_redis")
