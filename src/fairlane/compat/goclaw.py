"""GoClaw: its variables for the ceilings of its four lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LANES: Final = ("main", "subagent", "team", "cron")


def lane_ceilings(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the ceilings of lanes by the lane's name, each with the variable that sets it."""
    variables = {lane: f"GOCLAW_LANE_{lane.upper()}" for lane in _LANES}
    return {lane: (name, env[name]) for lane, name in variables.items() if env.get(name)}
