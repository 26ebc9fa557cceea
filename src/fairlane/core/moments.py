"""Moments: whole milliseconds since 1970, from the first to the last that RFC 3339 can write.

The rule: every moment that is stored lies within `MIN` and `MAX`. Text that callers send is checked
by `parse`, and a moment that is computed goes through `later`, which stops at the bounds. `text`
writes any integer, because a row of an older store may hold one outside them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

MIN: Final = -62_135_596_800_000  # 0001-01-01T00:00:00.000Z
MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS: Final = timedelta(milliseconds=1)
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def clamped(at: int) -> int:
    """Return the moment nearest to `at` that can be written."""
    return min(max(at, MIN), MAX)


def later(at: int, ms: int) -> int:
    """Return the moment `ms` after `at`, or the last one there is."""
    return clamped(at + ms)


def span(since: int, until: int) -> int:
    """Return the milliseconds from one moment to another, 0 when it is not later."""
    return max(0, clamped(until) - clamped(since))


def text(at: int) -> str:
    """Return RFC 3339 in UTC with milliseconds. A moment out of bounds is shown as its bound."""
    seconds, millis = divmod(clamped(at), 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """Return all but the milliseconds, which the moments of one answer mostly share."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19]


def parse(written: str) -> int:
    """Return the moment that RFC 3339 with a zone names, without what is below a millisecond.

    Raise `ValueError` for anything else, and for a moment that UTC has no year for.
    """
    if not _RFC_3339.fullmatch(written):
        raise ValueError(f"'{written[:40]}' is not RFC 3339, for example 2026-03-08T12:05:00Z")
    # Python before 3.12 reads at most six digits of a second's fraction.
    digits = re.sub(r"(\.\d{6})\d+", r"\1", written.upper())
    # Whole numbers: as a float, the last moment of the year 9999 would be the first of 10000.
    at = (datetime.fromisoformat(digits) - EPOCH) // MS
    if at != clamped(at):
        raise ValueError(f"'{written}' is outside the years 1 to 9999 in UTC")
    return at


def local(at: int, zone: tzinfo | None) -> datetime:
    """Return `at` on the clocks of `zone`, or of this machine for None.

    It is in UTC where those clocks show a year that has no name.
    """
    moment = EPOCH + clamped(at) * MS
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError):  # the second for the clock of some machines
        return moment
