"""Steps: results that a run records, so that its next attempt does not repeat the work.

A step has a number, its place among the steps that a run calls, and a name. A run replays: its
first step is the recorded first step, and so on. If the recorded name differs, the handler has
changed since, and returning the record would return the result of another step. The first value of
a step wins, so a repeated request changes nothing. Steps belong to the task: they outlive attempts,
leases, suspensions and manual retries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class StepDecision(msgspec.Struct, frozen=True):
    """The number of a step, and whether it is `new`: then it has to be saved. With `settles`, it is
    the outcome of an effect that the lease has begun.
    """

    number: int
    new: bool
    settles: bool = False


def decide(
    recorded: Sequence[StepBrief], *, name: str, number: int | None, size: int
) -> StepDecision | FairlaneError:
    """Return what a request to record a step means. Without a number, names tell steps apart."""
    known: Mapping[int, StepBrief] = {one.number: one for one in recorded}
    if number is None:
        same = next((one.number for one in recorded if one.name == name), None)
        number = max(known, default=0) + 1 if same is None else same
    found = known.get(number)
    if found is not None:
        return StepDecision(number, new=False) if found.name == name else changed(found, name)
    if len(recorded) >= STEPS_MAX or number > STEPS_MAX:
        return Conflict(f"a task records at most {STEPS_MAX} steps; record fewer, larger steps")
    if size > VALUE_CHARACTERS_MAX:
        return too_large(name, size)
    if size + sum(one.size for one in recorded) > TOTAL_CHARACTERS_MAX:
        return _too_large_together()
    return StepDecision(number, new=True)


def record(
    recorded: Sequence[StepBrief], *, name: str, number: int | None, size: int, fencing_token: int
) -> StepDecision | FairlaneError:
    """Return what a request to record a result means: of a step, or of an effect that the lease
    with this fencing token has begun.
    """
    decision = decide(recorded, name=name, number=number, size=size)
    if isinstance(decision, FairlaneError) or decision.new:
        return decision
    (found,) = (one for one in recorded if one.number == decision.number)
    if not found.intent:
        return decision
    if abs(found.intent) != fencing_token:
        return Conflict(
            f'step {found.number} "{name}" is an effect that this lease has not begun; begin it '
            "before it acts"
        )
    if size > VALUE_CHARACTERS_MAX:
        return too_large(name, size)
    if size + sum(one.size for one in recorded) > TOTAL_CHARACTERS_MAX:
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
