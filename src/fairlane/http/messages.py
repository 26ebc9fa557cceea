"""Requests in, answers out: JSON, errors by one table, bodies with a limit.

Plain ASGI, because the submit route is hot: a framework's request and response objects would cost
as much as the work itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from fairlane.core import access
from fairlane.core.access import TRUSTED, Caller
from fairlane.core.errors import FairlaneError, InvalidRequest, PayloadTooLarge
from fairlane.core.policy import nearest
from fairlane.schema import wire
from fairlane.schema.operation import Operation

STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "invalid_policy": 400,
    "target_refused": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "idempotency_conflict": 409,
    "message_stale": 409,
    "lease_lost": 409,
    "payload_too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "queue_full": 429,
    "session_queue_full": 429,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "too_many_connections": 429,
    "headers_too_large": 431,
    "internal_error": 500,
    "invalid_setup": 500,
    "store_mismatch": 500,
    "draining": 503,
    "disabled": 503,
    "store_unavailable": 503,
}

TEXT_CHARACTERS_MAX: Final = 500

# The three values of an ASGI call.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Of a stream: who does not read keeps no more than this waiting, and others are sent to in between.
_SLICE_BYTES: Final = 65_536
_JSON: Final = (b"content-type", b"application/json")


class Request:
    """What a route may ask about a request. `path` holds the parts of the path that vary.

    `caller` is who asks; whatever a route reads or changes has to be that caller's to see.
    """

    __slots__ = ("_body", "_receive", "caller", "path", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self._body: bytes | None = None
        self.path: Mapping[str, str] = {}
        self.caller: Caller = TRUSTED

    def header(self, name: bytes) -> str | None:
        for key, value in self.scope["headers"]:
            if key == name:
                text: str = value.decode("latin-1")
                return text
        return None

    def query(self, *known: str) -> dict[str, str]:
        """The query's values; the first of each. Unknown names are refused, not ignored."""
        text = self.scope["query_string"].decode("latin-1")
        try:
            values = parse_qs(text, keep_blank_values=True, errors="strict")
        except ValueError:
            raise InvalidRequest("the query is not UTF-8, percent-encoded") from None
        for name in values:
            if name not in known:
                hint = nearest(name, known)
                raise InvalidRequest(f"unknown query parameter '{name[:40]}'{hint}")
            if len(values[name]) > 1:
                raise InvalidRequest(f"query parameter '{name}' must not be given twice")
            if "\0" in values[name][0]:
                raise InvalidRequest(f"query parameter '{name}' must not hold the character U+0000")
        return {name: found[0] for name, found in values.items()}

    def wants_json(self) -> bool:
        accepted = self.header(b"accept") or ""
        return "application/json" in accepted and not self.wants_events()

    def wants_events(self) -> bool:
        return "text/event-stream" in (self.header(b"accept") or "")

    async def closed(self) -> None:
        """Returns when the caller has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self, most: int = wire.BODY_BYTES_MAX) -> bytes:
        """The whole body. Raises `PayloadTooLarge` as soon as it is certain to be."""
        declared = self.header(b"content-length")
        if declared and declared.isascii() and declared.isdigit() and int(declared) > most:
            raise _too_large(most)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                # What came may look complete, but is not what the caller wanted to say.
                raise InvalidRequest("the connection ended in the middle of the body")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > most:
                raise _too_large(most)
            if not message.get("more_body"):
                self._body = chunk if not chunks else b"".join([*chunks, chunk])
                return self._body
            chunks.append(chunk)

    async def again(self) -> MutableMapping[str, Any]:
        """What `receive` gives, for who reads after this: the body first, once more."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class Raw(msgspec.Struct, frozen=True):
    """A body that is sent as it is, in place of JSON."""

    body: bytes
    type: str


class Answer(msgspec.Struct, frozen=True):
    """A response. `undo` takes back what was done for it when it cannot be written or sent."""

    status: int
    shape: Any
    headers: Mapping[str, str] | None = None
    undo: Callable[[], None] | None = None


class Stream(msgspec.Struct, frozen=True):
    """An answer that is sent piece by piece, as server-sent events, until the caller has enough."""

    pieces: AsyncIterator[bytes]


Handler = Callable[[Request], Awaitable[Answer | Stream]]


class Route(msgspec.Struct, frozen=True):
    """Who answers, and who may ask: a token with `scope`, or with None any token that is valid.

    `agents` says that tokens which are one agent's may ask too: then the handler sees to it that
    they see and touch nothing else. `open` needs no token. `waits` says that an answer may take as
    long as its caller has asked for.
    """

    handler: Handler
    scope: access.Scope | None
    agents: bool = True
    open: bool = False
    waits: bool = False
    operation: Operation[Any, Any] | None = None


Routes = dict[str, dict[str, Route]]


def refusal(problem: FairlaneError) -> Answer:
    headers = None
    if problem.retry_after_ms is not None:
        headers = {"Retry-After": str(max(1, -(-problem.retry_after_ms // 1000)))}
    if problem.code == "unauthenticated":
        headers = {"WWW-Authenticate": "Bearer"}
    return Answer(STATUS.get(problem.code, 500), wire.error(problem), headers)


def encoded(answer: Answer) -> Answer:
    """Return the response with its body as bytes. Raise what the encoder raises, after `undo`."""
    if isinstance(answer.shape, Raw):
        return answer
    try:
        body = Raw(wire.encode(answer.shape), "application/json")
    except BaseException:
        if answer.undo is not None:
            answer.undo()
        raise
    return Answer(answer.status, body, answer.headers, answer.undo)


async def send_answer(send: Send, answer: Answer) -> None:
    if isinstance(answer.shape, Raw):
        body, kind = answer.shape.body, (b"content-type", answer.shape.type.encode())
    else:
        body, kind = wire.encode(answer.shape), _JSON
    headers = [kind, (b"content-length", b"%d" % len(body))]
    for name, value in (answer.headers or {}).items():
        headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_stream(send: Send, request: Request, stream: Stream) -> None:
    """Send what comes until it ends or the caller goes, whichever is first."""
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.create_task(_send_pieces(send, stream))
    closed = asyncio.create_task(request.closed())
    try:
        await asyncio.wait([sending, closed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        closed.cancel()
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def _send_pieces(send: Send, stream: Stream) -> None:
    async with contextlib.aclosing(_closable(stream.pieces)) as pieces:
        async for piece in pieces:
            for start in range(0, len(piece), _SLICE_BYTES):
                if start:
                    await asyncio.sleep(0)
                body = piece[start : start + _SLICE_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _closable(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        yield piece


def whole_number(
    query: Mapping[str, str], name: str, default: int | None, *, low: int, high: int
) -> int | None:
    text = query.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise InvalidRequest(
            f"query parameter '{name}' must be a whole number from {low} to {high}"
        )
    return int(text)


def page_limit(query: Mapping[str, str]) -> int:
    """How many a list may have at most."""
    found = whole_number(query, "limit", None, low=1, high=wire.LIST_LIMIT_MAX)
    return wire.LIST_LIMIT_DEFAULT if found is None else found


def page_cursor(query: Mapping[str, str]) -> int | None:
    """Where the list before has ended, for lists that are in the order of a number."""
    return whole_number(query, "cursor", None, low=1, high=2**62)


def flag(query: Mapping[str, str], name: str) -> bool | None:
    text = query.get(name)
    if not text:
        return None
    if text not in ("true", "false"):
        raise InvalidRequest(f"query parameter '{name}' must be true or false")
    return text == "true"


def actor(request: Request) -> str | None:
    """Who asks: whose token it is, or where none is needed, by their own account."""
    if request.caller.token is not None:
        return request.caller.name
    return short_text("the header X-Fairlane-Actor", request.header(b"x-fairlane-actor"))


def short_text(what: str, text: str | None) -> str | None:
    """One line that is kept for people; None when nothing is said."""
    if not text or not text.strip():
        return None
    if len(text) > TEXT_CHARACTERS_MAX or not text.isprintable():
        raise InvalidRequest(f"{what} must be one line of at most {TEXT_CHARACTERS_MAX} characters")
    return text.strip()


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body must not be larger than {most} bytes")
