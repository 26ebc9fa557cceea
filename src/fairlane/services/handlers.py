"""What ran in the last hours, by handler and by agent."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.core.handler_totals import HOUR_MS, Key, Totals, added
from fairlane.core.model import HANDLER, capability_of
from fairlane.core.workers import ONLINE, handler_names
from fairlane.engine.writing_node import WritingNode
from fairlane.schema import handlers as schema
from fairlane.schema.handlers import HOURS, HandlersShown, handlers_shown
from fairlane.services.registry import implements_at_writer
from fairlane.store.tables import handler_totals


@implements_at_writer(schema.HANDLERS)
async def show_handlers(
    node: WritingNode, caller: Caller, request: schema.ShowHandlers
) -> HandlersShown:
    agent = caller.agent_for(request.agent) or None
    capability = None if request.handler is None else capability_of(HANDLER, request.handler)
    last = node.engine.moment() // HOUR_MS
    first = last - HOURS[request.window]
    unstored = dict(node.engine.totals.pending)
    stored = await node.views.read(node.views.ask, handler_totals.since, first, agent, capability)
    here = {key: one for key, one in unstored.items() if _matches(key, first, agent, capability)}
    found: dict[Key, Totals] = added([stored, here])
    online = [one for one in await node.workers() if one.state == ONLINE]
    offered = [name for name in handler_names(online, agent) if request.handler in (None, name)]
    return handlers_shown(request.window, first, last, found, offered)


def _matches(key: Key, first: int, agent: str | None, capability: str | None) -> bool:
    hour, route, owner = key
    return hour >= first and agent in (None, owner) and capability in (None, route)
