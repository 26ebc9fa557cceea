"""What a caller with a token may submit, checked in the submitting transaction.

The owner of a session and the number of open tasks are only certain here, under the write lock. A
refusal changes nothing, so a flood of refusals costs no storage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core import sessions
from fairlane.core.access import Caller
from fairlane.core.errors import FairlaneError, InvalidRequest, NotFound, QuotaExceeded
from fairlane.core.model import Submission, Task
from fairlane.store.transaction import Transaction

RETRY_AFTER_MS = 1000
_TAB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def refusal(
    tx: Transaction, caller: Caller, new: Sequence[Submission], known: Mapping[str, Task]
) -> FairlaneError | None:
    """Return why a caller may not submit these tasks, or None. Load their sessions."""
    if caller.agent is not None:
        for one in new:
            assert one.agent == caller.agent, "the token may submit tasks only for its own agent"
        session = _foreign_session(tx, caller.agent, new)
        problem = session or _foreign_parent(tx, caller.agent, new, known)
        if problem is not None:
            return problem
    return quota(tx, caller, len(new))


def quota(tx: Transaction, caller: Caller, count: int) -> QuotaExceeded | None:
    """Return the error if `count` more tasks would exceed the token's open tasks."""
    if caller.max_open is None:
        return None
    found = _open(tx, caller.agent)
    if found + count <= caller.max_open:
        return None
    return QuotaExceeded(
        f"this token may have {caller.max_open} open tasks and has {found}; wait until some have "
        "finished",
        details={"open": found, "max": caller.max_open},
        retry_after_ms=RETRY_AFTER_MS,
    )


def _open(tx: Transaction, agent: str | None) -> int:
    """Return how many tasks are queued, running or parked, of the agent or of all."""
    lanes = tx.counters.lanes()
    if agent is None:
        return sum(tally.queued + tally.inflight + tally.parked for tally in lanes.values())
    tx.counters.load_lines((lane, agent) for lane in lanes)
    lines = [line for lane in lanes for line in tx.counters.lines(lane, agent).values()]
    return sum(line.queued + line.inflight + line.parked for line in lines)


def is_mine(tx: Transaction, key: str, agent: str | None) -> bool:
    """Return whether a session belongs to the agent or to none. Load it."""
    owner = tx.counters.session(key).agent
    return agent is None or owner == agent or (owner is None and _may_name(key, agent))


def not_mine(key: str) -> NotFound:
    """Return the same error for another agent's session as for one that does not exist."""
    return NotFound(f'session "{key}" has no tasks, settings or usage')


def _foreign_session(tx: Transaction, agent: str, new: Iterable[Submission]) -> NotFound | None:
    for one in new:
        if one.session is not None and not is_mine(tx, one.session, agent):
            return not_mine(one.session)
    return None


def _may_name(key: str, agent: str) -> bool:
    """Return whether a session name is free to choose: names of tabs and cron jobs are reserved."""
    if key.startswith(sessions.OF_CRON):
        return False
    if not key.startswith(sessions.TAB_PREFIX):
        return True
    mine = f"{sessions.TAB_PREFIX}{agent}:"
    return key.startswith(mine) and _TAB_ID.fullmatch(key.removeprefix(mine)) is not None


def _foreign_parent(
    tx: Transaction, agent: str, new: Sequence[Submission], known: Mapping[str, Task]
) -> InvalidRequest | None:
    """Return a parent of another agent: a task receives its parents' results, or uses the budgets
    of the run that submits it.
    """
    here = {one.id for one in new}
    named = {id_: "dependsOn" for one in new for id_ in one.depends_on if id_ not in here}
    named.update((one.child_of, "childOf") for one in new if one.child_of is not None)
    later = tx.tasks_by_id(id_ for id_ in named if id_ not in known)
    for id_, field in named.items():
        parent = known.get(id_) or later.get(id_)
        if parent is None or parent.agent != agent:
            return no_such_task(field, id_)
    return None


def run_that_submits(tx: Transaction, new: Submission) -> Task | InvalidRequest | None:
    """Return the task that a new one is a child of, None for a task of its own."""
    if new.child_of is None:
        return None
    found = tx.tasks_by_id([new.child_of]).get(new.child_of)
    return found or no_such_task("childOf", new.child_of)


def no_such_task(field: str, id_: str) -> InvalidRequest:
    return InvalidRequest(f"invalid task: field '{field}': task '{id_}' not found")
