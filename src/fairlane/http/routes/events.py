"""Events and output as server-sent events; `services/following.py` provides the data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from fairlane.core.access import Scope
from fairlane.engine.node import Node
from fairlane.engine.reads.views import EventView, Piece
from fairlane.http.messages import Answer, HttpRequest, Route, Routes, Stream
from fairlane.http.operations import reader
from fairlane.schema import wire
from fairlane.schema.events import LIST_EVENTS
from fairlane.schema.tasks import TASK_OUTPUT, NamedTask
from fairlane.services import following
from fairlane.services.catalog import service_of
from fairlane.services.events import shown
from fairlane.services.following import EventStream, OutputEnd

_HELLO: Final = b"retry: 1000\n: more follows\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_read: Final = reader(LIST_EVENTS)


class Events:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/events": {"GET": Route(self.read, Scope.READ, operation=LIST_EVENTS)},
            "/events/pulse": {"GET": Route(self.pulse, Scope.READ)},
            "/tasks/{id}/output": {"GET": Route(self.output, Scope.READ, operation=TASK_OUTPUT)},
        }

    async def read(self, request: HttpRequest) -> Answer | Stream:
        """Stream events, or list them to a caller that accepts JSON only."""
        typed = await _read(request)
        if request.wants_json():
            page = await service_of(LIST_EVENTS)(self._node, request.caller, typed)
            return Answer(LIST_EVENTS.status, page)
        stream = await following.follow_events(self._node, request.caller, typed, _events)
        return Stream(_event_pieces(stream))

    async def pulse(self, request: HttpRequest) -> Stream:
        """Stream the id of the newest event when it changes, at most once a second."""
        request.query()
        return Stream(_pulse_pieces(following.pulse(self._node)))

    async def output(self, request: HttpRequest) -> Answer | Stream:
        """Stream the output of all attempts, or show that of the newest one."""
        query = request.query("follow")
        caller, task_id = request.caller, request.path["id"]
        if request.wants_events() or query.get("follow") in ("1", "true"):
            steps = await following.follow_output(self._node, caller, task_id, _output)
            return Stream(_output_pieces(steps))
        shape = await service_of(TASK_OUTPUT)(self._node, caller, NamedTask(task_id))
        return Answer(TASK_OUTPUT.status, shape)


def _events(found: Sequence[EventView]) -> bytes:
    return b"".join(wire.sse(one.event.type, shown(one), one.event.id) for one in found)


def _output(found: Sequence[Piece]) -> bytes:
    return b"".join(wire.sse("output", following.output_shown(one)) for one in found)


async def _event_pieces(stream: EventStream[bytes]) -> AsyncIterator[bytes]:
    # An id without data: a client that is cut off before the first event resumes from here.
    yield b"id: %d\n" % stream.after + _HELLO
    async for found in stream.steps:
        yield found or _HEARTBEAT


async def _pulse_pieces(steps: AsyncIterator[int | None]) -> AsyncIterator[bytes]:
    yield _HELLO
    async for newest in steps:
        yield _HEARTBEAT if newest is None else wire.sse("pulse", {"id": newest})


async def _output_pieces(
    steps: AsyncIterator[bytes | OutputEnd | None],
) -> AsyncIterator[bytes]:
    yield _HELLO
    async for found in steps:
        if isinstance(found, OutputEnd):
            yield wire.sse("end", {"state": found.state})
        else:
            yield found or _HEARTBEAT
