"""Planted bugs in what becomes of spans when somebody sets the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairlane.engine.verbs import clock_steps
from fairlane.store.sqlite import SqliteConnection
from tests.simulation.planting import Bed, always

if TYPE_CHECKING:
    import pytest

    from fairlane.store.base import Row

BED: Final = Bed()
plant = BED.plant


@plant("fencing")
def a_step_takes_leases_back(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, "step_leases")


@plant("wait", "deadline", "window", "fencing", "order")
def steps_of_the_clock_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock_steps, "_step", always(0))


@plant("wait", "deadline", "window")
def waits_and_deadlines_do_not_move(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, "step_tasks")


@plant("order")
def the_age_of_tasks_does_not_move(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, "step_ranks")


@plant("marks")
def a_stop_refuses_what_is_said_after_it(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, "step_sessions")


@plant("wait", "deadline", "fencing", "window", "order", seed=2)
def a_step_is_taken_in_by_each_process(patch: pytest.MonkeyPatch) -> None:
    """What others have done about it is not asked for, nor told."""
    real = SqliteConnection.run

    def run(self: SqliteConnection, name: str, /, **values: Any) -> list[Row]:
        if name == "clock_save":
            return []
        return [(None, None)] if name == "clock_get" else real(self, name, **values)

    patch.setattr(SqliteConnection, "run", run)


@plant("wait", "deadline", "window", "fencing", "order")
def a_step_is_taken_in_once_more_after_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, "clock_save")


@plant("deadline", "wait")
def what_a_caller_named_moves_too(patch: pytest.MonkeyPatch) -> None:
    real = SqliteConnection.run

    def run(self: SqliteConnection, name: str, /, **values: Any) -> list[Row]:
        if name == "step_tasks":
            text = (
                "UPDATE task SET deadline_at = deadline_at + :by, eligible_at = eligible_at + :by"
            )
            open_ = "('waiting_dependency', 'queued', 'assigned', 'running')"
            return self._execute(
                f"{text}, queued_at = queued_at + :by WHERE state IN {open_}", values
            )
        return real(self, name, **values)

    patch.setattr(SqliteConnection, "run", run)


def _leave_out(patch: pytest.MonkeyPatch, left_out: str) -> None:
    real = SqliteConnection.run

    def run(self: SqliteConnection, name: str, /, **values: Any) -> list[Row]:
        return [] if name == left_out else real(self, name, **values)

    patch.setattr(SqliteConnection, "run", run)
