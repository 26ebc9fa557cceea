"""Effects: begin one under a lease, and decide on an unknown outcome."""

from __future__ import annotations

from fairlane.core import effects
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import Task
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.engine.node import Node
from fairlane.engine.step_commands import BeginEffect, EffectOutcome, ResolveEffect
from fairlane.schema import effects as schema
from fairlane.schema import wire
from fairlane.schema.effects import EffectBegun, EffectResolved
from fairlane.services.leases import owned_key
from fairlane.services.registry import implements


@implements(schema.EFFECT_LEASE)
async def begin(node: Node, caller: Caller, request: schema.BeginLeaseEffect) -> EffectBegun:
    if request.happened:
        raise InvalidRequest(
            "field 'happened' must be false; record an effect that happened with checkpoint"
        )
    command = BeginEffect(
        *await owned_key(node, caller, request),
        request.name,
        request.number,
        checks=request.check,
        withdraws=request.happened is False,
    )
    done: EffectOutcome = await node.writer.ask(command)
    key = effects.key_of(done.task.id, request.name)
    return EffectBegun(request.lease_id, done.task.id, request.name, done.number, done.state, key)


@implements(schema.RESOLVE_EFFECT)
async def resolve(node: Node, caller: Caller, request: schema.ResolveTaskEffect) -> EffectResolved:
    if too_deep(request.value):
        raise InvalidRequest(f"field 'value' must not be nested deeper than {DEPTH_MAX} levels")
    if request.value is not None and not request.happened:
        raise InvalidRequest("field 'value' is only for an effect that happened")
    await node.show(request.task_id, caller.agent)
    value = None if request.value is None else wire.encode(request.value).decode()
    command = ResolveEffect(request.task_id, request.name, request.happened, value)
    task: Task = await node.writer.ask(command)
    state = effects.DONE if request.happened else effects.NOT_DONE
    return EffectResolved(task.id, request.name, state, task.state)
