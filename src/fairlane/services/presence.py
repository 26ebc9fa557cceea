"""Connections that workers keep open, so that the server notices at once when they die.

When such a connection breaks and the worker does not open another one in time, its leases are
reclaimed before they expire. A worker that only stalls keeps its connection. A worker without one
is judged by its leases alone, and so is every worker of a server that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, FairlaneError
from fairlane.core.presence import REOPEN_SECONDS
from fairlane.engine.node import Node
from fairlane.engine.presence_commands import ClosePresence, OpenPresence
from fairlane.services.following import ALIVE_SECONDS
from fairlane.services.leases import check_worker

log = logging.getLogger("fairlane.leases")

PAUSE_SECONDS: Final = 1.0

_closing: Final[set[asyncio.Task[None]]] = set()


def open_presence(node: Node, caller: Caller, worker: str) -> AsyncGenerator[None, None]:
    """Return a generator that yields now and then while the connection is open.

    It ends when the server stops. Closing it means that the connection broke. Nothing is recorded
    before it is started, so it may be dropped until then.
    """
    check_worker(worker)
    if node.draining:
        raise Draining("the server is stopping; connect to another one", retry_after_ms=1000)
    return _held(node, OpenPresence(worker, node.new_id("con"), caller.agent, node.name))


async def _held(node: Node, opened: OpenPresence) -> AsyncGenerator[None, None]:
    broke = False
    try:
        with node.until_drained() as drained:
            await node.writer.ask(opened)
            broke = True
            yield
            while not await drained.wait(ALIVE_SECONDS):
                yield
        broke = False
    except FairlaneError as error:  # the worker tries again
        log.debug("the connection of worker %s was not recorded: %s", opened.worker, error)
    finally:
        gone = broke and not node.draining
        closed = ClosePresence(opened.worker, opened.id, opened.agent, gone)
        task = asyncio.get_running_loop().create_task(_close(node, closed))
        _closing.add(task)
        task.add_done_callback(_closing.discard)


async def _close(node: Node, closed: ClosePresence) -> None:
    """Report the end of a connection when the worker has had time to open another one."""
    if closed.gone:
        await asyncio.sleep(REOPEN_SECONDS)
    while True:
        try:
            count: int = await node.writer.ask(closed)
        except FairlaneError:
            if node.drained:
                return
            # While nothing can be recorded, a living worker cannot open another one.
            closed = msgspec.structs.replace(closed, gone=False)
            await asyncio.sleep(PAUSE_SECONDS)
        except ConnectionError:
            return  # the process that writes has ended
        else:
            if count:
                log.warning("worker %s has died: reclaimed its %d leases", closed.worker, count)
            return
