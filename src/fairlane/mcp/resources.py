"""The tools for resources: further rows of the table."""

from __future__ import annotations

from typing import Final

from fairlane.mcp.calls import Calls
from fairlane.mcp.tool import Tool, read, write

RESOURCES: Final[tuple[Tool, ...]] = (
    read(
        "resources",
        Calls.resources,
        "resources list",
        "List quotas, budgets, pools and locks with their use and the number of waiting tasks.",
    ),
    read(
        "resource",
        Calls.resource,
        "resources list",
        "Show a resource: limits, use, holders, and when it becomes available.",
    ),
    read(
        "resource_ledger",
        Calls.resource_ledger,
        "resources ledger",
        "List reservations, settlements and refunds of a resource, newest first, one page.",
    ),
    read(
        "resource_usage",
        Calls.resource_usage,
        "resources usage",
        "Show how much of a resource each agent used on each day.",
    ),
    write(
        "resource_close",
        Calls.close_resource,
        "resources close",
        "operate",
        "Close a resource: tasks that need it do not start until it opens again.",
        idempotent=True,
    ),
    write(
        "resource_open",
        Calls.open_resource,
        "resources open",
        "operate",
        "Open a closed resource.",
        idempotent=True,
    ),
    write(
        "resource_raise",
        Calls.raise_resource,
        "resources raise",
        "operate",
        "Raise a budget until it resets.",
    ),
)
