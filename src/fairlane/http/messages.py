"""What routes read and return: requests, responses and the table of statuses.

A request is a plain value, so a caller in this process makes one in a line. What arrives on a
connection is an `Exchange` (`exchange.py`), whose body and disconnect come from the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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

JSON: Final = "application/json"


class Request:
    """What a route may ask about a request. `path` holds the parts of the path that vary.

    `caller` is who asks; whatever a route reads or changes has to be that caller's to see. `named`
    is the caller of a request from this process, which needs no token. `address` is where a
    request from a network comes from, and `number` its id in the log.
    """

    version = "1.1"
    number = b"of this process"
    address: str | None = None
    server: tuple[str, int] | None = None
    caller: Caller = TRUSTED
    path: Mapping[str, str] = {}
    # The repeated headers that `headers`, which holds the first of each name, has no room for.
    repeated: Sequence[tuple[bytes, bytes]] = ()

    def __init__(
        self,
        method: str,
        full_path: str,
        query_string: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
        raw: bytes = b"",
        *,
        named: Caller | None = None,
    ) -> None:
        """`full_path` is percent-decoded; names of headers are in small letters."""
        self.method = method
        self.full_path = full_path
        self.query_string = query_string
        self.headers = {} if headers is None else headers
        self.raw = raw
        self.named = named

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, *known: str) -> dict[str, str]:
        """The query's values; the first of each. Unknown names are refused, not ignored."""
        if not self.query_string:
            return {}
        text = self.query_string.decode("latin-1")
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
        """Return when the caller has gone; one in this process cancels instead."""
        await asyncio.get_running_loop().create_future()

    async def body(self, most: int = wire.BODY_BYTES_MAX) -> bytes:
        """Return the whole body. Raise `PayloadTooLarge` as soon as it is certain to be."""
        if len(self.raw) > most:
            raise too_large(most)
        return self.raw


def _nothing() -> None:
    """Where there is nothing to release."""


class Raw(msgspec.Struct, frozen=True):
    """A body that is sent as it is, in place of JSON. An empty `type` is not sent."""

    body: bytes
    type: str


class Answer(msgspec.Struct, frozen=True):
    """A response. `undo` takes back what was done for it when it cannot be written or sent.

    `shape` is `Raw`, or what JSON is made of; `encoded` makes bytes of it.
    """

    status: int
    shape: Any
    headers: Mapping[str, str] | None = None
    undo: Callable[[], None] | None = None


class Stream(msgspec.Struct, frozen=True):
    """An answer that is sent piece by piece, as server-sent events, until the caller has enough.

    Whoever sends it calls `release` when it has ended, however that comes.
    """

    pieces: AsyncIterator[bytes]
    release: Callable[[], None] = _nothing


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


def went_wrong() -> Answer:
    shape = {"code": "internal_error", "error": "something went wrong here; see the log"}
    return Answer(500, shape)


def encoded(answer: Answer) -> Answer:
    """Return the response with its JSON as bytes. Raise what the encoder raises, after `undo`."""
    if isinstance(answer.shape, Raw):
        return answer
    try:
        body = wire.encode(answer.shape)
    except BaseException:
        if answer.undo is not None:
            answer.undo()
        raise
    return Answer(answer.status, Raw(body, JSON), answer.headers, answer.undo)


def too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body must not be larger than {most} bytes")
