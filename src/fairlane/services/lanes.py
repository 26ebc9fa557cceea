"""Lanes: list, show, pause, resume, clear."""

from __future__ import annotations

from typing import Final

from fairlane.core import lifecycle
from fairlane.core.access import Caller
from fairlane.core.counts import Tally
from fairlane.core.errors import NotFound
from fairlane.core.policy import nearest
from fairlane.engine.commands import Cancel, SetPolicy
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Filter
from fairlane.schema import lanes as schema
from fairlane.schema.lanes import ClearedLane, LaneList, LanePaused, LaneStatus, lane_status
from fairlane.services.actors import actor
from fairlane.services.registry import implements

LANE_CLEARED: Final = "lane_cleared: an operator cleared the lane"


@implements(schema.LANES)
async def list_lanes(node: Node, caller: Caller, _: schema.ListLanes) -> LaneList:
    found = await _statuses(node, caller, sorted(node.policy.lanes))
    return LaneList(lanes=found, count=len(found))


@implements(schema.LANE)
async def show_lane(node: Node, caller: Caller, request: schema.LaneRequest) -> LaneStatus:
    _require_lane(node, request.name)
    (found,) = await _statuses(node, caller, [request.name])
    return found


async def _statuses(node: Node, caller: Caller, names: list[str]) -> list[LaneStatus]:
    """Return the status of these lanes: of the caller's own tasks if its token is one agent's."""
    lanes = node.policy.lanes
    tallies = await node.views.read(node.views.lanes, caller.agent)
    oldest = dict.fromkeys(names)
    if caller.agent is None:
        oldest = await node.views.read(node.views.oldest_waits, names)
    now = node.clock.now()
    return [
        lane_status(name, lanes[name], tallies.get(name, Tally()), oldest[name], now)
        for name in names
    ]


@implements(schema.PAUSE_LANE)
async def pause_lane(node: Node, caller: Caller, request: schema.ChangeLane) -> LanePaused:
    return await _set_paused(node, caller, request, paused=True)


@implements(schema.RESUME_LANE)
async def resume_lane(node: Node, caller: Caller, request: schema.ChangeLane) -> LanePaused:
    return await _set_paused(node, caller, request, paused=False)


@implements(schema.CLEAR_LANE)
async def clear_lane(node: Node, _: Caller, request: schema.LaneRequest) -> ClearedLane:
    _require_lane(node, request.name)
    found = await node.find(Filter(lane=request.name, states=sorted(lifecycle.IN_QUEUE)))
    count = await node.for_each(lambda id_: Cancel(id_, LANE_CLEARED), found[::-1])
    return ClearedLane(lane=request.name, cancelled=count)


async def _set_paused(
    node: Node, caller: Caller, request: schema.ChangeLane, *, paused: bool
) -> LanePaused:
    _require_lane(node, request.name)
    document = {"lanes": {request.name: {"paused": paused}}}
    source = "pause" if paused else "resume"
    author = actor(caller, request.actor)
    await node.set_policy(SetPolicy(document, source, author=author))
    return LanePaused(lane=request.name, paused=paused)


def _require_lane(node: Node, name: str) -> None:
    if name not in node.policy.lanes:
        hint = nearest(name, node.policy.lanes)
        raise NotFound(f'lane "{name[:64]}" is not in the policy{hint}')
