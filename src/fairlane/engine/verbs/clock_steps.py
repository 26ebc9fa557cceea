"""Steps of the wall clock: it was set, or the machine was suspended.

Where the process's clock is authoritative, times are stored as wall time, but spans (leases,
delays, relative deadlines) measure elapsed time. The store keeps the offset of the wall clock from
the monotonic clock. A transaction that finds a different offset moves the end of every span in
progress by the difference, before it decides anything, and stores the new offset. So a step is
applied once, whichever process sees it first and whatever happens to that process. Times that a
caller named by the wall clock (`runAt`, `deadline`, slots of cron jobs) stay, and so do recorded
times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlane.clock import ClockReading
from fairlane.core.model import CRITICAL
from fairlane.engine.verbs import resources
from fairlane.store.tables import scheduler

if TYPE_CHECKING:
    from fairlane.clock import Clock
    from fairlane.store.transaction import Transaction

STEP_MS: Final = 1000  # a smaller step changes spans by as much, which is acceptable
DRIFT_MS: Final = 100  # how far the stored distance may be off


class Steps:
    """What one process knows about its clock: the offset in the last transaction and the stored
    one; None if not known.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead: int | None = None
        self._stored: int | None = None
        # Of the current or last transaction: the distance it uses and the one it stores.
        self._reading = ClockReading(0, None)
        self._storing: int | None = None

    def happened(self, reading: ClockReading) -> bool:
        """Return whether the clock was set since the last transaction."""
        return _step(self._ahead, reading.ahead) != 0

    def forget_store(self) -> None:
        """Read the stored offset again, because other processes may have changed it."""
        self._stored = None

    def take_in(self, tx: Transaction, reading: ClockReading) -> int:
        """Move spans if the clock was set; return the step in milliseconds."""
        self._reading, self._storing = reading, None
        if reading.ahead is None:
            return 0
        before = self._ahead
        if self._stored is None:
            boot, ahead = scheduler.clock(tx.connection)
            if boot == self._clock.boot:
                self._stored = before = ahead
        by = _step(before, reading.ahead)
        if by:
            move_spans(tx, by)
        return by

    def save(self, tx: Transaction) -> None:
        """Store the offset if it changed, in the transaction to be committed."""
        ahead = self._reading.ahead
        if ahead is None:
            return
        if self._stored is None or abs(ahead - self._stored) >= DRIFT_MS:
            scheduler.save_clock(tx.connection, self._clock.boot, ahead)
            self._storing = ahead

    def remember(self) -> None:
        """Remember the offset after a commit. Small differences come from slewing and do not add up
        to a step.
        """
        if self._reading.ahead is not None:
            self._ahead = self._reading.ahead
        if self._storing is not None:
            self._stored = self._storing


def _step(before: int | None, after: int | None) -> int:
    if before is None or after is None or abs(after - before) < STEP_MS:
        return 0
    return after - before


def move_spans(tx: Transaction, by: int) -> None:
    """Move the ends of all spans in progress: leases, waits, windows, deadlines, ages."""
    scheduler.move_spans(tx.connection, by, tx.now)
    for name, lane in tx.policy.lanes.items():
        if lane.aging_ms is not None:
            scheduler.move_ranks(tx.connection, name, by, CRITICAL)
    resources.move_spans(tx, by)
    tx.changed = tx.webhooks_due = True
