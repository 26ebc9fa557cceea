"""HTTP/1.1 from a plain thread. Any number of threads may share a pool.

Written on sockets, because importing the standard library's client takes longer than a whole
command.

Caution: a request without a response may have taken effect, so it is sent again only if it is
repeatable, or if no part of it left this machine.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

from fairlane.clock import SystemClock
from fairlane.http1.keeping import KeptConnections, default_tls
from fairlane.http1.messages import EncodedRequest, Origin, ResponseParser

if TYPE_CHECKING:
    import ssl

_CHUNK_BYTES: Final = 65_536

_monotonic: Final = SystemClock().monotonic


class _NothingSent(ConnectionError):
    """A kept connection was dead before the request could be sent."""


class BlockingPool:
    """Connections to any origin. `tls` replaces the system's trust settings."""

    def __init__(self, *, idle_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._kept: KeptConnections[_BlockingConnection] = KeptConnections(
            _monotonic, seconds=idle_seconds
        )

    def open(
        self, request: EncodedRequest, *, seconds: float, bytes_max: int | None, whole: bool = True
    ) -> BlockingExchange:
        """Send a request and return when the head of its response has arrived.

        `seconds` limits the whole exchange; if not `whole`, it limits each wait instead: for the
        head and for each piece of the body. Raise OSError if there is no response.
        """
        kept = self._kept_for(request.origin)
        if kept is not None:
            exchange = BlockingExchange(kept, self._kept, request.origin, seconds, whole=whole)
            try:
                return exchange.begin(request, bytes_max)
            except _NothingSent:
                pass
            except ConnectionError:
                # The server may have closed it just when it was reused.
                if not request.repeatable or not kept.response.untouched:
                    raise
        fresh = self._connect(request.origin, seconds)
        exchange = BlockingExchange(fresh, self._kept, request.origin, seconds, whole=whole)
        return exchange.begin(request, bytes_max)

    def close(self) -> None:
        self._kept.close()

    def _kept_for(self, origin: Origin) -> _BlockingConnection | None:
        while (kept := self._kept.take(origin)) is not None:
            if kept.is_silent:
                return kept
            kept.close()
        return None

    def _connect(self, origin: Origin, seconds: float) -> _BlockingConnection:
        plain = socket.create_connection((origin.host, origin.port), seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not origin.tls:
                return _BlockingConnection(plain)
            tls = self._tls or default_tls()
            return _BlockingConnection(tls.wrap_socket(plain, server_hostname=origin.host))
        except BaseException:
            plain.close()
            raise


class BlockingExchange:
    """A response, iterated in the pieces in which it arrives. Closing it early closes the
    connection.
    """

    def __init__(
        self,
        connection: _BlockingConnection,
        kept: KeptConnections[_BlockingConnection],
        origin: Origin,
        seconds: float,
        *,
        whole: bool,
    ) -> None:
        self._connection = connection
        self._response = connection.response
        self._kept = kept
        self._origin = origin
        self._seconds = seconds
        self._whole = whole
        self._over = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self._end = _monotonic() + seconds

    def begin(self, request: EncodedRequest, bytes_max: int | None) -> Self:
        try:
            self._response.expect(request.method, bytes_max)
            self._connection.send(request.data, self._end)
            self._restart()
            while not self._response.begun:
                self._connection.receive(self._end)
        except BaseException:
            self._connection.close()
            raise
        # Copied, because the connection may belong to another thread once it is returned.
        self.status, self.headers = self._response.status, self._response.headers
        return self

    def __iter__(self) -> Iterator[bytes]:
        """Raise OSError if the response breaks off, PayloadTooLarge beyond its limit."""
        response = self._response
        try:
            while True:
                self._restart()
                while not response.has_news:
                    self._connection.receive(self._end)
                piece = response.take()
                if not piece:
                    return
                yield piece
        finally:
            self.close()

    def read(self) -> bytes:
        """Return the whole body. Raise the same errors as iterating."""
        if not self._response.complete or self._response.excess:
            return b"".join(self)
        body = self._response.take()  # nearly always it arrived with the head
        self.close()
        return body

    def close(self) -> None:
        if self._over:
            return
        self._over = True
        if self._response.complete and self._response.reusable:
            self._kept.put(self._origin, self._connection)
        else:
            self._connection.close()

    def _restart(self) -> None:
        if not self._whole:
            self._end = _monotonic() + self._seconds


class _BlockingConnection:
    """One socket; one request at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._timeout = 0.0
        self._poll = select.poll() if hasattr(select, "poll") else None  # Windows has none
        if self._poll is not None:
            self._poll.register(connected, select.POLLIN)
        self.response = ResponseParser()

    @property
    def is_silent(self) -> bool:
        """Return False if there is something to read: the server closed this idle connection."""
        if self._poll is None:
            return not select.select([self._socket], [], [], 0)[0]
        return not self._poll.poll(0)

    def send(self, data: bytes, end: float) -> None:
        self._wait_at_most(end)
        try:
            sent = self._socket.send(data)
        except ConnectionError as error:
            raise _NothingSent(*error.args) from error
        if sent < len(data):
            self._wait_at_most(end)
            self._socket.sendall(memoryview(data)[sent:])

    def receive(self, end: float) -> None:
        self._wait_at_most(end)
        data = self._socket.recv(_CHUNK_BYTES)
        if data:
            self.response.feed(data)
        else:
            self.response.end()

    def close(self) -> None:
        self.response.release()
        with contextlib.suppress(OSError):
            self._socket.close()

    def _wait_at_most(self, end: float) -> None:
        left = end - _monotonic()
        if left <= 0:
            raise TimeoutError("the time limit has passed")
        if abs(left - self._timeout) > left / 50:  # each setting is a system call
            self._timeout = left
            self._socket.settimeout(left)
