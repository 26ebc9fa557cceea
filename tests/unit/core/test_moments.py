"""Moments: what is read, what is computed and what is shown stays within the calendar."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.core import admission, leases, moments, schedule_times, sessions
from fairlane.core.model import Submission
from fairlane.core.policy import Policy, SessionPolicy
from fairlane.core.schedule_times import Schedule
from tests.unit.core import rows
from tests.unit.core.rows import NOW, TOKEN

DAY_MS = 86_400_000


# ---------------------------------------------------------------- text


@given(at=st.integers(-(2**63), 2**63 - 1))
@example(moments.MAX + 1)
@example(moments.MIN - 1)
def test_any_stored_integer_is_written_as_a_moment_that_can_be_read_again(at: int) -> None:
    written = moments.text(at)
    assert moments.parse(written) == moments.clamped(at)
    assert datetime.fromisoformat(written).year in range(1, 10_000)


@given(at=st.integers(moments.MIN, moments.MAX))
@example(moments.MIN)
@example(moments.MAX)
def test_a_moment_within_the_calendar_is_read_as_it_was_written(at: int) -> None:
    assert moments.parse(moments.text(at)) == at


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("9999-12-31T23:59:59.999999999Z", moments.MAX),
        ("9999-12-31T23:59:59.9995Z", moments.MAX),
        ("9999-12-31t18:59:59.999-05:00", moments.MAX),
        ("0001-01-01T00:00:00Z", moments.MIN),
        ("0001-01-01T14:00:00+14:00", moments.MIN),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("2026-03-08T12:05:00.0019Z", 1_772_971_500_001),
    ],
)
def test_what_is_below_a_millisecond_is_cut_off_and_never_rounded_up(written: str, at: int) -> None:
    assert moments.parse(written) == at


@pytest.mark.parametrize(
    "written",
    [
        *(
            "9999-12-31T23:59:59.999-00:01",
            "9999-12-31T23:59:59-14:00",
            "0001-01-01T00:00:00+00:01",
        ),
        *("10000-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "2026-02-29T00:00:00Z", "now", ""),
        *("2026-03-08T12:05:00", "2026-03-08", "2026-03-08T12:05:00+24:00", "-001-01-01T00:00:00Z"),
        *("٢٠٢٦-03-08T12:05:00Z", "2026-03-08T12:05:60Z", "253402300799999", "Infinity"),
    ],
)
def test_what_names_no_moment_of_the_calendar_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        moments.parse(written)


@pytest.mark.parametrize(
    ("zone", "at", "shown"),
    [
        ("Asia/Tokyo", moments.MAX, "9999-12-31T23:59:59+00:00"),
        ("America/New_York", moments.MAX, "9999-12-31T18:59:59-05:00"),
        ("America/New_York", moments.MIN, "0001-01-01T00:00:00+00:00"),
        ("Asia/Tokyo", 0, "1970-01-01T09:00:00+09:00"),
        ("Asia/Tokyo", 2**63 - 1, "9999-12-31T23:59:59+00:00"),
    ],
)
def test_a_clock_that_has_no_year_for_it_is_replaced_by_utc(zone: str, at: int, shown: str) -> None:
    assert moments.local(at, ZoneInfo(zone)).isoformat(timespec="seconds") == shown
    assert moments.local(at, None).tzinfo is not None


# ---------------------------------------------------------------- what is computed


@given(at=st.integers(moments.MIN, moments.MAX), ms=st.integers(-(2**53), 2**53))
def test_a_computed_moment_stops_at_the_bounds(at: int, ms: int) -> None:
    found = moments.later(at, ms)
    assert moments.MIN <= found <= moments.MAX
    assert found == at + ms or found in (moments.MIN, moments.MAX)


@given(now=st.integers(NOW, moments.MAX), ttl_ms=st.integers(1, DAY_MS))
@example(moments.MAX, DAY_MS)
def test_a_lease_ends_within_the_calendar(now: int, ttl_ms: int) -> None:
    task = rows.queued(queued_at=NOW)
    granted = leases.grant(
        task, fencing_token=TOKEN, worker="w", ttl_ms=ttl_ms, started=True, now=now
    ).after
    renewed = leases.renew(granted, TOKEN, ttl_ms, now).change
    assert renewed is not None
    for one in (granted, renewed.after):
        assert one.lease_expires_at == min(now + ttl_ms, moments.MAX)


@given(
    deadline_at=st.integers(NOW, moments.MAX),
    delay_ms=st.integers(0, 365 * DAY_MS),
    run_at=st.integers(NOW, moments.MAX),
)
@example(moments.MAX, 365 * DAY_MS, moments.MAX)
def test_deadlines_and_delays_stay_within_the_calendar(
    deadline_at: int, delay_ms: int, run_at: int
) -> None:
    """The deadline of a task that is retried after a year moves on by a year."""
    policy = Policy()
    failed = rows.queued(state="failed", created_at=NOW, deadline_at=deadline_at)
    revived = leases.retry(failed, failed.id, NOW + delay_ms).change
    assert revived is not None
    assert revived.after.deadline_at == min(deadline_at + delay_ms, moments.MAX)
    assert admission.deadline(policy, "action", run_at) == min(run_at + 60_000, moments.MAX)
    made = Submission("t", "handler", "a", "handler/x", "{}", delay_ms=delay_ms)
    admitted = admission.admit(made, "main", policy, line=1, seq=1, position=1, now=run_at).after
    assert (admitted.eligible_at or 0) <= moments.MAX
    assert sessions.window_ends(SessionPolicy(), run_at, run_at) <= moments.MAX


# ---------------------------------------------------------------- slots


ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12")
SCHEDULES = [
    *(Schedule(kind="cron", expr=expr, tz=zone) for expr in ("* * * * *", "@yearly", "0 3 * * *")
      for zone in ZONES),
    Schedule(kind="every", every_ms=1000, anchor_at=0),
    Schedule(kind="every", every_ms=schedule_times.EVERY_MS_MAX, anchor_at=moments.MAX - 5),
    Schedule(kind="at", at=moments.MAX),
    Schedule(kind="at", at=moments.MAX + 1),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_slot_lies_beyond_the_calendar(schedule: Schedule) -> None:
    for before_ms in (0, 1, 60_000, 15 * 3_600_000, 2 * DAY_MS):
        after = moments.MAX - before_ms
        found = []
        while len(found) < 5 and (slot := schedule_times.next_slot(schedule, after)) is not None:
            found.append(slot.at)
            after = slot.at
        assert found == sorted(set(found))
        assert all(moments.MAX - before_ms < at <= moments.MAX for at in found)


def test_the_last_slots_of_the_calendar_fire() -> None:
    tokyo = Schedule(kind="cron", expr="0 8 * * *", tz="Asia/Tokyo")
    day = schedule_times.next_slot(tokyo, moments.MAX - 2 * DAY_MS)
    assert day is not None
    assert moments.text(day.at) == "9999-12-30T23:00:00.000Z"
    assert schedule_times.next_slot(tokyo, day.at) is None
    new_york = Schedule(kind="cron", expr="0 18 * * *", tz="America/New_York")
    last = schedule_times.next_slot(new_york, moments.MAX - DAY_MS)
    assert last is not None
    assert moments.local(last.at, UTC).isoformat() == "9999-12-31T23:00:00+00:00"
    assert schedule_times.next_slot(new_york, last.at) is None


@given(since=st.integers(-(2**63), 2**63 - 1), until=st.integers(-(2**63), 2**63 - 1))
@example(-(2**63), 2**63 - 1)
def test_a_span_fits_where_it_is_counted(since: int, until: int) -> None:
    """Counters add up spans, and a database holds 64 bits: ten thousand of the longest fit."""
    found = moments.span(since, until)
    assert 0 <= found < 2**63 // 10_000
    task = rows.queued(queued_at=since)
    change = leases.grant(task, fencing_token=TOKEN, worker="w", ttl_ms=1, started=True, now=until)
    assert change.waited_ms == found
