"""The commands of the writer about the steps and waits of a run; see `commands.py`."""

from __future__ import annotations

import msgspec

from fairlane.core.model import Task
from fairlane.core.suspensions import Until


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


class Suspend(msgspec.Struct, frozen=True):
    """Answer: `SuspendOutcome`. Release a lease until something has happened.

    The wait is a step: `name` and `number` are as in `Checkpoint`. With `agent`, only that agent's
    tasks can be awaited.
    """

    seq: int
    fencing_token: int
    name: str
    until: Until
    number: int | None = None
    agent: str | None = None


class SuspendOutcome(msgspec.Struct, frozen=True):
    """The task. If it is not `suspended`, the wait has already ended, and `value` is its JSON."""

    task: Task
    number: int
    suspended: bool
    value: str | None = None


class SendSignal(msgspec.Struct, frozen=True):
    """Answer: `SignalOutcome`. Send a value, which is JSON text, to a task."""

    id: str
    name: str
    value: str


class SignalOutcome(msgspec.Struct, frozen=True):
    """The task, and whether the value was taken: the first one of a name is."""

    task: Task
    accepted: bool
