"""Batches: how each task counts, when a batch ends, and what reopens it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import batches
from fairlane.core.batches import Batch
from fairlane.core.model import Change, Task
from tests.unit.core import rows
from tests.unit.core.rows import NOW


def _batch(parallelism: int | None = 2, **given: Any) -> Batch:
    return Batch("bat_1", 1, "ada", parallelism, 0, NOW, **given)


@pytest.mark.parametrize(
    ("task", "opened", "holders", "waiting"),
    [
        (rows.queued(), 1, 1, 0),
        (rows.queued(gate="batch"), 1, 0, 1),
        (rows.queued(gate="session"), 1, 0, 0),
        (rows.queued(gate="delay", fencing_token=4), 1, 0, 0),  # the wait before a retry
        (rows.waiting(), 1, 0, 0),
        (rows.assigned(), 1, 1, 0),
        (rows.running(), 1, 1, 0),
        (rows.queued(state="parked"), 1, 0, 0),
        (rows.stopped(), 0, 1, 0),  # it has ended, but its run has not
        (rows.queued(state="done"), 0, 0, 0),
        (rows.queued(state="rejected"), 0, 0, 0),
    ],
)
def test_each_row_counts_for_its_batch(task: Task, opened: int, holders: int, waiting: int) -> None:
    batch = _batch()
    batches.apply(batch, Change(None, task, "submit"))
    assert (batch.total, batch.open, batch.holders, batch.waiting) == (1, opened, holders, waiting)


def test_a_change_moves_what_the_row_before_counted_for() -> None:
    batch = _batch(open=1, holders=0, waiting=1)
    batch.total = 1
    batches.apply(batch, Change(rows.queued(gate="batch"), rows.queued(), "promote"))
    assert (batch.total, batch.open, batch.holders, batch.waiting) == (1, 1, 1, 0)
    batches.apply(batch, Change(rows.running(), rows.queued(state="done"), "complete"))
    assert (batch.total, batch.open, batch.holders, batch.waiting) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("parallelism", "holders", "free"), [(2, 0, 2), (2, 1, 1), (2, 2, 0), (2, 5, 0), (None, 3, 0)]
)
def test_free_places_are_never_negative(parallelism: int | None, holders: int, free: int) -> None:
    assert _batch(parallelism, holders=holders).free == free


def test_a_batch_ends_once_when_none_of_its_tasks_is_open() -> None:
    batch = _batch(open=1)
    assert not batches.settle(batch, NOW + 1)
    assert (batch.state, batch.completed_at) == ("running", None)
    batch.open = 0
    assert batches.settle(batch, NOW + 2)
    assert (batch.state, batch.completed_at) == ("completed", NOW + 2)
    assert not batches.settle(batch, NOW + 3)
    assert batch.completed_at == NOW + 2


def test_a_cancelled_batch_says_so_before_and_after_its_end() -> None:
    batch = _batch(open=1, cancelled=1)
    assert batch.state == "cancelled"
    batch.open = 0
    assert batches.settle(batch, NOW)
    assert batch.state == "cancelled"


@pytest.mark.parametrize("cancelled", [0, 1])
def test_a_revived_task_opens_its_batch_again(cancelled: int) -> None:
    batch = _batch(cancelled=cancelled, completed_at=NOW)
    batches.apply(batch, Change(rows.queued(state="failed"), rows.queued(), "retry"))
    assert (batch.state, batch.completed_at, batch.open) == ("running", None, 1)
    batches.apply(batch, Change(rows.queued(), rows.queued(state="cancelled"), "cancel"))
    assert batches.settle(batch, NOW + 9)
    assert (batch.state, batch.completed_at) == ("completed", NOW + 9)


def test_every_state_of_a_batch_is_named() -> None:
    found = {_batch().state, _batch(cancelled=1).state, _batch(completed_at=NOW).state}
    assert found == set(batches.STATES)
