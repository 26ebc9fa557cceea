"""Batches: counters equal a recount, no place is given twice, each ends with its last task."""

from __future__ import annotations

from hypothesis import given

from fairlane.core import lifecycle
from fairlane.core.model import Task
from tests.property.histories import BOUNDED, History, Step, histories, step_lists


def _recounted(tasks: list[Task]) -> tuple[int, int, int, int]:
    """Total, open, holders and waiting, from what the states mean."""
    under_way = [
        task for task in tasks if task.leased or (task.state, task.gate) == ("queued", None)
    ]
    waiting = [task for task in tasks if (task.state, task.gate) == ("queued", "batch")]
    still_open = [task for task in tasks if task.state not in lifecycle.TERMINAL]
    return len(tasks), len(still_open), len(under_way), len(waiting)


@BOUNDED
@given(step_lists)
def test_a_batchs_counters_equal_a_recount_at_every_moment(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for batch in history.batches.values():
            own = [task for task in history.tasks.values() if task.batch == batch.id]
            counted = (batch.total, batch.open, batch.holders, batch.waiting)
            assert counted == _recounted(own)


@BOUNDED
@given(step_lists)
def test_a_batch_never_runs_more_at_once_than_it_may(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for batch in history.batches.values():
            leased = [task for task in history.leased() if task.batch == batch.id]
            assert len(leased) <= batch.holders
            assert batch.parallelism is None or batch.holders <= batch.parallelism


@BOUNDED
@given(step_lists)
def test_no_task_waits_for_a_free_place(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        assert not any(batch.free and batch.waiting for batch in history.batches.values())


@BOUNDED
@given(step_lists)
def test_a_batch_is_over_exactly_while_none_of_its_tasks_is_open(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for batch in history.batches.values():
            own = [task for task in history.tasks.values() if task.batch == batch.id]
            over = all(task.terminal for task in own)
            assert (batch.completed_at is not None) == over


@BOUNDED
@given(histories)
def test_a_task_that_waits_for_its_session_holds_no_place_so_there_is_no_deadlock(
    history: History,
) -> None:
    """As long as something of a batch waits for a place, something else of it can end."""
    for batch in history.batches.values():
        if batch.waiting:
            own = [task for task in history.tasks.values() if task.batch == batch.id]
            assert any(task.ready or task.leased for task in own)
