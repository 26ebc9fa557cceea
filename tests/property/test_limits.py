"""The theorems of `core/limits.py` for random histories, checked against a plain model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core import amounts, limits
from fairlane.core.limits import BUCKET, BUDGET, POOL, RATE, Limit, LimitState

AMOUNT, PERIOD = 20, 160

STEPS = st.lists(
    st.tuples(
        st.integers(0, 40),  # time that passes
        st.sampled_from(["reserve", "reserve", "settle", "observe", "raise"]),
        st.integers(0, 25),
        st.integers(0, 25),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", [POOL, RATE, BUCKET, BUDGET])
@given(steps=STEPS, larger=st.booleans())
def test_nothing_is_promised_twice_and_every_change_is_accounted(
    kind: str, steps: list[tuple[int, str, int, int]], *, larger: bool
) -> None:
    limit = Limit("u", "u", kind, AMOUNT, 0 if kind == POOL else PERIOD)
    state, now, total = LimitState(), 0, 0
    held: list[int] = []
    for passed, what, amount, other in steps:
        now += passed
        total += limits.advance(limit, state, now)
        if what == "reserve" and limits.fits(limit, state, amount, now, larger=larger):
            empty = not limits.committed(limit, state)
            total += limits.reserve(limit, state, amount)
            held.append(amount)
            taken = limits.committed(limit, state) + limits.outside_use(limit, state, now)
            assert taken <= limits.ceiling(limit, state) or (larger and empty)
        elif what == "settle" and held:
            total += limits.settle(limit, state, held.pop(amount % len(held)), other, now)
        elif what == "observe":
            limits.observe(limit, state, amount, now)
        elif what == "raise" and kind == BUDGET:
            state.raised += amount
        assert total == limits.committed(limit, state) >= 0
        assert state.reserved == sum(held)
        assert limits.available(limit, state, now) >= 0


@pytest.mark.parametrize("kind", [RATE, BUCKET, BUDGET])
@given(steps=STEPS, need=st.integers(1, 20))
def test_a_need_fits_exactly_from_the_moment_that_was_named(
    kind: str, steps: list[tuple[int, str, int, int]], need: int
) -> None:
    limit = Limit("u", "u", kind, AMOUNT, PERIOD)
    state, now = LimitState(), 0
    for passed, what, amount, _ in steps:
        now += passed
        limits.advance(limit, state, now)
        if what == "observe":
            limits.observe(limit, state, amount, now)
        else:
            limits.settle(limit, state, 0, amount // 4, now)
            state.reserved += what == "reserve" and kind != BUCKET
    at = limits.fit_at(limit, state, need, now)
    last = now + 40 * PERIOD if at is None else at
    for moment in range(now, last, max(1, (last - now) // 400)):
        limits.advance(limit, state, moment)
        assert not limits.fits(limit, state, need, moment)
    if at is not None:
        limits.advance(limit, state, max(now, at - 1))
        assert at == now or not limits.fits(limit, state, need, at - 1)
        limits.advance(limit, state, at)
        assert limits.fits(limit, state, need, at)


@given(
    calls=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 60))),
    counted=st.floats(0, 1),
)
def test_no_window_of_the_provider_sees_more_than_the_limit(
    calls: list[tuple[int, int, int]], counted: float
) -> None:
    """The provider counts each call at some moment between its reservation and its settlement."""
    limit = Limit("u", "u", RATE, AMOUNT, PERIOD)
    state, now = LimitState(), 0
    open_calls: list[tuple[int, int, int]] = []  # when it ends, when it began, its amount
    seen: list[tuple[int, int]] = []
    for passed, amount, lasts in calls:
        now += passed
        for call in sorted(one for one in open_calls if one[0] <= now):
            ended, began, used = call
            open_calls.remove(call)
            limits.advance(limit, state, ended)
            limits.settle(limit, state, used, used, ended)
            seen.append((began + round((ended - began) * counted), used))
        limits.advance(limit, state, now)
        if limits.fits(limit, state, amount, now):
            limits.reserve(limit, state, amount)
            open_calls.append((now + lasts, now, amount))
    seen += [(began, used) for _, began, used in open_calls]
    for end, _ in seen:
        assert sum(used for at, used in seen if end - PERIOD < at <= end) <= AMOUNT


@given(st.integers(0, amounts.AMOUNT_MAX))
def test_every_amount_is_read_back_as_it_is_shown(micro: int) -> None:
    shown: Any = amounts.shown(micro)
    assert amounts.parse(shown) == amounts.parse(amounts.text(micro)) == micro
