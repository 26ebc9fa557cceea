"""The tools that show the state of the system: rows of the table."""

from __future__ import annotations

from typing import Final

from fairlane.mcp.calls import Calls
from fairlane.mcp.tool import Tool, read

WATCHING: Final[tuple[Tool, ...]] = (
    read(
        "workers",
        Calls.workers,
        "workers",
        "List workers and the handlers that can be used: where they run, who is silent.",
        strangers=True,
    ),
)
