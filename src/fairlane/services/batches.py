"""Batches: list, show, cancel."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.core.batches import Batch
from fairlane.core.errors import NotFound
from fairlane.engine.node import Node
from fairlane.schema import batches as schema
from fairlane.schema.batches import BatchCancelled, BatchPage, BatchStatus, batch_status
from fairlane.services.pages import number
from fairlane.services.registry import implements


@implements(schema.BATCHES)
async def list_batches(node: Node, caller: Caller, request: schema.ListBatches) -> BatchPage:
    views = node.views
    agent = caller.agent_for(request.agent) or None
    before = number(request.cursor)
    page = await views.read(views.batches, agent, before, request.limit)
    return BatchPage(
        batches=[batch_status(batch) for batch in page],
        count=len(page),
        next_cursor=str(page[-1].seq) if page.more else None,
    )


@implements(schema.BATCH)
async def show_batch(node: Node, caller: Caller, request: schema.BatchRequest) -> BatchStatus:
    return batch_status(*await _owned(node, caller, request.batch_id))


@implements(schema.CANCEL_BATCH)
async def cancel_batch(node: Node, caller: Caller, request: schema.BatchRequest) -> BatchCancelled:
    if caller.agent is not None:
        await _owned(node, caller, request.batch_id)
    count = await node.cancel_batch(request.batch_id)
    return BatchCancelled(batch=request.batch_id, cancelled=count, state="cancelled")


async def _owned(node: Node, caller: Caller, batch_id: str) -> tuple[Batch, dict[str, int]]:
    """Read a batch of the caller. Raise `NotFound` for others, as for one that does not exist."""
    found = await node.views.read(node.views.batch, batch_id)
    if found is None or not caller.owns(found[0].agent):
        raise NotFound("batch not found")
    return found
