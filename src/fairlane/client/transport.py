"""Requests to a server and the meaning of its responses, for any transport."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Protocol, TypedDict, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from fairlane import config
from fairlane.client.arguments import encoded
from fairlane.config import DEFAULT_PORT
from fairlane.core import errors
from fairlane.core.errors import FairlaneError, InvalidSettings, Unreachable
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.schema import wire
from fairlane.schema.operation import Operation, Request
from fairlane.version import __version__

DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

# Errors that a server may respond with. Other branches of the tree occur elsewhere.
_ERRORS: Final[Sequence[type[FairlaneError]]] = (
    *errors.CallerError.__subclasses__(),
    *errors.BusyError.__subclasses__(),
    errors.TargetRefused,
    errors.StoreMismatch,
    errors.OperatorError,
)
Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

_BY_CODE: Final = {error.code: error for error in _ERRORS}


class Asked(TypedDict, total=False):
    """The optional parts of a call.

    `wait_ms` is how long the route may wait before it responds.
    """

    query: JsonMapping | None
    headers: Mapping[str, str]
    body: Any
    idempotency_key: str | None
    wait_ms: int


class ClientRequest(msgspec.Struct, frozen=True):
    """A request; `target` is the path and the query, percent-encoded."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_seconds: float

    @property
    def repeatable(self) -> bool:
        return self.method == "GET" or "Idempotency-Key" in self.headers


class ClientResponse(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class ClientStream(msgspec.Struct, frozen=True):
    """A response whose body is still arriving. Closing `pieces` closes the connection."""

    status: int
    headers: Mapping[str, str]
    pieces: Generator[bytes, None, None]


class Transport(Protocol):
    """HTTP, or anything else that responds to requests."""

    where: str

    def ask(self, request: ClientRequest) -> ClientResponse:
        """Return the response. Raise `Unreachable` if there is none."""
        ...

    def stream(self, request: ClientRequest) -> ClientStream:
        """Return a streaming response. Reading `pieces` raises `Unreachable` if it breaks off."""
        ...

    def close(self) -> None: ...


def build(
    method: str,
    path: str,
    *,
    timeout_seconds: float,
    wait_ms: int = 0,
    query: JsonMapping | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    last_event_id: str | None = None,
    accept: str = JSON,
) -> ClientRequest:
    """Return a request; query values that are None are left out.

    `timeout_seconds` is for an immediate response; `wait_ms` is how long the server may wait before
    it responds.
    """
    sent = {"Accept": accept, "User-Agent": f"fairlane/{__version__}"}
    for name, text in (headers or {}).items():
        sent[name] = _header(text, name)
    if body is not None:
        sent["Content-Type"] = JSON
    if idempotency_key is not None:
        sent["Idempotency-Key"] = _header(idempotency_key)
    if last_event_id:
        sent["Last-Event-ID"] = last_event_id
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return ClientRequest(
        method,
        path + (f"?{urlencode(given)}" if given else ""),
        sent,
        body=None if body is None else encoded(body),
        timeout_seconds=timeout_seconds + wait_ms / 1000,
    )


def understood(answer: ClientResponse, where: str) -> JsonObject:
    """Return the JSON of a response. Raise the error that it contains."""
    try:
        shape = wire.decode(answer.body)
    except (wire.DecodeError, UnicodeDecodeError):
        shape = None
    if not isinstance(shape, dict) or (answer.status >= 400 and "code" not in shape):
        raise Unreachable(
            f"the server at {where} is not Fairlane (it responded with status {answer.status}); "
            "check the address"
        )
    if answer.status >= 400:
        raise _error(shape, answer)
    return shape


def decoded(answer: ClientResponse, where: str, operation: Operation[Q, R]) -> R:
    """Return the response of an operation as its type. Raise the error that it contains."""
    if answer.status < 400:
        try:
            if operation.statuses:
                return operation.convert_response(msgspec.json.decode(answer.body))
            return msgspec.json.decode(answer.body, type=operation.response)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # not a Fairlane server, or another version: reported below
    understood(answer, where)
    raise Unreachable(
        f"the server at {where} sent a response that this version cannot read; "
        f"use the same version as the server (this is {__version__})"
    )


def opened(streaming: ClientStream, where: str) -> ClientStream:
    """Return the stream. Raise the error that arrived instead."""
    kind = streaming.headers.get("content-type", "")
    if streaming.status == 200 and kind.startswith(EVENT_STREAM):
        return streaming
    # an iterator that never started would not close the connection
    first = next(streaming.pieces, b"")
    body = b"".join([first, *streaming.pieces]) if kind.startswith(JSON) else b""
    streaming.pieces.close()
    understood(ClientResponse(streaming.status, streaming.headers, body), where)
    raise Unreachable(f"the server at {where} does not stream events; check the address")


def parsed(url: str) -> tuple[str, str, int | None, str]:
    """Return the address to show (without a password), host, port and path of a server's URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or "?" in url or "#" in url or not plain:
        shown = url.rpartition("@")[2]
        raise InvalidSettings([f"url must look like {DEFAULT_URL}, not {shown!r}"])
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", host, port, path


def bearer(token: str | None) -> dict[str, str]:
    """Return the Authorization header; empty without a token here or in the environment."""
    found = config.token() if token is None else token
    if not found:
        return {}
    if not (found.isascii() and found.isprintable() and " " not in found):
        raise InvalidSettings(["the token must be visible ASCII characters without spaces"])
    return {"Authorization": f"Bearer {found}"}


def _error(shape: JsonMapping, answer: ClientResponse) -> FairlaneError:
    code, message = str(shape["code"]), str(shape.get("error", ""))
    seconds = answer.headers.get("retry-after", "")
    retry_after_ms = int(seconds) * 1000 if seconds.isascii() and seconds.isdigit() else None
    if code == errors.InvalidPolicy.code:
        return errors.InvalidPolicy((shape.get("details") or {}).get("problems") or [message])
    if code in _BY_CODE:
        return error_of(code, message, shape.get("details"), retry_after_ms)
    return error_of(code, message, {"code": code, "status": answer.status})


def error_of(
    code: str, message: str, details: JsonObject | None, retry_after_ms: int | None = None
) -> FairlaneError:
    """Return the error with a code."""
    kind = _BY_CODE.get(code)
    if kind is None:  # an error of the server itself, or of a newer version
        unknown = FairlaneError(message, details=details)
        unknown.code = code
        return unknown
    return kind(message, details=details, retry_after_ms=retry_after_ms)


def _header(text: str, name: str = "Idempotency-Key") -> str:
    """Return the text. Raise for text that cannot be a header value, as the server would."""
    if not (text.isascii() and text.isprintable()):
        raise errors.InvalidRequest(
            f"the header {name} has invalid characters or is too long; "
            r"it must match ^[\x21-\x7e]{1,255}$"
        )
    return text
