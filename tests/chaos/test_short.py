"""The short form of each scenario, on both databases: what must never happen, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import money, quota
from tests.e2e.processes import Programs, show

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SEED = 1


async def test_agents_on_one_quota_all_complete_and_no_window_is_exceeded(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        scene = quota.Scene(programs, tmp_path, store_url, quota.SHORT, SEED)
        outcome = await scene.play()
    show(outcome.row())
    assert outcome.problems(quota.SHORT, use_min=0.0) == []


async def test_the_ledger_of_a_budget_sums_to_the_micro_unit(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        scene = money.Scene(programs, tmp_path, store_url, money.SHORT, SEED)
        outcome = await scene.play()
    show(outcome.row())
    assert outcome.problems(money.SHORT) == []
