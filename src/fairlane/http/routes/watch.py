"""Routes of what is watched: how things went lately, and which nodes there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fairlane.core.access import Scope
from fairlane.core.errors import InvalidRequest
from fairlane.core.histogram import percentile
from fairlane.core.policy import nearest
from fairlane.engine.node import Node
from fairlane.engine.reads.views import NodeView
from fairlane.engine.telemetry.history import WINDOWS, Agent, Bucket
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.http.messages import Answer, Request, Route, Routes
from fairlane.schema import wire

READY: Final = "ready"
DRAINING: Final = "draining"
SILENT: Final = "silent"
_WINDOW_DEFAULT: Final = "5m"


class Watch:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/stats/history": {"GET": Route(self.history, Scope.READ)},
            "/nodes": {"GET": Route(self.nodes, Scope.READ, agents=False)},
        }

    async def history(self, request: Request) -> Answer:
        query = request.query("window", "shares")
        window = query.get("window") or _WINDOW_DEFAULT
        steps = query.get("shares") in ("1", "true")
        if window not in WINDOWS:
            known = ", ".join(WINDOWS)
            raise InvalidRequest(
                f"query parameter 'window' must be one of {known}{nearest(window, WINDOWS)}"
            )
        history, now = self._node.history, self._node.clock.now()
        span = history.span(window, now)
        since = history.since
        shape: dict[str, Any] = {
            "window": window,
            "stepMs": span.step_ms,
            "since": None if since is None else wire.moment(since),
            "points": [_point(bucket) for bucket in span.buckets],
            "agents": [_agent(one, steps=steps) for one in _own(span.agents, request.caller.agent)],
        }
        return Answer(200, shape)

    async def nodes(self, request: Request) -> Answer:
        request.query()
        views = self._node.views
        now, found = await views.read(views.nodes, self._node.clock)
        shapes = [self._shape(one, now) for one in found]
        return Answer(200, {"nodes": shapes, "count": len(shapes)})

    def _shape(self, one: NodeView, now: int) -> dict[str, Any]:
        here = one.name == self._node.name
        draining = self._node.draining if here else bool(one.draining)
        seen_at = now if here else one.seen_at
        state = DRAINING if draining else READY
        return {
            "name": one.name,
            "host": one.host,
            "pid": one.pid,
            "version": one.version,
            "startedAt": wire.moment(one.started_at),
            "seenAt": wire.moment(seen_at),
            "state": SILENT if now - seen_at > LEASE_MS else state,
            "running": one.running,
            "answered": here,
        }


def _own(agents: Sequence[Agent], agent: str | None) -> list[Agent]:
    """All of them, or for a caller who is one agent: that one, and the others as one."""
    if agent is None:
        return list(agents)
    mine = [one for one in agents if one.agent == agent]
    rest = [one for one in agents if one.agent != agent]
    if not rest:
        return mine
    share, fair = _sum([(one.share, one.fair_share) for one in rest])
    steps = [
        None if None in parts else _sum([part for part in parts if part is not None])
        for parts in zip(*(one.steps for one in rest), strict=True)
    ]
    return [*mine, Agent(None, share, fair, steps)]


def _sum(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(one for one, _ in pairs), sum(other for _, other in pairs)


def _agent(one: Agent, *, steps: bool) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "agentId": one.agent,
        "share": round(one.share, 4),
        "fairShare": round(one.fair_share, 4),
    }
    if steps:
        shape["shares"] = [part and round(part[0], 3) for part in one.steps]
        shape["fairShares"] = [part and round(part[1], 3) for part in one.steps]
    return shape


def _point(bucket: Bucket) -> dict[str, Any]:
    """A span is null when nothing was measured."""
    return {
        "at": wire.moment(bucket.at),
        "spanMs": bucket.span_ms,
        "submitted": bucket.submitted,
        "finished": bucket.finished,
        "failed": bucket.failed,
        "waitP50Ms": percentile(bucket.waits, 0.5),
        "waitP95Ms": percentile(bucket.waits, 0.95),
        "runP50Ms": percentile(bucket.runs, 0.5),
    }
