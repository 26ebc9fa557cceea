"""How many connections one caller may hold: streams and long polls, per token and per address.

Connections that are silent make room for new ones (`connections.py`), those in use do not: without
a bound, one caller with streams could use all of them.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fairlane.core.errors import TooManyConnections
from fairlane.http.messages import Request

STREAMS_DEFAULT: Final = 500
WAITS_DEFAULT: Final = 4000
_RETRY_AFTER_MS: Final = 5000
_NETWORK_BITS: Final = 64  # of an IPv6 address; the rest is the caller's own choice


class Held:
    """The places of one kind. `what` and `setting` name them in the refusal."""

    def __init__(self, what: str, setting: str, most: int) -> None:
        self._what = what
        self._setting = setting
        self._most = most
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def place(self, request: Request) -> Iterator[None]:
        """Hold a place. Raises `TooManyConnections` when the caller has no more of them.

        Callers in the same process need none.
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
            f"this {holder.partition(' ')[0]} has {self._most} {self._what} open, as many as it "
            f"may; close some, or have the operator raise {self._setting}",
            details={"setting": self._setting, "limit": self._most},
            retry_after_ms=_RETRY_AFTER_MS,
        )


def _holders(request: Request) -> list[str]:
    """Return who a place counts for: the token, if there is one, and the address."""
    token, address = request.caller.token, request.address
    found = [] if token is None else [f"token {token}"]
    return found if address is None else [*found, f"address {_network(address)}"]


def _network(address: str) -> str:
    """Return the address, or of an IPv6 address the network that one caller usually has."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _NETWORK_BITS), strict=False))
