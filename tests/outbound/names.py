"""A name server of our own: real packets over UDP on loopback, and a client that asks it.

Every question is answered from a script: the answers to a name in turn, the last one for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

A, CNAME, AAAA = 1, 5, 28
_IN = 1
_ANSWER = 0x8180  # a response, with recursion
_NO_SUCH_NAME = 3
_HOPS_MAX = 8


class Records(NamedTuple):
    """What a name has at one moment: addresses of both families, or another name."""

    addresses: Sequence[str] = ()
    alias: str | None = None
    ttl: int = 0


class NameServer(asyncio.DatagramProtocol):
    def __init__(self, script: Mapping[str, Sequence[Records]]) -> None:
        self.script = dict(script)
        self.lookups: dict[str, int] = {}  # how often a name was asked for addresses
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self._transport.sendto(self._answer(data), addr)

    def _answer(self, query: bytes) -> bytes:
        (number,) = struct.unpack_from("!H", query)
        name, at = read_name(query, 12)
        (kind,) = struct.unpack_from("!H", query, at)
        question = query[12 : at + 4]
        moments = self.script.get(name)
        if moments is None:
            return struct.pack("!6H", number, _ANSWER | _NO_SUCH_NAME, 1, 0, 0, 0) + question
        if kind == A:  # a client asks for A first: both families have one answer time
            self.lookups[name] = self.lookups.get(name, 0) + 1
        records = moments[min(self.lookups.get(name, 1), len(moments)) - 1]
        answers = [*_records(name, records, kind)]
        head = struct.pack("!6H", number, _ANSWER, 1, len(answers), 0, 0)
        return head + question + b"".join(answers)


def _records(name: str, records: Records, kind: int) -> list[bytes]:
    if records.alias is not None:
        return [_record(name, CNAME, records.ttl, write_name(records.alias))]
    family = socket.AF_INET6 if kind == AAAA else socket.AF_INET
    return [
        _record(name, kind, records.ttl, socket.inet_pton(family, address))
        for address in records.addresses
        if (":" in address) == (kind == AAAA)
    ]


def _record(name: str, kind: int, ttl: int, data: bytes) -> bytes:
    return write_name(name) + struct.pack("!2HIH", kind, _IN, ttl, len(data)) + data


def write_name(name: str) -> bytes:
    labels = [label.encode("ascii") for label in name.split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def read_name(packet: bytes, at: int) -> tuple[str, int]:
    """The name at a place of a packet without pointers, and the place behind it."""
    labels = []
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


@asynccontextmanager
async def serving(script: Mapping[str, Sequence[Records]]) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: NameServer(script), local_addr=("127.0.0.1", 0)
    )
    server.port = transport.get_extra_info("sockname")[1]
    try:
        yield server
    finally:
        transport.close()


class Resolver:
    """A lookup as the guard wants it, that asks one server and follows aliases."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    async def __call__(self, host: str) -> list[str]:
        name = host
        for _ in range(_HOPS_MAX):
            found: list[str] = []
            alias = None
            for kind in (A, AAAA):
                addresses, alias = await self._ask(name, kind)
                found += addresses
            if alias is None:
                return found
            name = alias
        raise OSError("too many aliases")

    async def _ask(self, name: str, kind: int) -> tuple[list[str], str | None]:
        number = next(self._numbers) % 65_536
        head = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0)
        answer = await _exchange(
            self._server.port, head + write_name(name) + struct.pack("!2H", kind, _IN)
        )
        returned, flags, _, count, _, _ = struct.unpack_from("!6H", answer)
        assert returned == number
        if flags & 0xF:
            raise OSError(-2, "Name or service not known")
        _, at = read_name(answer, 12)
        return _read_answers(answer, at + 4, count)


def _read_answers(packet: bytes, at: int, count: int) -> tuple[list[str], str | None]:
    addresses, alias = [], None
    for _ in range(count):
        _, at = read_name(packet, at)
        kind, _, _, size = struct.unpack_from("!2HIH", packet, at)
        data = packet[at + 10 : at + 10 + size]
        at += 10 + size
        if kind == CNAME:
            alias, _ = read_name(data, 0)
        else:
            family = socket.AF_INET6 if kind == AAAA else socket.AF_INET
            addresses.append(socket.inet_ntop(family, data))
    return addresses, alias


async def _exchange(port: int, query: bytes) -> bytes:
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    class Asking(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            assert addr == ("127.0.0.1", port)
            answered.set_result(data)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Asking, remote_addr=("127.0.0.1", port)
    )
    try:
        transport.sendto(query)
        async with asyncio.timeout(5):
            return await answered
    finally:
        transport.close()
