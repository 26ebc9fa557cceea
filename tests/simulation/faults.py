"""What goes wrong in the simulated world: the store's connection, the process, and the clock.

A plan is a list of points where the next calls fail, in order. At each point the connection breaks
(`ConnectionLost`, as a driver says it) or the whole process dies (`Killed`). The commit has two
points, before and after it became durable, because a caller cannot tell the one from the other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.store.base import Connection, ConnectionLost, Row, RowPage, Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fairlane.clock import ManualClock

OPEN: Final = "open"
LOOK_UP: Final = "look-up"  # of a commit whose answer was lost
STATEMENT: Final = "statement"
BEFORE_COMMIT: Final = "before commit"
AFTER_COMMIT: Final = "after commit"

STATEMENTS_MAX: Final = 24
SECOND: Final = 1000
HOUR: Final = 3600 * SECOND
# How often the clock is moved by up to a minute; by an hour forward, and as often back.
JUMPS: Final = 0.016
HOURS: Final = 0.002


class Killed(BaseException):
    """The process ended here. Not an `Exception`: nothing in the engine may catch and go on."""


class Fault(msgspec.Struct, frozen=True):
    point: str
    deadly: bool = False
    skip: int = 0  # how many statements still go well

    def __str__(self) -> str:
        what = "kill" if self.deadly else "lose"
        return f"{what} {self.point}" + (f" {self.skip}" if self.skip else "")


# --- the store --------------------------------------------------------------------------------


class FaultyStore:
    """A store whose write connections fail by plan. Reads for the checks go past it."""

    def __init__(self, real: Store, clock: ManualClock) -> None:
        self.real = real
        self.clock = clock
        self.committed = False
        self.moment = clock.now()  # of the newest commit, else of the newest try
        self.plan: deque[Fault] = deque()
        self.struck = 0
        self._statements = 0
        self._open: list[Connection] = []

    def reach(self, point: str) -> None:
        """Fail here when the plan says so."""
        if not self.plan or self.plan[0].point != point:
            return
        fault = self.plan[0]
        if point == STATEMENT:
            self._statements += 1
            if self._statements <= fault.skip:
                return
            self._statements = 0
        self.plan.popleft()
        self.struck += 1
        raise Killed if fault.deadly else ConnectionLost(str(fault))

    def prepare(self, plan: Sequence[Fault]) -> None:
        """Fail as planned, from here on."""
        self.plan = deque(plan)
        self.committed = False
        self._statements = 0

    def writer(self) -> Connection:
        self.reach(OPEN)
        real = self.real.writer()
        self._open.append(real)
        return FaultyConnection(real, self)

    def drop(self) -> None:
        """What the system does for a dead process: its connections end, uncommitted work goes."""
        while self._open:
            self._open.pop().close()

    def closed(self, connection: Connection) -> None:
        self._open = [one for one in self._open if one is not connection]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class FaultyConnection:
    """Once broken it stays broken, like a socket: only `close` goes through."""

    def __init__(self, real: Connection, store: FaultyStore) -> None:
        self._real = real
        self._store = store
        self._broken = False
        self._began_at = 0

    def run(self, name: str, /, **values: Any) -> list[Row]:
        self._reach(LOOK_UP if name == "writer_commit" else STATEMENT)
        return self._real.run(name, **values)

    def run_page(self, name: str, limit: int, bytes_max: int, /, **values: Any) -> RowPage:
        self._reach(STATEMENT)
        return self._real.run_page(name, limit, bytes_max, **values)

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        self._reach(STATEMENT)
        return self._real.run_rows(name, rows, **values)

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        self._reach(STATEMENT)
        self._real.change_rows(name, rows)

    def begin(self) -> Row:
        self._reach(STATEMENT)
        self._began_at = self._store.clock.now()
        if not self._store.committed:
            self._store.moment = self._began_at
        return self._real.begin()

    def commit(self) -> None:
        self._reach(BEFORE_COMMIT)
        self._real.commit()
        self._store.committed, self._store.moment = True, self._began_at
        self._reach(AFTER_COMMIT)

    def rollback(self) -> None:
        if not self._broken:
            self._real.rollback()

    def close(self) -> None:
        self._store.closed(self._real)
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _reach(self, point: str) -> None:
        if self._broken:
            raise ConnectionLost("the connection is gone")
        if self._store.plan:
            try:
                self._store.reach(point)
            except BaseException:
                self._broken = True
                raise


def plan_faults(rng: Random) -> list[Fault]:
    """What happens to the store in the next batch."""
    chance = rng.random()
    skip = rng.randrange(STATEMENTS_MAX)
    if chance < 0.30:
        return [Fault(rng.choice((BEFORE_COMMIT, AFTER_COMMIT)))]
    if chance < 0.45:
        return [Fault(STATEMENT, skip=skip)]
    if chance < 0.60:  # one loss on the other, but the store comes back in time
        again = rng.choice((BEFORE_COMMIT, AFTER_COMMIT))
        return [Fault(again), *_some(rng, Fault(OPEN)), *_some(rng, Fault(LOOK_UP)), Fault(again)]
    if chance < 0.65:  # it does not come back in time
        return [Fault(rng.choice((BEFORE_COMMIT, AFTER_COMMIT))), *[Fault(OPEN)] * 6]
    if chance < 0.75:
        return [Fault(STATEMENT, deadly=True, skip=skip)]
    if chance < 0.80:  # dies while it asks what became of its commit
        return [Fault(AFTER_COMMIT), Fault(LOOK_UP, deadly=True)]
    return [Fault(rng.choice((BEFORE_COMMIT, AFTER_COMMIT)), deadly=True)]


def _some(rng: Random, fault: Fault) -> list[Fault]:
    return [fault] * rng.randrange(2)


# --- the clock --------------------------------------------------------------------------------


class ClockFaults:
    """Lets time pass, and sets the wall clock. An hour back is made good after a while, as an
    operator would: what was named by the clock waits as long. An hour forward stays, as after a
    suspend. Now and then nobody looks for up to a minute, which is no step.
    """

    def __init__(self, rng: Random, clock: ManualClock) -> None:
        self._rng = rng
        self._clock = clock
        self._owed = 0
        self._steps_left = 0

    def move(self, *, faulty: bool) -> int:
        """By how much the wall clock has moved; all of it was a step, or none."""
        by = self._next(faulty=faulty)
        stepped = by < 0 or by >= HOUR or (by >= 2 * SECOND and by % 2)
        (self._clock.step if stepped else self._clock.advance)(by)
        return by

    def end(self) -> None:
        """Take back what is still owed."""
        by, self._owed = self._owed, 0
        self._clock.step(by)

    def _next(self, *, faulty: bool) -> int:
        rng = self._rng
        if self._owed:
            self._steps_left -= 1
            if self._steps_left <= 0:
                by, self._owed = self._owed, 0
                return by
        chance = rng.random()
        if faulty and chance < JUMPS:
            return rng.choice((-1, 1)) * rng.randrange(SECOND, 60 * SECOND)
        if faulty and chance < JUMPS + HOURS:
            return HOUR
        if faulty and chance < JUMPS + 2 * HOURS and not self._owed:
            self._owed, self._steps_left = HOUR, rng.randrange(5, 40)
            return -HOUR
        if chance < 0.25:
            return 0
        return rng.randrange(50, 1200)
