"""How every peer is measured: rounds of the same no-op work, on the peer's real worker.

A round submits N tasks one call each (or in the peer's other ways), opens the gate for workers that
stand ready, and waits until N no-ops have run *and* the store holds none unfinished. There is one
round per worker setting and the best figures are reported, which favours the peer.
`lifecycle_per_s` is N over the seconds of the best round, submission and drain together; a round
submitted in bulk counts for `bulk_submit_per_s` and `drain_per_s` only.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar
from urllib.parse import urlsplit, urlunsplit

from benchmarks.peers import servers, workers
from benchmarks.peers.workers import Gate, Tally, WorkerSet

Setting = Mapping[str, Any]
T = TypeVar("T")

NOT_MEASURED = 3
CALLERS = 32
CONNECTIONS = 16
DRAIN_SECONDS_MAX = 60
POLL_SECONDS = 0.001
DURABLE_WHEN_ON = ("fsync", "synchronous_commit")


class Peer(ABC):
    """One queue: the producer's side here, `work` in an instance of its own in each worker."""

    name: ClassVar[str]
    package: ClassVar[str]
    store: ClassVar[str]
    settings: ClassVar[tuple[Setting, ...]]
    note: ClassVar[str]

    def __init__(self, url: str, tally: Tally) -> None:
        self.url = url
        self.tally = tally

    @abstractmethod
    def prepare(self) -> None:
        """Create what the queue needs and connect."""

    @abstractmethod
    def submit(self, count: int) -> None:
        """Submit `count` no-ops from one producer, one call each."""

    @abstractmethod
    def unfinished(self) -> int:
        """How many tasks the store still holds as not done."""

    @abstractmethod
    def is_durable(self) -> bool:
        """Whether a submitted task is on disk when the call returns."""

    @abstractmethod
    def work(self, setting: Setting, gate: Gate) -> None:
        """Run the peer's worker until it is terminated."""

    def other_ways(self) -> dict[str, Callable[[int], None]]:
        """Further ways to submit: `concurrent` and `bulk`."""
        return {}

    def close(self) -> None:  # noqa: B027 - not every peer has something to close
        """Let go of connections."""


class AsyncPeer(Peer):
    """A peer whose producers are coroutines; it also submits from many callers at once."""

    def __init__(self, url: str, tally: Tally) -> None:
        super().__init__(url, tally)
        self._runner = asyncio.Runner(loop_factory=_loop_factory())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @abstractmethod
    async def submit_one(self) -> None: ...

    @abstractmethod
    async def disconnect(self) -> None: ...

    async def no_op(self, *_: object) -> None:
        self.tally.mark()

    def submit(self, count: int) -> None:
        self.run(self._submit_many(count))

    def submit_concurrently(self, count: int) -> None:
        async def all_callers() -> None:
            await asyncio.gather(*(self._submit_many(share) for share in _shares(count, CALLERS)))

        self.run(all_callers())

    def other_ways(self) -> dict[str, Callable[[int], None]]:
        return {"concurrent": self.submit_concurrently}

    def close(self) -> None:
        with closing(self._runner):
            self.run(self.disconnect())

    async def _submit_many(self, count: int) -> None:
        for _ in range(count):
            await self.submit_one()


@dataclass(frozen=True)
class Round:
    way: str
    setting: Setting
    submit_seconds: float
    drain_seconds: float

    @property
    def seconds(self) -> float:
        return self.submit_seconds + self.drain_seconds


def main(module: str) -> None:
    """Measure the one peer that `module` defines and print its row."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _leave)
    peer = _peer_of(module)
    try:
        with tempfile.TemporaryDirectory() as folder, _store_for(peer, arguments, folder) as url:
            row = measure(peer, url, arguments.tasks, Tally(Path(folder, "tally")))
    except servers.NotMeasured as missing:
        print(f"{peer.name}: {missing}", file=sys.stderr)
        sys.exit(NOT_MEASURED)
    print(json.dumps(row))


def measure(peer: type[Peer], url: str, tasks: int, tally: Tally) -> dict[str, object]:
    with closing(peer(url, tally)) as queue:
        queue.prepare()
        rounds = [
            _round(queue, setting, tasks, "one by one", queue.submit) for setting in peer.settings
        ]
        best = min(rounds, key=lambda each: each.seconds).setting
        for way, submit in queue.other_ways().items():
            rounds.append(_round(queue, best, tasks, way, submit))
        durable = queue.is_durable()
    return _row(peer, tasks, rounds, durable=durable)


def _round(
    queue: Peer, setting: Setting, tasks: int, way: str, submit: Callable[[int], None]
) -> Round:
    with workers.started(type(queue), queue.url, queue.tally, setting) as worker_set:
        ran_before = queue.tally.count()
        begun_at = time.perf_counter()
        submit(tasks)
        queued_at = time.perf_counter()
        worker_set.begin()
        _wait_until_drained(queue, ran_before + tasks, worker_set)
        drained_at = time.perf_counter()
    return Round(way, setting, queued_at - begun_at, drained_at - queued_at)


def _wait_until_drained(queue: Peer, ran: int, worker_set: WorkerSet) -> None:
    give_up_at = time.monotonic() + DRAIN_SECONDS_MAX
    while queue.tally.count() < ran or queue.unfinished():
        worker_set.check_alive()
        if time.monotonic() > give_up_at:
            left = ran - queue.tally.count()
            raise RuntimeError(
                f"{queue.name}: {left} tasks had not run after {DRAIN_SECONDS_MAX} s"
            )
        time.sleep(POLL_SECONDS)


def _row(peer: type[Peer], tasks: int, rounds: list[Round], *, durable: bool) -> dict[str, object]:
    best = min((each for each in rounds if each.way != "bulk"), key=lambda each: each.seconds)
    row: dict[str, object] = {
        "peer": peer.name,
        "version": version(peer.package),
        "store": peer.store,
        "durable": durable,
        "tasks": tasks,
        "submit_per_s": round(tasks / _submit_seconds(rounds, "one by one")),
        "drain_per_s": round(tasks / min(each.drain_seconds for each in rounds)),
        "lifecycle_per_s": round(tasks / best.seconds),
    }
    for way in ("concurrent", "bulk"):
        if any(each.way == way for each in rounds):
            row[f"{way}_submit_per_s"] = round(tasks / _submit_seconds(rounds, way))
    return row | {"note": _note(peer, best)}


def _submit_seconds(rounds: list[Round], way: str) -> float:
    return min(each.submit_seconds for each in rounds if each.way == way)


def _note(peer: type[Peer], best: Round) -> str:
    chosen = " ".join(f"{key}={value}" for key, value in best.setting.items())
    way = f"{CALLERS} callers" if best.way == "concurrent" else "one producer"
    return f"workers: {chosen} (best of {len(peer.settings)}); lifecycle: {way}; {peer.note}"


@contextmanager
def _store_for(peer: type[Peer], arguments: argparse.Namespace, folder: str) -> Iterator[str]:
    """The URL given, or that of a server started for this run."""
    with ExitStack() as stack:
        if peer.store == "sqlite":
            yield str(Path(folder, "queue.db"))
        elif peer.store == "redis":
            yield arguments.redis or stack.enter_context(servers.redis_server())
        else:
            server = arguments.postgres or stack.enter_context(servers.postgres_server())
            yield stack.enter_context(_own_database(server))


@contextmanager
def _own_database(server: str) -> Iterator[str]:
    """A database that only this run uses, on the server given."""
    import psycopg

    name = f"peer_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def postgres_is_durable(url: str) -> bool:
    import psycopg

    with psycopg.connect(url) as connection:
        rows = [connection.execute(f"SHOW {name}").fetchone() for name in DURABLE_WHEN_ON]
    return all(row is not None and row[0] != "off" for row in rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--postgres", metavar="URL", help="use this server; default: start one")
    parser.add_argument("--redis", metavar="URL", help="use this server; default: start one")
    return parser.parse_args()


def _peer_of(module: str) -> type[Peer]:
    # By its real name and not as `__main__`: names and pickles must mean the same in the workers.
    peer: type[Peer] = importlib.import_module(module).PEER
    return peer


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, which comes with PgQueuer, for every peer that runs on asyncio."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _leave(*_: object) -> NoReturn:
    """Turn SIGTERM into an exit that runs every `finally`: no process is left behind."""
    sys.exit(1)
