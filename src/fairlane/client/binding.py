"""Turns a typed request into a call of its route: the counterpart of `http/operations.py`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from fairlane.client.calling import Asked
from fairlane.schema.operation import Operation


def bound(operation: Operation[Any, Any], request: msgspec.Struct) -> tuple[str, Asked]:
    """Return the path of a call and its other parts. Fields at their default are left out."""
    places = ("path", "query", "body", "document", "raw")
    parts: dict[str, dict[str, Any]] = {place: {} for place in places}
    headers: dict[str, str] = {}
    for one in msgspec.structs.fields(operation.request):
        value = getattr(request, one.name)
        place = operation.places[one.name]
        if place == "nulls":
            parts["body"] |= dict.fromkeys(operation.body_names(value).values())
            continue
        if place != "path" and value == one.default:
            continue
        if place == "header":
            headers[operation.headers[one.name]] = value
        else:
            parts[place][one.encode_name] = value
    names = {name: quote(value, safe="") for name, value in parts["path"].items()}
    query = {name: _text(value) for name, value in parts["query"].items()}
    asked = Asked(query=query, headers=headers)
    if operation.waits is not None:
        asked["wait_ms"] = getattr(request, operation.waits)
    if operation.document is not None:
        (asked["body"],) = parts["document"].values()
    elif operation.part("body").__struct_fields__:
        asked["body"] = parts["body"]
    return operation.path.format(**names), asked


def _text(value: Any) -> Any:
    """Return a value as a query spells it: flags in lower case, lists with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
