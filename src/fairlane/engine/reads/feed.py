"""Reads of streams: one thread with its own connection, so that other reads never wait for them.

Streams at the head of the log come first; streams that catch up read in bounded steps. Identical
waiting reads run only once: a hundred streams with the same filter and position cost a few reads.
After each read the thread rests in proportion to its cost, because it shares Python's lock with the
event loop and the writer, and because the event loop has to send what was read. So streams, however
many there are, leave half of the time to everything else, and events that arrive meanwhile are read
together.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fairlane.clock import SystemClock
from fairlane.core.errors import Draining

STOPPED: Final = "this node has stopped; send the request to another one"
# At most this many callers share a read: the event loop sends it to all of them at once.
SHARED_MAX: Final = 32
# Streams that catch up get a turn this often, however busy the streams at the head are.
TURN_SECONDS: Final = 0.25
_SEND_SECONDS: Final = 0.0002  # roughly what the event loop needs for one caller
_REST_SECONDS_MAX: Final = 0.1

T = TypeVar("T")
Key = tuple[Any, ...]


async def finished(reading: asyncio.Future[T]) -> T:
    """Return the result of a read. Raise `Draining` if the node stopped before it began."""
    try:
        return await reading
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling():
            raise
        raise Draining(STOPPED) from None  # the read was cancelled, not its caller


class _Read:
    """A read that waits or runs, and how many callers wait for it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.callers = 0
        self.future: concurrent.futures.Future[object] = concurrent.futures.Future()

    def run(self) -> None:
        view, *arguments = self.key
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(view(*arguments))
        except BaseException as error:  # noqa: BLE001 - passed on to every waiting caller
            self.future.set_exception(error)


class _Line:
    """Reads in the order in which they were requested."""

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()
        self._open: dict[Key, _Read] = {}

    def __bool__(self) -> bool:
        return bool(self._reads)

    def join(self, key: Key) -> _Read:
        """Return a read that has not begun yet, so that it sees everything committed by now."""
        read = self._open.get(key)
        if read is None or read.callers >= SHARED_MAX:
            read = self._open[key] = _Read(key)
            self._reads.append(read)
        read.callers += 1
        return read

    def clear(self) -> list[_Read]:
        """Take all reads out of the line."""
        reads = list(self._reads)
        self._reads.clear()
        self._open.clear()
        return reads

    def pop(self) -> _Read:
        read = self._reads.popleft()
        if self._open.get(read.key) is read:
            del self._open[read.key]
        return read


class Feed:
    """Runs reads in its thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._bell = threading.Condition()
        self._live = _Line()
        self._late = _Line()
        self._rest_until = 0.0
        self._turn_at = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    async def read(self, view: Callable[..., T], *arguments: object, late: bool = False) -> T:
        """Return the result of `view`. `late` streams wait for the others.

        The arguments must be hashable: identical waiting reads run only once.
        """
        reading = asyncio.wrap_future(self._join((view, *arguments), late=late))
        return await finished(asyncio.shield(reading))  # others may wait for the same read

    def close(self) -> None:
        """Finish the current read and cancel the waiting ones."""
        with self._bell:
            self._closed = True
            waiting = [*self._live.clear(), *self._late.clear()]
            self._bell.notify()
        for read in waiting:
            read.future.cancel()
        if self._thread is not None:
            self._thread.join()

    def _join(self, key: Key, *, late: bool) -> concurrent.futures.Future[Any]:
        with self._bell:
            if self._closed:
                raise Draining(STOPPED)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fairlane-feed", daemon=True)
                self._thread.start()
            self._bell.notify()
            return (self._late if late else self._live).join(key).future

    def _run(self) -> None:
        while True:
            with self._bell:
                found = self._next()
                while found is None:
                    if self._closed:
                        return
                    self._bell.wait(self._pause())
                    found = self._next()
            read, late = found
            began = self._clock.monotonic()
            read.run()
            now = self._clock.monotonic()
            cost = read.callers * _SEND_SECONDS
            if late:
                cost += now - began
                self._turn_at = now + TURN_SECONDS
            self._rest_until = now + min(cost, _REST_SECONDS_MAX)

    def _next(self) -> tuple[_Read, bool] | None:
        """Return the next read, and whether it belongs to a stream that catches up."""
        now = self._clock.monotonic()
        if now < self._rest_until:
            return None
        if self._late and (not self._live or now >= self._turn_at):
            return self._late.pop(), True
        return (self._live.pop(), False) if self._live else None

    def _pause(self) -> float | None:
        """Return how long to wait; None means until a read arrives."""
        if not self._live and not self._late:
            return None
        return max(0.0, self._rest_until - self._clock.monotonic())
