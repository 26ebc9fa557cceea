"""Serve operations as HTTP routes: read the typed request, call the service, send the response."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fairlane.core.access import Caller, Scope
from fairlane.core.errors import InvalidRequest
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Handler, HttpRequest, Route, Routes
from fairlane.schema.catalog import OPERATIONS
from fairlane.schema.operation import AnyOperation
from fairlane.schema.reading import Values
from fairlane.services.catalog import service_of
from fairlane.services.registry import SENT, UNDO

Reader = Callable[[HttpRequest], Awaitable[Any]]


def routes(node: Node) -> Routes:
    """Return the routes of all operations."""
    found: Routes = {}
    for operation in OPERATIONS.values():
        handler = _handler(node, operation)
        route = Route(
            handler,
            operation.scope,
            agents=operation.agents,
            open=operation.open,
            waits=operation.waits is not None,
            operation=operation,
        )
        for method in (operation.method, *operation.also):
            found.setdefault(operation.path, {})[method] = route
    return found


def _handler(node: Node, operation: AnyOperation) -> Handler:
    typed, most = _typed(operation), operation.body_bytes_max
    takes_body = operation.reading.body is not None
    serve = service_of(operation)
    undo, sent = UNDO.get(operation.name), SENT.get(operation.name)
    of_workers = operation.scope is Scope.LEASE

    def caller_of(request: HttpRequest) -> Caller:
        """Return the caller; that of a worker with its address, which `GET /workers` shows."""
        if not of_workers:
            return request.caller
        return msgspec.structs.replace(request.caller, address=request.address)

    async def handle(request: HttpRequest) -> Answer:
        raw = request.whole_body(most) if takes_body else b""
        if raw is None:
            raw = await request.body(most)
        response = await serve(node, caller_of(request), typed(request, raw))
        return Answer(operation.status_of(response), response)

    async def hold(request: HttpRequest) -> Answer:
        """Do the same, but stop the service and undo its work if the client disconnects."""
        wanted = typed(request, await request.body(most) if takes_body else b"")
        serving = asyncio.ensure_future(serve(node, caller_of(request), wanted))
        closed = asyncio.ensure_future(request.closed())
        answered = False
        try:
            await asyncio.wait((serving, closed), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                raise _gone()
            response, answered = await serving, True
        finally:
            closed.cancel()
            if not answered and await _ended(serving) and undo is not None:
                undo(node, serving.result())
        return Answer(
            operation.status_of(response),
            response,
            undo=None if undo is None else functools.partial(undo, node, response),
            sent=None if sent is None else functools.partial(sent, node, response),
        )

    return handle if operation.waits is None else hold


async def _ended(serving: asyncio.Future[object]) -> bool:
    """Cancel a service and wait for its end. Return whether it has a response anyway."""
    serving.cancel()
    await asyncio.wait((serving,))
    return not serving.cancelled() and serving.exception() is None


def _gone() -> InvalidRequest:
    return InvalidRequest("the connection was closed before a response was ready")


def reader(operation: AnyOperation) -> Reader:
    """Return the function that makes an operation's typed request from an HTTP request."""
    typed, takes_body = _typed(operation), operation.reading.body is not None

    async def read(request: HttpRequest) -> Any:
        raw = await request.body(operation.body_bytes_max) if takes_body else b""
        return typed(request, raw)

    return read


def _typed(operation: AnyOperation) -> Callable[[HttpRequest, bytes], Any]:
    """Return the function that does the same with the body, which it gets."""
    reading = operation.reading
    parameters, raw_body, body = operation.parameters, operation.raw_body, reading.body
    headers = [(name, header.lower().encode()) for name, header in reading.headers.items()]
    # A probe may add what it likes to its URL.
    ignores_query = operation.open and not reading.parameters
    make = operation.request

    def typed(request: HttpRequest, raw: bytes) -> Any:
        values: Values = {}
        if parameters:
            values = reading.path({name: request.path[name] for name in parameters})
        if headers:
            given: dict[str, str] = {}
            for name, header in headers:
                text = request.header(header)
                if text is not None:
                    given[name] = text
            values |= reading.header(given)
        if reading.needs_query or (request.query_string and not ignores_query):
            values |= reading.query(request.query(*reading.parameters))
        if body is not None:
            values |= body(raw)
            if raw_body is not None:
                values[raw_body] = raw
        return make(**values)

    return typed
