from __future__ import annotations

import pytest

from fairlane.core.histogram import SPANS_MS, Histogram, percentile


def test_a_value_counts_up_to_the_first_bound_that_is_not_smaller() -> None:
    found = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 11, 1e9):
        found.observe(value)
    assert found.counts == [2, 2, 2]
    assert found.cumulated() == [2, 4, 6]
    assert found.total == 0 + 1 + 1.5 + 10 + 11 + 1e9


def test_bounds_rise() -> None:
    assert list(SPANS_MS) == sorted(set(SPANS_MS))


def test_nothing_has_no_percentile() -> None:
    assert percentile(Histogram().counts, 0.5) is None


@pytest.mark.parametrize("value", [0, 1, 3, 75, 1500, 45_000])
def test_percentiles_of_one_value_are_between_its_bounds(value: int) -> None:
    found = Histogram()
    for _ in range(100):
        found.observe(value)
    place = found.counts.index(100)
    low, high = (0, *SPANS_MS)[place], SPANS_MS[place]
    assert value <= high
    for share in (0.01, 0.5, 0.95, 1.0):
        middle = percentile(found.counts, share)
        assert middle is not None
        assert low <= middle <= high


def test_percentiles_come_in_their_order() -> None:
    found = Histogram()
    for value in range(1000):
        found.observe(value)
    half, most = percentile(found.counts, 0.5), percentile(found.counts, 0.95)
    assert half == pytest.approx(500, abs=2)
    assert most == pytest.approx(950, abs=2)


def test_a_value_beyond_all_bounds_is_estimated_as_the_last_bound() -> None:
    found = Histogram()
    found.observe(SPANS_MS[-1] * 10)
    assert percentile(found.counts, 0.5) == SPANS_MS[-1]
