"""Effects: what a run may do, depending on what earlier runs recorded."""

from __future__ import annotations

import pytest

from fairlane.core import effects, steps
from fairlane.core.effects import EffectDecision
from fairlane.core.errors import Conflict, FairlaneError, NotFound, PayloadTooLarge, StepChanged
from fairlane.core.steps import (
    TOTAL_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    StepBrief,
    StepDecision,
    StepIndex,
)

MINE, EARLIER = 7, 5


def brief(intent: int | None, name: str = "charge", number: int = 1, size: int = 4) -> StepBrief:
    return StepBrief(1, number, name, size, intent)


def begun(
    *recorded: StepBrief, number: int | None = 1, checks: bool = False
) -> EffectDecision | FairlaneError:
    return effects.begin(
        StepIndex(recorded),
        task_id="t",
        name="charge",
        number=number,
        fencing_token=MINE,
        checks=checks,
    )


def test_a_new_effect_may_act() -> None:
    assert begun() == EffectDecision(1, "begun", new=True)


@pytest.mark.parametrize(
    ("intent", "state"), [(MINE, "begun"), (-1, "begun"), (0, "done"), (None, "done")]
)
def test_what_is_known_decides(intent: int | None, state: str) -> None:
    assert begun(brief(intent)) == EffectDecision(1, state)
    assert begun(brief(intent), number=None, checks=True) == EffectDecision(1, state)


def test_an_effect_that_an_earlier_lease_began_parks_its_task_or_is_checked() -> None:
    found = begun(brief(EARLIER))
    assert isinstance(found, EffectDecision)
    assert found.parks == effects.reason("t", "charge")
    assert "fairlane effect t charge --happened" in found.parks
    assert begun(brief(EARLIER), checks=True) == EffectDecision(1, "unknown")


@pytest.mark.parametrize("lease", [MINE, EARLIER])
def test_an_effect_that_is_being_checked_stays_unknown(lease: int) -> None:
    intent = effects.intent_of("unknown", lease)
    assert effects.state_of(intent, lease) == "unknown"
    assert begun(brief(intent), checks=True) == EffectDecision(1, "unknown")
    found = begun(brief(intent))
    assert isinstance(found, EffectDecision)
    assert found.parks is not None


@pytest.mark.parametrize("intent", [MINE, EARLIER, -EARLIER, 0, -1])
def test_the_name_of_an_effect_has_one_place(intent: int) -> None:
    elsewhere = brief(intent, number=2)
    assert isinstance(begun(elsewhere), Conflict)
    assert isinstance(begun(brief(-1), elsewhere), Conflict)
    assert begun(elsewhere, number=None) == begun(brief(intent, number=2), number=2)
    assert begun(brief(None, number=2)) == EffectDecision(1, "begun", new=True)


def test_another_step_in_its_place_is_refused() -> None:
    assert isinstance(begun(brief(EARLIER, "send")), StepChanged)


def test_only_the_lease_that_began_an_effect_withdraws_it() -> None:
    def withdrawn(*recorded: StepBrief) -> EffectDecision | FairlaneError:
        return effects.withdraw(StepIndex(recorded), name="charge", number=1, fencing_token=MINE)

    for intent in (MINE, -MINE, -1):  # begun, checked, and a repeated request
        assert withdrawn(brief(intent)) == EffectDecision(1, "not_done")
    assert isinstance(withdrawn(brief(-EARLIER)), Conflict)
    assert isinstance(withdrawn(brief(0)), Conflict)
    assert isinstance(withdrawn(brief(EARLIER)), Conflict)
    assert isinstance(withdrawn(), Conflict)


def test_an_operator_decides_about_an_unknown_outcome_only() -> None:
    def resolved(*recorded: StepBrief, size: int = 4) -> StepBrief | FairlaneError:
        return effects.resolve(StepIndex(recorded), name="charge", size=size)

    assert resolved(brief(EARLIER)) == brief(EARLIER)
    assert resolved(brief(-EARLIER)) == brief(-EARLIER)
    assert isinstance(resolved(brief(0)), Conflict)
    assert isinstance(resolved(brief(-1)), Conflict)
    assert isinstance(resolved(brief(None)), NotFound)
    assert isinstance(resolved(), NotFound)
    assert isinstance(resolved(brief(EARLIER), size=VALUE_CHARACTERS_MAX + 1), PayloadTooLarge)


def test_the_outcome_is_recorded_by_the_lease_that_began_it() -> None:
    def recorded(*known: StepBrief, size: int = 4) -> StepDecision | FairlaneError:
        return steps.record(
            StepIndex(known), name="charge", number=1, size=size, fencing_token=MINE
        )

    assert recorded() == StepDecision(1, new=True)
    assert recorded(brief(MINE)) == StepDecision(1, new=False, settles=True)
    assert recorded(brief(-MINE)) == recorded(brief(MINE))
    assert recorded(brief(0)) == recorded(brief(None)) == StepDecision(1, new=False)
    assert isinstance(recorded(brief(EARLIER)), Conflict)
    assert isinstance(recorded(brief(-EARLIER)), Conflict)
    assert isinstance(recorded(brief(-1)), Conflict)
    assert isinstance(recorded(brief(MINE), size=VALUE_CHARACTERS_MAX + 1), PayloadTooLarge)
    full = brief(None, "other", 2, TOTAL_CHARACTERS_MAX)
    assert isinstance(recorded(brief(MINE), full), PayloadTooLarge)
    assert isinstance(recorded(brief(MINE, "other")), StepChanged)


def test_states_depend_on_the_open_lease() -> None:
    found = [effects.state_of(intent, MINE) for intent in (None, 0, -1, MINE, EARLIER)]
    assert found == [None, "done", "not_done", "begun", "unknown"]
    assert effects.state_of(MINE, None) == "unknown"


def test_the_intent_follows_from_the_state() -> None:
    found = [effects.intent_of(state, MINE) for state in ("begun", "unknown", "not_done")]
    assert found == [MINE, -MINE, -1]


def test_the_key_and_the_error_name_task_and_effect() -> None:
    assert effects.key_of("t", "charge") == "t:charge"
    assert effects.unknown("t", "charge").details == {"taskId": "t", "effect": "charge"}
