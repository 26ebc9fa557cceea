"""One request on a connection, and the response to it.

The connection (`connection.py`) adds the bytes that arrive and reports when the client has gone.
The application runs as soon as the head has arrived, in the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from fairlane.core.errors import InvalidRequest
from fairlane.http.driver import Driver
from fairlane.http.messages import (
    Answer,
    HttpRequest,
    Stream,
    encoded,
    refusal,
    went_wrong,
)
from fairlane.http.responses import CONTINUE, response, stream_head
from fairlane.schema import wire
from fairlane.schema.decoding import too_large

if TYPE_CHECKING:
    from fairlane.http.connection import HttpConnection

log = logging.getLogger("fairlane.http")

Application = Callable[[HttpRequest], Awaitable[Answer | Stream]]

# How much of a body waits for the application before the connection is read no further.
_UNREAD_BYTES_MAX: Final = 65_536
# A client that does not read keeps no more than this of a stream waiting in one piece.
_SLICE_BYTES: Final = 65_536
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Exchange(HttpRequest):
    arrived = False  # all of the request is here
    admitted = False  # the doorkeeper admits its head
    gone = False  # the client has disconnected, or was refused
    started = False  # a part of the response has been sent
    ended = False
    reads_on = False  # the body is read while the response is sent
    stalled = False
    silences = 0  # how often nothing had arrived when the reading was timed
    driver: Driver | None = None
    _size = 0
    _unread = 0
    _discards = False
    _stream: asyncio.Task[None] | None = None
    _continued = False
    _news: asyncio.Event | None = None  # something has arrived, or the client has gone
    _left: asyncio.Event | None = None

    def __init__(  # noqa: PLR0917 - once per request, where names cost time
        self,
        connection: HttpConnection,
        method: str,
        full_path: str,
        query_string: bytes,
        headers: Mapping[bytes, bytes],
        keep_alive: bool,  # noqa: FBT001 - the same
        number: bytes,
    ) -> None:
        super().__init__(method, full_path, query_string, headers)
        self.connection = connection
        self.address = connection.address
        self.server = connection.local
        self.keep_alive = keep_alive
        self.number = number
        self._pieces: list[bytes] = []

    # ---------------------------------------------------------------- the request

    def add(self, piece: bytes) -> None:
        """Store a piece of the body, unless no code will read the body."""
        if self.ended or self._discards:
            return
        self._pieces.append(piece)
        self._size += len(piece)
        self._unread += len(piece)
        if self._unread > _UNREAD_BYTES_MAX:
            self.connection.pause_reading()
        if self._news is not None:
            self._news.set()

    def fill(self, body: bytes, *, admitted: bool) -> None:
        """Complete the request with its whole body."""
        if body:
            self._pieces.append(body)
            self._size = len(body)
        self.arrived = True
        self.admitted = admitted

    def complete(self) -> None:
        self.arrived = True
        if self._news is not None:
            self._news.set()

    def end(self) -> None:
        """Discard the rest of the request, because the response has been sent."""
        self.ended = True
        self._pieces = []

    def leave(self) -> None:
        """Stop reading, because the client has disconnected or the server no longer serves it."""
        self.gone = True
        if self._news is not None:
            self._news.set()
        if self._left is not None:
            self._left.set()
        if self._stream is not None:
            self._stream.cancel()

    def cancel(self) -> None:
        """End the handler: the server is stopping, and the handler has taken too long."""
        if self.driver is not None:
            self.driver.cancel()

    def whole_body(self, most: int) -> bytes | None:
        if self.arrived and self._size <= most and len(self._pieces) == 1 and not self.gone:
            return self._pieces[0]
        return None

    async def body(self, most: int = wire.BODY_BYTES_MAX) -> bytes:
        if not self.arrived:
            declared = self.headers.get(b"content-length", b"")
            if declared.isdigit() and int(declared) > most:
                raise too_large(most)
            await self._arrive(most)
        if self._size > most:
            raise too_large(most)
        if self.gone:
            # The bytes may look complete, but the client wanted to send more.
            raise InvalidRequest("the connection ended in the middle of the body")
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def _continue(self) -> None:
        """Tell a client that waits for permission to send its body."""
        if not self._continued and self.headers.get(b"expect", b"").lower() == b"100-continue":
            self._continued = True
            self.connection.write(CONTINUE)

    async def _arrive(self, most: int) -> None:
        """Return when the body has arrived, is too large, or will not be read."""
        self._news = asyncio.Event()
        self._continue()
        while not self.arrived and not self.gone and self._size <= most:
            self._news.clear()
            self._unread = 0
            self.connection.resume_reading()
            await self._news.wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; the connection is read only while a piece is awaited."""
        self.reads_on = True
        while True:
            if self._pieces:
                taken, self._pieces = b"".join(self._pieces), []
                self._unread = 0
                yield taken
            elif self.arrived:
                return
            elif self.gone or self.stalled:
                raise InvalidRequest(
                    "the client sent nothing for too long"
                    if self.stalled
                    else "the connection ended in the middle of the body"
                )
            else:
                self._news = asyncio.Event()
                self.connection.resume_reading()
                await self._news.wait()

    def stall(self) -> None:
        """Nothing has arrived for too long: end the reading of `pieces`."""
        self.stalled = True
        if self._news is not None:
            self._news.set()

    async def closed(self) -> None:
        if self._left is None:
            self._left = asyncio.Event()
        self._discard()
        if not self.gone:
            await self._left.wait()

    def _discard(self) -> None:
        """Read on and discard the body: a connection reports its end only while it is read."""
        if not self.arrived:
            self._discards = True
            self._pieces.clear()
            self.connection.resume_reading()

    # ---------------------------------------------------------------- the response

    async def run(self, application: Application) -> None:
        """Answer the request."""
        try:
            problem = None if self.admitted else self.connection.problem(self)
            if problem is not None:
                self.keep_alive = False
                found: Answer | Stream = refusal(problem)
            else:
                found = await application(self)
            if isinstance(found, Answer):
                await self._send(encoded(found))
            else:
                self._stream = asyncio.ensure_future(self._send_stream(found))
                await self._stream
        except Exception:
            log.exception("request %s failed", self.number.decode())
            await self._give_up()
        except asyncio.CancelledError:
            self.connection.close()  # unless the client has gone, the server stops
        finally:
            self.connection.finished(self)

    async def _send(self, answer: Answer) -> None:
        connection = self.connection
        if connection.write_paused and not self.gone:
            await connection.drained()
        if self.gone or connection.is_closing():
            if answer.undo is not None:
                answer.undo()
            return
        bodiless = self.method == "HEAD"
        data = response(answer, self.number, keep_alive=self.keep_alive, bodiless=bodiless)
        self.started = True
        connection.write(data)
        if answer.sent is not None:
            answer.sent()
        connection.ended(self)

    async def _send_stream(self, stream: Stream) -> None:
        """Send the stream until it ends. A client that disconnects cancels this."""
        try:
            if stream.reads:
                self._continue()
            else:
                self._discard()
            if self.connection.write_paused:
                await self.connection.drained()
            if self.gone or self.connection.is_closing():
                return
            self.started = True
            chunked = self.version != "1.0"
            head = stream_head(
                self.number, stream.kind, keep_alive=self.keep_alive, chunked=chunked
            )
            self.connection.write(head)
            if self.method != "HEAD":
                await self._send_pieces(stream, chunked=chunked)
            if not self.arrived and stream.reads:  # it ended early: the rest is not read
                self.keep_alive = False
            self.connection.ended(self)
        finally:
            stream.release()
            await _close(stream)

    async def _send_pieces(self, stream: Stream, *, chunked: bool) -> None:
        connection = self.connection
        async for piece in stream.pieces:
            for start in range(0, len(piece), _SLICE_BYTES):
                if start:
                    await asyncio.sleep(0)  # others are sent to in between
                if connection.write_paused:
                    await connection.drained()
                if connection.is_closing():
                    return
                part = piece[start : start + _SLICE_BYTES]
                connection.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if chunked:
            connection.write(_LAST_CHUNK)

    async def _give_up(self) -> None:
        """Send an internal error, or close the connection if the response has started."""
        if self.started:
            self.connection.close()
        else:
            await self._send(encoded(went_wrong()))


async def _close(stream: Stream) -> None:
    close = getattr(stream.pieces, "aclose", None)
    if close is not None:
        await close()
