"""Routes of lanes: how full they are, pause and resume, and emptying one."""

from __future__ import annotations

from typing import Final

from fairlane.core import lifecycle
from fairlane.core.access import Scope
from fairlane.core.counts import Tally
from fairlane.core.errors import NotFound
from fairlane.core.policy import nearest
from fairlane.engine.commands import Cancel, SetPolicy
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Filter
from fairlane.http.messages import Answer, Request, Route, Routes, actor
from fairlane.schema import wire

LANE_CLEARED: Final = "lane_cleared: its lane was emptied by an operator"


class Lanes:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/lanes": {"GET": Route(self.list, Scope.READ)},
            "/lanes/{name}/pause": {"POST": Route(self.pause, Scope.OPERATE, agents=False)},
            "/lanes/{name}/resume": {"POST": Route(self.resume, Scope.OPERATE, agents=False)},
            "/lanes/{name}/clear": {"POST": Route(self.clear, Scope.OPERATE, agents=False)},
        }

    async def list(self, request: Request) -> Answer:
        request.query()
        lanes = self._node.policy.lanes
        views = self._node.views
        agent = request.caller.agent
        tallies = await views.read(views.lanes, agent)
        oldest = dict.fromkeys(lanes)
        if agent is None:
            oldest = await views.read(views.oldest_waits, list(lanes))
        now = self._node.clock.now()
        shapes = [
            wire.lane(name, lanes[name], tallies.get(name, Tally()), oldest[name], now)
            for name in sorted(lanes)
        ]
        return Answer(200, {"lanes": shapes, "count": len(shapes)})

    async def pause(self, request: Request) -> Answer:
        return await self._set_paused(request, paused=True)

    async def resume(self, request: Request) -> Answer:
        return await self._set_paused(request, paused=False)

    async def clear(self, request: Request) -> Answer:
        name = self._name(request)
        found = await self._node.find(Filter(lane=name, states=sorted(lifecycle.IN_QUEUE)))
        count = await self._node.for_each(lambda id_: Cancel(id_, LANE_CLEARED), found[::-1])
        return Answer(200, {"lane": name, "cancelled": count})

    async def _set_paused(self, request: Request, *, paused: bool) -> Answer:
        name = self._name(request)
        document = {"lanes": {name: {"paused": paused}}}
        source = "pause" if paused else "resume"
        await self._node.set_policy(SetPolicy(document, source, author=actor(request)))
        return Answer(200, {"lane": name, "paused": paused})

    def _name(self, request: Request) -> str:
        name = request.path["name"]
        if name not in self._node.policy.lanes:
            hint = nearest(name, self._node.policy.lanes)
            raise NotFound(f'lane "{name[:64]}" is not in the policy{hint}')
        return name
