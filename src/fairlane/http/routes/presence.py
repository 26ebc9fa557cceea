"""`POST /workers/{name}/presence`: a connection that a worker keeps open while it lives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from fairlane.core.access import Scope
from fairlane.core.presence import REOPEN_SECONDS
from fairlane.engine.node import Node
from fairlane.http.messages import HttpRequest, Route, Routes, Stream
from fairlane.schema import wire
from fairlane.services import presence

PATH: Final = "/workers/{name}/presence"
_HEARTBEAT: Final = b": still here\n\n"


class PresenceRoute:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {PATH: {"POST": Route(self.keep_worker_presence, Scope.LEASE)}}

    async def keep_worker_presence(self, request: HttpRequest) -> Stream:
        """Stream signs of life while the worker keeps the connection open."""
        request.query()
        worker = request.path["name"]
        held = presence.open_presence(self._node, request.caller, worker)
        return Stream(_pieces(worker, held))


async def _pieces(worker: str, held: AsyncGenerator[None, None]) -> AsyncIterator[bytes]:
    async with aclosing(held):
        opened = {"worker": worker, "graceMs": round(REOPEN_SECONDS * 1000)}
        piece = wire.sse("open", opened)
        async for _ in held:
            yield piece
            piece = _HEARTBEAT
