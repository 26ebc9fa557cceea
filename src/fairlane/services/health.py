"""Health: live and ready.

Ready means that a recent write was durable; if there was none, the check writes. The reasons
contain no address and no path, because the check needs no token.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, FairlaneError, StoreUnavailable
from fairlane.engine.writing_node import WritingNode
from fairlane.schema import health as schema
from fairlane.schema.health import HealthStatus, Unhealthy
from fairlane.services.registry import implements_at_writer

FRESH_SECONDS: Final = 2.0  # a write this recent shows that the store accepts writes
STUCK_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 5.0

WRITER_ENDED: Final = "the write thread has ended; restart the process"
UNREADABLE: Final = "the store cannot be read"
UNWRITABLE: Final = "the store cannot be written"


@implements_at_writer(schema.LIVE)
async def check_live(node: WritingNode, _: Caller, __: schema.CheckHealth) -> HealthStatus:
    if not node.writer.alive:
        return _unhealthy("dead", StoreUnavailable.code, [WRITER_ENDED])
    return HealthStatus("live")


@implements_at_writer(schema.READY)
async def check_ready(node: WritingNode, _: Caller, __: schema.CheckHealth) -> HealthStatus:
    return await readiness(node)


async def readiness(node: WritingNode, answer_seconds: float = ANSWER_SECONDS) -> HealthStatus:
    """Return whether the node is ready; the store has `answer_seconds` to respond."""
    if node.draining:
        reasons = ["the server is stopping and accepts no new tasks"]
        return _unhealthy("draining", Draining.code, reasons)
    reasons = _writer_problems(node) or await _store_problems(node, answer_seconds)
    reasons = reasons or await _front_problems(node)
    if reasons:
        return _unhealthy("not_ready", StoreUnavailable.code, reasons)
    return HealthStatus("ready")


def _writer_problems(node: WritingNode) -> list[str]:
    writer = node.writer
    if not writer.alive:
        return [WRITER_ENDED]
    since = writer.busy_since
    busy = 0.0 if since is None else node.clock.monotonic() - since
    return (
        [f"the writer has been busy with one batch for {busy:.0f} s"]
        if busy > STUCK_SECONDS
        else []
    )


async def _store_problems(node: WritingNode, answer_seconds: float) -> list[str]:
    try:
        async with asyncio.timeout(answer_seconds):
            found, needed = await node.views.read(node.views.schema)
    except (FairlaneError, TimeoutError):
        return [UNREADABLE]
    if found < needed:
        return [
            f"the store has schema {found}, but this version needs {needed}; restart the server"
        ]
    return await _write_problems(node, answer_seconds)


async def _front_problems(node: WritingNode) -> list[str]:
    count = await node.silent_fronts()
    return [f"{count} of the server's front processes do not respond"] if count else []


async def _write_problems(node: WritingNode, answer_seconds: float) -> list[str]:
    writer = node.writer
    age = None if writer.written_at is None else node.clock.monotonic() - writer.written_at
    if age is not None and age <= FRESH_SECONDS and writer.trouble is None:
        return []
    try:
        async with asyncio.timeout(answer_seconds):
            await node.beat()
    except TimeoutError:
        return [f"{UNWRITABLE} within {answer_seconds:g} s"]
    except Exception:  # noqa: BLE001 - whatever it is, nothing can be written
        full = "full" in node.engine.trouble
        return [f"{UNWRITABLE}: the disk is full" if full else UNWRITABLE]
    return []


def _unhealthy(status: str, code: str, reasons: list[str]) -> Unhealthy:
    return Unhealthy(status, code, reasons[0], reasons)
