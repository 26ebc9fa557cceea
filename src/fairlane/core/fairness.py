"""Fairness: which agent goes next.

The agent with the fewest open leases in the lane, divided by its weight, goes first; ties go to
the one served longest ago. Agents with critical work come before all others. This is decided
here and nowhere else.

It follows for agents that always have work: with equal weights they never hold slots that differ by
more than one, and take turns when there is one slot; with weights, the leases granted at once,
divided by weight, differ by at most one lease divided by the smaller weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import msgspec


class Contender(msgspec.Struct, gc=False):
    """An agent with ready work in one lane. `ceiling` is its own limit there, if it has one."""

    agent: str
    ready: int
    urgent: int
    slots: int
    served: int
    weight: float = 1.0
    ceiling: int | None = None

    @property
    def eligible(self) -> bool:
        return self.ready > 0 and (self.ceiling is None or self.slots < self.ceiling)

    @property
    def most(self) -> int:
        """Return how many leases it can take."""
        if self.ceiling is None:
            return self.ready
        return min(self.ready, self.ceiling - self.slots)

    def key_after(self, turns: int, served: int) -> tuple[bool, float, int, str]:
        """Return its place in the order after `turns` leases; the smallest goes next."""
        return (self.urgent <= turns, (self.slots + turns) / self.weight, served, self.agent)


def pick(contenders: Iterable[Contender], slots: int, *, served: int) -> list[str]:
    """Return the agents to serve, in order, for `slots` free slots; an agent may appear many times.

    `served` is the newest fencing token; each pick counts on from there, as the leases will.
    """
    able = [one for one in contenders if one.eligible]
    # Each entry is the agent's key and its index in `able`; `turns` counts its picks.
    heap = [(*one.key_after(0, one.served), number) for number, one in enumerate(able)]
    heapq.heapify(heap)
    turns = [0] * len(able)
    order: list[str] = []
    while heap and len(order) < slots:
        number = heap[0][-1]
        one = able[number]
        order.append(one.agent)
        turns[number] += 1
        if turns[number] < one.most:
            fencing_token = served + len(order)
            heapq.heapreplace(heap, (*one.key_after(turns[number], fencing_token), number))
        else:
            heapq.heappop(heap)
    return order


def others_before(
    contenders: Iterable[Contender], agent: str, turn: int, *, served: int, most: int
) -> int:
    """Return how many leases go to other agents before turn number `turn` of `agent`.

    The count stops at `most`.
    """
    others = 0
    for one in pick(contenders, most + turn, served=served):
        if one != agent:
            others += 1
        else:
            turn -= 1
        if not turn or others == most:
            break
    return others


def free_slots(ceiling: int, used: int, overall: int | None, used_overall: int) -> int:
    """Return how many more leases a lane may grant under its own and the global ceiling."""
    free = ceiling - used
    if overall is not None:
        free = min(free, overall - used_overall)
    return max(0, free)


def fair_shares(slots: float, wants: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return how many of the slots each agent would have in a fair split.

    `wants` are each agent's weight and the most slots that it can use. Slots that one agent cannot
    use go to the others in proportion to their weights.
    """
    left, weights = slots, sum(weight for weight, _ in wants.values())
    shares: dict[str, float] = {}
    # Agents that can use least for their weight come first; the others share the remaining slots.
    for agent, (weight, most) in sorted(wants.items(), key=lambda one: one[1][1] / one[1][0]):
        shares[agent] = min(most, left * weight / weights)
        left -= shares[agent]
        weights -= weight
    return shares
