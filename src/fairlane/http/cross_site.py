"""What stands before every answer: pages of other sites in an operator's browser are kept out.

Whoever can reach the port is trusted more than a page that a browser happens to show, and a browser
will carry requests of any page to this machine. So a request has to name a host that this server
answers to (a page that got here by a name of its own does not), must not come from another origin,
and must be JSON when it changes something, which no form can be. No answer permits another origin
to read it.

All of it is decided from a few headers: what programs send passes with a few lookups.
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
from fairlane.http.messages import Request
from fairlane.schema.wire import one_line

Headers = Mapping[bytes, bytes]

HTTP_PORT: Final = 80  # the one that a request need not name
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")

PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DATA_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"

_VERSIONS: Final = frozenset({"1.1", "1.0"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = b"application/json"
_JSON_SPELLINGS: Final = frozenset(
    {_JSON, b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
_UTF_8: Final = (b"", b"charset=utf-8", b'charset="utf-8"')
# What a form can send; no page needs leave to send it anywhere.
_FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")
_OURS: Final = (b"same-origin", b"none")
_ONCE: Final = frozenset(
    {
        *(b"host", b"origin", b"sec-fetch-site", b"authorization"),
        *(b"content-type", b"content-encoding"),
    }
)


class Doorkeeper:
    def __init__(self, hosts: Iterable[str]) -> None:
        """`hosts` are the names, with ports unless that is 80, that requests may give."""
        self._hosts = frozenset(host.lower().encode() for host in hosts)

    def problem(self, request: Request) -> FairlaneError | None:
        """Return why a request is turned away, or None."""
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
        if request.method not in _SAFE:
            return _not_json(headers)
        return None

    def _answers_to(self, host: bytes, request: Request) -> bool:
        """Names in any case; and the address that was connected to, which no page can fake."""
        name = host.lower()
        if name in self._hosts:
            return True
        if request.server is None:
            return False
        address, port = request.server
        return name in [one.encode() for one in authorities([address], port)]

    def _from_elsewhere(
        self, request: Request, headers: Headers, host: bytes
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
    """What a request may call a server that listens on a port under these names."""
    bare = list(dict.fromkeys(bracketed(name.lower()) for name in names))
    return [f"{name}:{port}" for name in bare] + (bare if port == HTTP_PORT else [])


def allowed(given: Iterable[str], port: int) -> list[str]:
    """The same for names of the settings, whose port may be that of a proxy before the server."""
    found: list[str] = []
    for one in given:
        named = one.rpartition(":")[2].isdigit() and not one.endswith("]")
        found += [one] if named else [one, f"{one}:{port}"]
    return found


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _framing(request: Request, host: bytes | None) -> FairlaneError | None:
    if request.version not in _VERSIONS:
        return InvalidRequest("use HTTP/1.1")
    if host is None:
        return InvalidRequest("the header Host is missing")
    for name, _ in request.repeated:
        if name in _ONCE:
            return InvalidRequest(f"the header {name.decode()} must not be given twice")
    return None


def _misdirected(host: bytes) -> FairlaneError:
    name = one_line(host.decode("latin-1")[:100])
    return Misdirected(
        f"this server does not answer to the name '{name}'; use the address that it printed at its "
        "start, or let its operator add the name to the setting allowed_hosts"
    )


def _elsewhere() -> FairlaneError:
    return Forbidden("requests from pages of other sites are not answered")


def _is_visit(request: Request, headers: Headers) -> bool:
    """Somebody follows a link to the dashboard: nothing of it is told to where they come from."""
    return (
        request.method in _SAFE
        and (request.full_path == "/" or request.full_path.startswith("/ui/"))
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _not_json(headers: Headers) -> FairlaneError | None:
    """A request that changes something says nothing, or says it in JSON as it is."""
    kind = headers.get(b"content-type")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        return UnsupportedMediaType("the body must not be packed: leave out Content-Encoding")
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
