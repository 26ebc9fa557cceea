"""One connection: the requests on it, how long they may take to arrive, and the order of responses.

A request that is late, too large or not HTTP is answered in JSON like every other error. After that
the connection is closed, because the start of the next request is unknown. A client that
does not read its responses is disconnected, and so are silent clients when there are too many
connections.

A request that arrives in one piece and a response that is sent in one piece, as nearly all are,
need no timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import httptools

from fairlane.http import limits
from fairlane.http.exchange import Exchange
from fairlane.http.heads import Head
from fairlane.http.limits import HEADERS_BYTES_MAX, HEADERS_MAX, URL_BYTES_MAX
from fairlane.http.messages import ENCODED_SLASH
from fairlane.schema import wire

if TYPE_CHECKING:
    from fairlane.http.server import HttpServer

_METHODS: Final = {
    name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS")
}
_UNIX: Final = "unix"  # the address of all clients of a Unix socket
_WITH_BODY: Final = (b"content-length", b"transfer-encoding")


class _Refused(Exception):
    """Ends the reading; the answer is in `HttpConnection._refusal`."""


class _NoMore(dict[bytes, bytes]):
    """Refuses trailers: a proxy may have checked only the headers before the body."""

    def __contains__(self, _: object) -> bool:
        raise _Refused


_NO_MORE: Final = _NoMore()


class HttpConnection(asyncio.Protocol):
    """One connection. The limits are class attributes, so that tests can lower them."""

    read_seconds = limits.READ_SECONDS
    write_seconds = limits.WRITE_SECONDS
    idle_seconds = limits.IDLE_SECONDS
    connections_max: int | None = None

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self.problem = server.door.problem
        self.finished = server.finished
        self.address: str | None = None  # of the client
        self.local: tuple[str, int] | None = None
        self.write_paused = False
        self._parser = httptools.HttpRequestParser(self)
        # Accept a request even if data follows its `Connection: close`.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated: list[tuple[bytes, bytes]] = []
        self._latest: Exchange | None = None  # the last one whose head has arrived
        self._current: Exchange | None = None  # the one that is answered
        self._begun: Exchange | None = None  # the same, while it has not been started
        self._queued: deque[Exchange] = deque()  # requests that arrived before it was
        self._arriving = False  # a request has begun and has not ended
        self._in_head = False
        self._in_small_piece = False  # a head that fits in there is not too large
        self._head_bytes = 0  # of pieces that are nothing but a head
        self._refusal = limits.NOT_HTTP
        self._deaf = False
        self._read_paused = False
        self._writable: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_bytes = 0  # that have arrived since the timer was set
        self._idle: asyncio.TimerHandle | None = None
        self.silent_since: float | None = None  # nothing arrives, nothing is answered
        self._leaving: asyncio.TimerHandle | None = None
        self._left_bytes = 0  # of a response, when that timer was set

    # ---------------------------------------------------------------- the transport's calls

    def connection_made(  # type: ignore[override]  # a listening socket's are streams
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self.write = transport.write
        self.is_closing = transport.is_closing
        peer, own = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        if isinstance(own, tuple):
            self.local = own[0], own[1]
            self.address = peer[0] if peer else None
        else:
            self.address = _UNIX
        connections = self._server.connections
        connections.add(self)
        # A client that never sends anything counts as idle from the start.
        self.silent_since = self._loop.time()
        self._idle = self._loop.call_later(self.idle_seconds, self._look_whether_idle)
        if len(connections) > (self.connections_max or limits.connections_max()):
            self._make_room()

    def connection_lost(self, _: Exception | None) -> None:
        self._server.forget(self)
        for timer in (self._idle, self._timer, self._leaving):
            if timer is not None:
                timer.cancel()
        self._idle = self._timer = self._leaving = None
        if self._current is not None:
            self._current.leave()
        self._queued.clear()
        self.resume_writing()
        # They hold this object, which otherwise waits for the garbage collector.
        del self._parser
        self._latest = self._current = None

    def eof_received(self) -> None:
        """Half-open connections are not supported: close when everything has been sent."""

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.is_closing():
            self._ignore(data)
            return
        between = self.silent_since is not None and not self._arriving
        self.silent_since = None
        known = self._server.heads.find(data) if between else None
        if known is not None:
            self._take_known(*known, data)
        else:
            self._parse(data, is_first=between)

    def _parse(self, data: bytes, *, is_first: bool) -> None:
        """Feed the parser. `is_first`: the data may be all of a request."""
        head = self._headers if self._in_head else None
        self._in_small_piece = head is None and len(data) <= HEADERS_BYTES_MAX
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answer an upgrade request as plain HTTP, then close.
            self._hear_no_more()
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            self._start()
            return
        self._timed_bytes += len(data)
        begun = self._begun
        if begun is not None:
            if is_first and begun.arrived and not self._arriving and not self._queued:
                self._server.heads.note(data, begun)
            self._start()
        if self._in_head and head is self._headers:
            self._head_bytes += len(data)
            if self._head_bytes > limits.HEAD_BYTES_MAX:
                too_long = len(self._url) > URL_BYTES_MAX
                self._refuse(limits.LONG_URL if too_long else limits.LARGE_HEADERS)
                return
        if self._arriving or self._timer is not None or self.silent_since is None:
            self._watch()

    def _take_known(self, head: Head, start: int, data: bytes) -> None:
        """Handle a complete request whose head was parsed before."""
        number = self._server.new_number()
        exchange = Exchange(self, head.method, head.path, head.query, head.headers, True, number)
        exchange.fill(data[start:], admitted=head.admitted)
        self._latest = self._current = exchange
        self._server.run(exchange)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable = asyncio.Event()
        self._wait_for_it_to_leave()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._has_left()

    # ---------------------------------------------------------------- what the parser finds

    def on_message_begin(self) -> None:
        self._arriving = self._in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = {}
        if self._repeated:
            self._repeated = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name in headers:
            self._repeated.append((name, value))
        else:
            headers[name] = value

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        self._check_head(headers)
        path, query = _split(self._url)
        method = parser.get_method()
        exchange = Exchange(
            self,
            _METHODS.get(method) or method.decode("ascii"),
            path,
            query,
            headers,
            parser.should_keep_alive(),
            self._server.new_number(),
        )
        version = parser.get_http_version()
        if version != "1.1":
            exchange.version = version
            exchange.keep_alive = exchange.keep_alive and version != "1.0"
        if self._repeated:
            exchange.repeated = self._repeated
        self._in_head = False
        self._headers = _NO_MORE
        self._latest = exchange
        if self._current is None:
            self._current = self._begun = exchange
        else:
            self.pause_reading()
            self._queued.append(exchange)

    def on_body(self, piece: bytes) -> None:
        assert self._latest is not None
        self._latest.add(piece)

    def on_message_complete(self) -> None:
        self._arriving = False
        assert self._latest is not None
        self._latest.complete()
        if self._current is None:
            self.silent_since = self._loop.time()  # it was answered before it was all there

    def _check_head(self, headers: dict[bytes, bytes]) -> None:
        url = self._url
        if not url.startswith(b"/"):
            raise _Refused  # an address with a host in it, which may be another than Host says
        if len(url) > URL_BYTES_MAX:
            self._refusal = limits.LONG_URL
            raise _Refused
        if len(headers) + len(self._repeated) > HEADERS_MAX or not (
            self._in_small_piece or self._headers_bytes() <= HEADERS_BYTES_MAX
        ):
            self._refusal = limits.LARGE_HEADERS
            raise _Refused
        if self._parser.should_upgrade() and any(name in headers for name in _WITH_BODY):
            raise _Refused  # whatever follows would not be read as its body

    def _headers_bytes(self) -> int:
        pairs = [*self._headers.items(), *self._repeated]
        return sum(len(name) + len(value) + 4 for name, value in pairs)

    # ---------------------------------------------------------------- requests, one after the other

    def _start(self) -> None:
        """Start handling the request with the part that has arrived."""
        exchange, self._begun = self._begun, None
        if exchange is not None and not exchange.gone:
            self._server.run(exchange)

    def ended(self, exchange: Exchange) -> None:
        """Continue with the next request, if there is one, because the response has been sent."""
        exchange.end()
        self._current = None
        if not exchange.keep_alive:
            self._part()
        elif self.is_closing():
            self._wait_for_it_to_leave()
        elif self._queued:
            self._current = self._begun = self._queued.popleft()
            self.resume_reading()
            self._loop.call_soon(self._start)  # others have their turn in between
        else:
            self.resume_reading()
            if not self._arriving:
                self.silent_since = self._loop.time()

    def finish(self) -> None:
        """End the connection after all requests that have arrived have responses."""
        if self._current is None or self._latest is None:
            self._transport.close()
        else:
            self._latest.keep_alive = False

    def _hear_no_more(self) -> None:
        self._deaf = True
        if self._latest is not None:
            self._latest.keep_alive = False

    def _part(self) -> None:
        """Close the connection, but not while the client still sends: a connection that is closed
        with something
        unread is reset, and the client might never see the response.
        """
        if not self._arriving or self.is_closing():
            self.close()
            return
        self._transport.write_eof()
        self._deaf = True
        self.resume_reading()
        self._disarm()
        self._timed_bytes = 0
        self._timer = self._loop.call_later(self.read_seconds, self.close)
        self.silent_since = self._loop.time()  # so it goes first if there are too many

    def _ignore(self, data: bytes) -> None:
        self._timed_bytes += len(data)
        if self._timed_bytes > limits.IGNORED_BYTES_MAX and self._current is None:
            self.close()

    # ---------------------------------------------------------------- flow

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self._queued:
            self._read_paused = False
            self._transport.resume_reading()

    async def drained(self) -> None:
        """Return when more can be sent, or when the connection is closed."""
        if self._writable is not None:
            await self._writable.wait()

    # ---------------------------------------------------------------- time

    def _watch(self) -> None:
        """Time out incomplete requests, and stray bytes between requests."""
        if self._arriving or (self._current is None and self.silent_since is None):
            if self._timer is None:
                self._timed_bytes = 0
                self._timer = self._loop.call_later(self.read_seconds, self._late)
        elif self._timer is not None:
            self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.is_closing():
            return
        if self._is_read_on():
            self._watch()
            return
        much = self._timed_bytes >= wire.BODY_BYTES_MAX and self._current is not None
        if self._read_paused or much:
            self._watch()  # reading is paused, or data is still arriving
        elif self._arriving:
            self._refuse(limits.LATE)
        else:
            self.close()

    def _is_read_on(self) -> bool:
        """Return whether a body is read while it is answered, which may take any time but must not
        pause for too long.
        """
        exchange = self._current
        if exchange is None or not exchange.reads_on or not self._arriving:
            return False
        silent = not self._timed_bytes and not self._read_paused
        exchange.silences = exchange.silences + 1 if silent else 0
        if exchange.silences >= limits.STREAM_SILENCES_MAX:
            exchange.stall()
        return True

    def _look_whether_idle(self) -> None:
        """Close an idle connection. One timer serves all idle times and is re-armed only when it
        fires.
        """
        now, since = self._loop.time(), self.silent_since
        left = self.idle_seconds if since is None else since + self.idle_seconds - now
        if left > 0:
            self._idle = self._loop.call_later(left, self._look_whether_idle)
        else:
            self._idle = None
            self.close()

    # ---------------------------------------------------------------- responses that do not leave

    def close(self) -> None:
        """Close the connection. Data that is still to be sent gets a limited time."""
        if self._current is not None:
            self._current.leave()
        self._transport.close()
        self._wait_for_it_to_leave()

    def abort(self) -> None:
        self._transport.abort()

    def _wait_for_it_to_leave(self) -> None:
        self._has_left()
        self._left_bytes = self._transport.get_write_buffer_size()
        if self._left_bytes:
            self._leaving = self._loop.call_later(self.write_seconds, self._look_whether_it_left)

    def _look_whether_it_left(self) -> None:
        if self._transport.get_write_buffer_size() < self._left_bytes:
            self._wait_for_it_to_leave()
        else:
            self._transport.abort()

    def _has_left(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    # ---------------------------------------------------------------- the end

    def _make_room(self) -> None:
        """Drop some idle connections, the longest idle first; if none is idle, this one."""
        silent = sorted(self._silent(), key=lambda one: one[0])
        for _, other in silent[: max(1, len(silent) // 4)]:
            other.abort()
        if not silent:
            self.abort()

    def _silent(self) -> Iterator[tuple[float, HttpConnection]]:
        for other in self._server.connections:
            if other.silent_since is not None and other is not self:
                yield other.silent_since, other

    def _refuse(self, answer: bytes) -> None:
        """Answer the arriving request and close, so that no response is taken for another's."""
        self._disarm()
        if self._in_head or not self._arriving:
            if self._current is not None:  # finish the current request, then close
                self._hear_no_more()
                return
            self.write(answer)
        elif self._queued:  # the same, without the arriving request
            self._queued.pop()
            self._latest = self._queued[-1] if self._queued else self._current
            self._hear_no_more()
            return
        elif self._current is not None:
            if not self._current.started:
                self.write(answer)
            self._current.leave()
            self._current = None
        self._part()


def _split(url: bytes) -> tuple[str, bytes]:
    """Return the path, percent-decoded, and the query of an address that begins with a slash."""
    path, _, query = url.partition(b"#")[0].partition(b"?")
    text = path.decode("ascii")
    if "%" not in text:
        return text, query
    return unquote(text.replace("%2F", ENCODED_SLASH).replace("%2f", ENCODED_SLASH)), query
