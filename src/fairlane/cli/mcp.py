"""`fairlane mcp`: the verbs as tools for an agent that has started this program."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Unpack

from fairlane import config, logs
from fairlane.cli import exits
from fairlane.client import transport
from fairlane.client.async_verbs import Shape
from fairlane.client.asynchronous import AsyncClient
from fairlane.client.calling import Asked
from fairlane.client.transport import DEFAULT_URL
from fairlane.mcp import endpoint
from fairlane.mcp.calls import Ask


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

    async def ask(method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        request = transport.build(method, path, timeout_seconds=0, **asked)
        return transport.understood(await store.answered(request), store.where)

    try:
        yield ask
    finally:
        await asyncio.to_thread(store.close)
