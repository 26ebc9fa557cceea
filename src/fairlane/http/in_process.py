"""The routes for callers in the same process: requests that never touch a network.

The very same routes run, so that an answer is the same bytes whichever way was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from fairlane.client.transport import EVENT_STREAM, Answer, Request, build, understood
from fairlane.core.access import CALLER, TRUSTED, Caller
from fairlane.core.errors import StoreUnavailable
from fairlane.http.app import HttpApp
from fairlane.http.messages import Receive
from fairlane.schema import sse

log = logging.getLogger("fairlane.http")

_PAUSE_SECONDS: Final = 1.0


class Streaming(msgspec.Struct, frozen=True):
    """An answer whose body is still coming."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


async def ask(app: HttpApp, request: Request, caller: Caller = TRUSTED) -> Answer:
    status, found, body = 0, {}, b""

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, found, body
        if message["type"] == "http.response.start":
            status, found = message["status"], _headers(message)
        else:
            body += message.get("body", b"")

    await app(_scope(request, caller), _receive(request), send)
    return Answer(status, found, body)


@contextlib.asynccontextmanager
async def stream(app: HttpApp, request: Request) -> AsyncGenerator[Streaming, None]:
    """One piece is made ahead, not more: who reads slowly does not fill the memory."""
    sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(1)
    answering = asyncio.ensure_future(app(_scope(request), _receive(request), sent.put))
    try:
        head = await _next(sent, answering)
        assert head is not None
        yield Streaming(head["status"], _headers(head), _pieces(sent, answering))
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def follow(
    app: HttpApp, path: str, query: Mapping[str, Any], last_id: str = ""
) -> AsyncGenerator[sse.Event, None]:
    """The events of a route, each once, until it ends. A store that is away is waited for."""
    follower = sse.Follower(last_id)
    while True:
        request = build(
            "GET",
            path,
            query=query,
            last_event_id=follower.last_id,
            accept=EVENT_STREAM,
            timeout_seconds=0,
        )
        try:
            async with stream(app, request) as streaming:
                await _accepted(streaming)
                async for piece in streaming.pieces:
                    for event in follower.feed(piece):
                        yield event
            return
        except StoreUnavailable as error:
            log.warning("%s is followed again in a moment: %s", path, error.message)
        await asyncio.sleep(_PAUSE_SECONDS)
        follower.connected()


async def _accepted(streaming: Streaming) -> None:
    """Raises the error that was answered instead of a stream."""
    if streaming.status != 200:
        body = b"".join([piece async for piece in streaming.pieces])
        understood(Answer(streaming.status, streaming.headers, body), "this process")


async def _pieces(
    sent: asyncio.Queue[MutableMapping[str, Any]], answering: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    while (message := await _next(sent, answering)) is not None:
        yield message.get("body", b"")


async def _next(
    sent: asyncio.Queue[MutableMapping[str, Any]], answering: asyncio.Future[None]
) -> MutableMapping[str, Any] | None:
    """What is sent next; None at the end. Raises what the route has raised."""
    while sent.empty():
        if answering.done():
            answering.result()
            return None
        getting = asyncio.ensure_future(sent.get())
        either: set[asyncio.Future[Any]] = {getting, answering}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            getting.cancel()
        if getting.done() and not getting.cancelled():
            return getting.result()
    return sent.get_nowait()


def _receive(request: Request) -> Receive:
    """The body, once; after that nothing ever comes, and whoever has enough is cancelled."""
    asked = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.get_running_loop().create_future()
        asked = True
        return {"type": "http.request", "body": request.body or b"", "more_body": False}

    return receive


def _headers(message: MutableMapping[str, Any]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message["headers"]}


def _scope(request: Request, caller: Caller = TRUSTED) -> dict[str, Any]:
    path, _, query = request.target.partition("?")
    headers = {"host": "127.0.0.1", **request.headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": request.method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        CALLER: caller,
    }
