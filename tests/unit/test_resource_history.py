"""The use of resources over time: peaks per step, bounded in steps and in accounts."""

from __future__ import annotations

from fairlane.engine.telemetry.resource_history import (
    ACCOUNTS_MAX,
    ResourceHistory,
    UseSample,
    UseStep,
)


def test_a_step_keeps_the_largest_use_and_the_newest_limit() -> None:
    history = ResourceHistory()
    for at, taken, amount in ((1000, 5, 10), (2000, 9, 10), (4000, 2, 20), (5000, 1, 20)):
        history.add(at, [UseSample("gpt", "", "tokens", taken, amount)])
    assert history.span("gpt", "", "5m", 6000) == [
        UseStep(0, {"tokens": (9, 20)}),
        UseStep(5000, {"tokens": (1, 20)}),
    ]
    assert history.span("gpt", "", "1h", 6000) == [UseStep(0, {"tokens": (9, 20)})]


def test_what_is_too_old_and_what_is_unknown_is_not_shown() -> None:
    history = ResourceHistory()
    history.add(0, [UseSample("gpt", "", "tokens", 5, 10)])
    assert history.span("gpt", "", "5m", 400_000) == []
    assert history.span("gpt", "ada", "5m", 0) == []


def test_steps_and_accounts_are_bounded() -> None:
    history = ResourceHistory()
    for second in range(1000):
        history.add(second * 1000, [UseSample("gpt", "", "tokens", 1, 2)])
    assert len(history.span("gpt", "", "5m", 999_000)) == 61
    history.add(0, [UseSample("spend", str(n), "usd", 1, 2) for n in range(2 * ACCOUNTS_MAX)])
    known = [bool(history.span("spend", str(n), "5m", 0)) for n in range(2 * ACCOUNTS_MAX)]
    assert sum(known) == ACCOUNTS_MAX - 1


def test_an_account_that_is_no_longer_sampled_makes_room_after_a_day() -> None:
    history = ResourceHistory()
    history.add(0, [UseSample("spend", str(n), "usd", 1, 2) for n in range(ACCOUNTS_MAX)])
    day = 86_400_000
    history.add(day, [UseSample("gpt", "", "tokens", 1, 2)])
    assert history.span("gpt", "", "5m", day) == []
    history.add(2 * day, [UseSample("gpt", "", "tokens", 1, 2)])
    assert history.span("gpt", "", "5m", 2 * day) == [UseStep(2 * day, {"tokens": (1, 2)})]
