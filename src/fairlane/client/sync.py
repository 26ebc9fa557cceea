"""The client: Fairlane's verbs for programs that are not in the server's process.

An answer is the JSON of the route, as a dict; a refusal is raised as the error of `core.errors`
that has its code. Any number of threads may use one client. A stream that breaks off is opened
again behind the last event that was handed out, so that none is skipped and none comes twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Literal, Self, Unpack, overload

from fairlane.client import transport
from fairlane.client.binding import bound
from fairlane.client.calling import Asked
from fairlane.client.methods import Methods, Q, R
from fairlane.client.transport import DEFAULT_URL, Streaming, Transport
from fairlane.client.verbs import Verbs, WhichEvents, event_query, task_path
from fairlane.clock import SystemClock
from fairlane.core import lifecycle
from fairlane.core.errors import BusyError
from fairlane.schema import sse, wire
from fairlane.schema.cron import CronJobPage
from fairlane.schema.operation import Operation
from fairlane.schema.task_status import TaskStatus

TIMEOUT_SECONDS: Final = 30.0
# How long the server is asked to wait at a time; a parked task is noticed when it is over.
WAIT_SLICE_SECONDS: Final = 1.0
# Where a task stays until a person acts.
AT_REST: Final = lifecycle.TERMINAL | {lifecycle.PARKED}

# A stream has a heartbeat every 15 s: what is silent for so long is dead.
SILENCE_SECONDS: Final = 45.0
# For how long a lost server is looked for, and how often.
RECONNECT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.25
PAUSE_SECONDS_MAX: Final = 5.0

Shape = dict[str, Any]
Shapes = Generator[Shape, None, None]


class Client(Verbs[Shape], Methods):
    """A client for programs without an event loop; calls return when the response is there.

    Close it, or use it as a context manager. One client may be used by many threads.

    Args:
        url: Address of the server
        token: Access token; by default that of FAIRLANE_TOKEN or FAIRLANE_TOKEN_FILE
        timeout: Seconds to wait for a response
        reconnect_seconds: How long `events` and `output` look for a server that went away
        transport: Transport to use instead of HTTP
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or _connected(url, token)
        self._timeout = timeout
        self._reconnect_seconds = reconnect_seconds
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or is parked, and return it.

        After `timeout` seconds, return the task as it is.
        """
        end = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            left = WAIT_SLICE_SECONDS
            if end is not None:
                left = min(left, max(0.0, end - self._clock.monotonic()))
            task = self.wait_once(task_id, timeout_ms=round(left * 1000))
            over = end is not None and self._clock.monotonic() >= end
            if over or task.state in AT_REST:
                return task

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> Shapes:
        """Iterate over events after the id `after`, in order, each once.

        With `follow`, start at this call unless `after` is given, and continue until the generator
        is closed. Without it, start with the oldest event and end with the newest. Raise
        `Unreachable` if a lost server does not come back.
        """
        query = event_query(which)
        if not follow:
            return self._pages(query, after or 0)
        stream = self._stream("/events", query, "" if after is None else str(after))
        return _decoded(stream)

    @overload
    def output(self, task_id: str, *, follow: Literal[False] = False) -> Shape: ...

    @overload
    def output(self, task_id: str, *, follow: Literal[True]) -> Shapes: ...

    def output(self, task_id: str, *, follow: bool = False) -> Shape | Shapes:
        """Return the text that the newest attempt has produced so far.

        With `follow`, iterate over the text of all attempts, piece by piece, until the task has
        ended or is parked.
        """
        path = task_path(task_id, "/output")
        return _until_end(self._stream(path, {}, "")) if follow else self.call("GET", path)

    def create_cron_jobs(self, documents: Sequence[Mapping[str, Any]]) -> CronJobPage:
        """Create all of these jobs or, when something is wrong with one, none."""
        created = self.create_cron_job({"jobs": list(documents)})
        assert isinstance(created, CronJobPage)
        return created

    def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        """Call any route and return its JSON. Raise the error that the server responds with."""
        request = transport.build(method, path, timeout_seconds=self._timeout, **asked)
        return transport.understood(self._transport.ask(request), self._transport.where)

    def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Carry out a declared operation and return its typed response."""
        path, asked = bound(operation, request)
        sent = transport.build(operation.method, path, timeout_seconds=self._timeout, **asked)
        return transport.decoded(self._transport.ask(sent), self._transport.where, operation)

    def _pages(self, query: Mapping[str, Any], after: int) -> Shapes:
        while True:
            where = {**query, "after": after, "limit": wire.LIST_LIMIT_MAX}
            page = self.call("GET", "/events", query=where)
            yield from page["events"]
            after = page["nextAfter"]
            # A page may be short because its events are large; an older server does not say.
            if not page.get("more", len(page["events"]) == wire.LIST_LIMIT_MAX):
                return

    def _stream(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> Generator[sse.Event, None, None]:
        """Return a stream that is connected, so that nothing after this call is missed."""

        def connect(last_id: str) -> Streaming:
            request = transport.build(
                "GET",
                path,
                query=query,
                last_event_id=last_id,
                accept=transport.EVENT_STREAM,
                timeout_seconds=SILENCE_SECONDS,
            )
            return transport.opened(self._transport.stream(request), self._transport.where)

        stream = self._events(connect, sse.Follower(last_id))
        next(stream)
        return stream

    def _events(
        self, connect: Callable[[str], Streaming], follower: sse.Follower
    ) -> Generator[sse.Event, None, None]:
        """Yield an empty event once connected, then all events, reconnecting as needed."""
        streaming, begun = connect(follower.last_id), False
        while True:
            try:
                for piece in streaming.pieces:
                    events = follower.feed(piece)
                    if not begun:
                        begun = True
                        yield sse.Event("")
                    yield from events
            except BusyError:
                pass  # it broke off, which is as good as an end
            finally:
                streaming.pieces.close()
            streaming = self._connected_again(connect, follower.last_id)
            follower.connected()

    def _connected_again(self, connect: Callable[[str], Streaming], last_id: str) -> Streaming:
        pause = PAUSE_SECONDS
        end = self._clock.monotonic() + self._reconnect_seconds
        while True:
            self._clock.sleep(pause)
            try:
                return connect(last_id)
            except BusyError:
                if self._clock.monotonic() >= end:
                    raise
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


def _decoded(stream: Generator[sse.Event, None, None]) -> Shapes:
    with contextlib.closing(stream):
        for event in stream:
            yield wire.decode(event.data)


def _until_end(stream: Generator[sse.Event, None, None]) -> Shapes:
    with contextlib.closing(stream):
        for event in stream:
            if event.name == "end":
                return
            yield wire.decode(event.data)


def _connected(url: str, token: str | None) -> Transport:
    from fairlane.client.connection import HttpTransport  # noqa: PLC0415 - slow to import, and not for all

    return HttpTransport(url, token)
