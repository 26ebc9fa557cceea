"""Fairness: which agent goes next, in the cases that a person would think of."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core.fairness import Contender, free_slots, others_before, pick


def agent(name: str, ready: int = 100, **given: Any) -> Contender:
    return Contender(
        **{"agent": name, "ready": ready, "urgent": 0, "slots": 0, "served": 0, **given}
    )


def test_the_agent_with_the_fewest_in_flight_goes_first() -> None:
    assert pick([agent("a", slots=2), agent("b", slots=1)], 1, served=0) == ["b"]


def test_ties_go_to_the_one_served_longest_ago() -> None:
    assert pick([agent("a", served=5), agent("b", served=3)], 1, served=9) == ["b"]


def test_a_turn_in_the_same_round_counts_as_the_newest() -> None:
    contenders = [agent("a", slots=1, served=9), agent("b", served=8)]
    assert pick(contenders, 2, served=10) == ["b", "a"]


def test_what_was_never_served_goes_by_name() -> None:
    assert pick([agent("b"), agent("a")], 2, served=0) == ["a", "b"]


def test_two_agents_of_three_tasks_and_one_get_one_slot_each() -> None:
    assert sorted(pick([agent("a", ready=3), agent("b", ready=1)], 2, served=0)) == ["a", "b"]


def test_a_flood_does_not_hold_up_a_single_task() -> None:
    flood = agent("flood", ready=10_000, slots=19, served=400)
    assert pick([flood, agent("quiet", ready=1, served=399)], 1, served=500) == ["quiet"]


def test_an_agent_of_twice_the_weight_gets_twice_the_slots() -> None:
    order = pick([agent("heavy", weight=2.0), agent("light")], 9, served=0)
    assert (order.count("heavy"), order.count("light")) == (6, 3)


def test_an_agent_at_its_ceiling_waits() -> None:
    assert pick([agent("a", slots=2, ceiling=2), agent("b", slots=5)], 2, served=0) == ["b", "b"]


def test_an_agent_gets_no_more_than_its_ceiling_at_once() -> None:
    assert pick([agent("a", slots=1, ceiling=3)], 10, served=0) == ["a", "a"]


def test_no_more_is_given_than_there_is_ready() -> None:
    assert pick([agent("a", ready=2)], 10, served=0) == ["a", "a"]


@pytest.mark.parametrize("contenders", [[], [agent("a", ready=0)], [agent("a", ceiling=0)]])
def test_without_an_eligible_agent_none_is_picked(contenders: list[Contender]) -> None:
    assert pick(contenders, 5, served=0) == []


def test_without_slots_no_agent_is_picked() -> None:
    assert pick([agent("a")], 0, served=0) == []


def test_critical_work_goes_before_fairness() -> None:
    busy = agent("busy", urgent=2, slots=9)
    order = pick([busy, agent("idle")], 4, served=0)
    assert order == ["busy", "busy", "idle", "idle"]


def test_critical_work_is_shared_fairly_too() -> None:
    contenders = [agent("a", urgent=2), agent("b", urgent=1), agent("c")]
    assert pick(contenders, 4, served=0) == ["a", "b", "a", "c"]


def test_critical_work_does_not_break_an_agents_ceiling() -> None:
    assert pick([agent("a", urgent=5, slots=1, ceiling=1), agent("b")], 1, served=0) == ["b"]


def test_picking_is_only_a_plan() -> None:
    contenders = [agent("a", urgent=1), agent("b", slots=1)]
    first = pick(contenders, 7, served=3)
    assert pick(contenders, 7, served=3) == first
    assert contenders == [agent("a", urgent=1), agent("b", slots=1)]


@pytest.mark.parametrize(
    ("ceiling", "used", "overall", "used_overall", "free"),
    [
        (5, 2, None, 99, 3),
        (5, 2, 10, 9, 1),
        (5, 2, 10, 2, 3),
        (5, 2, 10, 12, 0),  # the ceiling over all was lowered below what is in flight
        (5, 7, None, 7, 0),  # the lane's was
        (5, 7, 100, 7, 0),
    ],
)
def test_free_slots_are_what_both_ceilings_leave(
    ceiling: int, used: int, overall: int | None, used_overall: int, free: int
) -> None:
    assert free_slots(ceiling, used, overall, used_overall) == free


def test_what_others_get_before_a_turn_is_counted() -> None:
    """a, b, c take turns; b has one task, so later turns come sooner."""
    found = [Contender("a", 3, 0, 0, 0), Contender("b", 1, 0, 0, 1), Contender("c", 3, 0, 0, 2)]

    def before(agent: str, turn: int, most: int = 100) -> int:
        return others_before(found, agent, turn, served=9, most=most)

    assert [before("a", turn) for turn in (1, 2, 3)] == [0, 2, 3]
    assert [before("c", turn) for turn in (1, 2, 3)] == [2, 3, 4]
    assert before("c", 3, most=3) == 3
    assert before("unknown", 1) == 7
