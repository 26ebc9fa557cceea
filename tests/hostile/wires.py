"""A server on loopback with the doors of the real one, and a wire to it on which anything goes."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from fairlane.http.connection import HttpConnection
from fairlane.http.cross_site import LOOPBACK, Doorkeeper, authorities
from fairlane.http.exchange import Application
from fairlane.http.server import HttpServer
from tests.fakes.waiting import WAIT_SECONDS

SECONDS_MAX = WAIT_SECONDS
HURRY_SECONDS = 0.3


class Hurried(HttpConnection):
    """As the real one, but nobody has to wait ten seconds for it, or thirty."""

    read_seconds = HURRY_SECONDS
    write_seconds = HURRY_SECONDS


class Said(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def answers(self) -> list[Said]:
        """All that is said until the server hangs up."""
        raw = b""
        async with asyncio.timeout(SECONDS_MAX):
            with suppress(ConnectionError):
                while piece := await self._reader.read(65_536):
                    raw += piece
        return parsed(raw)

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def parsed(raw: bytes) -> list[Said]:
    """Answers that have a length each, one after the other."""
    found: list[Said] = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", lines[0])
        assert status, raw[:200]
        headers = {
            name.lower(): text for name, _, text in (one.partition(": ") for one in lines[1:])
        }
        length = int(headers.get("content-length", len(rest)))
        found.append(Said(int(status[1]), headers, rest[:length]))
        raw = rest[length:]
    return found


class Door:
    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"

    async def open(self, address: str = "127.0.0.1") -> Wire:
        return Wire(*await asyncio.open_connection(address, self.port))

    async def say(self, raw: bytes) -> list[Said]:
        """Send all of it and nothing more; what is answered until the server hangs up."""
        wire = await self.open()
        try:
            await wire.send(raw)
            return await wire.answers()
        finally:
            await wire.close()

    async def ask(self, method: str, path: str, *headers: str, body: bytes = b"") -> Said:
        """One request with exactly these headers besides its host and its end."""
        lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close"]
        if not any(one.lower().startswith("host:") for one in headers):
            lines.insert(1, f"Host: {self.host}")
        if body:
            lines.append(f"Content-Length: {len(body)}")
        (answer,) = await self.say("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        return answer


@asynccontextmanager
async def door(
    app: Application,
    connection: type[HttpConnection] = Hurried,
    *,
    hosts: list[str] | None = None,
    address: str = "127.0.0.1",
) -> AsyncIterator[Door]:
    listener = socket.socket()
    listener.bind((address, 0))
    listener.listen(64)
    port = listener.getsockname()[1]
    keeper = Doorkeeper([*authorities(LOOPBACK, port), *(hosts or [])])
    server = HttpServer(app, keeper, connection)
    await server.start(listener)
    try:
        yield Door(port)
    finally:
        await server.stop(0)
