"""Counters: what one task adds to its lane and to its agent's line, and what a change moves.

Every counter in the store is the sum of `facts` over tasks, or of `totals` over changes. No other
code adds to a counter, so no code path can forget to count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.model import CRITICAL, Change, Task


class Tally(msgspec.Struct):
    """`slots` are open leases: tasks in flight, plus cancelled runs that have not ended yet.

    `queued` includes tasks that wait for a dependency. `failed` includes those in `expired`, whose
    deadline passed before they started.
    """

    queued: int = 0
    ready: int = 0
    urgent: int = 0
    inflight: int = 0
    slots: int = 0
    parked: int = 0
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    expired: int = 0
    dispatched: int = 0
    waited_ms: int = 0

    @property
    def balanced(self) -> bool:
        """Return whether every admitted task is counted in exactly one place."""
        ended = self.completed + self.failed + self.cancelled
        return self.submitted == ended + self.parked + self.queued + self.inflight


class Line(Tally):
    """The tasks of one agent and one capability in one lane, and the agent's place in the order.

    `share` is the agent's open leases in the lane divided by its weight, the same number in each of
    its lines there; `served` is the fencing token of its newest lease. The smallest pair goes next.
    A lane ordered by priority has one more line per capability, without an agent, that holds all
    tasks.
    """

    lane: str = ""
    agent: str = ""
    capability: str = ""
    share: float = 0.0
    served: int = 0
    id: int = 0


# An imported entry may claim to wait since the year 1. A store keeps 64 bits.
WAITED_MS_MAX: Final = 2**62


def apply(lane: Tally, line: Tally, change: Change) -> None:
    """Add what `change` contributes to the lane and to the line in one pass."""
    if change.before is not None:
        _add_facts(lane, line, change.before, -1)
    _add_facts(lane, line, change.after, 1)
    verb = change.verb
    if verb == lifecycle.SUBMIT:
        lane.submitted += 1
        line.submitted += 1
    elif verb == lifecycle.LEASE:
        lane.dispatched += 1
        line.dispatched += 1
        lane.waited_ms = min(lane.waited_ms + change.waited_ms, WAITED_MS_MAX)
        line.waited_ms = min(line.waited_ms + change.waited_ms, WAITED_MS_MAX)
    elif verb in (lifecycle.COMPLETE, lifecycle.TAKE):
        lane.completed += 1
        line.completed += 1
    elif verb in _RARE:
        _add_totals(lane, change)
        _add_totals(line, change)


def _add_facts(lane: Tally, line: Tally, task: Task, sign: int) -> None:
    state = task.state
    if state == lifecycle.QUEUED:
        lane.queued += sign
        line.queued += sign
        if task.gate is None:
            lane.ready += sign
            line.ready += sign
            if task.priority <= CRITICAL:
                lane.urgent += sign
                line.urgent += sign
    elif state in lifecycle.IN_FLIGHT:
        lane.inflight += sign
        line.inflight += sign
    elif state == lifecycle.WAITING:
        lane.queued += sign
        line.queued += sign
    elif state == lifecycle.PARKED:
        lane.parked += sign
        line.parked += sign
    if task.lease_expires_at is not None:
        lane.slots += sign
        line.slots += sign


_RARE: Final = frozenset(
    {
        lifecycle.CANCEL,
        lifecycle.REJECT,
        lifecycle.FAIL,
        lifecycle.EXPIRE,
        lifecycle.RETRY,
    }
)


def _add_totals(tally: Tally, change: Change) -> None:
    verb = change.verb
    if verb == lifecycle.CANCEL:
        tally.cancelled += 1
    elif verb == lifecycle.REJECT:
        tally.rejected += 1
    elif verb in (lifecycle.FAIL, lifecycle.EXPIRE):
        tally.failed += 1
        if verb == lifecycle.EXPIRE and change.before and change.before.state != lifecycle.RUNNING:
            tally.expired += 1
    else:
        _uncount_end(tally, change.before)


def _uncount_end(tally: Tally, before: Task | None) -> None:
    """Undo the count of the end of a task that is retried. Its expiry stays counted."""
    assert before is not None
    if before.state == lifecycle.FAILED:
        tally.failed -= 1
    else:
        tally.cancelled -= 1
