"""The address of a server, and HTTP to it from a plain thread.

Caution: a request whose response was lost may have taken effect, so only requests that are safe to
repeat are repeated: reads, and submissions with an idempotency key.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from fairlane.client.transport import ClientRequest, ClientResponse, ClientStream, bearer, parsed
from fairlane.core.errors import Unreachable
from fairlane.http1.blocking import BlockingExchange, BlockingPool
from fairlane.http1.messages import EncodedRequest, MalformedResponse, Origin, encode_request

# Shorter than any server keeps an idle connection, so that none is used while the server closes it.
IDLE_SECONDS: Final = 2.0
BODY_BYTES_MAX: Final = 256 * 1024 * 1024


class Server:
    """The address and token of a server, and its errors."""

    def __init__(self, url: str, token: str | None) -> None:
        self._bearer = bearer(token)
        self.where, host, port, self._prefix = parsed(url)
        tls = url.startswith("https:")
        self._origin = Origin(host, port or (443 if tls else 80), tls)

    def encoded(self, request: ClientRequest) -> EncodedRequest:
        return encode_request(
            self._origin,
            request.method,
            self._prefix + request.target,
            {**request.headers, **self._bearer},
            request.body,
            repeatable=request.repeatable,
        )

    def unreachable(self, error: OSError, timeout_seconds: float) -> Unreachable:
        if isinstance(error, ConnectionRefusedError):
            why = "no server is listening there; start one with fairlane serve"
        elif isinstance(error, TimeoutError):
            why = f"no response within {timeout_seconds:g} s"
        elif isinstance(error, MalformedResponse):
            why = "the server there does not speak HTTP; check the address"
        elif isinstance(error, ConnectionError):
            why = (
                "the connection closed before a response arrived; "
                "check whether the request took effect"
            )
        else:
            why = error.strerror or str(error)
        return Unreachable(f"cannot reach {self.where}: {why}")


class HttpTransport:
    def __init__(self, url: str, token: str | None = None) -> None:
        self._server = Server(url, token)
        self.where = self._server.where
        self._pool = BlockingPool(idle_seconds=IDLE_SECONDS)

    def ask(self, request: ClientRequest) -> ClientResponse:
        sent, seconds = self._server.encoded(request), request.timeout_seconds
        try:
            exchange = self._pool.open(sent, seconds=seconds, bytes_max=BODY_BYTES_MAX)
            return ClientResponse(exchange.status, exchange.headers, exchange.read())
        except OSError as error:
            raise self._server.unreachable(error, seconds) from None

    def stream(self, request: ClientRequest) -> ClientStream:
        sent, seconds = self._server.encoded(request), request.timeout_seconds
        try:
            exchange = self._pool.open(sent, seconds=seconds, bytes_max=None, whole=False)
        except OSError as error:
            raise self._server.unreachable(error, seconds) from None
        return ClientStream(exchange.status, exchange.headers, self._pieces(exchange, seconds))

    def close(self) -> None:
        self._pool.close()

    def _pieces(self, exchange: BlockingExchange, seconds: float) -> Generator[bytes, None, None]:
        try:
            yield from exchange
        except OSError as error:
            raise self._server.unreachable(error, seconds) from None
