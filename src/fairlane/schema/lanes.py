"""Lanes: list them, show, pause, resume and clear one."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fairlane.core import moments
from fairlane.core.access import Scope
from fairlane.core.counts import Tally
from fairlane.core.policy import LanePolicy
from fairlane.core.types import Actor
from fairlane.schema.operation import GET, POST, Header, Operation, Request, Response

LaneName = Annotated[str, Meta(description="Name of the lane")]


class ListLanes(Request):
    """No parameters."""


class LaneRequest(Request):
    """The name of one lane."""

    name: LaneName


class ChangeLane(Request):
    name: LaneName
    actor: Annotated[Actor | None, Header("X-Fairlane-Actor")] = None


class ReservedSlots(Response):
    critical: Annotated[int, Meta(description="Slots that only critical tasks may take")]


class LaneStatus(Response):
    name: str
    ceiling: Annotated[int | None, Meta(description="Maximum number of running tasks")]
    active: Annotated[int, Meta(description="Slots in use")]
    waiting: Annotated[int, Meta(description="Queued tasks")]
    ready: Annotated[int, Meta(description="Tasks waiting only for a slot")]
    oldest_wait_ms: Annotated[int, Meta(description="Waiting time of the oldest ready task")]
    parked: int
    completed: int
    failed: int
    paused: bool
    strategy: str
    reserved: ReservedSlots


class LaneList(Response):
    lanes: list[LaneStatus]
    count: int


class LanePaused(Response):
    lane: str
    paused: bool


class ClearedLane(Response):
    lane: str
    cancelled: Annotated[int, Meta(description="Number of cancelled tasks")]


def lane_status(
    name: str, settings: LanePolicy, tally: Tally, oldest_at: int | None, now: int
) -> LaneStatus:
    """Return the status of a lane; `oldest_at` is when its oldest ready task became ready."""
    return LaneStatus(
        name=name,
        ceiling=settings.max_inflight,
        active=tally.slots,
        waiting=tally.queued,
        ready=tally.ready,
        oldest_wait_ms=0 if oldest_at is None else moments.span(oldest_at, now),
        parked=tally.parked,
        completed=tally.completed,
        failed=tally.failed,
        paused=settings.paused,
        strategy=settings.strategy,
        reserved=ReservedSlots(critical=settings.reserved.critical),
    )


LANES: Final = Operation(
    "lanes", GET, "/lanes", ListLanes, LaneList, Scope.READ, "List the lanes with their load"
)
LANE: Final = Operation(
    "lane", GET, "/lanes/{name}", LaneRequest, LaneStatus, Scope.READ, "Show a lane with its load"
)
PAUSE_LANE: Final = Operation(
    "pause_lane",
    POST,
    "/lanes/{name}/pause",
    ChangeLane,
    LanePaused,
    Scope.OPERATE,
    "Stop starting tasks in a lane; running tasks continue",
    agents=False,
)
RESUME_LANE: Final = Operation(
    "resume_lane",
    POST,
    "/lanes/{name}/resume",
    ChangeLane,
    LanePaused,
    Scope.OPERATE,
    "Resume starting tasks in a paused lane",
    agents=False,
)
CLEAR_LANE: Final = Operation(
    "clear_lane",
    POST,
    "/lanes/{name}/clear",
    LaneRequest,
    ClearedLane,
    Scope.OPERATE,
    "Cancel all queued tasks of a lane; running tasks continue",
    agents=False,
)
