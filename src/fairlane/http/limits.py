"""The limits of connections and requests, and the responses to requests that exceed them."""

from __future__ import annotations

import contextlib
import functools
from typing import Final

from fairlane.http.messages import STATUS, Answer
from fairlane.http.responses import response

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
STREAM_SILENCES_MAX: Final = 6  # so many times READ_SECONDS may a stream of tasks pause
# Longer than clients keep an idle connection, so that the client closes first: a request that is
# sent while the server closes is lost.
IDLE_SECONDS: Final = 75.0
CONNECTIONS_MAX: Final = 10_000
UNACCEPTED_MAX: Final = 1024  # connections; if there are more, they wait a second and try again
_FILES_KEPT: Final = 256  # file descriptors for the store, outbound requests and everything else
URL_BYTES_MAX: Final = 8192
HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 16_384
HEAD_BYTES_MAX: Final = URL_BYTES_MAX + HEADERS_BYTES_MAX + 4 * HEADERS_MAX + 64
# From a client that keeps sending after the last response.
IGNORED_BYTES_MAX: Final = 1 << 20


def _refusal(code: str, error: str) -> bytes:
    return response(Answer(STATUS[code], {"code": code, "error": error}), keep_alive=False)


NOT_HTTP: Final = _refusal("invalid_request", "malformed or ambiguous HTTP request")
LATE: Final = _refusal(
    "request_timeout", f"the request did not arrive within {READ_SECONDS:g} seconds"
)
LONG_URL: Final = _refusal("uri_too_long", f"the URL is longer than {URL_BYTES_MAX} bytes")
LARGE_HEADERS: Final = _refusal(
    "headers_too_large",
    f"more than {HEADERS_MAX} headers, or more than {HEADERS_BYTES_MAX} bytes of headers",
)


@functools.cache
def connections_max() -> int:
    """Return the maximum number of connections, after raising the process's limit of open files."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return CONNECTIONS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + _FILES_KEPT
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS_MAX
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return max(1, soft - _FILES_KEPT)
