"""What every process of a server offers: the routes over HTTP, and MCP at /mcp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar

from fairlane.config import Settings
from fairlane.core.access import Caller
from fairlane.engine.node import Node
from fairlane.http.app import HttpApp
from fairlane.http.holding import STREAMS_DEFAULT, WAITS_DEFAULT
from fairlane.http.limits import connections_max
from fairlane.mcp import endpoint as mcp
from fairlane.mcp.calls import Perform
from fairlane.mcp.endpoint import McpEndpoint
from fairlane.services import catalog

T = TypeVar("T")


def run(serving: Coroutine[object, None, T]) -> T:
    """Run a process of the server on the fastest event loop there is."""
    try:
        import uvloop  # noqa: PLC0415 - not on every system, and slow to import
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


def mcp_endpoint(settings: Settings, node: Node) -> McpEndpoint | None:
    """Return the endpoint for /mcp; None if the extra is not installed."""
    if settings.mcp_writes:
        mcp.require()
    if not mcp.installed():
        return None

    def perform_as(caller: Caller) -> Perform:
        return partial(catalog.perform, node, caller)

    return McpEndpoint(perform_as, writes=settings.mcp_writes)


def routes(
    settings: Settings,
    node: Node,
    check_url: Callable[[str], object],
    agents: McpEndpoint | None,
    *,
    exposed: bool,
) -> HttpApp:
    """Return the routes to serve. With few connections, each caller may hold fewer of them."""
    most = connections_max()
    return HttpApp(
        node,
        check_url,
        mounts={mcp.PATH: agents} if agents else None,
        exposed=exposed,
        max_streams=settings.max_streams or max(1, min(STREAMS_DEFAULT, most // 4)),
        max_waits=settings.max_waits or max(1, min(WAITS_DEFAULT, most // 2)),
    )
