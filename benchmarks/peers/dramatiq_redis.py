"""Dramatiq on Redis with its default middleware."""

from __future__ import annotations

import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import harness
from benchmarks.peers.harness import Peer, Setting
from benchmarks.peers.workers import Gate, Tally

QUEUE = "fairlane-bench-dramatiq"


class Dramatiq(Peer):
    name = "dramatiq"
    package = "dramatiq"
    store = "redis"
    settings = (
        {"processes": 2, "threads": 8, "prefetch": 16},
        {"processes": 2, "threads": 8, "prefetch": 200},
        {"processes": 2, "threads": 2, "prefetch": 200},
    )
    note = "default middleware"

    def __init__(self, url: str, tally: Tally) -> None:
        super().__init__(url, tally)
        self._broker = RedisBroker(url=url)
        declare = dramatiq.actor(broker=self._broker, actor_name="no_op", queue_name=QUEUE)
        self._no_op = declare(tally.mark)

    def prepare(self) -> None:
        self._broker.client.ping()

    def submit(self, count: int) -> None:
        for _ in range(count):
            self._no_op.send()

    def unfinished(self) -> int:
        return int(self._broker.client.hlen(f"dramatiq:{QUEUE}.msgs"))

    def is_durable(self) -> bool:
        return False

    def work(self, setting: Setting, gate: Gate) -> None:
        worker = dramatiq.Worker(self._broker, worker_threads=setting["threads"])
        worker.queue_prefetch = setting["prefetch"]
        gate.wait()
        worker.start()
        threading.Event().wait()


PEER = Dramatiq

if __name__ == "__main__":
    harness.main("benchmarks.peers.dramatiq_redis")
