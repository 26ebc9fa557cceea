"""Workers, for operators."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.core.workers import ONLINE, handler_names
from fairlane.engine.node import Node
from fairlane.schema import workers as schema
from fairlane.schema.workers import WorkerList, worker_status
from fairlane.services.registry import implements


@implements(schema.WORKERS)
async def list_workers(node: Node, _: Caller, __: schema.ListWorkers) -> WorkerList:
    found = await node.workers()
    online = [one for one in found if one.state == ONLINE]
    return WorkerList(
        [worker_status(one) for one in found], len(found), handler_names(online, None)
    )
