"""Loopback as a small internet: some of its addresses are allowed, the others are forbidden.

Everywhere something listens, on one port, and counts who comes. Besides, every connection that this
process begins is seen at the system's door; one that would leave the machine is stopped there.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple

from tests.outbound.names import NameServer, serving
from tests.outbound.receivers import Listener, listening

ALLOWED = ("127.77.0.1", "127.77.0.2")
FORBIDDEN = ("127.0.0.1", "127.0.0.2", "127.66.6.6", "::1")
ALLOW = ["127.77.0.0/16"]
_PORTS_TRIED = 50


class Dials:
    """The addresses that were dialled, whether or not they answer."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.watching = False
        self.hooked = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watching and event == "socket.connect":
            self._note(*arguments)

    def _note(self, sock: socket.socket, address: Any) -> None:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return
        dialled = ip_address(address[0])
        if isinstance(dialled, IPv6Address) and dialled.ipv4_mapped is not None:
            dialled = dialled.ipv4_mapped
        self.dialled.append(str(dialled))
        if not dialled.is_loopback:
            raise ConnectionRefusedError(f"a test would have left the machine, to {dialled}")


_dials = Dials()


@contextlib.contextmanager
def watched() -> Iterator[Dials]:
    # There is no way to take a hook away again: there is one, and it sleeps between tests.
    if not _dials.hooked:
        sys.addaudithook(_dials)
        _dials.hooked = True
    _dials.dialled, _dials.watching = [], True
    try:
        yield _dials
    finally:
        _dials.watching = False


class World(NamedTuple):
    port: int
    allowed: list[Listener]
    forbidden: list[Listener]
    names: NameServer
    dials: Dials

    async def unscathed(self) -> None:
        """No connection reached a forbidden address, not even one still to be accepted."""
        self.dials.watching = False
        counts = [await listener.counted() for listener in self.forbidden]
        self.dials.watching = True
        assert counts == [0] * len(self.forbidden)
        assert set(self.dials.dialled) <= set(ALLOWED)

    @property
    def visits(self) -> int:
        return sum(len(listener.requests) for listener in self.allowed)


@contextlib.asynccontextmanager
async def small_internet() -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        listeners = await stack.enter_async_context(_everywhere((*ALLOWED, *FORBIDDEN)))
        names = await stack.enter_async_context(serving({}))
        dials = stack.enter_context(watched())
        allowed, forbidden = listeners[: len(ALLOWED)], listeners[len(ALLOWED) :]
        world = World(listeners[0].port, allowed, forbidden, names, dials)
        yield world
        await world.unscathed()


@contextlib.asynccontextmanager
async def _everywhere(hosts: tuple[str, ...]) -> AsyncIterator[list[Listener]]:
    """On one port of all of them; one that is free on the first may be taken on another."""
    for _ in range(_PORTS_TRIED):
        async with contextlib.AsyncExitStack() as stack:
            found = [await stack.enter_async_context(listening(host=hosts[0]))]
            with contextlib.suppress(OSError):
                for host in hosts[1:]:
                    same = listening(host=host, port=found[0].port)
                    found.append(await stack.enter_async_context(same))
            if len(found) == len(hosts):
                yield found
                return
    raise OSError("no port is free on all addresses")
