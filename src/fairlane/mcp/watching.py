"""The tools that show the state of the system: rows of the table."""

from __future__ import annotations

from typing import Final

from fairlane.mcp.calls import Calls
from fairlane.mcp.resources import RESOURCES
from fairlane.mcp.tool import Tool, read

WATCHING: Final[tuple[Tool, ...]] = (
    *RESOURCES,
    read(
        "attention",
        Calls.attention,
        "attention",
        "List what needs attention: stuck, parked, failing; each with the command that fixes it.",
        strangers=True,
    ),
    read(
        "workers",
        Calls.workers,
        "workers",
        "List workers and the handlers that can be used: where they run, who is silent.",
        strangers=True,
    ),
)
