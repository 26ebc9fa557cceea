"""`GET /openapi.json`: the routes as OpenAPI 3.1, made from the table of routes.

What is sent comes from the very types that read it, and who may ask from the table. Only what no
type says is written here: which type a route reads, which query it takes, and bounds of fields.
The tests ask every route whether that is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.submissions import INSTRUCTION_CHARACTERS_MAX
from fairlane.core.types import URL_CHARACTERS_MAX
from fairlane.http import auth
from fairlane.http.messages import STATUS, Route, Routes
from fairlane.schema import fields, json_limits, openapi, wire
from fairlane.version import __version__

Schema = dict[str, Any]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)}")
_PAGE: Final = ("limit", "cursor")
_ONCE: Final = ("Idempotency-Key",)


class Operation(msgspec.Struct, frozen=True):
    """What the table does not say about a route. A body may be left out unless it is `needed`."""

    status: int = 200
    body: Any = None
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    needed: bool = True
    content: tuple[str, ...] = (JSON,)
    also: tuple[int, ...] = ()


_OBJECT: Final[Schema] = {"type": "object"}

_FILE: Final = Operation(content=("text/html", "text/css", "text/javascript"), also=(304,))

OPERATIONS: Final[Mapping[str, Operation]] = {
    "GET /": Operation(content=(JSON, "text/html")),
    "GET /tasks/{id}/output": Operation(query=("follow",), content=(JSON, EVENTS)),
    "GET /events/pulse": Operation(content=(EVENTS,)),
    "POST /login": Operation(body=auth.LoginBody),
    "GET /metrics": Operation(content=("text/plain",)),
    "GET /ui/{file}": _FILE,
    "GET /ui/pages/{file}": _FILE,
}

# Where an answer names something that other routes take as their `{id}`.
_MADE: Final[Mapping[str, tuple[str, str]]] = {
    "POST /tasks": ("/taskId", "/tasks/{id}"),
    "POST /tasks/batch": ("/batchId", "/batches/{id}"),
    "POST /leases": ("/leases/0/leaseId", "/leases/{id}"),
    "POST /queue": ("/id", "/queue/{id}"),
    "POST /templates": ("/id", "/templates/{id}"),
    "POST /cron/jobs": ("/id", "/cron/jobs/{id}"),
    "POST /webhooks": ("/id", "/webhooks/{id}"),
}


def _text(pattern: re.Pattern[str] | None = None, **more: Any) -> Schema:
    shape: Schema = {"type": "string", **more}
    return shape if pattern is None else {**shape, "pattern": f"^{pattern.pattern}$"}


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _one_of(words: Any) -> Schema:
    return {"type": "string", "enum": list(words)}


_MOMENT: Final = _text(format="date-time")
_URL: Final = _text(maxLength=URL_CHARACTERS_MAX)

# Bounds of fields, by name: a name means the same in every body.
FIELDS: Final[Mapping[str, Schema]] = {
    **dict.fromkeys(("agentId", "sessionKey", "worker", "id", "key"), _text(fields.IDENTIFIER)),
    **dict.fromkeys(("lane", "handler", "action"), _text(fields.WORD)),
    **dict.fromkeys(("deadline", "runAt", "sentAt", "startAt", "endAt", "anchor", "at"), _MOMENT),
    **dict.fromkeys(("callbackUrl", "webhookUrl", "alertUrl"), _URL),
    "instruction": _text(maxLength=INSTRUCTION_CHARACTERS_MAX),
    "timeoutMs": _whole(1, fields.DAY_MS),
    "timeout": _whole(1, fields.DAY_MS),
    "maxRetries": _whole(0, 1000),
    "backoffMs": _whole(0, fields.DAY_MS),
    "maxBackoffMs": _whole(0, fields.DAY_MS),
}

# Parameters of queries and headers, by name.
PARAMETERS: Final[Mapping[str, Schema]] = {
    "limit": _whole(1, wire.LIST_LIMIT_MAX),
    "cursor": _text(maxLength=200),
    "state": _text(examples=[",".join(lifecycle.STATES[:2])]),
    **dict.fromkeys(("follow", "brief"), _one_of(("1", "true", "0", "false"))),
    "Idempotency-Key": _text(re.compile(r"[\x21-\x7e]{1,255}")),
}
_STATUSES: Final[Mapping[str, Any]] = {}


def document(routes: Routes) -> Schema:
    found = {
        f"{method} {path}": (path, method, route)
        for path, methods in routes.items()
        for method, route in methods.items()
        if route.operation is None
    }
    declared = openapi.describe(
        (
            route.operation
            for methods in routes.values()
            for route in methods.values()
            if route.operation is not None
        ),
        STATUS,
    )
    kinds = list(dict.fromkeys(one.body for one in OPERATIONS.values() if _is_type(one.body)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    references = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for name, (path, method, route) in found.items():
        described = _operation(name, path, route, references)
        paths.setdefault(path, {})[method.lower()] = described
    for path, ways in declared["paths"].items():
        paths.setdefault(path, {}).update(ways)
    streamed = paths["/events"]["get"]["responses"]["200"]
    streamed["content"][EVENTS] = {"schema": {"type": "string"}}
    for name in _MADE:
        method, path = name.split()
        responses = paths[path][method.lower()]["responses"]
        first = next(status for status in responses if status.startswith("2"))
        responses[first]["links"] = _links(name, routes)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlane", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**_bounded(components), **declared["schemas"], "Error": _error()},
            "responses": _refusals(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_type(body: Any) -> bool:
    return isinstance(body, type)


def _operation(name: str, path: str, route: Route, references: Mapping[type, Schema]) -> Schema:
    told = OPERATIONS.get(name, Operation())
    described: Schema = {
        "operationId": _operation_id(name),
        "tags": [path.strip("/").partition("/")[0] or "about"],
        "summary": getattr(route.handler, "__name__", name).strip("_").replace("_", " "),
        "parameters": [*_path_parameters(path), *_parameters(path, told)],
        "security": [] if route.open else [{"token": [route.scope] if route.scope else []}],
        "responses": _responses(name, told),
    }
    if told.body is not None:
        content = {JSON: {"schema": references.get(told.body, _OBJECT)}}
        described["requestBody"] = {"required": told.needed, "content": content}
    return described


def _operation_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower()


def _path_parameters(path: str) -> Iterator[Schema]:
    for name in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": _text(minLength=1)}


def _parameters(path: str, told: Operation) -> Iterator[Schema]:
    for name in told.query:
        schema = PARAMETERS.get(name, _text())
        if name == "status":
            schema = _one_of(_STATUSES[next(p for p in _STATUSES if path.startswith(p))])
        yield {"name": name, "in": "query", "schema": schema}
    for name in told.headers:
        yield {"name": name, "in": "header", "schema": PARAMETERS.get(name, _text())}


def _responses(name: str, told: Operation) -> Schema:
    content = {
        kind: {"schema": _OBJECT if kind == JSON else {"type": "string"}} for kind in told.content
    }
    good = {
        str(status): {"description": "as asked for", "content": content}
        for status in (told.status, *told.also)
    }
    return {**good, **{str(status): _refusal(status) for status in _codes(name)}}


def _codes(name: str) -> list[int]:
    """The errors that a route may answer with: fewer when it has no body."""
    return sorted(set(STATUS.values()) - ({413, 415} if name.startswith("GET ") else set()))


def _refusal(status: int) -> Schema:
    return {"$ref": f"#/components/responses/{status}"}


def _refusals() -> Schema:
    """For each status the codes that come with it."""
    found: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        found.setdefault(status, []).append(code)
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        str(status): {
            "description": ", ".join(codes),
            "content": {JSON: {"schema": schema}},
        }
        for status, codes in sorted(found.items())
    }


def _error() -> Schema:
    return {
        "type": "object",
        "description": "Codes are stable, texts may improve.",
        "required": ["code", "error"],
        "properties": {
            "code": _one_of(STATUS),
            "error": {"type": "string"},
            "retryable": {"type": "boolean"},
            "details": _OBJECT,
        },
    }


def _bounded(components: Mapping[str, Any]) -> Schema:
    """The types with the bounds that only their checks know, and names for what is read later."""
    shapes: Schema = msgspec.json.decode(msgspec.json.encode(components))
    for shape in shapes.values():
        for field, schema in shape.get("properties", {}).items():
            _bind(schema, FIELDS.get(field, {}))
    return {name: _with_limits(shape) for name, shape in sorted(shapes.items())}


def _bind(schema: Schema, bounds: Schema) -> None:
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") == bounds.get("type"):
            choice.update(bounds)


def _with_limits(shape: Schema) -> Schema:
    return (
        {**shape, "maxProperties": json_limits.KEYS_MAX} if shape.get("type") == "object" else shape
    )


def _links(name: str, routes: Routes) -> Schema:
    """Return the operations that take what a response names as their `{id}`."""
    pointer, prefix = _MADE[name]
    ids = [
        _operation_id(f"{method} {path}") if route.operation is None else route.operation.name
        for path, methods in routes.items()
        if path.startswith(prefix)
        for method, route in methods.items()
    ]
    return {
        id_: {"operationId": id_, "parameters": {"id": f"$response.body#{pointer}"}} for id_ in ids
    }
