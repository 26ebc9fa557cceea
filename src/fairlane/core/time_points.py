"""Points in time as people write them: `1h` ago, `10:00`, a date, RFC 3339."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Final

from fairlane.core import moments

_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_AGO: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_TIME_OF_DAY: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_WITHOUT_ZONE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?")
_DAY: Final = timedelta(days=1)


def parse(text: str, now: int, zone: tzinfo | None) -> int:
    """Return the time that a text means, in milliseconds since 1970.

    `1h` is one hour before `now`. `10:00` is the last time at which the clocks of `zone` (None for
    this machine) showed it. A date or time without a zone is by these clocks too. Raise
    `ValueError` for other text.
    """
    text = text.strip()
    ago = _AGO.fullmatch(text)
    if ago:
        return moments.clamped(now - int(ago[1]) * _UNIT_MS[ago[2]])
    time_of_day = _TIME_OF_DAY.fullmatch(text)
    if time_of_day:
        return _last(now, [int(part or 0) for part in time_of_day.groups()], zone)
    try:
        if _WITHOUT_ZONE.fullmatch(text):
            return _milliseconds(datetime.fromisoformat(text.upper()), zone)
        return moments.parse(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"'{text[:40]}' is not a time; use a duration such as 1h or 2d for that long ago, "
            "a time of day such as 10:00, a date, or RFC 3339"
        ) from None


def _last(now: int, clock: list[int], zone: tzinfo | None) -> int:
    """Return the last time before `now` at which clocks showed these hours, minutes, seconds."""
    hour, minute, second = clock
    here = moments.local(now, zone).replace(tzinfo=None)
    shown = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
    at = _milliseconds(shown, zone)
    return at if at <= now else _milliseconds(shown - _DAY, zone)


def _milliseconds(shown: datetime, zone: tzinfo | None) -> int:
    aware = shown.astimezone() if zone is None else shown.replace(tzinfo=zone)
    return moments.clamped((aware - moments.EPOCH) // moments.MS)
