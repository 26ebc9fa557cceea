"""Suspended runs: suspend a lease, and send signals."""

from __future__ import annotations

from fairlane.core import suspensions
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.engine.node import Node
from fairlane.engine.step_commands import SendSignal, SignalOutcome, Suspend, SuspendOutcome
from fairlane.schema import suspensions as schema
from fairlane.schema import wire
from fairlane.schema.suspensions import LeaseSuspended, SignalSent
from fairlane.services.leases import owned_key
from fairlane.services.registry import implements


@implements(schema.SUSPEND_LEASE)
async def suspend(node: Node, caller: Caller, request: schema.SuspendLease) -> LeaseSuspended:
    suspensions.check(request.until)
    key = await owned_key(node, caller, request)
    name = request.name or suspensions.default_name(request.until)
    command = Suspend(*key, name, request.until, request.number, caller.agent)
    done: SuspendOutcome = await node.writer.ask(command)
    return LeaseSuspended(
        request.lease_id,
        done.task.id,
        done.task.state,
        name,
        done.number,
        done.suspended,
        wire.stored(done.value),
    )


@implements(schema.SEND_SIGNAL)
async def send_signal(node: Node, caller: Caller, request: schema.SendSignalTo) -> SignalSent:
    if too_deep(request.value):
        raise InvalidRequest(f"field 'value' must not be nested deeper than {DEPTH_MAX} levels")
    value = wire.encode(request.value).decode()
    done: SignalOutcome = await node.signal(
        SendSignal(request.task_id, request.name, value), caller.agent
    )
    return SignalSent(done.task.id, request.name, done.accepted, done.task.state)
