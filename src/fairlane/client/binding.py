"""Turn a typed request into an HTTP request: the counterpart of `http/operations.py`."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

from fairlane.client.transport import Asked
from fairlane.schema.operation import Operation, Request, query_text

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


def bound(operation: Operation[Q, R], request: Q) -> tuple[str, Asked]:
    """Return the path of a call and its other parts. Fields at their default are left out."""
    given = operation.given(request)
    path = {name: quote(value, safe="") for name, value in given["path"].items()}
    headers = operation.reading.headers
    asked = Asked(
        query={name: query_text(value) for name, value in given["query"].items()},
        headers={headers[name]: value for name, value in given["header"].items()},
    )
    if operation.waits is not None:
        asked["wait_ms"] = getattr(request, operation.waits)
    if operation.document is not None:
        (asked["body"],) = given["document"].values()
    elif operation.part("body").__struct_fields__:
        asked["body"] = given["body"]
    return operation.path.format(**path), asked
