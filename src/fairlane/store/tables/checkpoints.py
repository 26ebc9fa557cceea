"""Steps that runs have recorded."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from msgspec.structs import astuple

from fairlane.core.model import Task
from fairlane.core.steps import Step, StepBrief
from fairlane.store.base import Connection, Row


def insert(connection: Connection, steps: Iterable[Step]) -> None:
    connection.run_rows("checkpoint_insert", [astuple(step) for step in steps])


def settle(connection: Connection, steps: Iterable[Step]) -> None:
    """Save what has become of effects."""
    connection.change_rows("checkpoint_settle", [astuple(step) for step in steps])


def count(connection: Connection, tasks: Iterable[Task]) -> None:
    """Save how many steps tasks have. The fencing token guards it."""
    rows = [(task.seq, task.fencing_token, task.steps) for task in tasks]
    connection.change_rows("task_steps", rows)


def brief(connection: Connection, seqs: Iterable[int]) -> dict[int, list[StepBrief]]:
    """Return the steps of tasks without their values, by number."""
    found: dict[int, list[StepBrief]] = {}
    for row in _in_order(connection.run_rows("checkpoint_brief", [(seq,) for seq in seqs])):
        found.setdefault(row[0], []).append(StepBrief(*row))
    return found


def of_tasks(connection: Connection, seqs: Iterable[int]) -> dict[int, tuple[Step, ...]]:
    """Return the steps of tasks by number."""
    found: dict[int, list[Step]] = {}
    for row in _in_order(connection.run_rows("checkpoint_of", [(seq,) for seq in seqs])):
        found.setdefault(row[0], []).append(Step(*row))
    return {seq: tuple(steps) for seq, steps in found.items()}


def forget(connection: Connection, seqs: Iterable[int]) -> None:
    connection.run_rows("checkpoint_delete", [(seq,) for seq in seqs])


def recount(connection: Connection) -> list[tuple[str, int, int]]:
    """Return each task with its count of steps and the recount."""
    return [(row[0], row[1], row[2]) for row in connection.run("checkpoint_recount")]


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=itemgetter(0, 1))
