"""Steps: what a request to record one means, given what is recorded."""

from __future__ import annotations

import pytest

from fairlane.core import steps
from fairlane.core.errors import Conflict, PayloadTooLarge, StepChanged
from fairlane.core.steps import StepBrief, StepDecision, StepIndex


def recorded(*names: str, size: int = 1) -> StepIndex:
    return StepIndex(StepBrief(1, number, name, size) for number, name in enumerate(names, 1))


def test_the_next_step_is_new() -> None:
    assert steps.decide(StepIndex(), name="a", number=None, size=1) == StepDecision(1, new=True)
    assert steps.decide(recorded("a"), name="b", number=None, size=1) == StepDecision(2, new=True)
    assert steps.decide(recorded("a"), name="a", number=2, size=1) == StepDecision(2, new=True)


def test_a_step_that_runs_beside_another_may_be_recorded_first() -> None:
    assert steps.decide(StepIndex(), name="b", number=2, size=1) == StepDecision(2, new=True)
    known = StepIndex([StepBrief(1, 2, "b", 1)])
    assert steps.decide(known, name="a", number=1, size=1) == StepDecision(1, new=True)
    assert steps.decide(known, name="c", number=None, size=1) == StepDecision(3, new=True)


@pytest.mark.parametrize("number", [None, 2])
def test_a_repeated_step_is_not_new(number: int | None) -> None:
    known = recorded("a", "b")
    assert steps.decide(known, name="b", number=number, size=9**9) == StepDecision(2, new=False)


def test_another_name_in_the_same_place_is_refused() -> None:
    problem = steps.decide(recorded("a", "b"), name="c", number=2, size=1)
    assert isinstance(problem, StepChanged)
    assert problem.details == {"number": 2, "recorded": "b", "called": "c"}
    assert '"b"' in problem.message
    assert '"c"' in problem.message
    assert "fresh" in problem.message


def test_count_and_sizes_are_bounded() -> None:
    many = recorded(*("x" for _ in range(steps.STEPS_MAX)))
    assert isinstance(steps.decide(many, name="y", number=None, size=1), Conflict)
    assert isinstance(
        steps.decide(StepIndex(), name="y", number=steps.STEPS_MAX + 1, size=1), Conflict
    )
    largest = steps.VALUE_CHARACTERS_MAX
    assert isinstance(steps.decide(StepIndex(), name="y", number=1, size=largest), StepDecision)
    assert isinstance(
        steps.decide(StepIndex(), name="y", number=1, size=largest + 1), PayloadTooLarge
    )
    four = recorded("a", "b", "c", "d", size=largest)
    assert isinstance(steps.decide(four, name="y", number=5, size=1), PayloadTooLarge)


def test_the_index_knows_each_step_once() -> None:
    index = recorded("a", "b", "a", size=5)
    index.add(StepBrief(1, 2, "b", 7, 0))
    assert (len(index), index.last, index.total) == (3, 3, 17)
    assert index.at(2) == StepBrief(1, 2, "b", 7, 0)
    assert index.at(4) is None
    assert [one.number for one in index.named("a")] == [1, 3]
    assert index.named("c") == []
