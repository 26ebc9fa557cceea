"""Schedules and their slots: the times at which a rule fires, each with a name.

A slot is named by its wall time, which is how a person would refer to the run.

Daylight saving: a wall time that occurs twice fires the first time, one that does not exist fires
when the gap ends, and slots that coincide are one. Rules with `*` in the hour field follow elapsed
time instead: they fire in both of the repeated hours, and the second has its offset in its name.
Caution: `cronsim` sees wall time only; this module decides what that means in a zone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from fairlane.core import moments
from fairlane.core.errors import InvalidRequest
from fairlane.core.moments import EPOCH, MS
from fairlane.core.policy import nearest

AT: Final = "at"
EVERY: Final = "every"
CRON: Final = "cron"
KINDS: Final = (AT, EVERY, CRON)

EVERY_MS_MIN: Final = 1000
EVERY_MS_MAX: Final = 366 * 86_400_000
EXPR_CHARACTERS_MAX: Final = 256

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_STEPPED: Final = re.compile(r"(\w+)-(\w+)/0*[1-9]\d*")
_NAMES: Final = {
    name: str(number).lstrip("0")
    for names, first in (
        ("SUN MON TUE WED THU FRI SAT", 0),
        ("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", 1),
    )
    for number, name in enumerate(names.split(), first)
}
_WALL_EPOCH: Final = EPOCH.replace(tzinfo=None)


class Schedule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`at` fires once, `every` at an interval from an anchor, `cron` by five fields in a zone."""

    kind: str
    at: int | None = None
    every_ms: int | None = None
    anchor_at: int | None = None
    expr: str | None = None
    tz: str = "UTC"


class Slot(msgspec.Struct, frozen=True):
    """A time of a schedule, and its name among the slots of its job."""

    at: int
    key: str


# -------------------------------------------------------------------- slots


def next_slot(schedule: Schedule, after: int) -> Slot | None:
    """Return the first slot after `after`; None if it never fires again."""
    at = next(moments_of(schedule, after), None)
    return None if at is None else slot_at(schedule, at)


def slot_at(schedule: Schedule, at: int) -> Slot:
    """Return the slot of a schedule at a known time."""
    by_wall = schedule.kind == CRON
    return Slot(at, _wall_text(at, _zone(schedule.tz)) if by_wall else moments.text(at))


def moments_of(schedule: Schedule, after: int) -> Iterator[int]:
    """Yield the times of all slots after `after`, in order, up to the last possible one."""
    return itertools.takewhile(lambda at: at <= moments.MAX, _unbounded(schedule, after))


def _unbounded(schedule: Schedule, after: int) -> Iterator[int]:
    """Yield the times without that end: 9999 in a zone behind UTC ends in the year 10000."""
    if schedule.kind == CRON:
        yield from _cron_moments(schedule, _zone(schedule.tz), after)
    elif schedule.kind == EVERY:
        assert schedule.every_ms is not None
        anchor_at = schedule.anchor_at or 0
        number = max(1, (after - anchor_at) // schedule.every_ms + 1)
        first_at = anchor_at + number * schedule.every_ms
        yield from itertools.count(first_at, schedule.every_ms)
    else:
        assert schedule.at is not None
        if schedule.at > after:
            yield schedule.at


def _cron_moments(schedule: Schedule, zone: tzinfo, after: int) -> Iterator[int]:
    """Yield the times of a rule's wall times after `after`, increasing."""
    expr = _plain(schedule.expr or "")
    elapsed = expr.split()[1].startswith("*")
    again: list[int] = []  # the second occurrence of repeated wall times comes after all first ones
    last = after
    for wall in _wall_times(expr, _start(zone, after)):
        first, second = _moments(wall, zone)
        while again and again[0] < first:
            yield again.pop(0)
        if first > second:
            if elapsed:
                continue
            first = second = _gap_end(zone, second, first)
        if first > last:
            last = first
            yield first
        if elapsed and second > max(first, after):
            again.append(second)
    yield from again


def _start(zone: tzinfo, after: int) -> datetime:
    """Return the wall time to start from; a repeated hour may still be to come entirely."""
    wall = moments.local(after, zone).replace(tzinfo=None, fold=0)
    first, second = _moments(wall, zone)
    return wall - max(0, second - first) * MS


def _wall_times(expr: str, start: datetime) -> Iterator[datetime]:
    """Yield the wall times of a rule after `start`; end if none comes for fifty years."""
    try:
        yield from CronSim(expr, start)
    except (CronSimError, OverflowError, ValueError):  # no such day, or the end of the calendar
        return


def _plain(expr: str) -> str:
    """Return the five fields for `cronsim`, which reads a one-value range with a step as
    open-ended.
    """
    return _STEPPED.sub(_without_step, NICKNAMES.get(expr, expr).upper())


def _without_step(match: re.Match[str]) -> str:
    low, high = (_NAMES.get(word, word.lstrip("0")) for word in match.groups())
    return match[1] if low == high else match[0]


def _moments(wall: datetime, zone: tzinfo) -> tuple[int, int]:
    """Return the two times that a wall time may stand for.

    Mostly they are the same. The second is later if the clock is set back, and earlier inside a
    gap, which lies between them.
    """
    ms = (wall - _WALL_EPOCH) // MS
    if zone is UTC:
        return ms, ms
    first, second = (wall.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None
    assert second is not None
    return ms - first // MS, ms - second // MS


def _gap_end(zone: tzinfo, before: int, after: int) -> int:
    """Return the time when the clock is set forward, later than `before` and at most `after`."""
    offset = moments.local(before, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if moments.local(middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _wall_text(at: int, zone: tzinfo) -> str:
    wall = moments.local(at, zone)
    shown = wall if wall.fold else wall.replace(tzinfo=None)
    return shown.isoformat(timespec="minutes")


# -------------------------------------------------------------------- validation


def checked(schedule: Schedule, now: int) -> None:
    """Return a valid schedule. Raise `InvalidRequest` for others and if it never fires."""
    if schedule.kind == AT:
        _check_at(schedule, now)
    elif schedule.kind == EVERY:
        _check_every(schedule)
    elif schedule.kind == CRON:
        _check_cron(schedule, now)
    else:
        hint = nearest(schedule.kind, KINDS)
        raise InvalidRequest(f"field 'schedule.kind' must be one of {', '.join(KINDS)}{hint}")


def _check_at(schedule: Schedule, now: int) -> None:
    if schedule.at is None:
        raise InvalidRequest("missing required field 'schedule.at' (or 'schedule.atMs')")
    if schedule.at <= now:
        raise InvalidRequest("field 'schedule.at' is in the past: give a time in the future")


def _check_every(schedule: Schedule) -> None:
    if schedule.every_ms is None:
        raise InvalidRequest("missing required field 'schedule.everyMs'")
    if not EVERY_MS_MIN <= schedule.every_ms <= EVERY_MS_MAX:
        raise InvalidRequest(
            f"field 'schedule.everyMs' must be from {EVERY_MS_MIN} to {EVERY_MS_MAX}"
        )
    if next_slot(schedule, 0) is None:
        raise InvalidRequest("field 'schedule.anchor' is too late: no run can follow it")


def _check_cron(schedule: Schedule, now: int) -> None:
    if not schedule.expr:
        raise InvalidRequest("missing required field 'schedule.expr'")
    _check_zone(schedule.tz)
    _check_expr(schedule.expr)
    if next_slot(schedule, now) is None:
        raise InvalidRequest(
            f"field 'schedule.expr': '{schedule.expr}' never runs: that date does not exist"
        )


def _check_zone(name: str) -> None:
    try:
        _zone(name)
    except (LookupError, ValueError, OSError):
        hint = nearest(name, available_timezones())
        raise InvalidRequest(
            f"field 'schedule.tz': '{name[:40]}' is not an IANA time zone "
            f"(such as Europe/Berlin){hint}"
        ) from None


def _check_expr(expr: str) -> None:
    if expr.startswith("@"):
        if expr not in NICKNAMES:
            known = ", ".join(NICKNAMES)
            raise InvalidRequest(
                f"field 'schedule.expr': '{expr[:40]}' is not a nickname; use one of {known}"
            )
        return
    if len(expr) > EXPR_CHARACTERS_MAX:
        limit = EXPR_CHARACTERS_MAX
        raise InvalidRequest(f"field 'schedule.expr' must not be longer than {limit} characters")
    fields = len(expr.split())
    if fields != 5:
        raise InvalidRequest(
            f"field 'schedule.expr' must have five fields "
            f"(minute hour day month weekday), got {fields}"
        )
    minute, hour, day, month, weekday = expr.split()
    try:
        # Checked separately, so that a day that no month has is not reported as a mistake in the
        # field.
        CronSim(f"{minute} {hour} {day} * {weekday}", _WALL_EPOCH)
        CronSim(f"* * * {month} *", _WALL_EPOCH)
    except CronSimError as error:
        problem = str(error).lower()
        raise InvalidRequest(f"field 'schedule.expr': '{expr[:80]}': {problem}") from None
