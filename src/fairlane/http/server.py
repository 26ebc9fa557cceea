"""The HTTP server: a listening socket, its connections, and the requests that run."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket

from fairlane.http import limits
from fairlane.http.connection import HttpConnection
from fairlane.http.cross_site import Doorkeeper
from fairlane.http.driver import Driver
from fairlane.http.exchange import Application, Exchange
from fairlane.http.heads import KnownHeads


class HttpServer:
    def __init__(
        self,
        application: Application,
        door: Doorkeeper,
        connection: type[HttpConnection] = HttpConnection,
    ) -> None:
        """Create the server inside the event loop that it runs in."""
        self.loop = asyncio.get_running_loop()
        self.door = door
        self.heads = KnownHeads(door)
        self.connections: set[HttpConnection] = set()
        self._application = application
        self._connection = connection
        self._running: set[Exchange] = set()
        self._listening: asyncio.Server | None = None
        self._stopping: asyncio.Event | None = None
        # Numbers of different starts differ, so that an id is found in one log only.
        self._prefix = secrets.token_hex(4).encode()
        self._numbers = itertools.count(1)

    async def start(self, listener: socket.socket) -> None:
        most = limits.UNACCEPTED_MAX
        if listener.family == getattr(socket, "AF_UNIX", None):
            self._listening = await self.loop.create_unix_server(
                self._connect, sock=listener, backlog=most
            )
        else:
            self._listening = await self.loop.create_server(
                self._connect, sock=listener, backlog=most
            )

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self.loop.connect_accepted_socket(self._connect, connection)

    def _connect(self) -> HttpConnection:
        return self._connection(self)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, answer the pending requests within the grace, then close
        connections.
        """
        if self._listening is not None:
            self._listening.close()
        self._stopping = asyncio.Event()
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(grace_seconds):
                while self.connections or self._running:
                    await self._stopping.wait()
                    self._stopping.clear()
        except TimeoutError:
            for exchange in list(self._running):
                exchange.cancel()
            for connection in list(self.connections):
                connection.abort()

    def new_number(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._numbers))

    def run(self, exchange: Exchange) -> None:
        """Let the application handle a request."""
        self._running.add(exchange)
        driver = exchange.driver = Driver(self.loop, exchange.run(self._application))
        driver.start()

    def finished(self, exchange: Exchange) -> None:
        self._running.discard(exchange)
        if self._stopping is not None:
            self._stopping.set()

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self._stopping is not None:
            self._stopping.set()
