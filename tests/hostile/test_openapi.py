"""`/openapi.json` tells the truth: every route, every query, every field and every bound of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from fairlane.core.errors import FairlaneError
from fairlane.http import openapi
from fairlane.http.app import HttpApp
from fairlane.http.messages import HttpRequest, Route
from fairlane.testing import MemoryFairlane
from tests.hostile.inside import Inside

_PATH_NAMES = "id key name file link permitId fingerprint messageId"
IN_THE_PATH = dict.fromkeys(_PATH_NAMES.split(), "x")


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with MemoryFairlane() as app:
        yield Inside(app)


@pytest.fixture
async def spec(inside: Inside) -> dict[str, Any]:
    answer = await inside.ask("GET", "/openapi.json")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def operations(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def schema_of(spec: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        return resolved(spec, schema["$ref"])
    return schema


def resolved(spec: dict[str, Any], reference: str) -> dict[str, Any]:
    found: Any = spec
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    assert isinstance(found, dict)
    return found


def references(shape: Any) -> Iterator[str]:
    if isinstance(shape, dict):
        if isinstance(shape.get("$ref"), str):
            yield shape["$ref"]
        for inner in shape.values():
            yield from references(inner)
    elif isinstance(shape, list):
        for inner in shape:
            yield from references(inner)


async def test_every_route_is_in_it_and_nothing_else(inside: Inside, spec: dict[str, Any]) -> None:
    there = {(method, path) for path, ways in inside.http.routes.items() for method in ways}
    assert {(method, path) for method, path, _ in operations(spec)} == there
    described = {tuple(name.split(" ", 1)) for name in (*openapi.CONTENT, *openapi.BODIES)}
    described |= {("GET", path) for path in openapi.STREAMS}
    assert described - there == set()


async def test_it_is_openapi_with_schemas_that_are_schemas(spec: dict[str, Any]) -> None:
    assert spec["openapi"] == "3.1.0"
    for schema in spec["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    for reference in references(spec):
        assert resolved(spec, reference)
    ids = [operation["operationId"] for _, _, operation in operations(spec)]
    assert len(ids) == len(set(ids))
    for _, path, operation in operations(spec):
        named = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert all(f"{{{name}}}" in path for name in named)
        assert len(named) == path.count("{")


async def test_scopes_are_those_of_the_table(inside: Inside, spec: dict[str, Any]) -> None:
    for method, path, operation in operations(spec):
        route = inside.http.routes[path][method]
        wanted = [{"token": [route.scope] if route.scope else []}]
        assert operation["security"] == ([] if route.open else wanted)


class Stopped(Exception):
    """The handler has said which query it takes."""


class Asking(HttpRequest):
    """A request that finds out what its handler asks of it, and goes no further."""

    def __init__(self, body: bytes) -> None:
        super().__init__("POST", "/", b"nobody=knows", raw=body)
        self.path = IN_THE_PATH
        self.known: frozenset[str] | None = None
        self.reads_body = False

    def query(self, *known: str) -> dict[str, str]:
        self.known = frozenset(known)
        raise Stopped

    async def body(self, most: int = 2**20) -> bytes:
        self.reads_body = True
        return await super().body(most)


async def asked(http: HttpApp, path: str, method: str) -> Asking:
    route: Route = http.routes[path][method]
    request = Asking(b'{"version": 0}' if path == "/policy/rollback" else b"{}")
    with contextlib.suppress(Stopped, FairlaneError):
        await route.handler(request)
    return request


async def test_each_route_takes_the_documented_query_and_body(
    inside: Inside, spec: dict[str, Any]
) -> None:
    for method, path, operation in operations(spec):
        request = await asked(inside.http, path, method)
        told = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
        assert (request.known or frozenset()) == told, f"{method} {path}"
        if request.reads_body:
            assert "requestBody" in operation, f"{method} {path}"


async def test_a_body_that_may_be_left_out_may_be_left_out(
    inside: Inside, spec: dict[str, Any]
) -> None:
    for method, path, operation in operations(spec):
        if "requestBody" not in operation:
            continue
        answer = await inside.ask(method, path.format(**IN_THE_PATH))
        complaints = ("the body is not valid JSON", "missing required field")
        missing = answer.status == 400 and answer.json["error"].startswith(complaints)
        assert missing == operation["requestBody"]["required"], f"{method} {path}: {answer}"


async def test_fields_that_nobody_knows_are_refused_and_those_told_are_known(
    inside: Inside, spec: dict[str, Any]
) -> None:
    for method, path, operation in operations(spec):
        if "requestBody" not in operation or path in ("/policy/check", "/approve/{link}"):
            continue
        schema = schema_of(spec, operation)
        where = path.format(**IN_THE_PATH)
        for name in (*schema.get("properties", {}), "nobodyKnows"):
            answer = await inside.ask(method, where, {name: {"$": []}})
            assert answer.status < 500, (where, name, answer)
            if name == "nobodyKnows" and answer.status != 404:
                assert answer.status == 400, (where, answer)
            elif answer.status == 400:
                unknown = ("unknown field", "unknown key")
                assert not any(f"{word} '{name}'" in answer.json["error"] for word in unknown)


BASES: dict[str, dict[str, Any]] = {
    "POST /tasks": {"handler": "nobody"},
    "POST /tasks/batch": {"tasks": [{"handler": "nobody"}]},
    "POST /tasks/stream": {"tasks": [{"handler": "nobody"}]},
    "POST /leases/report": {"worker": "w"},
    "POST /sessions/{key}/messages": {"message": "hello", "handler": "nobody"},
    "PATCH /sessions/{key}": {},
    "PUT /sessions/{key}/usage": {"tokens": 1, "contextWindow": 10},
    "POST /leases": {"worker": "w"},
    "POST /queue": {},
    "POST /queue/drain": {},
    "POST /cron/jobs": {
        "name": "j",
        "schedule": {"kind": "every", "everyMs": 60_000},
        "task": {"handler": "nobody"},
    },
}


def beyond(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that are just outside of what is allowed."""
    for choice in schema.get("anyOf", [schema]):
        if "maximum" in choice:
            yield from (choice["minimum"] - 1, choice["maximum"] + 1)
        if "maxLength" in choice:
            yield "x" * (choice["maxLength"] + 1)
        if "pattern" in choice:
            odd = ("a b", "/", "a%b", "a\n", "\u202e", "x" * 300)
            yield from (text for text in odd if not re.search(choice["pattern"], text))
        if "enum" in choice:
            yield "nonsense"
        if "maxItems" in choice:
            yield [f"t{number}" for number in range(choice["maxItems"] + 1)]
        if choice.get("format") == "date-time":
            yield from ("tomorrow", "2026-13-01T00:00:00Z")


@pytest.mark.parametrize("name", BASES)
async def test_bounds_are_kept_and_a_refusal_names_the_field(
    inside: Inside, spec: dict[str, Any], name: str
) -> None:
    method, path = name.split(" ", 1)
    schema = schema_of(spec, spec["paths"][path][method.lower()])
    where = path.format(**IN_THE_PATH)
    tried = 0
    for field, bounds in schema["properties"].items():
        for value in beyond(bounds):
            answer = await inside.ask(method, where, {**BASES[name], field: value})
            assert answer.status == 400, (field, value, answer)
            told = answer.json["error"]
            assert field in told or "batch" in told or "either" in told, (field, told)
            tried += 1
    assert tried or name == "POST /queue/drain"
    assert (await inside.ask(method, where, BASES[name])).status < 300


async def test_an_error_has_the_documented_shape(inside: Inside, spec: dict[str, Any]) -> None:
    error = spec["components"]["schemas"]["Error"]
    for method, path in (
        ("GET", "/tasks/nobody"),
        ("POST", "/tasks"),
        ("PATCH", "/tasks"),
        ("POST", "/policy/rollback"),
    ):
        answer = await inside.ask(method, path, {"version": 99} if "rollback" in path else None)
        assert answer.status >= 400
        jsonschema_rs.validate(error, answer.json)
    assert msgspec.json.encode(spec)
