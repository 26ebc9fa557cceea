"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fairlane.core import moments, time_points

NOW = moments.parse("2026-03-08T12:30:00Z")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("1h", "2026-03-08T11:30:00.000Z"),
        ("90s", "2026-03-08T12:28:30.000Z"),
        ("2d", "2026-03-06T12:30:00.000Z"),
        ("1w", "2026-03-01T12:30:00.000Z"),
        ("999999999w", "0001-01-01T00:00:00.000Z"),
        ("10:00", "2026-03-08T10:00:00.000Z"),
        ("9:05:10", "2026-03-08T09:05:10.000Z"),
        ("12:30", "2026-03-08T12:30:00.000Z"),
        ("13:00", "2026-03-07T13:00:00.000Z"),
        ("2026-03-01", "2026-03-01T00:00:00.000Z"),
        ("2026-03-01 08:00", "2026-03-01T08:00:00.000Z"),
        ("2026-03-01T08:00:00.5", "2026-03-01T08:00:00.500Z"),
        (" 2026-03-08T12:05:00+01:00 ", "2026-03-08T11:05:00.000Z"),
    ],
)
def test_a_text_means_a_time(text: str, meaning: str) -> None:
    assert moments.text(time_points.parse(text, NOW, UTC)) == meaning


def test_a_time_of_day_is_that_of_the_zone() -> None:
    assert moments.text(time_points.parse("10:00", NOW, BERLIN)) == "2026-03-08T09:00:00.000Z"
    assert moments.text(time_points.parse("2026-03-08", NOW, BERLIN)) == "2026-03-07T23:00:00.000Z"


def test_without_a_zone_the_clocks_of_this_machine_count() -> None:
    meant = time_points.parse("2026-03-01T08:00", NOW, None)
    assert meant == round(datetime(2026, 3, 1, 8).astimezone().timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "1", "1y", "-1h", "25:00", "10:60", "2026-02-30", "soon"])
def test_another_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; use a duration such as 1h"):
        time_points.parse(text, NOW, UTC)
