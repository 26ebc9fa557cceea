"""Operations as HTTP routes: read the typed request, call the service, send the response."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fairlane.core import validation
from fairlane.core.errors import InvalidRequest
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Handler, Request, Route, Routes
from fairlane.schema import decoding, fields
from fairlane.schema.catalog import OPERATIONS
from fairlane.schema.operation import Operation
from fairlane.services.catalog import service_of
from fairlane.services.registry import UNDO

Values = dict[str, Any]
Reader = Callable[[Request], Awaitable[Any]]


def routes(node: Node) -> Routes:
    """The route of each operation."""
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


def _handler(node: Node, operation: Operation[Any, Any]) -> Handler:
    read = reader(operation)
    serve = service_of(operation)
    undo = UNDO.get(operation.name)

    async def handle(request: Request) -> Answer:
        response = await serve(node, request.caller, await read(request))
        return Answer(operation.status_of(response), response)

    async def hold(request: Request) -> Answer:
        """Do the same while the client may go away: then end the service and undo its work."""
        wanted = await read(request)
        serving = asyncio.ensure_future(serve(node, request.caller, wanted))
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
        take_back = None if undo is None else functools.partial(undo, node, response)
        return Answer(operation.status_of(response), response, undo=take_back)

    return handle if operation.waits is None else hold


async def _ended(serving: asyncio.Future[Any]) -> bool:
    """Cancel a service and wait for its end. Return whether it still has a response."""
    serving.cancel()
    await asyncio.wait((serving,))
    return not serving.cancelled() and serving.exception() is None


def _gone() -> InvalidRequest:
    return InvalidRequest("the connection was closed before there was a response")


def reader(operation: Operation[Any, Any]) -> Reader:
    """Return the function that makes an operation's typed request from an HTTP request.

    Each part is read by a type that has only its own fields, so no caller can set a field of the
    path or of a header in the body.
    """
    path = operation.part("path")
    header = _header_reader(operation)
    query = _query_reader(operation)
    body = _body_reader(operation)
    raw_body = operation.raw_body
    needs_query = _is_required(operation.part("query"))

    async def read(request: Request) -> Any:
        values: Values = {}
        if operation.parameters:
            named = {name: request.path[name] for name in operation.parameters}
            values = _values(validation.convert_path(named, path))
        if header is not None:
            header(request, values)
        if request.query_string or needs_query:
            values |= query(request)
        if body is not None:
            raw = await request.body(operation.body_bytes_max)
            values |= body(raw)
            if raw_body is not None:
                values[raw_body] = raw
        return operation.request(**values)

    return read


def _header_reader(operation: Operation[Any, Any]) -> Callable[[Request, Values], None] | None:
    """Return the function that adds the fields of headers to the others."""
    part = operation.part("header")
    if not operation.headers:
        return None
    names = {one.encode_name: operation.headers[one.name] for one in msgspec.structs.fields(part)}
    wanted = [(name, header.lower().encode()) for name, header in names.items()]
    is_required = _is_required(part)

    def read(request: Request, values: Values) -> None:
        given: Values = {}
        for name, header in wanted:
            text = request.header(header)
            if text is not None:
                given[name] = text
        if given or is_required:
            values |= _values(validation.convert_headers(given, part, names))

    return read


def _query_reader(operation: Operation[Any, Any]) -> Callable[[Request], Values]:
    part = operation.part("query")
    known = part.__struct_encode_fields__
    if operation.open and not known:  # a probe may add what it likes to its URL
        return lambda _: {}
    fields = msgspec.structs.fields(part)
    moments = {one.encode_name for one in fields if validation.is_moment(one.type)}
    lists = [one.encode_name for one in fields if validation.is_list(one.type)]

    def read(request: Request) -> Values:
        """An empty parameter is as good as none, unless it is a moment: none would mean now.

        A list is written with commas.
        """
        found = request.query(*known)
        given: Values = {name: text for name, text in found.items() if text or name in moments}
        for name in lists:
            if name in given:
                given[name] = [word.strip() for word in given[name].split(",") if word.strip()]
        return _values(validation.convert_query(given, part))

    return read


def _body_reader(operation: Operation[Any, Any]) -> Callable[[bytes], Values] | None:
    document, kind = operation.document, operation.document_type
    items_max = operation.items_max
    if document is not None and kind is not None:
        return lambda raw: {document: decoding.decode(raw, kind, items_max=items_max)}
    if document is not None:
        return lambda raw: {document: fields.parse_object(raw, items_max=items_max)}
    part = operation.part("body")
    if not part.__struct_fields__ and not operation.empty_body:
        return None
    needed = operation.needs_body
    nulls = operation.nulls

    def read(raw: bytes) -> Values:
        text = raw if needed or raw.strip() else b"{}"
        values = _values(decoding.decode(text, part, items_max=items_max))
        return values if nulls is None else {**values, nulls: _null_fields(text, part)}

    return read


def _null_fields(raw: bytes, part: type[msgspec.Struct]) -> list[str]:
    given = msgspec.json.decode(raw)
    fields = msgspec.structs.fields(part)
    return [one.name for one in fields if given.get(one.encode_name, ...) is None]


def _is_required(part: type[msgspec.Struct]) -> bool:
    return any(one.required for one in msgspec.structs.fields(part))


def _values(value: msgspec.Struct) -> Values:
    return {name: getattr(value, name) for name in value.__struct_fields__}
