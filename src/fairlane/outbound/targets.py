"""Parse URLs strictly, so that no two parsers can disagree about the target.

The rule: a `Target` is rebuilt from checked parts, and only the rebuilt URL is ever sent. Anything
ambiguous - unusual numbers for addresses, look-alike digits and dots, backslashes, escapes in the
host - is refused, not repaired. Caution: the C library still reads `127.1`, `0x7f000001` and
`017700000001` as addresses, so a host whose last label is a number has to be a canonical dotted
quad.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote

import idna
import msgspec

from fairlane.core.errors import InvalidRequest
from fairlane.outbound.addresses import Address, unwrapped

URL_CHARS_MAX: Final = 8192
HOST_CHARS_MAX: Final = 253
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?#]*))?(?P<rest>[^#]*)(?:#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]]*))(?P<port>:.*)?")
_PORT: Final = re.compile(r":[1-9][0-9]{0,4}")
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]+")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH_CHARS: Final = "/?:@!$&'()*+,;=-._~%"
_PLAIN_PATH: Final = re.compile(rf"[A-Za-z0-9{re.escape(_PATH_CHARS)}]*")
# Control, format, surrogate and unassigned characters, and separators: none is visible in a log.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zs", "Zl", "Zp"})


class Target(msgspec.Struct, frozen=True):
    """A parsed URL: host in lower case without brackets or a final dot, port always set."""

    scheme: str
    host: str
    port: int
    path: str  # with the query, beginning with a slash
    address: Address | None  # set if the host is an address

    @property
    def authority(self) -> str:
        """Return `host:port`, the form in which a guard's lists name this target."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self._bracketed}{port}{self.path}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_target(url: str) -> Target:
    """Parse `url`. Raise InvalidRequest with a message that is safe to show to the caller."""
    if len(url) > URL_CHARS_MAX:
        raise InvalidRequest(f"URL must have at most {URL_CHARS_MAX} characters")
    if "\\" in url or not _is_visible(url):
        raise InvalidRequest("URL must not contain spaces, control characters or backslashes")
    parts = _URL.fullmatch(url)
    scheme = parts["scheme"].lower() if parts else ""
    if parts is None or scheme not in DEFAULT_PORTS:
        raise InvalidRequest("URL must use http or https")
    host, address, port = _parse_authority(parts["authority"] or "")
    return Target(scheme, host, port or DEFAULT_PORTS[scheme], _path(parts["rest"]), address)


@lru_cache(maxsize=4096)
def parse_host(host: str) -> tuple[str, Address | None]:
    """Return a host without brackets in canonical form, and the address if it is one."""
    if ":" in host:
        return _parse_ipv6(host)
    labels = _ascii(host).removesuffix(".").split(".")
    name = ".".join(labels)
    if len(name) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, labels)):
        raise _bad_host()
    if _NUMBER.fullmatch(labels[-1]):
        return _parse_ipv4(name)
    return name, None


@lru_cache(maxsize=4096)
def _parse_authority(authority: str) -> tuple[str, Address | None, int | None]:
    if "@" in authority:
        raise InvalidRequest("URL must not contain credentials")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise _bad_host()
    if not parts["ipv6"] and not parts["name"]:
        raise InvalidRequest("URL must name a host")
    host, address = _parse_ipv6(parts["ipv6"]) if parts["ipv6"] else parse_host(parts["name"])
    return host, address, _parse_port(parts["port"])


def _parse_port(text: str | None) -> int | None:
    """Return the port in `:8080`; None if there is no port at all."""
    if text is None:
        return None
    if not _PORT.fullmatch(text) or int(text[1:]) > 65535:
        raise InvalidRequest("URL port must be a number from 1 to 65535")
    return int(text[1:])


def _parse_ipv4(text: str) -> tuple[str, Address]:
    try:
        return text, IPv4Address(text)
    except ValueError:
        raise _bad_host() from None


def _parse_ipv6(text: str) -> tuple[str, Address]:
    if not _IPV6.fullmatch(text):
        raise _bad_host()
    try:
        address = unwrapped(IPv6Address(text))
    except ValueError:
        raise _bad_host() from None
    return str(address), address


def _ascii(host: str) -> str:
    """Return the host in lower-case ASCII; refuse one that merely looks like another."""
    if host.isascii():
        return host.lower()
    # Full-width digits, circled digits, ideographic dots: NFKC would turn them into real ones.
    if unicodedata.normalize("NFKC", host) != host or len(host) > HOST_CHARS_MAX:
        raise _bad_host()
    return ".".join(map(_ascii_label, host.lower().split(".")))


def _ascii_label(label: str) -> str:
    if label.isascii():
        return label
    try:
        return idna.alabel(label).decode("ascii")
    except UnicodeError:  # idna's errors are subclasses
        raise _bad_host() from None


def _path(rest: str) -> str:
    path = rest if rest.startswith("/") else f"/{rest}"
    # Other parsers drop an empty query.
    path = path.removesuffix("?") if path.count("?") == 1 else path
    return path if _PLAIN_PATH.fullmatch(path) else quote(path, safe=_PATH_CHARS)


def _is_visible(url: str) -> bool:
    if url.isascii():
        return url.isprintable() and " " not in url
    return not any(unicodedata.category(one) in _INVISIBLE for one in url)


def _bad_host() -> InvalidRequest:
    return InvalidRequest("URL host is not a valid host name or address")
