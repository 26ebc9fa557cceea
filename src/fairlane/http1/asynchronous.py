"""HTTP/1.1 on asyncio. A pool belongs to the event loop that uses it.

The rule: a new connection goes only to the addresses that the resolver returned, and the resolver
checks its peer before the first byte is sent, TLS included. An idle connection is reused only if
its peer is still among the allowed addresses. Cancelling an exchange closes its connection.

Caution: as in `blocking.py`, a request without a response may have taken effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, cast

from fairlane.http1.keeping import KeptConnections, default_tls
from fairlane.http1.messages import (
    EncodedRequest,
    MalformedResponse,
    NameNotFound,
    Origin,
    ResponseParser,
)

if TYPE_CHECKING:
    import ssl

# Stop reading the connection when this many bytes of a body have not been taken.
_AHEAD_BYTES_MAX: Final = 262_144
# How long to wait for one address before trying the next in parallel.
_STAGGER_SECONDS: Final = 0.25


class Pinning(Enum):
    """Which addresses a request may use, if that is known without a lookup."""

    LOOKUP = auto()  # where its name resolves now, also on a kept connection
    ANYWHERE = auto()  # any kept connection; the name is resolved for a new one


class Resolver(Protocol):
    def pinned(self, origin: Origin) -> Sequence[str] | Pinning:
        """Return the addresses that the next request may use. Called for every request; raise to
        refuse it.
        """
        ...

    async def addresses(self, origin: Origin) -> Sequence[str]:
        """Look up the addresses of an origin. Raise NameNotFound if there are none."""
        ...

    def verify(self, origin: Origin, *, peer: str, own: str) -> None:
        """Raise if a new connection has a forbidden peer."""
        ...


class SystemResolver:
    """The system's name service, unchecked: for servers that the user names."""

    def pinned(self, origin: Origin) -> Pinning:
        del origin
        return Pinning.ANYWHERE

    async def addresses(self, origin: Origin) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameNotFound(*error.args) from error
        return list(dict.fromkeys(str(one[4][0]) for one in found))

    def verify(self, origin: Origin, *, peer: str, own: str) -> None:
        del origin, peer, own


class AsyncPool:
    """Connections to any origin. `tls` replaces the system's trust settings."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        idle_seconds: float,
        connect_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._resolver = resolver
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._kept: KeptConnections[AsyncConnection] = KeptConnections(
            self._loop.time, seconds=idle_seconds
        )
        self._sweep: asyncio.TimerHandle | None = None

    def exchange(
        self,
        request: EncodedRequest,
        *,
        seconds: float | None,
        bytes_max: int | None,
        wait_seconds: float | None = None,
    ) -> AsyncExchange:
        """Return an exchange that starts when it is entered.

        `seconds` limits the whole exchange; `wait_seconds` limits each wait, for the head and for
        each piece.
        """
        return AsyncExchange(self, request, seconds, wait_seconds, bytes_max)

    async def close(self) -> None:
        self._kept.close()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    async def connection(
        self, origin: Origin, end: float | None, *, fresh: bool = False
    ) -> AsyncConnection:
        """Return an idle connection whose peer is still allowed, or a new one."""
        pinned = self._resolver.pinned(origin)
        if pinned is Pinning.LOOKUP:
            async with asyncio.timeout_at(end):
                pinned = await self._resolver.addresses(origin)
        while not fresh and (kept := self._kept.take(origin)) is not None:
            if kept.is_usable and (pinned is Pinning.ANYWHERE or kept.peer in pinned):
                return kept
            kept.close()
        async with asyncio.timeout_at(end), asyncio.timeout(self._connect_seconds):
            if pinned is Pinning.ANYWHERE:
                pinned = await self._resolver.addresses(origin)
            return await self._connected(origin, pinned)

    async def _connected(self, origin: Origin, addresses: Sequence[str]) -> AsyncConnection:
        dialled = await dial(addresses, origin.port)
        try:
            peer, own = dialled.getpeername()[0], dialled.getsockname()[0]
            self._resolver.verify(origin, peer=peer, own=own)
            tls = self._tls or default_tls() if origin.tls else None
            _, connection = await self._loop.create_connection(
                lambda: AsyncConnection(peer, self._kept),
                sock=dialled,
                ssl=tls,
                server_hostname=origin.host if tls else None,
            )
        except BaseException:
            dialled.close()
            raise
        return connection

    def keep(self, origin: Origin, connection: AsyncConnection) -> None:
        self._kept.put(origin, connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_seconds, self._swept)

    def _swept(self) -> None:
        self._kept.close_expired()
        self._sweep = None
        if len(self._kept):
            self._sweep = self._loop.call_later(self._idle_seconds, self._swept)


class AsyncExchange:
    """A response, iterated in the pieces in which it arrives. Leaving its context early closes the
    connection.

    Raise OSError, TimeoutError included, if there is no response or it breaks off, and
    PayloadTooLarge once the part of the body within its limit has been taken.
    """

    __slots__ = (
        "_bytes_max",
        "_connection",
        "_end",
        "_pool",
        "_request",
        "_seconds",
        "_timer",
        "_wait_seconds",
        "headers",
        "status",
    )

    def __init__(
        self,
        pool: AsyncPool,
        request: EncodedRequest,
        seconds: float | None,
        wait_seconds: float | None,
        bytes_max: int | None,
    ) -> None:
        self._pool = pool
        self._request = request
        self._seconds = seconds
        self._wait_seconds = wait_seconds
        self._bytes_max = bytes_max
        self._end: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            self._end = asyncio.get_running_loop().time() + self._seconds
        try:
            await self._begin()
        except BaseException:
            self._stop_timer()
            raise
        response = self._connection.response
        self.status, self.headers = response.status, response.headers
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_timer()
        if self._connection.is_free:
            self._pool.keep(self._request.origin, self._connection)
        else:
            self._connection.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        response = self._connection.response
        if not response.has_news:
            await self._grown(lambda: response.has_news)
        if response.excess and not response.body:
            self._connection.close()
        piece = response.take()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])

    async def _begin(self) -> None:
        self._connection = await self._pool.connection(self._request.origin, self._end)
        again = self._connection.uses > 0 and self._request.repeatable
        try:
            await self._head()
        except ConnectionError:
            # The server may have closed it just when it was reused.
            if not again or not self._connection.response.untouched:
                raise
            self._stop_timer()
            self._connection = await self._pool.connection(
                self._request.origin, self._end, fresh=True
            )
            await self._head()

    async def _head(self) -> None:
        connection = self._connection
        try:
            if self._end is not None:
                error = TimeoutError("the time limit has passed")
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(self._end, connection.fail, error)
            connection.send(self._request, self._bytes_max)
            await self._grown(lambda: connection.response.begun)
        except BaseException:
            connection.close()
            raise

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _grown(self, enough: Callable[[], bool]) -> None:
        if self._wait_seconds is None:  # a timeout costs time even if it is infinite
            while not enough():
                await self._connection.more()
            return
        async with asyncio.timeout(self._wait_seconds):
            while not enough():
                await self._connection.more()


class AsyncConnection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    __slots__ = (
        "_error",
        "_kept",
        "_loop",
        "_lost",
        "_paused",
        "_transport",
        "_waiter",
        "peer",
        "response",
        "uses",
    )

    def __init__(self, peer: str, kept: KeptConnections[AsyncConnection]) -> None:
        self.peer = peer
        self.uses = 0
        self.response = ResponseParser()
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._lost = False
        self._paused = False

    @property
    def is_usable(self) -> bool:
        """Return whether another request may be sent."""
        return self.response.reusable and not self._lost and not self._transport.is_closing()

    @property
    def is_free(self) -> bool:
        """Return whether both sides have finished the exchange."""
        complete = self.response.complete and self.is_usable
        return complete and not self._transport.get_write_buffer_size()

    def send(self, request: EncodedRequest, bytes_max: int | None) -> None:
        self.uses += 1
        self.response.expect(request.method, bytes_max)
        self._transport.write(request.data)

    async def more(self) -> None:
        """Wait until more of the response has arrived. Raise the error that broke it."""
        if self._error is None:
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None and not self.response.body:
            raise self._error

    def fail(self, error: OSError) -> None:
        """End the exchange and the connection with an error."""
        if self._error is None:
            self._error = error
        self._transport.abort()
        self._wake()

    def close(self) -> None:
        self._transport.abort()

    # ---------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        response = self.response
        try:
            response.feed(data)
        except MalformedResponse as error:
            self.fail(error)
            return
        if response.complete:
            if not response.reusable:
                self._transport.abort()
        elif len(response.body) > 1 and sum(map(len, response.body)) > _AHEAD_BYTES_MAX:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        try:
            self.response.end()
        except ConnectionError as closed:
            closed.__cause__ = error
            self._error = self._error or closed
        self.response.release()
        self._kept.forget(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def dial(addresses: Sequence[str], port: int) -> socket.socket:
    """Return a socket that is connected to the first address that accepts."""
    waiting, dialling, errors = list(addresses), set[asyncio.Task[socket.socket]](), []
    if len(waiting) == 1:
        return await _dialled(waiting[0], port)
    try:
        while waiting or dialling:
            if waiting:
                dialling.add(asyncio.create_task(_dialled(waiting.pop(0), port)))
            done, _ = await asyncio.wait(
                dialling,
                timeout=_STAGGER_SECONDS if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                dialling.discard(task)
                error = task.exception()
                if error is None:
                    return task.result()
                errors.append(error)
    finally:
        await _hang_up(dialling)
    raise errors[0] if errors else NameNotFound("the host name has no address")


async def _hang_up(dialling: set[asyncio.Task[socket.socket]]) -> None:
    for task in dialling:
        task.cancel()
    for outcome in await asyncio.gather(*dialling, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            outcome.close()


async def _dialled(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    dialled = socket.socket(family, socket.SOCK_STREAM)
    try:
        dialled.setblocking(False)
        await asyncio.get_running_loop().sock_connect(dialled, (address, port))
    except BaseException:
        with contextlib.suppress(OSError):
            dialled.close()
        raise
    return dialled
