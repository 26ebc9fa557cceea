"""The only reader of time. Everything else is told.

`Clock.now` is wall time in milliseconds since the epoch and is what gets stored; `monotonic` is
for waiting and never goes back. `ManualClock` is for tests: it stands still until it is moved.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    @property
    def judges(self) -> bool:
        """Whether this clock is to be believed even where the database has one of its own."""
        ...

    def now(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    judges = False

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    judges = True

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._now / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        self._now += milliseconds
