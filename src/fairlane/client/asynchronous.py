"""The client for programs with an event loop: the same verbs and answers, to be awaited.

It belongs to the event loop that it is first used in. A call that is cancelled hangs up, and a
server that was asked to wait takes that as an answer. The trap is that of `client/connection.py`:
what was asked and not answered may have been done.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Self, Unpack

import aiohttp

from fairlane.client import transport
from fairlane.client.async_verbs import AsyncVerbs, Shape
from fairlane.client.binding import bound
from fairlane.client.calling import Asked
from fairlane.client.methods import Q, R
from fairlane.client.sync import (
    AT_REST,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    RECONNECT_SECONDS,
    SILENCE_SECONDS,
    TIMEOUT_SECONDS,
    WAIT_SLICE_SECONDS,
)
from fairlane.client.transport import DEFAULT_URL, Answer, Request
from fairlane.client.verbs import TaskFields, task_body, task_path
from fairlane.core.errors import BusyError, Unreachable
from fairlane.schema import sse
from fairlane.schema.operation import Operation

# Shorter than any server keeps an idle connection, so that none is used while it is being closed.
_IDLE_SECONDS: Final = 2.0


class AsyncClient(AsyncVerbs):
    """Following events begins, without `after`, with what happens once it is connected, and goes
    on until the generator is closed. It raises `Unreachable` when a lost server does not come back.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        """`token` None is what FAIRLANE_TOKEN says, or the file that FAIRLANE_TOKEN_FILE names."""
        self._bearer = transport.bearer(token)
        self._where = transport.parsed(url)[0]
        self._timeout = timeout
        self._reconnect_seconds = reconnect_seconds
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def submit(
        self, *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> Shape:
        return await self.submit_body(task_body(fields), idempotency_key=idempotency_key)

    async def wait(self, task_id: str, timeout: float | None = None) -> Shape:
        """The task when it has ended or was parked, or as it is when the time is up."""
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        while True:
            left = WAIT_SLICE_SECONDS
            if end is not None:
                left = min(left, max(0.0, end - clock()))
            wait_ms = round(left * 1000)
            path, query = task_path(task_id, "/wait"), {"timeoutMs": wait_ms}
            task = await self.call("GET", path, query=query, wait_ms=wait_ms)
            if task["state"] in AT_REST or (end is not None and clock() >= end):
                return task

    async def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        request = transport.build(method, path, timeout_seconds=self._timeout, **asked)
        return transport.understood(await self._ask(request), self._where)

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        path, asked = bound(operation, request)
        sent = transport.build(operation.method, path, timeout_seconds=self._timeout, **asked)
        return transport.decoded(await self._ask(sent), self._where, operation.response)

    # ---------------------------------------------------------------- parts

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
            self._opened = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._opened

    def _exchange(
        self, request: Request, timeout: aiohttp.ClientTimeout
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            request.method,
            self._where + request.target,
            data=None if request.body is None else io.BytesIO(request.body),
            headers={**request.headers, **self._bearer},
            allow_redirects=False,
            timeout=timeout,
        )

    async def _ask(self, request: Request) -> Answer:
        timeout = aiohttp.ClientTimeout(total=request.timeout_seconds)
        try:
            async with self._exchange(request, timeout) as response:
                return Answer(response.status, _headers(response), await response.read())
        except (OSError, aiohttp.ClientError) as error:
            raise self._lost(error, request.timeout_seconds) from None

    async def _stream(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> AsyncGenerator[sse.Event, None]:
        """What comes, over as many connections as it takes."""
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
                # Also while it has never answered: it may be about to start.
                if clock() - heard_at >= self._reconnect_seconds:
                    raise
            pause = min(2 * pause + PAUSE_SECONDS, PAUSE_SECONDS_MAX)
            follower.connected()

    async def _pieces(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> AsyncGenerator[bytes, None]:
        """One connection. Raises the error that was answered instead of a stream."""
        request = transport.build(
            "GET",
            path,
            query=query,
            last_event_id=last_id,
            accept=transport.EVENT_STREAM,
            timeout_seconds=SILENCE_SECONDS,
        )
        timeout = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=SILENCE_SECONDS)
        try:
            async with self._exchange(request, timeout) as response:
                if response.status != 200 or response.content_type != transport.EVENT_STREAM:
                    answer = Answer(response.status, _headers(response), await response.read())
                    transport.understood(answer, self._where)
                    raise Unreachable(f"what answers at {self._where} does not stream events")
                async for piece in response.content.iter_any():
                    yield piece
        except (OSError, aiohttp.ClientError) as error:
            raise self._lost(error, SILENCE_SECONDS) from None

    def _lost(self, error: Exception, timeout_seconds: float) -> Unreachable:
        if isinstance(error, TimeoutError):
            why = f"it did not answer within {timeout_seconds:g} s"
        elif isinstance(error, aiohttp.ClientConnectorError):
            why = "is fairlane serve running?"
        else:
            why = "it hung up before it had answered; look whether the request was carried out"
        return Unreachable(f"cannot reach {self._where}: {why}")


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
