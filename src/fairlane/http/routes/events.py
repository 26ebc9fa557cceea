"""Routes of events and output: what has happened, and what happens now, as server-sent events.

A stream reads the log in order of its numbers and never skips one, so a client that comes back
with the number of the last event it saw misses nothing and sees nothing twice. Streams wait for
the node's bell; on a shared store they also look by themselves now and then. What they read, and
its encoding, is done by the node's feed in bounded steps, away from the event loop and from the
connections of other reads. While the store cannot be read a stream stays open, with heartbeats,
and goes on where it was when the store is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import msgspec

from fairlane.core import lifecycle
from fairlane.core.access import Scope
from fairlane.core.errors import Draining, StoreUnavailable
from fairlane.engine.node import LOOK_AGAIN_SECONDS, Node, Waiter
from fairlane.engine.reads.views import EventFilter, EventView, Piece
from fairlane.http.messages import Answer, Request, Route, Routes, Stream
from fairlane.http.operations import reader
from fairlane.schema import wire
from fairlane.schema.events import LIST_EVENTS
from fairlane.services.catalog import service_of
from fairlane.services.events import event_filter, first_id, shown, window

T = TypeVar("T")

HEARTBEAT_SECONDS: Final = 15.0
# What one step of a stream reads and encodes at most; a single event may be larger.
STEP: Final = 200
STEP_BYTES: Final = 128 * 1024
AWAY_SECONDS: Final = 1.0
PULSE_SECONDS: Final = 1.0  # between two of them, however much happens
_HELLO: Final = b"retry: 1000\n: more follows\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_read: Final = reader(LIST_EVENTS)
_AT_REST: Final = frozenset({*lifecycle.TERMINAL, lifecycle.PARKED})


class Step(msgspec.Struct, frozen=True):
    """A step of a stream of events: what to send, where to go on, and where the log ends."""

    body: bytes
    after: int
    last: int


class OutputStep(msgspec.Struct, frozen=True):
    """A step of a stream of output. `more` follows at once; `state` was read before the output."""

    body: bytes
    token: int
    part: int
    more: bool
    state: str | None


class Events:
    def __init__(self, node: Node, look_seconds: float | None = None) -> None:
        """`look_seconds` is how often to look for what nobody tells this node; None for never."""
        self._node = node
        self._views = node.views
        self._feed = node.views.feed
        self._look_seconds = LOOK_AGAIN_SECONDS if node.store.shared else look_seconds

    def routes(self) -> Routes:
        return {
            "/events": {"GET": Route(self.read, Scope.READ, operation=LIST_EVENTS)},
            "/events/pulse": {"GET": Route(self.pulse, Scope.READ)},
            "/tasks/{id}/output": {"GET": Route(self.output, Scope.READ)},
        }

    async def read(self, request: Request) -> Answer | Stream:
        """Stream events, or list them to a caller that accepts JSON only."""
        typed = await _read(request)
        if request.wants_json():
            page = await service_of(LIST_EVENTS)(self._node, request.caller, typed)
            return Answer(LIST_EVENTS.status, page)
        wanted, after = event_filter(request.caller, typed), first_id(typed)
        last = await self._feed.read(self._views.last_event)
        begin = last if after is None else min(after, last)
        return Stream(_until_stopped(self._follow(wanted, begin)))

    async def pulse(self, request: Request) -> Stream:
        """That something has happened, seldom enough to be cheap however much happens."""
        request.query()
        return Stream(_until_stopped(self._beat()))

    async def output(self, request: Request) -> Answer | Stream:
        query = request.query("follow")
        view = await self._node.show(request.path["id"], request.caller.agent)
        if request.wants_events() or query.get("follow") in ("1", "true"):
            return Stream(_until_stopped(self._follow_output(view.task.seq)))
        newest = await self._views.read(self._newest_output, view.task.seq)
        text = "".join(piece.text for piece in newest)
        shape = {
            "taskId": view.task.id,
            "attempt": newest[-1].attempt if newest else view.task.attempts,
            "text": text,
            "complete": view.task.terminal or view.task.state == lifecycle.PARKED,
            "truncated": len(text) >= wire.OUTPUT_CHARACTERS_MAX,
        }
        return Answer(200, shape)

    def _step(self, wanted: EventFilter, after: int) -> Step:
        last = self._views.last_event()
        found, after = window(self._views, wanted, min(after, last), last, (STEP, STEP_BYTES))
        return Step(b"".join(_sse(one) for one in found), after, last)

    async def _follow(self, wanted: EventFilter, after: int) -> AsyncIterator[bytes]:
        late = True
        with self._node.follow() as waiter:
            # An id without data: who is cut off before the first event comes back to this place.
            yield b"id: %d\n" % after + _HELLO
            while True:
                # Asked first: who reads slowly still gets what came before the end.
                drained = self._node.drained
                step = await self._read(self._step, wanted, after, late=late)
                if step is None:
                    yield await self._away()
                else:
                    after, late = step.after, step.after < step.last
                    if step.body:
                        yield step.body
                    if late:
                        continue
                if drained:
                    return
                async for beat in self._wait(waiter, after):
                    yield beat

    async def _beat(self) -> AsyncIterator[bytes]:
        told = -1
        with self._node.follow() as waiter:
            yield _HELLO
            while True:
                drained = self._node.drained
                last = await self._read(self._views.last_event)
                if last is None:
                    yield _HEARTBEAT
                    last = told
                if last != told:
                    told = last
                    yield wire.sse("pulse", {"id": last})
                if drained:
                    return
                await asyncio.sleep(PULSE_SECONDS)
                async for beat in self._wait(waiter, told):
                    yield beat

    async def _follow_output(self, seq: int) -> AsyncIterator[bytes]:
        token, part, late = 0, -1, True
        with self._node.follow() as waiter:
            yield _HELLO
            while True:
                drained = self._node.drained
                step = await self._read(self._output_step, seq, token, part, late=late)
                if step is None:
                    yield await self._away()
                else:
                    token, part, late = step.token, step.part, step.more
                    if step.body:
                        yield step.body
                    if late:
                        continue
                    if step.state is None or step.state in _AT_REST:
                        yield wire.sse("end", {"state": step.state})
                        return
                if drained:
                    return
                async for beat in self._wait(waiter):
                    yield beat

    def _output_step(self, seq: int, token: int, part: int) -> OutputStep:
        state = self._views.task_state(seq)  # first: what is there after the end is all there is
        found = self._views.output(seq, token, part, STEP, STEP_BYTES)
        body = b"".join(
            wire.sse("output", {"attempt": one.attempt, "text": one.text}) for one in found
        )
        if found:
            token, part = found[-1].token, found[-1].part
        return OutputStep(body, token, part, found.more, state)

    def _newest_output(self, seq: int) -> list[Piece]:
        """Return what the newest attempt has produced, which is bounded."""
        token, part = self._views.output_token(seq), -1
        pieces: list[Piece] = []
        while True:
            found = self._views.output(seq, token, part, wire.LIST_LIMIT_MAX)
            pieces += found
            if not found.more:
                return pieces
            part = found[-1].part

    async def _read(self, view: Callable[..., T], *arguments: Any, late: bool = False) -> T | None:
        """Read for a stream. Return None while the store is away."""
        try:
            return await self._feed.read(view, *arguments, late=late)
        except StoreUnavailable:
            return None

    async def _away(self) -> bytes:
        """Pause while the store cannot be read. Return what to send meanwhile."""
        await asyncio.sleep(0 if self._node.drained else AWAY_SECONDS)
        return _HEARTBEAT

    async def _wait(self, waiter: Waiter, after: int | None = None) -> AsyncIterator[bytes]:
        """Wait until there may be something new, or an event behind `after`.

        A heartbeat shows meanwhile that we live.
        """
        clock = self._node.clock
        beat_at = clock.monotonic() + HEARTBEAT_SECONDS
        while True:
            left = beat_at - clock.monotonic()
            if left <= 0:
                yield _HEARTBEAT
                return
            told = await waiter.wait(min(left, self._look_seconds or left))
            if told or after is None or (await self._read(self._views.last_event) or 0) > after:
                return


async def _until_stopped(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream ends with its node, also when that stops while the stream looks for more."""
    with contextlib.suppress(Draining):
        async for piece in pieces:
            yield piece


def _sse(view: EventView) -> bytes:
    return wire.sse(view.event.type, shown(view), view.event.id)
