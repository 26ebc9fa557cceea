"""Times: whole milliseconds since 1970, within the range that RFC 3339 can write.

The rule: every stored time lies within `MIN` and `MAX`. `parse` checks text that callers send; a
computed time goes through `later`, which stops at the bounds. `text` writes any integer, because a
row of an older store may hold one out of range.
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
    """Return the nearest time that can be written."""
    return min(max(at, MIN), MAX)


def later(at: int, ms: int) -> int:
    """Return the time `ms` after `at`, at most the last one."""
    return clamped(at + ms)


def span(since: int, until: int) -> int:
    """Return the milliseconds from one time to another, 0 if it is not later."""
    return max(0, clamped(until) - clamped(since))


def text(at: int) -> str:
    """Return RFC 3339 in UTC with milliseconds. A time out of range is shown as the bound."""
    seconds, millis = divmod(clamped(at), 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """Return all but the milliseconds, which the times of one response mostly share."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19]


def parse(written: str) -> int:
    """Return the time of an RFC 3339 text with a zone, cut to milliseconds.

    Raise `ValueError` for other text and for a time whose year in UTC is out of range.
    """
    if not _RFC_3339.fullmatch(written):
        raise ValueError(f"'{written[:40]}' is not RFC 3339, for example 2026-03-08T12:05:00Z")
    # Python before 3.12 reads at most six digits of a second's fraction.
    digits = re.sub(r"(\.\d{6})\d+", r"\1", written.upper())
    # Integers: as a float, the last time of the year 9999 would be the first of 10000.
    at = (datetime.fromisoformat(digits) - EPOCH) // MS
    if at != clamped(at):
        raise ValueError(f"'{written}' is outside the years 1 to 9999 in UTC")
    return at


def local(at: int, zone: tzinfo | None) -> datetime:
    """Return `at` on the clocks of `zone`, or of this machine for None.

    Return UTC if those clocks show a year that cannot be written.
    """
    moment = EPOCH + clamped(at) * MS
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError):  # the second one is for the clock of some machines
        return moment
