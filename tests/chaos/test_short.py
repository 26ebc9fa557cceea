"""The short form of each scenario, on both databases: what must never happen, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import inbox, money, move, quota, recovery
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
    assert outcome.problems(quota.SHORT, use_min=None) == []


async def test_the_ledger_of_a_budget_sums_to_the_micro_unit(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        scene = money.Scene(programs, tmp_path, store_url, money.SHORT, SEED)
        outcome = await scene.play()
    show(outcome.row())
    assert outcome.problems(money.SHORT) == []


async def test_no_message_is_lost_doubled_or_mixed_while_server_and_worker_are_killed(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        outcome = await inbox.Scene(programs, tmp_path, store_url, inbox.SHORT, SEED).play()
    show(outcome.row())
    assert outcome.problems(inbox.SHORT) == []


async def test_no_acknowledged_task_is_lost_or_doubled_when_a_full_store_moves(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        outcome = await move.Scene(programs, tmp_path, store_url, move.SHORT, SEED).play()
    show(outcome.row())
    assert outcome.problems(move.SHORT) == []


async def test_the_tasks_of_a_killed_process_run_elsewhere_before_their_leases_end(
    store_url: str, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        scene = recovery.Scene(programs, tmp_path, store_url, recovery.SHORT, SEED)
        outcome = await scene.play()
    show(outcome.row())
    # A lease ends after 12 s or 30 s; a busy machine is given time.
    assert outcome.problems(recovery.SHORT, seconds_max=5.0) == []
