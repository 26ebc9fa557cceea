"""HTTP from a plain thread: connections are kept open and used again; a stream has one of its own.

Written on sockets, because a command is over before the standard library's client is imported.
The trap: a request whose answer got lost may have been carried out, so only what is safe to repeat
is repeated: reads, and submissions with an idempotency key.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import httptools

from fairlane.client.transport import Answer, Request, Streaming, bearer, parsed
from fairlane.core.errors import Unreachable

if TYPE_CHECKING:
    import ssl

_CHUNK_BYTES: Final = 65_536
_HEAD_BYTES_MAX: Final = 65_536
_INTERIM: Final = range(100, 200)


class HttpTransport:
    def __init__(self, url: str, token: str | None = None) -> None:
        self._bearer = bearer(token)
        self.where, self._host, self._port, self._prefix = parsed(url)
        self._tls = _tls() if url.startswith("https:") else None
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def ask(self, request: Request) -> Answer:
        try:
            connection = self._kept()
            if connection is not None:
                try:
                    return self._exchange(connection, request)
                except ConnectionError:
                    # The server may have closed it at the very moment it was used again.
                    if not request.repeatable:
                        raise
            return self._exchange(self._new(request.timeout_seconds), request)
        except (OSError, httptools.HttpParserError) as error:
            raise self._lost(error, request.timeout_seconds) from None

    def stream(self, request: Request) -> Streaming:
        try:
            connection = self._new(request.timeout_seconds)
            try:
                reading = self._asked(connection, request)
            except BaseException:
                connection.close()
                raise
        except (OSError, httptools.HttpParserError) as error:
            raise self._lost(error, request.timeout_seconds) from None
        pieces = self._pieces(connection, reading, request.timeout_seconds)
        return Streaming(reading.status, reading.headers, pieces)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, connection: _Connection, request: Request) -> Answer:
        try:
            connection.socket.settimeout(request.timeout_seconds)
            reading = self._asked(connection, request)
            body = b"".join(connection.pieces(reading))
        except BaseException:
            connection.close()
            raise
        if reading.keeps_open:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:  # another thread has closed it meanwhile
            self.close()
        return Answer(reading.status, reading.headers, body)

    def _asked(self, connection: _Connection, request: Request) -> _Reading:
        name = f"[{self._host}]" if ":" in self._host else self._host
        host = name if self._port == (443 if self._tls else 80) else f"{name}:{self._port}"
        lines = [f"{request.method} {self._prefix}{request.target} HTTP/1.1", f"Host: {host}"]
        headers = {**request.headers, **self._bearer}
        lines += (f"{name}: {value}" for name, value in headers.items())
        if request.body is not None or request.method != "GET":
            lines.append(f"Content-Length: {len(request.body or b'')}")
        for line in lines:
            if not line.isprintable():
                raise OSError("a header of the request has characters that cannot be sent")
        head = "\r\n".join(lines).encode("latin-1")
        connection.socket.sendall(head + b"\r\n\r\n" + (request.body or b""))
        return connection.answer()

    def _pieces(
        self, connection: _Connection, reading: _Reading, timeout_seconds: float
    ) -> Generator[bytes, None, None]:
        try:
            yield from connection.pieces(reading)
        except (OSError, httptools.HttpParserError) as error:
            raise self._lost(error, timeout_seconds) from None
        finally:
            connection.close()

    def _kept(self) -> _Connection | None:
        """A connection from an earlier request that the server has not closed since."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_silent:
                return connection
            connection.close()

    def _new(self, timeout_seconds: float) -> _Connection:
        plain = socket.create_connection((self._host, self._port), timeout_seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return _Connection(plain)
            return _Connection(self._tls.wrap_socket(plain, server_hostname=self._host))
        except BaseException:
            plain.close()
            raise

    def _lost(self, error: Exception, timeout_seconds: float) -> Unreachable:
        if isinstance(error, ConnectionRefusedError):
            why = "is fairlane serve running? start it with make run, or fairlane serve"
        elif isinstance(error, TimeoutError):
            why = f"it did not answer within {timeout_seconds:g} s"
        elif isinstance(error, ConnectionError):
            why = "it hung up before it had answered; look whether the request was carried out"
        elif isinstance(error, httptools.HttpParserError):
            why = "what listens there does not speak HTTP"
        else:
            why = getattr(error, "strerror", None) or str(error)
        return Unreachable(f"cannot reach {self.where}: {why}")


class _Connection:
    """One socket; one request at a time."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    @property
    def is_silent(self) -> bool:
        """An idle connection that has something to read was closed by the server."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return not selector.select(0)

    def answer(self) -> _Reading:
        """The answer as far as its headers."""
        reading, size = _Reading(), 0
        while not reading.begun:
            data = self._more()
            size += len(data)
            reading.feed(data)
            if size > _HEAD_BYTES_MAX and not reading.begun:
                raise httptools.HttpParserError("the headers have no end")
        return reading

    def pieces(self, reading: _Reading) -> Generator[bytes, None, None]:
        """The body as it comes in."""
        while True:
            found, reading.found = reading.found, []
            yield from found
            if reading.complete:
                return
            try:
                reading.feed(self._more())
            except ConnectionError:
                if reading.has_length:
                    raise
                return  # without a length, the end of the connection is the end

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> bytes:
        data = self.socket.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        return data


class _Reading:
    """An answer being read; httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self.begun = False  # the headers are complete
        self.complete = False
        self.keeps_open = False
        self.found: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def has_length(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keeps_open = self._parser.should_keep_alive()
        self.begun = self.status not in _INTERIM

    def on_body(self, data: bytes) -> None:
        self.found.append(data)

    def on_message_complete(self) -> None:
        self.complete = self.begun
        if not self.begun:  # an interim answer; the real one follows
            self.headers.clear()


def _tls() -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - slow to import, and servers nearby do without it

    return ssl.create_default_context()
