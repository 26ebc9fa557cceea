"""`fairlane mcp`: the verbs as tools for an agent that has started this program."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fairlane import config, logs, transport
from fairlane.async_client import AsyncClient
from fairlane.cli import exits
from fairlane.mcp import endpoint
from fairlane.mcp.calls import Ask, Shape
from fairlane.transport import DEFAULT_URL


def run(args: argparse.Namespace) -> int:
    endpoint.require()
    logs.begin("warning")
    asyncio.run(_serve(args))
    return exits.OK


async def _serve(args: argparse.Namespace) -> None:
    from fairlane.mcp import stdio  # noqa: PLC0415 - an extra, and slow to import

    writes: bool = args.allow_writes
    side = server_side(args) if args.store is None else store_side(args.store, create=writes)
    async with side as ask:
        await stdio.serve(ask, writes=writes)


@contextlib.asynccontextmanager
async def server_side(args: argparse.Namespace) -> AsyncIterator[Ask]:
    url = args.url or config.variable("FAIRLANE_URL") or DEFAULT_URL
    async with AsyncClient(url, token=config.token(args.token_file)) as client:
        yield client.call


@contextlib.asynccontextmanager
async def store_side(url: str, *, create: bool) -> AsyncIterator[Ask]:
    """The store itself, beside a running server or without one."""
    from fairlane.cli.direct import StoreTransport, usable_store  # noqa: PLC0415 - slow to import

    store = StoreTransport(usable_store(url, create=create))

    async def ask(
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_ms: int = 0,  # noqa: ARG001 - here nothing is in a hurry
    ) -> Shape:
        request = transport.build(
            method,
            path,
            query=query,
            body=body,
            idempotency_key=idempotency_key,
            timeout_seconds=0,
        )
        return transport.understood(await store.answered(request), store.where)

    try:
        yield ask
    finally:
        await asyncio.to_thread(store.close)
