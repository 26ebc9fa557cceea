"""Limits: pools, rates, buckets and budgets, one moment at a time."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import limits, moments
from fairlane.core.limits import BUCKET, BUDGET, POOL, RATE, Limit, LimitState


def limit(kind: str, amount: int = 10, **more: Any) -> Limit:
    period = {} if kind == POOL or "every" in more else {"period_ms": 1000}
    return Limit("u", f"u:{kind}", kind, amount, **{**period, **more})


def at(text: str) -> int:
    return moments.parse(text)


def test_a_pool_is_released_whatever_was_used() -> None:
    pool, state = limit(POOL), LimitState()
    assert limits.reserve(pool, state, 7) == 7
    assert not limits.fits(pool, state, 4, 0)
    assert limits.fit_at(pool, state, 4, 0) is None
    assert limits.settle(pool, state, 7, 99, 5) == -7
    assert limits.fit_at(pool, state, 4, 5) == 5


def test_a_reservation_stays_in_the_window_until_a_period_after_its_settlement() -> None:
    rate, state = limit(RATE), LimitState()
    limits.reserve(rate, state, 8)
    limits.advance(rate, state, 5000)
    assert limits.fit_at(rate, state, 3, 5000) is None
    limits.settle(rate, state, 8, 6, 5000)
    assert limits.available(rate, state, 5000) == 4
    assert limits.fit_at(rate, state, 5, 5000) == 6000
    assert limits.advance(rate, state, 5999) == 0
    assert limits.advance(rate, state, 6000) == -6
    assert state == LimitState(refunded=2)


def test_nothing_used_leaves_nothing_in_the_window() -> None:
    rate, state = limit(RATE), LimitState()
    limits.reserve(rate, state, 8)
    assert limits.settle(rate, state, 8, 0, 0) == -8
    assert state == LimitState(refunded=8)


def test_many_entries_are_merged_to_later_ones() -> None:
    rate, state = limit(RATE, 10_000, period_ms=6400), LimitState()
    for moment in range(640):
        limits.reserve(rate, state, 1)
        limits.settle(rate, state, 1, 1, moment * 10)
        assert len(state.entries) <= limits.ENTRIES_MAX + 2
    assert sum(amount for _, amount in state.entries) == state.used == 640
    limits.advance(rate, state, 6400 + 3200)
    assert state.used >= 640 - 321


def test_a_bucket_leaks_evenly() -> None:
    bucket, state = limit(BUCKET), LimitState()
    limits.advance(bucket, state, 100)
    limits.reserve(bucket, state, 10)
    assert limits.fit_at(bucket, state, 1, 100) == 200
    limits.settle(bucket, state, 10, 4, 100)
    assert limits.committed(bucket, state) == 4
    assert limits.advance(bucket, state, 250) == -1
    assert limits.fit_at(bucket, state, 9, 250) == 400
    limits.settle(bucket, state, 0, 20, 250)
    assert limits.overdrawn(bucket, state) == 13
    assert limits.blank_at(bucket, state, 250) == 2500


def test_a_bucket_waits_for_what_strangers_use() -> None:
    bucket, state = limit(BUCKET, 16), LimitState()
    limits.advance(bucket, state, 0)
    limits.observe(bucket, state, 0, 0)
    assert limits.outside_use(bucket, state, 0) == 16
    assert limits.fit_at(bucket, state, 1, 0) == 1063  # a period and a sixteenth
    limits.reserve(bucket, state, 8)
    assert limits.fit_at(bucket, state, 8, 0) == 1500


def test_a_budget_resets_with_its_window() -> None:
    budget, state = limit(BUDGET, anchor_at=100), LimitState()
    limits.advance(budget, state, 1050)
    assert state.window_at == 100
    limits.reserve(budget, state, 6)
    limits.settle(budget, state, 6, 6, 1050)
    limits.reserve(budget, state, 3)
    state.raised = 1
    assert limits.fit_at(budget, state, 2, 1050) == 1050
    assert limits.fit_at(budget, state, 3, 1050) == 1100
    assert limits.fit_at(budget, state, 8, 1050) is None
    assert limits.advance(budget, state, 1100) == -6
    assert (state.used, state.reserved, state.raised, state.window_at) == (0, 3, 0, 1100)
    assert limits.blank_at(budget, state, 1100) is None
    limits.settle(budget, state, 3, 3, 1100)
    assert limits.blank_at(budget, state, 1100) == 2100
    assert limits.advance(budget, state, 50) == 0  # a clock that was set back resets nothing


@pytest.mark.parametrize(
    ("every", "tz", "now", "start", "end"),
    [
        ("hour", "UTC", "2026-05-05T10:20:00Z", "2026-05-05T10:00:00Z", "2026-05-05T11:00:00Z"),
        (
            "hour",
            "Asia/Kolkata",
            "2026-05-05T10:20:00Z",
            "2026-05-05T09:30:00Z",
            "2026-05-05T10:30:00Z",
        ),
        (
            "day",
            "Europe/Berlin",
            "2026-03-29T12:00:00Z",
            "2026-03-28T23:00:00Z",
            "2026-03-29T22:00:00Z",
        ),
        (
            "day",
            "Europe/Berlin",
            "2026-10-25T12:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        ),
        # Midnight does not exist: the day begins when the gap ends.
        (
            "day",
            "Asia/Beirut",
            "2026-03-29T12:00:00Z",
            "2026-03-28T22:00:00Z",
            "2026-03-29T21:00:00Z",
        ),
        ("week", "UTC", "2026-05-10T10:00:00Z", "2026-05-04T00:00:00Z", "2026-05-11T00:00:00Z"),
        ("month", "UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
    ],
)
def test_a_calendar_window_follows_the_clocks_of_its_zone(
    every: str, tz: str, now: str, start: str, end: str
) -> None:
    budget = limit(BUDGET, every=every, tz=tz)
    assert limits.window_start(budget, at(now)) == at(start)
    assert limits.window_end(budget, at(now)) == at(end)
    assert limits.window_start(budget, at(end)) == at(end)


def test_more_than_the_limit_goes_only_when_it_is_empty() -> None:
    rate, state = limit(RATE), LimitState()
    assert not limits.fits(rate, state, 11, 0)
    assert limits.fit_at(rate, state, 11, 0) is None
    assert limits.fit_at(rate, state, 11, 0, larger=True) == 0
    limits.settle(rate, state, 0, 1, 0)
    assert limits.fit_at(rate, state, 11, 0, larger=True) == 1000
    limits.settle(rate, state, 0, 14, 0)
    assert (limits.overdrawn(rate, state), limits.available(rate, state, 0)) == (5, 0)


def test_what_the_provider_misses_strangers_have_used() -> None:
    rate, state = limit(RATE, 160), LimitState()
    limits.settle(rate, state, 0, 40, 0)
    limits.observe(rate, state, 80, 0)
    assert limits.available(rate, state, 0) == 77  # strangers used 40; 3 in 32 more are kept
    limits.observe(rate, state, 110, 100)  # a smaller figure is not believed at once
    assert limits.outside_use(rate, state, 1000) == 43
    assert limits.outside_use(rate, state, 1100) == 41
    assert limits.fit_at(rate, state, 83, 100) == 1000  # what we used leaves the window
    assert limits.fit_at(rate, state, 122, 100) == 1125
    assert limits.fit_at(rate, state, 160, 100) == 2100
    assert limits.blank_at(rate, state, 100) == 2100
    limits.observe(rate, state, 200, 100)
    limits.observe(limit(POOL), state, 0, 100)
    assert state.others == 43
    limits.shift(state, 500)
    assert (state.others_at, state.entries, state.level_at) == (500, [(1500, 40)], 500)
    assert state.lately == [(600, 10)]


def test_what_strangers_use_is_not_forgotten_while_nothing_is_reported() -> None:
    """The server is restarted when the largest figure leaves the window."""
    rate, state = limit(RATE, 160), LimitState()
    limits.observe(rate, state, 120, 0)
    limits.observe(rate, state, 128, 10)  # so soon, a smaller figure adds nothing
    assert state.lately == []
    for now in range(100, 1101, 100):
        limits.observe(rate, state, 128, now)
    assert state.lately == [(1100, 35)]
    assert [limits.outside_use(rate, state, at) for at in (1000, 2000, 2100)] == [43, 35, 35]
    assert limits.fit_at(rate, state, 125, 1100) == 1188  # 43 have become 35
    assert limits.outside_use(rate, state, 3100) == 0
    limits.observe(rate, state, 140, 1900)
    assert (state.others_at, state.others, state.lately) == (1100, 35, [(1900, 21)])


def test_calls_that_are_not_settled_yet_do_not_pass_for_strangers() -> None:
    """Ten calls of one burst reach the provider before the first of them is settled."""
    rate, state = limit(RATE, 160), LimitState()
    limits.reserve(rate, state, 100)
    for number in range(10):
        limits.settle(rate, state, 10, 10, number)
        limits.observe(rate, state, 44, number)
        assert limits.outside_use(rate, state, number) == 17  # 16 and 3 in 32


def test_a_long_call_is_compared_with_what_was_taken_when_it_began() -> None:
    rate, state = limit(RATE, 160), LimitState()
    for _ in range(2):
        limits.reserve(rate, state, 16)
    granted = (0, limits.note(rate, state))
    limits.reserve(rate, state, 50)  # began later
    limits.settle(rate, state, 16, 8, 10)
    limits.settle(rate, state, 16, 24, 10)
    limits.observe(rate, state, 96, 250, granted)
    assert limits.outside_use(rate, state, 250) == 0  # a short call: others may be on their way
    limits.observe(rate, state, 96, 251, granted)
    assert limits.outside_use(rate, state, 251) == 35  # 32 and 3 in 32


def test_refunds_of_later_calls_do_not_make_our_use_negative() -> None:
    rate, state = limit(RATE, 160), LimitState()
    limits.reserve(rate, state, 1)
    granted = (0, limits.note(rate, state))
    limits.reserve(rate, state, 100)
    limits.settle(rate, state, 100, 10, 90)
    limits.observe(rate, state, 144, 300, granted)
    assert limits.outside_use(rate, state, 300) == 17  # 16 and 3 in 32


def test_no_more_is_kept_for_strangers_than_there_is() -> None:
    rate, state = limit(RATE, 160), LimitState()
    limits.observe(rate, state, 0, 0)
    assert limits.outside_use(rate, state, 0) == 160


def test_what_strangers_use_of_a_budget_stays_until_the_reset() -> None:
    budget, state = limit(BUDGET), LimitState()
    limits.advance(budget, state, 1000)
    limits.observe(budget, state, 3, 1000)
    assert limits.outside_use(budget, state, 1999) == 7
    limits.advance(budget, state, 2000)
    assert limits.outside_use(budget, state, 2000) == 0


def test_a_budget_warns_once_per_window() -> None:
    budget, state = limit(BUDGET), LimitState()
    limits.advance(budget, state, 0)
    assert not limits.warns(budget, state, 0.8)
    limits.reserve(budget, state, 8)
    assert not limits.warns(budget, state, None)
    assert not limits.warns(limit(RATE), state, 0.8)
    assert limits.warns(budget, state, 0.8)
    assert not limits.warns(budget, state, 0.8)
    limits.advance(budget, state, 1000)
    assert limits.warns(budget, state, 0.8)


def test_a_changed_limit_keeps_what_was_used() -> None:
    rate, state = limit(RATE), LimitState()
    limits.settle(rate, state, 0, 5, 0)
    assert limits.adapt(rate, limit(RATE, period_ms=3000), state, 100) == 0
    assert state.entries == [(3000, 5)]
    bucket, level = limit(BUCKET), LimitState()
    limits.settle(bucket, level, 0, 5, 0)
    assert limits.adapt(bucket, limit(BUCKET, 20, period_ms=3000), level, 100) == -1
    assert limits.committed(limit(BUCKET, 20, period_ms=3000), level) == 4
    budget, window = limit(BUDGET), LimitState(used=5, window_at=0)
    assert limits.adapt(budget, limit(BUDGET, period_ms=300), window, 700) == 0
    assert (window.used, window.window_at) == (5, 600)
    pool, held = limit(POOL), LimitState(reserved=5)
    assert limits.adapt(pool, limit(POOL, 2), held, 0) == 0
    assert limits.fit_at(limit(POOL, 2), held, 1, 0) is None


def test_a_bucket_that_leaks_for_ages_ends_with_the_calendar() -> None:
    bucket, state = limit(BUCKET, 1, period_ms=10**9), LimitState(level=10**30)
    assert limits.fit_at(bucket, state, 1, 0) == moments.MAX
