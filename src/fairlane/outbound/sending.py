"""HTTP that leaves: what is sent, where it is dialled, and how much of an answer is read.

The rule: every attempt asks the guard anew and dials exactly the addresses it gave; a kept
connection is used again only if it leads to one of them. The peer is checked once more before the
first byte is sent, redirects are not followed and the environment's proxies are ignored. An answer
has a bound in size and in time, its headers too.
The trap: aiohttp does not ask a resolver about hosts that are addresses already, so those are
checked in `connect`, which every request passes, one on a kept-alive connection included.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from fairlane.core.errors import ExecutionFailed, InvalidRequest, PayloadTooLarge, TargetRefused
from fairlane.outbound.addresses import unwrapped
from fairlane.outbound.guard import ADDRESS_REFUSED, Guard
from fairlane.outbound.targets import DEFAULT_PORTS
from fairlane.version import __version__

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

# The one text for a webhook that got no answer: more would tell open ports from closed ones, and
# names and addresses that are refused from those that do not exist.
UNREACHABLE: Final = "target is not allowed or could not be reached"

CONNECT_SECONDS: Final = 10.0
RESPONSE_BYTES_MAX: Final = 1024 * 1024
RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 8190
# Shorter than the five seconds after which common servers hang up, so that no request is sent into
# a connection that is just being closed.
KEEPALIVE_SECONDS: Final = 4.0
KEPT_TRIED_MAX: Final = 100

_CONNECT_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)

# What frames a message or picks its receiver is ours to write, and nothing else has a use here.
_HEADER_NAME: Final = re.compile(
    r"(?:accept|authorization|content-type|idempotency-key|traceparent|tracestate|x-agent-id"
    r"|(?:webhook|x-fairlane|x-pinchtab)-[a-z0-9-]{1,64})",
    re.IGNORECASE,
)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")

# The checked addresses of the request that is being connected.
_pinned: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("pinned", default=None)


# --- connections ----------------------------------------------------------------------------------


class _GuardedResolver(AbstractResolver):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's signature
    ) -> list[ResolveResult]:
        addresses = _pinned.get() or await self._guard.resolve(host, port)
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
            resolver=_GuardedResolver(guard),
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
        addresses = await self._addresses(req)
        token = _pinned.set(addresses)
        try:
            for _ in range(KEPT_TRIED_MAX):
                connection = await super().connect(req, traces, timeout)
                if self._leads_to(connection, addresses, req):
                    return connection
                connection.close()  # kept from an answer that does not hold any more
        finally:
            _pinned.reset(token)
        raise TargetRefused(ADDRESS_REFUSED)

    async def _addresses(self, req: aiohttp.ClientRequest) -> list[str] | None:
        """What this request may be sent to; None when the operator trusts the name itself."""
        host, port = _asked(req)
        self._guard.check_host(host, port)
        if self._guard.trusts(host, port):
            return None
        try:
            return await self._guard.resolve(host, port)
        except OSError as error:
            raise aiohttp.ClientConnectorDNSError(req.connection_key, error) from error

    def _leads_to(
        self, connection: Connection, addresses: list[str] | None, req: aiohttp.ClientRequest
    ) -> bool:
        host, port = _asked(req)
        transport = connection.transport
        peer = transport and transport.get_extra_info("peername")
        own = transport and transport.get_extra_info("sockname")
        if not peer or not own:
            connection.close()
            raise aiohttp.ServerDisconnectedError
        try:
            self._guard.check_peer(host, port, peer=peer[0], own=own[0])
        except TargetRefused:
            connection.close()
            raise
        return addresses is None or str(unwrapped(peer[0])) in addresses


def _asked(req: aiohttp.ClientRequest) -> tuple[str, int]:
    return req.url.raw_host or "", req.port or 0


# --- requests -------------------------------------------------------------------------------------


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
        connector=_GuardedConnector(guard),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"fairlane/{__version__}", "Accept-Encoding": "identity"},
        max_line_size=HEADER_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
        max_headers=HEADERS_MAX,
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
    """One POST. Raises InvalidRequest, or ExecutionFailed when there is no answer.

    There is one text for all that may be between us and an answer: it is shown to whoever chose
    the URL. What it was in truth is the cause of the error, for the log.
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
    except (TargetRefused, aiohttp.ClientError, OSError) as error:
        raise ExecutionFailed(UNREACHABLE) from error


class Sender:
    """HTTP for executors: raw transport errors, so that they can tell what may be repeated.

    Raises OSError, aiohttp.ClientError, TargetRefused, InvalidRequest or PayloadTooLarge.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = open_session(guard)

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
        if not _HEADER_NAME.fullmatch(name):
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
        except (ValueError, OverflowError):  # the second for a year of very many digits
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
