"""One connection: how long a request may take to arrive, how large its head may be, how long an
answer may take to leave, and how many connections there may be.

uvicorn reads requests and would wait for the rest of one for ever, and keep a head of any size. A
request that is late, too large or no HTTP is answered in JSON like every other error; after that
the connection is closed, because nobody knows where the next request would begin. Who does not read
what they have asked for is hung up, and of too many connections those that are silent.

A request that comes in one piece, and an answer that leaves in one, which nearly all do, cost no
timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from fairlane.http.cross_site import ALWAYS
from fairlane.http.messages import STATUS
from fairlane.schema import wire

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
CONNECTIONS_MAX: Final = 10_000
_FILES_KEPT: Final = 256  # for the store, for what leaves, and for all that is not a connection
URL_BYTES_MAX: Final = 8192
HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 16_384
_HEAD_BYTES_MAX: Final = URL_BYTES_MAX + HEADERS_BYTES_MAX + 4 * HEADERS_MAX + 64


def _answer(code: str, error: str) -> bytes:
    body = wire.encode({"code": code, "error": error})
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *ALWAYS,
    ]
    head = b"".join(b"%s: %s\r\n" % field for field in fields)
    return STATUS_LINE[STATUS[code]] + head + b"\r\n" + body


_NOT_HTTP: Final = _answer("invalid_request", "this is not HTTP as it is understood here")
_LATE: Final = _answer(
    "request_timeout", f"the request has to arrive within {READ_SECONDS:g} seconds"
)
_LONG_URL: Final = _answer(
    "uri_too_long", f"the address must not be longer than {URL_BYTES_MAX} bytes"
)
_LARGE_HEADERS: Final = _answer(
    "headers_too_large",
    f"there must not be more than {HEADERS_MAX} headers or {HEADERS_BYTES_MAX} bytes of them",
)


class _Refused(Exception):
    """Ends the reading; the answer is in `HttpConnection._refusal`."""


class _NoMore(list[tuple[bytes, bytes]]):
    """Where headers behind a body would go. Nobody has a use for them, and they would be taken for
    headers that somebody before us has checked.
    """

    def append(self, _: tuple[bytes, bytes]) -> None:
        raise _Refused


_NO_MORE: Final = _NoMore()


@functools.cache
def connections_max() -> int:
    """As many as may be, or as the process may have files, less those that it needs itself."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return CONNECTIONS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_KEPT
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS_MAX
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return max(1, soft - _FILES_KEPT)


class HttpConnection(HttpToolsProtocol):
    """The numbers are attributes for tests that do not want to wait, or to open thousands."""

    read_seconds = READ_SECONDS
    write_seconds = WRITE_SECONDS
    connections_max: int | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._arriving = False  # a request has begun and has not ended
        self._in_head = False
        self._in_small_piece = False  # a head that fits in there is not too large
        self._head_bytes = 0  # of pieces that are nothing but a head
        self._timer: asyncio.TimerHandle | None = None
        self._timed_bytes = 0  # that have arrived since the timer was set
        self._refusal = _NOT_HTTP
        self._deaf = False
        self._leaving: asyncio.TimerHandle | None = None
        self._left_bytes = 0  # of an answer, when that timer was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        # Who says nothing at all is like who says nothing more.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if len(self.connections) > (self.connections_max or connections_max()):
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._disarm()
        self._has_left()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """A part of those that are silent go, the longest silent first; if there are none, this."""
        silent = sorted(self._silent(), key=lambda one: one[0])
        for _, other in silent[: max(1, len(silent) // 4)]:
            other.transport.abort()
        if not silent:
            self.transport.abort()

    def _silent(self) -> Iterator[tuple[float, HttpConnection]]:
        for other in self.connections:
            assert isinstance(other, HttpConnection)
            until = other.timeout_keep_alive_task
            if until is not None and other is not self:
                yield until.when(), other

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._in_small_piece = not self._in_head and len(data) <= HEADERS_BYTES_MAX
        before = self.scope if self._in_head else None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # It is answered as the request that it is as well, and is the last.
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        if self._in_head and before is self.scope:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX:
                self._refuse(_LONG_URL if len(self.url) > URL_BYTES_MAX else _LARGE_HEADERS)
                return
        self._timed_bytes += len(data)
        self._watch()

    # ---------------------------------------------------------------- what the parser finds

    def on_message_begin(self) -> None:
        self._arriving = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            raise _Refused  # an address with a host in it, which may be another than Host says
        if len(self.url) > URL_BYTES_MAX:
            self._refusal = _LONG_URL
            raise _Refused
        if len(self.headers) > HEADERS_MAX or not (
            self._in_small_piece or self._headers_bytes() <= HEADERS_BYTES_MAX
        ):
            self._refusal = _LARGE_HEADERS
            raise _Refused
        if self.parser.should_upgrade() and self._has_body():
            raise _Refused  # whatever follows would not be read as its body
        super().on_headers_complete()
        self._in_head = False
        self.headers = _NO_MORE

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    def _has_body(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _headers_bytes(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self.headers)

    # ---------------------------------------------------------------- time

    def _watch(self) -> None:
        """A request that has begun has to end. So has what is no request, between requests."""
        if self._arriving or (not self._answering() and self.timeout_keep_alive_task is None):
            if self._timer is None:
                self._timed_bytes = 0
                self._timer = self.loop.call_later(self.read_seconds, self._late)
        elif self._timer is not None:
            self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        much = self._timed_bytes >= wire.BODY_BYTES_MAX and self._answering()
        if self.flow.read_paused or much:
            self._watch()  # it is us who do not read, or there is much to read
        elif self._arriving:
            self._refuse(_LATE)
        else:
            self._hang_up()

    # ---------------------------------------------------------------- answers that do not leave

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_it_to_leave()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_left()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._wait_for_it_to_leave()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        """What is still to be sent may take its time, but not for ever."""
        self.transport.close()
        self._wait_for_it_to_leave()

    def _wait_for_it_to_leave(self) -> None:
        self._has_left()
        self._left_bytes = self.transport.get_write_buffer_size()
        if self._left_bytes:
            self._leaving = self.loop.call_later(self.write_seconds, self._look_whether_it_left)

    def _look_whether_it_left(self) -> None:
        if self.transport.get_write_buffer_size() < self._left_bytes:
            self._wait_for_it_to_leave()
        else:
            self.transport.abort()

    def _has_left(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    # ---------------------------------------------------------------- the end

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self, answer: bytes) -> None:
        """Answer what is arriving and hang up. No answer may be taken for that of another."""
        self._disarm()
        if self._in_head or not self._arriving:
            if self._answering():  # what came before is the last
                self._deaf = True
                self.cycle.keep_alive = False
                return
            self.transport.write(answer)
        elif not self.pipeline and not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.write(answer)
        self._hang_up()
