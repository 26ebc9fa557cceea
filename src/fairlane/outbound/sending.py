"""Outgoing HTTP: which headers are sent, to which address, and how much of a response is read.

The rule: the guard checks every request again, and the request goes only to the addresses that the
guard returned; a pooled connection is reused only if its peer is one of them. The guard checks the
peer of each new connection before the first byte is sent. A response is limited in size and in
time, including its headers. Redirects are not followed and the environment's proxies are ignored
(`http1/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, Self

import msgspec

from fairlane.compat.pinchtab import HEADER_PREFIX
from fairlane.core.errors import ExecutionFailed, InvalidRequest, PayloadTooLarge, TargetRefused
from fairlane.http1.asynchronous import AsyncExchange, AsyncPool, Pinning
from fairlane.http1.messages import NameNotFound, Origin, encode_request
from fairlane.outbound.guard import Guard
from fairlane.outbound.targets import parse_target
from fairlane.version import __version__

# The one text for a webhook without a response: more would distinguish open ports from closed ones,
# and refused names and addresses from ones that do not exist.
UNREACHABLE: Final = "target is not allowed or could not be reached"

CONNECT_SECONDS: Final = 10.0
RESPONSE_BYTES_MAX: Final = 1024 * 1024
RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000
# Shorter than the five seconds after which common servers close a connection, so that no request is
# sent into one that is just being closed.
KEEPALIVE_SECONDS: Final = 4.0

_OWN_HEADERS: Final = {"User-Agent": f"fairlane/{__version__}", "Accept-Encoding": "identity"}
_REPEATABLE: Final = frozenset({"GET", "HEAD"})

# Headers that frame a message or name its receiver are ours to set.
_HEADER_NAME: Final = re.compile(
    r"(?:accept|authorization|content-type|idempotency-key|traceparent|tracestate|x-agent-id"
    rf"|(?:webhook|x-fairlane|{HEADER_PREFIX})-[a-z0-9-]{{1,64}})",
    re.IGNORECASE,
)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")


class _GuardedResolver:
    """Lets the guard decide which addresses a request may go to."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def pinned(self, origin: Origin) -> Sequence[str] | Pinning:
        address = self._guard.check_host(origin.host, origin.port)
        if self._guard.trusts(origin.host, origin.port):
            return Pinning.ANYWHERE
        return Pinning.LOOKUP if address is None else (address,)

    async def addresses(self, origin: Origin) -> Sequence[str]:
        try:
            return await self._guard.resolve(origin.host, origin.port)
        except OSError as error:
            raise NameNotFound(*error.args) from error

    def verify(self, origin: Origin, *, peer: str, own: str) -> None:
        self._guard.check_peer(origin.host, origin.port, peer=peer, own=own)


class OutboundResponse(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    truncated: bool = False  # the body was longer than the limit


class Sender:
    """The only sender of webhooks and executors: every request passes the guard."""

    def __init__(self, guard: Guard) -> None:
        self._pool = AsyncPool(
            _GuardedResolver(guard),
            idle_seconds=KEEPALIVE_SECONDS,
            connect_seconds=CONNECT_SECONDS,
        )

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> AsyncExchange:
        """Return an exchange whose response is read as it arrives; leaving it early disconnects.

        Raise OSError if the exchange breaks, so that executors can tell whether it may be repeated;
        otherwise TargetRefused, InvalidRequest, or PayloadTooLarge.
        """
        target = parse_target(url)
        request = encode_request(
            Origin(target.host, target.port, target.scheme == "https"),
            method,
            target.path,
            _OWN_HEADERS | checked_headers(headers),
            body,
            repeatable=method in _REPEATABLE,
        )
        return self._pool.exchange(request, seconds=timeout_seconds, bytes_max=max_bytes)

    async def post(
        self,
        url: str,
        *,
        body: bytes,
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_response_bytes: int = RESPONSE_BYTES_MAX,
    ) -> OutboundResponse:
        """Send one POST. Raise InvalidRequest, or ExecutionFailed if there is no response.

        One text covers every reason for a missing response, because the author of the URL sees it.
        The actual reason is the cause of the error, for the log.
        """
        try:
            async with self.stream(
                "POST",
                url,
                headers=headers,
                body=body,
                max_bytes=max_response_bytes,
                timeout_seconds=timeout_seconds,
            ) as answer:
                return await _read(answer)
        except (TargetRefused, OSError) as error:
            raise ExecutionFailed(UNREACHABLE) from error

    async def close(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to send; raise InvalidRequest for one that could forge others."""
    for name, value in headers.items():
        if not _may_be_set(name):
            raise InvalidRequest(f"header {name!r} cannot be set on an outbound request")
        if not (value.isascii() and value.isprintable()) and not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"header {name} has characters that cannot be sent")
    return dict(headers)


@lru_cache(maxsize=256)
def _may_be_set(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None


def asked_wait_ms(headers: Mapping[str, str], *, now: int) -> int | None:
    """Return the wait of a Retry-After header, at most a day; None if there is none."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]+", text):
        wait_ms = int(text[-9:]) * 1000 if len(text.lstrip("0")) <= 9 else RETRY_AFTER_MS_MAX
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # the second one is for a year with very many digits
            return None
        wait_ms = _epoch_ms(moment) - now
    return min(max(wait_ms, 0), RETRY_AFTER_MS_MAX)


def _epoch_ms(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


async def _read(answer: AsyncExchange) -> OutboundResponse:
    body, truncated = bytearray(), False
    try:
        async for chunk in answer:
            body += chunk
    except PayloadTooLarge:
        truncated = True
    return OutboundResponse(answer.status, answer.headers, bytes(body), truncated)
