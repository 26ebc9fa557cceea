"""Judges every response by the schema that OpenAPI declares for its operation and its status."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker

from tests.hostile.inside import Inside

JSON: Final = "application/json"
Schema = dict[str, Any]


class Contract:
    """Asks the routes of a scheduler. A response that the document does not declare is an error.

    A field that no schema names is one, too. `asked` are the operations with the statuses that they
    answered with, `seen` the fields of each component that were in a response.
    """

    def __init__(self, inside: Inside, document: Schema) -> None:
        self.document = document
        self.asked: set[tuple[str, int]] = set()
        self.seen: set[tuple[str, str]] = set()
        self._inside = inside
        self._components = closed(document["components"])

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        answer = await self._inside.ask(method, target, body, headers=headers)
        assert answer.status == status, (method, target, answer)
        operation = self._operation(method, target.partition("?")[0])
        schema = self._declared(operation, answer.status)
        self.check(answer.json, schema, f"{method} {target}")
        self.asked.add((operation["operationId"], answer.status))
        self._look(answer.json, schema)
        return answer.json

    async def get(self, target: str, **options: Any) -> Any:
        return await self.ask("GET", target, **options)

    async def post(self, target: str, body: Any = None, **options: Any) -> Any:
        return await self.ask("POST", target, body, **options)

    def check(self, value: Any, schema: Schema, about: str) -> None:
        """Raise `AssertionError` for each problem that a strict reader has with a value."""
        whole = {**schema, "components": self._components}
        validator = Draft202012Validator(whole, format_checker=FormatChecker())
        problems = [f"{one.json_path}: {one.message}" for one in validator.iter_errors(value)]
        assert not problems, (about, problems, value)

    def _operation(self, method: str, path: str) -> Schema:
        found = [
            (template.count("{"), ways[method.lower()])
            for template, ways in self.document["paths"].items()
            if method.lower() in ways and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path)
        ]
        operation: Schema = min(found, key=lambda one: one[0])[1]
        return operation

    def _declared(self, operation: Schema, status: int) -> Schema:
        response = self._resolved(operation["responses"][str(status)])
        schema: Schema = response["content"][JSON]["schema"]
        return schema

    def _resolved(self, shape: Schema) -> Schema:
        if "$ref" not in shape:
            return shape
        found: Any = {"components": self._components}
        for part in shape["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        resolved: Schema = found
        return resolved

    def _look(self, value: Any, schema: Schema) -> None:
        """Note which fields of which components a response has."""
        for choice in schema.get("anyOf", [schema]):
            shape = self._resolved(choice)
            name = choice.get("$ref", "").rpartition("/")[2]
            if isinstance(value, dict) and shape.get("type") == "object":
                properties = shape.get("properties", {})
                self.seen |= {(name, field) for field in value if field in properties}
                for field, inner in value.items():
                    others = shape.get("additionalProperties")
                    named = others if isinstance(others, dict) else {}
                    self._look(inner, properties.get(field, named))
            elif isinstance(value, list) and shape.get("type") == "array":
                for item in value:
                    self._look(item, shape.get("items", {}))


def closed(shape: Any) -> Any:
    """Return a copy of schemas in which every object with fields has no others."""
    shape = copy.deepcopy(shape)
    for one in _objects(shape):
        if isinstance(one.get("properties"), dict) and one.get("type") == "object":
            one.setdefault("additionalProperties", False)
    return shape


def _objects(shape: Any) -> Iterator[Schema]:
    if isinstance(shape, dict):
        yield shape
        for inner in shape.values():
            yield from _objects(inner)
    elif isinstance(shape, list):
        for inner in shape:
            yield from _objects(inner)
