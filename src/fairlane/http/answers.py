"""Answers: JSON out, errors by one table, bodies in with a limit.

Plain ASGI, because the submit route is hot: a framework's request and response objects would cost
as much as the work itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from fairlane import wire
from fairlane.core.errors import FairlaneError, PayloadTooLarge

STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "invalid_policy": 400,
    "target_refused": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "idempotency_conflict": 409,
    "lease_lost": 409,
    "payload_too_large": 413,
    "queue_full": 429,
    "internal_error": 500,
    "draining": 503,
    "disabled": 503,
    "store_unavailable": 503,
}

_JSON: Final = (b"content-type", b"application/json")
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


async def send_json(
    send: Send, status: int, shape: Any, headers: Mapping[str, str] | None = None
) -> None:
    body = wire.encode(shape)
    raw = [_JSON, _NOSNIFF, (b"content-length", str(len(body)).encode())]
    for name, value in (headers or {}).items():
        raw.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, problem: FairlaneError) -> None:
    headers = {}
    if problem.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-problem.retry_after_ms // 1000)))
    await send_json(send, STATUS.get(problem.code, 500), wire.error(problem), headers)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises `PayloadTooLarge` as soon as it is certain to be."""
    declared = header(scope, b"content-length")
    if declared and declared.isdigit() and int(declared) > wire.BODY_BYTES_MAX:
        raise _too_large()
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > wire.BODY_BYTES_MAX:
            raise _too_large()
        return body
    chunks = [message.get("body", b"")]
    size = len(chunks[0])
    while message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > wire.BODY_BYTES_MAX:
            raise _too_large()
    return b"".join(chunks)


def header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"the body must not be larger than {wire.BODY_BYTES_MAX} bytes")
