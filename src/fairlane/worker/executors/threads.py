"""Threads for plain functions, which may block as long as they like.

The rule: a thread that never returns must not keep the process from ending. The interpreter joins
the threads of concurrent.futures.ThreadPoolExecutor at exit, so one stuck function would turn a
drain into a hang; these threads are daemons.
"""

from __future__ import annotations

import functools
import queue
import threading
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DaemonThreads(Executor):
    """Threads that are created when all are busy, up to `threads_max`, and reused when idle."""

    def __init__(self, threads_max: int, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._threads_max = threads_max
        self._name = name
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} threads are closed")
            self._jobs.put(functools.partial(_do, future, functools.partial(fn, *args, **kwargs)))
            self._make_room()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - the signature of Executor
        """Let idle threads end. Running functions continue and are not waited for."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _make_room(self) -> None:
        if self._idle.acquire(blocking=False) or self._threads == self._threads_max:
            return
        self._threads += 1
        name = f"{self._name}-{self._threads}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (job := self._take()) is not None:
            job()
            del job  # an idle thread keeps no arguments alive

    def _take(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            self._idle.release()
            return self._jobs.get()


def _do(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the caller that waits for the future gets it
        future.set_exception(error)
    else:
        future.set_result(result)
