"""Fair shares: nothing is lost, no agent gets more than it can use, the others get the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.fairness import fair_shares
from tests.property.histories import BOUNDED

agents = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(0, 20)),
    max_size=8,
)


@BOUNDED
@given(slots=st.integers(0, 60), wants=agents)
def test_shares_are_fair(slots: int, wants: dict[str, tuple[float, int]]) -> None:
    shares = fair_shares(slots, wants)
    usable = sum(most for _, most in wants.values())
    assert sum(shares.values()) == pytest.approx(min(slots, usable) if wants else 0)
    level = max((shares[a] / wants[a][0] for a in wants), default=0.0)
    for agent, (weight, most) in wants.items():
        assert -1e-9 <= shares[agent] <= most + 1e-9
        content = shares[agent] == pytest.approx(most)
        assert content or shares[agent] / weight == pytest.approx(level)


def test_what_one_leaves_goes_to_the_others_by_weight() -> None:
    wants = {"small": (1.0, 1.0), "one": (1.0, 50.0), "two": (2.0, 50.0)}
    assert fair_shares(10, wants) == {"small": 1.0, "one": 3.0, "two": 6.0}
