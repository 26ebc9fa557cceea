"""After a failed attempt: again, parked or failed, and how long to wait."""

from __future__ import annotations

import pytest

from fairlane.core import retries
from fairlane.core.policy import KindPolicy, Policy
from fairlane.core.retries import Backoff

PARKS = KindPolicy(lane="main", when_spent="park")
FAILS = KindPolicy(lane="main")
CRON = KindPolicy(
    lane="cron", max_attempts=4, backoff_ms=2000, backoff_multiplier=2, max_backoff_ms=30_000
)


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("settings", [PARKS, FAILS])
def test_while_attempts_are_left_it_is_tried_again(attempts: int, settings: KindPolicy) -> None:
    assert retries.after_failure(attempts, 3, retryable=True, settings=settings) == "back_off"


@pytest.mark.parametrize("attempts", [3, 4])
def test_with_the_last_attempt_a_task_parks_or_fails_as_its_kind_says(attempts: int) -> None:
    assert retries.after_failure(attempts, 3, retryable=True, settings=PARKS) == "park"
    assert retries.after_failure(attempts, 3, retryable=True, settings=FAILS) == "fail"


@pytest.mark.parametrize("settings", [PARKS, FAILS])
def test_a_permanent_failure_is_final_at_once(settings: KindPolicy) -> None:
    assert retries.after_failure(1, 3, retryable=False, settings=settings) == "fail"


def test_the_default_waits_double_from_one_second_up_to_a_minute() -> None:
    settings = Policy().kinds["handler"]
    waits = [retries.backoff_ms(retry, settings) for retry in range(1, 9)]
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]


def test_the_waits_of_cron_double_from_two_seconds_up_to_thirty() -> None:
    waits = [retries.backoff_ms(retry, CRON) for retry in range(1, 6)]
    assert waits == [2000, 4000, 8000, 16_000, 30_000]


def test_the_multiplier_of_the_documents_example_is_used() -> None:
    settings = KindPolicy(lane="instruction", backoff_ms=2000, backoff_multiplier=3)
    assert [retries.backoff_ms(retry, settings) for retry in (1, 2, 3, 4)] == [
        2000,
        6000,
        18_000,
        54_000,
    ]


def test_a_slow_growth_reaches_its_cap_too() -> None:
    slow = KindPolicy(lane="main", backoff_ms=1000, backoff_multiplier=1.01)
    assert retries.backoff_ms(65, slow) == round(1000 * 1.01**64)
    assert retries.backoff_ms(200, slow) == round(1000 * 1.01**199)
    assert retries.backoff_ms(1000, slow) == 60_000


@pytest.mark.parametrize(("base_ms", "wait_ms"), [(1, 60_000), (0, 0)])
def test_a_growth_beyond_all_numbers_ends_at_the_cap(base_ms: int, wait_ms: int) -> None:
    steep = KindPolicy(lane="main", backoff_ms=base_ms, backoff_multiplier=100.0)
    assert retries.backoff_ms(1000, steep) == wait_ms


def test_neighbouring_tasks_do_not_come_back_at_the_same_moment() -> None:
    settings = KindPolicy(lane="cron", backoff_ms=2000, jitter=0.25)
    waits = [retries.backoff_ms(1, settings, seed=token) for token in range(100)]
    assert len(set(waits)) > 90
    assert 1500 <= min(waits) < 1600
    assert 2400 < max(waits) <= 2500


def test_a_task_without_a_word_about_retries_has_those_of_its_kind() -> None:
    assert retries.overlaid(CRON, None) is CRON
    assert retries.overlaid(CRON, Backoff()) == CRON
    assert retries.overlaid(CRON, Backoff(max_retries=9)) == CRON


def test_a_task_says_instead_only_what_it_says() -> None:
    slower = retries.overlaid(CRON, Backoff(backoff_ms=0))
    assert (slower.backoff_ms, slower.backoff_multiplier, slower.max_backoff_ms) == (0, 2, 30_000)
    steeper = retries.overlaid(CRON, Backoff(backoff_multiplier=3))
    assert (steeper.backoff_ms, steeper.backoff_multiplier) == (2000, 3)
    assert [retries.backoff_ms(retry, steeper) for retry in (1, 2, 3, 4)] == [
        2000,
        6000,
        18_000,
        30_000,
    ]


def test_there_is_no_retry_before_the_first() -> None:
    with pytest.raises(AssertionError):
        retries.backoff_ms(0, FAILS)


def test_a_task_may_have_a_cap_and_jitter_of_its_own() -> None:
    own = Backoff(max_backoff_ms=1500, jitter=0.5)
    settings = retries.overlaid(PARKS, own)
    assert (settings.max_backoff_ms, settings.jitter) == (1500, 0.5)
    assert (settings.backoff_ms, settings.when_spent) == (PARKS.backoff_ms, "park")
