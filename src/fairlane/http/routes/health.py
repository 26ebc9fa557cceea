"""Routes of health. Live: the process can still do its work, or has to be started again. Ready: it
should be sent work now, and if not, why.

Ready means that a write has been durable a moment ago; where nothing was written, one is tried. The
reasons name no address and no path: whoever watches health may be anybody.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlane.core.errors import Draining, FairlaneError, StoreUnavailable
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Request, Route, Routes

FRESH_SECONDS: Final = 2.0  # a write that is no older shows that writes are possible
STUCK_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 5.0

WRITER_ENDED: Final = "the write thread has ended; start the process again"
UNREADABLE: Final = "the store cannot be read"
UNWRITABLE: Final = "the store cannot be written"


class Health:
    def __init__(self, node: Node, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """`answer_seconds`: how long the store may take."""
        self._node = node
        self._answer_seconds = answer_seconds

    def routes(self) -> Routes:
        return {
            "/health/live": {"GET": Route(self.live, None, open=True)},
            "/health/ready": {"GET": Route(self.ready, None, open=True)},
        }

    async def live(self, _: Request) -> Answer:
        if not self._node.writer.alive:
            return _not_well("dead", StoreUnavailable.code, [WRITER_ENDED])
        return Answer(200, {"status": "live"})

    async def ready(self, _: Request) -> Answer:
        if self._node.draining:
            reasons = ["the server is stopping and takes no new work"]
            return _not_well("draining", Draining.code, reasons)
        reasons = self._about_the_writer() or await self._about_the_store()
        if reasons:
            return _not_well("not_ready", StoreUnavailable.code, reasons)
        return Answer(200, {"status": "ready"})

    def _about_the_writer(self) -> list[str]:
        writer = self._node.writer
        if not writer.alive:
            return [WRITER_ENDED]
        since = writer.busy_since
        busy = 0.0 if since is None else self._node.clock.monotonic() - since
        if busy > STUCK_SECONDS:
            return [f"the writer has been at one batch for {busy:.0f} s"]
        return []

    async def _about_the_store(self) -> list[str]:
        views = self._node.views
        try:
            async with asyncio.timeout(self._answer_seconds):
                found, needed = await views.read(views.schema)
                if found < needed:
                    return [f"the store's schema is {found} and has to be {needed}: restart"]
        except (FairlaneError, TimeoutError):
            return [UNREADABLE]
        return await self._about_writing()

    async def _about_writing(self) -> list[str]:
        writer = self._node.writer
        written_at = writer.written_at
        fresh = written_at is not None and (
            self._node.clock.monotonic() - written_at <= FRESH_SECONDS
        )
        if fresh and writer.trouble is None:
            return []
        try:
            async with asyncio.timeout(self._answer_seconds):
                await self._node.beat()
        except TimeoutError:
            return [f"{UNWRITABLE} within {self._answer_seconds:g} s"]
        except Exception:  # noqa: BLE001 - whatever it is, nothing can be written
            full = "full" in self._node.engine.trouble
            return [f"{UNWRITABLE}: its disk is full" if full else UNWRITABLE]
        return []


def _not_well(status: str, code: str, reasons: list[str]) -> Answer:
    return Answer(503, {"code": code, "error": reasons[0], "status": status, "reasons": reasons})
