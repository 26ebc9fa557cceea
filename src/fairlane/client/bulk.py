"""Cut a stream of tasks into pieces that fit into one request and can be repeated."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from fairlane.client.arguments import encoded
from fairlane.core.errors import BusyError, Unreachable
from fairlane.core.json_types import JsonMapping
from fairlane.schema import wire
from fairlane.schema.task_streams import LINES_MAX, SubmitLines

_PIECE_BYTES: Final = wire.BODY_BYTES_MAX // 2
TRY_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.25
_PAUSE_SECONDS_MAX: Final = 5.0


class PieceBuilder:
    """Collects tasks with consecutive line numbers; each piece has the key of the stream."""

    def __init__(self, key: str | None, first_line: int = 1) -> None:
        self.key = key or secrets.token_hex(16)
        self._first = first_line
        self._tasks: list[msgspec.Raw] = []
        self._size = 0

    def add(self, task: bytes) -> SubmitLines | None:
        """Add a task as JSON. Return the piece that is full without it, if it is."""
        full = self._tasks and (
            len(self._tasks) == LINES_MAX or self._size + len(task) > _PIECE_BYTES
        )
        piece = self.take() if full else None
        self._tasks.append(msgspec.Raw(task))
        self._size += len(task) + 1
        return piece

    def skip(self) -> None:
        """Leave out a line. Take the piece before it first."""
        assert not self._tasks, "the lines of a piece are consecutive"
        self._first += 1

    def take(self) -> SubmitLines | None:
        """Return the piece so far, if there is one, and begin the next."""
        if not self._tasks:
            return None
        piece = SubmitLines(tasks=self._tasks, first_line=self._first, idempotency_key=self.key)
        self._first += len(self._tasks)
        self._tasks, self._size = [], 0
        return piece


def pieces(tasks: Iterable[JsonMapping], key: str | None) -> Iterator[SubmitLines]:
    builder = PieceBuilder(key)
    for task in tasks:
        piece = builder.add(encoded(task))
        if piece is not None:
            yield piece
    last = builder.take()
    if last is not None:
        yield last


async def async_pieces(
    tasks: Iterable[JsonMapping] | AsyncIterable[JsonMapping], key: str | None
) -> AsyncIterator[SubmitLines]:
    if isinstance(tasks, Iterable):
        for piece in pieces(tasks, key):
            yield piece
        return
    builder = PieceBuilder(key)
    async for task in tasks:
        full = builder.add(encoded(task))
        if full is not None:
            yield full
    last = builder.take()
    if last is not None:
        yield last


class Tries:
    """Computes the pause before a piece is sent again; raises once this has lasted too long."""

    def __init__(self, piece: SubmitLines, now: float) -> None:
        self._first = piece.first_line == 1
        self._end = now + TRY_SECONDS
        self._pause = _PAUSE_SECONDS

    def pause(self, error: BusyError, now: float) -> float:
        wrong_address = self._first and isinstance(error, Unreachable)
        if wrong_address or now >= self._end:
            raise error
        wanted = (error.retry_after_ms or 0) / 1000
        self._pause = min(2 * self._pause, _PAUSE_SECONDS_MAX)
        return max(wanted, self._pause / 2)
