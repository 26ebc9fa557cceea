"""BrowserOS: its variable for the ceiling of instructions, and the name of its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROVIDER: Final = "browseros"
_MAX_CONCURRENT: Final = "TASK_QUEUE_MAX_CONCURRENT"


def lane_ceilings(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the ceilings of lanes by the lane's name, each with the variable that sets it."""
    found = env.get(_MAX_CONCURRENT)
    return {"instruction": (_MAX_CONCURRENT, found)} if found else {}
