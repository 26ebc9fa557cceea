"""Health: whether the process works (live), and whether it can take requests now (ready)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fairlane.schema.operation import GET, Operation, Request, Response, one_of


class CheckHealth(Request):
    """No parameters."""


class HealthStatus(Response):
    status: Annotated[str, one_of(("live", "ready", "dead", "draining", "not_ready"))]


class Unhealthy(HealthStatus):
    """The same, with status 503."""

    code: str
    error: str
    reasons: Annotated[list[str], Meta(description="Why the check failed")]


LIVE: Final = Operation(
    "live",
    GET,
    "/health/live",
    CheckHealth,
    HealthStatus,
    None,
    "Check whether the process works or needs a restart",
    open=True,
    statuses={Unhealthy: 503},
)
READY: Final = Operation(
    "ready",
    GET,
    "/health/ready",
    CheckHealth,
    HealthStatus,
    None,
    "Check whether the server can read and write its store and accepts requests",
    open=True,
    statuses={Unhealthy: 503},
)
