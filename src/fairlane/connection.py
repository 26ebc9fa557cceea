"""HTTP from a plain thread: connections are kept open and used again; a stream has one of its own.

Only who talks to a server needs this, and it is slow to import. The trap: a request whose answer
got lost may have been carried out, so only what is safe to repeat is repeated: reads, and
submissions with an idempotency key.
"""

from __future__ import annotations

import http.client
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Generator
from typing import Final

from fairlane.core.errors import Unreachable
from fairlane.transport import Answer, Request, Streaming, parsed

_CHUNK_BYTES: Final = 65_536


class HttpTransport:
    def __init__(self, url: str) -> None:
        self.where, self._host, self._port, self._prefix = parsed(url)
        self._tls = ssl.create_default_context() if url.startswith("https:") else None
        self._idle: deque[http.client.HTTPConnection] = deque()
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
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error, request.timeout_seconds) from None

    def stream(self, request: Request) -> Streaming:
        connection = self._new(request.timeout_seconds)
        try:
            response = self._asked(connection, request)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost(error, request.timeout_seconds) from None
        except BaseException:
            connection.close()
            raise
        return Streaming(
            response.status,
            _headers(response),
            self._pieces(connection, response, request.timeout_seconds),
        )

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> Answer:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(request.timeout_seconds)
            response = self._asked(connection, request)
            answer = Answer(response.status, _headers(response), response.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if self._closed:  # another thread has closed it meanwhile
            self.close()
        return answer

    def _asked(
        self, connection: http.client.HTTPConnection, request: Request
    ) -> http.client.HTTPResponse:
        target, headers = self._prefix + request.target, dict(request.headers)
        connection.request(request.method, target, body=request.body, headers=headers)
        return connection.getresponse()

    def _pieces(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        timeout_seconds: float,
    ) -> Generator[bytes, None, None]:
        try:
            while piece := response.read1(_CHUNK_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error, timeout_seconds) from None
        finally:
            response.close()
            connection.close()

    def _kept(self) -> http.client.HTTPConnection | None:
        """A connection from an earlier request that the server has not closed since."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.sock is not None and _is_silent(connection.sock):
                return connection
            connection.close()

    def _new(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_seconds, context=self._tls
        )

    def _lost(self, error: Exception, timeout_seconds: float) -> Unreachable:
        if isinstance(error, ConnectionRefusedError):
            why = "is fairlane serve running? start it with make run, or fairlane serve"
        elif isinstance(error, TimeoutError):
            why = f"it did not answer within {timeout_seconds:g} s"
        elif isinstance(error, ConnectionError | http.client.IncompleteRead):
            why = "it hung up before it had answered; look whether the request was carried out"
        elif isinstance(error, http.client.HTTPException):
            why = "what listens there does not speak HTTP"
        else:
            why = getattr(error, "strerror", None) or str(error)
        return Unreachable(f"cannot reach {self.where}: {why}")


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _is_silent(sock: socket.socket) -> bool:
    """An idle connection that has something to read was closed by the server."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return not selector.select(0)
