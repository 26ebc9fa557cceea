"""Requests, responses, routes and the table of statuses.

A request is a plain value, so code in this process creates one in a line. A request from a
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
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.policy import nearest
from fairlane.schema import wire
from fairlane.schema.decoding import too_large
from fairlane.schema.operation import AnyOperation

STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "needs_unsatisfiable": 400,
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
    "message_taken": 409,
    "session_busy": 409,
    "own_task": 403,
    "approval_changed": 409,
    "step_changed": 409,
    "effect_unknown": 409,
    "approval_closed": 409,
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
EVENTS: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"

# A slash inside one part of a path, while routes are looked up. Decoding a path never yields it.
ENCODED_SLASH: Final = "\udc2f"


class HttpRequest:
    """A request as routes see it. `path` holds the variable parts of the path, decoded; `full_path`
    is for readers, `route_path` for the lookup of its route.

    `caller` made the request; a route shows and changes only what this caller may see. `named` is
    the caller of a request from this process, which needs no token. `address` is the client's
    address, and `number` the request's id in the log.
    """

    version = "1.1"
    number = b"of this process"
    address: str | None = None
    server: tuple[str, int] | None = None
    caller: Caller = TRUSTED
    path: Mapping[str, str] = {}
    # Further values of repeated headers; `headers` holds the first of each name.
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
        """`full_path` is percent-decoded, but for slashes: those are `ENCODED_SLASH`. Header names
        are in lower case.
        """
        self.method = method
        self.route_path = full_path
        self.full_path = full_path.replace(ENCODED_SLASH, "/")
        self.query_string = query_string
        self.headers = {} if headers is None else headers
        self.raw = raw
        self.named = named

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, *known: str) -> dict[str, str]:
        """Return the query's parameters. Raise `InvalidRequest` for unknown or repeated ones."""
        if not self.query_string:
            return {}
        text = self.query_string.decode("latin-1")
        try:
            values = parse_qs(text, keep_blank_values=True, errors="strict")
        except ValueError:
            raise InvalidRequest("the query is not percent-encoded UTF-8") from None
        for name in values:
            if name not in known:
                hint = nearest(name, known)
                raise InvalidRequest(f"unknown query parameter '{name[:40]}'{hint}")
            if len(values[name]) > 1:
                raise InvalidRequest(f"query parameter '{name}' appears twice; send it once")
            if "\0" in values[name][0]:
                raise InvalidRequest(
                    f"query parameter '{name}' must not contain the character U+0000"
                )
        return {name: found[0] for name, found in values.items()}

    def wants_json(self) -> bool:
        accepted = self.header(b"accept") or ""
        return "application/json" in accepted and not self.wants_events()

    def wants_events(self) -> bool:
        return "text/event-stream" in (self.header(b"accept") or "")

    async def closed(self) -> None:
        """Return when the client has disconnected; a caller in this process cancels instead."""
        await asyncio.get_running_loop().create_future()

    def whole_body(self, most: int) -> bytes | None:  # noqa: ARG002 - for those with a connection
        """Return the body if it is here and within the limit; None if `body` has to be awaited."""
        return None

    async def body(self, most: int = wire.BODY_BYTES_MAX) -> bytes:
        """Return the whole body. Raise `PayloadTooLarge` as soon as it exceeds the limit."""
        if len(self.raw) > most:
            raise too_large(most)
        return self.raw

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, however long it is."""
        yield self.raw


def _nothing() -> None:
    """Do nothing: the default of `release`."""


class Raw(msgspec.Struct, frozen=True):
    """A body that is sent as it is instead of JSON. An empty `type` is not sent.

    `is_form` says that it is a page whose form may be sent to this server.
    """

    body: bytes
    type: str
    is_form: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A response. `undo` reverts the operation if the response cannot be encoded or sent; `sent` is
    called when it has been sent.

    `shape` is `Raw` or a value that `encoded` turns into JSON.
    """

    status: int
    shape: Any
    headers: Mapping[str, str] | None = None
    undo: Callable[[], None] | None = None
    sent: Callable[[], None] | None = None


class Stream(msgspec.Struct, frozen=True):
    """A response that is sent piece by piece until it ends or the client disconnects.

    The sender calls `release` when the stream has ended for whatever reason. With `reads`, the
    stream reads the body of the request while it is sent.
    """

    pieces: AsyncIterator[bytes]
    release: Callable[[], None] = _nothing
    kind: str = EVENTS
    reads: bool = False


Handler = Callable[[HttpRequest], Awaitable[Answer | Stream]]


class Route(msgspec.Struct, frozen=True):
    """A handler and its access rule: a token with `scope`; None accepts any valid token.

    `agents`: tokens of one agent are accepted too, and the handler must restrict them to that
    agent's data. `open` needs no token. `waits`: the response may take as long as the caller asked
    for.
    """

    handler: Handler
    scope: access.Scope | None
    agents: bool = True
    open: bool = False
    waits: bool = False
    operation: AnyOperation | None = None


Routes = dict[str, dict[str, Route]]


def refusal(problem: FairlaneError) -> Answer:
    headers = None
    if problem.retry_after_ms is not None:
        headers = {"Retry-After": str(max(1, -(-problem.retry_after_ms // 1000)))}
    if problem.code == "unauthenticated":
        headers = {"WWW-Authenticate": "Bearer"}
    return Answer(STATUS.get(problem.code, 500), wire.error(problem), headers)


def went_wrong() -> Answer:
    shape = {"code": "internal_error", "error": "internal error; see the server's log for details"}
    return Answer(500, shape)


def encoded(answer: Answer) -> Answer:
    """Return the response with its JSON as bytes. If encoding fails, call `undo` and raise."""
    if isinstance(answer.shape, Raw):
        return answer
    try:
        body = wire.encode(answer.shape)
    except BaseException:
        if answer.undo is not None:
            answer.undo()
        raise
    return Answer(answer.status, Raw(body, JSON), answer.headers, answer.undo, answer.sent)
