"""Places in a line: critical work first, and with aging no task waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.admission import rank
from fairlane.core.model import CRITICAL
from fairlane.core.policy import LanePolicy
from tests.property.histories import BOUNDED

NOW = 1_700_000_000_000
DAY_MS = 86_400_000

agings = st.integers(1, DAY_MS)
priorities = st.integers(-1_000_000, 1_000_000)
arrivals = st.lists(st.tuples(st.integers(0, 10_000), st.integers(-40, 40)), max_size=40)


def _served(lane: LanePolicy, crowd: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One task goes in each millisecond, from when it came; the order in which they went."""
    left = sorted(crowd)
    order: list[tuple[int, int]] = []
    now = 0
    while left:
        now = max(now + 1, left[0][0])
        present = [one for one in left if one[0] <= now]
        first = min(present, key=lambda one: (rank(lane, one[1], NOW + one[0]), one[0]))
        left.remove(first)
        order.append(first)
    return order


@BOUNDED
@given(st.none() | agings, arrivals)
def test_critical_work_goes_before_everything_that_waits_with_it(
    aging_ms: int | None, crowd: list[tuple[int, int]]
) -> None:
    lane = LanePolicy(aging_ms=aging_ms)
    ranks = [(rank(lane, priority, NOW + at), priority) for at, priority in crowd]
    critical = [place for place, priority in ranks if priority <= CRITICAL]
    others = [place for place, priority in ranks if priority > CRITICAL]
    assert not critical or not others or max(critical) < min(others)


@BOUNDED
@given(agings, priorities, priorities, st.integers(0, 10**12))
def test_a_point_of_priority_is_worth_its_time_exactly(
    aging_ms: int, one: int, other: int, waited_ms: int
) -> None:
    lane = LanePolicy(aging_ms=aging_ms)
    ahead = rank(lane, one, NOW) < rank(lane, other, NOW + waited_ms)
    if min(one, other) > CRITICAL:
        assert ahead == ((one - other) * aging_ms < waited_ms)
    elif max(one, other) > CRITICAL:
        assert ahead == (one <= CRITICAL)
    else:
        assert ahead == (one < other)


@BOUNDED
@given(agings, st.integers(-19, 1000), st.integers(-19, 1000))
def test_a_task_that_waits_long_enough_is_not_overtaken(aging_ms: int, own: int, best: int) -> None:
    lane = LanePolicy(aging_ms=aging_ms)
    enough_ms = max(0, own - best) * aging_ms
    assert rank(lane, own, NOW) < rank(lane, best, NOW + enough_ms + 1)


@BOUNDED
@given(st.integers(1, 50), arrivals, st.integers(-19, 40))
def test_in_a_stream_of_better_work_a_task_goes_when_its_age_is_up(
    aging_ms: int, crowd: list[tuple[int, int]], own: int
) -> None:
    """Tasks that pass it came before it had made up for its priority."""
    lane = LanePolicy(aging_ms=aging_ms)
    mine = (0, own)
    others = [(at, max(priority, CRITICAL + 1)) for at, priority in crowd]
    order = _served(lane, [*others, mine])
    passed_by = order[: order.index(mine)]
    assert all(at <= max(0, own - priority) * aging_ms for at, priority in passed_by)


@BOUNDED
@given(arrivals)
def test_without_aging_priority_decides_and_then_who_came_first(
    crowd: list[tuple[int, int]],
) -> None:
    strict = LanePolicy()
    together = [(0, priority) for _, priority in crowd]
    order = [priority for _, priority in _served(strict, together)]
    assert order == sorted(order)
