"""The connection between two processes of one server: requests, answers and notices in batches.

Both ends are alike. What one turn of the event loop sends leaves in frames: four bytes of length
and a MessagePack list of (number, type, value). A number above zero is a request, the same number
below zero its answer, zero a notice. The connection is a pair of sockets that the parent passes to
its child, so no other process can reach it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from fairlane.engine import codec

log = logging.getLogger("fairlane.links")

_SIZE_BYTES: Final = 4
_UNSENT_BYTES_MAX: Final = 1 << 20  # beyond this the link is full
_FRAME_ITEMS_MAX: Final = 32  # the other process handles them while this one makes more
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[tuple[int, str, msgspec.Raw]])

Heard = Callable[[list[tuple[int, object]]], None]


class Link(asyncio.Protocol):
    """`heard` receives the requests and notices of a frame, `late` an answer whose caller has gone,
    and `lost` is called once when the other process has exited. The link is `full` while the other
    process does not read; `drained` is called when it does again. All of it belongs to one event
    loop.
    """

    def __init__(
        self,
        heard: Heard,
        lost: Callable[[], None],
        late: Callable[[object], None] = lambda _: None,
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.full = False
        self._heard = heard
        self._lost = lost
        self._late = late
        self._drained = drained
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._outgoing: list[tuple[int, str, object]] = []
        self._received = bytearray()

    async def open(self, end: socket.socket) -> None:
        """Use this end of the pair."""
        end.setblocking(False)
        await self.loop.create_connection(lambda: self, sock=end)

    def close(self) -> None:
        """Send the remaining messages, then close the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def ask(self, value: object) -> tuple[int, asyncio.Future[object]]:
        """Send a request. Return its number and a future of the answer."""
        number, future = next(self._numbers), self.loop.create_future()
        if self.closed:
            future.set_exception(_gone())
        else:
            self._asked[number] = future
            self._send(number, value)
        return number, future

    def tell(self, value: object) -> None:
        self._send(0, value)

    def answer(self, number: int, value: object) -> None:
        """Answer a request; a notice gets no answer."""
        if number:
            self._send(-number, value)

    # ---------------------------------------------------------------- the transport's calls

    def connection_made(  # type: ignore[override]  # a pair of sockets is a stream
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        self._flush()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._drained()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(_gone())
                future.exception()  # its caller may have gone, too
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._received += data
        heard: list[tuple[int, object]] = []
        while len(self._received) >= _SIZE_BYTES:
            end = _SIZE_BYTES + int.from_bytes(self._received[:_SIZE_BYTES], "big")
            if len(self._received) < end:
                break
            frame = bytes(self._received[_SIZE_BYTES:end])
            del self._received[:end]
            for number, tag, raw in _decoder.decode(frame):
                try:
                    value = codec.untagged(tag, raw)
                except Exception as error:
                    log.exception("a message of the other process cannot be read")
                    self.answer(max(0, number), error)
                    value = error
                    if number >= 0:
                        continue
                if number < 0:
                    self._settle(-number, value)
                else:
                    heard.append((number, value))
        if heard:
            self._heard(heard)

    # ---------------------------------------------------------------- parts

    def _settle(self, number: int, value: object) -> None:
        future = self._asked.pop(number, None)
        if future is None or future.done():
            self._late(value)
        elif isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)

    def _send(self, number: int, value: object) -> None:
        if self.closed:
            return
        if not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing.append((number, *codec.tagged(value)))
        if len(self._outgoing) == _FRAME_ITEMS_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing() or not self._outgoing:
            return
        outgoing, self._outgoing = self._outgoing, []
        try:
            frame = _encoder.encode(outgoing)
        except Exception:  # noqa: BLE001 - found below, so that the others are sent
            frame = _encoder.encode([one for one in map(self._encodable, outgoing) if one])
        self._transport.write(len(frame).to_bytes(_SIZE_BYTES, "big") + frame)

    def _encodable(self, item: tuple[int, str, object]) -> tuple[int, str, object] | None:
        """Return the item; in place of one that cannot be encoded, its failure."""
        number = item[0]
        try:
            _encoder.encode(item)
        except Exception as error:
            log.exception("a message cannot be sent to the other process")
            if number > 0:
                self._settle(number, error)
            return (number, *codec.tagged(error)) if number < 0 else None
        return item


def _gone() -> ConnectionResetError:
    return ConnectionResetError("the other process of this server has ended")
