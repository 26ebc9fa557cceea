"""Dependencies: the tasks that a task waits for, and what happens to it when one of them ends.

An edge leads from a parent, by id, to a child. It is open until the parent ends; the child counts
its open edges. A parent that is done meets the edge. One that ends otherwise breaks it and cancels
the child, and so on down, with the reason. A parent that is retried restores the edges it broke.
"""

from __future__ import annotations

import copy
import graphlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core import lifecycle
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import DEPENDENCY_GATE, ORPHANED, Change, Task

OPEN: Final = 0
MET: Final = 1
BROKEN: Final = 2
CYCLE_SHOWN_MAX: Final = 20

# The state of the edges after each end of a parent.
EDGE_AFTER: Final[Mapping[str, int]] = {
    lifecycle.DONE: MET,
    lifecycle.FAILED: BROKEN,
    lifecycle.CANCELLED: BROKEN,
    lifecycle.REJECTED: BROKEN,
}


def block(task: Task, unmet: int) -> None:
    """Let a new or retried task wait for `unmet` parents."""
    task.unmet = unmet
    if unmet:
        task.state = lifecycle.step(task.state, lifecycle.BLOCK)
        task.gate = DEPENDENCY_GATE


def met(task: Task) -> Task:
    """Return the child after one more parent is done; it keeps waiting for the others."""
    assert task.unmet is not None
    after = copy.copy(task)
    after.unmet = task.unmet - 1
    return after


def orphan(task: Task, parent_id: str, parent_state: str, now: int) -> Change:
    """Cancel the child of a parent that did not end in state done."""
    after = copy.copy(task)
    after.state = lifecycle.step(task.state, lifecycle.CANCEL)
    after.gate = None
    after.eligible_at = None
    after.completed_at = now
    after.unmet = ORPHANED
    if after.unapproved:
        after.unapproved = 0
    return Change(task, after, lifecycle.CANCEL, error=reason(parent_id, parent_state))


def reason(parent_id: str, parent_state: str) -> str:
    return f"dependency {parent_id} {parent_state}"


def in_order(parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names with parents before children. Raise `InvalidRequest` that names a cycle.

    Names that are in order already keep their order. Parents that are not among the names are
    ignored.
    """
    names = list(parents)
    known = {name: [p for p in parents[name] if p in parents] for name in names}
    place = {name: number for number, name in enumerate(names)}
    if all(place[p] < place[name] for name in names for p in known[name]):
        return names
    try:
        return list(graphlib.TopologicalSorter(known).static_order())
    except graphlib.CycleError as error:
        raise cycle_error(error.args[1]) from None


def cycle_error(names: Sequence[str]) -> InvalidRequest:
    """Return the error for a cycle; `names` begin and end with the same name."""
    shown = list(names) if len(names) <= CYCLE_SHOWN_MAX else [*names[:CYCLE_SHOWN_MAX], "..."]
    return InvalidRequest(f"field 'dependsOn' forms a cycle: {' -> '.join(shown)}")
