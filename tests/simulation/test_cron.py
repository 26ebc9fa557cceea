"""Ten thousand days of cron on three nodes, and bugs that must not go unnoticed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.simulation import plants_cron
from tests.simulation.causes import Violation
from tests.simulation.cron_world import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.planting import Bug

SEEDS = (1, 2, *range(4, 22))  # in the third there is hardly a misfire to catch up with
DAYS = 500
# What has to happen in each history, and how often at least.
LEAST = {
    "clock jumps": 5,
    "outages of all": 1,
    "lost connections": 10,
    "restarts": 5,
    "run schedule": 150,
    "run misfire": 5,
    "run manual": 1,
    "missed": 1,
    "skipped": 1,
    "runs failed": 10,
    "asked": 20,
}
HUNT_SEEDS = range(1, 13)
HUNT_DAYS = 250


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lost connections are what this is about; nobody needs to read of each."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_this_is_ten_thousand_days() -> None:
    assert len(SEEDS) * DAYS == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_slot_becomes_what_it_should_exactly_once(seed: int) -> None:
    report = run(seed, DAYS)
    assert report.days >= DAYS
    # A world in which nothing happens would hold too.
    scarce = {what for what, least in LEAST.items() if report.happened.get(what, 0) < least}
    assert not scarce, report.happened


@pytest.mark.slow
def test_a_seed_is_a_whole_history() -> None:
    here = run(3, 40)
    assert run(3, 40) == here
    assert run(4, 40).trace_hash != here.trace_hash


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "rules", "seed"), plants_cron.BED.bugs)
def test_a_planted_bug_is_caught(
    bug: Bug, rules: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = next(filter(None, map(_violation, [seed, *HUNT_SEEDS])), None)
    assert found is not None, "no rule has noticed it"
    assert found.rule in rules, found


def _violation(seed: int) -> Violation | None:
    try:
        run(seed, HUNT_DAYS)
    except Violation as violation:
        return violation
    return None
