"""Prevent pages of other sites in an operator's browser from using the API.

A program that can reach the port is trusted more than a web page, but a browser sends requests of
any page to this machine. So a request must name a host that this server serves (a page that uses
DNS rebinding does not), must not come from another origin, and must be JSON if it changes data,
which no form can send; the page behind a one-time link is the exception. No response allows another
origin to read it.

All of this needs only a few header lookups, so requests of programs pass quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairlane.core.errors import (
    FairlaneError,
    Forbidden,
    InvalidRequest,
    Misdirected,
    UnsupportedMediaType,
)
from fairlane.http.messages import HttpRequest
from fairlane.schema.task_streams import STREAM_PATH
from fairlane.schema.wire import one_line

Headers = Mapping[bytes, bytes]

HTTP_PORT: Final = 80  # the default port, which a request need not name
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")

PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FORM_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; "
    b"frame-ancestors 'none'"
)
DATA_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"

_VERSIONS: Final = frozenset({"1.1", "1.0"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = b"application/json"
_JSON_SPELLINGS: Final = frozenset(
    {_JSON, b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_LINES: Final = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl")
_UTF_8: Final = (b"", b"charset=utf-8", b'charset="utf-8"')
# Content types that a form can send to any site without the site's permission.
_FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")
_LINKS: Final = "/approve/"
_OURS: Final = (b"same-origin", b"none")
_ONCE: Final = frozenset(
    {
        *(b"host", b"origin", b"sec-fetch-site", b"authorization"),
        *(b"content-type", b"content-encoding"),
    }
)


class Doorkeeper:
    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts` are the allowed values of the Host header, with the port unless it is 80."""
        self._hosts = frozenset(host.lower().encode() for host in hosts)

    def problem(self, request: HttpRequest) -> FairlaneError | None:
        """Return why a request is refused, or None."""
        headers = request.headers
        host = headers.get(b"host")
        if host is None or request.repeated or request.version not in _VERSIONS:
            problem = _framing(request, host)
            if problem is not None:
                return problem
        assert host is not None
        if host not in self._hosts and not self._answers_to(host, request):
            return _misdirected(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            problem = self._from_elsewhere(request, headers, host)
            if problem is not None:
                return problem
        if request.method not in _SAFE and not _is_form_of_ours(request, headers):
            if request.route_path == STREAM_PATH and is_ndjson(headers):
                return _compressed(headers)
            return _not_json(headers)
        return None

    def always_admits(self, request: HttpRequest) -> bool:
        """Return whether the request is admitted whatever address it was sent to."""
        return request.headers.get(b"host") in self._hosts and self.problem(request) is None

    def _answers_to(self, host: bytes, request: HttpRequest) -> bool:
        """Return whether the server serves this host: a known name in any case, or the address that
        the client connected to, which no page can fake.
        """
        name = host.lower()
        if name in self._hosts:
            return True
        if request.server is None:
            return False
        address, port = request.server
        return name in [one.encode() for one in authorities([address], port)]

    def _from_elsewhere(
        self, request: HttpRequest, headers: Headers, host: bytes
    ) -> FairlaneError | None:
        origin = headers.get(b"origin")
        if origin is not None:
            scheme, _, authority = origin.lower().partition(b"://")
            known = authority == host.lower() or authority in self._hosts
            if scheme not in (b"http", b"https") or not known:
                return _elsewhere()
        site = headers.get(b"sec-fetch-site")
        if site is None or site in _OURS or _is_visit(request, headers):
            return None
        return _elsewhere()


def authorities(names: Iterable[str], port: int) -> list[str]:
    """Return the Host values of a server that listens on a port under these names."""
    bare = list(dict.fromkeys(bracketed(name.lower()) for name in names))
    return [f"{name}:{port}" for name in bare] + (bare if port == HTTP_PORT else [])


def allowed(given: Iterable[str], port: int) -> list[str]:
    """Do the same for the setting `allowed_hosts`; a port in it may be that of a proxy."""
    found: list[str] = []
    for one in given:
        named = one.rpartition(":")[2].isdigit() and not one.endswith("]")
        found += [one] if named else [one, f"{one}:{port}"]
    return found


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _framing(request: HttpRequest, host: bytes | None) -> FairlaneError | None:
    if request.version not in _VERSIONS:
        return InvalidRequest("use HTTP/1.1")
    if host is None:
        return InvalidRequest("the header Host is missing")
    for name, _ in request.repeated:
        if name in _ONCE:
            return InvalidRequest(f"the header {name.decode()} appears twice; send it once")
    return None


def _misdirected(host: bytes) -> FairlaneError:
    name = one_line(host.decode("latin-1")[:100])
    return Misdirected(
        f"this server does not serve host '{name}'; use the address it printed at startup, or add "
        "the name to allowed_hosts"
    )


def _elsewhere() -> FairlaneError:
    return Forbidden("refused: the request comes from a page on another site")


def _is_visit(request: HttpRequest, headers: Headers) -> bool:
    """Return whether a user follows a link to a page; the linking page cannot read it."""
    return (
        request.method in _SAFE
        and (request.route_path == "/" or request.route_path.startswith(("/ui/", _LINKS)))
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def is_ndjson(headers: Headers) -> bool:
    """Return whether the body is a stream of lines; no form of another site can send that type."""
    media, _, _ = headers.get(b"content-type", b"").lower().partition(b";")
    return media.strip() in _LINES


def _compressed(headers: Headers) -> FairlaneError | None:
    if headers.get(b"content-encoding", b"identity") != b"identity":
        return UnsupportedMediaType("the body must not be compressed: remove Content-Encoding")
    return None


def _is_form_of_ours(request: HttpRequest, headers: Headers) -> bool:
    """Return whether it is the form of a page behind a one-time link, which is its credential."""
    if not request.route_path.startswith(_LINKS) or b"content-encoding" in headers:
        return False
    return headers.get(b"content-type", b"").lower().partition(b";")[0].strip() == _FORMS[0]


def _not_json(headers: Headers) -> FairlaneError | None:
    """Return an error if a request that changes data has a body that is not plain JSON."""
    kind = headers.get(b"content-type")
    problem = _compressed(headers)
    if problem is not None:
        return problem
    if kind in _JSON_SPELLINGS:
        return None
    media, _, parameter = (kind or b"").lower().partition(b";")
    media = media.strip()
    if media == _JSON and parameter.strip() in _UTF_8:
        return None
    empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    if empty and media not in _FORMS:
        return None
    return UnsupportedMediaType("the body must be JSON: send Content-Type: application/json")
