"""Effects: steps that act on other systems, with an intent recorded before and the outcome after.

An intent names the lease that began it. If that lease has ended and no outcome was recorded, it is
unknown whether the effect happened. Then no run acts again: the task is parked until an operator
says what happened, unless the run can check that itself. A run that checks puts its lease into the
intent as a negative number: the outcome stays unknown until it is recorded, so a request whose
response was lost gets the same answer again. The key of an effect is the same for every attempt, so
that the other system can refuse a repetition as well. Therefore its name has one place in the task.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import steps
from fairlane.core.errors import Conflict, EffectUnknown, FairlaneError, NotFound
from fairlane.core.steps import StepBrief, StepIndex

HAPPENED: Final = 0
NOT_HAPPENED: Final = -1

BEGUN: Final = "begun"
DONE: Final = "done"
UNKNOWN: Final = "unknown"
NOT_DONE: Final = "not_done"
STATES: Final = (BEGUN, DONE, UNKNOWN, NOT_DONE)

_INTENT_CHARACTERS: Final = len("null")


class EffectDecision(msgspec.Struct, frozen=True):
    """The number of the effect, its state for the run, and whether a new step has to be saved.

    `parks` is the reason for which the task is parked instead.
    """

    number: int
    state: str
    new: bool = False
    parks: str | None = None


def key_of(task_id: str, name: str) -> str:
    """Return the key under which the effect of a task is known to other systems."""
    return f"{task_id}:{name}"


def state_of(intent: int | None, open_lease: int | None) -> str | None:
    """Return the state of an effect; None for an ordinary step. `open_lease` is the fencing token
    of the task's lease, None if it has none.
    """
    if intent is None:
        return None
    if intent == HAPPENED:
        return DONE
    if intent == NOT_HAPPENED:
        return NOT_DONE
    return BEGUN if intent == open_lease else UNKNOWN


def intent_of(state: str, fencing_token: int) -> int:
    """Return the intent to save for an effect that a lease has in this state."""
    if state == NOT_DONE:
        return NOT_HAPPENED
    return -fencing_token if state == UNKNOWN else fencing_token


def begin(
    recorded: StepIndex,
    *,
    task_id: str,
    name: str,
    number: int | None,
    fencing_token: int,
    checks: bool,
) -> EffectDecision | FairlaneError:
    """Return what a run may do: act, use the recorded outcome, or check whether it happened.

    `checks` says that the run can check that.
    """
    found = steps.decide(recorded, name=name, number=number, size=_INTENT_CHARACTERS)
    if isinstance(found, FairlaneError):
        return found
    for one in recorded.named(name):
        if one.number != found.number and one.intent is not None:
            return Conflict(
                f'effect "{name}" is step {one.number} of the task, so step {found.number} needs '
                "another name: the key of an effect is its name",
                details={"number": one.number},
            )
    if found.new:
        return EffectDecision(found.number, BEGUN, new=True)
    known = recorded.at(found.number)
    state = state_of(None if known is None else known.intent, fencing_token)
    if state == UNKNOWN and not checks:
        return EffectDecision(found.number, UNKNOWN, parks=reason(task_id, name))
    if state == NOT_DONE:
        state = BEGUN
    return EffectDecision(found.number, state or DONE)  # an ordinary step has a result as well


def withdraw(
    recorded: StepIndex, *, name: str, number: int | None, fencing_token: int
) -> EffectDecision | FairlaneError:
    """Return the effect that a run has begun and that did not happen; safe to repeat."""
    found = _named(recorded, name, number)
    mine = (fencing_token, -fencing_token, NOT_HAPPENED)
    if found is None or found.intent not in mine:
        return Conflict(f'this lease has not begun the effect "{name}"')
    return EffectDecision(found.number, NOT_DONE)


def resolve(recorded: StepIndex, *, name: str, size: int) -> StepBrief | FairlaneError:
    """Return the effect with an unknown outcome that an operator decides about. Its task has no
    lease. `size` is the length of the result.
    """
    found = _named(recorded, name, None)
    if found is None or found.intent is None:
        return NotFound(f'the task has no effect "{name}"; its steps list them')
    if found.intent in (HAPPENED, NOT_HAPPENED):
        state = state_of(found.intent, None)
        return Conflict(f'the outcome of effect "{name}" is known: {state}', details={"is": state})
    if size > steps.VALUE_CHARACTERS_MAX:
        return steps.too_large(name, size)
    return found


def reason(task_id: str, name: str) -> str:
    return (
        f'effect_unknown: the run that began the effect "{name}" ended before it recorded an '
        f"outcome. Check whether it happened, then run fairlane effect {task_id} {name} "
        "--happened or --not-happened"
    )


def unknown(task_id: str, name: str) -> EffectUnknown:
    """Return the error for a run whose task was parked because of an effect."""
    return EffectUnknown(
        f'it is unknown whether the effect "{name}" happened, so the task was parked; stop '
        "working on it",
        details={"taskId": task_id, "effect": name},
    )


def _named(recorded: StepIndex, name: str, number: int | None) -> StepBrief | None:
    same = (one for one in recorded.named(name) if number in (None, one.number))
    return next(same, None)
