"""Fairness: compared with the rule spelled out, and held to the bounds that follow from it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from fairlane.core.fairness import Contender, free_slots, pick
from tests.property.histories import BOUNDED

PLENTY = 10_000


WEIGHTS = (0.5, 1.0, 1.0, 2.0, 3.0)
CEILINGS = (None, None, 0, 1, 2, 3, 5, 8)


def _crowd(drawn: bytes) -> list[Contender]:
    """Up to six agents in any situation, each from four drawn bytes."""
    crowd = []
    for number in range(len(drawn) // 4):
        ready, held, served, rank = drawn[4 * number : 4 * number + 4]
        crowd.append(
            Contender(
                agent=f"agent-{number}",
                ready=ready % 9,
                urgent=ready // 9 % (ready % 9 + 1),
                slots=held % 7,
                served=served % 20,
                weight=WEIGHTS[rank % len(WEIGHTS)],
                ceiling=CEILINGS[rank // len(WEIGHTS) % len(CEILINGS)],
            )
        )
    return crowd


crowds = st.binary(max_size=24).map(_crowd)
slot_counts = st.integers(0, 40)
served_tokens = st.integers(20, 30)
weights = st.lists(st.floats(0.1, 10), min_size=2, max_size=6)


def backlogged(agent: str, weight: float = 1.0) -> Contender:
    return Contender(agent=agent, ready=PLENTY, urgent=0, slots=0, served=0, weight=weight)


def _spelled_out(crowd: list[Contender], slots: int, served: int) -> list[str]:
    """The rule, one slot after the other, by comparing all agents each time."""
    state = {one.agent: [one.ready, one.urgent, one.slots, one.served] for one in crowd}
    order: list[str] = []
    for number in range(1, slots + 1):
        may = [
            one
            for one in crowd
            if state[one.agent][0] > 0
            and (one.ceiling is None or state[one.agent][2] < one.ceiling)
        ]
        if not may:
            break
        critical = [one for one in may if state[one.agent][1] > 0]
        chosen = min(
            critical or may,
            key=lambda one: (
                state[one.agent][2] / one.weight,
                state[one.agent][3],
                one.agent,
            ),
        ).agent
        ready, urgent, held, _ = state[chosen]
        state[chosen] = [ready - 1, urgent - 1, held + 1, served + number]
        order.append(chosen)
    return order


@BOUNDED
@given(crowds, slot_counts, served_tokens)
def test_the_order_is_that_of_the_rule_spelled_out(
    crowd: list[Contender], slots: int, served: int
) -> None:
    assert pick(crowd, slots, served=served) == _spelled_out(crowd, slots, served)


@BOUNDED
@given(crowds, slot_counts, served_tokens, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_who_is_named_first(
    crowd: list[Contender], slots: int, served: int, random: Any
) -> None:
    shuffled = random.sample(crowd, len(crowd))
    assert pick(shuffled, slots, served=served) == pick(crowd, slots, served=served)


@BOUNDED
@given(crowds, slot_counts, served_tokens)
def test_no_limit_is_ever_passed_and_no_slot_is_left_that_somebody_could_use(
    crowd: list[Contender], slots: int, served: int
) -> None:
    turns = Counter(pick(crowd, slots, served=served))
    assert turns.total() <= slots
    room = 0
    for one in crowd:
        may = one.ready if one.ceiling is None else min(one.ready, max(0, one.ceiling - one.slots))
        assert turns[one.agent] <= may
        room += may
    assert turns.total() == min(slots, room)


@BOUNDED
@given(crowds, slot_counts, served_tokens)
def test_critical_work_goes_first_wherever_a_ceiling_allows_it(
    crowd: list[Contender], slots: int, served: int
) -> None:
    order = pick(crowd, slots, served=served)
    critical = 0
    for one in crowd:
        may = one.urgent if one.ceiling is None else max(0, one.ceiling - one.slots)
        critical += min(one.urgent, may)
    left = {one.agent: one.urgent for one in crowd}
    for agent in order[:critical]:
        assert left[agent] > 0
        left[agent] -= 1


@BOUNDED
@given(weights, st.integers(0, 200))
def test_what_is_handed_out_follows_the_weights_within_one_lease(
    given_weights: list[float], slots: int
) -> None:
    crowd = [backlogged(f"a{n}", weight) for n, weight in enumerate(given_weights)]
    turns = Counter(pick(crowd, slots, served=0))
    for one, other in itertools.combinations(crowd, 2):
        difference = turns[one.agent] / one.weight - turns[other.agent] / other.weight
        assert abs(difference) <= 1 / min(one.weight, other.weight) + 1e-9


@BOUNDED
@given(st.integers(2, 8), st.integers(1, 60))
def test_with_one_slot_equal_agents_take_turns(agents: int, rounds: int) -> None:
    crowd = [backlogged(f"a{number}") for number in range(agents)]
    order: list[str] = []
    for token in range(rounds):
        (chosen,) = pick(crowd, 1, served=token)
        order.append(chosen)
        next(one for one in crowd if one.agent == chosen).served = token + 1
    for start in range(max(0, len(order) - agents + 1)):
        window = order[start : start + agents]
        assert len(set(window)) == len(window)


@BOUNDED
@given(st.integers(2, 5), st.integers(1, 12), st.lists(st.binary(), max_size=12))
def test_however_runs_end_equal_agents_never_hold_more_than_one_slot_apart(
    agents: int, slots: int, endings: list[bytes]
) -> None:
    """Slots free up at random, by ones and by many, and are filled again at once."""
    crowd = {f"a{number}": backlogged(f"a{number}") for number in range(agents)}
    running: list[str] = []
    token = 0
    for ending in [b"", *endings]:
        for number in ending:
            if running:
                crowd[running.pop(number % len(running))].slots -= 1
        for agent in pick(crowd.values(), slots - len(running), served=token):
            token += 1
            crowd[agent].slots += 1
            crowd[agent].served = token
            running.append(agent)
        held = [one.slots for one in crowd.values()]
        assert sum(held) == slots
        assert max(held) - min(held) <= 1


@BOUNDED
@given(crowds, served_tokens)
def test_an_agent_with_nothing_in_flight_waits_for_each_other_agent_at_most_once(
    crowd: list[Contender], served: int
) -> None:
    assume(crowd)
    for one in crowd:
        one.urgent = 0
        one.ready = one.ready or 1
        one.ceiling = None
    quiet = crowd[0]
    quiet.slots = 0
    order = pick(crowd, len(crowd), served=served)
    assert quiet.agent in order


@BOUNDED
@given(st.integers(0, 50), st.integers(0, 60), st.none() | st.integers(0, 100), st.integers(0, 120))
def test_free_slots_never_lead_over_a_ceiling(
    ceiling: int, used: int, overall: int | None, elsewhere: int
) -> None:
    free = free_slots(ceiling, used, overall, used + elsewhere)
    assert free >= 0
    if free:
        assert used + free <= ceiling
        assert overall is None or used + elsewhere + free <= overall
    else:
        assert used >= ceiling or (overall is not None and used + elsewhere >= overall)
