"""Abused connections: clients that send without end, do not read, or open very many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from fairlane.http.messages import Answer, HttpRequest, Stream
from tests.hostile.echo import Echo
from tests.hostile.wires import HURRY_SECONDS, SECONDS_MAX, Door, Hurried, Wire, door

JSON = "Content-Type: application/json\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
LARGE = 32 * 1024 * 1024  # more than the system keeps for who does not read
PARTS = 15
FEW = 4


class Crowded(Hurried):
    connections_max = FEW


class Patient(Hurried):
    write_seconds = 1.0


class Flood:
    """Answers much more than a connection holds, and tells when its caller has gone."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, request: HttpRequest) -> Stream:
        assert request.full_path == "/much"
        return Stream(self._pieces(), self.gone.set)

    async def _pieces(self) -> AsyncIterator[bytes]:
        for _ in range(LARGE // 65_536):
            yield b" " * 65_536


async def test_headers_behind_a_body_are_not_kept(entry: Door) -> None:
    wire = await entry.open()
    await wire.send(f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\n{JSON}{CHUNKED}0\r\n".encode())
    assert await _is_hung_up(wire, (b"X: " + b"y" * 1000 + b"\r\n") * 600)


async def _hasty(_: HttpRequest) -> Answer:
    """Answers before it has read anything, as who wants a token does."""
    return Answer(401, {})


@pytest.mark.slow
async def test_what_comes_without_end_behind_an_answer_ends_the_connection() -> None:
    async with door(_hasty) as entry:
        wire = await entry.open()
        await wire.send(f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\n{JSON}{CHUNKED}".encode())
        assert await _is_hung_up(wire, (b"10000\r\n" + b" " * 65_536 + b"\r\n") * 16)


async def _is_hung_up(wire: Wire, endless: bytes) -> bool:
    """Whether the server hangs up on who sends that over and over, fast enough not to be late."""
    try:
        async with asyncio.timeout(4 * HURRY_SECONDS):
            while True:
                await wire.send(endless)
                await asyncio.sleep(HURRY_SECONDS / 20)
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        await wire.close()


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flood = Flood()
    async with door(flood) as entry:
        with _deaf(entry) as caller:
            async with asyncio.timeout(SECONDS_MAX):
                await flood.gone.wait()
            assert caller.fileno() >= 0
    assert caplog.text == ""


@pytest.mark.slow
async def test_a_slow_reader_gets_the_whole_response() -> None:
    flood = Flood()
    async with door(flood, Patient) as entry:
        loop = asyncio.get_running_loop()
        with _deaf(entry) as caller:
            caller.setblocking(False)
            got = 0
            async with asyncio.timeout(SECONDS_MAX):
                for part in range(1, PARTS + 1):
                    while got < LARGE * part // PARTS:
                        read = await loop.sock_recv(caller, 1024 * 1024)
                        assert read, "it was cut off"
                        got += len(read)
                    await asyncio.sleep(Patient.write_seconds / 10)


def _deaf(entry: Door) -> socket.socket:
    """Who asks for much and reads nothing."""
    caller = socket.create_connection(("127.0.0.1", entry.port))
    caller.sendall(f"GET /much HTTP/1.1\r\nHost: {entry.host}\r\n\r\n".encode())
    return caller


async def test_of_too_many_connections_those_go_that_are_silent_longest(echo: Echo) -> None:
    async with door(echo, Crowded) as entry:
        wires = [await entry.open() for _ in range(FEW)]
        for wire in wires[1:]:
            await wire.send(f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\n{JSON}".encode())
        assert (await entry.ask("GET", "/new")).status == 200
        assert await wires[0].answers() == []
        for wire in wires[1:]:  # what has begun goes on
            await wire.send(b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
            assert [one.status for one in await wire.answers()] == [200]
        for wire in wires:
            await wire.close()


async def test_where_all_connections_are_in_use_another_is_disconnected(echo: Echo) -> None:
    async with door(echo, Crowded) as entry:
        wires = [await entry.open() for _ in range(FEW)]
        for wire in wires:
            await wire.send(f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\n{JSON}".encode())
        late = await entry.open()
        assert await late.answers() == []
        await late.close()
        for wire in wires:
            await wire.close()

        raw = f"GET / HTTP/1.1\r\nHost: {entry.host}\r\nConnection: close\r\n\r\n".encode()
        async with asyncio.timeout(SECONDS_MAX):
            while not await entry.say(raw):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
