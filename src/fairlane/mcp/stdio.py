"""Serve MCP on standard input and output, one JSON-RPC message per line.

Only messages go to standard output: while the server runs, the SDK redirects other output to
standard error. The server ends at the end of its input or on SIGTERM. Caution: a thread that waits
for input cannot be stopped, so it must be a daemon thread that the process leaves behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self, cast

from mcp.server.stdio import stdio_server

from fairlane.mcp.calls import Perform
from fairlane.mcp.server import build

log = logging.getLogger("fairlane.mcp")

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_CHUNK_BYTES: Final = 65_536
_LINES_AHEAD: Final = 16


async def serve(
    perform: Perform, *, writes: bool, decides: bool = False, sets: Sequence[str] = ()
) -> None:
    """Serve until the input ends or SIGTERM arrives; calls in progress are then cancelled."""
    server = build(perform, writes=writes, decides=decides, sets=sets)
    lines = Lines()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lines.end)
    try:
        async with stdio_server(stdin=cast("Any", lines)) as (read, write):
            lines.begin()
            await server.run(read, write, server.create_initialization_options())
    except* BrokenPipeError:
        pass  # the client has gone, which means the same as the end of the input


class Lines:
    """Read standard input line by line, asynchronously."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_AHEAD)  # a fast sender does not fill the memory

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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing reads any more
            for line in _lines(source):
                self._room.acquire()
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            self._loop.call_soon_threadsafe(self.end)


def _lines(source: io.FileIO) -> Iterator[str]:
    """Yield whole lines and the rest after the last one; skip lines that are too long."""
    rest, skipping = b"", False
    while chunk := source.read(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not skipping:
                yield line.decode("utf-8", "replace")
            skipping = False
        if len(rest) > LINE_BYTES_MAX:
            log.warning("skipped a message of more than %d bytes", LINE_BYTES_MAX)
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest.decode("utf-8", "replace")
