"""Worker processes of a peer: ready before the clock starts, held at a gate, stopped at the end.

A worker imports and sets up everything it can, then calls `gate.wait()`; the clock starts when the
gate opens. Each run of the no-op calls `tally.mark()`: one byte appended to a file, which needs no
lock between threads or processes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.harness import Peer, Setting

_processes = multiprocessing.get_context("spawn")
READY_SECONDS_MAX = 30
STOP_SECONDS_MAX = 10


class Tally:
    """How many no-ops have run, over all processes and threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def mark(self) -> None:
        os.write(self._file, b".")

    def count(self) -> int:
        return os.fstat(self._file).st_size


class Gate:
    """Holds ready workers back until the work is queued and the clock runs."""

    def __init__(self) -> None:
        self._ready = _processes.Semaphore(0)
        self._open = _processes.Event()

    def wait(self) -> None:
        self._ready.release()
        self._open.wait()

    def one_more_is_ready(self) -> bool:
        return self._ready.acquire(timeout=0.1)

    def open(self) -> None:
        self._open.set()


class WorkerSet:
    """The worker processes of one round."""

    def __init__(self, processes: list[BaseProcess], gate: Gate) -> None:
        self._processes = processes
        self._gate = gate

    def wait_until_ready(self) -> None:
        give_up_at = time.monotonic() + READY_SECONDS_MAX
        ready = 0
        while ready < len(self._processes):
            self.check_alive()
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"a worker was not ready within {READY_SECONDS_MAX} s")
            ready += self._gate.one_more_is_ready()

    def begin(self) -> None:
        self._gate.open()

    def check_alive(self) -> None:
        for process in self._processes:
            if process.exitcode:
                raise RuntimeError(f"a worker ended with exit code {process.exitcode}")


@contextmanager
def started(peer: type[Peer], url: str, tally: Tally, setting: Setting) -> Iterator[WorkerSet]:
    """Workers that stand ready at the gate; none of them is left when the block ends."""
    gate = Gate()
    count = int(setting["processes"])
    arguments = (peer, url, tally.path, setting, gate)
    processes: list[BaseProcess] = [
        _processes.Process(target=_work, args=arguments) for _ in range(count)
    ]
    try:
        for process in processes:
            process.start()
        worker_set = WorkerSet(processes, gate)
        worker_set.wait_until_ready()
        yield worker_set
    finally:
        _stop(processes)


def _work(peer: type[Peer], url: str, tally: Path, setting: Setting, gate: Gate) -> None:
    # The one JSON line is all that may reach standard output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with closing(peer(url, Tally(tally))) as queue:
        queue.work(setting, gate)


def _stop(processes: list[BaseProcess]) -> None:
    started_ones = [process for process in processes if process.pid is not None]
    for process in started_ones:
        process.terminate()
    give_up_at = time.monotonic() + STOP_SECONDS_MAX
    for process in started_ones:
        process.join(max(0, give_up_at - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
