"""Limit the connections that one caller may hold: streams and long polls, per token and address.

Idle connections make room for new ones; connections in use do not. Without a limit, one caller
could use all connections for its streams.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fairlane.core.errors import TooManyConnections
from fairlane.http.messages import HttpRequest

STREAMS_DEFAULT: Final = 500
WAITS_DEFAULT: Final = 4000
_RETRY_AFTER_MS: Final = 5000
_NETWORK_BITS: Final = 64  # of an IPv6 address; callers choose the rest themselves


class Held:
    """The held connections of one kind. `what` and `setting` name them in the error."""

    def __init__(self, what: str, setting: str, most: int) -> None:
        self._what = what
        self._setting = setting
        self._most = most
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def place(self, request: HttpRequest) -> Iterator[None]:
        """Hold a place. Raise `TooManyConnections` if the caller has reached its limit.

        Callers in this process are not limited.
        """
        holders = [] if request.named is not None else _holders(request)
        for holder in holders:
            if self._held[holder] >= self._most:
                raise self._refusal(holder)
        self._held.update(holders)
        try:
            yield
        finally:
            self._held.subtract(holders)
            for holder in holders:
                if not self._held[holder]:
                    del self._held[holder]

    def _refusal(self, holder: str) -> TooManyConnections:
        return TooManyConnections(
            f"this {holder.partition(' ')[0]} has {self._most} {self._what} open, which is the "
            f"limit; close some, or raise {self._setting}",
            details={"setting": self._setting, "limit": self._most},
            retry_after_ms=_RETRY_AFTER_MS,
        )


def _holders(request: HttpRequest) -> list[str]:
    """Return the holders that a place counts for: the token, if there is one, and the address."""
    token, address = request.caller.token, request.address
    found = [] if token is None else [f"token {token}"]
    return found if address is None else [*found, f"address {_network(address)}"]


def _network(address: str) -> str:
    """Return the address, or for IPv6 the network that one caller usually controls."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _NETWORK_BITS), strict=False))
