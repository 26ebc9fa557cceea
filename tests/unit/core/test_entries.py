"""Entries of the queue: which status a task has as an entry, and how often it has failed."""

from __future__ import annotations

from typing import get_args

import pytest

from fairlane.core import entries, lifecycle
from fairlane.core.entries import EntryStatus
from tests.unit.core.rows import queued


def test_every_status_stands_for_states_and_no_status_for_all_of_them() -> None:
    assert set(entries.STATES) == set(get_args(EntryStatus))
    assert entries.states("leased") == [lifecycle.ASSIGNED, lifecycle.RUNNING]
    assert sorted(entries.states(None)) == sorted(set(lifecycle.STATES) - {lifecycle.REJECTED})


@pytest.mark.parametrize(
    ("state", "attempts", "status"),
    [
        (lifecycle.QUEUED, 0, "pending"),
        (lifecycle.QUEUED, 1, "ready"),
        (lifecycle.WAITING, 0, "pending"),
        (lifecycle.ASSIGNED, 1, "leased"),
        (lifecycle.PARKED, 3, "parked"),
        (lifecycle.DONE, 1, "drained"),
        (lifecycle.REJECTED, 0, "rejected"),
    ],
)
def test_a_task_has_the_status_of_its_state(state: str, attempts: int, status: str) -> None:
    assert entries.status_of(queued(state=state, attempts=attempts, fencing_token=0)) == status


@pytest.mark.parametrize(
    ("state", "attempts", "failed"),
    [
        (lifecycle.QUEUED, 2, 2),
        (lifecycle.RUNNING, 2, 1),
        (lifecycle.DONE, 1, 0),
        (lifecycle.RUNNING, 0, 0),
        (lifecycle.FAILED, 3, 3),
    ],
)
def test_the_attempt_under_way_and_the_one_that_succeeded_have_not_failed(
    state: str, attempts: int, failed: int
) -> None:
    assert entries.failures(queued(state=state, attempts=attempts)) == failed
