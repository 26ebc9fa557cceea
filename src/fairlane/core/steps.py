"""Steps: results that a run records, so that its next attempt does not repeat the work.

A step has a number, its place among the steps that a run calls, and a name. A run replays: its
first step is the recorded first step, and so on. If the recorded name differs, the handler has
changed since, and returning the record would return the result of another step. The first value of
a step wins, so a repeated request changes nothing. Steps belong to the task: they outlive attempts,
leases, suspensions and manual retries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from fairlane.core.errors import Conflict, FairlaneError, PayloadTooLarge, StepChanged
from fairlane.core.types import Identifier

STEPS_MAX: Final = 1000
VALUE_CHARACTERS_MAX: Final = 262_144
TOTAL_CHARACTERS_MAX: Final = 1_048_576

StepName = Identifier


class Step(msgspec.Struct, frozen=True, gc=False):
    """A recorded step. `value` is JSON text. `intent` is that of an effect, see `effects.py`."""

    seq: int
    number: int
    name: str
    value: str
    at: int
    intent: int | None = None


class StepBrief(NamedTuple):
    """A recorded step without its value."""

    seq: int
    number: int
    name: str
    size: int
    intent: int | None = None


class StepIndex:
    """The recorded steps of a task, by number and by name, and how large their values are
    together.
    """

    __slots__ = ("_by_name", "_by_number", "last", "total")

    def __init__(self, steps: Iterable[StepBrief] = ()) -> None:
        self._by_number: dict[int, StepBrief] = {}
        self._by_name: dict[str, set[int]] = {}
        self.last = 0
        self.total = 0
        for one in steps:
            self.add(one)

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, step: StepBrief) -> None:
        """Add a step, or replace what is known about it."""
        before = self._by_number.get(step.number)
        self.total += step.size - (0 if before is None else before.size)
        self.last = max(self.last, step.number)
        self._by_number[step.number] = step
        self._by_name.setdefault(step.name, set()).add(step.number)

    def at(self, number: int) -> StepBrief | None:
        return self._by_number.get(number)

    def named(self, name: str) -> list[StepBrief]:
        """Return the steps with this name, by number."""
        return [self._by_number[number] for number in sorted(self._by_name.get(name, ()))]


class StepDecision(msgspec.Struct, frozen=True):
    """The number of a step, and whether it is `new`: then it has to be saved. With `settles`, it is
    the outcome of an effect that the lease has begun.
    """

    number: int
    new: bool
    settles: bool = False


def decide(
    recorded: StepIndex, *, name: str, number: int | None, size: int
) -> StepDecision | FairlaneError:
    """Return what a request to record a step means. Without a number, names tell steps apart."""
    if number is None:
        same = recorded.named(name)
        number = same[0].number if same else recorded.last + 1
    found = recorded.at(number)
    if found is not None:
        return StepDecision(number, new=False) if found.name == name else changed(found, name)
    if len(recorded) >= STEPS_MAX or number > STEPS_MAX:
        return Conflict(f"a task records at most {STEPS_MAX} steps; record fewer, larger steps")
    if size > VALUE_CHARACTERS_MAX:
        return too_large(name, size)
    if size + recorded.total > TOTAL_CHARACTERS_MAX:
        return _too_large_together()
    return StepDecision(number, new=True)


def record(
    recorded: StepIndex, *, name: str, number: int | None, size: int, fencing_token: int
) -> StepDecision | FairlaneError:
    """Return what a request to record a result means: of a step, or of an effect that the lease
    with this fencing token has begun.
    """
    decision = decide(recorded, name=name, number=number, size=size)
    if isinstance(decision, FairlaneError):
        return decision
    found = recorded.at(decision.number)
    if found is None or not found.intent:
        return decision
    if abs(found.intent) != fencing_token:
        return Conflict(
            f'step {found.number} "{name}" is an effect that this lease has not begun; begin it '
            "before it acts"
        )
    if size > VALUE_CHARACTERS_MAX:
        return too_large(name, size)
    if size + recorded.total > TOTAL_CHARACTERS_MAX:
        return _too_large_together()
    return StepDecision(decision.number, new=False, settles=True)


def changed(found: StepBrief, name: str) -> StepChanged:
    """Return the error for a run whose step has another name than the recorded one."""
    return mismatch(found.number, found.name, name)


def mismatch(number: int, recorded: str, name: str) -> StepChanged:
    return StepChanged(
        f'step {number} of the task was recorded as "{recorded}", but the run now calls '
        f'"{name}": its steps have changed since. Run the version that recorded them, or retry '
        'the task with "fresh": true',
        details={"number": number, "recorded": recorded, "called": name},
    )


def too_large(name: str, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f'the value of step "{name}" has {size} characters of JSON, more than '
        f"{VALUE_CHARACTERS_MAX}; store it elsewhere and record where it is"
    )


def _too_large_together() -> PayloadTooLarge:
    return PayloadTooLarge(
        f"all steps of a task may have {TOTAL_CHARACTERS_MAX} characters of JSON together; "
        "store large values elsewhere and record where they are"
    )
