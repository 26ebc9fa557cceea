"""Seeds that must hold, and bugs that must not: a check that cannot fail is no check."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.simulation import plants, plants_clock, plants_talks, plants_work
from tests.simulation.causes import Violation
from tests.simulation.world import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.planting import Bug

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 21)
STEPS = 5000
# What has to happen in each history, and how often at least.
LEAST = {
    "restarts": 9,
    "clock jumps": 6,
    "clock steps": 4,
    "lost connections": 21,
    "neighbours": 4,
    "task.retrying": 10,
    "task.released": 10,
    "task.requeued": 10,
    "task.unblocked": 10,
    "mended": 2,
    "batches completed": 10,
    "joined": 3,
    "dropped": 3,
    "interruptions": 3,
    "stopalls": 1,
    "stops of sessions": 1,
    "SessionQueueFull": 10,
}
BEDS = (plants.BED, plants_work.BED, plants_talks.BED, plants_clock.BED)
HUNT_SEEDS = range(1, 13)
HUNT_STEPS = 2000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lost connections are what this is about; nobody needs to read of each."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_rule_holds_under_faults(seed: int) -> None:
    report = run(seed, STEPS)
    # A world in which nothing happens would hold too.
    assert report.granted > 500
    assert min(report.ended[state] for state in ("done", "failed", "cancelled", "rejected")) > 50
    scarce = {what for what, least in LEAST.items() if report.happened.get(what, 0) < least}
    assert not scarce


@pytest.mark.slow
def test_a_seed_is_a_whole_history() -> None:
    """Also in another process, where sets come in another order."""
    here = run(7, 400)
    assert run(7, 400) == here
    assert run(8, 400).trace_hash != here.trace_hash
    command = [sys.executable, "-m", "tests.simulation", "--seed", "7", "--steps", "400"]
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            command,
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.rstrip().endswith(f"trace {here.trace_hash}")


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "rules", "seed"), [bug for bed in BEDS for bug in bed.bugs])
def test_a_planted_bug_is_caught(
    bug: Bug, rules: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = next(filter(None, map(_violation, [seed, *HUNT_SEEDS])), None)
    assert found is not None, "no rule has noticed it"
    assert found.rule in rules, found


def _violation(seed: int) -> Violation | None:
    try:
        run(seed, HUNT_STEPS)
    except Violation as violation:
        return violation
    return None
