"""Write requests and parse responses. No sockets, no clock: bytes in, values out.

The rule: no input can add lines to the head of a request, and a response has limits. Its head and
everything later that is not body (chunk sizes, trailers) must stay small; its body ends at the
caller's limit. Each violation by the peer raises its own kind of `OSError`.

Caution: one parser handles all responses of its connection, so bytes after a response make the
connection unusable for further requests (`reusable`), but not the response.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import httptools

from fairlane.core.errors import InvalidRequest, PayloadTooLarge

HEAD_BYTES_MAX: Final = 65_536
# How many bytes of chunk framing each byte of body may have: a chunk of one byte has five.
_FRAMING_PER_BYTE: Final = 32

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # all except the tab
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})
_NO_CONTENT: Final = frozenset({204, 304})


class NameNotFound(OSError):
    """The host name has no address."""


class MalformedResponse(ConnectionError):
    """The response is not HTTP/1.1, or its head or framing is too large."""


class ConnectionClosed(ConnectionError):
    """The peer closed the connection before any byte of a response arrived."""


class ResponseCutShort(ConnectionError):
    """The peer closed the connection in the middle of a response."""


class Origin(NamedTuple):
    """The target of requests. Connections are kept per origin."""

    host: str  # without brackets
    port: int
    tls: bool = False

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class EncodedRequest(NamedTuple):
    """A request as bytes, with what the drivers need to know about it."""

    origin: Origin
    method: str
    data: bytes
    repeatable: bool  # sending it twice is safe


def encode_request(
    origin: Origin,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    repeatable: bool = False,
) -> EncodedRequest:
    """Return the request for `target` (path and query). Raise InvalidRequest if a part could change
    its meaning, such as a header that contains a line break.
    """
    if not (target.isascii() and target.isprintable() and target[:1] == "/" and " " not in target):
        raise InvalidRequest("the request target must be a path of visible ASCII characters")
    lines = [f"{_token(method)} {target} HTTP/1.1", f"Host: {origin.authority}"]
    lines += [f"{_token(name)}: {value}" for name, value in headers.items()]
    if body is not None or method not in _WITHOUT_BODY:
        lines.append(f"Content-Length: {len(body or b'')}")
    if not "".join(lines).isprintable() and any(map(_CONTROL.search, lines)):
        raise InvalidRequest("a request header contains control characters: remove them")
    lines.append("\r\n")
    try:
        data = "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidRequest("a request header contains characters outside Latin-1") from None
    return EncodedRequest(origin, method, data + body if body else data, repeatable)


class ResponseParser:
    """Parses the responses of one connection, one after the other.

    `expect` announces the next response. Then `feed` the bytes that arrive, and call `end` when the
    peer has closed. `body` collects the bytes that have not been taken yet.
    """

    __slots__ = (
        "_body_bytes",
        "_bytes_max",
        "_fed",
        "_head_only",
        "_parser",
        "_problem",
        "_until_close",
        "begun",
        "body",
        "complete",
        "excess",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        # Scripts behind old gateways end header lines with a bare line feed.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self.reusable = True  # another request may follow on this connection
        self.expect("GET", None)
        self.complete = True  # nothing is expected before the first request

    def expect(self, method: str, bytes_max: int | None) -> None:
        """Prepare for the response to a request; its body is cut off after `bytes_max`."""
        self.status = 0
        self.headers: dict[str, str] = {}  # names in lower case
        self.begun = False  # the headers are complete
        self.complete = False
        self.excess = False  # the body is larger than the limit
        self.body: list[bytes] = []
        self._fed = 0
        self._body_bytes = 0
        self._bytes_max = bytes_max
        self._head_only = method == "HEAD"
        self._until_close = False
        self._problem = ""

    @property
    def untouched(self) -> bool:
        """Return whether no byte of the response has arrived."""
        return not self._fed

    @property
    def has_news(self) -> bool:
        """Return whether `take` has a piece, the end, or an error."""
        return bool(self.body) or self.complete or self.excess

    def feed(self, data: bytes) -> None:
        """Parse bytes. Raise MalformedResponse if they are not a valid response."""
        if self.complete:
            self.reusable = False  # unexpected bytes
            return
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise MalformedResponse(f"not a valid response: {error}") from None
        framing = self._fed - self._body_bytes
        if framing > HEAD_BYTES_MAX + _FRAMING_PER_BYTE * self._body_bytes and not self.complete:
            self._problem = "the head or the framing of the response is too large"
        if self._problem:
            self.complete = self.reusable = False
            raise MalformedResponse(self._problem)

    def end(self) -> None:
        """Handle a close by the peer. Raise unless that completes the response."""
        self.reusable = False
        if self.complete:
            return
        if not self._until_close:
            if self.untouched:
                raise ConnectionClosed("the connection was closed before a response arrived")
            raise ResponseCutShort("the connection was closed in the middle of the response")
        self.complete = True

    def take(self) -> bytes:
        """Return the body that arrived since the last call. Raise PayloadTooLarge once the part
        within the limit has been taken and more arrived.
        """
        if self.excess and not self.body:
            raise PayloadTooLarge(f"the response has more than {self._bytes_max} bytes")
        found, self.body = self.body, []
        return found[0] if len(found) == 1 else b"".join(found)

    def release(self) -> None:
        """Release the parser, which has a reference to this object. Nothing is fed afterwards."""
        self.reusable = False
        with contextlib.suppress(AttributeError):
            del self._parser

    # ---------------------------------------------------------------- called by httptools

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.begun:
            return  # a trailer, or bytes after the response
        key, text = _lower(name), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.begun:
            return
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                self._problem = f"the response has the unexpected status {status}"
            return
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            self._problem = "the response is not HTTP/1.0 or HTTP/1.1"
        self.status, self.begun = status, True
        coding = self.headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            self._problem = "the response has an unsupported transfer coding"
        if self._head_only:
            self.complete, self.reusable = True, False  # the parser would wait for a body
            return
        self.reusable = self.reusable and self._parser.should_keep_alive()
        has_length = coding is not None or "content-length" in self.headers
        self._until_close = not has_length and status not in _NO_CONTENT

    def on_body(self, data: bytes) -> None:
        if self.complete or not self.begun:
            return
        room = None if self._bytes_max is None else self._bytes_max - self._body_bytes
        self._body_bytes += len(data)
        if room is not None and len(data) > room:
            self.excess = True
            self.reusable = False
            data = data[: max(room, 0)]
        if data:
            self.body.append(data)

    def on_message_complete(self) -> None:
        if self.begun:
            self.complete = True
        else:  # an interim response; the real one follows
            self.headers = {}


@lru_cache(maxsize=256)
def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise InvalidRequest(f"{text!r} is not a valid header name or method")
    return text


@lru_cache(maxsize=256)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()
