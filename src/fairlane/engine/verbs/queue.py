"""The queue's verbs: enqueue entries, singly or as a file, and drain them.

A file is checked against the store before anything is applied, because a transaction is shared with
other requests and is never rolled back for one of them. An imported entry repeats its history here:
a drained one is leased and completed, so that counters, events and states agree as for any other
task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlane.core import admission, entries, leases
from fairlane.core.entries import LANE, QueueEntry
from fairlane.core.errors import Conflict, Disabled, FairlaneError, QueueFull
from fairlane.core.model import HANDLER, Task
from fairlane.engine.commands import (
    Drain,
    Drained,
    Enqueue,
    Grant,
    Lease,
    ReclaimedLeases,
    ReclaimExpired,
)
from fairlane.engine.verbs import dependencies, leasing, ownership, ticks
from fairlane.store.transaction import Transaction

IMPORTER: Final = "import"
DRAINER: Final = "drain"
SHOWN_MAX: Final = 20
# How often one drain looks again for tasks that its own completions made ready.
ROUNDS_MAX: Final = 50
WAS_DRAINING: Final = "it was draining when it was imported; reset it to run it"
NONE_LEFT: Final = "no attempts were left when it was imported"
NO_REASON: Final = "it was parked when it was imported"


def enqueue(tx: Transaction, requests: Sequence[Enqueue], now: int) -> Iterator[object]:
    taken = set(tx.tasks_by_id(e.submission.id for r in requests for e in r.entries))
    agents = {entry.submission.agent for r in requests for entry in r.entries}
    tx.counters.load_lines((LANE, agent) for agent in sorted({*agents, ""}))
    for request in requests:
        problem = _problem(tx, request.entries, taken) or _quota(tx, request)
        if problem is not None:
            yield problem
            continue
        taken.update(entry.submission.id for entry in request.entries)
        yield [_let_in(tx, entry, now) for entry in request.entries]


def _quota(tx: Transaction, request: Enqueue) -> FairlaneError | None:
    if request.caller is None:
        return None
    return ownership.quota(tx, request.caller, len(request.entries))


def _problem(tx: Transaction, new: Sequence[QueueEntry], taken: set[str]) -> FairlaneError | None:
    if not tx.policy.enabled:
        return Disabled("the policy disables the scheduler; set enabled to true in the policy")
    if LANE not in tx.policy.lanes:
        return Conflict(f'lane "{LANE}" is not in the policy; add it to use the queue')
    there = [entry.submission.id for entry in new if entry.submission.id in taken]
    if there:
        others = f" and {len(there) - 1} more" if len(there) > 1 else ""
        return Conflict(
            f'entry "{there[0]}"{others} already exists; use another id, or leave it out',
            details={"ids": there[:SHOWN_MAX]},
        )
    return _refusal(tx, new)


def _refusal(tx: Transaction, new: Sequence[QueueEntry]) -> QueueFull | None:
    """Return the error if the last of them would not fit. All entries of a file have one agent."""
    waiting = [e.submission for e in new if e.status in (entries.PENDING, entries.READY)]
    if not waiting:
        return None
    before, last = len(waiting) - 1, waiting[-1]
    of_agent = sum(line.queued for line in tx.counters.lines(LANE, last.agent).values())
    return admission.refusal(
        last.agent,
        last.id,
        LANE,
        tx.policy,
        lane_queued=tx.counters.lane(LANE).queued + before,
        agent_queued=of_agent + before,
    )


def _let_in(tx: Transaction, entry: QueueEntry, now: int) -> Task:
    entry, policy = _spent(tx, entry), tx.policy
    made = entry.submission
    owner = admission.line_agent(policy, LANE, made.agent)
    change = admission.admit(
        made,
        LANE,
        policy,
        line=tx.counters.line_number(LANE, owner, made.capability),
        seq=tx.next_seq(),
        position=tx.counters.lane(LANE).queued + 1,
        now=now if entry.enqueued_at is None else min(now, entry.enqueued_at),
    )
    task = change.after
    task.attempts = entry.attempts
    tries = entry.attempts + (entry.status in (entries.LEASED, entries.DRAINED))
    task.max_attempts = max(task.max_attempts, tries)  # its limit elsewhere was higher
    dependencies.let_in(tx, task, now)
    tx.apply(change, body=made.body)
    return _as_it_was(tx, entry, task, now)


def _spent(tx: Transaction, entry: QueueEntry) -> QueueEntry:
    """Return whether a waiting entry has no attempts left: it is parked, as after one more."""
    waits = entry.status in (entries.PENDING, entries.READY)
    if not waits or entry.attempts < tx.policy.max_attempts(HANDLER, LANE):
        return entry
    made = msgspec.structs.replace(entry.submission, run_at=None)
    return msgspec.structs.replace(entry, submission=made, status=entries.PARKED, reason=NONE_LEFT)


def _as_it_was(tx: Transaction, entry: QueueEntry, task: Task, now: int) -> Task:
    """Set a new task to the status of its imported entry."""
    status = entry.status
    if status in (entries.PENDING, entries.READY):
        return task
    if status == entries.LEASED:  # it keeps its slot as long as its host may still be at work
        ends_at = min(entry.ended_at or now, now + tx.policy.lease_ttl_ms(LANE))
        return _granted(tx, task, now, ttl_ms=max(0, ends_at - now))
    if status == entries.CANCELLED:
        return _applied(tx, leases.cancel(task, task.id, now))
    if status == entries.DRAINED:
        at = min(now, entry.ended_at or now)
        task = _granted(tx, task, at)
        return _applied(tx, leases.complete(task, task.fencing_token, None, at))
    reason = WAS_DRAINING if status == entries.DRAINING else entry.reason or NO_REASON
    return _parked(tx, task, reason, now)


def _parked(tx: Transaction, task: Task, reason: str, now: int) -> Task:
    """Park a task. Only a leased task can be parked; the lease is not one of its attempts."""
    task.attempts = max(0, task.attempts - 1)
    change = leases.park(_granted(tx, task, now), reason, now)
    tx.apply(change)
    return change.after


def _granted(tx: Transaction, task: Task, now: int, ttl_ms: int = 0) -> Task:
    fencing_token = tx.next_fencing_token()
    change = leases.grant(
        task, fencing_token=fencing_token, worker=IMPORTER, ttl_ms=ttl_ms, started=True, now=now
    )
    tx.apply(change)
    return change.after


def _applied(tx: Transaction, decision: leases.LeaseDecision) -> Task:
    assert decision.change is not None, decision
    tx.apply(decision.change)
    return decision.change.after


# -------------------------------------------------------------------- drain


def drain(tx: Transaction, requests: Sequence[Drain], now: int) -> Iterator[object]:
    """Lease ready entries, under every rule of leases, and complete them at once."""
    ticks.tick(tx, now)
    for request in requests:
        found: list[Grant] = []
        for _ in range(ROUNDS_MAX):
            ended = _handed_over(tx, request.limit - len(found), request.agent, now)
            found += ended
            if not ended or len(found) == request.limit:
                break
        yield Drained(found, _queued(tx, request.agent))


def _handed_over(tx: Transaction, limit: int, agent: str | None, now: int) -> list[Grant]:
    """Lease and complete ready entries. Each completion may make others ready."""
    ticks.settle(tx, now)
    asked = Lease(
        DRAINER, (LANE,), frozenset(), limit, None, any_handler=True, start=True, agent=agent
    )
    found: list[Grant] = []
    for grant in leasing.hand_over(tx, asked, now):
        ended = _applied(tx, leases.complete(grant.task, grant.task.fencing_token, None, now))
        found.append(Grant(ended, grant.body, grant.inputs, grant.at))
    return found


def _queued(tx: Transaction, agent: str | None) -> int:
    if agent is None:
        return tx.counters.lane(LANE).queued
    tx.counters.load_lines([(LANE, agent)])
    return sum(line.queued for line in tx.counters.lines(LANE, agent).values())


def reclaim_expired(
    tx: Transaction, requests: Sequence[ReclaimExpired], now: int
) -> Iterator[object]:
    for request in requests:
        tasks = ticks.reclaim(tx, now, asked=True)
        mine = [task for task in tasks if request.agent in (None, task.agent)]
        ids = [task.id for task in mine if not task.terminal]
        yield ReclaimedLeases(ids, now, more=len(tasks) == ticks.STEP)
