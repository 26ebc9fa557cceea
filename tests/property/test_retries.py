"""Waits grow as the formula says, stay under their cap, and are the same every time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core import retries
from fairlane.core.policy import KindPolicy
from tests.property.histories import BOUNDED

DAY_MS = 86_400_000

kinds = st.builds(
    KindPolicy,
    lane=st.just("main"),
    backoff_ms=st.integers(0, DAY_MS),
    backoff_multiplier=st.integers(1, 100) | st.floats(1, 100),
    max_backoff_ms=st.integers(0, DAY_MS),
    when_spent=st.sampled_from(["fail", "park"]),
)
jittery = st.builds(
    KindPolicy,
    lane=st.just("cron"),
    backoff_ms=st.integers(0, DAY_MS),
    max_backoff_ms=st.integers(0, DAY_MS),
    jitter=st.floats(0, 1),
)
tokens = st.integers(0, 2**62)


@BOUNDED
@given(kinds, st.integers(1, 200))
def test_the_nth_wait_is_the_base_grown_n_minus_one_times_up_to_the_cap(
    settings: KindPolicy, retry: int
) -> None:
    grown = settings.backoff_ms * Fraction(settings.backoff_multiplier) ** (retry - 1)
    exact = min(grown, Fraction(settings.max_backoff_ms))
    assert retries.backoff_ms(retry, settings) == pytest.approx(float(exact), rel=1e-9, abs=0.51)


@BOUNDED
@given(kinds, st.integers(1, 100_000))
def test_a_later_retry_never_waits_less_and_none_waits_longer_than_the_cap(
    settings: KindPolicy, retry: int
) -> None:
    wait = retries.backoff_ms(retry, settings)
    assert 0 <= wait <= retries.backoff_ms(retry + 1, settings) <= settings.max_backoff_ms


@BOUNDED
@given(jittery, st.integers(1, 30), tokens)
def test_jitter_stays_within_its_part_of_the_wait_and_repeats_itself(
    settings: KindPolicy, retry: int, token: int
) -> None:
    plain = min(settings.backoff_ms * 2 ** (retry - 1), settings.max_backoff_ms)
    wait = retries.backoff_ms(retry, settings, seed=token)
    assert plain * (1 - settings.jitter) - 1 <= wait <= plain * (1 + settings.jitter) + 1
    assert wait == retries.backoff_ms(retry, settings, seed=token)


@BOUNDED
@given(kinds, st.integers(1, 30), tokens)
def test_without_jitter_the_token_does_not_matter(
    settings: KindPolicy, retry: int, token: int
) -> None:
    assert retries.backoff_ms(retry, settings, seed=token) == retries.backoff_ms(retry, settings)


@BOUNDED
@given(kinds, st.integers(1, 50))
def test_a_task_that_always_fails_is_tried_exactly_as_often_as_it_may(
    settings: KindPolicy, max_attempts: int
) -> None:
    verbs = [
        retries.after_failure(attempt, max_attempts, retryable=True, settings=settings)
        for attempt in range(1, max_attempts + 1)
    ]
    assert verbs == ["back_off"] * (max_attempts - 1) + [settings.when_spent]


@BOUNDED
@given(kinds, st.integers(1, 50), st.integers(1, 50))
def test_a_permanent_failure_is_never_tried_again(
    settings: KindPolicy, attempts: int, max_attempts: int
) -> None:
    verb = retries.after_failure(attempts, max_attempts, retryable=False, settings=settings)
    assert verb == "fail"
