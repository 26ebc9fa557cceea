"""`GET /openapi.json`: the operations as OpenAPI 3.1, and the few routes that have no operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane.http import auth
from fairlane.http.messages import NDJSON, STATUS, Route, Routes
from fairlane.schema import openapi
from fairlane.schema.openapi import JSON, Schema
from fairlane.schema.task_streams import STREAM_PATH
from fairlane.version import __version__

EVENTS: Final = "text/event-stream"
_FILE: Final = ("text/html", "text/css", "text/javascript")
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_OBJECT: Final[Schema] = {"type": "object", "additionalProperties": True}

# The content type of each route that is not an operation; JSON if it is not listed.
CONTENT: Final[Mapping[str, tuple[str, ...]]] = {
    "GET /": (JSON, "text/html"),
    "GET /docs": ("text/html",),
    "GET /approve/{link}": ("text/html",),
    "POST /approve/{link}": ("text/html",),
    "GET /events/pulse": (EVENTS,),
    "GET /metrics": ("text/plain",),
    "POST /workers/{name}/presence": (EVENTS,),
    "GET /ui/{file}": _FILE,
    "GET /ui/pages/{file}": _FILE,
}
# Routes that take the form of a page instead of JSON.
FORMS: Final = frozenset({"POST /approve/{link}"})
_FORM: Final = "application/x-www-form-urlencoded"
BODIES: Final[Mapping[str, type[msgspec.Struct]]] = {"POST /login": auth.LoginBody}

# Operations that can stream, and the query that requests it.
STREAMS: Final[Mapping[str, tuple[Schema, ...]]] = {
    "/events": (),
    "/tasks/{id}/output": (
        {
            "name": "follow",
            "in": "query",
            "required": False,
            "description": "Stream the output of all attempts",
            "schema": {"type": "string", "enum": ["1", "true", "0", "false"]},
        },
    ),
}

# Operations that can respond with CSV, and the query that requests it.
_CSV: Final = "/resources/{name}/usage"
_FORMAT: Final[Schema] = {
    "name": "format",
    "in": "query",
    "required": False,
    "description": "Respond with JSON or with comma-separated values",
    "schema": {"type": "string", "enum": ["json", "csv"]},
}

# Where a response names something that other routes take as their `{id}`.
_MADE: Final[Mapping[str, tuple[str, str]]] = {
    "POST /tasks": ("/taskId", "/tasks/{id}"),
    "POST /tasks/batch": ("/batchId", "/batches/{id}"),
    "POST /leases": ("/leases/0/leaseId", "/leases/{id}"),
    "POST /queue": ("/id", "/queue/{id}"),
    "POST /templates": ("/id", "/templates/{id}"),
    "POST /cron/jobs": ("/id", "/cron/jobs/{id}"),
    "POST /webhooks": ("/id", "/webhooks/{id}"),
}


def document(routes: Routes) -> Schema:
    """Describe all routes."""
    listed = [(path, *way) for path, methods in routes.items() for way in methods.items()]
    operations = (route.operation for _, _, route in listed if route.operation is not None)
    described = openapi.describe(operations, STATUS, tuple(BODIES.values()))
    paths: Schema = {}
    for path, method, route in listed:
        ways = paths.setdefault(path, {})
        if route.operation is None:
            ways[method.lower()] = _plain_route(f"{method} {path}", path, route)
        else:
            ways[method.lower()] = described["paths"][path][method.lower()]
    for path, parameters in STREAMS.items():
        paths[path]["get"]["parameters"] += parameters
        paths[path]["get"]["responses"]["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
    lines = {NDJSON: {"schema": {"type": "string"}}}
    streamed = paths[STREAM_PATH]["post"]
    streamed["requestBody"]["content"] |= lines
    described_200 = {"description": "The outcomes of the lines of a stream", "content": lines}
    streamed["responses"]["200"] = described_200
    paths[_CSV]["get"]["parameters"].append(_FORMAT)
    paths[_CSV]["get"]["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
    for name in _MADE:
        method, path = name.split()
        responses = paths[path][method.lower()]["responses"]
        first = next(status for status in responses if status.startswith("2"))
        responses[first]["links"] = _links(name, paths)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlane", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**described["schemas"], "Error": openapi.error(STATUS)},
            "responses": openapi.refusals(STATUS),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _plain_route(name: str, path: str, route: Route) -> Schema:
    """Describe a route that is not an operation."""
    kinds = CONTENT.get(name, (JSON,))
    content = {kind: {"schema": _OBJECT if kind == JSON else {"type": "string"}} for kind in kinds}
    statuses = ("200", "304") if kinds is _FILE else ("200",)
    summary = getattr(route.handler, "__name__", name).strip("_").replace("_", " ")
    described: Schema = {
        "operationId": re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower(),
        "tags": [path.strip("/").partition("/")[0] or "about"],
        "summary": summary,
        "parameters": [
            {"name": name_, "in": "path", "required": True, "schema": _NAME}
            for name_ in re.findall(r"{(\w+)}", path)
        ],
        "security": [] if route.open else [{"token": [route.scope] if route.scope else []}],
        "responses": {
            **{status: {"description": summary, "content": content} for status in statuses},
            **openapi.errors(STATUS, has_body=not name.startswith("GET ")),
        },
    }
    if name in FORMS:
        described["requestBody"] = {"required": False, "content": {_FORM: {"schema": _OBJECT}}}
    if name in BODIES:
        schema = {"$ref": f"#/components/schemas/{BODIES[name].__name__}"}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return described


def _links(name: str, paths: Schema) -> Schema:
    """Return the operations that take an id of a response as their `{id}`."""
    pointer, prefix = _MADE[name]
    ids = [
        way["operationId"]
        for path, ways in paths.items()
        if path.startswith(prefix)
        for way in ways.values()
    ]
    return {
        id_: {"operationId": id_, "parameters": {"id": f"$response.body#{pointer}"}} for id_ in ids
    }
