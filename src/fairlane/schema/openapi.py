"""Derive OpenAPI 3.1 from the operations: parameters, bodies, responses and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.schema import json_limits
from fairlane.schema.examples import EXAMPLES, Example
from fairlane.schema.operation import AnyOperation, Response

Schema = JsonObject

JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{name}"


def describe(
    operations: Iterable[AnyOperation],
    statuses: Mapping[str, int],
    bodies: Iterable[type] = (),
) -> Schema:
    """Return `paths` and the `schemas` that they refer to. `statuses` is by error code.

    `bodies` are types of which only the schema is wanted.
    """
    listed = list(operations)
    kinds = [*bodies, *(kind for operation in listed for kind in _types(operation))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = dict(zip(kinds, map(_explicit, schemas), strict=True))
    sent = {kind.__name__ for kind in _subclasses(Response)}
    shapes = {
        name: _explicit(_omitting(schema) if name in sent else _bounded(schema))
        for name, schema in components.items()
    }
    paths: Schema = {}
    for operation in listed:
        described = _operation(operation, known, shapes, statuses)
        ways = paths.setdefault(operation.path, {})
        ways[operation.method.lower()] = described
        for method in map(str.lower, operation.also):
            ways[method] = {**described, "operationId": f"{operation.name}_{method}"}
    hidden = {kind.__name__ for one in listed for kind in _parameter_types(one)}
    return {
        "paths": paths,
        "schemas": {name: shape for name, shape in shapes.items() if name not in hidden},
    }


def _types(operation: AnyOperation) -> list[object]:
    others = [one for one in (_body_type(operation), operation.item) if one is not None]
    return [*operation.responses, *_parameter_types(operation), *others]


def _parameter_types(operation: AnyOperation) -> list[type[msgspec.Struct]]:
    parts = [operation.part(place) for place in ("path", "query", "header")]
    return [part for part in parts if part.__struct_fields__]


def _body_type(operation: AnyOperation) -> object:
    """Return the type that describes the body, or None if the body is ignored."""
    if operation.document is not None:
        return operation.document_shape
    body = operation.part("body")
    return body if body.__struct_fields__ or operation.empty_body else None


def _subclasses(kind: type[Response]) -> Iterator[type[Response]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _operation(
    operation: AnyOperation,
    known: Mapping[object, Schema],
    components: JsonMapping,
    statuses: Mapping[str, int],
) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "tags": [operation.path.strip("/").partition("/")[0]],
        "summary": operation.summary,
        "parameters": [*_parameters(operation, components)],
        "security": _security(operation),
        "responses": _responses(
            operation, known, errors(statuses, has_body=_body_type(operation) is not None)
        ),
    }
    body = _body_type(operation)
    if body is not None:
        described["requestBody"] = {
            "required": operation.needs_body,
            "content": _content(known[body], _example(operation).request),
        }
    return described


def _responses(operation: AnyOperation, known: Mapping[object, Schema], errors: Schema) -> Schema:
    """Describe the response of each status. One that is also an error's may have either type."""
    found: dict[int, list[Schema]] = {}
    for kind, status in operation.responses.items():
        found.setdefault(status, []).append(known[kind])
    for status, schemas in found.items():
        if str(status) in errors:
            schemas.append({"$ref": _REF.format(name="Error")})
    described = {
        str(status): {
            "description": operation.summary,
            "content": _content(
                schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
                _example(operation).response if status == operation.status else None,
            ),
        }
        for status, schemas in found.items()
    }
    return errors | described


def _example(operation: AnyOperation) -> Example:
    return EXAMPLES.get(operation.name, Example())


def _content(schema: Schema, example: object) -> Schema:
    return {JSON: {"schema": schema} | ({} if example is None else {"example": example})}


def _parameters(operation: AnyOperation, components: JsonMapping) -> Iterator[Schema]:
    headers = {
        one.encode_name: operation.headers[one.name]
        for one in msgspec.structs.fields(operation.part("header"))
    }
    for place in ("path", "query", "header"):
        part = operation.part(place)
        properties = components[part.__name__]["properties"] if part.__struct_fields__ else {}
        for name, schema in properties.items():
            described = {
                "name": headers.get(name, name),
                "in": place,
                "required": place == "path" or name in components[part.__name__]["required"],
                **_documented(schema),
            }
            if described["schema"].get("type") == "array":  # a comma-separated list
                described |= {"style": "form", "explode": False}
            if place == "path":  # an empty one would be another path
                described["schema"].setdefault("minLength", 1)
            yield described


def _documented(schema: Schema) -> Schema:
    """Return a parameter's schema without null, which a query cannot express, and its
    description.
    """
    kept = _without_null(schema)
    text = kept.pop("description", None)
    return {"schema": kept, **({"description": text} if text else {})}


def _without_null(schema: Schema) -> Schema:
    choices = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    kept = {key: value for key, value in schema.items() if key != "anyOf"}
    if kept.get("default", "") is None:
        del kept["default"]
    if len(choices) == 1:
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept


def _omitting(schema: Schema) -> Schema:
    """Describe a response: a field that has its default is absent, so None is never null."""
    properties = {}
    for name, one in schema["properties"].items():
        shape = _without_null(one) if one.get("default", "") is None else one
        properties[name] = {key: value for key, value in shape.items() if key != "default"}
    return {**schema, "properties": properties}


def _explicit(schema: object) -> Any:
    """State what client generators would guess wrong.

    An object without named fields may have any. A default of null says no more than that the field
    is optional, but some read a field with a default as one that is always there.
    """
    if isinstance(schema, list):
        return [_explicit(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _explicit(value) for key, value in schema.items()}
    if found.get("type") == "object" and not {"properties", "additionalProperties"} & set(found):
        found["additionalProperties"] = True
    if found.get("default", "") is None:
        del found["default"]
    return found


def _security(operation: AnyOperation) -> list[Schema]:
    if operation.open:
        return []
    return [{"token": [str(operation.scope)] if operation.scope else []}]


def errors(statuses: Mapping[str, int], *, has_body: bool) -> Schema:
    """Refer to the errors that a route may respond with: fewer when it has no body."""
    possible = sorted(set(statuses.values()) - (set() if has_body else {413, 415}))
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in possible}


def refusals(statuses: Mapping[str, int]) -> Schema:
    """Describe each status of an error by the codes that come with it."""
    found: dict[int, list[str]] = {}
    for code, status in statuses.items():
        found.setdefault(status, []).append(code)
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(status): {"description": ", ".join(codes), "content": content}
        for status, codes in sorted(found.items())
    }


def error(statuses: Mapping[str, int]) -> Schema:
    """Describe the JSON of an error."""
    return {
        "type": "object",
        "description": "Codes are stable; messages may change.",
        "required": ["code", "error"],
        "properties": {
            "code": {"type": "string", "enum": list(statuses)},
            "error": {"type": "string"},
            "retryable": {"type": "boolean"},
            "details": {"type": "object", "additionalProperties": True},
        },
    }


def _bounded(schema: Schema) -> Schema:
    """Limit the keys of every object that a caller sends, as the JSON limits do."""
    if schema.get("type") == "object" and not schema.get("additionalProperties", True):
        return {**schema, "maxProperties": json_limits.KEYS_MAX}
    return schema
