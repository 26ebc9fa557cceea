"""Outages of the store: one log line at the start of an outage, and one at its end.

Many parts of a node run into the same outage many times a second, in several threads. They report
it here and log nothing themselves.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from fairlane.clock import Clock
from fairlane.core.errors import StoreUnavailable

log = logging.getLogger("fairlane.store")

WRITES: Final = "written"
READS: Final = "read"
RETRY_AFTER_MS: Final = 1000


def store_unavailable(consequence: str) -> StoreUnavailable:
    """Return the error for callers; it names no address and no path."""
    return StoreUnavailable(
        f"the store does not respond; {consequence}", retry_after_ms=RETRY_AFTER_MS
    )


class Outages:
    """An outage lasts from the first failure until every part that failed has succeeded again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: dict[str, float] = {}  # the failing parts, and since when
        self._began = 0.0
        self._failures = 0

    def failed(self, what: str, reason: object, began: float | None = None) -> None:
        """Report that the store could not be written or read, in an attempt that started at
        `began`.
        """
        with self._lock:
            self._failures += 1
            if what in self._failing:
                return
            since = self._clock.monotonic() if began is None else began
            first = not self._failing
            self._failing[what] = since
            if not first:
                return
            self._began = since
        log.warning(
            "the store cannot be %s; requests fail with 503 until it recovers: %s", what, reason
        )

    def seconds(self, what: str) -> float:
        """Return how long it has been failing; 0 if it works."""
        since = self._failing.get(what)
        return 0.0 if since is None else max(0.001, self._clock.monotonic() - since)

    def worked(self, what: str) -> None:
        """Report a success."""
        if what not in self._failing:  # nearly always
            return
        with self._lock:
            self._failing.pop(what, None)
            if self._failing or not self._failures:
                return
            failures, self._failures = self._failures, 0
        seconds = self._clock.monotonic() - self._began
        log.warning("the store works again after %.1f s (%d failures)", seconds, failures)
