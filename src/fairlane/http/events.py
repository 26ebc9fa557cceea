"""Routes of events and output: what has happened, and what happens now, as server-sent events.

A stream reads the log in order of its numbers and never skips one, so a client that comes back
with the number of the last event it saw misses nothing and sees nothing twice. Streams wait for
the node's bell; on a shared store they also look by themselves now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fairlane import wire
from fairlane.core import events, lifecycle
from fairlane.core.access import Scope
from fairlane.core.errors import Draining, InvalidRequest
from fairlane.core.policy import nearest
from fairlane.engine.node import LOOK_AGAIN_SECONDS, Node, Waiter
from fairlane.engine.views import EventFilter, EventView, Piece
from fairlane.http.answers import Answer, Request, Route, Routes, Stream, page_limit, whole_number

HEARTBEAT_SECONDS: Final = 15.0
# How many numbers one look covers: a filter that fits nothing must not make a look long.
WINDOW: Final = 5000
PAGE: Final = 500
PULSE_SECONDS: Final = 1.0  # between two of them, however much happens
_HELLO: Final = b"retry: 1000\n: more follows\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_FILTERS: Final = {"taskId": "task", "batchId": "batch", "agentId": "agent", "lane": "lane"}
_NUMBER_MAX: Final = 2**62


class Events:
    def __init__(self, node: Node, look_seconds: float | None = None) -> None:
        """`look_seconds` is how often to look for what nobody tells this node; None for never."""
        self._node = node
        self._look_seconds = LOOK_AGAIN_SECONDS if node.store.shared else look_seconds

    def routes(self) -> Routes:
        return {
            "/events": {"GET": Route(self.read, Scope.READ)},
            "/events/pulse": {"GET": Route(self.pulse, Scope.READ)},
            "/tasks/{id}/events": {"GET": Route(self.of_task, Scope.READ)},
            "/tasks/{id}/output": {"GET": Route(self.output, Scope.READ)},
        }

    async def read(self, request: Request) -> Answer | Stream:
        query = request.query(*_FILTERS, "type", "after", "limit")
        request.caller.agent_for(query.get("agentId"))
        wanted = EventFilter(
            types=_types(query.get("type", "")),
            owner=request.caller.agent,
            **{name: query[key] for key, name in _FILTERS.items() if query.get(key)},
        )
        after = _after(request, query)
        if request.wants_json():
            return await self._page(wanted, after or 0, query)
        if after is None:
            after = await self._node.views.read(self._node.views.last_event)
        return Stream(_until_stopped(self._follow(wanted, after)))

    async def pulse(self, request: Request) -> Stream:
        """That something has happened, seldom enough to be cheap however much happens."""
        request.query()
        return Stream(_until_stopped(self._beat()))

    async def of_task(self, request: Request) -> Answer:
        request.query()
        view = await self._node.show(request.path["id"], request.caller.agent)
        views = self._node.views
        last = await views.read(views.last_event)
        found = await views.read(
            views.events, EventFilter(task=view.task.id), 0, last, wire.LIST_LIMIT_MAX
        )
        return Answer(200, {"events": [_shape(one) for one in found], "count": len(found)})

    async def output(self, request: Request) -> Answer | Stream:
        query = request.query("follow")
        view = await self._node.show(request.path["id"], request.caller.agent)
        if request.wants_events() or query.get("follow") in ("1", "true"):
            return Stream(_until_stopped(self._follow_output(view.task.id, view.task.seq)))
        pieces = [piece async for piece in self._pieces(view.task.seq)]
        newest = [piece for piece in pieces if piece.token == pieces[-1].token]
        text = "".join(piece.text for piece in newest)
        shape = {
            "taskId": view.task.id,
            "attempt": newest[-1].attempt if newest else view.task.attempts,
            "text": text,
            "complete": view.task.terminal or view.task.state == lifecycle.PARKED,
            "truncated": len(text) >= wire.OUTPUT_CHARACTERS_MAX,
        }
        return Answer(200, shape)

    async def _page(self, wanted: EventFilter, after: int, query: dict[str, str]) -> Answer:
        limit = page_limit(query)
        found: list[EventView] = []
        last = await self._node.views.read(self._node.views.last_event)
        while after < last and len(found) < limit:
            page, after = await self._look(wanted, after, last, limit - len(found))
            found += page
        return Answer(200, {"events": [_shape(one) for one in found], "nextAfter": after})

    async def _look(
        self, wanted: EventFilter, after: int, last: int, limit: int
    ) -> tuple[list[EventView], int]:
        """What fits in the next window, and where to go on."""
        until = min(after + WINDOW, last)
        views = self._node.views
        found = await views.read(views.events, wanted, after, until, limit)
        return found, found[-1].event.id if len(found) == limit else until

    async def _follow(self, wanted: EventFilter, after: int) -> AsyncIterator[bytes]:
        views = self._node.views
        after = min(after, await views.read(views.last_event))
        with self._node.follow() as waiter:
            # An id without data: who is cut off before the first event comes back to this place.
            yield b"id: %d\n" % after + _HELLO
            while True:
                # Asked first: who reads slowly still gets what came before the end.
                drained = self._node.drained
                last = await views.read(views.last_event)
                while after < last:
                    found, after = await self._look(wanted, after, last, PAGE)
                    if found:
                        yield b"".join(_sse(one) for one in found)
                if drained:
                    return
                async for beat in self._wait(waiter, self._news(views.last_event, after)):
                    yield beat

    async def _beat(self) -> AsyncIterator[bytes]:
        views = self._node.views
        told = -1
        with self._node.follow() as waiter:
            yield _HELLO
            while True:
                drained = self._node.drained
                last = await views.read(views.last_event)
                if last != told:
                    told = last
                    yield wire.sse("pulse", {"id": last})
                if drained:
                    return
                await asyncio.sleep(PULSE_SECONDS)
                async for beat in self._wait(waiter, self._news(views.last_event, told)):
                    yield beat

    async def _follow_output(self, task_id: str, seq: int) -> AsyncIterator[bytes]:
        token, part = 0, -1
        views = self._node.views
        with self._node.follow() as waiter:
            yield _HELLO
            while True:
                # These first: what is there after the end is all there is.
                drained = self._node.drained
                view = await views.read(views.task, task_id)
                async for piece in self._pieces(seq, token, part):
                    token, part = piece.token, piece.part
                    data = {"attempt": piece.attempt, "text": piece.text}
                    yield wire.sse("output", data)
                if view is None or view.task.terminal or view.task.state == lifecycle.PARKED:
                    state = None if view is None else view.task.state
                    yield wire.sse("end", {"state": state})
                    return
                if drained:
                    return
                async for beat in self._wait(waiter, lambda: True):
                    yield beat

    async def _pieces(self, seq: int, token: int = 0, part: int = -1) -> AsyncIterator[Piece]:
        views = self._node.views
        while True:
            page = await views.read(views.output, seq, token, part, PAGE)
            for piece in page:
                yield piece
            if len(page) < PAGE:
                return
            token, part = page[-1].token, page[-1].part

    def _news(self, last: Callable[[], int], after: int) -> Callable[[], bool]:
        return lambda: last() > after

    async def _wait(self, waiter: Waiter, news: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Wait until there may be something new; a heartbeat shows meanwhile that we live."""
        clock = self._node.clock
        beat_at = clock.monotonic() + HEARTBEAT_SECONDS
        while True:
            left = beat_at - clock.monotonic()
            if left <= 0:
                yield _HEARTBEAT
                return
            told = await waiter.wait(min(left, self._look_seconds or left))
            if told or await self._node.views.read(news):
                return


async def _until_stopped(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream ends with its node, also when that stops while the stream looks for more."""
    with contextlib.suppress(Draining):
        async for piece in pieces:
            yield piece


def _types(text: str) -> list[str] | None:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in events.TYPES:
            hint = nearest(word, events.TYPES)
            known = f"; known are {', '.join(events.TYPES)}"
            raise InvalidRequest(f"'{word[:40]}' is not a type of event{hint or known}")
    return words or None


def _after(request: Request, query: dict[str, str]) -> int | None:
    """Where to go on: what a browser sends when it comes back is newer than the address it has."""
    header = request.header(b"last-event-id")
    if not header:
        return whole_number(query, "after", None, low=0, high=_NUMBER_MAX)
    if not (header.isascii() and header.isdigit() and len(header) < 20):
        raise InvalidRequest("the header Last-Event-ID must be the id of an event")
    return int(header)


def _shape(view: EventView) -> dict[str, Any]:
    return wire.event(
        view.event,
        task_id=view.task_id,
        agent=view.agent,
        lane=view.lane,
        batch=view.batch,
        result=view.result,
    )


def _sse(view: EventView) -> bytes:
    return wire.sse(view.event.type, _shape(view), view.event.id)
