"""A node's self-monitoring: its history, the lag of its event loop, and its heartbeat."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fairlane.core.errors import FairlaneError
from fairlane.engine.verbs.nodes import HEARD_SECONDS
from fairlane.engine.writing_node import WritingNode

log = logging.getLogger("fairlane.node")

LOOK_SECONDS: Final = 1.0


async def watch(node: WritingNode) -> None:
    """Sample and beat until cancelled. A sample that cannot be read is left out of the history."""
    loop = asyncio.get_running_loop()
    beat_at = loop.time() + HEARD_SECONDS
    while True:
        due_at = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        node.metrics.loop_lags.observe(max(0.0, loop.time() - due_at) * 1000)
        try:
            await node.look()
            # Only one process serves from a private store, so no other node needs the heartbeat.
            if node.store.shared and loop.time() >= beat_at:
                beat_at = loop.time() + HEARD_SECONDS
                await node.beat()
        except FairlaneError as error:
            log.debug("could not take a sample for the history: %s", error.message)
        except Exception:
            log.exception("self-monitoring failed")
