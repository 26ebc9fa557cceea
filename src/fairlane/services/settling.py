"""Convert reports about resources to the engine's commands."""

from __future__ import annotations

from typing import Any, Final

from fairlane.core.errors import NotFound
from fairlane.engine.resource_commands import Closing, ResourceReport, SettlePermit
from fairlane.schema.leases import PermitSettlement

PREFIX: Final = "pmt_"


def settlements(
    key: tuple[int, int], given: list[PermitSettlement] | None
) -> tuple[SettlePermit, ...]:
    """Return the permits that a renewal settles."""
    return tuple(
        SettlePermit(*key, permit_number(one.permit_id), report_of(one)) for one in given or ()
    )


def report_of(request: Any) -> ResourceReport | None:
    """Return a request's report about resources; None if it has none."""
    usage = getattr(request, "usage", None)
    if usage is None and request.closed is None and request.observed is None:
        return None
    closed = request.closed and {
        name: Closing(one.retry_after_ms, one.reason) for name, one in request.closed.items()
    }
    observed = request.observed and {
        name: {unit: one.remaining for unit, one in units.items()}
        for name, units in request.observed.items()
    }
    return ResourceReport(usage, closed, observed)


def permit_number(permit_id: str) -> int:
    digits = permit_id.removeprefix(PREFIX)
    if not (permit_id.startswith(PREFIX) and digits.isascii() and digits.isdigit()):
        raise NotFound(
            f'"{permit_id[:64]}" is not a permit id; use the permitId from POST '
            "/leases/{id}/permits"
        )
    return int(digits[:18])
