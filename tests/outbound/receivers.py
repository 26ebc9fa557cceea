"""Real servers on loopback: one that speaks raw bytes, one that speaks HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping


def http(status: str = "200 OK", *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


OK = http(body=b"ok")


class Listener:
    """Counts connections and keeps what arrived; answers each request with the same bytes.

    A connection is counted when it is taken out of the queue of the system, a moment after it was
    made: a test that expects none uses `counted`. When `listening` is left, all are counted.
    """

    def __init__(self, answer: bytes | None = OK, host: str = "127.0.0.1") -> None:
        self.connections = 0
        self.ended = 0  # of these, connections that either side has closed
        self.requests: list[bytes] = []
        self.host = host
        self.port = 0
        self._ours: dict[tuple[str, int], asyncio.Event] = {}
        self.answer = answer  # None: never answers
        self.then_endless = b""  # sent for ever behind the answer
        self.greets = False  # answers before it is asked
        self.hang_up = False
        self.reset = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def counted(self) -> int:
        """How many have come so far: one of ours, which is not counted, is served behind them."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as last:
            last.setblocking(False)
            last.bind((self.host, 0))
            arrived = self._ours[last.getsockname()[:2]] = asyncio.Event()
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.get_running_loop().sock_connect(last, (self.host, self.port))
                await arrived.wait()
        return self.connections

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port, *_ = writer.get_extra_info("peername") or ("", 0)
        ours = self._ours.pop((host, port), None)
        if ours is not None:
            writer.close()
            ours.set()
            return
        self.connections += 1
        try:
            await self._listen(reader, writer)
        finally:
            writer.close()
            self.ended += 1

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if self.greets:
                await self._answer(reader, writer)
                return
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head + await reader.readexactly(_length(head)))
                if self.reset:
                    writer.transport.abort()
                    return
                await self._answer(reader, writer)
                if self.hang_up:
                    return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.answer is None:
            await reader.read()
            return
        writer.write(self.answer)
        await writer.drain()
        while self.then_endless:
            writer.write(self.then_endless)
            await writer.drain()
            # Lets the loop see that the other side has gone.
            await asyncio.sleep(0)


def _length(head: bytes) -> int:
    lines = head.decode("latin-1").lower().split("\r\n")
    return next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)


@asynccontextmanager
async def listening(
    answer: bytes | None = OK,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Listener]:
    listener = Listener(answer, host)
    talks: set[asyncio.Task[None]] = set()

    def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(listener.talk(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    server = await asyncio.start_server(talk, host, port, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
        if tls is None:  # behind TLS one of ours would have to speak it
            await listener.counted()
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


_CLOSING = web.AppKey("closing", asyncio.Event)


class Received(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes


class Receiver:
    """A receiver of webhooks; `answers` are used up one by one, the last one again and again."""

    def __init__(self, *answers: Callable[[web.Request], Awaitable[web.Response]]) -> None:
        self.answers = list(answers)
        self.received: list[Received] = []
        self.arrived = asyncio.Condition()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        async with self.arrived:
            self.received.append(Received(request.path, request.headers, body))
            self.arrived.notify_all()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)


def answering(
    status: int, headers: Mapping[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers)

    return answer


async def hanging(request: web.Request) -> web.Response:
    await request.app[_CLOSING].wait()
    return web.Response()


async def resetting(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def receiving(
    *answers: Callable[[web.Request], Awaitable[web.Response]],
) -> AsyncIterator[Receiver]:
    receiver = Receiver(*answers)
    app = web.Application()
    app[_CLOSING] = asyncio.Event()
    app.router.add_post("/{path:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}/hook"
    try:
        yield receiver
    finally:
        app[_CLOSING].set()
        await runner.cleanup()
