"""`POST /tasks/stream`: tasks as NDJSON, answered line by line while they arrive.

A caller that sends JSON submits one piece of a stream and gets one JSON response.
"""

from __future__ import annotations

from fairlane.core.access import Scope
from fairlane.engine.node import Node
from fairlane.http.cross_site import is_ndjson
from fairlane.http.messages import NDJSON, Answer, HttpRequest, Route, Routes, Stream
from fairlane.http.operations import reader
from fairlane.schema.task_streams import STREAM_PATH, SUBMIT_LINES
from fairlane.services import task_streams
from fairlane.services.catalog import service_of


class TaskStreams:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._read = reader(SUBMIT_LINES)

    def routes(self) -> Routes:
        return {STREAM_PATH: {"POST": Route(self.submit, Scope.SUBMIT, operation=SUBMIT_LINES)}}

    async def submit(self, request: HttpRequest) -> Answer | Stream:
        """Submit the lines of a stream, or one piece of it."""
        if not is_ndjson(request.headers):
            response = await service_of(SUBMIT_LINES)(
                self._node, request.caller, await self._read(request)
            )
            return Answer(SUBMIT_LINES.status, response)
        reading = SUBMIT_LINES.reading
        key = request.header(b"idempotency-key")
        values = reading.query(request.query(*reading.parameters))
        values |= reading.header({} if key is None else {"idempotencyKey": key})
        pieces = task_streams.stream(
            self._node,
            request.caller,
            request.pieces(),
            key=values.get("idempotency_key"),
            first_line=values["first_line"],
        )
        return Stream(pieces, kind=NDJSON, reads=True)
