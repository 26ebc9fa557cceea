"""The commands of the writer about the steps of a run; see `commands.py`."""

from __future__ import annotations

import msgspec

from fairlane.core.model import Task


class Checkpoint(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: `CheckpointOutcome`. Record a step of a run. `value` is JSON text.

    `number` is its place among the steps of the run; None if names tell them apart.
    """

    seq: int
    fencing_token: int
    name: str
    value: str
    number: int | None = None


class CheckpointOutcome(msgspec.Struct, frozen=True, gc=False):
    """The task, the number of the step, and False if it was recorded before."""

    task: Task
    number: int
    new: bool
