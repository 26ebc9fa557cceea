"""Steps: whatever the order of requests, every place has one name and one value, the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core import steps
from fairlane.core.steps import StepBrief, StepDecision, StepIndex

REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.none() | st.integers(1, 6),
        st.integers(0, steps.VALUE_CHARACTERS_MAX + 1),
    ),
    max_size=30,
)


@given(REQUESTS)
def test_the_first_request_of_a_place_wins_and_bounds_hold(
    requests: list[tuple[str, int | None, int]],
) -> None:
    known: dict[int, StepBrief] = {}
    for name, number, size in requests:
        before = dict(known)
        found = steps.decide(StepIndex(known.values()), name=name, number=number, size=size)
        if isinstance(found, StepDecision):
            assert number in (None, found.number)
            assert found.new == (found.number not in before)
            if found.new:
                known[found.number] = StepBrief(1, found.number, name, size)
            assert known[found.number].name == name
        else:
            assert known == before
    assert sum(one.size for one in known.values()) <= steps.TOTAL_CHARACTERS_MAX
    assert all(one.size <= steps.VALUE_CHARACTERS_MAX for one in known.values())
