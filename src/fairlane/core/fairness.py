"""Fairness: which agent goes next.

The agent with the fewest open leases in the lane, divided by its weight, goes first; ties go to
the one served longest ago. Agents with critical work come before all others. This is decided
here and nowhere else.

It follows for agents that always have work: with equal weights they never hold slots that differ
by more than one, and take turns when there is one slot; with weights, what is handed out at once,
divided by weight, differs by at most one lease divided by the smaller weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec


class Contender(msgspec.Struct, frozen=True, gc=False):
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

    def after_turn(self, token: int) -> Contender:
        """The agent with one lease more, the newest."""
        return Contender(
            self.agent,
            self.ready - 1,
            self.urgent - 1,
            self.slots + 1,
            token,
            self.weight,
            self.ceiling,
        )

    @property
    def key(self) -> tuple[bool, float, int, str]:
        return (self.urgent <= 0, self.slots / self.weight, self.served, self.agent)


def pick(contenders: Iterable[Contender], slots: int, *, served: int) -> list[str]:
    """The agents to serve, in order, for `slots` free slots; an agent may come up many times.

    `served` is the token of the newest lease; each pick counts on from there, as the leases will.
    """
    heap = [(one.key, one) for one in contenders if one.eligible]
    heapq.heapify(heap)
    order: list[str] = []
    while heap and len(order) < slots:
        one = heap[0][1]
        order.append(one.agent)
        after = one.after_turn(served + len(order))
        if after.eligible:
            heapq.heapreplace(heap, (after.key, after))
        else:
            heapq.heappop(heap)
    return order


def free_slots(ceiling: int, used: int, overall: int | None, used_overall: int) -> int:
    """How many more leases a lane may give out, under its own ceiling and the one over all."""
    free = ceiling - used
    if overall is not None:
        free = min(free, overall - used_overall)
    return max(0, free)
