"""The MCP server on standard input and output, one JSON-RPC message on each line.

Nothing but messages goes to standard output: while it serves, the SDK has what else is printed go
to standard error. The end of the input is the end of the server, and so is SIGTERM. The trap: a
thread that waits for input cannot be told to stop, so it must be one that the program may leave
behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Final, Self, cast

from mcp.server.stdio import stdio_server

from fairlane.mcp.calls import Perform
from fairlane.mcp.server import build

log = logging.getLogger("fairlane.mcp")

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_CHUNK_BYTES: Final = 65_536
_LINES_AHEAD: Final = 16


async def serve(perform: Perform, *, writes: bool) -> None:
    """Until the input ends or SIGTERM comes; what is being done then is cancelled."""
    server = build(perform, writes=writes)
    lines = Lines()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lines.end)
    try:
        async with stdio_server(stdin=cast("Any", lines)) as (read, write):
            lines.begin()
            await server.run(read, write, server.create_initialization_options())
    except* BrokenPipeError:
        pass  # who asked has gone, which is as good as the end of the input


class Lines:
    """The lines of standard input, to be awaited one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_AHEAD)  # who sends fast does not fill the memory

    def begin(self) -> None:
        source = io.FileIO(os.dup(0))
        threading.Thread(target=self._read, args=(source,), name="stdin", daemon=True).start()

    def end(self) -> None:
        self._lines.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        self._room.release()
        return line

    def _read(self, source: io.FileIO) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            for line in _lines(source):
                self._room.acquire()
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            self._loop.call_soon_threadsafe(self.end)


def _lines(source: io.FileIO) -> Iterator[str]:
    """Whole lines, and what stands behind the last one; not those that are too long."""
    rest, skipping = b"", False
    while chunk := source.read(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not skipping:
                yield line.decode("utf-8", "replace")
            skipping = False
        if len(rest) > LINE_BYTES_MAX:
            log.warning("a message of more than %d bytes is skipped", LINE_BYTES_MAX)
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest.decode("utf-8", "replace")
