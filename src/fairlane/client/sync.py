"""The client for programs that do not run in the server's process.

A response is typed; an error response is raised as the class of `core.errors` with its code. Any
number of threads may use one client. A stream that breaks off is opened again after the last event
that was returned, so that no event is skipped or repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Final, Unpack

from fairlane.client import transport
from fairlane.client.base import BaseClient, Shape, Shapes, pop_after
from fairlane.client.binding import bound
from fairlane.client.methods import Q, R
from fairlane.client.transport import DEFAULT_URL, Asked, ClientStream, Transport
from fairlane.core.errors import BusyError
from fairlane.schema import sse, wire
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.operation import Operation
from fairlane.schema.tasks import TASK_OUTPUT, NamedTask

TIMEOUT_SECONDS: Final = 30.0
# A stream has a heartbeat every 15 s: a connection without one for so long is dead.
SILENCE_SECONDS: Final = 45.0
# How long, and how often, to retry a server that does not respond.
RECONNECT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.25
PAUSE_SECONDS_MAX: Final = 5.0


class Client(BaseClient):
    """A client for programs without an event loop; a call returns when the response has arrived.

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

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        """Call any route and return its JSON. Raise the error that the server responds with."""
        request = transport.build(method, path, timeout_seconds=self._timeout, **asked)
        return transport.understood(self._transport.ask(request), self._transport.where)

    def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Perform a declared operation and return its typed response."""
        path, asked = bound(operation, request)
        sent = transport.build(operation.method, path, timeout_seconds=self._timeout, **asked)
        return transport.decoded(self._transport.ask(sent), self._transport.where, operation)

    def _follow_events(self, request: ListEvents) -> Shapes:
        last_id = pop_after(request)
        return _decoded(self._stream(LIST_EVENTS, request, last_id))

    def _follow_output(self, task_id: str) -> Shapes:
        return _decoded(self._stream(TASK_OUTPUT, NamedTask(task_id)), until="end")

    def _stream(
        self, operation: Operation[Q, R], wanted: Q, last_id: str = ""
    ) -> Generator[sse.SseEvent, None, None]:
        """Return a stream that is connected, so that nothing after this call is missed."""
        path, asked = bound(operation, wanted)

        def connect(last_id: str) -> ClientStream:
            request = transport.build(
                "GET",
                path,
                query=asked["query"],
                last_event_id=last_id,
                accept=transport.EVENT_STREAM,
                timeout_seconds=SILENCE_SECONDS,
            )
            return transport.opened(self._transport.stream(request), self._transport.where)

        stream = self._events(connect, sse.Follower(last_id))
        next(stream)
        return stream

    def _events(
        self, connect: Callable[[str], ClientStream], follower: sse.Follower
    ) -> Generator[sse.SseEvent, None, None]:
        """Yield an empty event once connected, then all events, reconnecting as needed."""
        streaming, begun = connect(follower.last_id), False
        while True:
            try:
                for piece in streaming.pieces:
                    events = follower.feed(piece)
                    if not begun:
                        begun = True
                        yield sse.SseEvent("")
                    yield from events
            except BusyError:
                pass  # it broke off, which means the same as an end
            finally:
                streaming.pieces.close()
            streaming = self._connected_again(connect, follower.last_id)
            follower.connected()

    def _connected_again(
        self, connect: Callable[[str], ClientStream], last_id: str
    ) -> ClientStream:
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


def _decoded(stream: Generator[sse.SseEvent, None, None], until: str | None = None) -> Shapes:
    with contextlib.closing(stream):
        for event in stream:
            if event.name == until:
                return
            yield wire.decode(event.data)


def _connected(url: str, token: str | None) -> Transport:
    from fairlane.client.connection import HttpTransport  # noqa: PLC0415 - slow to import, and not for all

    return HttpTransport(url, token)
