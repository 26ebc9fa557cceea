"""Huey on SQLite with its defaults: WAL, and an fsync at each commit."""

from __future__ import annotations

from huey import SqliteHuey

from benchmarks.peers import harness
from benchmarks.peers.harness import Peer, Setting
from benchmarks.peers.workers import Gate, Tally

IDLE_POLL_SECONDS = 0.001
SYNCHRONOUS_FULL = 2


class Huey(Peer):
    name = "huey"
    package = "huey"
    store = "sqlite"
    settings = (
        {"processes": 1, "threads": 1},
        {"processes": 1, "threads": 2},
        {"processes": 2, "threads": 1},
    )
    note = "WAL, synchronous=FULL; polls every 1 ms when idle"

    def __init__(self, url: str, tally: Tally) -> None:
        super().__init__(url, tally)
        self._huey = SqliteHuey("bench", filename=url)
        self._no_op = self._huey.task(name="no_op")(tally.mark)

    def prepare(self) -> None:
        """Its constructor has done it all."""

    def submit(self, count: int) -> None:
        for _ in range(count):
            self._no_op()

    def unfinished(self) -> int:
        return len(self._huey)

    def is_durable(self) -> bool:
        ((level,),) = self._huey.storage.sql("PRAGMA synchronous", results=True)
        return bool(level >= SYNCHRONOUS_FULL)

    def work(self, setting: Setting, gate: Gate) -> None:
        consumer = self._huey.create_consumer(
            workers=setting["threads"],
            periodic=False,
            initial_delay=IDLE_POLL_SECONDS,
            max_delay=IDLE_POLL_SECONDS,
        )
        gate.wait()
        consumer.run()


PEER = Huey

if __name__ == "__main__":
    harness.main("benchmarks.peers.huey_sqlite")
