"""The routes for callers in the same process: requests that never touch a network.

The very same routes run, so that an answer is the same bytes whichever way was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from fairlane.client.transport import EVENT_STREAM, Answer, Request, build, understood
from fairlane.core.access import TRUSTED, Caller
from fairlane.core.errors import StoreUnavailable
from fairlane.http import messages
from fairlane.http.app import HttpApp
from fairlane.http.responses import EVENTS
from fairlane.schema import sse

log = logging.getLogger("fairlane.http")

_PAUSE_SECONDS: Final = 1.0
_EVENTS: Final = {"content-type": EVENTS}


class Streaming(msgspec.Struct, frozen=True):
    """An answer whose body is still coming."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


async def ask(app: HttpApp, request: Request, caller: Caller = TRUSTED) -> Answer:
    found = await app(_arrived(request, caller))
    if isinstance(found, messages.Answer):
        return Answer(found.status, _headers(found), found.shape.body)
    try:
        return Answer(200, _EVENTS, b"".join([piece async for piece in found.pieces]))
    finally:
        found.release()


@contextlib.asynccontextmanager
async def stream(app: HttpApp, request: Request) -> AsyncGenerator[Streaming, None]:
    """One piece is made ahead, not more: who reads slowly does not fill the memory."""
    sent: asyncio.Queue[Any] = asyncio.Queue(1)
    answering = asyncio.ensure_future(_send(app, request, sent))
    try:
        status, headers = await _next(sent, answering)
        yield Streaming(status, headers, _pieces(sent, answering))
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _send(app: HttpApp, request: Request, sent: asyncio.Queue[Any]) -> None:
    """Put the head into the queue, then each piece of the body."""
    found = await app(_arrived(request, TRUSTED))
    if isinstance(found, messages.Answer):
        await sent.put((found.status, _headers(found)))
        await sent.put(found.shape.body)
        return
    try:
        await sent.put((200, _EVENTS))
        async for piece in found.pieces:
            await sent.put(piece)
    finally:
        found.release()


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
    sent: asyncio.Queue[Any], answering: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    while (piece := await _next(sent, answering)) is not None:
        yield piece


async def _next(sent: asyncio.Queue[Any], answering: asyncio.Future[None]) -> Any:
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


def _headers(answer: messages.Answer) -> dict[str, str]:
    found = {name.lower(): text for name, text in (answer.headers or {}).items()}
    return {"content-type": answer.shape.type, **found}


def _arrived(request: Request, caller: Caller) -> messages.Request:
    path, _, query = request.target.partition("?")
    headers = {name.lower().encode(): text.encode() for name, text in request.headers.items()}
    body = request.body or b""
    return messages.Request(
        request.method, unquote(path), query.encode(), headers, body, named=caller
    )
