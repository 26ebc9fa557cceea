"""SAQ on Redis with its defaults."""

from __future__ import annotations

from saq import Queue, Worker

from benchmarks.peers import harness
from benchmarks.peers.harness import AsyncPeer, Setting
from benchmarks.peers.workers import Gate

QUEUE = "fairlane-bench-saq"


class Saq(AsyncPeer):
    name = "saq"
    package = "saq"
    store = "redis"
    settings = (
        {"processes": 1, "concurrency": 10},
        {"processes": 2, "concurrency": 10},
        {"processes": 2, "concurrency": 50},
    )
    note = "defaults"

    def prepare(self) -> None:
        self.run(self._connect())

    async def _connect(self) -> None:
        self._queue = Queue.from_url(self.url, name=QUEUE)
        await self._queue.connect()

    async def submit_one(self) -> None:
        await self._queue.enqueue("no_op")

    def unfinished(self) -> int:
        return int(self.run(self._queue.count("incomplete")))

    def is_durable(self) -> bool:
        return False

    def work(self, setting: Setting, gate: Gate) -> None:
        self.run(self._connect())
        self.run(self._work(setting["concurrency"], gate))

    async def _work(self, concurrency: int, gate: Gate) -> None:
        worker = Worker(self._queue, [("no_op", self.no_op)], concurrency=concurrency)
        gate.wait()
        await worker.start()

    async def disconnect(self) -> None:
        await self._queue.disconnect()


PEER = Saq

if __name__ == "__main__":
    harness.main("benchmarks.peers.saq_redis")
