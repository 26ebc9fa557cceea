"""The inbox of a run: read and take its messages; withdraw messages that wait."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.core.inbox import InboxPage, parse_cursor
from fairlane.engine.inbox_commands import (
    InboxOutcome,
    TakeMessages,
    WithdrawMessage,
    WithdrawOutcome,
)
from fairlane.engine.node import Node
from fairlane.engine.reads.inbox import InboxView
from fairlane.schema import inbox as schema
from fairlane.schema.inbox import LeaseInbox, MessageWithdrawn, lease_inbox
from fairlane.services import inbox_reads
from fairlane.services.inbox_reads import Key
from fairlane.services.leases import owned_key
from fairlane.services.registry import implements


@implements(schema.LEASE_INBOX)
async def read_inbox(node: Node, caller: Caller, request: schema.ReadInbox) -> LeaseInbox:
    key = await owned_key(node, caller, request)
    cursor = parse_cursor(request.after)
    if cursor.shown:
        done: InboxOutcome = await node.writer.ask(TakeMessages(*key, cursor.count, cursor.shown))
        if done.page.messages or not request.wait_ms:
            return lease_inbox(request.lease_id, done.task.id, done.page)
        cursor = parse_cursor(done.page.cursor)
    view = await inbox_reads.awaited(node, key, cursor.count, request.wait_ms)
    await _still_allowed(node, caller, request.wait_ms)
    return lease_inbox(request.lease_id, _id_of(view), view.page)


@implements(schema.TAKE_INBOX)
async def take_inbox(node: Node, caller: Caller, request: schema.TakeInbox) -> LeaseInbox:
    key = await owned_key(node, caller, request)
    after = parse_cursor(request.after).count
    view = await inbox_reads.awaited(node, key, after, request.wait_ms)
    await _still_allowed(node, caller, request.wait_ms)
    page = view.page
    if parse_cursor(page.cursor).shown:
        page = await _take(node, key, after)
    return lease_inbox(request.lease_id, _id_of(view), page)


async def _take(node: Node, key: Key, after: int) -> InboxPage:
    done: InboxOutcome = await node.writer.ask(TakeMessages(*key, after))
    return done.page


async def _still_allowed(node: Node, caller: Caller, wait_ms: int) -> None:
    if wait_ms:  # the token may have been revoked during the wait
        await node.tokens.require(caller)


def _id_of(view: InboxView) -> str:
    assert view.task is not None, "a lease without a task is lost"
    return view.task.id


@implements(schema.WITHDRAW_MESSAGE)
async def withdraw_message(
    node: Node, caller: Caller, request: schema.WithdrawOf
) -> MessageWithdrawn:
    command = WithdrawMessage(request.key, request.message_id, caller.agent)
    done: WithdrawOutcome = await node.writer.ask(command)
    return MessageWithdrawn(request.message_id, done.task.id, done.task.state, done.left)
