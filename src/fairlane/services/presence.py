"""Connections that workers keep open, so that the server notices at once when they die.

When such a connection breaks and the worker does not open another one in time, its leases are
reclaimed before they expire. A worker that only stalls keeps its connection. A worker without one
is judged by its leases alone, and so is every worker of a server that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, FairlaneError
from fairlane.core.presence import REOPEN_SECONDS
from fairlane.engine.node import Node
from fairlane.engine.presence_commands import ClosePresence, OpenPresence
from fairlane.services.following import ALIVE_SECONDS
from fairlane.services.leases import check_worker

log = logging.getLogger("fairlane.leases")

TRIES: Final = 10
PAUSE_SECONDS: Final = 1.0

_closing: Final[set[asyncio.Task[None]]] = set()


async def open_presence(node: Node, caller: Caller, worker: str) -> AsyncGenerator[None, None]:
    """Return a generator that yields now and then while the connection is open.

    It ends when the server stops. Closing it means that the connection broke.
    """
    check_worker(worker)
    if node.draining:
        raise Draining("the server is stopping; connect to another one", retry_after_ms=1000)
    id_ = node.new_id("con")
    await node.writer.ask(OpenPresence(worker, id_, caller.agent, node.name))
    return _held(node, ClosePresence(worker, id_, caller.agent, gone=True))


async def _held(node: Node, broken: ClosePresence) -> AsyncGenerator[None, None]:
    ended = False
    try:
        with node.until_drained() as drained:
            yield
            while not await drained.wait(ALIVE_SECONDS):
                yield
        ended = True
    finally:
        ended = ended or node.draining
        task = asyncio.get_running_loop().create_task(_close(node, broken, gone=not ended))
        _closing.add(task)
        task.add_done_callback(_closing.discard)


async def _close(node: Node, broken: ClosePresence, *, gone: bool) -> None:
    """Report the end of a connection when the worker has had time to open another one."""
    if not gone:
        with contextlib.suppress(FairlaneError):
            await node.writer.ask(ClosePresence(broken.worker, broken.id, broken.agent, gone=False))
        return
    await asyncio.sleep(REOPEN_SECONDS)
    for _ in range(TRIES):
        try:
            count: int = await node.writer.ask(broken)
        except FairlaneError:
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        if count:
            log.warning("worker %s has died: reclaimed its %d leases", broken.worker, count)
        return
