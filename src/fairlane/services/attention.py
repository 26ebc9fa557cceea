"""What needs the attention of an operator."""

from __future__ import annotations

from fairlane.core import attention
from fairlane.core.access import Caller
from fairlane.core.errors import NotFound
from fairlane.core.explain import Why
from fairlane.engine.node import Node
from fairlane.schema import attention as schema
from fairlane.schema.attention import AttentionShown, attention_shown
from fairlane.services.registry import implements


@implements(schema.ATTENTION)
async def show_attention(node: Node, _: Caller, __: schema.ShowAttention) -> AttentionShown:
    workers = await node.workers()
    found = await node.views.read(node.views.troubles, node.clock, workers)
    reasons: dict[str, Why] = {}
    for task in found.stuck:
        try:
            reasons[task.id] = (await node.why(task.id)).why
        except NotFound:  # deleted meanwhile
            continue
    return attention_shown(attention.items(found, workers, reasons))
