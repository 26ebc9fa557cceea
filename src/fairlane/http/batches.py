"""Routes of batches: look and cancel. They are submitted with `POST /tasks/batch`."""

from __future__ import annotations

from typing import Any

from fairlane import wire
from fairlane.core.errors import NotFound
from fairlane.engine.node import Node
from fairlane.http.answers import Answer, Handler, Request, whole_number


class Batches:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> dict[str, dict[str, Handler]]:
        return {
            "/batches": {"GET": self.list},
            "/batches/{id}": {"GET": self.show},
            "/batches/{id}/cancel": {"POST": self.cancel},
        }

    async def list(self, request: Request) -> Answer:
        query = request.query("agentId", "limit", "cursor")
        limit = whole_number(
            query, "limit", wire.LIST_LIMIT_DEFAULT, low=1, high=wire.LIST_LIMIT_MAX
        )
        before = whole_number(query, "cursor", None, low=1, high=2**62)
        assert limit is not None
        views = self._node.views
        found = await views.read(views.batches, query.get("agentId") or None, before, limit + 1)
        page = found[:limit]
        shape: dict[str, Any] = {"batches": [wire.batch_status(one) for one in page]}
        shape["count"] = len(page)
        if len(found) > limit:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        request.query()
        views = self._node.views
        found = await views.read(views.batch, request.path["id"])
        if found is None:
            raise NotFound("batch not found")
        return Answer(200, wire.batch_status(*found))

    async def cancel(self, request: Request) -> Answer:
        batch_id = request.path["id"]
        count = await self._node.cancel_batch(batch_id)
        return Answer(200, {"batchId": batch_id, "cancelled": count, "state": "cancelled"})
