"""Schedules: the moments at which they fire, what those are called, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fairlane.core.errors import InvalidRequest
from fairlane.core.schedule_times import NICKNAMES, Schedule, Slot, checked, next_slot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


NOW = at("2026-03-01T12:00:00Z")


def cron(expr: str, tz: str = "UTC") -> Schedule:
    return Schedule(kind="cron", expr=expr, tz=tz)


def keys(schedule: Schedule, after: str, count: int) -> list[str]:
    """The names of the next slots."""
    found: list[str] = []
    moment = at(after)
    while len(found) < count and (slot := next_slot(schedule, moment)) is not None:
        assert slot.at > moment
        found.append(slot.key)
        moment = slot.at
    return found


def test_at_fires_once() -> None:
    once = Schedule(kind="at", at=NOW)
    assert next_slot(once, NOW - 1) == Slot(NOW, "2026-03-01T12:00:00.000Z")
    assert next_slot(once, NOW) is None


def test_every_counts_from_its_anchor_and_does_not_drift() -> None:
    every = Schedule(kind="every", every_ms=1500, anchor_at=NOW)
    assert next_slot(every, NOW - 10**9) == Slot(NOW + 1500, "2026-03-01T12:00:01.500Z")
    assert next_slot(every, NOW + 1499) == next_slot(every, NOW)
    assert next_slot(every, NOW + 1500) == Slot(NOW + 3000, "2026-03-01T12:00:03.000Z")
    assert next_slot(every, NOW + 10**9) == Slot(NOW + 666_667 * 1500, "2026-03-13T01:46:40.500Z")


def test_cron_fires_by_the_clock_on_the_wall_of_its_zone() -> None:
    weekdays = cron("0 9 * * 1-5", "America/New_York")
    assert keys(weekdays, "2026-03-06T15:00:00Z", 2) == ["2026-03-09T09:00", "2026-03-10T09:00"]
    monday = next_slot(weekdays, at("2026-03-06T15:00:00Z"))
    assert monday == Slot(at("2026-03-09T13:00:00Z"), "2026-03-09T09:00")  # summer time by then


@pytest.mark.parametrize(("name", "expr"), NICKNAMES.items())
def test_a_nickname_stands_for_its_five_fields(name: str, expr: str) -> None:
    assert next_slot(cron(name), NOW) == next_slot(cron(expr), NOW)


def test_a_range_of_one_with_a_step_is_one() -> None:
    for expr in ("0 0 1 1-1/1 *", "0 0 1 jan-JAN/2 *", "0 0 1 01-1/3 *"):
        assert next_slot(cron(expr), NOW) == next_slot(cron("0 0 1 1 *"), NOW)
    assert keys(cron("0 0 * * 0-0/2"), "2026-03-01T12:00:00Z", 1) == ["2026-03-08T00:00"]
    assert keys(cron("0 1-3/2 * * *"), "2026-03-01T12:00:00Z", 2) == [
        "2026-03-02T01:00",
        "2026-03-02T03:00",
    ]


# -------------------------------------------------------------------- when the clock is changed

BERLIN = "Europe/Berlin"  # 2026: 02:00 becomes 03:00 on March 29, 03:00 becomes 02:00 on October 25
BEFORE_GAP = "2026-03-28T12:00:00Z"
BEFORE_OVERLAP = "2026-10-24T12:00:00Z"


def test_a_time_that_does_not_exist_fires_when_the_gap_ends() -> None:
    assert keys(cron("30 2 * * *", BERLIN), BEFORE_GAP, 2) == [
        "2026-03-29T03:00",
        "2026-03-30T02:30",
    ]


def test_times_that_fall_together_are_one() -> None:
    assert keys(cron("0,20,40 2,3 * * *", BERLIN), BEFORE_GAP, 3) == [
        "2026-03-29T03:00",
        "2026-03-29T03:20",
        "2026-03-29T03:40",
    ]


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    half_past_two = cron("30 2 * * *", BERLIN)
    assert keys(half_past_two, BEFORE_OVERLAP, 2) == ["2026-10-25T02:30", "2026-10-26T02:30"]
    first = next_slot(half_past_two, at(BEFORE_OVERLAP))
    assert first is not None
    assert first.at == at("2026-10-25T00:30:00Z")
    # Asked between the two: the second is not a slot.
    assert keys(half_past_two, "2026-10-25T01:10:00Z", 1) == ["2026-10-26T02:30"]


def test_an_hourly_rule_goes_on_through_both_of_the_repeated_hours() -> None:
    assert keys(cron("30 * * * *", BERLIN), "2026-10-24T23:45:00Z", 3) == [
        "2026-10-25T02:30",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:30",
    ]
    assert keys(cron("30 * * * *", BERLIN), "2026-10-25T00:45:00Z", 1) == ["2026-10-25T02:30+01:00"]
    assert keys(cron("30 * * * *", BERLIN), "2026-10-25T01:40:00Z", 1) == ["2026-10-25T03:30"]


def test_an_hourly_rule_does_not_mind_a_gap() -> None:
    assert keys(cron("30 * * * *", BERLIN), "2026-03-29T00:15:00Z", 2) == [
        "2026-03-29T01:30",
        "2026-03-29T03:30",
    ]


def test_a_repeated_hour_at_the_end_of_a_rule_comes_too() -> None:
    """What comes a second time is not waited for by anything that comes after it."""
    last = cron("0 */24 25 10 *", "Atlantic/Azores")
    assert keys(last, "2026-10-24T12:00:00Z", 3) == [
        "2026-10-25T00:00",
        "2026-10-25T00:00-01:00",
        "2027-10-25T00:00",
    ]


def test_there_is_nothing_after_the_end_of_the_calendar() -> None:
    assert next_slot(cron("0 0 1 1 *"), at("9999-06-01T00:00:00Z")) is None
    rule = cron("0 * 31 12 *", "Pacific/Kiritimati")
    assert next_slot(rule, at("9999-12-31T09:30:00Z")) is None


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(kind="at", at=NOW + 1),
        Schedule(kind="every", every_ms=1000),
        cron("@daily", "Asia/Kathmandu"),
        cron("0 0 29 2 *"),
        cron("0 9 L * *"),
    ],
)
def test_a_good_schedule_passes(schedule: Schedule) -> None:
    checked(schedule, NOW)
    assert next_slot(schedule, NOW) is not None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            Schedule(kind="evry"),
            "'schedule.kind' must be one of at, every, cron; did you mean every",
        ),
        (Schedule(kind="at"), "'schedule.at'"),
        (Schedule(kind="at", at=NOW), "'schedule.at' is in the past"),
        (Schedule(kind="every"), "'schedule.everyMs'"),
        (Schedule(kind="every", every_ms=999), "'schedule.everyMs' must be from 1000 to"),
        (Schedule(kind="every", every_ms=367 * 86_400_000), "'schedule.everyMs'"),
        (
            Schedule(kind="every", every_ms=1000, anchor_at=at("9999-12-31T23:59:59.500Z")),
            "'schedule.anchor'",
        ),
        (Schedule(kind="cron"), "missing required field 'schedule.expr'"),
        (cron("0 0 * *"), "'schedule.expr' must have five fields"),
        (cron("0 0 0 * * *"), "got 6"),
        (cron("0 0 1" + ",1" * 200 + " * *"), "longer than 256 characters"),
        (cron("0 24 * * *"), "bad hour"),
        (cron("0 0 * 13 *"), "bad month"),
        (cron("@dayly"), "'@dayly' is not a nickname; use one of @yearly"),
        (cron("0 0 30 2 *"), "never runs"),
        (cron("0 0 * * *", "Europe/Berln"), "'schedule.tz': 'Europe/Berln'"),
        (cron("0 0 * * *", "Europe/Berln"), "did you mean Europe/Berlin?"),
        (cron("0 0 * * *", "Europe"), "'schedule.tz'"),
        (cron("0 0 * * *", "../zone"), "'schedule.tz'"),
    ],
)
def test_a_bad_schedule_is_refused_by_the_name_of_its_field(
    schedule: Schedule, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(schedule, NOW)
    assert message in caught.value.message
