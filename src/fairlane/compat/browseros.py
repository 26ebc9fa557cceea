"""BrowserOS: its variable for the ceiling of instructions, and the name of its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROVIDER: Final = "browseros"
_MAX_CONCURRENT: Final = "TASK_QUEUE_MAX_CONCURRENT"
# BrowserOS knows neither parked nor rejected tasks.
_STATES: Final = {
    "waiting_dependency": "waiting_dependency",
    "queued": "pending",
    "assigned": "queued",
    "running": "running",
    "done": "completed",
    **dict.fromkeys(("failed", "parked", "rejected"), "failed"),
    "cancelled": "cancelled",
}


def task_stats(by_state: Mapping[str, int]) -> dict[str, int]:
    """Return numbers of tasks by BrowserOS' words for states."""
    counts = dict.fromkeys(_STATES.values(), 0)
    for state, count in by_state.items():
        counts[_STATES[state]] += count
    return {"total": sum(by_state.values()), **counts}


def lane_ceilings(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the ceilings of lanes by the lane's name, each with the variable that sets it."""
    found = env.get(_MAX_CONCURRENT)
    return {"instruction": (_MAX_CONCURRENT, found)} if found else {}
