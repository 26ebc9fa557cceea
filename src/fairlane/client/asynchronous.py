"""The client for programs with an event loop: the same methods as `Client`, as coroutines.

A client belongs to the event loop of its first call. Cancelling a call closes its connection, which
also ends a wait on the server. The caution in `client/connection.py` applies here too: a request
without a response may have taken effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Self, Unpack

from fairlane.client import transport
from fairlane.client.base import (
    AT_REST,
    WAIT_SLICE_SECONDS,
    AsyncBaseClient,
    AsyncShapes,
    Shape,
    pop_after,
)
from fairlane.client.binding import bound
from fairlane.client.connection import BODY_BYTES_MAX, IDLE_SECONDS, Server
from fairlane.client.methods import Q, R
from fairlane.client.sync import (
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    RECONNECT_SECONDS,
    SILENCE_SECONDS,
    TIMEOUT_SECONDS,
)
from fairlane.client.transport import DEFAULT_URL, Asked, ClientRequest, ClientResponse
from fairlane.core.errors import BusyError, Unreachable
from fairlane.core.json_types import JsonMapping
from fairlane.http1.asynchronous import AsyncPool, SystemResolver
from fairlane.schema import sse, wire
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.operation import Operation
from fairlane.schema.task_status import TaskStatus
from fairlane.schema.tasks import TASK_OUTPUT, NamedTask


class AsyncClient(AsyncBaseClient):
    """A client for programs with an event loop; its methods are coroutines.

    Close it, or use it as an async context manager.

    Args:
        url: Address of the server
        token: Access token; by default that of FAIRLANE_TOKEN or FAIRLANE_TOKEN_FILE
        timeout: Seconds to wait for a response
        reconnect_seconds: How long `events` and `output` look for a server that went away
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self._server = Server(url, token)
        self._timeout = timeout
        self._reconnect_seconds = reconnect_seconds
        self._opened: AsyncPool | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or is parked, and return it.

        After `timeout` seconds, return the task as it is.
        """
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        while True:
            left = WAIT_SLICE_SECONDS
            if end is not None:
                left = min(left, max(0.0, end - clock()))
            task = await self.wait_once(task_id, timeout_ms=round(left * 1000))
            if task.state in AT_REST or (end is not None and clock() >= end):
                return task

    async def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        """Call any route and return its JSON. Raise the error that the server responds with."""
        request = transport.build(method, path, timeout_seconds=self._timeout, **asked)
        return transport.understood(await self._ask(request), self._server.where)

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Perform a declared operation and return its typed response."""
        path, asked = bound(operation, request)
        sent = transport.build(operation.method, path, timeout_seconds=self._timeout, **asked)
        return transport.decoded(await self._ask(sent), self._server.where, operation)

    # ---------------------------------------------------------------- parts

    @property
    def _pool(self) -> AsyncPool:
        if self._opened is None:
            self._opened = AsyncPool(
                SystemResolver(), idle_seconds=IDLE_SECONDS, connect_seconds=self._timeout
            )
        return self._opened

    async def _ask(self, request: ClientRequest) -> ClientResponse:
        sent, seconds = self._server.encoded(request), request.timeout_seconds
        try:
            async with self._pool.exchange(
                sent, seconds=seconds, bytes_max=BODY_BYTES_MAX
            ) as answer:
                return ClientResponse(answer.status, answer.headers, await answer.read())
        except OSError as error:
            raise self._server.unreachable(error, seconds) from None

    def _follow_events(self, request: ListEvents) -> AsyncShapes:
        last_id = pop_after(request)
        return _decoded(self._stream(LIST_EVENTS, request, last_id))

    def _follow_output(self, task_id: str) -> AsyncShapes:
        return _decoded(self._stream(TASK_OUTPUT, NamedTask(task_id)), until="end")

    async def _stream(
        self, operation: Operation[Q, R], request: Q, last_id: str = ""
    ) -> AsyncGenerator[sse.SseEvent, None]:
        """Yield the events of a route, over as many connections as needed."""
        path, asked = bound(operation, request)
        query = asked["query"] or {}
        follower = sse.Follower(last_id)
        clock = asyncio.get_running_loop().time
        heard_at, pause = clock(), 0.0
        while True:
            await asyncio.sleep(pause)
            try:
                async for piece in self._pieces(path, query, follower.last_id):
                    heard_at, pause = clock(), 0.0
                    for event in follower.feed(piece):
                        yield event
            except BusyError:
                # Also if it has never responded: it may be about to start.
                if clock() - heard_at >= self._reconnect_seconds:
                    raise
            pause = min(2 * pause + PAUSE_SECONDS, PAUSE_SECONDS_MAX)
            follower.connected()

    async def _pieces(
        self, path: str, query: JsonMapping, last_id: str, *, method: str = "GET"
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body of one connection. Raise the error that arrived instead of a stream."""
        where = self._server.where
        request = transport.build(
            method,
            path,
            query=query,
            last_event_id=last_id,
            accept=transport.EVENT_STREAM,
            timeout_seconds=SILENCE_SECONDS,
        )
        sent = self._server.encoded(request)
        try:
            async with self._pool.exchange(
                sent, seconds=None, bytes_max=None, wait_seconds=SILENCE_SECONDS
            ) as answer:
                kind = answer.headers.get("content-type", "")
                if answer.status != 200 or not kind.startswith(transport.EVENT_STREAM):
                    body = await answer.read() if kind.startswith(transport.JSON) else b""
                    transport.understood(ClientResponse(answer.status, answer.headers, body), where)
                    raise Unreachable(
                        f"the server at {where} does not stream events; check the address"
                    )
                async for piece in answer:
                    yield piece
        except OSError as error:
            raise self._server.unreachable(error, SILENCE_SECONDS) from None


async def _decoded(
    stream: AsyncGenerator[sse.SseEvent, None], until: str | None = None
) -> AsyncShapes:
    async with contextlib.aclosing(stream):
        async for event in stream:
            if event.name == until:
                return
            yield wire.decode(event.data)
