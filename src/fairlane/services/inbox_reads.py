"""Reads of the inbox of a run, and the wait for its next message."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlane.core import leases
from fairlane.core.inbox import InboxPage, parse_cursor
from fairlane.engine.inbox_commands import InboxOutcome, TakeMessages
from fairlane.engine.node import LOOK_AGAIN_SECONDS, Node
from fairlane.engine.reads import inbox
from fairlane.engine.reads.inbox import InboxView
from fairlane.engine.waiters import Waiter

_PAUSE_SECONDS: Final = 0.01  # between two looks, however many messages there are
_LEASE_SECONDS: Final = 5.0  # how often a reader looks whether its lease is still open

Key = tuple[int, int]  # a task's number and the fencing token of its lease


async def taken(node: Node, key: Key, after: str) -> InboxPage:
    """Take the messages of a cursor, and return those behind them."""
    cursor = parse_cursor(after)
    if not cursor.shown:
        return (await read(node, key, cursor.count)).page
    done: InboxOutcome = await node.writer.ask(TakeMessages(*key, cursor.count, cursor.shown))
    return done.page


async def unread(node: Node, key: Key) -> InboxPage:
    """Return the messages that a run has not taken."""
    return (await _look(node, key, None)).page


async def read(node: Node, key: Key, after: int) -> InboxView:
    """Return what a reader that has the first `after` messages gets. Raise `LeaseLost`."""
    view = await _look(node, key, after)
    problem = leases.lost(view.task, key[1])
    if problem is not None or view.task is None or view.task.terminal:
        raise problem or leases.ended(view.task)
    return view


async def _look(node: Node, key: Key, after: int | None) -> InboxView:
    """Read the inbox from one snapshot."""
    views, now = node.views, node.writer.moment()
    return await views.read(views.ask, inbox.read, node.store.vault, key, after, now)


async def awaited(node: Node, key: Key, after: int, wait_ms: int) -> InboxView:
    """Return the same, after a wait if there is no message."""
    view = await read(node, key, after)
    if not wait_ms or view.page.messages or view.task is None:
        return view
    end = node.clock.monotonic() + wait_ms / 1000
    with node.follow_inbox(view.task) as waiter:
        view = await read(node, key, after)  # a message may have come before the waiter was there
        while not (view.page.messages or node.draining):
            left = end - node.clock.monotonic()
            is_over = left <= 0 or await _change(node, waiter, left)
            view = await read(node, key, after)
            if is_over or view.page.messages:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
    return view


async def _change(node: Node, waiter: Waiter, seconds: float) -> bool:
    """Wait until something may have happened, here or on another node. Return whether the time is
    up.
    """
    look = min(seconds, LOOK_AGAIN_SECONDS if node.store.shared else _LEASE_SECONDS)
    return not await waiter.wait(look) and look == seconds
