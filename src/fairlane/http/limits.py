"""The limits of connections and requests, and the responses to requests that exceed them."""

from __future__ import annotations

import contextlib
import functools
from typing import Final

from fairlane.http.messages import STATUS, Answer
from fairlane.http.responses import response

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
# Longer than clients keep a connection that they do not use, so that theirs is the end: what they
# send at the moment when a server hangs up is lost.
IDLE_SECONDS: Final = 75.0
CONNECTIONS_MAX: Final = 10_000
_FILES_KEPT: Final = 256  # for the store, for what leaves, and for all that is not a connection
URL_BYTES_MAX: Final = 8192
HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 16_384
HEAD_BYTES_MAX: Final = URL_BYTES_MAX + HEADERS_BYTES_MAX + 4 * HEADERS_MAX + 64
# Of a client that sends on although it has been answered for the last time.
IGNORED_BYTES_MAX: Final = 1 << 20


def _refusal(code: str, error: str) -> bytes:
    return response(Answer(STATUS[code], {"code": code, "error": error}), keep_alive=False)


NOT_HTTP: Final = _refusal("invalid_request", "this is not HTTP as it is understood here")
LATE: Final = _refusal(
    "request_timeout", f"the request has to arrive within {READ_SECONDS:g} seconds"
)
LONG_URL: Final = _refusal(
    "uri_too_long", f"the address must not be longer than {URL_BYTES_MAX} bytes"
)
LARGE_HEADERS: Final = _refusal(
    "headers_too_large",
    f"there must not be more than {HEADERS_MAX} headers or {HEADERS_BYTES_MAX} bytes of them",
)


@functools.cache
def connections_max() -> int:
    """As many as may be, or as the process may have files, less those that it needs itself."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return CONNECTIONS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_KEPT
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS_MAX
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return max(1, soft - _FILES_KEPT)
