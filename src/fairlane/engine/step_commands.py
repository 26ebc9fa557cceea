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
    """The task, the number of the step, and False if it was recorded before. With `settles`, it is
    the outcome of an effect.
    """

    task: Task
    number: int
    new: bool
    settles: bool = False


class BeginEffect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: `EffectOutcome`. Record that a run is about to act. With `withdraws`, record that it
    did not. `checks`: the run can find out whether an earlier one acted.
    """

    seq: int
    fencing_token: int
    name: str
    number: int | None = None
    checks: bool = False
    withdraws: bool = False


class EffectOutcome(msgspec.Struct, frozen=True, gc=False):
    """The task, the number of the effect, and its state."""

    task: Task
    number: int
    state: str


class ResolveEffect(msgspec.Struct, frozen=True):
    """Answer: the task. An operator says whether an effect happened; then its task runs again.

    `value` is its result as JSON text.
    """

    id: str
    name: str
    happened: bool
    value: str | None = None


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
