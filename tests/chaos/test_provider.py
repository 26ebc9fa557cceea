"""The stub provider and the checks of its log, tested with good and bad logs."""

from __future__ import annotations

import random

import aiohttp
import pytest

from tests.chaos import quota_checks as checks
from tests.chaos.provider import OURS, STRANGER, Call, Limits, Provider, SlidingWindow

LIMITS = Limits(10.0, 1000, 5)


def test_a_window_is_full_until_exactly_one_window_later() -> None:
    window = SlidingWindow(LIMITS)
    assert window.take(0.0, 600) is None
    assert window.take(1.0, 400) is None
    assert window.take(2.0, 1) == 8.0  # when the first request leaves
    assert window.take(9.999, 600) == pytest.approx(0.001)
    assert window.take(10.0, 600) is None
    assert window.remaining(10.0) == (0, 3)


def test_requests_are_limited_too() -> None:
    window = SlidingWindow(LIMITS)
    assert [window.take(float(second), 1) for second in range(6)] == [None] * 5 + [5.0]


def test_no_window_that_was_served_is_exceeded() -> None:
    chance = random.Random(7)
    window, at, served = SlidingWindow(LIMITS), 0.0, []
    for _ in range(2000):
        at += chance.expovariate(2.0)
        tokens = chance.randint(1, 500)
        if window.take(at, tokens) is None:
            served.append(Call(at, OURS, tokens, served=True))
    peak = checks.peak(served, LIMITS.window_seconds)
    assert peak.tokens <= LIMITS.tokens
    assert peak.requests == LIMITS.requests


def test_an_exceeded_window_is_found_to_the_token() -> None:
    calls = [Call(0.0, OURS, 600, served=True), Call(9.9, OURS, 401, served=True)]
    assert checks.peak(calls, 10.0) == checks.Load(1001, 2)
    assert checks.peak(calls, 9.8) == checks.Load(600, 1)


def test_only_our_late_refusals_count() -> None:
    calls = [
        Call(1.0, OURS, 1, served=False),
        Call(11.0, STRANGER, 1, served=False),
        Call(12.0, OURS, 1, served=False),
    ]
    assert checks.refusals(calls, 10.0) == [calls[2]]


def test_the_use_of_what_the_stranger_leaves_is_a_share_of_that() -> None:
    calls = []
    for tenth in range(1000):
        calls.append(Call(tenth / 10, STRANGER, 2, served=True))
        calls.append(Call(tenth / 10 + 0.05, OURS, 4, served=True))
    limits = Limits(10.0, 1000, 10_000)
    assert checks.use_of_the_rest(calls, limits) == pytest.approx(400 / 800, abs=0.01)


@pytest.mark.asyncio
async def test_the_provider_answers_429_with_the_time_to_wait() -> None:
    async with (
        Provider(LIMITS, share=0.0, latency_seconds=0) as provider,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(f"{provider.url}/v1/chat", json={"tokens": 900}) as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-remaining-tokens"] == "100"
            assert answer.headers["x-ratelimit-remaining-requests"] == "4"
        async with session.post(f"{provider.url}/v1/chat", json={"tokens": 101}) as answer:
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "10"
            assert 9000 < int(answer.headers["retry-after-ms"]) <= 10_000
        assert [(call.tokens, call.served) for call in provider.log] == [(900, True), (101, False)]


def test_the_stranger_uses_about_its_share_of_both_limits() -> None:
    now = [0.0]
    provider = Provider(Limits(10.0, 10_000, 1000), share=0.2, clock=lambda: now[0])
    for tenth in range(1000):
        now[0] = tenth / 10
        provider.use_as_stranger()
    windows = 11  # it was there for one before
    assert len(provider.log) == pytest.approx(0.2 * 1000 * windows, rel=0.1)
    tokens = sum(call.tokens for call in provider.log)
    assert tokens == pytest.approx(0.2 * 10_000 * windows, rel=0.1)
