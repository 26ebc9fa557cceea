"""Operations as HTTP routes: read the typed request, call the service, send the response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fairlane.core import validation
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Handler, Request, Route, Routes
from fairlane.schema import decoding, fields
from fairlane.schema.catalog import OPERATIONS
from fairlane.schema.operation import Operation
from fairlane.services.catalog import answer

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
        found.setdefault(operation.path, {})[operation.method] = route
    return found


def _handler(node: Node, operation: Operation[Any, Any]) -> Handler:
    read = reader(operation)

    async def handle(request: Request) -> Answer:
        response = await answer(node, request.caller, operation, await read(request))
        return Answer(operation.status_of(response), response)

    return handle


def reader(operation: Operation[Any, Any]) -> Reader:
    """Return the function that makes an operation's typed request from an HTTP request.

    Each part is read by a type that has only its own fields, so no caller can set a field of the
    path or of a header in the body.
    """
    names = {one.name: one.encode_name for one in msgspec.structs.fields(operation.request)}
    in_path = [name for name, place in operation.places.items() if place == "path"]
    header = _header_reader(operation)
    query = _query_reader(operation)
    body = _body_reader(operation)

    async def read(request: Request) -> Any:
        values: Values = {name: request.path[names[name]] for name in in_path}
        if header is not None:
            values |= header(request)
        values |= query(request)
        if body is not None:
            values |= body(await request.body(operation.body_bytes_max))
        return operation.request(**values)

    return read


def _header_reader(operation: Operation[Any, Any]) -> Callable[[Request], Values] | None:
    part = operation.part("header")
    if not operation.headers:
        return None
    names = {one.encode_name: operation.headers[one.name] for one in msgspec.structs.fields(part)}
    wanted = [(name, header.lower().encode()) for name, header in names.items()]

    def read(request: Request) -> Values:
        found = {name: request.header(header) for name, header in wanted}
        given = {name: text for name, text in found.items() if text}
        return _values(validation.convert_headers(given, part, names))

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
    document, items_max = operation.document, operation.items_max
    if document is not None:
        return lambda raw: {document: fields.parse_object(raw, items_max=items_max)}
    part = operation.part("body")
    if not part.__struct_fields__ and not operation.empty_body:
        return None
    needed = any(one.required for one in msgspec.structs.fields(part))
    return lambda raw: _values(
        decoding.decode(raw if needed or raw.strip() else b"{}", part, items_max=items_max)
    )


def _values(value: msgspec.Struct) -> Values:
    return {name: getattr(value, name) for name in value.__struct_fields__}
