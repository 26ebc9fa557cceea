"""Mount the MCP server under a path of the HTTP server, as an ASGI application that takes POST.

The first request loads the SDK, which takes longer than starting a server that may never get an MCP
request. The SDK's requests run in a task of this class, so they end with the server.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

from fairlane.core.errors import OperatorError
from fairlane.mcp.calls import PerformAs
from fairlane.schema import wire

Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
Send = Callable[[MutableMapping[str, object]], Awaitable[None]]
Handle = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH: Final = "/mcp"


def installed() -> bool:
    return importlib.util.find_spec("mcp") is not None


def require() -> None:
    if not installed():
        raise OperatorError(
            "the MCP server needs an extra that is not installed; "
            "run pip install '.[mcp]' in a clone of fairlane"
        )


class McpEndpoint:
    def __init__(self, perform_as: PerformAs, *, writes: bool) -> None:
        """`perform_as` returns the function that performs operations for the caller of a request,
        which the HTTP server puts into the scope.
        """
        self._perform_as = perform_as
        self._writes = writes
        self._handle: asyncio.Future[Handle] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _send_not_allowed(send)
            return
        if self._handle is None:
            self._handle = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._handle), name="fairlane-mcp")
        handle = await asyncio.shield(self._handle)
        await handle(scope, receive, send)

    async def close(self) -> None:
        self._ending.set()
        if self._running is not None:
            await self._running

    async def _run(self, ready: asyncio.Future[Handle]) -> None:
        try:
            module = await asyncio.to_thread(importlib.import_module, "fairlane.mcp.server")
            manager = module.over_http(self._perform_as, writes=self._writes)
            async with manager.run():
                ready.set_result(manager.handle_request)
                await self._ending.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


async def _send_not_allowed(send: Send) -> None:
    shape = {
        "code": "method_not_allowed",
        "error": "this MCP endpoint takes POST only; it has no sessions",
    }
    headers = [(b"content-type", b"application/json"), (b"allow", b"POST")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": wire.encode(shape)})
