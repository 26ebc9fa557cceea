"""Encode responses as bytes: a head that is cached per kind of response, followed by the body."""

from __future__ import annotations

import functools
import http
import re
from collections.abc import Mapping
from typing import Final

from fairlane.http.cross_site import DATA_POLICY, FORM_POLICY, PAGE_POLICY
from fairlane.http.messages import EVENTS, JSON, NDJSON, Answer, Raw
from fairlane.schema import wire

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CACHE_CONTROL: Final = "cache-control"
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ALWAYS: Final = (
    b"x-content-type-options: nosniff\r\n"
    b"referrer-policy: no-referrer\r\n"
    b"cross-origin-opener-policy: same-origin\r\n"
    b"cross-origin-resource-policy: same-origin\r\n"
    b"content-security-policy: "
)


def response(
    answer: Answer, number: bytes = b"", *, keep_alive: bool = True, bodiless: bool = False
) -> bytes:
    """Return the bytes of a response; without the body if `bodiless`, for HEAD. `number` is the
    request's id.
    """
    shape, headers = answer.shape, answer.headers
    body, kind = (shape.body, shape.type) if type(shape) is Raw else (wire.encode(shape), JSON)
    if type(shape) is Raw and shape.is_form:
        start = _start(answer.status, kind, is_form=True)
    elif headers is None:
        start = _start(answer.status, kind)
    else:
        kept = any(name.lower() == _CACHE_CONTROL for name in headers)
        start = _start(answer.status, kind, kept=kept) + _fields(headers)
    return b"%bcontent-length: %d\r\n%b%b\r\n%b" % (
        start,
        len(body),
        b"x-request-id: %b\r\n" % number if number else b"",
        b"" if keep_alive else b"connection: close\r\n",
        b"" if bodiless else body,
    )


def stream_head(number: bytes, kind: str, *, keep_alive: bool, chunked: bool) -> bytes:
    """Return the head of a stream."""
    return b"%bx-accel-buffering: no\r\nx-request-id: %b\r\n%b%b\r\n" % (
        _start(200, kind),
        number,
        b"transfer-encoding: chunked\r\n" if chunked else b"",
        b"" if keep_alive else b"connection: close\r\n",
    )


@functools.lru_cache(maxsize=256)
def _start(status: int, kind: str, *, kept: bool = False, is_form: bool = False) -> bytes:
    """Return the constant part of the head; `kept` means the response sets Cache-Control itself.

    Without a referrer, a browser would send the form of a page with the origin null.
    """
    policy = DATA_POLICY if kind.startswith((JSON, EVENTS, NDJSON)) else PAGE_POLICY
    always = _ALWAYS
    if is_form:
        policy, always = FORM_POLICY, _ALWAYS.replace(b"no-referrer", b"same-origin")
    return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n%b" % (
        status,
        http.HTTPStatus(status).phrase.encode(),
        _fields({"content-type": kind}) if kind else b"",
        always,
        policy,
        b"" if kept else b"cache-control: no-store\r\n",
    )


def _fields(headers: Mapping[str, str]) -> bytes:
    """Return the header lines. Raise `ValueError` for a value that contains a line break."""
    lines = []
    for name, value in headers.items():
        if _UNSAFE.search(value):
            raise ValueError(f"the header {name} contains a control character")
        lines.append(f"{name.lower()}: {value}\r\n")
    return "".join(lines).encode("latin-1")
