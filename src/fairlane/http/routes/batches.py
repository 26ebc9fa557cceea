"""Routes of batches: look and cancel. They are submitted with `POST /tasks/batch`."""

from __future__ import annotations

from typing import Any

from fairlane.core.access import Scope
from fairlane.core.batches import Batch
from fairlane.core.errors import NotFound
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Request, Route, Routes, page_cursor, page_limit
from fairlane.schema import wire


class Batches:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/batches": {"GET": Route(self.list, Scope.READ)},
            "/batches/{id}": {"GET": Route(self.show, Scope.READ)},
            "/batches/{id}/cancel": {"POST": Route(self.cancel, Scope.CANCEL)},
        }

    async def list(self, request: Request) -> Answer:
        query = request.query("agentId", "limit", "cursor")
        limit = page_limit(query)
        before = page_cursor(query)
        views = self._node.views
        agent = request.caller.agent_for(query.get("agentId")) or None
        page = await views.read(views.batches, agent, before, limit)
        shape: dict[str, Any] = {"batches": [wire.batch_status(one) for one in page]}
        shape["count"] = len(page)
        if page.more:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        request.query()
        return Answer(200, wire.batch_status(*await self._found(request)))

    async def cancel(self, request: Request) -> Answer:
        batch_id = request.path["id"]
        if request.caller.agent is not None:
            await self._found(request)
        count = await self._node.cancel_batch(batch_id)
        return Answer(200, {"batchId": batch_id, "cancelled": count, "state": "cancelled"})

    async def _found(self, request: Request) -> tuple[Batch, dict[str, int]]:
        views = self._node.views
        found = await views.read(views.batch, request.path["id"])
        if found is None or not request.caller.owns(found[0].agent):
            raise NotFound("batch not found")
        return found
