"""When a rule fires, found the slow way: walk through real time and look at the clock on a wall.

An oracle for `core.cron`, which it shares nothing with. It reads an expression by its own means and
decides minute by minute. The rule about changes of the clock, in one place:

- a rule whose hour field begins with `*` follows real time: minutes that the clock jumps over never
  come, minutes that come again count again, and their keys carry the offset;
- any other rule means times of day: a time that comes twice counts the first time, times that are
  jumped over all count once, at the first moment after the jump.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
FIRST: Final = 0  # 1970
LAST: Final = 2_145_916_800  # 2038
LOOK_EVERY: Final = 10 * DAY  # no zone changes and changes back in less

NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


# --- the zones --------------------------------------------------------------------------------


class Change(NamedTuple):
    """At `at` (seconds) the clock of a zone goes from one offset to another."""

    zone: str
    at: int
    before: int
    after: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """What matters to a rule: the two offsets and the time of day."""
        return self.before, self.after, (self.at + self.before) % DAY


@cache
def zones() -> tuple[tuple[Change, ...], ...]:
    """The changes of each zone that ever changes; of zones that agree in all of them only one."""
    found: dict[tuple[tuple[int, int, int], ...], tuple[Change, ...]] = {}
    for name in sorted(available_timezones()):
        changes = tuple(_changes(name))
        if changes:
            found.setdefault(tuple(change[1:] for change in changes), changes)
    return tuple(found.values())


def changes_of(name: str) -> tuple[Change, ...]:
    return tuple(_changes(name))


def _changes(name: str) -> Iterator[Change]:
    zone = ZoneInfo(name)
    before = _offset(zone, FIRST)
    for at in range(FIRST + LOOK_EVERY, LAST, LOOK_EVERY):
        after = _offset(zone, at)
        if after != before:
            early, late = at - LOOK_EVERY, at
            while late - early > 1:
                middle = (early + late) // 2
                if _offset(zone, middle) == before:
                    early = middle
                else:
                    late = middle
            yield Change(name, late, before, after)
            before = after


def _offset(zone: ZoneInfo, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


# --- the rule ---------------------------------------------------------------------------------


class Rule:
    """A cron expression as sets of numbers."""

    def __init__(self, expr: str) -> None:
        fields = NAMED.get(expr.lower(), expr).lower().split()
        assert len(fields) == 5, expr
        minutes, hours, days, months, weekdays = map(_numbers, fields, RANGES)
        self.minutes, self.hours, self.days, self.months = minutes, hours, days, months
        self.weekdays = {number % 7 for number in weekdays}
        self.follows_real_time = fields[1].startswith("*")
        self._both = fields[2].startswith("*") or fields[4].startswith("*")
        self._known: dict[date, bool] = {}

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.second:
            return False
        return self.matches_day(wall.date())

    def matches_day(self, day: date) -> bool:
        known = self._known.get(day)
        if known is None:
            known = self._known[day] = self._matches_day(day)
        return known

    def _matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month and by_week if self._both else by_month or by_week


def _numbers(field: str, bounds: tuple[int, int]) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            low, high = bounds
        else:
            first, _, last = span.partition("-")
            low = _number(first)
            high = _number(last) if last else bounds[1] if step else low
        found.update(range(low, high + 1, int(step or 1)))
    return found


def _number(word: str) -> int:
    if word in MONTHS:
        return MONTHS.index(word) + 1
    return WEEKDAYS.index(word) if word in WEEKDAYS else int(word)


# --- the walk ---------------------------------------------------------------------------------


class Moment(NamedTuple):
    at: int  # seconds
    wall: datetime  # what the clock shows
    again: bool  # for the second time
    skipped: tuple[datetime, ...]  # minutes that it never showed, just before
    offset: str  # said only of what comes again


class Firing(NamedTuple):
    at: int  # milliseconds
    key: str


def walk(name: str, start: int, end: int, step: int = MINUTE) -> list[Moment]:
    """Each moment from `start` to `end` (seconds) at which the clock of a zone shows a new minute.

    What the clock showed before `start` is not known, so start well before a change. A longer
    `step` is for rules whose minutes are multiples of it, in zones whose changes are, too.
    """
    zone = ZoneInfo(name)
    if _offset(zone, start) % MINUTE or _offset(zone, end) % MINUTE:
        step = 30  # some zones once had offsets with seconds in them
    found: list[Moment] = []
    shown: set[datetime] = set()
    last: datetime | None = None
    for at in range(start - start % step, end + 1, step):
        local = datetime.fromtimestamp(at, zone)
        wall = local.replace(tzinfo=None, fold=0)
        skipped = _skipped(last, wall, step)
        again = wall in shown
        offset = local.isoformat()[-6:] if again else ""
        found.append(Moment(at, wall, again, skipped, offset))
        shown.add(wall)
        last = wall
    return found


def _skipped(last: datetime | None, wall: datetime, step: int) -> tuple[datetime, ...]:
    if last is None or wall - last <= timedelta(seconds=step):
        return ()
    minute = last.replace(second=0) + timedelta(minutes=1)
    count = -((wall - minute) // timedelta(minutes=-1))
    return tuple(minute + timedelta(minutes=number) for number in range(count))


def firings(rule: Rule, moments: Sequence[Moment]) -> Iterator[Firing]:
    """The firings of a rule among these moments."""
    for moment in moments:
        matches = rule.matches(moment.wall)
        if rule.follows_real_time:
            fires, suffix = matches, moment.offset
        else:
            fires = (matches and not moment.again) or any(map(rule.matches, moment.skipped))
            suffix = ""
        if fires:
            key = moment.wall.isoformat(timespec="minutes") + suffix
            yield Firing(moment.at * 1000, key)
