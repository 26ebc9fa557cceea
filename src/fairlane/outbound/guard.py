"""The guard that everything which leaves goes through, webhooks and executors alike.

The rule: a connection is opened only to a public address, or to what the operator listed. Every
answer of DNS is checked, exactly the checked addresses are dialled, the peer is checked once more
before the first byte is sent, redirects are not followed and the environment's proxies are ignored.
The trap: aiohttp does not ask a resolver about hosts that are addresses already, so those are
checked in `connect`, which every request passes, one on a kept-alive connection included.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from fairlane.core.errors import (
    ExecutionFailed,
    InvalidRequest,
    InvalidSettings,
    PayloadTooLarge,
    TargetRefused,
)
from fairlane.outbound.addresses import Address, is_public, unwrapped
from fairlane.outbound.targets import DEFAULT_PORTS, Target, parse_host, parse_target
from fairlane.version import __version__

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = [
    "Guard",
    "Lookup",
    "Response",
    "Sender",
    "Stream",
    "Target",
    "asked_wait_ms",
    "is_public",
    "open_session",
    "opened",
    "parse_target",
    "post",
]

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""All addresses of a host name, as text; raises OSError when there are none."""

ADDRESS_REFUSED: Final = "target address is not allowed"
# For a name there is one text for both, or the answers would map the names of a private network.
NAME_REFUSED: Final = f"{ADDRESS_REFUSED} or its name does not resolve"

CONNECT_SECONDS: Final = 10.0
LOOKUP_SECONDS: Final = 5.0
LOOKUPS_MAX: Final = 16
RESPONSE_BYTES_MAX: Final = 1024 * 1024
RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000
# Shorter than the five seconds after which common servers hang up, so that no request is sent into
# a connection that is just being closed.
KEEPALIVE_SECONDS: Final = 4.0

_CONNECT_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)

# Public hosts are asked on ports where HTTP lives; these are known to be something else.
_PORTS_OF_OTHERS: Final = frozenset(
    {2049, *range(2375, 2381), 3306, 5432, 5984, 6379, 6443, 9200, 10250, 11211, 27017}
)
_LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
# What frames the message or picks the receiver is ours to write.
_RESERVED_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)


class Guard:
    """Decides which targets may be reached; `allow` lists what the operator trusts besides.

    Entries of `allow` are `HOST`, `IP` or `CIDR`, each with an optional `:PORT`; IPv6 stands in
    brackets. A listed host is trusted wherever it leads.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        lookup: Lookup | None = None,
        lookup_seconds: float = LOOKUP_SECONDS,
    ) -> None:
        self._rules = _parse_rules(allow)
        self._lookup = lookup or _system_lookup()
        self._lookup_seconds = lookup_seconds

    def check(self, url: str) -> Target:
        """What can be told without DNS: the form of the URL, and an address written in it."""
        target = parse_target(url)
        self.check_host(target.host, target.port)
        return target

    def check_host(self, host: str, port: int) -> None:
        """As `check`, for a host and port by themselves."""
        host, address = parse_host(host)
        if self._trusts_host(host, port):
            return
        if address is None and not _is_local(host):
            # Where a name leads is known later; a port nothing could be allowed on is refused now.
            if not _is_web_port(port) and not any(
                rule.network is not None and rule.fits(port) for rule in self._rules
            ):
                raise TargetRefused(f"target port {port} is not allowed")
        elif not any(self._admits(one, port) for one in ([address] if address else _LOOPBACK)):
            raise TargetRefused(ADDRESS_REFUSED)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses to dial, all of them checked; OSError when the name has none.

        One forbidden answer spoils them all: who controls a name chooses which one is dialled.
        """
        host, address = parse_host(host)
        answers = [str(address)] if address else await self._answers(host)
        if not all(self._admits_answer(host, answer, port) for answer in answers):
            raise TargetRefused(NAME_REFUSED)
        return list(dict.fromkeys(str(unwrapped(answer)) for answer in answers))

    def admits_peer(self, host: str, port: int, *, peer: str, own: str) -> bool:
        """Whether the other end of an open connection is allowed.

        The same address at both ends is this machine, under whichever of its names.
        """
        host, _ = parse_host(host)
        if not self._admits_answer(host, peer, port):
            return False
        trusted = self._trusts_host(host, port) or self._trusts_address(unwrapped(peer), port)
        return trusted or unwrapped(peer) != unwrapped(own)

    def resolver(self) -> AbstractResolver:
        return _GuardedResolver(self)

    def connector(self) -> aiohttp.TCPConnector:
        return _GuardedConnector(self)

    async def _answers(self, host: str) -> Sequence[str]:
        try:
            async with asyncio.timeout(self._lookup_seconds):
                answers = await self._lookup(host)
        except TimeoutError as error:
            raise OSError("the name lookup took too long") from error
        if not answers:
            raise OSError("the name has no address")
        return answers

    def _admits_answer(self, host: str, answer: str, port: int) -> bool:
        try:
            address = unwrapped(answer)
        except ValueError:
            return False
        return self._trusts_host(host, port) or self._admits(address, port)

    def _admits(self, address: Address, port: int) -> bool:
        if self._trusts_address(address, port):
            return True
        return is_public(address) and _is_web_port(port)

    def _trusts_host(self, host: str, port: int) -> bool:
        return any(rule.host == host and rule.fits(port) for rule in self._rules)

    def _trusts_address(self, address: Address, port: int) -> bool:
        return any(
            rule.network is not None and address in rule.network and rule.fits(port)
            for rule in self._rules
        )


# --- hooks into aiohttp ---------------------------------------------------------------------------


class _GuardedResolver(AbstractResolver):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's signature
    ) -> list[ResolveResult]:
        addresses = await self._guard.resolve(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        pass


class _GuardedConnector(aiohttp.TCPConnector):
    """Checks the host before a connection is made and the peer before anything is sent."""

    def __init__(self, guard: Guard) -> None:
        # No limit on connections: callers bound their own concurrency, and waiting here would eat
        # into the time a request has.
        super().__init__(
            resolver=guard.resolver(),
            use_dns_cache=False,
            limit=0,
            keepalive_timeout=KEEPALIVE_SECONDS,
        )
        self._guard = guard

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,
    ) -> Connection:
        if req.proxy is not None or req.url.scheme not in DEFAULT_PORTS:
            raise TargetRefused("only plain HTTP requests without a proxy may leave")
        host, port = req.url.raw_host or "", req.port or 0
        self._guard.check_host(host, port)
        connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        peer = transport and transport.get_extra_info("peername")
        own = transport and transport.get_extra_info("sockname")
        if not peer or not own:
            connection.close()
            raise aiohttp.ServerDisconnectedError
        if not self._guard.admits_peer(host, port, peer=peer[0], own=own[0]):
            connection.close()
            raise TargetRefused(ADDRESS_REFUSED)
        return connection


def _system_lookup() -> Lookup:
    # Threads of its own: a name server that never answers must not block the loop's other work.
    threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="fairlane-dns")

    async def lookup(host: str) -> list[str]:
        ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        answers = await asyncio.get_running_loop().run_in_executor(threads, ask)
        return [str(answer[4][0]) for answer in answers]

    return lookup


# --- sending --------------------------------------------------------------------------------------


class Response(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # found by any spelling of their names
    body: bytes
    truncated: bool = False  # there was more than we were willing to read


class Stream:
    """An answer whose body is iterated in the pieces it comes in.

    Of a body beyond the bound, the part within it is still handed out; then PayloadTooLarge.
    """

    def __init__(self, answer: aiohttp.ClientResponse, bytes_max: int) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer
        self._bytes_max = bytes_max
        self._room = bytes_max

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = b"" if self._room < 0 else await self._answer.content.readany()
        within = chunk[: max(self._room, 0)]
        self._room -= len(chunk)
        if within:
            return within
        if self._room < 0:
            self._answer.close()
            raise PayloadTooLarge(f"the answer has more than {self._bytes_max} bytes")
        raise StopAsyncIteration


def open_session(guard: Guard) -> aiohttp.ClientSession:
    """A session whose every connection is guarded; it remembers nothing and decodes nothing."""
    return aiohttp.ClientSession(
        connector=guard.connector(),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"fairlane/{__version__}", "Accept-Encoding": "identity"},
    )


async def post(
    session: aiohttp.ClientSession,
    guard: Guard,
    url: str,
    *,
    body: bytes,
    headers: Mapping[str, str],
    timeout_seconds: float,
    max_response_bytes: int = RESPONSE_BYTES_MAX,
) -> Response:
    """One POST. Raises InvalidRequest, TargetRefused, or ExecutionFailed when there is no answer.

    The texts are of ours and name no address: they are shown to whoever chose the URL.
    """
    try:
        async with opened(
            session,
            guard,
            "POST",
            url,
            body=body,
            headers=headers,
            timeout_seconds=timeout_seconds,
        ) as answer:
            return await _read(answer, max_response_bytes)
    except aiohttp.ClientConnectorDNSError as error:
        raise TargetRefused(NAME_REFUSED) from error
    except TimeoutError as error:
        raise ExecutionFailed("target did not answer in time") from error
    except aiohttp.ClientSSLError as error:
        raise ExecutionFailed("target offers no trusted TLS connection") from error
    except aiohttp.ClientConnectorError as error:
        raise ExecutionFailed("target could not be reached") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ExecutionFailed("target broke off before its answer was complete") from error


class Sender:
    """HTTP for executors: raw transport errors, so that they can tell what may be repeated.

    Raises OSError, aiohttp.ClientError, TargetRefused, InvalidRequest or PayloadTooLarge.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = open_session(guard)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> Response:
        """One exchange, with its whole answer."""
        async with self.stream(
            method,
            url,
            headers=headers,
            body=body,
            max_bytes=max_bytes,
            timeout_seconds=timeout_seconds,
        ) as answer:
            whole = b"".join([chunk async for chunk in answer])
        return Response(answer.status, answer.headers, whole)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> AsyncIterator[Stream]:
        """One exchange whose answer is read as it comes; leaving early hangs up."""
        async with opened(
            self._session,
            self._guard,
            method,
            url,
            body=body,
            headers=headers,
            timeout_seconds=timeout_seconds,
        ) as answer:
            yield Stream(answer, max_bytes)

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@asynccontextmanager
async def opened(
    session: aiohttp.ClientSession,
    guard: Guard,
    method: str,
    url: str,
    *,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_seconds: float | None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """An answer whose body is still to be read, within `timeout_seconds` for everything."""
    target = guard.check(url)
    async with (
        asyncio.timeout(timeout_seconds),
        session.request(
            method,
            # As it stands: yarl would resolve dots and escapes, and send another path.
            URL(target.url, encoded=True),
            data=body,
            headers=checked_headers(headers),
            allow_redirects=False,
            timeout=_CONNECT_TIMEOUT,
        ) as answer,
    ):
        yield answer


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they may be sent; raises InvalidRequest for one that could forge others."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
            raise InvalidRequest(f"header {name!r} cannot be set on an outbound request")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"header {name} has characters that cannot be sent")
    return dict(headers)


def asked_wait_ms(headers: Mapping[str, str], *, now: int) -> int | None:
    """The wait a Retry-After header asks for, at most a day; None when there is none to read."""
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", text):
        wait_ms = int(text[-9:]) * 1000 if len(text.lstrip("0")) <= 9 else RETRY_AFTER_MS_MAX
    else:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        wait_ms = _epoch_ms(moment) - now
    return min(max(wait_ms, 0), RETRY_AFTER_MS_MAX)


def _epoch_ms(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


async def _read(answer: aiohttp.ClientResponse, bytes_max: int) -> Response:
    body, truncated = bytearray(), False
    try:
        async for chunk in Stream(answer, bytes_max):
            body += chunk
    except PayloadTooLarge:
        truncated = True
    return Response(answer.status, answer.headers, bytes(body), truncated)


# --- the operator's list --------------------------------------------------------------------------


class _Rule(msgspec.Struct, frozen=True):
    host: str | None
    network: IPv4Network | IPv6Network | None
    port: int | None

    def fits(self, port: int) -> bool:
        return self.port is None or self.port == port


_RULE: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:/[0-9]+)?)\]|(?P<ipv4>[0-9.]+(?:/[0-9]+)?)|(?P<host>[^:/\[\]]+))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)


def _parse_rules(allow: Sequence[str]) -> tuple[_Rule, ...]:
    rules, problems = [], []
    for entry in allow:
        try:
            rules.append(_parse_rule(entry))
        except (ValueError, InvalidRequest) as error:
            problems.append(f"allow-outbound {entry!r}: {error}")
    if problems:
        raise InvalidSettings(problems)
    return tuple(rules)


def _parse_rule(entry: str) -> _Rule:
    parts = _RULE.fullmatch(entry)
    if parts is None or int(parts["port"] or 0) > 65535:
        raise ValueError(
            "write HOST, IP or CIDR, with :PORT if only that one is meant, and IPv6 in brackets"
        )
    port = int(parts["port"]) if parts["port"] else None
    if parts["host"]:
        host, _ = parse_host(parts["host"])
        return _Rule(host, None, port)
    network = IPv6Network(parts["ipv6"]) if parts["ipv6"] else IPv4Network(parts["ipv4"])
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("write the IPv4 address itself, not its IPv6 form")
    return _Rule(None, network, port)


def _is_web_port(port: int) -> bool:
    return port in (80, 443) or (port >= 1024 and port not in _PORTS_OF_OTHERS)


def _is_local(host: str) -> bool:
    """Names that mean this machine by definition, whatever a name server says."""
    return host == "localhost" or host.endswith(".localhost")
