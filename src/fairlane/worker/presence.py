"""The connection that a worker keeps open, so that its server notices at once when it dies.

A server that does not know the route, or refuses it, judges the worker by its leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from fairlane.client.asynchronous import AsyncClient
from fairlane.core.errors import CallerError, FairlaneError

log = logging.getLogger("fairlane.worker")

PAUSE_SECONDS: Final = 0.02
PAUSE_SECONDS_MAX: Final = 5.0


class PresenceClient(AsyncClient):
    def hold(self, worker: str) -> AsyncGenerator[bytes, None]:
        """Keep a connection open, and yield what the server sends on it."""
        return self._pieces(f"/workers/{worker}/presence", {}, "", method="POST")


async def keep(client: PresenceClient, worker: str) -> None:
    """Keep the connection open until cancelled; open it again whenever it breaks."""
    pause = 0.0
    while True:
        try:
            async with aclosing(client.hold(worker)) as pieces:
                async for _ in pieces:
                    pause = 0.0
        except CallerError as error:
            log.debug(
                "the server does not keep this worker's presence connection open: %s", error.message
            )
            return
        except FairlaneError as error:
            log.debug("the connection that shows this worker's presence broke: %s", error.message)
        pause = min(max(2 * pause, PAUSE_SECONDS), PAUSE_SECONDS_MAX)
        await asyncio.sleep(pause)
