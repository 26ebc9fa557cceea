"""Pool of idle connections that wait for the next request to the same origin.

The limits apply to idle connections, not to those in use: callers limit their own concurrency.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from fairlane.http1.messages import Origin

if TYPE_CHECKING:
    import ssl

PER_ORIGIN_MAX: Final = 256
TOTAL_MAX: Final = 1024


class Keepable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Keepable)


class KeptConnections(Generic[C]):
    """Returns the newest connection first and closes connections that were idle for `seconds`."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        seconds: float,
        per_origin: int = PER_ORIGIN_MAX,
        total: int = TOTAL_MAX,
    ) -> None:
        self._monotonic = monotonic
        self._seconds = seconds
        self._per_origin = per_origin
        self._total = total
        self._lock = Lock()
        self._closed = False
        self._since: dict[C, tuple[Origin, float]] = {}  # the oldest first
        self._of: dict[Origin, dict[C, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._since)

    def put(self, origin: Origin, connection: C) -> None:
        with self._lock:
            if self._closed or len(self._of.get(origin, ())) >= self._per_origin:
                connection.close()
                return
            self._of.setdefault(origin, {})[connection] = None
            self._since[connection] = origin, self._monotonic()
            if len(self._since) > self._total:
                self._drop(next(iter(self._since)))

    def take(self, origin: Origin) -> C | None:
        """Return a connection that has not been idle for too long; the caller owns it now."""
        with self._lock:
            kept = self._of.get(origin)
            if not kept:
                return None
            connection = next(reversed(kept))
            _, since = self._since[connection]
            if self._monotonic() - since < self._seconds:
                self._forget(connection)
                return connection
            for old in list(kept):  # the others are even older
                self._drop(old)
            return None

    def forget(self, connection: C) -> None:
        """Remove a connection that was closed."""
        with self._lock:
            if connection in self._since:
                self._forget(connection)

    def close_expired(self) -> None:
        with self._lock:
            end = self._monotonic() - self._seconds
            for connection, (_, since) in list(self._since.items()):
                if since > end:
                    return
                self._drop(connection)

    def close(self) -> None:
        """Close all connections, and from now on each one that is returned."""
        with self._lock:
            self._closed = True
            for connection in list(self._since):
                self._drop(connection)

    def _drop(self, connection: C) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: C) -> None:
        origin, _ = self._since.pop(connection)
        kept = self._of[origin]
        del kept[connection]
        if not kept:
            del self._of[origin]


@cache
def default_tls() -> ssl.SSLContext:
    """Return a context that uses the system's certificates and checks host names."""
    import ssl  # noqa: PLC0415 - slow to import, and servers nearby do without it

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
