"""Follow events, the output of a task, and the pulse.

A follower reads the log in the order of its ids and never skips one, so a caller that reconnects
with the id of the last event it saw misses nothing and sees nothing twice. Followers wait for a
notification from the node; on a shared store they also poll now and then. The node's feed reads for
them in bounded steps, away from the event loop and from the connections of other reads, and shares
equal reads. That is why the encoder is an argument: it runs once, in the thread of the feed.

A generator yields None when there is nothing new, to show that it is alive. While the store cannot
be read it does so every second, and later continues where it was. It ends when the node stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from fairlane.core import lifecycle
from fairlane.core.access import Caller
from fairlane.core.errors import Draining, StoreUnavailable
from fairlane.core.json_types import JsonObject
from fairlane.core.types import LIST_LIMIT_MAX
from fairlane.engine.node import LOOK_AGAIN_SECONDS, Node
from fairlane.engine.reads.views import EventFilter, EventView, Piece, TaskView, Views
from fairlane.engine.waiters import Waiter
from fairlane.schema import wire
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.tasks import TASK_OUTPUT, NamedTask, TaskOutput
from fairlane.services import short_ids
from fairlane.services.events import event_filter, shown, starting_id, window
from fairlane.services.registry import implements

log = logging.getLogger("fairlane.following")

T = TypeVar("T")
Encode = Callable[[Sequence[EventView]], T]
EncodePieces = Callable[[Sequence[Piece]], T]

ALIVE_SECONDS: Final = 15.0
# What one step reads and encodes at most; a single event may be larger.
STEP: Final = 200
STEP_BYTES: Final = 128 * 1024
AWAY_SECONDS: Final = 1.0
PULSE_SECONDS: Final = 1.0  # between two of them, however much happens
_AT_REST: Final = frozenset({*lifecycle.TERMINAL, lifecycle.PARKED})


class EventStep(msgspec.Struct, Generic[T], frozen=True):
    """A step of a stream of events: what it found, where to continue, and where the log ends."""

    found: T
    after: int
    last: int


class OutputStep(msgspec.Struct, Generic[T], frozen=True):
    """A step of a stream of output. `more` follows at once; `state` was read before the output."""

    found: T
    token: int
    part: int
    more: bool
    state: str | None


class OutputEnd(msgspec.Struct, frozen=True):
    """The end of a task's output: its state, or None if the task was deleted."""

    state: str | None


class EventStream(msgspec.Struct, Generic[T], frozen=True):
    """A stream of events: the id after which it begins, and the steps that it found."""

    after: int
    steps: AsyncGenerator[T | None, None]


# -------------------------------------------------------------------- events


async def follow_events(
    node: Node,
    caller: Caller,
    request: ListEvents,
    encode: Encode[T],
    *,
    look_seconds: float | None = None,
) -> EventStream[T]:
    """Return the events after the given one, or starting now, encoded with `encode`.

    Raise if the caller may not read them. `look_seconds` is how often to look for events of other
    processes that do not notify this node; None for never, unless the store is shared.
    """
    request = await short_ids.expanded(node, caller, LIST_EVENTS, request)
    wanted, after = event_filter(caller, request), await starting_id(node, request)
    last = await node.views.feed.read(node.views.last_event)
    begin = last if after is None else min(after, last)
    return EventStream(begin, _Followed(node, look_seconds).events(wanted, begin, encode))


async def each_event(
    node: Node, caller: Caller, request: ListEvents, *, look_seconds: float | None = None
) -> AsyncGenerator[JsonObject, None]:
    """Yield events for a caller in this process, each once, until the node stops."""
    stream = await _patiently(
        lambda: follow_events(node, caller, request, _encoded, look_seconds=look_seconds)
    )
    async with contextlib.aclosing(stream.steps) as steps:
        async for found in steps:
            for data in found or ():
                yield wire.decode(data)


def _encoded(found: Sequence[EventView]) -> tuple[bytes, ...]:
    return tuple(wire.encode(shown(one)) for one in found)


def _event_step(views: Views, wanted: EventFilter, after: int, encode: Encode[T]) -> EventStep[T]:
    last = views.last_event()
    found, after = window(views, wanted, min(after, last), last, (STEP, STEP_BYTES))
    return EventStep(encode(found), after, last)


def pulse(node: Node) -> AsyncGenerator[int | None, None]:
    """Yield the id of the newest event when it changes, at most once a second."""
    return _Followed(node, None).pulse()


# -------------------------------------------------------------------- output


@implements(TASK_OUTPUT)
async def task_output(node: Node, caller: Caller, request: NamedTask) -> TaskOutput:
    view = await node.show(request.task_id, caller.agent)
    newest = await node.views.read(_newest_output, node.views, view.task.seq)
    text = "".join(piece.text for piece in newest)
    return TaskOutput(
        task_id=view.task.id,
        attempt=newest[-1].attempt if newest else view.task.attempts,
        text=text,
        complete=view.task.state in _AT_REST,
        truncated=len(text) >= wire.OUTPUT_CHARACTERS_MAX,
    )


async def follow_output(
    node: Node,
    caller: Caller,
    task_id: str,
    encode: EncodePieces[T],
    *,
    look_seconds: float | None = None,
) -> AsyncGenerator[T | OutputEnd | None, None]:
    """Return the output of all attempts of a task, which ends with an `OutputEnd`.

    Raise `NotFound` if the caller has no such task.
    """
    task_id = await short_ids.whole_id(node, caller, "task", task_id)
    view: TaskView = await node.show(task_id, caller.agent)
    return _Followed(node, look_seconds).output(view.task.seq, encode)


async def each_piece(
    node: Node, caller: Caller, task_id: str, *, look_seconds: float | None = None
) -> AsyncGenerator[JsonObject, None]:
    """Yield the output of a task for a caller in this process, until the task is at rest."""
    stream = await _patiently(
        lambda: follow_output(node, caller, task_id, tuple, look_seconds=look_seconds)
    )
    async with contextlib.aclosing(stream) as steps:
        async for found in steps:
            if isinstance(found, OutputEnd):
                return
            for piece in found or ():
                yield output_shown(piece)


def output_shown(piece: Piece) -> JsonObject:
    return {"attempt": piece.attempt, "text": piece.text}


def _output_step(
    views: Views, seq: int, token: int, part: int, encode: EncodePieces[T]
) -> OutputStep[T]:
    state = views.task_state(seq)  # read first: after the end, no output is added
    found = views.output(seq, token, part, STEP, STEP_BYTES)
    if found:
        token, part = found[-1].fencing_token, found[-1].part
    return OutputStep(encode(found), token, part, found.more, state)


def _newest_output(views: Views, seq: int) -> list[Piece]:
    """Return what the newest attempt has produced, which is bounded."""
    token, part = views.output_token(seq), -1
    pieces: list[Piece] = []
    while True:
        found = views.output(seq, token, part, LIST_LIMIT_MAX)
        pieces += found
        if not found.more:
            return pieces
        part = found[-1].part


# -------------------------------------------------------------------- waiting


async def _patiently(begin: Callable[[], Awaitable[T]]) -> T:
    """Return what `begin` returns, as soon as the store can be read."""
    while True:
        try:
            return await begin()
        except StoreUnavailable as error:
            log.warning("cannot read new rows from the store; retrying: %s", error.message)
        await asyncio.sleep(AWAY_SECONDS)


class _Followed:
    """A node that is followed, and how often to poll it for events it is not notified about."""

    def __init__(self, node: Node, look_seconds: float | None) -> None:
        self._node = node
        self._views = node.views
        self._look_seconds = LOOK_AGAIN_SECONDS if node.store.shared else look_seconds

    async def events(
        self, wanted: EventFilter, after: int, encode: Encode[T]
    ) -> AsyncGenerator[T | None, None]:
        late = True
        with contextlib.suppress(Draining), self._node.follow() as waiter:
            while True:
                # Check before reading, so that slow readers still get the final events.
                drained = self._node.drained
                step = await self._read(_event_step, self._views, wanted, after, encode, late=late)
                if step is None:
                    await self._away()
                    yield None
                else:
                    after, late = step.after, step.after < step.last
                    if step.found:
                        yield step.found
                    if late:
                        continue
                if drained:
                    return
                if not await self._news(waiter, after):
                    yield None

    async def pulse(self) -> AsyncGenerator[int | None, None]:
        newest = -1
        with contextlib.suppress(Draining), self._node.follow() as waiter:
            while True:
                drained = self._node.drained
                last = await self._read(self._views.last_event)
                if last is None:
                    yield None
                elif last != newest:
                    newest = last
                    yield newest
                if drained:
                    return
                await asyncio.sleep(PULSE_SECONDS)
                if not await self._news(waiter, newest):
                    yield None

    async def output(
        self, seq: int, encode: EncodePieces[T]
    ) -> AsyncGenerator[T | OutputEnd | None, None]:
        token, part, late = 0, -1, True
        with contextlib.suppress(Draining), self._node.follow() as waiter:
            while True:
                drained = self._node.drained
                step = await self._read(
                    _output_step, self._views, seq, token, part, encode, late=late
                )
                if step is None:
                    await self._away()
                    yield None
                else:
                    token, part, late = step.token, step.part, step.more
                    if step.found:
                        yield step.found
                    if late:
                        continue
                    if step.state is None or step.state in _AT_REST:
                        yield OutputEnd(step.state)
                        return
                if drained:
                    return
                if not await self._news(waiter):
                    yield None

    async def _read(
        self, view: Callable[..., T], *arguments: object, late: bool = False
    ) -> T | None:
        """Read for a stream. Return None while the store is unavailable."""
        try:
            return await self._views.feed.read(view, *arguments, late=late)
        except StoreUnavailable:
            return None

    async def _away(self) -> None:
        """Pause while the store cannot be read."""
        await asyncio.sleep(0 if self._node.drained else AWAY_SECONDS)

    async def _news(self, waiter: Waiter, after: int | None = None) -> bool:
        """Wait until there may be something new, or an event after `after`.

        Return False when it is time to show that the stream is alive.
        """
        clock = self._node.clock
        end = clock.monotonic() + ALIVE_SECONDS
        while (left := end - clock.monotonic()) > 0:
            woken = await waiter.wait(min(left, self._look_seconds or left))
            if woken or after is None or (await self._read(self._views.last_event) or 0) > after:
                return True
        return False
