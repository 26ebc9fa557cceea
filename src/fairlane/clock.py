"""The only reader of time; everything else receives the time as an argument.

`Clock.now` is wall time in milliseconds since the epoch, and is what gets stored. `monotonic` is
for waiting and never goes back. `reading_of` reads both at once: their difference shows whether the
wall clock was set. `ManualClock` is for tests: it stands still until it is advanced.
"""

from __future__ import annotations

import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

# The same for all processes until the machine reboots, like the monotonic clock. Linux only.
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_READ_TRIES: Final = 5
_READ_SECONDS_MAX: Final = 0.05


class Clock(Protocol):
    @property
    def judges(self) -> bool:
        """Whether this clock decides even if the database has its own."""
        ...

    @property
    def boot(self) -> str:
        """The origin of the monotonic clock. Two readings with the same origin can be compared."""
        ...

    def now(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class ClockReading(NamedTuple):
    """Wall time, and by how many milliseconds it is ahead of the monotonic clock.

    `ahead` changes only if the wall clock is set or the machine is suspended. It is None if the
    process was held up between the two readings.
    """

    now: int
    ahead: int | None


def reading_of(clock: Clock) -> ClockReading:
    """Return both clocks, read at one moment."""
    for _ in range(_READ_TRIES):
        before = clock.monotonic()
        now = clock.now()
        after = clock.monotonic()
        if after - before <= _READ_SECONDS_MAX:
            return ClockReading(now, now - round(after * 1000))
    return ClockReading(clock.now(), None)


class SystemClock:
    judges = False

    @cached_property
    def boot(self) -> str:
        try:
            return _BOOT_FILE.read_text("ascii").strip()
        except OSError:  # the boot is unknown: only this process can compare
            return uuid.uuid4().hex

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock for tests. `advance` lets time pass. `step` sets only the wall clock, as an operator
    would; so does `advance` with a negative number, because the monotonic clock never goes back.
    """

    judges = True
    boot = "manual"

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._stepped = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._stepped) / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        if milliseconds < 0:
            self.step(milliseconds)
        else:
            self._now += milliseconds

    def step(self, milliseconds: int) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._now += milliseconds
        self._stepped += milliseconds
