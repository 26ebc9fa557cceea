"""Celery on Redis: no results, no events, and none of the chatter between workers."""

from __future__ import annotations

from celery import Celery as Application
from celery import signals
from redis import Redis

from benchmarks.peers import harness
from benchmarks.peers.harness import Peer, Setting
from benchmarks.peers.workers import Gate, Tally

QUEUE = "fairlane-bench-celery"


class Celery(Peer):
    name = "celery"
    package = "celery"
    store = "redis"
    settings = (
        {"processes": 1, "pool": "prefork", "concurrency": 2, "prefetch": 50},
        {"processes": 2, "pool": "solo", "concurrency": 1, "prefetch": 50},
        {"processes": 2, "pool": "solo", "concurrency": 1, "prefetch": 500},
    )
    note = "no result backend, without mingle, gossip and heartbeat"

    def __init__(self, url: str, tally: Tally) -> None:
        # A plain function: Celery inspects its signature, which fails for a bound method.
        def no_op() -> None:
            tally.mark()

        super().__init__(url, tally)
        self._application = Application("bench", broker=url)
        self._application.conf.update(task_default_queue=QUEUE, task_ignore_result=True)
        self._no_op = self._application.task(name="no_op")(no_op)
        self._redis = Redis.from_url(url)

    def prepare(self) -> None:
        self._redis.ping()

    def submit(self, count: int) -> None:
        for _ in range(count):
            self._no_op.delay()

    def unfinished(self) -> int:
        return int(self._redis.llen(QUEUE)) + int(self._redis.hlen("unacked"))

    def is_durable(self) -> bool:
        return False

    def work(self, setting: Setting, gate: Gate) -> None:
        def hold_back(**_: object) -> None:
            gate.wait()

        # This signal is sent when the pool is up, right before the worker begins to consume.
        signals.worker_ready.connect(hold_back)
        self._application.conf.worker_prefetch_multiplier = setting["prefetch"]
        worker = self._application.Worker(
            pool=setting["pool"],
            concurrency=setting["concurrency"],
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
            quiet=True,
        )
        worker.start()


PEER = Celery

if __name__ == "__main__":
    harness.main("benchmarks.peers.celery_redis")
