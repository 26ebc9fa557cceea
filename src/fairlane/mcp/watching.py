"""The tools that show the state of the system: rows of the table."""

from __future__ import annotations

from typing import Final

from fairlane.mcp.calls import Calls
from fairlane.mcp.resources import RESOURCES
from fairlane.mcp.tool import Tool, read, write

WATCHING: Final[tuple[Tool, ...]] = (
    *RESOURCES,
    read(
        "count_tasks",
        Calls.count_tasks,
        "tasks",
        "Count tasks, in total and by state, with the filters of tasks.",
        names={"states": "state"},
    ),
    read(
        "failures",
        Calls.failures,
        "failures",
        "List failed and parked tasks by error, the most frequent first.",
        strangers=True,
    ),
    write(
        "retry_failures",
        Calls.retry_failures,
        "retry",
        "operate",
        "Queue all failed and parked tasks of one failure group again.",
        open_world=True,
    ),
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
        "List workers and the handlers that they offer: where they run, which are silent.",
        strangers=True,
    ),
    read(
        "handlers",
        Calls.handlers,
        "handlers",
        "List the handlers that workers offer now (offered), with runs, failures and durations.",
    ),
)
